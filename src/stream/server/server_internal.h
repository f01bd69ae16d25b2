/* The inside of the server: one thread (server.c) that owns everything here, its socket (server_listen.c),
   requests (server_http.c), who may ask (server_guard.c), viewers (server_ws.c) and what is told of the stream
   (server_metrics.c). */
#ifndef CARRY_STREAM_SERVER_INTERNAL_H
#define CARRY_STREAM_SERVER_INTERNAL_H

#include <pthread.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <libwebsockets.h>

#include "core/context.h"
#include "stream/server/recording.h"
#include "stream/server/server.h"
#include "stream/server/server_request.h"

#define CARRY_SERVER_CONNECTIONS (CARRY_HUB_VIEWERS + 64)
#define CARRY_SERVER_SHARE (CARRY_SERVER_CONNECTIONS - 32) /* of one address: some are left for the others */
#define CARRY_SERVER_HALF_OPEN 64                          /* connections of one address whose request has not come */
#define CARRY_SERVER_ADDRESSES (CARRY_SERVER_CONNECTIONS + 64)
#define CARRY_SERVER_HEADERS 8192             /* bytes of one request's headers */
#define CARRY_SERVER_BODY ((size_t)256 << 10) /* of a body or a message: eight prompts with every byte escaped fit */
#define CARRY_SERVER_TOKEN 256
#define CARRY_SERVER_TOKEN_LEAST 16 /* characters: no guessing finds it */

/* What an address has, in server->addresses. */
typedef struct carry_address {
    unsigned char key[16];
    int open;          /* connections */
    int viewers;       /* of these */
    double guesses;    /* of tokens that it may still make */
    double guessed_at; /* when they were counted last; 0: never */
} carry_address;

/* A connection that makes one request. libwebsockets watches it as a file; reading, answering and hanging up are ours,
   for its own reader of requests (4.1) can be sent round for ever by what follows a body. */
typedef struct carry_client {
    struct lws *wsi;
    carry_address *address;
    int file;
    double since; /* it came, or was answered */
    char head[CARRY_SERVER_HEADERS + 1];
    size_t length;              /* of head, as far as it has come */
    carry_http_request request; /* once head is whole */
    int (*post)(carry_server *server, struct carry_client *client);
    char *body; /* with a 0 behind it */
    size_t body_length, body_got;
    unsigned char *out; /* the answer; NULL: none yet */
    size_t out_length, out_sent;
    bool lingering; /* answered: what still comes is read and forgotten, lest the answer be lost */
    struct carry_client *next, **before;
} carry_client;

/* A viewer, as libwebsockets keeps it for us; zero at first. */
typedef struct carry_peer {
    struct lws *wsi;
    char *body; /* of a message, as far as it has come; with room for a 0 */
    size_t length, room;
    carry_viewer *viewer;
    carry_address *address;
    double heard;        /* when it joined, or sent a message last */
    char *reply;         /* a text that waits to be sent */
    uint64_t state_sent; /* serial of the last state it got */
    double waiting;      /* since when it could not be written to; 0: it can */
    struct carry_peer *next, **before;
} carry_peer;

struct carry_server {
    carry_ctx *ctx; /* the thread's own */
    carry_hub *hub;
    carry_controls *controls;
    uint64_t name; /* random: tells a server from the one before it, whose frames had other numbers */
    char *token, *record_to;
    double patience;
    bool loopback;
    int listener, port;

    pthread_t thread;
    atomic_bool stop;
    sem_t ready, told; /* it has started; the thread that stops it has said so */
    bool failed;       /* libwebsockets would not start */
    struct lws_context *lws;
    struct lws_vhost *vhost;
    lws_sorted_usec_list_t tick, release;

