/* An HTTP/1.1 server: routes, whole and streamed responses, server-sent events, WebSockets.

   One thread serves. It calls every handler and callback, so none of them may block. A handler answers at once or keeps
   the response and answers later, from any thread.

   A connection carries one request and is closed after the response. Every request is checked in this order: syntax and
   sizes, the Host header (DNS rebinding), the Origin header, the token (not for public paths and CORS preflights); then
   route, method, Content-Length. For a WebSocket, the path is checked before Host. A request that fails a check gets an
   error response; its handler is not called. Wrong tokens are counted per address: ten at once, then one a second;
   further ones get 429. The right token always passes.

   Limits: bytes of headers, bodies, messages and queued output; connections in total and per address; the time that a
   client may keep the server waiting. */
#ifndef CARRY_HTTP_HTTP_H
#define CARRY_HTTP_HTTP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/json_write.h"

#define CARRY_HTTP_HEADERS 8192                  /* bytes of one request's headers */
#define CARRY_HTTP_CONNECTIONS 320               /* default limit of connections */
#define CARRY_HTTP_QUEUE ((size_t)256 << 10)     /* default limit of bytes that a streamed response may have queued */
#define CARRY_HTTP_BODY_LIMIT ((size_t)64 << 20) /* largest body_limit and message_limit */

typedef struct carry_http_server carry_http_server;
typedef struct carry_http_response carry_http_response;
typedef struct carry_http_socket carry_http_socket;

/* Valid until the handler returns. */
typedef struct carry_http_request {
    const char *method, *path, *query; /* query: "" if absent */
    const char *rest;                  /* the part of the path that '*' of the route's pattern matched, or "" */
    const char *body;                  /* NUL-terminated; "" if absent */
    size_t body_length;
    /* Headers, NULL if absent. */
    const char *host, *origin, *authorization, *api_key, *upgrade, *connection, *key, *version;
    const char *content_length, *transfer_encoding, *expect;
    const char *fields, *fields_end; /* all header lines, for carry_http_header */
    bool is_http10;
} carry_http_request;

/* Returns the first header of this name, compared without case; NULL if absent. */
const char *carry_http_header(const carry_http_request *request, const char *name);
/* Copies the value of `name` in the query, percent-decoded. Returns false if it is absent, malformed, or longer than
   capacity - 1. */
bool carry_http_query(const carry_http_request *request, const char *name, char *value, size_t capacity);

typedef struct carry_http_route {
    const char *method; /* GET also answers HEAD */
    const char *path;   /* exact, or a prefix that ends in '*': "/files/" followed by '*' */
    /* Answers now, or keeps `response` and answers later. */
    void (*handle)(void *user, carry_http_response *response, const carry_http_request *request);
    size_t body_limit; /* bytes; a larger body gets 413. 0: a body is not read; otherwise a body is required. */
} carry_http_route;

/* Responses. The handler owns its response until it calls one of the functions marked (ends); each response must be
   ended once, even if the client has gone. All functions may be called from any thread, by one thread at a time. */

typedef enum carry_http_sent {
    CARRY_HTTP_QUEUED,
    CARRY_HTTP_FULL, /* nothing was queued: wait for `drained`, or end the response */
    CARRY_HTTP_GONE, /* the client has gone, or memory ran out: end the response */
} carry_http_sent;

/* Adds a header before the response begins. Content-Security-Policy, if added, replaces the default, which forbids
   everything. Returns false, without adding the header, if the name has a control character, a space or a colon, if the
   value has a control character other than a tab, or if the header does not fit. */
bool carry_http_add_header(carry_http_response *response, const char *name, const char *value);

/* Sends a whole response. type is the Content-Type; NULL: the response has no body. (ends) */
void carry_http_reply(carry_http_response *response, int status, const char *type, const void *body, size_t length);
void carry_http_reply_text(carry_http_response *response, int status, const char *type, carry_json_text *text);
/* Sends an error whose body options.write_error writes; by default {"error": MESSAGE}. (ends) */
void carry_http_reply_error(carry_http_response *response, int status, const char *message);

/* A streamed response: begin, any number of writes, end. A write is queued whole or not at all. An empty queue takes
   any write, otherwise the limit is options.queue bytes. */
carry_http_sent carry_http_begin(carry_http_response *response, int status, const char *type);
carry_http_sent carry_http_write(carry_http_response *response, const void *bytes, size_t length);
/* A server-sent event (begin with type "text/event-stream"). name may be NULL. Each line of data becomes a data field.
   data NULL: a comment, which keeps proxies from closing the connection. */
carry_http_sent carry_http_event(carry_http_response *response, const char *name, const char *data, size_t length);
void carry_http_end(carry_http_response *response); /* (ends) */
void carry_http_abort(
    carry_http_response *response); /* closes the connection: the client sees a cut response. (ends) */

/* Callbacks on the server's thread. gone: the client closed the connection, did not read in time, or the server stops;
   called once, or not at all if the response was ended before. drained: called when the queue has become empty after a
   write that returned CARRY_HTTP_FULL. Once a function marked (ends) has returned, neither is running or will be
   called. A callback may itself end the response. Do not end a response while holding a lock that its callbacks take.
 */
