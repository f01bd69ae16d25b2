/* Starts and ends the server. */
#include "serve/server.h"

#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>

#include "core/context.h"
#include "serve/server_internal.h"

/* Load balancers ask for the health without a key; the page holds no secret. */
static const char *const public_paths[] = {"/health", CARRY_SERVE_PAGE_PATHS, NULL};

/* Runs on the HTTP thread, the only one that may read its counts. */
static void on_woken(void *user) {
    carry_lm_server *s = user;
    carry_http_counts counts;
    if (s->http != NULL) {
        carry_http_counts_read(s->http, &counts);
        atomic_store(&s->connections, counts.connections);
    }
}

static carry_status open_server(carry_ctx *ctx, carry_lm_server *s, const carry_lm_server_options *options) {
    s->options = *options;
    s->model = strdup(options->model);
    s->states = options->states != NULL ? strdup(options->states) : NULL;
    s->created = (int64_t)time(NULL);
    s->has_lock = pthread_mutex_init(&s->lock, NULL) == 0 && pthread_cond_init(&s->has_message, NULL) == 0;
    for (int i = 0; i < CARRY_SERVE_LANES; i++) {
        s->has_lock = s->has_lock && pthread_cond_init(&s->has_job[i], NULL) == 0;
    }
    if (s->model == NULL || !s->has_lock || (options->states != NULL && s->states == NULL)) {
        return carry_fail(ctx, CARRY_EMEMORY, "out of memory: a server");
    }
    if (getrandom(s->secret, sizeof s->secret, 0) != (ssize_t)sizeof s->secret) {
        return carry_fail(ctx, CARRY_EIO, "the system gives no random numbers");
    }
    carry_serve_add_routes(s);
    if (!carry_serve_start_output(s) || !carry_serve_start_preparers(s)) {
        return carry_fail(ctx, CARRY_EMEMORY, "threads of the server could not be started");
    }
    return carry_http_start(ctx, &s->http,
                            &(carry_http_options){.address = options->address,
                                                  .port = options->port,
                                                  .token = options->key,
                                                  .open = options->open,
                                                  .advice = "give --api-key-file FILE, or --open to serve without one",
                                                  .hosts = options->hosts,
                                                  .origins = options->origins,
                                                  .public_paths = public_paths,
                                                  .patience = options->patience,
                                                  .routes = s->routes,
                                                  .route_count = s->route_count,
                                                  .user = s,
                                                  .woken = on_woken,
                                                  .write_error = carry_serve_write_error});
}

carry_status carry_lm_server_start(carry_ctx *ctx, carry_lm_server **made, const carry_lm_server_options *options) {
    *made = calloc(1, sizeof **made);
    if (*made == NULL) {
        return carry_fail(ctx, CARRY_EMEMORY, "out of memory: a server");
    }
    const carry_status status = open_server(ctx, *made, options);
    if (status != CARRY_OK) {
        carry_lm_server_free(*made);
        *made = NULL;
    }
    return status;
}

int carry_lm_server_port(const carry_lm_server *s) {
    return carry_http_port(s->http);
}

void carry_lm_server_free(carry_lm_server *s) {
    if (s == NULL) {
        return;
    }
    if (s->http != NULL) {
        carry_http_stop(s->http);
    }
    if (s->has_lock) {
        (void)pthread_mutex_lock(&s->lock);
        s->is_stopping = true;
        for (int i = 0; i < CARRY_SERVE_LANES; i++) {
            (void)pthread_cond_broadcast(&s->has_job[i]);
        }
        (void)pthread_mutex_unlock(&s->lock);
        carry_serve_stop_preparers(s);
        (void)pthread_mutex_lock(&s->lock);
        (void)pthread_cond_broadcast(&s->has_message);
        (void)pthread_mutex_unlock(&s->lock);
        carry_serve_stop_output(s);
        (void)pthread_mutex_destroy(&s->lock);
        for (int i = 0; i < CARRY_SERVE_LANES; i++) {
            (void)pthread_cond_destroy(&s->has_job[i]);
        }
        (void)pthread_cond_destroy(&s->has_message);
    }
    if (s->has_chat) {
        carry_chat_close(&s->chat);
    }
    free(s->model);
    free(s->states);
    free(s);
}
