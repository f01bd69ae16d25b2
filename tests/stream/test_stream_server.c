/* The server in normal use: routes, controls, metrics, viewers, tokens, recordings. Misuse is in
   test_stream_server_abuse.c. */
#include <math.h>
#include <sys/resource.h>

#include "stream_server_support.h"

static void test_every_route_answers(void **state) {
    (void)state;
    site s;
    site_open(&s, &(carry_server_options){0});
    assert_reply(ask_for(s.port, "GET", "/healthz", "", NULL), 503, "no frame has come yet");
    assert_reply(ask_for(s.port, "GET", "/frame.jpg", "", NULL), 503, "there is no frame yet");
    site_publish(&s, 0);
    assert_reply(ask_for(s.port, "GET", "/healthz", "", NULL), 200, "\"healthy\":true");
    /* A model that takes a minute for a chunk stays healthy between its first and second chunk. */
    assert_reply(ask_for(s.port, "GET", "/healthz", "", NULL), 200, "\"quiet_s\":10}");
    carry_hub_set_figures(s.hub, &(carry_stream_figures){.overlap.period = NAN, .last = {.stage0 = 10, .stage1 = 50}});
    assert_reply(ask_for(s.port, "GET", "/healthz", "", NULL), 200, "\"quiet_s\":180}");
    reply *r = ask_for(s.port, "GET", "/", "", NULL);
    assert_reply(r, 200, "text/html");
    assert_reply(r, 200, "Content-Security-Policy: default-src 'none'; script-src 'nonce-");
    assert_null(strstr(r->text, "@NONCE@"));
    assert_null(strstr(r->body, "https://")); /* nothing from elsewhere */
    r = ask_for(s.port, "GET", "/frame.jpg", "", NULL);
    assert_reply(r, 200, "image/jpeg");
    assert_memory_equal(r->body, "\xFF\xD8", 2);
    assert_reply(ask_for(s.port, "GET", "/api/state", "", NULL), 200, "\"kv_bias\"");
    assert_reply(ask_for(s.port, "GET", "/nothing", "", NULL), 404, "{\"error\":\"");
    assert_reply(ask_for(s.port, "GET", "/api/../metrics/", "", NULL), 404, "{\"error\":\"");
    assert_reply(ask_for(s.port, "POST", "/metrics", "", "{}"), 405, "Allow: GET, HEAD");
    assert_reply(ask_for(s.port, "GET", "/api/controls", "", NULL), 405, "Allow: POST");
    assert_reply(ask_for(s.port, "DELETE", "/", "", NULL), 405, "{\"error\":\"");
    assert_reply(ask_for(s.port, "GET", "/ws", "", NULL), 400, "WebSockets");
    site_close(&s);
}

static void test_a_connection_is_for_one_request_and_head_has_no_body(void **state) {
    (void)state;
    site s;
    site_open(&s, &(carry_server_options){0});
    static reply r;
    const char *two = "POST /api/controls HTTP/1.1\r\nHost: [::1]\r\nContent-Length: 11\r\n\r\n{\"seed\": 7}"
                      "POST /api/controls HTTP/1.1\r\nHost: [::1]\r\nContent-Length: 11\r\n\r\n{\"seed\": 8}";
    int to = knock(s.port);
    assert_true(say(to, two, strlen(two)));
    hear_reply(to, &r);
    assert_reply(&r, 204, "Connection: close");
    char byte;
    assert_int_equal(hear(to, &byte, 1, PATIENCE), 0);
    (void)close(to);
    static carry_control_state now;
    carry_controls_read(s.controls, &now);
    assert_int_equal(now.seed, 7);
    to = knock(s.port); /* byte by byte */
    for (size_t i = 0; i < strlen(two) / 2; i++) {
        assert_true(say(to, two + strlen(two) / 2 + i, 1));
    }
    hear_reply(to, &r);
    assert_reply(&r, 204, "");
    (void)close(to);
    carry_controls_read(s.controls, &now);
    assert_int_equal(now.seed, 8);
    const char *head = "HEAD /metrics HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n";
    to = knock(s.port);
    assert_true(say(to, head, strlen(head)));
    char text[4096];
    size_t length = 0;
    for (ssize_t got; (got = hear(to, text + length, sizeof text - 1 - length, 0.5)) > 0;) {
        length += (size_t)got;
    }
    text[length] = '\0';
    assert_int_equal(strncmp(text, "HTTP/1.1 200 ", 13), 0);
    assert_string_equal(strstr(text, "\r\n\r\n"), "\r\n\r\n");
    (void)close(to);
    site_close(&s);
}

