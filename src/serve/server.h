/* The language model server: OpenAI's and Anthropic's interfaces, named states and metrics, over one engine.

       carry_lm_server_start(ctx, &server, &options);       listens; requests get 503 until carry_lm_server_run
       carry_lm_server_run(server, engine, should_drain);   serves on this thread until drained
       carry_lm_server_free(server);

   The thread that calls carry_lm_server_run drives the engine. Queues are bounded: requests beyond them get 429. */
#ifndef CARRY_SERVE_SERVER_H
#define CARRY_SERVE_SERVER_H

#include "carry/engine.h"

typedef struct carry_lm_server carry_lm_server;

typedef struct carry_lm_server_options {
    const char *address; /* NULL: 127.0.0.1 */
    int port;            /* 0: any free port */
    const char *key;     /* the API key; NULL: no key, allowed for loopback addresses or with `open` */
    bool open;
    const char *const *hosts, *const *origins; /* as in http/http.h */
    const char *model;                         /* the name that clients see */
    const char *states;                        /* folder of saved states; NULL: /v1/states is refused */
    double patience;                           /* seconds a client may keep the server waiting; 0: 30 */
    size_t body_limit;                         /* largest body of a request in bytes; 0: 32 MiB */
    int64_t queue;                             /* requests that may wait to be prepared; 0: 256 */
    void (*on_ready)(void *user); /* called by carry_lm_server_run when requests are accepted; may be NULL */
    void *user;
} carry_lm_server_options;

carry_status carry_lm_server_start(carry_ctx *ctx, carry_lm_server **made, const carry_lm_server_options *options);
int carry_lm_server_port(const carry_lm_server *server);

/* Serves until the server is drained. should_drain is called several times a second; once it returns true, new requests
   get 503, and the function returns when the requests in progress have ended. It also returns if the engine fails. */
carry_status carry_lm_server_run(carry_lm_server *server, carry_engine *engine, bool (*should_drain)(void));
void carry_lm_server_free(carry_lm_server *server); /* call it before the engine is closed; NULL is allowed */

#endif
