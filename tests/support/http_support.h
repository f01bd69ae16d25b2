/* A server with the routes of a test. */
#ifndef CARRY_TESTS_HTTP_SUPPORT_H
#define CARRY_TESTS_HTTP_SUPPORT_H

#include <pthread.h>

#include "http/http.h"
#include "http_client.h"

typedef struct site {
    carry_ctx *ctx;
    carry_http_server *http;
    int port;
} site;

static inline void site_open(site *s, const carry_http_options *options) {
    s->ctx = support_ctx(1, NULL, NULL);
    assert_ok(s->ctx, carry_http_start(s->ctx, &s->http, options));
    s->port = carry_http_port(s->http);
}

static inline void site_close(site *s) {
    carry_http_stop(s->http);
    carry_ctx_free(s->ctx);
}

/* Sends a request and leaves the connection open. */
static inline int request(int port, const char *format, ...) CARRY_PRINTF(2, 3);
static inline int request(int port, const char *format, ...) {
    char text[2048];
    va_list arguments;
    va_start(arguments, format);
    int length = vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    int to = knock(port);
    assert_true(say(to, text, (size_t)length));
    return to;
}

/* Reads up to the end of the connection, at most capacity - 1 bytes. */
static inline size_t hear_to_end(int from, char *text, size_t capacity) {
    size_t length = 0;
    while (length < capacity - 1) {
        ssize_t got = hear(from, text + length, capacity - 1 - length, PATIENCE);
        if (got < 0) {
            fail_msg("the server says nothing, after %zu bytes", length);
        }
        if (got == 0) {
            break;
        }
        length += (size_t)got;
    }
    text[length] = '\0';
    return length;
}

/* Joins the chunks of a body in place. Returns its length, or SIZE_MAX if it is truncated or malformed. */
static inline size_t join_chunks(char *body, size_t length) {
    size_t from = 0, to = 0;
    for (;;) {
        char *end = memchr(body + from, '\n', length - from);
        if (end == NULL) {
            return SIZE_MAX;
        }
        size_t size = (size_t)strtoul(body + from, NULL, 16);
        from = (size_t)(end - body) + 1;
        if (length - from < size + 2 || memcmp(body + from + size, "\r\n", 2) != 0) {
            return SIZE_MAX;
        }
        if (size == 0) {
            body[to] = '\0';
            return from + 2 == length ? to : SIZE_MAX;
        }
        memmove(body + to, body + from, size);
        from += size + 2;
        to += size;
    }
}

/* An event from another thread, awaited with a deadline. */
typedef struct signal_flag {
    pthread_mutex_t lock;
    pthread_cond_t set;
    int count;
} signal_flag;

#define SIGNAL_FLAG \
    { PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, 0 }

static inline void flag_raise(void *user) {
    signal_flag *flag = user;
    (void)pthread_mutex_lock(&flag->lock);
    flag->count++;
    (void)pthread_cond_broadcast(&flag->set);
    (void)pthread_mutex_unlock(&flag->lock);
}

static inline bool flag_wait(signal_flag *flag, int count) {
    struct timespec until;
    (void)clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += (time_t)PATIENCE;
    (void)pthread_mutex_lock(&flag->lock);
    int bad = 0;
    while (flag->count < count && bad == 0) {
        bad = pthread_cond_timedwait(&flag->set, &flag->lock, &until);
    }
    bool reached = flag->count >= count;
    (void)pthread_mutex_unlock(&flag->lock);
    return reached;
}

#endif
