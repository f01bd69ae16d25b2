/* Reading JSON: written JSON reads back the same; other texts are refused, with the position of the fault. */
#include <math.h>

#include "support.h"

#include "core/json.h"
#include "core/json_write.h"

static carry_json *parse(carry_ctx *ctx, const char *text) {
    carry_json *root;
    assert_ok(ctx, carry_json_parse(ctx, &root, text, strlen(text), "text"));
    return root;
}

static void values_are_read(void **unused) {
    (void)unused;
    carry_ctx *ctx = support_ctx(1, NULL, NULL);
    carry_json *root = parse(ctx, " {\"a\": [1, -2.5e2, true, false, null, \"x\"], \"b\": {}, \"c\": [],\n \"a\": 3} ");
    assert_int_equal(root->kind, CARRY_JSON_OBJECT);
    assert_int_equal(root->as.inside.count, 4);
    const carry_json *a = carry_json_find(root, "a");
    assert_int_equal(a->kind, CARRY_JSON_ARRAY);
    assert_int_equal(a->as.inside.count, 6);
    const carry_json *node = a->as.inside.first;
    assert_true(node->kind == CARRY_JSON_NUMBER && node->whole && node->as.number.integer == 1);
    assert_true(node->line == 1 && node->column == 9);
    node = node->next;
    assert_true(node->kind == CARRY_JSON_NUMBER && !node->whole && node->as.number.value == -250.0);
    node = node->next;
    assert_true(node->kind == CARRY_JSON_BOOL && node->truth);
    node = node->next;
    assert_true(node->kind == CARRY_JSON_BOOL && !node->truth);
    node = node->next;
    assert_int_equal(node->kind, CARRY_JSON_NULL);
    node = node->next;
    assert_true(carry_json_is_text(node, "x") && !carry_json_is_text(node, "") && !carry_json_is_text(node, "xy"));
    assert_null(node->next);
    assert_true(carry_json_find(root, "b")->as.inside.count == 0 &&
                carry_json_find(root, "c")->as.inside.first == NULL);
    assert_null(carry_json_find(root, "d"));
    assert_null(carry_json_find(node, "d"));
    carry_json_free(root);
    carry_ctx_free(ctx);
}

static void whole_numbers_are_exact_or_not_whole(void **unused) {
    (void)unused;
    carry_ctx *ctx = support_ctx(1, NULL, NULL);
    carry_json *root =
        parse(ctx, "[9223372036854775807, -9223372036854775808, 9223372036854775808, -0, 1e3, 1.0, 1e999]");
    const carry_json *node = root->as.inside.first;
    assert_true(node->whole && node->as.number.integer == INT64_MAX);
    node = node->next;
    assert_true(node->whole && node->as.number.integer == INT64_MIN);
    node = node->next;
    assert_true(!node->whole && node->as.number.value == 9223372036854775808.0);
    node = node->next;
    assert_true(node->whole && node->as.number.integer == 0);
    for (node = node->next; node != NULL; node = node->next) {
        assert_false(node->whole);
    }
    carry_json_free(root);
    carry_ctx_free(ctx);
}

static void escapes_are_undone(void **unused) {
    (void)unused;
    carry_ctx *ctx = support_ctx(1, NULL, NULL);
    carry_json *root = parse(ctx, "\"\\\"\\\\\\/\\b\\f\\n\\r\\t\\u0041\\u00e9\\u20AC\\ud83d\\ude00\\u0000z\xc3\xa9\"");
    static const char wanted[] = "\"\\/\b\f\n\r\tA\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80\0z\xc3\xa9";
    assert_int_equal(root->as.text.length, sizeof wanted - 1);
    assert_memory_equal(root->as.text.bytes, wanted, sizeof wanted);
    carry_json_free(root);
    carry_ctx_free(ctx);
}

