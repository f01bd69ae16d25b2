/* Limits of a server: descriptors are closed after bursts, a process that may open no more files neither spins nor
   stops answering, silent connections block no others, and guesses of tokens are slowed down. */
#include <dirent.h>
#include <fcntl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>

#include "stream_server_support.h"

static int open_files(void) {
    int count = 0;
    DIR *folder = opendir("/proc/self/fd");
    assert_non_null(folder);
    while (readdir(folder) != NULL) {
        count++;
    }
    (void)closedir(folder);
    return count;
}

/* From 127.0.0.LAST. */
static int knock_from(int port, unsigned last) {
    int to = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_true(to >= 0);
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(0x7F000000U + last)};
    assert_int_equal(bind(to, (struct sockaddr *)&at, sizeof at), 0);
    at = (struct sockaddr_in){
        .sin_family = AF_INET, .sin_port = htons((uint16_t)port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    assert_int_equal(connect(to, (struct sockaddr *)&at, sizeof at), 0);
    return to;
}

static int health_from(int port, unsigned last) {
    static const char request[] = "GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n";
    static reply r;
    int to = knock_from(port, last);
    (void)say(to, request, sizeof request - 1);
    hear_reply(to, &r);
    (void)close(to);
    return r.status;
}

static void test_bursts_of_websockets_leave_no_descriptors(void **state) {
    (void)state;
    enum { MANY = 500, BURSTS = 6 };
    static const char request[] = "GET /ws HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
                                  "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n";
    static int to[MANY];
    site s;
    site_open(&s, &(carry_server_options){0});
    site_publish(&s, 0);
    assert_int_equal(health_from(s.port, 1), 200);
    int before = open_files();
    for (int burst = 0; burst < BURSTS; burst++) {
        for (int i = 0; i < MANY; i++) {
            to[i] = knock(s.port);
            (void)say(to[i], request, sizeof request - 1);
        }
        (void)usleep(100000); /* so that all of them are open at once */
        for (int i = 0; i < MANY; i++) {
            (void)close(to[i]);
        }
    }
    double until = carry_seconds() + PATIENCE;
    while (open_files() > before + 2 && carry_seconds() < until) {
        (void)usleep(50000);
    }
    assert_in_range(open_files(), 0, before + 2);
    site_publish(&s, 0);
    assert_int_equal(health_from(s.port, 1), 200);
    site_close(&s);
}

static void test_silent_connections_lock_nobody_out(void **state) {
    (void)state;
    enum { MANY = 400 };
    static int to[MANY];
    site s;
    site_open(&s, &(carry_server_options){0});
    site_publish(&s, 0);
    for (int i = 0; i < MANY; i++) {
        to[i] = knock(s.port);
    }
    assert_int_equal(health_from(s.port, 2), 200);
    assert_int_equal(health_from(s.port, 1), 200); /* the oldest silent one is closed */
    for (int i = 0; i < MANY; i++) {
        (void)close(to[i]);
    }
    site_close(&s);
}

static void test_one_address_leaves_connections_for_others(void **state) {
    (void)state;
    enum { SILENT = 100 };
    static int viewer[CARRY_HUB_VIEWERS], to[SILENT];
    site s;
    site_open(&s, &(carry_server_options){0});
    site_publish(&s, 0);
    for (int i = 0; i < CARRY_HUB_VIEWERS; i++) {
        viewer[i] = ws_join(s.port);
    }
    for (int i = 0; i < SILENT; i++) {
        to[i] = knock(s.port);
    }
    for (unsigned other = 2; other < 6; other++) {
        assert_int_equal(health_from(s.port, other), 200);
    }
    for (int i = 0; i < SILENT; i++) {
        (void)close(to[i]);
    }
    for (int i = 0; i < CARRY_HUB_VIEWERS; i++) {
        (void)close(viewer[i]);
    }
    site_close(&s);
}

static void test_viewers_of_one_address_leave_others_in(void **state) {
    (void)state;
    enum { MANY = 300 };
    static int viewer[MANY];
    static message m;
    site s;
    int status = 0, count = 0;
    site_open(&s, &(carry_server_options){0});
    site_publish(&s, 0);
    for (int i = 0; i < MANY; i++) { /* they join and send nothing; beyond the limit they are refused */
        viewer[i] = ws_open(s.port, "/ws", "", &status);
        count += viewer[i] >= 0;
    }
    assert_in_range(count, CARRY_HUB_VIEWERS, MANY);
    for (unsigned other = 2; other < 6; other++) {
        int to = ws_upgrade(knock_from(s.port, other), s.port, "/ws", "", &status);
        assert_int_equal(status, 101);
        ws_hear_kind(to, 2, &m); /* it gets a frame, so it is a viewer */
        (void)close(to);
    }
    for (int i = 0; i < MANY; i++) {
        if (viewer[i] >= 0) {
            (void)close(viewer[i]);
        }
    }
    site_close(&s);
}

/* A viewer that only looks is not closed for another address, though it has sent no message and is the oldest. */
static void test_active_viewers_stay_where_silent_ones_make_place(void **state) {
    (void)state;
    static int viewer[CARRY_HUB_VIEWERS];
    static message m;
    site s;
    int status = 0, other[20];
    site_open(&s, &(carry_server_options){0});
    site_publish(&s, 0);
    for (int i = 0; i < CARRY_HUB_VIEWERS; i++) {
        viewer[i] = ws_join(s.port);
        if (i < 3) {
            ws_hear_kind(viewer[i], 2, &m); /* answers the ping before the frame */
        }
    }
    for (unsigned i = 0; i < 20; i++) {
        other[i] = ws_upgrade(knock_from(s.port, 2 + i % 4), s.port, "/ws", "", &status);
        assert_int_equal(status, 101);
        ws_hear_kind(other[i], 2, &m);
    }
    site_publish(&s, 0);
    for (int i = 0; i < 3; i++) {
        ws_hear_kind(viewer[i], 2, &m);
    }
    for (int i = 0; i < 20; i++) {
        ws_hear_kind(other[i], 2, &m);
        (void)close(other[i]);
    }
    for (int i = 0; i < CARRY_HUB_VIEWERS; i++) {
        (void)close(viewer[i]);
    }
    site_close(&s);
}

/* Joins as an active viewer: the server knows that it is there, since it answers its message. */
static int join_actively(const site *s, unsigned address) {
    static message m;
    int status = 0;
    const int to = ws_upgrade(knock_from(s->port, address), s->port, "/ws", "", &status);
    assert_int_equal(status, 101);
    ws_hear_kind(to, 2, &m);
    assert_true(ws_text(to, "{\"seed\": 1}"));
    ws_hear_answer(to, &m);
    return to;
}

static void test_one_address_cannot_hold_all_places(void **state) {
    (void)state;
    static int viewer[CARRY_HUB_VIEWERS];
    static message m;
    site s;
    int status = 0;
    site_open(&s, &(carry_server_options){0});
    site_publish(&s, 0);
    for (int i = 0; i < CARRY_HUB_VIEWERS; i++) {
        viewer[i] = join_actively(&s, 2);
    }
    for (unsigned other = 3; other < 6; other++) {
        int to = ws_upgrade(knock_from(s.port, other), s.port, "/ws", "", &status);
        assert_int_equal(status, 101);
        ws_hear_kind(to, 2, &m);
        (void)close(to);
    }
    for (int i = 0; i < CARRY_HUB_VIEWERS; i++) {
        (void)close(viewer[i]);
    }
    site_close(&s);
}

/* If all viewers are active and no address has more than half of the places, a new one is refused; once they answer no
   more pings, it gets a place. */
static void test_viewers_that_fall_silent_make_place(void **state) {
    (void)state;
    static int viewer[CARRY_HUB_VIEWERS];
    static message m;
    site s;
    int status = 0;
    site_open(&s, &(carry_server_options){0});
    site_publish(&s, 0);
    const double start = carry_seconds();
    for (unsigned i = 0; i < CARRY_HUB_VIEWERS; i++) {
        viewer[i] = join_actively(&s, 2 + i % 2);
    }
    for (const double until = carry_seconds() + 3.0 * PATIENCE;;) {
        int to = ws_upgrade(knock_from(s.port, 4), s.port, "/ws", "", &status);
        assert_int_equal(status, 101);
        do {
            ws_hear(to, &m);
        } while (m.opcode == 1);
        (void)close(to);
        if (m.opcode == 2) {
            assert_true(carry_seconds() - start > 3.0); /* sooner, all were active */
            break;
        }
        assert_int_equal(m.opcode, 8);
        assert_true(carry_seconds() < until);
        (void)usleep(300000);
    }
    for (int i = 0; i < CARRY_HUB_VIEWERS; i++) {
        (void)close(viewer[i]);
    }
    site_close(&s);
}

static void test_a_request_must_come_within_seconds(void **state) {
    (void)state;
    site s;
    char byte;
    site_open(&s, &(carry_server_options){0});
    double began = carry_seconds();
    int silent = knock(s.port), slow = knock(s.port);
    assert_true(say(slow, "GET / HT", 8));
    assert_int_equal(hear(silent, &byte, 1, PATIENCE), 0);
    assert_int_equal(hear(slow, &byte, 1, PATIENCE), 0);
    assert_true(carry_seconds() - began > 2.0);
    (void)close(silent);
    (void)close(slow);
    site_close(&s);
}

/* The clients are another process with its own descriptors: silent ones, then requests that must end in time, served or
   disconnected. */
static int ask_while_full(int port) {
    enum { SILENT = 60 };
    static const char request[] = "GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n";
    char text[512];
    for (int i = 0; i < SILENT; i++) {
        (void)knock(port);
    }
    for (int i = 0; i < 20; i++) {
        int to = knock(port);
        (void)say(to, request, sizeof request - 1);
        if (hear(to, text, sizeof text, PATIENCE) < 0) {
            return 1;
        }
        (void)close(to);
    }
    (void)sleep(2);
    return 0;
}

static double processor_seconds(void) {
    struct timespec t;
    (void)clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void test_without_descriptors_it_neither_spins_nor_hangs(void **state) {
    (void)state;
    site s;
    struct rlimit usual, small;
    site_open(&s, &(carry_server_options){0});
    site_publish(&s, 0);
    assert_int_equal(health_from(s.port, 1), 200);
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &usual), 0);
    pid_t child = fork();
    if (child == 0) {
        (void)usleep(200000);
        _exit(ask_while_full(s.port));
    }
    small = usual;
    small.rlim_cur = (rlim_t)open_files() + 20;
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &small), 0);
    double began = carry_seconds(), worked = processor_seconds();
    int end = 0;
    assert_int_equal(waitpid(child, &end, 0), child);
    worked = processor_seconds() - worked;
    double took = carry_seconds() - began;
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &usual), 0);
    assert_true(WIFEXITED(end));
    assert_int_equal(WEXITSTATUS(end), 0);
    if (worked > 0.5 * took) {
        fail_msg("the server worked for %.2f s of %.2f", worked, took);
    }
    for (double until = carry_seconds() + PATIENCE; health_from(s.port, 1) != 200;) {
        assert_true(carry_seconds() < until);
    }
    site_close(&s);
}

