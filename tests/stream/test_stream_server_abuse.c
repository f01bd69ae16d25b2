/* The server under misuse: malformed, oversized, slow, too many and foreign requests. Each time its use of resources is
   bounded, and other clients are still served. */
#include "core/rng.h"
#include "stream_server_support.h"

/* Other clients are served as before. */
static void check_service(site *s) {
    site_publish(s, 0);
    assert_reply(ask_for(s->port, "GET", "/healthz", "", NULL), 200, "\"healthy\":true");
    int viewer = ws_join(s->port);
    static message m;
    ws_hear_kind(viewer, 2, &m);
    (void)close(viewer);
}

static void test_malformed_requests_are_refused_with_an_error_message(void **state) {
    (void)state;
    site s;
    site_open(&s, &(carry_server_options){.patience = 3.0});
    static const struct {
        int status;
        const char *bytes;
        size_t length;
    } requests[] = {
#define REQUEST(status, text) {status, text, sizeof text - 1}
        REQUEST(400, "\r\n\r\n"),
        REQUEST(400, "nonsense\r\n\r\n"),
        REQUEST(400, "GET\r\n\r\n"),
        REQUEST(400, "GET /\r\n\r\n"),
        REQUEST(400, "GET / HTTP/1.1\nHost: localhost\n\r\n\r\n"), /* lines end in two bytes */
        REQUEST(400, "GET / HTTP/1.1\r\nHost: localhost\r\n folded\r\n\r\n"),
        REQUEST(400, "GET / HTTP/1.1\r\nHost: localhost\r\nHost: localhost\r\n\r\n"),
        REQUEST(400, "GET / HTTP/1.1\r\nHost: localhost\r\nX\0Y: 1\r\n\r\n"),
        REQUEST(400, "GET / HTTP/1.1\r\nHost : localhost\r\n\r\n"),
        REQUEST(400, "GET  / HTTP/1.1\r\nHost: localhost\r\n\r\n"),
        REQUEST(400,
                "POST /api/controls HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\n{}"),
        REQUEST(400, "GET / HTTP/9.9\r\n\r\n"),
        REQUEST(400, "GET / HTTP/1.1\r\n\r\n"), /* without Host */
        REQUEST(400, "GET / HTTP/1.1\r\nHost: \r\n\r\n"),
        REQUEST(404, "BREW /coffee HTTP/1.1\r\nHost: localhost\r\n\r\n"),
        REQUEST(404, "GET /%00%ff%zz HTTP/1.1\r\nHost: localhost\r\n\r\n"),
        REQUEST(404, "GET /../../etc/passwd HTTP/1.1\r\nHost: localhost\r\n\r\n"),
        REQUEST(400, "GET http://localhost/ HTTP/1.1\r\nHost: localhost\r\n\r\n"),
        REQUEST(411, "POST /api/controls HTTP/1.1\r\nHost: localhost\r\n\r\n"),
        REQUEST(400, "POST /api/controls HTTP/1.1\r\nHost: localhost\r\nContent-Length: -5\r\n\r\n{}"),
        REQUEST(400, "POST /api/controls HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2x\r\n\r\n{}"),
        REQUEST(413,
                "POST /api/controls HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99999999999999999999\r\n\r\n{}"),
        REQUEST(400, "POST /api/controls HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\n\r\n"),
        REQUEST(
            411,
            "POST /api/controls HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n"),
        REQUEST(400, "\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"), /* TLS */
        REQUEST(400, "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"),
        REQUEST(400, "GET / HTTP/1.1\r\nHost: localhost\r\nUpgrade: h2c\r\nConnection: Upgrade, HTTP2-Settings\r\n"
                     "HTTP2-Settings: AAMAAABkAAQAAP__\r\n\r\n"),
        REQUEST(400, "GET /ws HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n"),
        REQUEST(404, "GET /elsewhere HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
                     "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n"),
        REQUEST(400, "GET /ws HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
                     "Sec-WebSocket-Key: x\r\nSec-WebSocket-Version: 99\r\n\r\n"),
#undef REQUEST
    };
    for (size_t i = 0; i < sizeof requests / sizeof requests[0]; i++) {
        reply *r = exchange(s.port, requests[i].bytes, requests[i].length);
        if (r->status != requests[i].status || strstr(r->body, "{\"error\":\"") == NULL) {
            fail_msg("request %zu (%.40s): %d %s", i, requests[i].bytes, r->status, r->text);
        }
    }
    check_service(&s);
    site_close(&s);
}

/* Valid requests with a few bytes changed, removed or inserted, alone or several in sequence, in one piece or two; and
   WebSocket messages changed the same way. Whatever the answer is, the next request is served. */
