/* A response that a test answers from its own thread. */
#ifndef CARRY_TESTS_HTTP_HELD_H
#define CARRY_TESTS_HTTP_HELD_H

#include "http_support.h"

typedef struct held {
    signal_flag came, gone, drained;
    carry_http_response *response;
} held;

static inline void hold(void *user, carry_http_response *response, const carry_http_request *request) {
    (void)request;
    held *h = user;
    h->response = response;
    flag_raise(&h->came);
}

static inline void note_gone(void *user) {
    flag_raise(&((held *)user)->gone);
}

static inline void note_drained(void *user) {
    flag_raise(&((held *)user)->drained);
}

static inline held new_held(void) {
    return (held){.came = SIGNAL_FLAG, .gone = SIGNAL_FLAG, .drained = SIGNAL_FLAG};
}

/* A client of /hold, whose response this thread holds. */
static inline int begin(site *s, held *h) {
    int expected = h->came.count + 1;
    int to = request(s->port, "GET /hold HTTP/1.1\r\nHost: localhost\r\n\r\n");
    assert_true(flag_wait(&h->came, expected));
    assert_true(carry_http_watch_client(h->response,
                                        &(carry_http_watch){.gone = note_gone, .drained = note_drained, .user = h}));
    return to;
}

#endif
