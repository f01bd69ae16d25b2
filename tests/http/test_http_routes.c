/* Routes, methods, bodies, headers and access checks of the HTTP server. */
#include "http_support.h"

#define LIMIT 1000

static void get_echo(void *user, carry_http_response *response, const carry_http_request *request) {
    (void)user;
    char value[32] = "absent";
    (void)carry_http_query(request, "q", value, sizeof value);
    const char *header = carry_http_header(request, "x-test");
    carry_json_text text = {0};
    carry_json_put_raw(&text, "rest=%s q=%s x=%s", request->rest, value, header != NULL ? header : "absent");
    carry_http_reply_text(response, 200, "text/plain", &text);
}

static void post_body(void *user, carry_http_response *response, const carry_http_request *request) {
    (void)user;
    assert_int_equal(request->body[request->body_length], 0);
    carry_http_reply(response, 200, "text/plain", request->body, request->body_length);
}

static void delete_item(void *user, carry_http_response *response, const carry_http_request *request) {
    (void)user;
    (void)request;
    assert_true(carry_http_add_header(response, "X-Deleted", "yes"));
    assert_false(carry_http_add_header(response, "X-Bad", "a\r\nSet-Cookie: b"));
    assert_false(carry_http_add_header(response, "X Bad", "a"));
    carry_http_reply(response, 204, NULL, NULL, 0);
}

static void get_busy(void *user, carry_http_response *response, const carry_http_request *request) {
    (void)user;
    (void)request;
    assert_true(carry_http_add_header(response, "Retry-After", "7"));
    carry_http_reply_error(response, 429, "the queue is full");
}

static const carry_http_route routes[] = {
    {"GET", "/echo", get_echo, 0},
    {"GET", "/items/*", get_echo, 0},
    {"DELETE", "/items/*", delete_item, 0},
    {"POST", "/body", post_body, LIMIT},
    {"POST", "/large", post_body, (size_t)1 << 20},
    {"GET", "/busy", get_busy, 0},
};

static carry_http_options options_of(carry_http_options options) {
    options.routes = routes;
    options.route_count = sizeof routes / sizeof routes[0];
    return options;
}

static void test_routes_match_exactly_or_by_prefix(void **state) {
    (void)state;
    site s;
    site_open(&s, &(carry_http_options){.routes = routes, .route_count = sizeof routes / sizeof routes[0]});
    assert_reply(ask_for(s.port, "GET", "/echo", "", NULL), 200, "rest= q=absent x=absent");
    assert_reply(ask_for(s.port, "GET", "/echo?a=1&q=a%20b", "X-Test:  some value \r\n", NULL), 200,
                 "rest= q=a b x=some value");
    assert_reply(ask_for(s.port, "GET", "/echo?q=%zz", "X-TEST: 1\r\n", NULL), 200, "q=absent x=1");
    assert_reply(ask_for(s.port, "GET", "/items/a/b?q=1", "", NULL), 200, "rest=a/b q=1");
    assert_reply(ask_for(s.port, "GET", "/items/", "", NULL), 200, "rest= q=");
    assert_reply(ask_for(s.port, "GET", "/items", "", NULL), 404, "{\"error\":\"not found\"}");
    assert_reply(ask_for(s.port, "GET", "/echo/", "", NULL), 404, "");
    assert_reply(ask_for(s.port, "GET", "/Echo", "", NULL), 404, "");
    assert_reply(ask_for(s.port, "DELETE", "/items/1", "", NULL), 204, "X-Deleted: yes\r\n");
    assert_null(strstr(ask_for(s.port, "DELETE", "/items/1", "", NULL)->text, "Cookie"));
    assert_reply(ask_for(s.port, "GET", "/busy", "", NULL), 429, "Retry-After: 7\r\n");
    site_close(&s);
}