typedef struct carry_http_watch {
    void (*gone)(void *user);
    void (*drained)(void *user);
    void *user;
} carry_http_watch;
/* Replaces the callbacks; once it has returned, none of the old ones is running or will be called. Do not hold a lock
   that they take. Returns false if the client has gone already; the callbacks will then not be called. */
bool carry_http_watch_client(carry_http_response *response, const carry_http_watch *watch);

/* WebSockets. All functions and callbacks run on the server's thread only. */

typedef struct carry_http_endpoint {
    const char *path;
    size_t message_limit; /* bytes; a larger message closes the connection with 1009 */
    bool binary;          /* accepts binary messages; otherwise they close the connection with 1003 */
    /* The result is passed to the other callbacks. */
    void *(*opened)(void *user, carry_http_socket *socket);
    /* Receives a whole message, NUL-terminated; empty messages are dropped. */
    void (*message)(void *user, void *data, const char *bytes, size_t length);
    /* The socket can take a message: send one or none. Return true to be called again when it can take another. */
    bool (*writable)(void *user, void *data);
    void (*closed)(void *user, void *data);
} carry_http_endpoint;

void carry_http_socket_ask(carry_http_socket *socket); /* calls `writable` when the socket can take a message */
void carry_http_ask_all(carry_http_server *server);    /* the same for every open socket */
/* Sends one message; allowed in `writable` only. The buffer is valid until _send is called; NULL: out of memory. */
unsigned char *carry_http_socket_buffer(carry_http_socket *socket, size_t length);
bool carry_http_socket_send(carry_http_socket *socket, bool binary, size_t length);
/* Closes with a status of RFC 6455, section 7.4, and a reason, which must be a constant of at most 123 bytes. */
void carry_http_socket_close(carry_http_socket *socket, int status, const char *reason);
/* For an endpoint that has reached a limit of its own: closes a silent socket at this endpoint (status 1013) of an
   address that has more sockets than the address of `newcomer`, preferably of the one with the most. A socket is silent
   if it takes no messages, does not answer pings, or has sent nothing since it was opened. If none is silent, closes an
   active one of an address that has more than half of all sockets. Returns true if a socket was closed; `closed` has
   then been called for it. */
bool carry_http_socket_replace(carry_http_socket *newcomer);

/* The server. */

typedef struct carry_http_options {
    const char *address; /* NULL: 127.0.0.1 */
    int port;            /* 0: any free port */
    /* Expected in `Authorization: Bearer`, `X-Api-Key` or `?token=`; 16 to 255 visible ASCII characters. NULL: no
       token, allowed for loopback addresses or with `open`. */
    const char *token;
    bool open; /* serving other addresses than loopback without a token is allowed */
    /* How a user gives a token or allows serving without one, for the message that one is needed; NULL: the message
       names no option. */
    const char *advice;
    /* Lists that end with NULL; a NULL list is empty. */
    const char *const *hosts;        /* names accepted in Host besides those of this machine */
    const char *const *origins;      /* accepted besides the server's own; such a page may read the response */
    const char *const *public_paths; /* need no token. The list must outlive the server */
    double patience;                 /* seconds a client may keep the server waiting; 0: 30 */
    int connections;                 /* 0: CARRY_HTTP_CONNECTIONS; one address may use all but 32 of them */
    size_t queue;                    /* bytes; 0: CARRY_HTTP_QUEUE */

    const carry_http_route *routes; /* like the endpoints, must outlive the server */
    size_t route_count;
    const carry_http_endpoint *endpoints;
    size_t endpoint_count;
    void *user; /* given to handlers and callbacks */
    /* Called once at the start, after carry_http_wake, and after the time set by carry_http_wake_after. May be NULL. */
    void (*woken)(void *user);
    /* Writes the body of an error. NULL: {"error": message}. */
    void (*write_error)(void *user, const char *path, int status, const char *message, carry_json_text *body);
} carry_http_options;

typedef struct carry_http_counts {
    int connections;
    uint64_t requests, messages;
    uint64_t refused; /* requests, messages and connections */
    uint64_t stalled; /* clients disconnected because they kept the server waiting */
} carry_http_counts;

/* *made is set before the first callback. CARRY_EIO: the message has the port and the reason (in use, ...). */
carry_status carry_http_start(carry_ctx *ctx, carry_http_server **made, const carry_http_options *options);
int carry_http_port(const carry_http_server *server);
/* Closes all connections and ends the thread, within two seconds. Responses that have not ended stay valid. */
void carry_http_stop(carry_http_server *server);
void carry_http_wake(carry_http_server *server);                       /* any thread: calls `woken` soon */
void carry_http_wake_after(carry_http_server *server, double seconds); /* server's thread; replaces an earlier time */
void carry_http_counts_read(const carry_http_server *server, carry_http_counts *counts); /* server's thread */

#endif
