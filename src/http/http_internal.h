/* Internals of the server. One thread (server.c) owns everything here except responses, to which other threads may
   write. Files: socket and options (listen.c), incoming connections (accept.c, address.c), their requests
   (connection.c, request.c, guard.c, route.c), responses (response.c, response_write.c), WebSockets (websocket.c). */
#ifndef CARRY_HTTP_INTERNAL_H
#define CARRY_HTTP_INTERNAL_H

#include <pthread.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <libwebsockets.h>

#include "core/context.h"
#include "http/http.h"
#include "http/request.h"
#include "http/response.h"

#define CARRY_HTTP_RESERVED 32  /* connections that one address must leave to others */
#define CARRY_HTTP_HALF_OPEN 64 /* at most this many connections of one address without a complete request header */
#define CARRY_HTTP_TOKEN 256    /* bytes, including the NUL */
#define CARRY_HTTP_TOKEN_LEAST 16

typedef struct carry_http_address {
    unsigned char key[16];
    int open;          /* connections */
    int sockets;       /* of these, open WebSockets */
    double guesses;    /* wrong tokens still allowed */
    double guessed_at; /* time of the last update of `guesses`; 0: never */
} carry_http_address;

/* A connection with one request. libwebsockets watches it as a plain file; reading, answering and closing are done
   here, because the request parser of libwebsockets 4.1 can loop forever on bytes that follow a body. */
typedef struct carry_http_connection {
    struct lws *wsi;
    carry_http_address *address;
    int file;
    double since;   /* time when it was accepted, or when the response was sent */
    double blocked; /* time since which output has waited for the client; 0: no output waits */
    char head[CARRY_HTTP_HEADERS + 1];
    size_t length;              /* bytes of head received so far */
    carry_http_request request; /* valid once head is complete */
    const carry_http_route *route;
    char *body;
    size_t body_length, body_got, body_capacity;
    size_t ignored; /* bytes that came after the request */
    carry_http_response *response;
    bool spared;    /* has used its one extension for input that the server had not read in time */
    bool lingering; /* answered: input is read and dropped, because closing now could lose the response */
    struct carry_http_connection *next, **before;
} carry_http_connection;

struct carry_http_socket {
    struct lws *wsi;
    carry_http_server *server;
    const carry_http_endpoint *endpoint;
    carry_http_address *address;
    void *data;
    double active;   /* time when it was opened, or of its last message or answer to a ping */
    double pinged;   /* time of the last ping; 0: none */
    bool has_spoken; /* a message or an answer to a ping has arrived */
    bool wants_ping; /* a ping is sent as soon as it can take one */
    char *message;   /* received so far */
    size_t length, capacity;
    double waiting; /* time since which it has not taken a message; 0: it is not waiting */
    int close_status;
    const char *close_reason;
    bool failed;
    struct carry_http_socket *next, **before;
};

struct carry_http_server {
    carry_ctx *ctx; /* belongs to the server's thread */
    carry_http_options options;
    char *token;
    char **hosts, **origins;
    bool loopback;
    int listener, port;

    pthread_t thread;
    atomic_bool stop, woken;
    atomic_bool is_waking; /* responses have output, and the server's thread has been woken */
    sem_t ready, stopping; /* ready: the thread has started; stopping: carry_http_stop no longer uses lws */
    bool failed;           /* true if libwebsockets did not start */
    struct lws_context *lws;
    struct lws_vhost *vhost;
    lws_sorted_usec_list_t tick, alarm;

    carry_http_counts counts;
    atomic_ullong errors; /* error responses, by any thread */
    bool refusing;        /* connections are being refused; logged once */
    int spare;            /* a descriptor that is closed when accept runs out of descriptors; -1: none */
    carry_http_address *addresses;
    int address_count, share;     /* share: the largest number of connections per address */
    carry_http_address *arriving; /* the address of the connection being adopted */
    carry_http_connection *connections;
    bool has_blocked; /* some connections wait for a callback for writing */
    carry_http_socket *sockets;
    unsigned char *out; /* LWS_PRE bytes, then a message */
    size_t out_capacity;
};