static void test_wrong_methods_are_refused_with_the_right_ones(void **state) {
    (void)state;
    site s;
    carry_http_options options = options_of((carry_http_options){0});
    site_open(&s, &options);
    assert_reply(ask_for(s.port, "POST", "/echo", "", "x"), 405, "Allow: GET, HEAD\r\n");
    assert_reply(ask_for(s.port, "PUT", "/items/1", "", "x"), 405, "Allow: GET, HEAD, DELETE\r\n");
    assert_reply(ask_for(s.port, "GET", "/body", "", NULL), 405, "Allow: POST\r\n");
    assert_reply(ask_for(s.port, "get", "/echo", "", NULL), 405, "expected GET, HEAD");
    assert_reply(ask_for(s.port, "OPTIONS", "/echo", "", NULL), 405, "Allow: GET, HEAD\r\n");
    char text[2048];
    int to = request(s.port, "HEAD /echo HTTP/1.1\r\nHost: localhost\r\n\r\n");
    size_t length = hear_to_end(to, text, sizeof text);
    assert_non_null(strstr(text, "Content-Length: 23\r\n"));
    assert_string_equal(text + length - 4, "\r\n\r\n");
    (void)close(to);
    site_close(&s);
}

static void test_bodies_are_read_whole_up_to_the_limit(void **state) {
    (void)state;
    site s;
    carry_http_options options = options_of((carry_http_options){0});
    site_open(&s, &options);
    char body[LIMIT + 2];
    memset(body, 'a', sizeof body);
    body[LIMIT] = '\0';
    assert_reply(ask_for(s.port, "POST", "/body", "", body), 200, body);
    body[LIMIT] = 'a';
    body[LIMIT + 1] = '\0';
    assert_reply(ask_for(s.port, "POST", "/body", "", body), 413, "larger than 1000 bytes");
    assert_reply(ask_for(s.port, "POST", "/body", "", ""), 400, "empty");
    assert_reply(ask_for(s.port, "POST", "/body", "", NULL), 411, "Content-Length");
    assert_reply(ask_for(s.port, "POST", "/body", "Content-Length: 1\r\n", "ab"), 400, "duplicate header");
    assert_reply(ask_for(s.port, "POST", "/body", "Transfer-Encoding: chunked\r\n", "ab"), 411, "");
    assert_reply(ask_for(s.port, "POST", "/body", "Content-Length: 1e2\r\n", NULL), 400, "expected a number");
    assert_reply(ask_for(s.port, "POST", "/body", "Content-Length: +2\r\n", NULL), 400, "expected a number");
    assert_reply(ask_for(s.port, "POST", "/large", "Content-Length: 18446744073709551617\r\n", NULL), 413, "1024 KiB");
    int to = request(s.port, "POST /body HTTP/1.1\r\nHost: localhost\r\nContent-Length: 300\r\n\r\n");
    for (int i = 0; i < 300; i++) { /* byte by byte */
        char byte = (char)('a' + i % 26);
        assert_true(say(to, &byte, 1));
    }
    static reply r;
    hear_reply(to, &r);
    assert_int_equal(r.status, 200);
    assert_int_equal(strlen(r.body), 300);
    for (int i = 0; i < 300; i++) {
        assert_int_equal(r.body[i], 'a' + i % 26);
    }
    (void)close(to);
    site_close(&s);
}

static void test_large_bodies_arrive_unchanged(void **state) {
    (void)state;
    site s;
    carry_http_options options = options_of((carry_http_options){0});
    site_open(&s, &options);
    enum { SIZE = 1 << 20 };
    static char body[SIZE], text[SIZE + 2048];
    for (size_t i = 0; i < SIZE; i++) {
        body[i] = (char)(i * 2654435761U >> 13);
    }
    int to = request(s.port, "POST /large HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n", SIZE);
    assert_true(say(to, body, SIZE));
    size_t length = hear_to_end(to, text, sizeof text);
    assert_true(length > SIZE);
    assert_memory_equal(text + length - SIZE, body, SIZE);
    (void)close(to);
    site_close(&s);
}

