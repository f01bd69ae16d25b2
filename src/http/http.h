/* An HTTP/1.1 server: routes, whole and streamed responses, server-sent events, WebSockets.

   One thread serves. It calls every handler and callback, so none of them may block. A handler answers at once or keeps
   the response and answers later, from any thread.

   A connection carries one request and is closed after the response. Every request is checked in this order: syntax and
   sizes, the Host header (DNS rebinding), the Origin header, the token (not for public paths); then route, method,
   Content-Length. A request that fails a check gets an error response; its handler is not called. Wrong tokens are
   counted per address: ten at once, then one a second; further ones get 429. The right token always passes.

   Limits: bytes of headers, bodies, messages and queued output; connections in total and per address; the time that a
   client may keep the server waiting. */
#ifndef CARRY_HTTP_HTTP_H
#define CARRY_HTTP_HTTP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/json_write.h"

#define CARRY_HTTP_HEADERS 8192                  /* bytes of one request's headers */
#define CARRY_HTTP_CONNECTIONS 320               /* default limit */
#define CARRY_HTTP_QUEUE ((size_t)256 << 10)     /* bytes a streamed response may have queued, by default */
#define CARRY_HTTP_BODY_LIMIT ((size_t)64 << 20) /* largest body_limit and message_limit */

typedef struct carry_http_server carry_http_server;
typedef struct carry_http_response carry_http_response;
typedef struct carry_http_socket carry_http_socket;

/* Valid until the handler returns. */
typedef struct carry_http_request {
    const char *method, *path, *query; /* query: "" if absent */
    const char *rest;                  /* the part of the path that '*' of the route's pattern matched, or "" */
    const char *body;                  /* followed by a 0; "" if absent */
    size_t body_length;
    /* Headers, NULL if absent. */
    const char *host, *origin, *authorization, *api_key, *upgrade, *connection, *key, *version;
    const char *content_length, *transfer_encoding, *expect;
    const char *fields, *fields_end; /* all header lines, for carry_http_header */
    bool is_http10;
} carry_http_request;

/* The first header of this name, in any case; NULL if absent. */
const char *carry_http_header(const carry_http_request *request, const char *name);
/* Copies the value of `name` in the query, percent-decoded. False: absent, longer than capacity - 1, or malformed. */
bool carry_http_query(const carry_http_request *request, const char *name, char *value, size_t capacity);

typedef struct carry_http_route {
    const char *method; /* GET also answers HEAD */
    const char *path;   /* exact, or a prefix that ends in '*': "/files/" followed by '*' */
    /* Answers now, or keeps `response` and answers later. */
    void (*handle)(void *user, carry_http_response *response, const carry_http_request *request);
    size_t body_limit; /* bytes; a larger body gets 413. 0: a body is not read. Otherwise a body is required. */
} carry_http_route;

/* Responses. The handler owns its response until it calls one of the functions marked (ends); each response must be
   ended once, even if the client has gone. All functions may be called from any thread, by one thread at a time. */

typedef enum carry_http_sent {
    CARRY_HTTP_QUEUED,
    CARRY_HTTP_FULL, /* nothing was queued: wait for `drained`, or end the response */
    CARRY_HTTP_GONE, /* the client has gone, or memory ran out: end the response */
} carry_http_sent;

/* Adds a header before the response begins. Content-Security-Policy, if added, replaces the default, which forbids
   everything. Neither part may have control characters. False: it does not fit, and is left out. */
bool carry_http_add_header(carry_http_response *response, const char *name, const char *value);

/* A whole response. type is the Content-Type; with NULL there is no body. (ends) */
void carry_http_reply(carry_http_response *response, int status, const char *type, const void *body, size_t length);
void carry_http_reply_text(carry_http_response *response, int status, const char *type, carry_json_text *text);
/* An error with the body that options.write_error makes; by default {"error": MESSAGE}. (ends) */
void carry_http_reply_error(carry_http_response *response, int status, const char *message);

