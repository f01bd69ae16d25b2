/* Requests. A table of routes; every answer is made whole and handed to libwebsockets at once, which keeps what the
   socket does not take yet. */
#include "stream/server_internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "core/error.h"
#include "model/json.h"

#define HEAD_ROOM 1024 /* bytes of an answer's headers */
#define NONCE 32
#define RECORD_NAME 128

typedef struct answer {
    int status;
    const char *type; /* of the body; NULL: there is none */
    const void *body;
    size_t length;
    const char *nonce; /* of a page's own scripts; NULL: nothing may run */
    const char *allow; /* methods, where one was refused */
    bool close;
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
    case 503:
        return "Service Unavailable";
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
    int length = snprintf(
        head, HEAD_ROOM,
        "HTTP/1.1 %d %s\r\n%s%s%s%s%s%s"
        "Content-Security-Policy: %s\r\nX-Content-Type-Options: nosniff\r\n"
        "Referrer-Policy: no-referrer\r\nCross-Origin-Resource-Policy: same-origin\r\n"
        "Cache-Control: no-store\r\nConnection: %s\r\n",
        a->status, reason_of(a->status), a->type != NULL ? "Content-Type: " : "", a->type != NULL ? a->type : "",
        a->type != NULL ? "\r\n" : "", a->status == 401 ? "WWW-Authenticate: Bearer realm=\"carry\"\r\n" : "",
        a->allow != NULL ? "Allow: " : "", a->allow != NULL ? a->allow : "", policy, a->close ? "close" : "keep-alive");
    int more = a->status == 204
                   ? snprintf(head + length, (size_t)(HEAD_ROOM - length), "\r\n")
                   : snprintf(head + length, (size_t)(HEAD_ROOM - length), "Content-Length: %zu\r\n\r\n", a->length);
    return length + more;
}

/* -1: close. A body that was asked for by HEAD is measured and not sent. */
static int send_answer(carry_server *server, struct lws *wsi, const answer *a) {
    char *uri;
    int uri_length;
    bool head_only = lws_http_get_uri_and_method(wsi, &uri, &uri_length) == LWSHUMETH_HEAD;
    char head[HEAD_ROOM];
    size_t head_length = (size_t)put_head(head, a), body = head_only ? 0 : a->length;
    unsigned char *out = carry_server_room(server, head_length + body);
    if (out == NULL) {
        return -1;
    }
    memcpy(out, head, head_length);
    if (body > 0) {
        memcpy(out + head_length, a->body, body);
    }
    lws_set_timeout(wsi, PENDING_TIMEOUT_HTTP_CONTENT, (int)server->patience + 1);
    if (lws_write(wsi, out, head_length + body, LWS_WRITE_HTTP_FINAL) < 0 || a->close) {
        return -1;
    }
    return lws_http_transaction_completed(wsi) ? -1 : 0;
}

static int send_error(carry_server *server, struct lws *wsi, int status, const char *why, const char *allow,
                      bool close) {
    carry_json_text text = {0};
    carry_json_put_raw(&text, "{\"error\":");
    carry_json_put_string(&text, why);
    carry_json_put_raw(&text, "}\n");
    server->refused++;
    carry_log(server->ctx, CARRY_LOG_INFO, "a request is refused with %d: %s", status, why);
    answer a = {.status = status,
                .type = "application/json",
                .body = text.bytes,
                .length = text.length,
                .allow = allow,
                .close = close};
    int result = text.failed ? -1 : send_answer(server, wsi, &a);
    carry_json_text_free(&text);
    return result;
}

int carry_server_refuse(carry_server *server, struct lws *wsi, int status, const char *why) {
    return send_error(server, wsi, status, why, NULL, true);
}

static int send_text(carry_server *server, struct lws *wsi, int status, const char *type, carry_json_text *text) {
    int result =
        text->failed
            ? carry_server_refuse(server, wsi, 500, "no memory for an answer")
            : send_answer(server, wsi,
                          &(answer){.status = status, .type = type, .body = text->bytes, .length = text->length});
    carry_json_text_free(text);
    return result;
}

static int get_page(carry_server *server, struct lws *wsi) {
    unsigned char dice[NONCE / 2];
    char nonce[NONCE + 1];
    if (getrandom(dice, sizeof dice, 0) != (ssize_t)sizeof dice) {
        return carry_server_refuse(server, wsi, 500, "no random numbers can be had");
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
        return carry_server_refuse(server, wsi, 500, "no memory for the page");
    }
    answer a = {
        .status = 200, .type = "text/html; charset=utf-8", .body = text.bytes, .length = text.length, .nonce = nonce};
    int result = send_answer(server, wsi, &a);
    carry_json_text_free(&text);
    return result;
}

