/* A server before its engine is there: every request gets 503 in the form of its interface, and ends at once. */
#include "http_client.h"

#include "serve/server.h"

/* Sends a request and reads the answer. */
static void ask(int port, const char *method, const char *path, const char *body, reply *r) {
    char text[1024];
    const int to = knock(port);
    const int length = snprintf(text, sizeof text,
                                "%s %s HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
                                "Content-Length: %zu\r\nConnection: close\r\n\r\n%s",
                                method, path, strlen(body), body);
    assert_in_range(length, 1, sizeof text - 1);
    assert_true(say(to, text, (size_t)length));
    hear_reply(to, r);
    (void)close(to);
}

static void requests_get_503_while_the_model_is_loaded(void **unused) {
    (void)unused;
    static reply r;
    carry_ctx *ctx = support_ctx(1, NULL, NULL);
    carry_lm_server *server;
    assert_ok(ctx, carry_lm_server_start(ctx, &server, &(carry_lm_server_options){.model = "tiny"}));
    const int port = carry_lm_server_port(server);
    ask(port, "GET", "/health", "", &r);
    assert_int_equal(r.status, 503);
    assert_non_null(strstr(r.body, "\"loading\""));
    static const struct {
        const char *path, *body, *form;
    } asked[] = {
        {"/v1/chat/completions", "{\"messages\":[{\"role\":\"user\",\"content\":\"Hi\"}]}", "{\"error\":{\"message\""},
        {"/v1/completions", "{\"prompt\":\"Hi\"}", "{\"error\":{\"message\""},
        {"/v1/messages", "{\"messages\":[{\"role\":\"user\",\"content\":\"Hi\"}],\"max_tokens\":1}",
         "{\"type\":\"error\",\"error\":{\"type\""},
    };
    for (size_t i = 0; i < sizeof asked / sizeof *asked; i++) {
        ask(port, "POST", asked[i].path, asked[i].body, &r);
        assert_int_equal(r.status, 503);
        assert_non_null(strstr(r.text, "Retry-After: "));
        assert_non_null(strstr(r.body, asked[i].form));
    }
    carry_lm_server_free(server);
    carry_ctx_free(ctx);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(requests_get_503_while_the_model_is_loaded)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
