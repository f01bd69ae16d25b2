/* JSON bodies of OpenAI's interface as requests: fields, defaults, refusals that name the field. */
#include "support.h"

#include <string.h>

#include "serve/openai.h"
#include "serve/server_internal.h"

typedef struct parsed {
    carry_serve_request r;
    carry_serve_refusal refusal;
    bool is_parsed;
} parsed;

static parsed parse(carry_ctx *ctx, const carry_serve_dialect *dialect, const char *body) {
    parsed p = {0};
    carry_serve_request_init(&p.r, dialect);
    assert_ok(ctx, carry_json_parse(ctx, &p.r.body, body, strlen(body), "body"));
    p.is_parsed = dialect->parse(ctx, &p.r, &p.refusal);
    assert_int_equal(p.is_parsed, p.refusal.status == 0);
    return p;
}

#define HI "\"messages\":[{\"role\":\"user\",\"content\":\"Hi\"}]"

static void defaults_are_those_of_the_interface(void **unused) {
    (void)unused;
    carry_ctx *ctx = support_ctx(1, NULL, NULL);
    parsed p = parse(ctx, &carry_serve_openai_chat, "{" HI "}");
    assert_true(p.is_parsed);
    assert_int_equal(p.r.choices, 1);
    assert_int_equal(p.r.max_tokens, -1);
    assert_true(p.r.temperature == 1.0 && p.r.top_p == 1.0 && p.r.min_p == 0.0 && p.r.repetition == 1.0);
    assert_int_equal(p.r.logprobs, -1);
    assert_false(p.r.is_streamed || p.r.has_seed || p.r.includes_usage);
    assert_null(p.r.model);
    assert_int_equal(p.r.format.kind, CARRY_FORMAT_TEXT);
    carry_serve_request_free(&p.r);
    p = parse(ctx, &carry_serve_openai_text, "{\"prompt\":\"a\\u0000b\"}");
    assert_true(p.is_parsed);
    assert_int_equal(p.r.max_tokens, 16);
    assert_int_equal(p.r.text_length, 3);
    carry_serve_request_free(&p.r);
    carry_ctx_free(ctx);
}

static void fields_are_read(void **unused) {
    (void)unused;
    carry_ctx *ctx = support_ctx(1, NULL, NULL);
    parsed p = parse(ctx, &carry_serve_openai_chat,
                     "{" HI ",\"model\":\"m\",\"n\":3,\"stop\":[\"a\",\"\",\"b\"],\"seed\":-5,\"temperature\":0.5,"
                     "\"top_p\":0.25,\"top_k\":-1,\"min_p\":0.125,\"max_tokens\":7,\"max_completion_tokens\":9,"
                     "\"presence_penalty\":-1.5,\"frequency_penalty\":2,\"logit_bias\":{\"7\":-100,\"12\":3.5},"
                     "\"logprobs\":true,\"top_logprobs\":4,\"stream\":true,\"stream_options\":{\"include_usage\":true},"
                     "\"unknown\":{\"field\":[1]},\"user\":null}");
    assert_true(p.is_parsed);
    assert_string_equal(p.r.model, "m");
    assert_int_equal(p.r.choices, 3);
    assert_int_equal(p.r.stop_count, 2);
    assert_string_equal(p.r.stops[1], "b");
    assert_true(p.r.has_seed && p.r.seed == (uint64_t)-5);
    assert_true(p.r.temperature == 0.5 && p.r.top_p == 0.25 && p.r.min_p == 0.125);
    assert_int_equal(p.r.top_k, 0);
    assert_int_equal(p.r.max_tokens, 9);
    assert_true(p.r.presence == -1.5 && p.r.frequency == 2.0);
    assert_int_equal(p.r.bias_count, 2);
    assert_int_equal(p.r.bias_tokens[1], 12);
    assert_true(p.r.biases[1] == 3.5f);
    assert_int_equal(p.r.logprobs, 4);
    assert_true(p.r.is_streamed && p.r.includes_usage);
    carry_serve_request_free(&p.r);
    carry_ctx_free(ctx);
}