static size_t mutate(char *text, size_t length, size_t room, uint64_t seed) {
    carry_words dice = carry_philox(11, seed, 0);
    for (unsigned i = 0; i < dice.word[0] % 6 && length > 2; i++) {
        carry_words d = carry_philox(11, seed, i + 1);
        size_t at = d.word[0] % length, count = 1 + d.word[1] % 8;
        if (d.word[2] % 4 < 2) {
            text[at] = (char)d.word[3];
        } else if (d.word[2] % 4 == 2 && at + count < length) {
            memmove(text + at, text + at + count, length - at - count);
            length -= count;
        } else if (length + count < room) {
            memmove(text + at + count, text + at, length - at);
            memset(text + at, (int)(d.word[3] & 0xFF), count);
            length += count;
        }
    }
    return length;
}

static void say_in_two(int to, const char *text, size_t length, uint64_t seed) {
    size_t first = seed % 3 == 0 ? length : carry_philox(12, seed, 0).word[0] % (length + 1);
    (void)say(to, text, first);
    (void)say(to, text + first, length - first);
}

static void test_mutated_requests_and_messages_leave_the_service_standing(void **state) {
    (void)state;
    site s;
    site_open(&s, &(carry_server_options){.patience = 5.0});
    static const char *const good[] = {
        "GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n",
        "POST /api/controls HTTP/1.1\r\nHost: localhost\r\nContent-Length: 11\r\n\r\n{\"seed\": 7}",
        ("GET /ws HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
         "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n"),
        "\x81\x85\0\0\0\0hello"};
    for (uint64_t seed = 0; seed < 600; seed++) {
        char text[1024];
        carry_words dice = carry_philox(13, seed, 0);
        size_t length = 0;
        for (unsigned i = 0; i <= dice.word[0] % 3; i++) {
            const char *one = good[carry_philox(13, seed, i + 1).word[0] % 3];
            memcpy(text + length, one, strlen(one));
            length += strlen(one);
        }
        int to = seed % 4 == 3 ? ws_join(s.port) : knock(s.port);
        if (seed % 4 == 3) { /* a message, twice */
            memcpy(text, good[3], 11);
            memcpy(text + 11, good[3], 11);
            length = 22;
        }
        length = mutate(text, length, sizeof text, seed);
        say_in_two(to, text, length, seed);
        if (dice.word[1] % 4 == 0) {
            char answer[512];
            (void)hear(to, answer, sizeof answer, 0.02);
        }
        (void)close(to);
        if (seed % 50 == 0) {
            check_service(&s);
        }
    }
    check_service(&s);
    site_close(&s);
}

static void test_oversized_requests_are_refused(void **state) {
    (void)state;
    site s;
    site_open(&s, &(carry_server_options){.patience = 2.0});
    static char large[1 << 20], request[(1 << 20) + 512];
    memset(large, 'a', sizeof large - 1);
    const char *rest = "Host: localhost\r\nContent-Length: 1048575\r\n\r\n";
    int length = snprintf(request, sizeof request, "POST /api/controls HTTP/1.1\r\n%s%s", rest, large);
    assert_reply(exchange(s.port, request, (size_t)length), 413, "256 KiB");
    length = snprintf(request, sizeof request, "GET /%s HTTP/1.1\r\nHost: localhost\r\n\r\n", large);
    assert_reply(exchange(s.port, request, (size_t)length), 431, "8 KiB");
    length = snprintf(request, sizeof request, "GET / HTTP/1.1\r\nHost: localhost\r\nX-Large: %s\r\n\r\n", large);
    assert_reply(exchange(s.port, request, (size_t)length), 431, "8 KiB");
    length = snprintf(request, sizeof request, "GET / HTTP/1.1\r\nHost: %.60000s\r\n\r\n", large);
    assert_reply(exchange(s.port, request, (size_t)length), 431, "8 KiB");
    check_service(&s);
    site_close(&s);
}

