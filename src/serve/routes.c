/* Routes, and responses that do not need the engine. */
#include <stdio.h>
#include <string.h>

#include "serve/anthropic.h"
#include "serve/openai.h"
#include "serve/server_internal.h"

#define BODY ((size_t)32 << 20)
#define RETRY "1" /* seconds, sent as Retry-After */

/* Dialects by the path of their requests. */
static const struct {
    const char *path;
    const carry_serve_dialect *dialect;
} dialects[] = {
    {"/v1/chat/completions", &carry_serve_openai_chat},
    {"/v1/completions", &carry_serve_openai_text},
    {"/v1/messages", &carry_serve_anthropic},
};

const carry_serve_dialect *carry_serve_dialect_of(const char *path) {
    for (size_t i = 0; i < sizeof dialects / sizeof dialects[0]; i++) {
        if (strcmp(path, dialects[i].path) == 0) {
            return dialects[i].dialect;
        }
    }
    return NULL;
}

void carry_serve_count(carry_lm_server *s, int status) {
    if (status >= 0 && status < CARRY_SERVE_STATUSES) {
        (void)atomic_fetch_add(&s->counters.responses[status], 1);
    }
}

static void write_refusal(const carry_serve_dialect *dialect, const carry_serve_refusal *refusal,
                          carry_json_text *body) {
    (dialect != NULL ? dialect->write_error : carry_serve_openai_error)(refusal, body);
    carry_json_put_raw(body, "\n");
}

void carry_serve_write_error(void *user, const char *path, int status, const char *message, carry_json_text *body) {
    carry_serve_refusal refusal = {.code = status == 401 ? "invalid_api_key" : NULL};
    (void)carry_serve_refuse(&refusal, status, "", "%s", message);
    carry_serve_count(user, status);
    write_refusal(carry_serve_dialect_of(path), &refusal, body);
}

void carry_serve_reply_refusal(carry_lm_server *s, carry_http_response *response, const carry_serve_dialect *dialect,
                               const carry_serve_refusal *refusal) {
    carry_json_text body = {0};
    if (refusal->status == CARRY_SERVE_GONE) {
        (void)atomic_fetch_add(&s->counters.disconnected, 1);
        carry_http_abort(response);
        (void)atomic_fetch_sub(&s->answers, 1);
        return;
    }
    write_refusal(dialect, refusal, &body);
    if (refusal->status == 429 || refusal->status == 503) {
        (void)carry_http_add_header(response, "Retry-After", RETRY);
    }
    carry_serve_reply_json(s, response, refusal->status, &body);
}

void carry_serve_reply_json(carry_lm_server *s, carry_http_response *response, int status, carry_json_text *text) {
    carry_serve_count(s, status);
    carry_http_reply_text(response, status, "application/json", text);
    (void)atomic_fetch_sub(&s->answers, 1);
}

/* Handlers run on the HTTP thread. */

static void reply_now(carry_lm_server *s, carry_http_response *response, int status, carry_json_text *text) {
    carry_serve_count(s, status);
    carry_http_reply_text(response, status, "application/json", text);
}

static void get_health(void *user, carry_http_response *response, const carry_http_request *request) {
    static const char *const names[] = {"loading", "ok", "draining"};
    carry_lm_server *s = user;
    const int phase = atomic_load(&s->phase);
    carry_json_text text = {0};
    (void)request;
    carry_json_begin(&text, NULL, '{');
    carry_json_add_text(&text, "status", names[phase]);
    carry_json_end(&text, '}');
    if (phase != CARRY_SERVE_READY) {
        (void)carry_http_add_header(response, "Retry-After", RETRY);
    }
    reply_now(s, response, phase == CARRY_SERVE_READY ? 200 : 503, &text);
}

static void add_model(const carry_lm_server *s, carry_json_text *text, const char *key) {
    carry_json_begin(text, key, '{');
    carry_json_add_text(text, "id", s->model);
    carry_json_add_text(text, "object", "model");
    carry_json_add_integer(text, "created", s->created);
    carry_json_add_text(text, "owned_by", "carry");
    if (atomic_load(&s->phase) != CARRY_SERVE_LOADING) {
        carry_json_add_integer(text, "max_model_len", carry_engine_context(s->engine));
    }
    carry_json_end(text, '}');
}