static void what_is_not_json_is_refused(void **unused) {
    (void)unused;
    static const char *const bad[] = {"",
                                      " ",
                                      "{",
                                      "}",
                                      "[",
                                      "[1",
                                      "[1,",
                                      "[1,]",
                                      "[,1]",
                                      "[1 2]",
                                      "{\"a\"}",
                                      "{\"a\":}",
                                      "{\"a\":1,}",
                                      "{a:1}",
                                      "{1:1}",
                                      "{\"a\":1]",
                                      "[1}",
                                      "1 2",
                                      "01",
                                      "-",
                                      "+1",
                                      ".5",
                                      "1.",
                                      "1e",
                                      "1e+",
                                      "0x1",
                                      "NaN",
                                      "[NaN]",
                                      "[-Infinity]",
                                      "Infinity",
                                      "nul",
                                      "True",
                                      "'a'",
                                      "\"a",
                                      "\"\\x\"",
                                      "\"\\u12\"",
                                      "\"\\u12g4\"",
                                      "\"\\ud800\"",
                                      "\"\\ud800\\u0041\"",
                                      "\"\\udc00\"",
                                      "\"\n\"",
                                      "\"\xff\"",
                                      "\"\xc0\xaf\"",
                                      "\"\xed\xa0\x80\"",
                                      "\"\xf5\x80\x80\x80\"",
                                      "\"\xe2\x82\"",
                                      "\xef\xbb\xbf{}",
                                      "// c\n1",
                                      "[1]\n,",
                                      "\"\\",
                                      "[\"\\\"]"};
    carry_ctx *ctx = support_ctx(1, NULL, NULL);
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        carry_json *root;
        carry_status status = carry_json_parse(ctx, &root, bad[i], strlen(bad[i]), "text");
        if (status != CARRY_EFORMAT || strstr(carry_ctx_error(ctx), "column") == NULL || root != NULL) {
            fail_msg("'%s': %s, %s", bad[i], carry_status_name(status), carry_ctx_error(ctx));
        }
    }
    carry_json *root;
    assert_refused(ctx, CARRY_EFORMAT, "text, line 3, column 5: a colon",
                   carry_json_parse(ctx, &root, "{\"a\": 1,\n\n\"b\" 2}", 17, "text"));
    carry_ctx_free(ctx);
}

static void every_beginning_of_a_text_is_refused(void **unused) {
    (void)unused;
    static const char good[] = "{\"a\":[1.5e-3,{\"\\u00e9\\\"\":null}],\"b\":[true,false,\"x\"]}";
    carry_ctx *ctx = support_ctx(1, NULL, NULL);
    for (size_t length = 0; length < strlen(good); length++) {
        carry_json *root;
        char *copy = malloc(length + 1); /* so that a sanitizer sees its end */
        assert_non_null(copy);
        memcpy(copy, good, length);
        assert_int_equal(carry_json_parse(ctx, &root, copy, length, "text"), CARRY_EFORMAT);
        free(copy);
    }
    carry_json_free(parse(ctx, good));
    carry_ctx_free(ctx);
}

static void depth_is_bounded(void **unused) {
    (void)unused;
    carry_ctx *ctx = support_ctx(1, NULL, NULL);
    char text[2 * (CARRY_JSON_DEPTH + 1)];
    carry_json *root;
    memset(text, '[', CARRY_JSON_DEPTH + 1);
    memset(text + CARRY_JSON_DEPTH + 1, ']', CARRY_JSON_DEPTH + 1);
    assert_refused(ctx, CARRY_EFORMAT, "nested too deeply", carry_json_parse(ctx, &root, text, sizeof text, "text"));
    assert_ok(ctx, carry_json_parse(ctx, &root, text + 1, sizeof text - 2, "text"));
    carry_json_free(root);
    carry_ctx_free(ctx);
}

