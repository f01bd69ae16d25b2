/* Answers are split into content, reasoning and tool calls, the same way for every split of the text into pieces. */
#include "support.h"

#include "core/json.h"
#include "serve/parser.h"

#define XML(body) "<tool_call>\n<function=f>\n" body "</function>\n</tool_call>"

typedef struct answer {
    const char *prompt; /* NULL: a text completion */
    const char *text;
    const char *content, *reasoning, *calls; /* calls: NAME ARGUMENTS; ... */
} answer;

static const answer answers[] = {
    {"user: hi\n", "Hello <b>world</b>  ", "Hello <b>world</b>  ", "", ""},
    {NULL, "<think>a</think><tool_call>", "<think>a</think><tool_call>", "", ""},
    {"", "<think>\nhm\n</think>\n\nYes.", "Yes.", "hm", ""},
    {"assistant\n<think>\n", "so it is\n</think>\n\nYes.", "Yes.", "so it is", ""},
    {"assistant\n<think>\n", "not finished </thin", "", "not finished </thin", ""},
    {"", "a <think>b</think>", "a <think>b</think>", "", ""},
    {"", "\n\n <thin air", "\n\n <thin air", "", ""},
    {"", "Let me see.\n\n<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": [1, \"}\"]}}\n</tool_call>",
     "Let me see.", "", "f {\"a\": [1, \"}\"]}; "},
    {"",
     "<tool_call>{\"name\":\"f\",\"arguments\":{}}</tool_call>\n<tool_call>{\"name\":\"g\",\"arguments\":{\"x\":1}}</"
     "tool_call> done",
     "done", "", "f {}; g {\"x\":1}; "},
    {"", "<tool_call>{\"arguments\": {\"a\": 1}, \"name\": \"f\"}</tool_call>", "", "", "f {\"a\": 1}; "},
    {"", "<tool_call>{\"name\": \"f\"}</tool_call>", "", "", "f {}; "},
    {"", "<tool_call>{\"name\": \"f\", \"arguments\": \"{\\\"a\\\": 2}\"}</tool_call>", "", "", "f {\"a\": 2}; "},
    {"", "<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": \"x\ny</tool_call>\"}}</tool_call>", "", "",
     "f {\"a\": \"x\\ny</tool_call>\"}; "},
    {"", "<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": 1", "", "", "f {\"a\": 1; "},
    {"", "<tool_call>{\"name\": 3}</tool_call> x", "<tool_call>{\"name\": 3}</tool_call> x", "", ""},
    {"", "<tool_call>{broken</tool_call>", "<tool_call>{broken</tool_call>", "", ""},
    {"", "<tool_call>nothing", "<tool_call>nothing", "", ""},
    {"", "a < b <tool_", "a < b <tool_", "", ""},
    {"", "Now:\n" XML("<parameter=city>\nParis \"x\"\n\n</parameter>\n<parameter=days>\n3\n</parameter>\n"), "Now:", "",
     "f {\"city\": \"Paris \\\"x\\\"\\u000a\", \"days\": 3}; "},
    {"", XML(""), "", "", "f {}; "},
    {"", XML("<parameter=days>\nmany\n</parameter>\n<parameter=on>\nTrue\n</parameter>\n"), "", "",
     "f {\"days\": \"many\", \"on\": true}; "},
    {"", XML("<parameter=city></parameter>\n<parameter=other>[1]</parameter>"), "", "",
     "f {\"city\": \"\", \"other\": \"[1]\"}; "},
    {"", "<tool_call>\n<function=f>\n<parameter=city>\nPar", "", "", "f {\"city\": \"Par\"}; "},
    {"", "<tool_call>\n<function=f>\n<parameter=da", "", "", "f {}; "},
    {"", "<tool_call><function=></tool_call>", "<tool_call><function=></tool_call>", "", ""},
    {"<think>", "why\n</think>\n" XML("<parameter=days>\n{\"a\": 1}\n</parameter>\n") "\n\n", "", "why",
     "f {\"days\": {\"a\": 1}}; "},
};

static const char tools[] =
    "[{\"type\": \"function\", \"function\": {\"name\": \"f\", \"parameters\": {\"properties\": {\"city\": {\"type\": "
    "\"string\"}, \"days\": {\"type\": \"integer\"}, \"on\": {\"anyOf\": [{\"type\": \"boolean\"}, {\"type\": "
    "\"null\"}]}}}}}]";

typedef struct seen {
    char content[1024], reasoning[1024], calls[1024];
    int calls_begun;
} seen;

static void append(char *to, const char *text, size_t length) {
    const size_t at = strlen(to);
    assert_true(at + length < 1024);
    memcpy(to + at, text, length);
    to[at + length] = '\0';
}

static void on_part(void *user, const carry_serve_part *part) {
    seen *s = user;
    switch (part->kind) {
    case CARRY_PART_TEXT:
        append(s->content, part->text, part->length);
        break;
    case CARRY_PART_REASONING:
        append(s->reasoning, part->text, part->length);
        break;
    case CARRY_PART_CALL:
        assert_int_equal(part->call, s->calls_begun++);
        assert_int_equal(strlen(part->id), 29);
        append(s->calls, part->call > 0 ? "; " : "", part->call > 0 ? 2 : 0);
        append(s->calls, part->name, strlen(part->name));
        append(s->calls, " ", 1);
        break;
    case CARRY_PART_ARGUMENTS:
        assert_int_equal(part->call, s->calls_begun - 1);
        append(s->calls, part->text, part->length);
        break;
    }
}

static seen parse(const carry_serve_request *request, const answer *a, size_t step) {
    seen s = {0};
    const size_t length = strlen(a->text);
    carry_serve_parser *parser = carry_serve_parser_open(request, a->prompt, a->prompt != NULL ? strlen(a->prompt) : 0);
    assert_non_null(parser);
    for (size_t at = 0; at < length; at += step) {
        carry_serve_parser_put(parser, a->text + at, length - at < step ? length - at : step, on_part, &s);
    }
    carry_serve_parser_end(parser, on_part, &s);
    carry_serve_parser_close(parser);
    if (s.calls_begun > 0) {
        append(s.calls, "; ", 2);
    }
    return s;
}

static void test_answers_are_split_wherever_they_are_cut(void **unused) {
    (void)unused;
    carry_ctx *ctx = support_ctx(1, NULL, NULL);
    carry_json *list;
    assert_ok(ctx, carry_json_parse(ctx, &list, tools, sizeof tools - 1, "tools"));
    const carry_serve_request request = {.tools = list};
    for (size_t i = 0; i < sizeof answers / sizeof *answers; i++) {
        const answer *a = &answers[i];
        for (size_t step = 1; step < 40; step++) {
            const seen s = parse(&request, a, step == 39 ? 1000 : step);
            assert_string_equal(s.content, a->content);
            assert_string_equal(s.reasoning, a->reasoning);
            assert_string_equal(s.calls, a->calls);
        }
    }
    carry_json_free(list);
    carry_ctx_free(ctx);
}

static void test_calls_beyond_the_first_can_be_dropped(void **unused) {
    (void)unused;
    carry_json none = {.kind = CARRY_JSON_ARRAY};
    const carry_serve_request request = {.tools = &none, .no_parallel_tools = true};
    const seen s = parse(&request, &answers[8], 3);
    assert_string_equal(s.calls, "f {}; ");
    const carry_serve_request without = {.tools = &none, .tool_choice = CARRY_TOOLS_NONE};
    assert_string_equal(parse(&without, &answers[9], 3).content, answers[9].text);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_answers_are_split_wherever_they_are_cut),
        cmocka_unit_test(test_calls_beyond_the_first_can_be_dropped),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