/* A streamed response: begin, any number of writes, end. A write is queued whole or not at all: always if the queue is
   empty, otherwise up to options.queue bytes. */
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
/* False: the client has gone already, and the callbacks will not be called. */
bool carry_http_watch_client(carry_http_response *response, const carry_http_watch *watch);

/* WebSockets. All functions and callbacks: the server's thread only. */

typedef struct carry_http_endpoint {
    const char *path;
    size_t message_limit; /* bytes; a larger message closes the connection with 1009 */
    bool binary;          /* accepts binary messages; otherwise they close the connection with 1003 */
    /* The result is passed to the other callbacks. */
    void *(*opened)(void *user, carry_http_socket *socket);
    /* A whole message, followed by a 0; empty messages are dropped. */
    void (*message)(void *user, void *data, const char *bytes, size_t length);
    /* The socket takes a message: sends one, or none. True: call again when it takes another. */
    bool (*writable)(void *user, void *data);
    void (*closed)(void *user, void *data);
} carry_http_endpoint;

void carry_http_socket_ask(carry_http_socket *socket); /* calls `writable` when the socket takes a message */
void carry_http_ask_all(carry_http_server *server);    /* likewise for every open socket */
/* Sends one message, from `writable` only. The buffer is valid until the call of _send; NULL: out of memory. */
unsigned char *carry_http_socket_buffer(carry_http_socket *socket, size_t length);
bool carry_http_socket_send(carry_http_socket *socket, bool binary, size_t length);
/* Closes with a status of RFC 6455, section 7.4, and a reason of at most 123 bytes, a constant. */
void carry_http_socket_close(carry_http_socket *socket, int status, const char *reason);
/* For an endpoint with a limit of its own that is reached: closes another socket of the endpoint (status 1013), of the
   address that has the most, if that has more than the address of `newcomer`. Its `closed` has been called when this
   returns true. */
bool carry_http_socket_replace(carry_http_socket *newcomer);

/* The server */

typedef struct carry_http_options {
    const char *address; /* NULL: 127.0.0.1 */
    int port;            /* 0: any free port */
    /* Expected in `Authorization: Bearer`, `X-Api-Key` or `?token=`; 16 to 255 visible ASCII characters. NULL: none,
       for loopback addresses or with `open`. */
    const char *token;
    bool open; /* another address than loopback may be served without a token */
    /* Lists that end with NULL; NULL: empty. */
    const char *const *hosts;   /* names accepted in Host besides those of this machine */
    const char *const *origins; /* accepted besides the server's own; their responses allow the origin to read them */
    const char *const *public_paths; /* need no token; kept, not copied */
    double patience;                 /* seconds a client may keep the server waiting; 0: 30 */
    int connections;                 /* 0: CARRY_HTTP_CONNECTIONS; one address gets all but 32 of them */
    size_t queue;                    /* bytes; 0: CARRY_HTTP_QUEUE */

    const carry_http_route *routes; /* kept, not copied, as the endpoints */
    size_t route_count;
    const carry_http_endpoint *endpoints;
    size_t endpoint_count;
    void *user; /* given to handlers and callbacks */
    /* Once at the start, after carry_http_wake, and when the time of carry_http_wake_after has come. May be NULL. */
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

/* *made is set before the first callback. CARRY_EIO with the port and the reason (in use, ...). */
carry_status carry_http_start(carry_ctx *ctx, carry_http_server **made, const carry_http_options *options);
int carry_http_port(const carry_http_server *server);
/* Closes all connections and ends the thread, within two seconds. Responses that are not ended yet stay valid. */
void carry_http_stop(carry_http_server *server);
void carry_http_wake(carry_http_server *server);                       /* any thread: calls `woken` soon */
void carry_http_wake_after(carry_http_server *server, double seconds); /* server's thread: replaces the time before */
void carry_http_counts_read(const carry_http_server *server, carry_http_counts *counts); /* server's thread */

#endif
