/* The responder's side of responses: status line, headers, whole or chunked bodies, server-sent events. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "http/http_internal.h"
#include "http/response.h"

#define FIRST_CAPACITY 2048
#define HEAD 1024 /* at most this many bytes in the status line and the headers of every response */

static const char *reason_of(int status) {
    static const struct {
        int status;
        const char *reason;
    } reasons[] = {
        {200, "OK"},
        {201, "Created"},
        {202, "Accepted"},
        {204, "No Content"},
        {400, "Bad Request"},
        {401, "Unauthorized"},
        {403, "Forbidden"},
        {404, "Not Found"},
        {405, "Method Not Allowed"},
        {409, "Conflict"},
        {411, "Length Required"},
        {413, "Content Too Large"},
        {422, "Unprocessable Content"},
        {429, "Too Many Requests"},
        {431, "Request Header Fields Too Large"},
        {501, "Not Implemented"},
        {503, "Service Unavailable"},
        {507, "Insufficient Storage"},
    };
    for (size_t i = 0; i < sizeof reasons / sizeof reasons[0]; i++) {
        if (reasons[i].status == status) {
            return reasons[i].reason;
        }
    }
    return "Internal Server Error";
}

/* Makes room for `more` bytes after the queue. Returns false if out of memory. */
static bool reserve(carry_http_response *response, size_t more) {
    if (response->sent > 0) {
        memmove(response->out, response->out + response->sent, response->length - response->sent);
        response->length -= response->sent;
        response->sent = 0;
    }
    if (more > SIZE_MAX / 4) {
        return false;
    }
    size_t capacity = response->capacity > 0 ? response->capacity : FIRST_CAPACITY;
    while (capacity < response->length + more) {
        capacity *= 2;
    }
    if (capacity != response->capacity) {
        unsigned char *grown = realloc(response->out, capacity);
        if (grown == NULL) {
            return false;
        }
        response->out = grown;
        response->capacity = capacity;
    }
    return true;
}

static void put(carry_http_response *response, const void *bytes, size_t length) {
    if (length == 0 || response->failed) {
        return;
    }
    if (!reserve(response, length)) {
        response->failed = true;
        return;
    }
    memcpy(response->out + response->length, bytes, length);
    response->length += length;
}

static void put_text(carry_http_response *response, const char *text) {
    put(response, text, strlen(text));
}

/* Writes the status line and headers. length: the last header, and the empty line. */
static void put_head(carry_http_response *response, int status, const char *type, const char *length) {
    char head[HEAD];
    (void)snprintf(head, sizeof head, "HTTP/1.1 %d %s\r\n", status, reason_of(status));
    put_text(response, head);
    if (type != NULL) {
        (void)snprintf(head, sizeof head, "Content-Type: %.200s\r\n", type);
        put_text(response, head);
    }
    if (status == 401) {
        put_text(response, "WWW-Authenticate: Bearer realm=\"carry\"\r\n");
    }
    if (!response->has_policy) {
        put_text(response, "Content-Security-Policy: default-src 'none'\r\n");
    }
    put(response, response->fields, response->fields_length);
    put_text(response, "X-Content-Type-Options: nosniff\r\nReferrer-Policy: no-referrer\r\n"
                       "Cross-Origin-Resource-Policy: same-origin\r\nCache-Control: no-store\r\n"
                       "Connection: close\r\n");
    put_text(response, length);
}

/* The caller holds the lock. One wake is enough for all output until the server's thread looks for it. */
static void wake(carry_http_response *response) {
    if (response->server != NULL && !response->handling && !atomic_exchange(&response->server->is_waking, true)) {
        lws_cancel_service(response->server->lws);
    }
}

/* Drops the responder's reference. The caller holds the lock, which is released. */
static void finish(carry_http_response *response) {
    response->ended = true;
    wake(response);
    while (response->calling && !pthread_equal(pthread_self(), response->thread)) {
        (void)pthread_cond_wait(&response->returned, &response->lock);
    }
    response->watch = (carry_http_watch){0};
    (void)pthread_mutex_unlock(&response->lock);
    carry_http_release(response);
}

bool carry_http_add_header(carry_http_response *response, const char *name, const char *value) {
    for (const char *c = name; *c != '\0'; c++) {
        if ((unsigned char)*c <= ' ' || *c == ':' || *c == 0x7F) {
            return false;
        }
    }
    for (const char *c = value; *c != '\0'; c++) {
        if (((unsigned char)*c < ' ' && *c != '\t') || *c == 0x7F) {
            return false;
        }
    }
    (void)pthread_mutex_lock(&response->lock);
    size_t left = sizeof response->fields - response->fields_length;
    int length = snprintf(response->fields + response->fields_length, left, "%s: %s\r\n", name, value);
    bool fits = length > 0 && (size_t)length < left;
    if (fits) {
        response->fields_length += (size_t)length;
        response->has_policy |= strcasecmp(name, "Content-Security-Policy") == 0;
    }
    (void)pthread_mutex_unlock(&response->lock);
    return fits;
}

void carry_http_reply(carry_http_response *response, int status, const char *type, const void *body, size_t length) {
    (void)pthread_mutex_lock(&response->lock);
    if (response->server != NULL && !response->begun) {
        char last[64] = "\r\n";
        if (status != 204) {
            (void)snprintf(last, sizeof last, "Content-Length: %zu\r\n\r\n", type != NULL ? length : 0);
        }
        put_head(response, status, type, last);
        if (type != NULL && !response->is_head && status != 204) { /* HEAD: only the length is sent */
            put(response, body, length);
        }
    }
    finish(response);
}