static void test_a_client_that_waits_to_send_its_body_is_told_to(void **state) {
    (void)state;
    site s;
    site_open(&s, &(carry_server_options){0});
    static reply r;
    const char *head = "POST /api/controls HTTP/1.1\r\nHost: localhost\r\nExpect: 100-continue\r\n"
                       "Content-Length: 11\r\n\r\n";
    int to = knock(s.port);
    assert_true(say(to, head, strlen(head)));
    hear_reply(to, &r);
    assert_int_equal(r.status, 100);
    assert_true(say(to, "{\"seed\": 9}", 11));
    hear_reply(to, &r);
    assert_reply(&r, 204, "");
    (void)close(to);
    assert_reply(ask_for(s.port, "GET", "/healthz", "Expect: 100-continue\r\n", NULL), 503, "\r\n\r\n");
    assert_reply(ask_for(s.port, "POST", "/nowhere", "Expect: 100-continue\r\n", "{}"), 404, "");
    site_close(&s);
}

static void test_controls_act_or_are_refused_with_an_error_message(void **state) {
    (void)state;
    site s;
    site_open(&s, &(carry_server_options){0});
    assert_reply(ask_for(s.port, "POST", "/api/controls", "", "{\"prompt\": \"a \\\"red\\\" circle\", \"seed\": 5}"),
                 204, "");
    static carry_control_state now;
    carry_controls_read(s.controls, &now);
    assert_string_equal(now.prompt[0].text, "a \"red\" circle");
    assert_int_equal(now.seed, 5);
    assert_reply(ask_for(s.port, "GET", "/api/state", "", NULL), 200, "a \\u0022red\\u0022 circle");
    static const struct {
        const char *body, *words;
    } refused[] = {
        {"{\"noise\": -1}", "noise"},
        {"{\"noise\": NaN}", "error"},
        {"{\"kv_bias\": 0}", "kv_bias"},
        {"{\"colour\": 1}", "colour"},
        {"[]", "error"},
        {"{", "error"},
        {"{\"steps\": [1, 2]}", "steps"},
        {"\xFF\xFE", "error"},
        {"{\"seed\": 6, \"noise\": 9}", "noise"},
        {"{\"prompt\": \"\xC3\x28\"}", "UTF-8"},
    };
    for (size_t i = 0; i < sizeof refused / sizeof refused[0]; i++) {
        assert_reply(ask_for(s.port, "POST", "/api/controls", "", refused[i].body), 400, refused[i].words);
    }
    carry_controls_read(s.controls, &now);
    assert_int_equal(now.seed, 5);
    static char longest[CARRY_PROMPT_BYTES + 64];
    (void)snprintf(longest, sizeof longest, "{\"prompt\": \"%0*d\"}", CARRY_PROMPT_BYTES, 0);
    assert_reply(ask_for(s.port, "POST", "/api/controls", "", longest), 204, "");
    (void)snprintf(longest, sizeof longest, "{\"prompt\": \"%0*d\"}", CARRY_PROMPT_BYTES + 1, 0);
    assert_reply(ask_for(s.port, "POST", "/api/controls", "", longest), 400, "4096");
    int viewer = ws_join(s.port);
    static message m;
    assert_true(ws_text(viewer, "{\"pause\": true}"));
    ws_hear_answer(viewer, &m);
    assert_string_equal((char *)m.bytes, "{\"done\":true}");
    assert_true(ws_text(viewer, "{\"noise\": \"much\"}"));
    ws_hear_answer(viewer, &m);
    assert_non_null(strstr((char *)m.bytes, "noise"));
    ws_hear_kind(viewer, 1, &m); /* the state that follows has the change */
    assert_non_null(strstr((char *)m.bytes, "\"pause\": true"));
    /* Two messages in one packet, masked with zeros: the error of the first is reported. */
    static const unsigned char both[] = "\x81\x8d\0\0\0\0{\"noise\": -1}\x81\x8b\0\0\0\0{\"seed\": 9}";
    assert_true(say(viewer, both, sizeof both - 1));
    ws_hear_answer(viewer, &m);
    assert_non_null(strstr((char *)m.bytes, "noise is -1"));
    (void)close(viewer);
    site_close(&s);
}