static void test_oversized_and_wrong_messages_close_that_viewer(void **state) {
    (void)state;
    site s;
    site_open(&s, &(carry_server_options){0});
    int watching = ws_join(s.port);
    static char large[300 << 10];
    memset(large, ' ', sizeof large);
    int viewer = ws_join(s.port);
    assert_true(ws_say(viewer, 1, true, (uint64_t)1 << 40, large, 100)); /* a terabyte is announced */
    assert_int_equal(ws_hear_close(viewer), 1009);
    (void)close(viewer);
    viewer = ws_join(s.port);
    (void)ws_say(viewer, 1, true, sizeof large, large, sizeof large);
    int code = ws_hear_close(viewer); /* the close message may be lost: unread bytes reset the connection */
    assert_true(code == 1009 || code == 0);
    (void)close(viewer);
    viewer = ws_join(s.port);
    bool heard = true; /* fragments, none of them large */
    for (int i = 0; i < 300 && heard; i++) {
        heard = ws_say(viewer, i == 0 ? 1 : 0, false, 1024, large, 1024);
    }
    code = ws_hear_close(viewer);
    assert_true(code == 1009 || code == 0);
    (void)close(viewer);
    viewer = ws_join(s.port);
    assert_true(ws_say(viewer, 2, true, 5, large, 5));
    assert_int_equal(ws_hear_close(viewer), 1003);
    (void)close(viewer);
    for (int opcode = 3; opcode < 16; opcode++) {
        if (opcode >= 8 && opcode <= 10) {
            continue;
        }
        viewer = ws_join(s.port);
        (void)ws_say(viewer, opcode, true, 4, large, 4);
        (void)ws_hear_close(viewer); /* it ends */
        (void)close(viewer);
    }
    /* The viewers from before still get frames and may still send controls. */
    static message m;
    site_publish(&s, 0);
    ws_hear_kind(watching, 2, &m);
    assert_true(ws_text(watching, "{\"seed\": 12}"));
    ws_hear_answer(watching, &m);
    assert_string_equal((char *)m.bytes, "{\"done\":true}");
    (void)close(watching);
    check_service(&s);
    site_close(&s);
}

static void test_pages_of_other_origins_and_names_are_refused(void **state) {
    (void)state;
    site s;
    site_open(&s, &(carry_server_options){0});
    site_publish(&s, 0);
    char own[64], request[256];
    int status;
    static const char *const origins[] = {"http://evil.example",   "http://localhost", "http://localhost:1", "null",
                                          "http://localhost:%d@x", "file://"};
    for (size_t i = 0; i < sizeof origins / sizeof origins[0]; i++) {
        char header[128];
        (void)snprintf(header, sizeof header, "Origin: %s\r\n", origins[i]);
        assert_int_equal(ws_open(s.port, "/ws", header, &status), -1);
        assert_int_equal(status, 403);
        assert_reply(ask_for(s.port, "POST", "/api/controls", header, "{\"cut\": true}"), 403, "another origin");
    }
    (void)snprintf(own, sizeof own, "Origin: http://localhost:%d\r\n", s.port);
    int viewer = ws_open(s.port, "/ws", own, &status);
    assert_int_equal(status, 101);
    (void)close(viewer);
    assert_reply(ask_for(s.port, "POST", "/api/controls", own, "{\"cut\": true}"), 204, "");
    static const struct {
        const char *host;
        int status;
    } hosts[] = {{"localhost", 200},
                 {"127.0.0.1:80", 200},
                 {"[::1]:99", 200},
                 {"127.9.9.9", 200},
                 {"a.localhost:1", 200},
                 {"evil.example", 403},
                 {"localhost.evil.example", 403},
                 {"127.0.0.1.evil", 403},
                 {"[::2]", 403},
                 {"127.", 403},
                 {"10.0.0.1", 403},
                 {"notlocalhost", 403},
                 {"[::1", 403},
                 {":80", 403}};
    for (size_t i = 0; i < sizeof hosts / sizeof hosts[0]; i++) {
        int length = snprintf(request, sizeof request, "GET /healthz HTTP/1.1\r\nHost: %s\r\n\r\n", hosts[i].host);
        reply *r = exchange(s.port, request, (size_t)length);
        if (r->status != hosts[i].status) {
            fail_msg("Host %s: %d", hosts[i].host, r->status);
        }
    }
    static carry_control_state now;
    carry_controls_read(s.controls, &now);
    assert_int_equal(now.cuts, 1); /* the one from the page itself */
    site_close(&s);
}

/* Reads until the server closes the connection; false if it does not. */
static bool hung_up_on(int from, double seconds) {
    char bytes[4096];
    for (double until = carry_seconds() + seconds; carry_seconds() < until;) {
        if (hear(from, bytes, sizeof bytes, 0.2) == 0) {
            return true;
        }
    }
    return false;
}