static void refusals_name_the_field(void **unused) {
    (void)unused;
    static const struct {
        const char *more, *field;
    } cases[] = {
        {"\"temperature\":\"hot\"", "temperature"},
        {"\"temperature\":-1", "temperature"},
        {"\"temperature\":1e999", "temperature"},
        {"\"top_p\":0", "top_p"},
        {"\"n\":0", "n"},
        {"\"n\":1.5", "n"},
        {"\"n\":100000", "n"},
        {"\"max_tokens\":0", "max_tokens"},
        {"\"max_completion_tokens\":-3", "max_completion_tokens"},
        {"\"stop\":[1]", "stop"},
        {"\"stop\":\"a\\u0000b\"", "stop"},
        {"\"logit_bias\":[1]", "logit_bias"},
        {"\"logit_bias\":{\"x\":1}", "logit_bias"},
        {"\"logit_bias\":{\"-1\":1}", "logit_bias"},
        {"\"logit_bias\":{\"1\":101}", "logit_bias"},
        {"\"presence_penalty\":2.5", "presence_penalty"},
        {"\"seed\":1.5", "seed"},
        {"\"stream\":1", "stream"},
        {"\"stream_options\":{}", "stream_options"},
        {"\"top_logprobs\":3", "top_logprobs"},
        {"\"logprobs\":true,\"top_logprobs\":21", "top_logprobs"},
        {"\"response_format\":{\"type\":\"xml\"}", "response_format.type"},
        {"\"response_format\":{\"type\":\"json_schema\"}", "response_format.json_schema.schema"},
        {"\"tools\":{}", "tools"},
        {"\"tools\":[1]", "tools[0]"},
        {"\"tools\":[{\"type\":\"function\"}]", "tools[0].function"},
        {"\"tools\":[{\"type\":\"function\",\"function\":{}}]", "tools[0].function.name"},
        {"\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"\"}}]", "tools[0].function.name"},
        {"\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"f\",\"parameters\":[]}}]",
         "tools[0].function.parameters"},
        {"\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"f\",\"description\":1}}]",
         "tools[0].function.description"},
        {"\"tools\":[{\"type\":\"code\",\"function\":{\"name\":\"f\"}}]", "tools[0].type"},
        {"\"reasoning_effort\":{}", "reasoning_effort"},
        {"\"tool_choice\":\"required\"", "tool_choice"},
        {"\"chat_template_kwargs\":1", "chat_template_kwargs"},
        {"\"model\":1", "model"},
    };
    carry_ctx *ctx = support_ctx(1, NULL, NULL);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char body[512];
        (void)snprintf(body, sizeof body, "{" HI ",%s}", cases[i].more);
        parsed p = parse(ctx, &carry_serve_openai_chat, body);
        if (p.refusal.status != 400 || strcmp(p.refusal.field, cases[i].field) != 0) {
            fail_msg("%s: refused with %d and field '%s': %s", cases[i].more, p.refusal.status, p.refusal.field,
                     p.refusal.message);
        }
        carry_serve_request_free(&p.r);
    }
    carry_ctx_free(ctx);
}