/* A line of the Prometheus text format: name{labels} value, or # HELP or # TYPE. */
static void check_metric_line(const char *line) {
    char name[128], kind[16], rest[256];
    if (sscanf(line, "# HELP %127[a-z0-9_] %255[^\n]", name, rest) == 2) {
        return;
    }
    if (sscanf(line, "# TYPE %127[a-z0-9_] %15s", name, kind) == 2) {
        assert_true(strcmp(kind, "gauge") == 0 || strcmp(kind, "counter") == 0);
        return;
    }
    size_t length = strspn(line, "abcdefghijklmnopqrstuvwxyz0123456789_");
    assert_int_equal(strncmp(line, "carry_stream_", 13), 0);
    if (line[length] == '{') {
        assert_non_null(strchr(line, '}'));
        length = (size_t)(strchr(line, '}') - line) + 1;
    }
    assert_int_equal(line[length], ' ');
    char *end;
    (void)strtod(line + length + 1, &end);
    assert_true(end > line + length + 1 && *end == '\0');
}

static void test_metrics_are_what_prometheus_reads(void **state) {
    (void)state;
    site s;
    site_open(&s, &(carry_server_options){0});
    for (int i = 0; i < 3; i++) {
        site_publish(&s, 0);
    }
    carry_stream_figures figures = {.chunks = 12, .depth = 2, .overlap = {.score = (double)NAN}};
    carry_hub_set_figures(s.hub, &figures);
    reply *r = ask_for(s.port, "GET", "/metrics", "", NULL);
    assert_reply(r, 200, "text/plain; version=0.0.4");
    assert_reply(r, 200, "\ncarry_stream_frames_total 3\n");
    assert_reply(r, 200, "\ncarry_stream_chunks_total 12\n");
    assert_reply(r, 200, "\ncarry_stream_overlap_score NaN\n");
    assert_reply(r, 200, "carry_stream_stage_seconds{stage=\"0\"} 0");
    static char body[sizeof r->text];
    (void)snprintf(body, sizeof body, "%s", r->body);
    int lines = 0;
    for (char *line = strtok(body, "\n"); line != NULL; line = strtok(NULL, "\n"), lines++) {
        check_metric_line(line);
    }
    assert_true(lines > 60);
    site_close(&s);
}

static void test_a_viewer_gets_frames_and_none_of_before_a_cut(void **state) {
    (void)state;
    site s;
    site_open(&s, &(carry_server_options){0});
    int viewer = ws_join(s.port);
    static message m;
    uint64_t last = 0, epoch = 0;
    for (int i = 0; i < 60; i++) {
        site_publish(&s, (uint64_t)(i / 20));
        ws_hear_kind(viewer, 2, &m);
        assert_true(m.length > 34);
        uint64_t number = little64(m.bytes), of = little64(m.bytes + 16);
        double seconds;
        memcpy(&seconds, m.bytes + 24, sizeof seconds);
        assert_true(i == 0 || number > last);
        assert_true(of >= epoch);
        assert_true(fabs(seconds - carry_seconds()) < 600.0);
        assert_memory_equal(m.bytes + 32, "\xFF\xD8", 2);
        last = number;
        epoch = of;
    }
    assert_int_equal(last, 59);
    /* Many frames are not read, then a cut and one more frame: the newest comes, and nothing older after it. */
    for (int i = 0; i < 25; i++) {
        site_publish(&s, 2);
    }
    carry_hub_cut(s.hub, 3);
    site_publish(&s, 3);
    do {
        ws_hear_kind(viewer, 2, &m);
    } while (little64(m.bytes + 16) < 3); /* frames that were being sent before the cut */
    assert_int_equal(little64(m.bytes), s.published - 1);
    (void)close(viewer);
    site_close(&s);
}

static void test_a_token_opens_and_nothing_else_does(void **state) {
    (void)state;
    site s;
    site_open(&s, &(carry_server_options){.token = "s3cret+token/0123"});
    int status;
    assert_reply(ask_for(s.port, "GET", "/", "", NULL), 401, "WWW-Authenticate: Bearer");
    assert_reply(ask_for(s.port, "GET", "/metrics", "Authorization: Bearer wrong\r\n", NULL), 401, "token is needed");
    assert_reply(ask_for(s.port, "GET", "/metrics", "Authorization: Bearer s3cret+token/0123x\r\n", NULL), 401, "");
    assert_reply(ask_for(s.port, "GET", "/metrics", "Authorization: Bearer s3cret+token/012\r\n", NULL), 401, "");
    assert_reply(ask_for(s.port, "GET", "/metrics", "Authorization: Bearer \r\n", NULL), 401, "");
    assert_reply(ask_for(s.port, "GET", "/metrics", "Authorization: Basic s3cret+token/0123\r\n", NULL), 401, "");
    assert_reply(ask_for(s.port, "GET", "/metrics?token=", "", NULL), 401, "");
    assert_reply(ask_for(s.port, "GET", "/metrics?token=S3CRET", "", NULL), 401, "");
    assert_reply(ask_for(s.port, "POST", "/api/controls", "", "{\"seed\": 3}"), 401, "");
    assert_reply(ask_for(s.port, "GET", "/metrics", "Authorization: Bearer s3cret+token/0123\r\n", NULL), 200, "");
    assert_reply(ask_for(s.port, "GET", "/metrics?token=s3cret%2Btoken%2F0123", "", NULL), 200, "");
    assert_reply(ask_for(s.port, "POST", "/api/controls?x=1&token=s3cret%2Btoken%2F0123", "", "{\"seed\": 3}"), 204,
                 "");
    assert_int_equal(ws_open(s.port, "/ws", "", &status), -1);
    assert_int_equal(status, 401);
    assert_int_equal(ws_open(s.port, "/ws?token=s3cret", "", &status), -1);
    assert_int_equal(status, 401);
    int viewer = ws_open(s.port, "/ws?token=s3cret%2Btoken%2F0123", "", &status);
    assert_int_equal(status, 101);
    (void)close(viewer);
    site_close(&s);
}

