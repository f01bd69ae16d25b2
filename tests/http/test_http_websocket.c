/* WebSocket endpoints of the HTTP server. */
#include "http_support.h"

typedef struct talk {
    carry_http_socket *socket;
    char *text; /* to send */
    size_t length;
    bool binary;
} talk;

typedef struct sockets {
    carry_http_server *http;
    talk *talks[8];
    int opened, closed;
    signal_flag changed;
    int news; /* sent to all clients after a wake */
} sockets;

static void *opened(void *user, carry_http_socket *socket) {
    sockets *r = user;
    talk *t = calloc(1, sizeof *t);
    assert_non_null(t);
    t->socket = socket;
    r->talks[r->opened++ % 8] = t;
    flag_raise(&r->changed);
    return t;
}

static void closed(void *user, void *data) {
    sockets *r = user;
    talk *t = data;
    for (int i = 0; i < 8; i++) {
        r->talks[i] = r->talks[i] == t ? NULL : r->talks[i];
    }
    r->closed++;
    free(t->text);
    free(t);
    flag_raise(&r->changed);
}

static void keep(talk *t, bool binary, const char *bytes, size_t length) {
    free(t->text);
    t->text = malloc(length + 1);
    assert_non_null(t->text);
    memcpy(t->text, bytes, length);
    t->length = length;
    t->binary = binary;
    carry_http_socket_ask(t->socket);
}

static void echo(void *user, void *data, const char *bytes, size_t length) {
    (void)user;
    talk *t = data;
    assert_int_equal(bytes[length], 0);
    if (strcmp(bytes, "close") == 0) {
        carry_http_socket_close(t->socket, 4000, "as you wish");
        return;
    }
    keep(t, false, bytes, length);
}

static void echo_binary(void *user, void *data, const char *bytes, size_t length) {
    (void)user;
    keep(data, true, bytes, length);
}

static bool writable(void *user, void *data) {
    (void)user;
    talk *t = data;
    if (t->text == NULL) {
        return false;
    }
    unsigned char *out = carry_http_socket_buffer(t->socket, t->length);
    assert_non_null(out);
    memcpy(out, t->text, t->length);
    free(t->text);
    t->text = NULL;
    return carry_http_socket_send(t->socket, t->binary, t->length);
}

static void woken(void *user) {
    sockets *r = user;
    for (int i = 0; i < 8 && r->news > 0; i++) {
        if (r->talks[i] != NULL) {
            keep(r->talks[i], false, "news", 4);
        }
    }
}

static const carry_http_endpoint endpoints[] = {
    {"/text", 1000, false, opened, echo, writable, closed},
    {"/binary", 70000, true, opened, echo_binary, writable, closed},
};

static void sockets_open(site *s, sockets *r) {
    *r = (sockets){.changed = SIGNAL_FLAG};
    site_open(s, &(carry_http_options){.endpoints = endpoints, .endpoint_count = 2, .user = r, .woken = woken});
    r->http = s->http;
}

static int join(int port, const char *path) {
    int status, to = ws_open(port, path, "", &status);
    assert_int_equal(status, 101);
    return to;
}

static void test_messages_reach_their_endpoint_and_come_back(void **state) {
    (void)state;
    site s;
    static sockets r;
    static message m;
    static char large[70000];
    sockets_open(&s, &r);
    int text = join(s.port, "/text"), binary = join(s.port, "/binary");
    assert_true(ws_text(text, "hello"));
    ws_hear(text, &m);
    assert_int_equal(m.opcode, 1);
    assert_string_equal((char *)m.bytes, "hello");
    assert_true(ws_say(text, 1, false, 3, "in ", 3)); /* in two fragments */
    assert_true(ws_say(text, 0, true, 3, "two", 3));
    ws_hear(text, &m);
    assert_string_equal((char *)m.bytes, "in two");
    for (size_t i = 0; i < sizeof large; i++) {
        large[i] = (char)(i * 7);
    }
    assert_true(ws_say(binary, 2, true, sizeof large, large, sizeof large));
    ws_hear(binary, &m);
    assert_int_equal(m.opcode, 2);
    assert_int_equal(m.length, sizeof large);
    assert_memory_equal(m.bytes, large, sizeof large);
    (void)close(text);
    (void)close(binary);
    assert_true(flag_wait(&r.changed, 4));
    site_close(&s);
    assert_int_equal(r.opened, 2);
    assert_int_equal(r.closed, 2);
}

static void test_messages_beyond_the_limits_close_the_socket(void **state) {
    (void)state;
    site s;
    static sockets r;
    static char large[2000];
    sockets_open(&s, &r);
    int to = join(s.port, "/text");
    memset(large, 'a', sizeof large);
    assert_true(ws_say(to, 1, true, 1001, large, 1001));
    assert_int_equal(ws_hear_close(to), 1009);
    (void)close(to);
    to = join(s.port, "/text");
    assert_true(ws_say(to, 2, true, 3, large, 3));
    assert_int_equal(ws_hear_close(to), 1003);
    (void)close(to);
    to = join(s.port, "/text");
    assert_true(ws_text(to, "close"));
    assert_int_equal(ws_hear_close(to), 4000);
    (void)close(to);
    int status;
    assert_int_equal(ws_open(s.port, "/other", "", &status), -1);
    assert_int_equal(status, 404);
    assert_int_equal(ws_open(s.port, "/text", "Origin: http://evil.example\r\n", &status), -1);
    assert_int_equal(status, 403);
    assert_reply(ask_for(s.port, "GET", "/text", "", NULL), 400, "WebSockets");
    site_close(&s);
    assert_int_equal(r.opened, r.closed);
}

static void test_other_threads_wake_the_server(void **state) {
    (void)state;
    site s;
    static sockets r;
    static message m;
    sockets_open(&s, &r);
    int to[3];
    for (int i = 0; i < 3; i++) {
        to[i] = join(s.port, "/text");
        assert_true(flag_wait(&r.changed, i + 1));
    }
    r.news = 1;
    carry_http_wake(s.http);
    for (int i = 0; i < 3; i++) {
        ws_hear(to[i], &m);
        assert_string_equal((char *)m.bytes, "news");
    }
    site_close(&s); /* with open sockets */
    for (int i = 0; i < 3; i++) {
        (void)close(to[i]);
    }
    assert_int_equal(r.closed, 3);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_messages_reach_their_endpoint_and_come_back),
        cmocka_unit_test(test_messages_beyond_the_limits_close_the_socket),
        cmocka_unit_test(test_other_threads_wake_the_server),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