/* While wrong tokens get status 429, the right one is accepted. */
static void assert_right_token_passes(const site *s) {
    int wrong = 0;
    for (int tries = 0; tries < 50 && wrong != 429; tries++) { /* one guess a second is allowed */
        wrong = ask_for(s->port, "GET", "/metrics", "Authorization: Bearer fedcba9876543210\r\n", NULL)->status;
        assert_reply(ask_for(s->port, "GET", "/metrics", "Authorization: Bearer 0123456789abcdef\r\n", NULL), 200, "");
    }
    assert_int_equal(wrong, 429);
}

static void test_guesses_of_a_token_are_slowed_down(void **state) {
    (void)state;
    site s;
    char request[128];
    int denied = 0, slowed = 0;
    site_open(&s, &(carry_server_options){.token = "0123456789abcdef"});
    double began = carry_seconds();
    for (int i = 0; i < 40; i++) {
        (void)snprintf(request, sizeof request, "Authorization: Bearer guess-%012d\r\n", i);
        int status = ask_for(s.port, "GET", "/metrics", request, NULL)->status;
        denied += status == 401;
        slowed += status == 429;
    }
    assert_int_equal(denied + slowed, 40);
    assert_in_range(denied, 10, 11 + (int)(carry_seconds() - began)); /* ten at once, then one a second */
    assert_right_token_passes(&s);
    for (int i = 0; i < 20; i++) { /* no token is no guess */
        assert_reply(ask_for(s.port, "GET", "/metrics", "", NULL), 401, "token is needed");
    }
    site_close(&s);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_bursts_of_websockets_leave_no_descriptors),
        cmocka_unit_test(test_silent_connections_lock_nobody_out),
        cmocka_unit_test(test_one_address_leaves_connections_for_others),
        cmocka_unit_test(test_viewers_of_one_address_leave_others_in),
        cmocka_unit_test(test_active_viewers_stay_where_silent_ones_make_place),
        cmocka_unit_test(test_one_address_cannot_hold_all_places),
        cmocka_unit_test(test_viewers_that_fall_silent_make_place),
        cmocka_unit_test(test_a_request_must_come_within_seconds),
        cmocka_unit_test(test_guesses_of_a_token_are_slowed_down),
        cmocka_unit_test(test_without_descriptors_it_neither_spins_nor_hangs),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