static void test_addresses_and_ports_that_cannot_be_had_are_refused(void **state) {
    (void)state;
    site s;
    site_open(&s, &(carry_server_options){0});
    carry_server *second;
    char taken[32];
    (void)snprintf(taken, sizeof taken, "port %d of", s.port);
    assert_refused(s.ctx, CARRY_EIO, taken,
                   carry_server_start(s.ctx, &second, &(carry_server_options){.port = s.port}, s.hub, s.controls));
    assert_null(second);
    const struct {
        carry_server_options options;
        const char *words;
    } refused[] = {
        {{.address = "0.0.0.0"}, "token"},
        {{.address = "::"}, "token"},
        {{.address = "10.1.2.3"}, "token"},
        {{.port = 70000}, "70000"},
        {{.port = -1}, "-1"},
        {{.token = ""}, "16 to 255"},
        {{.token = "fifteen-letters"}, "16 to 255 characters, not 15"},
        {{.token = "with space"}, "visible"},
        {{.address = "example.com", .token = "0123456789abcdef"}, "numeric"},
        {{.patience = (double)NAN}, "patience"},
        {{.address = "127.0.0.1.example.com"}, "token"},
    };
    for (size_t i = 0; i < sizeof refused / sizeof refused[0]; i++) {
        assert_refused(s.ctx, CARRY_EARGUMENT, refused[i].words,
                       carry_server_start(s.ctx, &second, &refused[i].options, s.hub, s.controls));
    }
    assert_reply(ask_for(s.port, "GET", "/metrics", "", NULL), 200, ""); /* the first server is not affected */
    int port = s.port;
    carry_server_stop(s.server); /* the port is free at once, though connections were open */
    assert_ok(s.ctx, carry_server_start(s.ctx, &s.server, &(carry_server_options){.port = port}, s.hub, s.controls));
    assert_reply(ask_for(port, "GET", "/metrics", "", NULL), 200, "");
    carry_server_stop(s.server);
    assert_ok(s.ctx, carry_server_start(s.ctx, &s.server,
                                        &(carry_server_options){.address = "0.0.0.0", .token = "0123456789abcdef"},
                                        s.hub, s.controls));
    s.port = carry_server_port(s.server);
    assert_reply(ask_for(s.port, "GET", "/metrics?token=0123456789abcdef", "", NULL), 200, "");
    assert_reply(ask_for(s.port, "GET", "/metrics", "", NULL), 401, "");
    site_close(&s);
}

static void wait_for_frames(site *s, const char *words) {
    for (double until = carry_seconds() + PATIENCE; carry_seconds() < until;) {
        site_publish(s, 0);
        if (strstr(ask_for(s->port, "GET", "/api/state", "", NULL)->body, words) != NULL) {
            return;
        }
        (void)poll(NULL, 0, 20);
    }
    fail_msg("the state never says %s", words);
}

