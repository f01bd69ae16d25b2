/* Streamed responses: event framing, answers from other threads, slow readers. */
#include "http_held.h"

#define PIECE 4096
#define MOST_PIECES 16384 /* 64 MB: more than the queue and the sockets' buffers hold */
#define PIECES_AFTER 200  /* after the queue was full for the first time */
#define QUEUE (64 << 10)

static void get_events(void *user, carry_http_response *response, const carry_http_request *request) {
    (void)user;
    (void)request;
    assert_int_equal(carry_http_begin(response, 200, "text/event-stream"), CARRY_HTTP_QUEUED);
    assert_int_equal(carry_http_event(response, NULL, "one", 3), CARRY_HTTP_QUEUED);
    assert_int_equal(carry_http_event(response, "delta", "two\nthree\r\nfour\rfive", 20), CARRY_HTTP_QUEUED);
    assert_int_equal(carry_http_event(response, NULL, NULL, 0), CARRY_HTTP_QUEUED);
    assert_int_equal(carry_http_event(response, NULL, "", 0), CARRY_HTTP_QUEUED);
    assert_int_equal(carry_http_event(response, NULL, "end\n", 4), CARRY_HTTP_QUEUED);
    carry_http_end(response);
}

static const char events[] =
    "data: one\n\nevent: delta\ndata: two\ndata: three\ndata: four\ndata: five\n\n:\n\ndata: \n\n"
    "data: end\ndata: \n\n";

static void get_cut(void *user, carry_http_response *response, const carry_http_request *request) {
    (void)user;
    (void)request;
    assert_int_equal(carry_http_begin(response, 200, "text/plain"), CARRY_HTTP_QUEUED);
    assert_int_equal(carry_http_write(response, "half", 4), CARRY_HTTP_QUEUED);
    carry_http_abort(response);
}

static const carry_http_route routes[] = {
    {"GET", "/hold", hold, 0},
    {"GET", "/events", get_events, 0},
    {"GET", "/cut", get_cut, 0},
};

static carry_http_options options_of(held *h) {
    return (carry_http_options){
        .routes = routes, .route_count = sizeof routes / sizeof routes[0], .user = h, .queue = QUEUE};
}

static void test_events_are_framed(void **state) {
    (void)state;
    site s;
    held h = new_held();
    carry_http_options options = options_of(&h);
    site_open(&s, &options);
    static char text[4096];
    int to = request(s.port, "GET /events HTTP/1.1\r\nHost: localhost\r\n\r\n");
    size_t length = hear_to_end(to, text, sizeof text);
    (void)close(to);
    char *body = strstr(text, "\r\n\r\n") + 4;
    assert_non_null(strstr(text, "Content-Type: text/event-stream\r\n"));
    assert_non_null(strstr(text, "Transfer-Encoding: chunked\r\n"));
    assert_null(strstr(text, "Content-Length"));
    assert_int_equal(join_chunks(body, length - (size_t)(body - text)), strlen(events));
    assert_string_equal(body, events);
    to = request(s.port, "GET /events HTTP/1.0\r\nHost: localhost\r\n\r\n"); /* knows no chunks */
    (void)hear_to_end(to, text, sizeof text);
    (void)close(to);
    assert_null(strstr(text, "chunked"));
    assert_string_equal(strstr(text, "\r\n\r\n") + 4, events);
    to = request(s.port, "HEAD /events HTTP/1.1\r\nHost: localhost\r\n\r\n");
    (void)hear_to_end(to, text, sizeof text);
    (void)close(to);
    assert_string_equal(strstr(text, "\r\n\r\n"), "\r\n\r\n");
    site_close(&s);
}

static void test_an_aborted_response_has_no_last_chunk(void **state) {
    (void)state;
    site s;
    held h = new_held();
    carry_http_options options = options_of(&h);
    site_open(&s, &options);
    static char text[4096];
    int to = request(s.port, "GET /cut HTTP/1.1\r\nHost: localhost\r\n\r\n");
    size_t length = hear_to_end(to, text, sizeof text);
    (void)close(to);
    char *body = strstr(text, "\r\n\r\n");
    assert_true(body == NULL || join_chunks(body + 4, length - (size_t)(body + 4 - text)) == SIZE_MAX);
    site_close(&s);
}

