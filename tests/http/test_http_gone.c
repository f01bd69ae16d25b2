/* Clients that disconnect, do not read or send rubbish while their response is produced; servers that stop. */
#include <stdatomic.h>

#include "http_held.h"

#define PIECE 4096
#define QUEUE (64 << 10)

static const carry_http_route routes[] = {{"GET", "/hold", hold, 0}};

static carry_http_options options_of(held *h) {
    return (carry_http_options){.routes = routes, .route_count = 1, .user = h, .queue = QUEUE};
}

/* Writes until the queue is full. */
static void fill(held *h) {
    static unsigned char bytes[PIECE];
    int written = 0;
    while (carry_http_write(h->response, bytes, PIECE) == CARRY_HTTP_QUEUED) {
        assert_true(++written < 4096); /* 16 MB: sockets hold less */
    }
}

static void test_a_client_that_goes_is_noticed(void **state) {
    (void)state;
    site s;
    held h = new_held();
    carry_http_options options = options_of(&h);
    site_open(&s, &options);
    int to = begin(&s, &h); /* before the response has begun */
    (void)close(to);
    assert_true(flag_wait(&h.gone, 1));
    assert_int_equal(carry_http_begin(h.response, 200, "text/plain"), CARRY_HTTP_GONE);
    assert_int_equal(carry_http_write(h.response, "x", 1), CARRY_HTTP_GONE);
    assert_false(carry_http_watch_client(h.response, &(carry_http_watch){.gone = note_gone, .user = &h}));
    carry_http_end(h.response);
    to = begin(&s, &h); /* while it streams */
    assert_int_equal(carry_http_begin(h.response, 200, "text/plain"), CARRY_HTTP_QUEUED);
    fill(&h);
    (void)close(to);
    assert_true(flag_wait(&h.gone, 2));
    assert_int_equal(carry_http_write(h.response, "x", 1), CARRY_HTTP_GONE);
    carry_http_end(h.response);
    to = begin(&s, &h); /* a complete answer that comes too late */
    (void)close(to);
    assert_true(flag_wait(&h.gone, 3));
    carry_http_reply(h.response, 200, "text/plain", "x", 1);
    assert_reply(ask_for(s.port, "GET", "/nowhere", "", NULL), 404, "");
    assert_int_equal(h.gone.count, 3);
    site_close(&s);
}

static void test_a_client_that_does_not_read_is_dropped(void **state) {
    (void)state;
    site s;
    held h = new_held();
    carry_http_options options = options_of(&h);
    options.patience = 1.0;
    site_open(&s, &options);
    int idle = begin(&s, &h); /* waits for its response longer than the patience: it must not be dropped */
    carry_http_response *slow = h.response;
    int to = begin(&s, &h);
    assert_int_equal(carry_http_begin(h.response, 200, "text/plain"), CARRY_HTTP_QUEUED);
    static unsigned char bytes[PIECE];
    carry_http_sent sent = CARRY_HTTP_QUEUED;
    for (double until = carry_seconds() + PATIENCE; sent != CARRY_HTTP_GONE;) { /* sockets buffer megabytes first */
        sent = carry_http_write(h.response, bytes, PIECE);
        (void)poll(NULL, 0, sent == CARRY_HTTP_FULL ? 10 : 0);
        assert_true(carry_seconds() < until);
    }
    assert_true(flag_wait(&h.gone, 1));
    carry_http_end(h.response);
    assert_int_equal(h.gone.count, 1);
    carry_http_reply(slow, 200, "text/plain", "patient", 7);
    static reply r;
    hear_reply(idle, &r);
    assert_reply(&r, 200, "patient");
    (void)close(idle);
    (void)close(to);
    site_close(&s);
}

static void test_a_client_that_floods_is_dropped(void **state) {
    (void)state;
    site s;
    held h = new_held();
    carry_http_options options = options_of(&h);
    site_open(&s, &options);
    int to = begin(&s, &h);
    static char rubbish[1 << 20];
    (void)say(to, rubbish, sizeof rubbish);
    assert_true(flag_wait(&h.gone, 1));
    carry_http_end(h.response);
    (void)close(to);
    site_close(&s);
}

static void end_in_callback(void *user) {
    held *h = user;
    assert_int_equal(carry_http_write(h->response, "x", 1), CARRY_HTTP_GONE);
    carry_http_end(h->response);
    flag_raise(&h->gone);
}

static void test_stopping_the_server_tells_the_responders(void **state) {
    (void)state;
    site s;
    held h = new_held(), other = new_held();
    carry_http_options options = options_of(&h);
    site_open(&s, &options);
    int first = begin(&s, &h);
    other.response = h.response;
    assert_true(carry_http_watch_client(other.response, &(carry_http_watch){.gone = end_in_callback, .user = &other}));
    int second = begin(&s, &h);
    assert_int_equal(carry_http_begin(h.response, 200, "text/plain"), CARRY_HTTP_QUEUED);
    site_close(&s);
    assert_int_equal(other.gone.count, 1);
    assert_int_equal(h.gone.count, 1);
    assert_int_equal(carry_http_write(h.response, "x", 1), CARRY_HTTP_GONE); /* valid until it is ended */
    carry_http_end(h.response);
    (void)close(first);
    (void)close(second);
}

