/* Requests. A table of routes; every answer is made whole, head and body, and ends the connection. */
#include "http/http_internal.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#define HEAD_ROOM 1024 /* bytes of an answer's headers */
#define NONCE 32

typedef struct answer {
    int status;
    const char *type; /* of the body; NULL: there is none */
    const void *body;
    size_t length;
    const char *nonce; /* of a page's own scripts; NULL: nothing may run */
    const char *allow; /* methods, where one was refused */
} answer;

static const char *reason_of(int status) {
    switch (status) {
    case 200:
        return "OK";
    case 204:
        return "No Content";
    case 400:
        return "Bad Request";
    case 401:
        return "Unauthorized";
    case 403:
        return "Forbidden";
    case 404:
        return "Not Found";
    case 405:
        return "Method Not Allowed";
    case 409:
        return "Conflict";
    case 411:
        return "Length Required";
    case 413:
        return "Content Too Large";
    case 429:
        return "Too Many Requests";
    case 431:
        return "Request Header Fields Too Large";
    case 503:
        return "Service Unavailable";
    case 507:
        return "Insufficient Storage";
    default:
        return "Internal Server Error";
    }
}

static int put_head(char *head, const answer *a) {
    char policy[300] = "default-src 'none'";
    if (a->nonce != NULL) {
        (void)snprintf(policy, sizeof policy,
                       "default-src 'none'; script-src 'nonce-%s'; style-src 'nonce-%s'; connect-src 'self'; "
                       "img-src 'self' blob: data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
                       a->nonce, a->nonce);
    }
    int length = snprintf(head, HEAD_ROOM,
                          "HTTP/1.1 %d %s\r\n%s%s%s%s%s%s"
                          "Content-Security-Policy: %s\r\nX-Content-Type-Options: nosniff\r\n"
                          "Referrer-Policy: no-referrer\r\nCross-Origin-Resource-Policy: same-origin\r\n"
                          "Cache-Control: no-store\r\nConnection: close\r\n",
                          a->status, reason_of(a->status), a->type != NULL ? "Content-Type: " : "",
                          a->type != NULL ? a->type : "", a->type != NULL ? "\r\n" : "",
                          a->status == 401 ? "WWW-Authenticate: Bearer realm=\"carry\"\r\n" : "",
                          a->allow != NULL ? "Allow: " : "", a->allow != NULL ? a->allow : "", policy);
    int more = a->status == 204
                   ? snprintf(head + length, (size_t)(HEAD_ROOM - length), "\r\n")
                   : snprintf(head + length, (size_t)(HEAD_ROOM - length), "Content-Length: %zu\r\n\r\n", a->length);
    return length + more;
}

/* A body that was asked for by HEAD is measured and not sent. */
static int send_answer(carry_client *client, const answer *a) {
    char head[HEAD_ROOM];
    size_t head_length = (size_t)put_head(head, a);
    size_t body = strcmp(client->request.method, "HEAD") == 0 ? 0 : a->length;
    client->out = malloc(head_length + body);
    if (client->out == NULL) {
        return -1;
    }
    memcpy(client->out, head, head_length);
    if (body > 0) {
        memcpy(client->out + head_length, a->body, body);
    }
    client->out_length = head_length + body;
    return 0;
}

static int send_error(carry_server *server, carry_client *client, int status, const char *why, const char *allow) {
    carry_json_text text = {0};
    carry_json_put_raw(&text, "{\"error\":");
    carry_json_put_string(&text, why);
    carry_json_put_raw(&text, "}\n");
    server->refused++;
    carry_log(server->ctx, CARRY_LOG_INFO, "a request is refused with %d: %s", status, why);
    answer a = {
        .status = status, .type = "application/json", .body = text.bytes, .length = text.length, .allow = allow};
    int result = text.failed ? -1 : send_answer(client, &a);
    carry_json_text_free(&text);
    return result;
}

int carry_server_refuse(carry_server *server, carry_client *client, int status, const char *why) {
    return send_error(server, client, status, why, NULL);
}

static int send_text(carry_server *server, carry_client *client, int status, const char *type, carry_json_text *text) {
    int result =
        text->failed
            ? carry_server_refuse(server, client, 500, "no memory for an answer")
            : send_answer(client,
                          &(answer){.status = status, .type = type, .body = text->bytes, .length = text->length});
    carry_json_text_free(text);
    return result;
}

static int get_page(carry_server *server, carry_client *client) {
    unsigned char dice[NONCE / 2];
    char nonce[NONCE + 1];
    if (getrandom(dice, sizeof dice, 0) != (ssize_t)sizeof dice) {
        return carry_server_refuse(server, client, 500, "no random numbers are available");
    }
    for (size_t i = 0; i < sizeof dice; i++) {
        (void)snprintf(nonce + 2 * i, 3, "%02x", dice[i]);
    }
    carry_json_text text = {0};
    const char *at = (const char *)carry_page, *end = at + carry_page_size;
    while (at < end) {
        const char *mark = memmem(at, (size_t)(end - at), "@NONCE@", 7);
        carry_json_put_raw(&text, "%.*s%s", (int)((mark != NULL ? mark : end) - at), at, mark != NULL ? nonce : "");
        at = mark != NULL ? mark + 7 : end;
    }
    if (text.failed) {
        carry_json_text_free(&text);
        return carry_server_refuse(server, client, 500, "no memory for the page");
    }
    answer a = {
        .status = 200, .type = "text/html; charset=utf-8", .body = text.bytes, .length = text.length, .nonce = nonce};
    int result = send_answer(client, &a);
    carry_json_text_free(&text);
    return result;
}