    int connections; /* that libwebsockets has: clients, and viewers */
    bool refusing;   /* connections, for there are too many: said once */
    int spare;       /* a descriptor to be closed when there is none left to accept with; -1: gone */
    carry_address addresses[CARRY_SERVER_ADDRESSES];
    carry_address *arriving; /* whose connection is being adopted */
    carry_client *clients;
    carry_peer *viewers;
    carry_film *film;
    carry_film_state filmed; /* of film, or of the last one */
    carry_json_text state;   /* as the viewers get it, made every tick */
    uint64_t state_serial;
    uint64_t frames_seen; /* for health: how many, and when the last one came */
    double frames_at;
    uint64_t requests, refused, messages, stalled; /* for metrics */
    unsigned char *out;                            /* LWS_PRE bytes and what is being sent */
    size_t out_room;
};

/* Room for length bytes after LWS_PRE, or NULL. */
unsigned char *carry_server_room(carry_server *server, size_t length);

/* server_listen.c. server->listener and port, or why not. */
carry_status carry_server_listen(carry_ctx *ctx, carry_server *server, const char *address, int port);
carry_status carry_server_check(carry_ctx *ctx, const carry_server_options *options, const char *address,
                                bool loopback);

/* server_guard.c. Who may ask. */
carry_refusal carry_server_guard(const carry_server *server, carry_address *address, const carry_http_request *request);
bool carry_server_is_loopback(const char *name, size_t length);       /* "localhost", "127.0.0.1:80", "[::1]:80", ... */
bool carry_server_same_secret(const char *given, const char *secret); /* in constant time */

/* server_address.c. The entry of an address; NULL: all are in use. */
struct sockaddr_storage;
carry_address *carry_server_address(carry_server *server, const struct sockaddr_storage *from);
bool carry_server_may_guess(carry_address *address);
void carry_server_guessed_wrong(carry_address *address);

/* server_accept.c. libwebsockets has taken a connection of server->arriving, or has closed one. */
void carry_server_opened(carry_server *server, struct lws *wsi);
void carry_server_closed(carry_server *server, struct lws *wsi);
void carry_server_accept(carry_server *server);

/* server_client.c. Connections that make a request. Both return what a callback of libwebsockets returns: -1 closes. */
void carry_server_add_client(carry_server *server, struct lws *wsi, int file);
int carry_server_client_callback(struct lws *wsi, enum lws_callback_reasons reason, void *user, void *in,
                                 size_t length);
void carry_server_drop_slow(carry_server *server);

/* server_http.c. Each makes the client's answer; -1: out of memory for it. */
int carry_server_request(carry_server *server, carry_client *client); /* or asks for a body: client->post */
int carry_server_refuse(carry_server *server, carry_client *client, int status, const char *why);

/* server_record.c. {"path": ...} or {"stop": true}: 0, or an HTTP status and an error message in why. */
int carry_server_record(carry_server *server, const char *json, size_t length, char *why, size_t why_size);
void carry_server_film_look(carry_server *server); /* one that ended by itself is put away */

/* server_ws.c */
int carry_server_join(carry_server *server, struct lws *wsi, carry_peer *peer);
void carry_server_leave(carry_peer *peer);
int carry_server_message(carry_server *server, struct lws *wsi, carry_peer *peer, const void *bytes, size_t length);
int carry_server_writable(carry_server *server, struct lws *wsi, carry_peer *peer);
void carry_server_ask_all(carry_server *server); /* every viewer that has something to get may be written to */
void carry_server_drop_stalled(carry_server *server);
/* Ends a viewer of the address that has the most, if it has at least two more than `newcomer`; false: none has. */
bool carry_server_end_viewer_for(carry_server *server, const carry_address *newcomer);

/* server_metrics.c */
void carry_server_state(carry_server *server,
                        carry_json_text *text); /* {"stream", "controls", "figures", "recording"} */
void carry_server_metrics(carry_server *server, carry_json_text *text);
bool carry_server_healthy(carry_server *server, const char **why);
double carry_server_quiet(const carry_server *server); /* seconds without a frame that are no cause for worry */

/* Made at build time from page/: the page, with NONCE where the policy's number goes. */
extern const unsigned char carry_page[];
extern const size_t carry_page_size;

#endif