/* listen.c */
carry_status carry_http_listen(carry_ctx *ctx, carry_http_server *server, const char *address, int port);
carry_status carry_http_check_options(carry_ctx *ctx, const carry_http_options *options, const char *address,
                                      bool loopback);

/* guard.c */
carry_http_refusal carry_http_guard(const carry_http_server *server, carry_http_address *address,
                                    const carry_http_request *request);
bool carry_http_is_loopback(const char *name, size_t length);       /* "localhost", "127.0.0.1:80", "[::1]:80", ... */
bool carry_http_same_secret(const char *given, const char *secret); /* compares in constant time */
bool carry_http_allows_origin(const carry_http_server *server, const char *origin);

/* address.c. Returns the entry of an address; NULL if all entries are in use. */
struct sockaddr_storage;
carry_http_address *carry_http_address_of(carry_http_server *server, const struct sockaddr_storage *from);
bool carry_http_may_guess(carry_http_address *address);
void carry_http_guessed_wrong(carry_http_address *address);

/* accept.c. opened, closed: called when libwebsockets has taken a connection of server->arriving, or has closed one. */
void carry_http_opened(carry_http_server *server, struct lws *wsi);
void carry_http_closed(carry_http_server *server, struct lws *wsi);
void carry_http_accept(carry_http_server *server);

/* connection.c */
void carry_http_add_connection(carry_http_server *server, struct lws *wsi, int file);
int carry_http_connection_callback(struct lws *wsi, enum lws_callback_reasons reason, void *user, void *in,
                                   size_t length);
void carry_http_send_connections(carry_http_server *server); /* sends queued output as far as sockets take it */
void carry_http_ask_blocked(carry_http_server *server);      /* polls for writing where a socket took only a part */
void carry_http_drop_slow(carry_http_server *server);
void carry_http_detach_all(carry_http_server *server); /* after this, no response uses the server */

/* route.c. Both end with a response, or return -1 when out of memory; the first may ask for a body instead. */
int carry_http_route_request(carry_http_server *server, carry_http_connection *connection);
int carry_http_handle(carry_http_server *server, carry_http_connection *connection);
int carry_http_refuse(carry_http_server *server, carry_http_connection *connection, int status, const char *message);
const carry_http_endpoint *carry_http_endpoint_of(const carry_http_server *server, const char *path);

/* response.c. The connection's side. */
carry_http_response *carry_http_response_new(carry_http_server *server, const carry_http_request *request);
void carry_http_detach(carry_http_response *response); /* the client has gone: frees the connection's reference */
bool carry_http_has_output(carry_http_response *response);
typedef enum {
    CARRY_HTTP_FLUSH_WAIT,
    CARRY_HTTP_FLUSH_BLOCKED,
    CARRY_HTTP_FLUSH_DONE,
    CARRY_HTTP_FLUSH_FAILED
} carry_http_flush;
/* Sends as much as the socket takes. *progress: bytes were sent. */
carry_http_flush carry_http_send_queued(carry_http_response *response, int file, bool *progress);

/* websocket.c. Returns the result of a libwebsockets callback: -1 closes the connection. */
int carry_http_socket_callback(carry_http_server *server, struct lws *wsi, enum lws_callback_reasons reason,
                               carry_http_socket *socket, void *in, size_t length);
void carry_http_drop_stalled(carry_http_server *server);
/* Closes a silent WebSocket of the address that has the most, if it has more than `least`; if none is silent, an active
   one of an address that has more than half of all. endpoint: closes only a WebSocket of this endpoint, although those
   of all endpoints are counted; NULL: any. Returns true if one was closed. */
bool carry_http_drop_socket(carry_http_server *server, const carry_http_endpoint *endpoint, int least);

#endif