static void test_a_recording_is_started_and_stopped(void **state) {
    (void)state;
    site s;
    site_open(&s, &(carry_server_options){0});
    assert_reply(ask_for(s.port, "POST", "/api/record", "", "{\"path\": \"a.avi\"}"), 403, "--record-to");
    site_close(&s);
    char folder[] = "/tmp/carry_server_XXXXXX", path[64];
    assert_non_null(mkdtemp(folder));
    site_open(&s, &(carry_server_options){.record_to = folder});
    static const char *const refused[] = {"{\"path\": \"../a.avi\"}",
                                          "{\"path\": \"/tmp/a.avi\"}",
                                          "{\"path\": \"a.mp4\"}",
                                          "{\"path\": \".avi\"}",
                                          "{\"path\": \"\"}",
                                          "{\"path\": 7}",
                                          "{\"stop\": false}",
                                          "{}",
                                          "{\"path\": \"a\\u0000b.avi\"}",
                                          "nonsense",
                                          "{\"path\": \"a.avi\", \"stop\": true}",
                                          "{\"path\": \"a.avi\", \"path\": \"b.avi\"}",
                                          "{\"path\": \"a.avi\", \"speed\": 2}",
                                          "{\"stop\": true, \"speed\": 2}"};
    for (size_t i = 0; i < sizeof refused / sizeof refused[0]; i++) {
        assert_reply(ask_for(s.port, "POST", "/api/record", "", refused[i]), 400, "error");
    }
    site_publish(&s, 0);
    assert_reply(ask_for(s.port, "POST", "/api/record", "", "{\"path\": \"a.avi\"}"), 204, "");
    assert_reply(ask_for(s.port, "POST", "/api/record", "", "{\"path\": \"b.avi\"}"), 409, "under way");
    wait_for_frames(&s, "\"on\":true,\"name\":\"a.avi\",\"files\":1,\"frames\":5");
    assert_reply(ask_for(s.port, "POST", "/api/record", "", "{\"stop\": true}"), 204, "");
    assert_reply(ask_for(s.port, "POST", "/api/record", "", "{\"stop\": true}"), 204, "");
    assert_reply(ask_for(s.port, "GET", "/api/state", "", NULL), 200, "\"on\":false,\"name\":\"a.avi\"");
    assert_reply(ask_for(s.port, "POST", "/api/record", "", "{\"path\": \"a.avi\"}"), 409, "File exists");
    site_close(&s);
    (void)snprintf(path, sizeof path, "%s/a.avi", folder);
    FILE *file = fopen(path, "rb");
    char head[12];
    assert_non_null(file);
    assert_int_equal(fread(head, 1, sizeof head, file), sizeof head);
    assert_memory_equal(head, "RIFF", 4);
    assert_memory_equal(head + 8, "AVI ", 4);
    (void)fclose(file);
    (void)unlink(path);
    assert_int_equal(rmdir(folder), 0);
}

/* A disk that fills while a viewer records: the state reports it, and so does the answer to the request that stops
   it. */
static void test_a_recording_that_ended_is_told_to_who_stops_it(void **state) {
    (void)state;
    site s;
    struct rlimit before, small;
    char folder[] = "/tmp/carry_server_XXXXXX", path[64];
    assert_non_null(mkdtemp(folder));
    site_open(&s, &(carry_server_options){.record_to = folder});
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &before), 0);
    small = before;
    small.rlim_cur = 12000; /* the kernel refuses to write past it, as a full disk does */
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
    assert_reply(ask_for(s.port, "POST", "/api/record", "", "{\"path\": \"full.avi\"}"), 204, "");
    wait_for_frames(&s, "full.avi ends after");
    assert_reply(ask_for(s.port, "POST", "/api/record", "", "{\"stop\": true}"), 507, "full.avi ends after");
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &before), 0);
    assert_reply(ask_for(s.port, "POST", "/api/record", "", "{\"path\": \"good.avi\"}"), 204, "");
    assert_reply(ask_for(s.port, "POST", "/api/record", "", "{\"stop\": true}"), 204, "");
    site_close(&s);
    (void)snprintf(path, sizeof path, "%s/full.avi", folder);
    assert_int_equal(unlink(path), 0);
    (void)snprintf(path, sizeof path, "%s/good.avi", folder);
    assert_int_equal(unlink(path), 0);
    assert_int_equal(rmdir(folder), 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_route_answers),
        cmocka_unit_test(test_a_connection_is_for_one_request_and_head_has_no_body),
        cmocka_unit_test(test_a_client_that_waits_to_send_its_body_is_told_to),
        cmocka_unit_test(test_controls_act_or_are_refused_with_an_error_message),
        cmocka_unit_test(test_metrics_are_what_prometheus_reads),
        cmocka_unit_test(test_a_viewer_gets_frames_and_none_of_before_a_cut),
        cmocka_unit_test(test_a_token_opens_and_nothing_else_does),
        cmocka_unit_test(test_addresses_and_ports_that_cannot_be_had_are_refused),
        cmocka_unit_test(test_a_recording_is_started_and_stopped),
        cmocka_unit_test(test_a_recording_that_ended_is_told_to_who_stops_it),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
