/* The stream's server, on top of http/. The hub wakes it when a frame is published, a timer when a frame is
   released, and another twice a second to send a new state. */
#include "stream/server/server.h"

#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "core/clock.h"
#include "core/error.h"
#include "stream/server/server_internal.h"

#define STATE_SECONDS 0.5 /* between two states */

void carry_server_new_state(carry_server *server) {
    carry_json_text_free(&server->state);
    carry_server_state(server, &server->state);
    server->state_serial++;
}

static void woken(void *user) {
    carry_server *server = user;
    double now = carry_seconds();
    if (now >= server->next_state) {
        const char *why;
        carry_server_film_look(server);
        (void)carry_server_healthy(server, &why); /* records when frames arrived */
        carry_server_new_state(server);
        server->next_state = now + STATE_SECONDS;
    }
    carry_http_ask_all(server->http);
    double seconds = server->next_state - now, release = carry_hub_next_release(server->hub);
    carry_http_wake_after(server->http, release >= 0.0 && release < seconds ? release : seconds);
}

static void wake(void *user) {
    carry_http_wake(((carry_server *)user)->http);
}

static carry_status start(carry_ctx *ctx, carry_server *server, const carry_server_options *options) {
    carry_ctx_options own = {CARRY_INIT(carry_ctx_options), .threads = 1, .log_level = ctx->log_level, .log = ctx->log,
                             .log_user = ctx->log_user};
    server->record_to = options->record_to != NULL ? strdup(options->record_to) : NULL;
    if ((options->record_to != NULL && server->record_to == NULL) || carry_ctx_new(&server->ctx, &own) != CARRY_OK) {
        return carry_fail(ctx, CARRY_EMEMORY, "out of memory: the stream's server");
    }
    carry_http_options http = {.address = options->address,
                               .port = options->port,
                               .token = options->token,
                               .advice = "give --token-file FILE",
                               .patience = options->patience,
                               .connections = CARRY_SERVER_CONNECTIONS,
                               .routes = carry_server_routes,
                               .route_count = carry_server_route_count,
                               .endpoints = &carry_server_viewers,
                               .endpoint_count = 1,
                               .user = server,
                               .woken = woken};
    return carry_http_start(ctx, &server->http, &http);
}

static void server_free(carry_server *server) {
    carry_film_stop(server->film, NULL);
    carry_json_text_free(&server->state);
    carry_ctx_free(server->ctx);
    free(server->record_to);
    free(server);
}

carry_status carry_server_start(carry_ctx *ctx, carry_server **made, const carry_server_options *options,
                                carry_hub *hub, carry_controls *controls) {
    *made = NULL;
    carry_server *server = calloc(1, sizeof *server);
    if (server == NULL) {
        return carry_fail(ctx, CARRY_EMEMORY, "out of memory: the stream's server");
    }
    server->hub = hub;
    server->controls = controls;
    if (getrandom(&server->name, sizeof server->name, 0) != (ssize_t)sizeof server->name) {
        server->name = (uint64_t)(1e9 * carry_seconds());
    }
    carry_status status = start(ctx, server, options);
    if (status != CARRY_OK) {
        server_free(server);
        return status;
    }
    carry_hub_set_wake(hub, wake, server);
    *made = server;
    return CARRY_OK;
}

int carry_server_port(const carry_server *server) {
    return carry_http_port(server->http);
}

void carry_server_stop(carry_server *server) {
    if (server == NULL) {
        return;
    }
    carry_hub_set_wake(server->hub, NULL, NULL);
    carry_http_stop(server->http);
    server_free(server);
}