static void test_slow_clients_are_hung_up_on_and_hold_up_nobody(void **state) {
    (void)state;
    site s;
    site_open(&s, &(carry_server_options){.patience = 3.0});
    int silent = knock(s.port), halting = knock(s.port), bodyless = knock(s.port), deaf = ws_join(s.port);
    const char *half = "GET /metrics HTTP/1.1\r\nHost: local";
    assert_true(say(halting, half, strlen(half)));
    const char *post = "POST /api/controls HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n{\"seed\"";
    assert_true(say(bodyless, post, strlen(post)));
    int watching = ws_join(s.port);
    static message m;
    uint64_t heard = 0, number = 0;
    double began = carry_seconds();
    /* Longer than the server's timeout, and more bytes than the buffers of a viewer that does not read hold (about 2
       MB). */
    while (carry_seconds() - began < 8.0 || s.published < 500) {
        site_publish(&s, 0);
        ws_hear_kind(watching, 2, &m);
        number = little64(m.bytes);
        heard++;
    }
    assert_int_equal(number, s.published - 1);
    assert_int_equal(heard, s.published); /* the one that reads missed nothing */
    assert_true(hung_up_on(silent, PATIENCE));
    assert_true(hung_up_on(halting, PATIENCE));
    assert_true(hung_up_on(bodyless, PATIENCE));
    assert_true(hung_up_on(deaf, PATIENCE)); /* the frame that was being sent, and then the end */
    assert_reply(ask_for(s.port, "GET", "/metrics", "", NULL), 200, "carry_stream_viewers 1\n");
    (void)close(silent);
    (void)close(halting);
    (void)close(bodyless);
    (void)close(deaf);
    (void)close(watching);
    check_service(&s);
    site_close(&s);
}

static void test_200_viewers_all_get_the_newest_frame(void **state) {
    (void)state;
    site s;
    site_open(&s, &(carry_server_options){0});
    static int viewer[200];
    static message m;
    for (int i = 0; i < 200; i++) {
        viewer[i] = ws_join(s.port);
    }
    for (int round = 0; round < 3; round++) {
        site_publish(&s, 0);
        for (int i = 0; i < 200; i++) {
            ws_hear_kind(viewer[i], 2, &m);
            assert_int_equal(little64(m.bytes), round);
        }
    }
    assert_reply(ask_for(s.port, "GET", "/metrics", "", NULL), 200, "carry_stream_viewers 200\n");
    for (int i = 0; i < 200; i += 2) {
        (void)close(viewer[i]);
    }
    site_publish(&s, 0);
    for (int i = 1; i < 200; i += 2) {
        ws_hear_kind(viewer[i], 2, &m);
        assert_int_equal(little64(m.bytes), 3);
    }
    carry_stream_figures figures;
    carry_hub_figures(s.hub, &figures);
    assert_int_equal(figures.viewer_dropped, 0);
    site_close(&s); /* while a hundred look */
    for (int i = 1; i < 200; i += 2) {
        assert_true(hung_up_on(viewer[i], PATIENCE));
        (void)close(viewer[i]);
    }
}

static void test_connections_and_viewers_have_a_limit(void **state) {
    (void)state;
    site s;
    site_open(&s, &(carry_server_options){0});
    enum { MANY = 400 };
    static int to[MANY];
    int refused = 0;
    for (int i = 0; i < MANY; i++) {
        to[i] = knock(s.port);
    }
    /* At most 320 connections are served; above 64, silent ones are closed. */
    for (const double until = carry_seconds() + PATIENCE; refused < MANY - 340 && carry_seconds() < until;) {
        refused = 0;
        for (int i = 0; i < MANY; i++) {
            char byte;
            refused += hear(to[i], &byte, 1, 0.0) == 0;
        }
    }
    assert_in_range(refused, MANY - 340, MANY - 60);
    for (int i = 0; i < MANY; i++) {
        (void)close(to[i]);
    }
    site_publish(&s, 0);
    for (double until = carry_seconds() + PATIENCE; ask_for(s.port, "GET", "/healthz", "", NULL)->status != 200;) {
        assert_true(carry_seconds() < until); /* until the server has noticed that they have gone */
    }
    check_service(&s);
    for (int i = 0; i < CARRY_HUB_VIEWERS; i++) {
        to[i] = ws_join(s.port);
    }
    int more = ws_join(s.port);
    assert_int_equal(ws_hear_close(more), 1013); /* try again later */
    (void)close(more);
    static message m;
    site_publish(&s, 0);
    for (int i = 0; i < CARRY_HUB_VIEWERS; i++) {
        ws_hear_kind(to[i], 2, &m);
        (void)close(to[i]);
    }
    check_service(&s);
    site_close(&s);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_malformed_requests_are_refused_with_an_error_message),
        cmocka_unit_test(test_mutated_requests_and_messages_leave_the_service_standing),
        cmocka_unit_test(test_oversized_requests_are_refused),
        cmocka_unit_test(test_oversized_and_wrong_messages_close_that_viewer),
        cmocka_unit_test(test_pages_of_other_origins_and_names_are_refused),
        cmocka_unit_test(test_slow_clients_are_hung_up_on_and_hold_up_nobody),
        cmocka_unit_test(test_200_viewers_all_get_the_newest_frame),
        cmocka_unit_test(test_connections_and_viewers_have_a_limit),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