static void test_another_thread_answers_later(void **state) {
    (void)state;
    site s;
    held h = new_held();
    carry_http_options options = options_of(&h);
    site_open(&s, &options);
    static reply r;
    int to = begin(&s, &h);
    char byte;
    assert_int_equal(hear(to, &byte, 1, 0.0), -1);                       /* nothing yet */
    assert_reply(ask_for(s.port, "GET", "/nowhere", "", NULL), 404, ""); /* others are served meanwhile */
    carry_http_reply(h.response, 200, "text/plain", "late", 4);
    hear_reply(to, &r);
    assert_reply(&r, 200, "late");
    (void)close(to);
    to = begin(&s, &h);
    carry_http_reply_error(h.response, 503, "not now");
    hear_reply(to, &r);
    assert_reply(&r, 503, "{\"error\":\"not now\"}");
    (void)close(to);
    to = begin(&s, &h); /* each piece is sent when it is written */
    assert_int_equal(carry_http_begin(h.response, 200, "text/plain"), CARRY_HTTP_QUEUED);
    for (int i = 0; i < 3; i++) {
        char text[4096] = "";
        size_t length = 0;
        char piece[16];
        (void)snprintf(piece, sizeof piece, "<%d>", i);
        assert_int_equal(carry_http_write(h.response, piece, 3), CARRY_HTTP_QUEUED);
        while (strstr(text, piece) == NULL) {
            ssize_t got = hear(to, text + length, sizeof text - 1 - length, PATIENCE);
            assert_true(got > 0);
            length += (size_t)got;
            text[length] = '\0';
        }
    }
    carry_http_end(h.response);
    (void)close(to);
    assert_int_equal(h.gone.count, 0);
    site_close(&s);
}

static void piece_of(unsigned char *bytes, int number) {
    for (int i = 0; i < PIECE; i++) {
        bytes[i] = (unsigned char)(number * 31 + i * 7);
    }
}

typedef struct writing {
    held held;
    signal_flag full;
    int pieces; /* that were written */
} writing;

/* Writes until the queue is full, then PIECES_AFTER more, and waits whenever it is full. */
static void *write_pieces(void *user) {
    writing *w = user;
    unsigned char bytes[PIECE];
    int waits = 0, end = MOST_PIECES;
    assert_int_equal(carry_http_begin(w->held.response, 200, "application/octet-stream"), CARRY_HTTP_QUEUED);
    while (w->pieces < end) {
        piece_of(bytes, w->pieces);
        const carry_http_sent sent = carry_http_write(w->held.response, bytes, PIECE);
        assert_int_not_equal(sent, CARRY_HTTP_GONE);
        if (sent == CARRY_HTTP_QUEUED) {
            w->pieces++;
            continue;
        }
        if (waits == 0) {
            end = w->pieces + PIECES_AFTER;
            flag_raise(&w->full);
        }
        assert_true(flag_wait(&w->held.drained, ++waits));
    }
    carry_http_end(w->held.response);
    return NULL;
}

static void test_a_slow_reader_gets_everything_through_a_bounded_queue(void **state) {
    (void)state;
    site s;
    writing w = {.held = new_held(), .full = SIGNAL_FLAG};
    carry_http_options options = options_of(&w.held);
    site_open(&s, &options);
    int to = begin(&s, &w.held);
    pthread_t writer;
    assert_int_equal(pthread_create(&writer, NULL, write_pieces, &w), 0);
    static char text[MOST_PIECES * (PIECE + 16) + (1 << 20)];
    size_t length = 0;
    assert_true(flag_wait(&w.full, 1));                     /* the writer has to wait: the queue is bounded */
    for (ssize_t got = 1; got > 0; length += (size_t)got) { /* a little at a time */
        got = hear(to, text + length, length < 100000 ? 1000 : 10000, PATIENCE);
        assert_true(got >= 0);
    }
    assert_int_equal(pthread_join(writer, NULL), 0);
    text[length] = '\0';
    char *body = strstr(text, "\r\n\r\n") + 4;
    assert_int_equal(join_chunks(body, length - (size_t)(body - text)), (size_t)w.pieces * PIECE);
    for (int i = 0; i < w.pieces; i++) {
        unsigned char expected[PIECE];
        piece_of(expected, i);
        assert_memory_equal(body + (size_t)i * PIECE, expected, PIECE);
    }
    assert_int_equal(w.held.gone.count, 0);
    (void)close(to);
    site_close(&s);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_events_are_framed),
        cmocka_unit_test(test_an_aborted_response_has_no_last_chunk),
        cmocka_unit_test(test_another_thread_answers_later),
        cmocka_unit_test(test_a_slow_reader_gets_everything_through_a_bounded_queue),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