/* Many responders on their own threads, with clients that stay and clients that leave at any moment. */
typedef struct crowd {
    pthread_mutex_t lock;
    int running;
    pthread_cond_t none;
} crowd;

typedef struct job {
    crowd *of;
    carry_http_response *response;
    atomic_bool is_gone;
} job;

static void job_gone(void *user) {
    atomic_store(&((job *)user)->is_gone, true);
}

static void *work(void *user) {
    job *j = user;
    (void)carry_http_watch_client(j->response, &(carry_http_watch){.gone = job_gone, .user = j});
    (void)carry_http_begin(j->response, 200, "text/event-stream");
    for (int i = 0; i < 50 && !atomic_load(&j->is_gone); i++) {
        (void)carry_http_event(j->response, "token", "some text", 9);
    }
    carry_http_end(j->response);
    crowd *c = j->of;
    free(j); /* no callback is called after the end */
    (void)pthread_mutex_lock(&c->lock);
    c->running--;
    (void)pthread_cond_signal(&c->none);
    (void)pthread_mutex_unlock(&c->lock);
    return NULL;
}

static void get_work(void *user, carry_http_response *response, const carry_http_request *request) {
    (void)request;
    crowd *c = user;
    job *j = calloc(1, sizeof *j);
    assert_non_null(j);
    j->of = c;
    j->response = response;
    pthread_t thread;
    (void)pthread_mutex_lock(&c->lock);
    c->running++;
    (void)pthread_mutex_unlock(&c->lock);
    assert_int_equal(pthread_create(&thread, NULL, work, j), 0);
    (void)pthread_detach(thread);
}

static void test_clients_may_go_at_any_moment(void **state) {
    (void)state;
    site s;
    crowd c = {PTHREAD_MUTEX_INITIALIZER, 0, PTHREAD_COND_INITIALIZER};
    static const carry_http_route route = {"GET", "/work", get_work, 0};
    site_open(&s, &(carry_http_options){.routes = &route, .route_count = 1, .user = &c});
    static char text[64 << 10];
    for (int i = 0; i < 200; i++) {
        int to = request(s.port, "GET /work HTTP/1.1\r\nHost: localhost\r\n\r\n");
        if (i % 4 == 0) {
            size_t length = hear_to_end(to, text, sizeof text);
            char *body = strstr(text, "\r\n\r\n");
            assert_non_null(body);
            assert_int_equal(join_chunks(body + 4, length - (size_t)(body + 4 - text)), 50 * 30);
        } else if (i % 4 == 1) {
            (void)hear(to, text, 100, PATIENCE);
        }
        (void)close(to);
    }
    site_close(&s); /* while some still work */
    (void)pthread_mutex_lock(&c.lock);
    while (c.running > 0) {
        (void)pthread_cond_wait(&c.none, &c.lock);
    }
    (void)pthread_mutex_unlock(&c.lock);
}

typedef struct blocker {
    signal_flag entered, released;
} blocker;

/* Blocks the server's thread. */
static void block(void *user, carry_http_response *response, const carry_http_request *request) {
    (void)request;
    blocker *b = user;
    flag_raise(&b->entered);
    (void)flag_wait(&b->released, 1);
    carry_http_reply(response, 200, "text/plain", "late", 4);
}

static void answer(void *user, carry_http_response *response, const carry_http_request *request) {
    (void)user;
    (void)request;
    carry_http_reply(response, 200, "text/plain", "here", 4);
}

/* A client is not dropped because the server was slow: its request arrived in time and waits in the socket. */
static void test_a_late_server_reads_before_it_drops(void **state) {
    (void)state;
    static const carry_http_route own[] = {{"GET", "/block", block, 0}, {"GET", "/answer", answer, 0}};
    site s;
    char text[2048];
    blocker b = {SIGNAL_FLAG, SIGNAL_FLAG};
    site_open(&s, &(carry_http_options){.routes = own, .route_count = 2, .user = &b, .patience = 1.0});
    int first = knock(s.port);
    assert_true(say(first, "GET /answer HTTP/1.1\r\n", 22));
    int other = request(s.port, "GET /answer HTTP/1.1\r\nHost: localhost\r\n\r\n"); /* accepted after the first */
    assert_true(hear_to_end(other, text, sizeof text) > 0);
    (void)close(other);
    other = request(s.port, "GET /block HTTP/1.1\r\nHost: localhost\r\n\r\n");
    assert_true(flag_wait(&b.entered, 1));
    assert_true(say(first, "Host: localhost\r\n\r\n", 19));
    (void)nanosleep(&(struct timespec){.tv_sec = 2}, NULL); /* longer than the server's patience */
    flag_raise(&b.released);
    assert_true(hear_to_end(first, text, sizeof text) > 0);
    assert_non_null(strstr(text, " 200 "));
    (void)close(first);
    (void)close(other);
    site_close(&s);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_client_that_goes_is_noticed),
        cmocka_unit_test(test_a_client_that_does_not_read_is_dropped),
        cmocka_unit_test(test_a_client_that_floods_is_dropped),
        cmocka_unit_test(test_a_late_server_reads_before_it_drops),
        cmocka_unit_test(test_stopping_the_server_tells_the_responders),
        cmocka_unit_test(test_clients_may_go_at_any_moment),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