void carry_http_reply_text(carry_http_response *response, int status, const char *type, carry_json_text *text) {
    if (text->failed) {
        carry_http_reply_error(response, 500, "out of memory");
    } else {
        carry_http_reply(response, status, type, text->bytes, text->length);
    }
    carry_json_text_free(text);
}

void carry_http_reply_error(carry_http_response *response, int status, const char *message) {
    carry_json_text text = {0};
    (void)pthread_mutex_lock(&response->lock);
    if (response->server != NULL) {
        (void)atomic_fetch_add(&response->server->errors, 1);
        if (pthread_equal(pthread_self(), response->thread)) { /* the log's context belongs to that thread */
            carry_log(response->server->ctx, CARRY_LOG_INFO, "request refused with %d: %s", status, message);
        }
    }
    (void)pthread_mutex_unlock(&response->lock);
    if (response->write_error != NULL) {
        response->write_error(response->user, response->path, status, message, &text);
    } else {
        carry_json_put_raw(&text, "{\"error\":");
        carry_json_put_string(&text, message);
        carry_json_put_raw(&text, "}\n");
    }
    if (text.failed) {
        carry_http_abort(response);
    } else {
        carry_http_reply(response, status, "application/json", text.bytes, text.length);
    }
    carry_json_text_free(&text);
}

carry_http_sent carry_http_begin(carry_http_response *response, int status, const char *type) {
    (void)pthread_mutex_lock(&response->lock);
    if (response->server != NULL && !response->begun) { /* HTTP/1.0: the end of the connection ends the body */
        put_head(response, status, type, response->is_http10 ? "\r\n" : "Transfer-Encoding: chunked\r\n\r\n");
        response->begun = true;
        wake(response);
    }
    carry_http_sent result = response->server != NULL && !response->failed ? CARRY_HTTP_QUEUED : CARRY_HTTP_GONE;
    (void)pthread_mutex_unlock(&response->lock);
    return result;
}

/* A write is accepted whole or not at all; an empty queue accepts any write. */
static carry_http_sent write_chunk(carry_http_response *response, const void *bytes, size_t length) {
    carry_http_sent result = CARRY_HTTP_QUEUED;
    (void)pthread_mutex_lock(&response->lock);
    size_t queued = response->length - response->sent;
    if (response->server == NULL || response->failed || !response->begun) {
        result = CARRY_HTTP_GONE;
    } else if (queued > 0 && (queued > response->queue_limit || length > response->queue_limit - queued)) {
        response->full = true;
        result = CARRY_HTTP_FULL;
    } else if (length > 0 && !response->is_head) {
        char size[32];
        if (!response->is_http10) {
            (void)snprintf(size, sizeof size, "%zx\r\n", length);
            put_text(response, size);
        }
        put(response, bytes, length);
        if (!response->is_http10) {
            put_text(response, "\r\n");
        }
        wake(response);
        result = response->failed ? CARRY_HTTP_GONE : CARRY_HTTP_QUEUED;
    }
    (void)pthread_mutex_unlock(&response->lock);
    return result;
}

carry_http_sent carry_http_write(carry_http_response *response, const void *bytes, size_t length) {
    return write_chunk(response, bytes, length);
}

static size_t line_end(const char *data, size_t at, size_t length) {
    while (at < length && data[at] != '\n' && data[at] != '\r') {
        at++;
    }
    return at;
}

/* Writes data fields. Lines may end in LF, CR LF or CR, as event streams allow. Returns the number of bytes; `to` may
   be NULL, to count only. */
static size_t put_data(char *to, const char *data, size_t length) {
    static const char field[] = "data: ";
    const size_t width = sizeof field - 1;
    size_t used = 0;
    for (size_t at = 0;;) {
        size_t end = line_end(data, at, length);
        if (to != NULL) {
            memcpy(to + used, field, width);
            memcpy(to + used + width, data + at, end - at);
            to[used + width + end - at] = '\n';
        }
        used += width + end - at + 1;
        if (end == length) {
            return used;
        }
        at = end + (data[end] == '\r' && end + 1 < length && data[end + 1] == '\n' ? 2 : 1);
    }
}

carry_http_sent carry_http_event(carry_http_response *response, const char *name, const char *data, size_t length) {
    static const char comment[] = ":\n\n";
    if (data == NULL) {
        return write_chunk(response, comment, sizeof comment - 1);
    }
    size_t head = name != NULL ? strlen("event: \n") + strlen(name) : 0;
    size_t size = head + put_data(NULL, data, length) + 1;
    char *text = malloc(size + 1);
    if (text == NULL) {
        return CARRY_HTTP_GONE;
    }
    if (name != NULL) {
        (void)snprintf(text, size, "event: %s\n", name);
    }
    (void)put_data(text + head, data, length);
    text[size - 1] = '\n';
    carry_http_sent result = write_chunk(response, text, size);
    free(text);
    return result;
}

void carry_http_end(carry_http_response *response) {
    (void)pthread_mutex_lock(&response->lock);
    if (!response->begun) {
        response->failed = true;
    } else if (!response->is_http10 && !response->is_head) {
        put_text(response, "0\r\n\r\n");
    }
    finish(response);
}

void carry_http_abort(carry_http_response *response) {
    (void)pthread_mutex_lock(&response->lock);
    response->failed = true;
    finish(response);
}

bool carry_http_watch_client(carry_http_response *response, const carry_http_watch *watch) {
    (void)pthread_mutex_lock(&response->lock);
    while (response->calling && !pthread_equal(pthread_self(), response->thread)) {
        (void)pthread_cond_wait(&response->returned, &response->lock);
    }
    bool there = response->server != NULL;
    if (there) {
        response->watch = *watch;
    }
    (void)pthread_mutex_unlock(&response->lock);
    return there;
}
