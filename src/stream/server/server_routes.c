/* The routes of the stream's page. Every response is sent in one piece. */
#include <stdio.h>
#include <string.h>
#include <sys/random.h>

#include "stream/server/server_internal.h"

#define NONCE 32 /* hexadecimal digits */

static bool add_policy(carry_http_response *response, const char *nonce) {
    char policy[300];
    (void)snprintf(policy, sizeof policy,
                   "default-src 'none'; script-src 'nonce-%s'; style-src 'nonce-%s'; connect-src 'self'; "
                   "img-src 'self' blob: data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
                   nonce, nonce);
    return carry_http_add_header(response, "Content-Security-Policy", policy);
}

static void get_page(void *user, carry_http_response *response, const carry_http_request *request) {
    (void)user;
    (void)request;
    unsigned char random[NONCE / 2];
    char nonce[NONCE + 1];
    if (getrandom(random, sizeof random, 0) != (ssize_t)sizeof random) {
        carry_http_reply_error(response, 500, "no random numbers are available");
        return;
    }
    for (size_t i = 0; i < sizeof random; i++) {
        (void)snprintf(nonce + 2 * i, 3, "%02x", random[i]);
    }
    carry_json_text text = {0};
    const char *at = (const char *)carry_page, *end = at + carry_page_size;
    while (at < end) {
        const char *mark = memmem(at, (size_t)(end - at), "@NONCE@", 7);
        carry_json_put_raw(&text, "%.*s%s", (int)((mark != NULL ? mark : end) - at), at, mark != NULL ? nonce : "");
        at = mark != NULL ? mark + 7 : end;
    }
    (void)add_policy(response, nonce);
    carry_http_reply_text(response, 200, "text/html; charset=utf-8", &text);
}

static void get_health(void *user, carry_http_response *response, const carry_http_request *request) {
    (void)request;
    carry_server *server = user;
    const char *why;
    bool healthy = carry_server_healthy(server, &why);
    carry_json_text text = {0};
    carry_json_put_raw(&text, "{\"healthy\":%s,\"state\":", healthy ? "true" : "false");
    carry_json_put_string(&text, why);
    carry_json_put_raw(&text, ",\"quiet_s\":%.3g}\n", carry_server_quiet(server));
    carry_http_reply_text(response, healthy ? 200 : 503, "application/json", &text);
}

static void get_metrics(void *user, carry_http_response *response, const carry_http_request *request) {
    (void)request;
    carry_json_text text = {0};
    carry_server_metrics(user, &text);
    carry_http_reply_text(response, 200, "text/plain; version=0.0.4; charset=utf-8", &text);
}

static void get_state(void *user, carry_http_response *response, const carry_http_request *request) {
    (void)request;
    carry_json_text text = {0};
    carry_server_state(user, &text);
    carry_http_reply_text(response, 200, "application/json", &text);
}

static void get_frame(void *user, carry_http_response *response, const carry_http_request *request) {
    (void)request;
    carry_server *server = user;
    carry_viewer *viewer;
    carry_frame frame;
    if (carry_hub_join(server->hub, &viewer) != CARRY_OK) {
        carry_http_reply_error(response, 503, "there are too many viewers");
        return;
    }
    if (carry_viewer_take(viewer, &frame)) {
        carry_http_reply(response, 200, "image/jpeg", frame.bytes, frame.size);
    } else {
        carry_http_reply_error(response, 503, "there is no frame yet");
    }
    carry_hub_leave(viewer);
}

static void post_controls(void *user, carry_http_response *response, const carry_http_request *request) {
    carry_server *server = user;
    char why[600] = "";
    if (carry_controls_apply(server->controls, request->body, request->body_length, why, sizeof why) != CARRY_OK) {
        carry_http_reply_error(response, 400, why);
        return;
    }
    carry_http_reply(response, 204, NULL, NULL, 0);
}

static void post_record(void *user, carry_http_response *response, const carry_http_request *request) {
    char why[600] = "";
    int status = carry_server_record(user, request->body, request->body_length, why, sizeof why);
    if (status != 0) {
        carry_http_reply_error(response, status, why);
        return;
    }
    carry_http_reply(response, 204, NULL, NULL, 0);
}

const carry_http_route carry_server_routes[] = {
    {"GET", "/", get_page, 0},
    {"GET", "/healthz", get_health, 0},
    {"GET", "/health", get_health, 0},
    {"GET", "/metrics", get_metrics, 0},
    {"GET", "/api/state", get_state, 0},
    {"GET", "/frame.jpg", get_frame, 0},
    {"POST", "/api/controls", post_controls, CARRY_SERVER_BODY},
    {"POST", "/api/record", post_record, CARRY_SERVER_BODY},
};
const size_t carry_server_route_count = sizeof carry_server_routes / sizeof carry_server_routes[0];