static int get_health(carry_server *server, carry_client *client) {
    const char *why;
    bool healthy = carry_server_healthy(server, &why);
    carry_json_text text = {0};
    carry_json_put_raw(&text, "{\"healthy\":%s,\"state\":", healthy ? "true" : "false");
    carry_json_put_string(&text, why);
    carry_json_put_raw(&text, ",\"quiet_s\":%.3g}\n", carry_server_quiet(server));
    return send_text(server, client, healthy ? 200 : 503, "application/json", &text);
}

static int get_metrics(carry_server *server, carry_client *client) {
    carry_json_text text = {0};
    carry_server_metrics(server, &text);
    return send_text(server, client, 200, "text/plain; version=0.0.4; charset=utf-8", &text);
}

static int get_state(carry_server *server, carry_client *client) {
    carry_json_text text = {0};
    carry_server_state(server, &text);
    return send_text(server, client, 200, "application/json", &text);
}

static int get_frame(carry_server *server, carry_client *client) {
    carry_viewer *viewer;
    carry_frame frame;
    if (carry_hub_join(server->hub, &viewer) != CARRY_OK) {
        return carry_server_refuse(server, client, 503, "there are too many viewers");
    }
    int result;
    if (carry_viewer_take(viewer, &frame)) {
        answer a = {.status = 200, .type = "image/jpeg", .body = frame.bytes, .length = frame.size};
        result = send_answer(client, &a);
    } else {
        result = carry_server_refuse(server, client, 503, "there is no frame yet");
    }
    carry_hub_leave(viewer);
    return result;
}

static int post_controls(carry_server *server, carry_client *client) {
    char why[600] = "";
    if (carry_controls_apply(server->controls, client->body, client->body_length, why, sizeof why) != CARRY_OK) {
        return carry_server_refuse(server, client, 400, why);
    }
    return send_answer(client, &(answer){.status = 204});
}

static int post_record(carry_server *server, carry_client *client) {
    char why[600] = "";
    int status = carry_server_record(server, client->body, client->body_length, why, sizeof why);
    return status != 0 ? carry_server_refuse(server, client, status, why)
                       : send_answer(client, &(answer){.status = 204});
}

/* Each has one of the two. */
static const struct route {
    const char *path;
    int (*get)(carry_server *server, carry_client *client);
    int (*post)(carry_server *server, carry_client *client);
} routes[] = {
    {"/", get_page, NULL},
    {"/healthz", get_health, NULL},
    {"/health", get_health, NULL}, /* what those who do not know the z try */
    {"/metrics", get_metrics, NULL},
    {"/api/state", get_state, NULL},
    {"/frame.jpg", get_frame, NULL},
    {"/api/controls", NULL, post_controls},
    {"/api/record", NULL, post_record},
};

static int begin_body(carry_server *server, carry_client *client,
                      int (*post)(carry_server *server, carry_client *client)) {
    const char *digits = client->request.length;
    if (digits == NULL || client->request.encoding != NULL) {
        return carry_server_refuse(server, client, 411, "a body comes with its Content-Length");
    }
    if (*digits == '\0' || strspn(digits, "0123456789") != strlen(digits)) {
        return carry_server_refuse(server, client, 400, "Content-Length is not a number");
    }
    unsigned long length = strlen(digits) <= 9 ? strtoul(digits, NULL, 10) : ULONG_MAX;
    if (length > CARRY_SERVER_BODY) {
        return carry_server_refuse(server, client, 413, "the body is larger than 256 KiB");
    }
    if (length == 0) {
        return carry_server_refuse(server, client, 400, "the body is empty: JSON is expected");
    }
    client->body = calloc(1, length + 1);
    client->body_length = length;
    client->post = post;
    return client->body != NULL ? 0 : -1;
}

int carry_server_request(carry_server *server, carry_client *client) {
    const char *path = client->request.path, *method = client->request.method;
    carry_refusal refusal = carry_server_guard(server, client->address, &client->request);
    if (refusal.status != 0) {
        return carry_server_refuse(server, client, refusal.status, refusal.why);
    }
    for (size_t i = 0; i < sizeof routes / sizeof routes[0]; i++) {
        if (strcmp(routes[i].path, path) != 0) {
            continue;
        }
        if (routes[i].get != NULL && (strcmp(method, "GET") == 0 || strcmp(method, "HEAD") == 0)) {
            return routes[i].get(server, client);
        }
        if (routes[i].post != NULL && strcmp(method, "POST") == 0) {
            return begin_body(server, client, routes[i].post);
        }
        return send_error(server, client, 405,
                          routes[i].get != NULL ? "this is read with GET" : "this is sent with POST",
                          routes[i].get != NULL ? "GET, HEAD\r\n" : "POST\r\n");
    }
    return strcmp(path, "/ws") == 0 ? carry_server_refuse(server, client, 400, "/ws is for WebSockets")
                                    : carry_server_refuse(server, client, 404, "not found");
}