static int get_health(carry_server *server, struct lws *wsi) {
    const char *why;
    bool healthy = carry_server_healthy(server, &why);
    carry_json_text text = {0};
    carry_json_put_raw(&text, "{\"healthy\":%s,\"state\":", healthy ? "true" : "false");
    carry_json_put_string(&text, why);
    carry_json_put_raw(&text, "}\n");
    return send_text(server, wsi, healthy ? 200 : 503, "application/json", &text);
}

static int get_metrics(carry_server *server, struct lws *wsi) {
    carry_json_text text = {0};
    carry_server_metrics(server, &text);
    return send_text(server, wsi, 200, "text/plain; version=0.0.4; charset=utf-8", &text);
}

static int get_state(carry_server *server, struct lws *wsi) {
    carry_json_text text = {0};
    carry_server_state(server, &text);
    return send_text(server, wsi, 200, "application/json", &text);
}

static int get_frame(carry_server *server, struct lws *wsi) {
    carry_viewer *viewer;
    carry_frame frame;
    if (carry_hub_join(server->hub, &viewer) != CARRY_OK) {
        return carry_server_refuse(server, wsi, 503, "there are too many viewers");
    }
    int result;
    if (carry_viewer_take(viewer, &frame)) {
        answer a = {.status = 200, .type = "image/jpeg", .body = frame.bytes, .length = frame.size};
        result = send_answer(server, wsi, &a);
    } else {
        result = carry_server_refuse(server, wsi, 503, "there is no frame yet");
    }
    carry_hub_leave(viewer);
    return result;
}

static const struct route {
    const char *path;
    int (*get)(carry_server *server, struct lws *wsi);
    carry_route post;
} routes[] = {
    {"/", get_page, CARRY_ROUTE_NONE},           {"/healthz", get_health, CARRY_ROUTE_NONE},
    {"/health", get_health, CARRY_ROUTE_NONE}, /* what those who do not know the z try */
    {"/metrics", get_metrics, CARRY_ROUTE_NONE}, {"/api/state", get_state, CARRY_ROUTE_NONE},
    {"/frame.jpg", get_frame, CARRY_ROUTE_NONE}, {"/api/controls", NULL, CARRY_ROUTE_CONTROLS},
    {"/api/record", NULL, CARRY_ROUTE_RECORD},
};

static int begin_body(carry_server *server, struct lws *wsi, carry_peer *peer, carry_route route) {
    char digits[24];
    int length = lws_hdr_copy(wsi, digits, sizeof digits, WSI_TOKEN_HTTP_CONTENT_LENGTH);
    if (length <= 0 || lws_hdr_total_length(wsi, WSI_TOKEN_HTTP_TRANSFER_ENCODING) > 0) {
        return carry_server_refuse(server, wsi, 411, "a body comes with its Content-Length");
    }
    if (strspn(digits, "0123456789") != strlen(digits)) {
        return carry_server_refuse(server, wsi, 400, "the Content-Length is no number");
    }
    if (length > 9 || strtoul(digits, NULL, 10) > CARRY_SERVER_BODY) {
        return carry_server_refuse(server, wsi, 413, "the body is larger than 256 KiB");
    }
    if (strtoul(digits, NULL, 10) == 0) {
        return carry_server_refuse(server, wsi, 400, "the body is empty: JSON is expected");
    }
    carry_server_forget(peer);
    peer->route = route;
    return 0;
}

int carry_server_request(carry_server *server, struct lws *wsi, carry_peer *peer, const char *path) {
    server->requests++;
    carry_refusal refusal = carry_server_guard(server, wsi);
    if (refusal.status != 0) {
        return carry_server_refuse(server, wsi, refusal.status, refusal.why);
    }
    char *uri;
    int uri_length, method = lws_http_get_uri_and_method(wsi, &uri, &uri_length);
    for (size_t i = 0; i < sizeof routes / sizeof routes[0]; i++) {
        if (strcmp(routes[i].path, path) != 0) {
            continue;
        }
        if (routes[i].get != NULL && (method == LWSHUMETH_GET || method == LWSHUMETH_HEAD)) {
            return routes[i].get(server, wsi);
        }
        if (routes[i].get == NULL && method == LWSHUMETH_POST) {
            return begin_body(server, wsi, peer, routes[i].post);
        }
        return send_error(server, wsi, 405, routes[i].get != NULL ? "this is read with GET" : "this is sent with POST",
                          routes[i].get != NULL ? "GET, HEAD\r\n" : "POST\r\n", true);
    }
    return strcmp(path, "/ws") == 0 ? carry_server_refuse(server, wsi, 400, "/ws is for WebSockets")
                                    : carry_server_refuse(server, wsi, 404, "there is nothing of this name");
}