static void what_is_written_is_read_back(void **unused) {
    (void)unused;
    static const double numbers[] = {0.0, 1.0, -2.0, 0.1, 1e-6, 1e300, 3.141592653589793, 0x1p-1074, 123456789.0};
    carry_ctx *ctx = support_ctx(1, NULL, NULL);
    carry_json_text text = {0};
    carry_json_put_raw(&text, "{");
    carry_json_put_key(&text, "k\"\\\x01\n\xc3\xa9");
    carry_json_put_raw(&text, "[");
    for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++) {
        carry_json_put_raw(&text, i > 0 ? "," : "");
        carry_json_put_double(&text, numbers[i]);
    }
    carry_json_put_raw(&text, "]}");
    assert_false(text.failed);
    carry_json *root = parse(ctx, text.bytes);
    const carry_json *list = carry_json_find(root, "k\"\\\x01\n\xc3\xa9");
    assert_non_null(list);
    const carry_json *node = list->as.inside.first;
    for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++, node = node->next) {
        assert_true(node->as.number.value == numbers[i] && !node->whole);
    }
    carry_json_free(root);
    carry_json_text_free(&text);
    carry_ctx_free(ctx);
}

/* The writer adds commas and keys; each byte that is not UTF-8 becomes U+FFFD. */
static void objects_are_written_with_their_commas(void **state) {
    (void)state;
    carry_ctx *ctx = support_ctx(1, NULL, NULL);
    static const char expected[] =
        "{\"a\":\"x\xEF\xBF\xBDy\",\"b\":[1,2.5,null,-9223372036854775808,-10,0,9223372036854775807,{}],"
        "\"c\":{\"d\":true,\"e\":null},"
        "\"f\":3.0,\"z\":\"\\u0000\\u000a\"}";
    carry_json_text text = {0};
    carry_json_begin(&text, NULL, '{');
    carry_json_add_text(&text, "a", "x\xffy");
    carry_json_begin(&text, "b", '[');
    carry_json_add_integer(&text, NULL, 1);
    carry_json_add_number(&text, NULL, 2.5);
    carry_json_add_number(&text, NULL, (double)INFINITY);
    for (int i = 0; i < 4; i++) {
        carry_json_add_integer(&text, NULL, (const int64_t[]){INT64_MIN, -10, 0, INT64_MAX}[i]);
    }
    carry_json_begin(&text, NULL, '{');
    carry_json_end(&text, '}');
    carry_json_end(&text, ']');
    carry_json_begin(&text, "c", '{');
    carry_json_add_bool(&text, "d", true);
    carry_json_add_text(&text, "e", NULL);
    carry_json_end(&text, '}');
    carry_json_add_number(&text, "f", 3.0);
    carry_json_add_key(&text, "z");
    carry_json_put_bytes(&text, "\0\n", 2);
    carry_json_end(&text, '}');
    assert_string_equal(text.bytes, expected);

    carry_json *document;
    assert_ok(ctx, carry_json_parse(ctx, &document, text.bytes, text.length, "t"));
    assert_int_equal(carry_json_count(carry_json_find(document, "b")), 8);
    assert_null(carry_json_string(carry_json_find(document, "z"))); /* it has a zero inside */
    carry_json_text again = {.spaced = true};
    carry_json_add_node(&again, NULL, carry_json_find(document, "c"));
    assert_string_equal(again.bytes, "{\"d\": true, \"e\": null}");
    carry_json_text_free(&again);
    carry_json_free(document);
    /* As in config.json of Mamba models, which carry quantise writes again. */
    static const char limits[] = "{\"time_step_limit\": [0.0, Infinity]}";
    assert_ok(ctx, carry_json_parse(ctx, &document, limits, strlen(limits), "t"));
    again = (carry_json_text){.spaced = true};
    carry_json_add_node(&again, NULL, document);
    assert_string_equal(again.bytes, limits);
    carry_json_text_free(&again);
    carry_json_free(document);
    carry_json_text_free(&text);
    carry_ctx_free(ctx);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(values_are_read),
        cmocka_unit_test(whole_numbers_are_exact_or_not_whole),
        cmocka_unit_test(escapes_are_undone),
        cmocka_unit_test(what_is_not_json_is_refused),
        cmocka_unit_test(every_beginning_of_a_text_is_refused),
        cmocka_unit_test(depth_is_bounded),
        cmocka_unit_test(what_is_written_is_read_back),
        cmocka_unit_test(objects_are_written_with_their_commas),
    };
    return cmocka_run_group_tests_name("core/json", tests, NULL, NULL);
}