static void test_huge_headers_are_refused(void **state) {
    (void)state;
    site s;
    carry_http_options options = options_of((carry_http_options){0});
    site_open(&s, &options);
    static char large[64 << 10], text[80 << 10];
    memset(large, 'a', sizeof large - 1);
    int length = snprintf(text, sizeof text, "GET /echo HTTP/1.1\r\nHost: localhost\r\nX: %s\r\n\r\n", large);
    assert_reply(exchange(s.port, text, (size_t)length), 431, "8 KiB");
    length = snprintf(text, sizeof text, "GET /%s HTTP/1.1\r\n", large);
    assert_reply(exchange(s.port, text, (size_t)length), 431, "8 KiB");
    /* As many short headers as fit. */
    length = snprintf(text, sizeof text, "GET /echo HTTP/1.1\r\nHost: localhost\r\n");
    while (length < CARRY_HTTP_HEADERS - 40) {
        length += snprintf(text + length, sizeof text - (size_t)length, "a:\r\n");
    }
    length += snprintf(text + length, sizeof text - (size_t)length, "X-Test: last\r\n\r\n");
    assert_reply(exchange(s.port, text, (size_t)length), 200, "x=last");
    site_close(&s);
}

static int status_with_host(int port, const char *host, const char *more) {
    char text[512];
    int length = snprintf(text, sizeof text, "GET /echo HTTP/1.1\r\nHost: %s\r\n%s\r\n", host, more);
    return exchange(port, text, (size_t)length)->status;
}

static void test_foreign_hosts_are_refused(void **state) {
    (void)state;
    site s;
    static const char *const hosts[] = {"models.example", "10.0.0.7:8080", NULL};
    carry_http_options options = options_of((carry_http_options){.hosts = hosts});
    site_open(&s, &options);
    assert_int_equal(status_with_host(s.port, "localhost", ""), 200);
    assert_int_equal(status_with_host(s.port, "127.0.0.1:1", ""), 200);
    assert_int_equal(status_with_host(s.port, "models.example:99", ""), 200);
    assert_int_equal(status_with_host(s.port, "MODELS.example", ""), 200);
    assert_int_equal(status_with_host(s.port, "10.0.0.7:8080", ""), 200);
    assert_int_equal(status_with_host(s.port, "10.0.0.7:8081", ""), 403);
    assert_int_equal(status_with_host(s.port, "evil.example", ""), 403);
    assert_int_equal(status_with_host(s.port, "models.example.evil.example", ""), 403);
    assert_int_equal(status_with_host(s.port, "localhost\r\nHost: localhost", ""), 400);
    site_close(&s);
    options = options_of((carry_http_options){.address = "0.0.0.0", .open = true}); /* only names must be listed */
    site_open(&s, &options);
    assert_int_equal(status_with_host(s.port, "192.0.2.1:80", ""), 200);
    assert_int_equal(status_with_host(s.port, "[2001:db8::1]:80", ""), 200);
    assert_int_equal(status_with_host(s.port, "localhost", ""), 200);
    assert_int_equal(status_with_host(s.port, "rebound.example", ""), 403);
    assert_int_equal(status_with_host(s.port, "1.2.3.4.example", ""), 403);
    site_close(&s);
}

static void test_listed_origins_may_read_responses(void **state) {
    (void)state;
    site s;
    static const char *const origins[] = {"https://app.example", NULL};
    carry_http_options options = options_of((carry_http_options){.origins = origins, .token = "0123456789abcdef"});
    site_open(&s, &options);
    const char *token = "X-Api-Key: 0123456789abcdef\r\n";
    char headers[256];
    (void)snprintf(headers, sizeof headers, "%sOrigin: https://app.example\r\n", token);
    assert_reply(ask_for(s.port, "GET", "/echo", headers, NULL), 200,
                 "Access-Control-Allow-Origin: https://app.example\r\n");
    (void)snprintf(headers, sizeof headers, "%sOrigin: https://app.example.evil\r\n", token);
    assert_reply(ask_for(s.port, "GET", "/echo", headers, NULL), 403, "another origin");
    (void)snprintf(headers, sizeof headers, "%sOrigin: null\r\n", token);
    assert_reply(ask_for(s.port, "GET", "/echo", headers, NULL), 403, "another origin");
    assert_null(strstr(ask_for(s.port, "GET", "/echo", token, NULL)->text, "Access-Control"));
    const char *preflight = "Origin: https://app.example\r\nAccess-Control-Request-Method: POST\r\n";
    assert_reply(ask_for(s.port, "OPTIONS", "/body", preflight, NULL), 204, "Access-Control-Allow-Methods: POST\r\n");
    assert_reply(ask_for(s.port, "GET", "/echo", preflight, NULL), 401, "token"); /* only OPTIONS needs no token */
    assert_reply(ask_for(s.port, "OPTIONS", "/body",
                         "Origin: https://evil.example\r\nAccess-Control-Request-Method: POST\r\n", NULL),
                 403, "");
    site_close(&s);
}