static void get_models(void *user, carry_http_response *response, const carry_http_request *request) {
    carry_json_text text = {0};
    (void)request;
    carry_json_begin(&text, NULL, '{');
    carry_json_add_text(&text, "object", "list");
    carry_json_begin(&text, "data", '[');
    add_model(user, &text, NULL);
    carry_json_end(&text, ']');
    carry_json_end(&text, '}');
    reply_now(user, response, 200, &text);
}

static void get_model(void *user, carry_http_response *response, const carry_http_request *request) {
    carry_lm_server *s = user;
    carry_json_text text = {0};
    if (strcmp(request->rest, s->model) == 0) {
        add_model(s, &text, NULL);
        reply_now(s, response, 200, &text);
        return;
    }
    carry_serve_refusal refusal = {.code = "model_not_found"};
    (void)carry_serve_refuse(&refusal, 404, "model", "there is no model '%.100s': this server has '%s'", request->rest,
                             s->model);
    write_refusal(NULL, &refusal, &text);
    reply_now(s, response, 404, &text);
}

static void get_metrics(void *user, carry_http_response *response, const carry_http_request *request) {
    carry_json_text text = {0};
    (void)request;
    carry_serve_write_metrics(user, &text);
    carry_serve_count(user, 200);
    carry_http_reply_text(response, 200, "text/plain; version=0.0.4; charset=utf-8", &text);
}

static void post_generation(void *user, carry_http_response *response, const carry_http_request *request) {
    carry_serve_queue(user, response, request, carry_serve_generate, carry_serve_dialect_of(request->path));
}

static void post_tokenize(void *user, carry_http_response *response, const carry_http_request *request) {
    carry_serve_queue(user, response, request, carry_serve_tokenize_text, NULL);
}

static void post_detokenize(void *user, carry_http_response *response, const carry_http_request *request) {
    carry_serve_queue(user, response, request, carry_serve_detokenize, NULL);
}

static void get_states(void *user, carry_http_response *response, const carry_http_request *request) {
    carry_serve_queue(user, response, request, carry_serve_state_list, NULL);
}

static void post_states(void *user, carry_http_response *response, const carry_http_request *request) {
    carry_serve_queue(user, response, request, carry_serve_state_save, NULL);
}

static void post_state(void *user, carry_http_response *response, const carry_http_request *request) {
    carry_serve_queue(user, response, request, carry_serve_state_load, NULL);
}

static void delete_state(void *user, carry_http_response *response, const carry_http_request *request) {
    carry_serve_queue(user, response, request, carry_serve_state_delete, NULL);
}

void carry_serve_add_routes(carry_lm_server *s) {
    const size_t limit = s->options.body_limit > 0 ? s->options.body_limit : BODY;
    const carry_http_route fixed[] = {
        {"GET", "/health", get_health, 0},           {"GET", "/metrics", get_metrics, 0},
        {"GET", "/v1/models", get_models, 0},        {"GET", "/v1/models/*", get_model, 0},
        {"POST", "/tokenize", post_tokenize, limit}, {"POST", "/detokenize", post_detokenize, limit},
        {"GET", "/v1/states", get_states, 0},        {"POST", "/v1/states", post_states, limit},
        {"POST", "/v1/states/*", post_state, 0},     {"DELETE", "/v1/states/*", delete_state, 0},
    };
    memcpy(s->routes, fixed, sizeof fixed);
    s->route_count = sizeof fixed / sizeof fixed[0];
    for (size_t i = 0; i < sizeof dialects / sizeof dialects[0] && s->route_count < CARRY_SERVE_ROUTES; i++) {
        s->routes[s->route_count++] = (carry_http_route){"POST", dialects[i].path, post_generation, limit};
    }
    carry_serve_add_page(s);
}