int carry_server_body(carry_server *server, struct lws *wsi, carry_peer *peer, const void *bytes, size_t length) {
    if (peer->route == CARRY_ROUTE_NONE) { /* it was refused already */
        return 0;
    }
    if (!carry_server_collect(peer, bytes, length)) {
        carry_server_forget(peer);
        return carry_server_refuse(server, wsi, 413, "the body is larger than 256 KiB");
    }
    return 0;
}

int carry_server_body_end(carry_server *server, struct lws *wsi, carry_peer *peer) {
    char why[600] = "";
    int status = 0;
    if (peer->route == CARRY_ROUTE_NONE || peer->body == NULL) {
        return 0;
    }
    if (peer->route == CARRY_ROUTE_RECORD) {
        status = carry_server_record(server, peer->body, peer->length, why, sizeof why);
    } else if (carry_controls_apply(server->controls, peer->body, peer->length, why, sizeof why) != CARRY_OK) {
        status = 400;
    }
    carry_server_forget(peer);
    return status == 0 ? send_answer(server, wsi, &(answer){.status = 204})
                       : send_error(server, wsi, status, why, NULL, false);
}

/* A bare name: nothing that leads out of the folder, is hidden, or that a terminal obeys. */
static bool is_file_name(const carry_json *name) {
    if (name == NULL || name->kind != CARRY_JSON_STRING || name->as.text.length > RECORD_NAME ||
        name->as.text.length < 5 || name->as.text.bytes[0] == '.' || name->as.text.bytes[0] == '-') {
        return false;
    }
    for (size_t i = 0; i < name->as.text.length; i++) {
        unsigned char c = (unsigned char)name->as.text.bytes[i];
        if (c < 0x20 || c == 0x7F || c == '/' || c == '\\') {
            return false;
        }
    }
    return strcmp(name->as.text.bytes + name->as.text.length - 4, ".avi") == 0;
}

static int record(carry_server *server, const carry_json *asked, char *why, size_t why_size) {
    const carry_json *stop = carry_json_find(asked, "stop"), *name = carry_json_find(asked, "path");
    if (stop != NULL && stop->kind == CARRY_JSON_BOOL && stop->truth && name == NULL) {
        carry_film_stop(server->film, &server->filmed);
        server->film = NULL;
        return 0;
    }
    if (stop != NULL || !is_file_name(name)) {
        (void)snprintf(why, why_size,
                       "give {\"path\": \"name.avi\"}, a name of at most %d bytes without folders, or {\"stop\": true}",
                       RECORD_NAME);
        return 400;
    }
    if (server->film != NULL) {
        (void)snprintf(why, why_size, "a recording is under way, of %s: stop it first", server->filmed.path);
        return 409;
    }
    char path[CARRY_FILE_PATH];
    if (carry_file_in(server->ctx, path, server->record_to, name->as.text.bytes) != CARRY_OK ||
        carry_film_start(server->ctx, &server->film, server->hub, path, 0) != CARRY_OK) {
        (void)snprintf(why, why_size, "%s", carry_ctx_error(server->ctx));
        return 409;
    }
    carry_film_look(server->film, &server->filmed);
    return 0;
}

int carry_server_record(carry_server *server, const char *json, size_t length, char *why, size_t why_size) {
    if (server->record_to == NULL) {
        (void)snprintf(why, why_size, "recording is off: start with --record-to FOLDER");
        return 403;
    }
    carry_json *asked;
    if (carry_json_parse(server->ctx, &asked, json, length, "the request") != CARRY_OK) {
        (void)snprintf(why, why_size, "%s", carry_ctx_error(server->ctx));
        return 400;
    }
    int status = record(server, asked, why, why_size);
    carry_json_free(asked);
    return status;
}

void carry_server_film_look(carry_server *server) {
    if (server->film == NULL) {
        return;
    }
    carry_film_look(server->film, &server->filmed);
    if (server->filmed.ended) {
        carry_film_stop(server->film, &server->filmed);
        server->film = NULL;
    }
}