static void messages_are_checked_and_made_plain(void **unused) {
    (void)unused;
    static const struct {
        const char *body, *field;
    } cases[] = {
        {"{}", "messages"},
        {"{\"messages\":[]}", "messages"},
        {"{\"messages\":[1]}", "messages[0]"},
        {"{\"messages\":[{\"role\":1,\"content\":\"a\"}]}", "messages[0].role"},
        {"{\"messages\":[{\"role\":\"user\",\"content\":{}}]}", "messages[0].content"},
        {"{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"a\"},\"b\"]}]}",
         "messages[0].content[1]"},
        {"{\"messages\":[{\"role\":\"user\",\"content\":\"a\",\"name\":[]}]}", "messages[0].name"},
        {"{\"messages\":[{\"role\":\"tool\",\"content\":\"a\",\"tool_call_id\":7}]}", "messages[0].tool_call_id"},
        {"{\"messages\":[{\"role\":\"assistant\",\"tool_calls\":{}}]}", "messages[0].tool_calls"},
        {"{\"messages\":[{\"role\":\"assistant\",\"tool_calls\":[1]}]}", "messages[0].tool_calls[0]"},
        {"{\"messages\":[{\"role\":\"assistant\",\"tool_calls\":[{\"id\":\"1\"}]}]}",
         "messages[0].tool_calls[0].function"},
        {"{\"messages\":[{\"role\":\"assistant\",\"tool_calls\":[{\"function\":{\"name\":3}}]}]}",
         "messages[0].tool_calls[0].function.name"},
        {"{\"messages\":[{\"role\":\"assistant\",\"tool_calls\":[{\"function\":{\"name\":\"f\",\"arguments\":[1]}}]}]}",
         "messages[0].tool_calls[0].function.arguments"},
        {"{\"messages\":[{\"role\":\"user\",\"content\":\"a\"},{\"role\":\"king\",\"content\":\"\"}]}",
         "messages[1].role"},
        {"{\"messages\":[{\"role\":\"user\"}]}", "messages[0].content"},
        {"{\"messages\":[{\"role\":\"user\",\"content\":3}]}", "messages[0].content"},
        {"{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"image_url\"}]}]}", "messages[0].content[0]"},
    };
    carry_ctx *ctx = support_ctx(1, NULL, NULL);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        parsed p = parse(ctx, &carry_serve_openai_chat, cases[i].body);
        assert_int_equal(p.refusal.status, 400);
        assert_string_equal(p.refusal.field, cases[i].field);
        carry_serve_request_free(&p.r);
    }
    parsed p = parse(ctx, &carry_serve_openai_chat,
                     "{\"messages\":[{\"role\":\"developer\",\"content\":[{\"type\":\"text\",\"text\":\"a\"},"
                     "{\"type\":\"text\",\"text\":\"b\"}]},{\"role\":\"assistant\",\"tool_calls\":[{\"id\":\"1\","
                     "\"type\":\"function\",\"function\":{\"name\":\"f\",\"arguments\":\"{\\\"x\\\": 1}\"}}]},"
                     "{\"role\":\"tool\",\"tool_call_id\":\"1\",\"content\":\"ok\"}],"
                     "\"chat_template_kwargs\":{\"enable_thinking\":false,\"messages\":[]}}");
    assert_true(p.is_parsed);
    const carry_json *message = carry_json_first(carry_json_find(p.r.variables, "messages"));
    assert_true(carry_json_is_text(carry_json_find(message, "role"), "system"));
    assert_true(carry_json_is_text(carry_json_find(message, "content"), "ab"));
    const carry_json *call = carry_json_first(carry_json_find(message->next, "tool_calls"));
    const carry_json *arguments = carry_json_find(carry_json_find(call, "function"), "arguments");
    assert_int_equal(arguments->kind, CARRY_JSON_OBJECT);
    assert_int_equal(carry_json_find(arguments, "x")->as.number.integer, 1);
    assert_true(carry_json_is_text(carry_json_find(message->next->next, "tool_call_id"), "1"));
    assert_int_equal(carry_json_find(p.r.variables, "enable_thinking")->kind, CARRY_JSON_BOOL);
    assert_int_equal(carry_json_count(carry_json_find(p.r.variables, "messages")), 3);
    carry_serve_request_free(&p.r);
    carry_ctx_free(ctx);
}

static void prompts_are_texts_or_ids(void **unused) {
    (void)unused;
    carry_ctx *ctx = support_ctx(1, NULL, NULL);
    parsed p = parse(ctx, &carry_serve_openai_text, "{\"prompt\":[[1,2,3]],\"logprobs\":2}");
    assert_true(p.is_parsed);
    assert_int_equal(p.r.id_count, 3);
    assert_int_equal(p.r.ids[2], 3);
    assert_int_equal(p.r.logprobs, 2);
    carry_serve_request_free(&p.r);
    static const char *const wrong[] = {"{}",
                                        "{\"prompt\":[]}",
                                        "{\"prompt\":[\"a\",\"b\"]}",
                                        "{\"prompt\":[1,\"b\"]}",
                                        "{\"prompt\":[1.5]}",
                                        "{\"prompt\":{\"a\":1}}",
                                        "{\"prompt\":true}"};
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        p = parse(ctx, &carry_serve_openai_text, wrong[i]);
        assert_int_equal(p.refusal.status, 400);
        assert_string_equal(p.refusal.field, "prompt");
        carry_serve_request_free(&p.r);
    }
    carry_ctx_free(ctx);
}

static void names_of_states_stay_in_their_folder(void **unused) {
    (void)unused;
    static const char *const good[] = {"a", "Chat-1.v2_x", "0"};
    static const char *const bad[] = {"",    ".",   "..",   "../a", "a/b",     ".hidden",
                                      "-rf", "a b", "a\\b", "a%2f", "\xc3\xa9"};
    for (size_t i = 0; i < sizeof good / sizeof good[0]; i++) {
        assert_true(carry_serve_is_name(good[i]));
    }
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        assert_false(carry_serve_is_name(bad[i]));
    }
    char longest[66];
    memset(longest, 'a', 65);
    longest[65] = '\0';
    assert_false(carry_serve_is_name(longest));
    assert_true(carry_serve_is_name(longest + 1));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(defaults_are_those_of_the_interface),
        cmocka_unit_test(fields_are_read),
        cmocka_unit_test(refusals_name_the_field),
        cmocka_unit_test(messages_are_checked_and_made_plain),
        cmocka_unit_test(prompts_are_texts_or_ids),
        cmocka_unit_test(names_of_states_stay_in_their_folder),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