static void test_public_paths_need_no_token(void **state) {
    (void)state;
    site s;
    static const char *const paths[] = {"/echo", NULL};
    carry_http_options options = options_of((carry_http_options){.public_paths = paths, .token = "0123456789abcdef"});
    site_open(&s, &options);
    assert_reply(ask_for(s.port, "GET", "/echo", "", NULL), 200, "rest=");
    assert_reply(ask_for(s.port, "GET", "/echo?q=1", "Authorization: Bearer wrong-wrong-wrong\r\n", NULL), 200, "q=1");
    assert_reply(ask_for(s.port, "GET", "/echo", "Origin: https://evil.example\r\n", NULL), 403, "another origin");
    assert_reply(ask_for(s.port, "GET", "/echo/", "", NULL), 401, "token");
    assert_reply(ask_for(s.port, "GET", "/items/echo", "", NULL), 401, "token");
    assert_reply(ask_for(s.port, "POST", "/body", "", "x"), 401, "token");
    site_close(&s);
}

static void write_own_error(void *user, const char *path, int status, const char *why, carry_json_text *body) {
    carry_json_put_raw(body, "{\"%s\":{\"path\":\"%s\",\"status\":%d,\"message\":", (const char *)user, path, status);
    carry_json_put_string(body, why);
    carry_json_put_raw(body, "}}");
}

static void test_errors_have_the_form_of_the_caller(void **state) {
    (void)state;
    site s;
    static char name[] = "problem";
    carry_http_options options = options_of((carry_http_options){.user = name, .write_error = write_own_error});
    site_open(&s, &options);
    assert_reply(ask_for(s.port, "GET", "/nowhere", "", NULL), 404,
                 "{\"problem\":{\"path\":\"/nowhere\",\"status\":404,\"message\":\"not found\"}}");
    assert_reply(ask_for(s.port, "GET", "/busy", "", NULL), 429, "\"message\":\"the queue is full\"");
    assert_reply(exchange(s.port, "nonsense\r\n\r\n", 12), 400, "{\"problem\":{\"path\":\"/\"");
    site_close(&s);
}

static void test_options_out_of_range_are_refused(void **state) {
    (void)state;
    carry_ctx *ctx = support_ctx(1, NULL, NULL);
    carry_http_server *server;
    static const carry_http_route too_large[] = {{"POST", "/", post_body, CARRY_HTTP_BODY_LIMIT + 1}};
    const struct {
        carry_http_options options;
        const char *words;
    } refused[] = {
        {{.address = "0.0.0.0"}, "token"},
        {{.port = 65536}, "65536"},
        {{.token = "short"}, "16 to 255"},
        {{.connections = -1}, "connections -1"},
        {{.connections = 1000000}, "connections 1000000"},
        {{.patience = -1.0}, "patience"},
        {{.address = "localhost.example", .open = true}, "numeric"},
        {{.routes = too_large, .route_count = 1}, "body limit"},
    };
    for (size_t i = 0; i < sizeof refused / sizeof refused[0]; i++) {
        assert_refused(ctx, CARRY_EARGUMENT, refused[i].words, carry_http_start(ctx, &server, &refused[i].options));
        assert_null(server);
    }
    carry_ctx_free(ctx);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_routes_match_exactly_or_by_prefix),
        cmocka_unit_test(test_wrong_methods_are_refused_with_the_right_ones),
        cmocka_unit_test(test_bodies_are_read_whole_up_to_the_limit),
        cmocka_unit_test(test_large_bodies_arrive_unchanged),
        cmocka_unit_test(test_huge_headers_are_refused),
        cmocka_unit_test(test_foreign_hosts_are_refused),
        cmocka_unit_test(test_listed_origins_may_read_responses),
        cmocka_unit_test(test_public_paths_need_no_token),
        cmocka_unit_test(test_errors_have_the_form_of_the_caller),
        cmocka_unit_test(test_options_out_of_range_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
