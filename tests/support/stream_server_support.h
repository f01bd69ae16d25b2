/* A stream's server with a hub and controls, for tests that talk to it (http_client.h). */
#ifndef CARRY_TESTS_STREAM_SERVER_SUPPORT_H
#define CARRY_TESTS_STREAM_SERVER_SUPPORT_H

#include "http_client.h"
#include "stream/server/server.h"

#define WIDTH 64
#define HEIGHT 48

typedef struct site {
    carry_ctx *ctx;
    carry_hub *hub;
    carry_controls *controls;
    carry_server *server;
    int port;
    float pixels[3 * WIDTH * HEIGHT];
    uint64_t published;
} site;

static inline void site_open(site *s, const carry_server_options *options) {
    memset(s, 0, sizeof *s);
    s->ctx = support_ctx(1, NULL, NULL);
    static carry_control_state start;
    start = carry_control_default();
    assert_ok(s->ctx, carry_controls_new(s->ctx, &s->controls, &start));
    assert_ok(s->ctx, carry_hub_new(s->ctx, &s->hub, WIDTH, HEIGHT, 80, 0.0));
    assert_ok(s->ctx, carry_server_start(s->ctx, &s->server, options, s->hub, s->controls));
    s->port = carry_server_port(s->server);
    assert_in_range(s->port, 1, 65535);
}

static inline void site_close(site *s) {
    const double began = carry_seconds();
    carry_server_stop(s->server);
    assert_true(carry_seconds() - began < PATIENCE / 2);
    carry_hub_free(s->hub);
    carry_controls_free(s->controls);
    carry_ctx_free(s->ctx);
}

static inline void site_publish(site *s, uint64_t epoch) {
    for (size_t i = 0; i < sizeof s->pixels / sizeof s->pixels[0]; i++) {
        s->pixels[i] = (float)((i * 7 + s->published * 31) % 255) / 254.0F;
    }
    assert_ok(s->ctx, carry_hub_publish(s->hub, s->pixels, s->published / 4, epoch));
    s->published++;
}

#endif
