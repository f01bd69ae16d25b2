/* Constrained sampling: matching texts are accepted and others are not; random walks through masks end in matching
   texts; a token is allowed exactly if its bytes are; expressions and schemas that are wrong, unsupported or too large
   are refused by name. With arguments KIND TEXT COUNT the program prints COUNT texts of random walks as JSON strings,
   which tests/constraint_check.py compares with Python's re and jsonschema. */
#include "support.h"

#include "core/json.h"
#include "core/json_write.h"
#include "core/rng.h"
#include "tokenizer/constraint/constraint.h"

enum { END = 256, WORDS = 16, LONGEST = 4000 };

static carry_ctx *ctx;
static carry_tokenizer *bytes;  /* ids 0 to 255 are bytes, 256 ends texts */
static carry_tokenizer *pieces; /* and some longer tokens */

/* The vocabulary of bytes plus some added tokens, made from its file. */
static carry_tokenizer *make_pieces(void) {
    static const char *const more[] = {"{\\\"", "\\\": ", "\\\", \\\"", "true", "tr",    "null}",   "}}",
                                       "]}",    "ab",     "abc",        "12",   "3.",    "\\u4e2d", "\\u4e2d\\u6587",
                                       ", ",    "[[",     "-0",         "e+",   " \\\"", "\\n  "};
    char *text;
    size_t length;
    carry_tokenizer *made;
    assert_ok(ctx, carry_tokenizer_write(ctx, bytes, &text, &length));
    const char *key = "\"added_tokens\"";
    char *at = strstr(text, key);
    assert_non_null(at);
    at = strchr(at, '[') + 1;
    char *grown = malloc(length + 8192);
    int used = (int)(at - text);
    memcpy(grown, text, (size_t)used);
    for (size_t i = 0; i < sizeof more / sizeof *more; i++) {
        used += sprintf(grown + used,
                        "{\"id\": %zu, \"content\": \"%s\", \"single_word\": false, \"lstrip\": false, \"rstrip\": "
                        "false, \"normalized\": false, \"special\": false},",
                        257 + i, more[i]);
    }
    memcpy(grown + used, at, strlen(at) + 1);
    assert_ok(ctx, carry_tokenizer_parse(ctx, &made, grown, strlen(grown), "pieces"));
    free(grown);
    free(text);
    return made;
}

static carry_cursor *open_cursor(const carry_tokenizer *tokenizer, carry_constraint_kind kind, const char *text) {
    carry_cursor *cursor;
    assert_ok(ctx, carry_cursor_new(ctx, &cursor, tokenizer, kind, text, strlen(text)));
    return cursor;
}

static bool matches(carry_constraint_kind kind, const char *constraint, const char *text, size_t length) {
    carry_cursor *cursor = open_cursor(bytes, kind, constraint);
    bool is_good = true;
    for (size_t i = 0; i < length && is_good; i++) {
        is_good = carry_cursor_take(cursor, (unsigned char)text[i]);
    }
    is_good = is_good && carry_cursor_is_whole(cursor);
    carry_cursor_free(cursor);
    return is_good;
}

typedef struct example {
    const char *constraint;
    const char *good[8], *bad[8];
} example;

static const example regexes[] = {
    {"abc", {"abc"}, {"", "ab", "abcd", "abd"}},
    {"^[a-c]+$", {"a", "cab"}, {"", "d", "ad"}},
    {"a{2,3}b?|c", {"aa", "aaab", "c"}, {"a", "aaaa", "cb", ""}},
    {"(ab)*", {"", "ab", "abab"}, {"a", "aba"}},
    {"[^x]{2}", {"ab", "\xc3\xa9z", "\xf0\x9f\x98\x80!"}, {"x", "ax", "a", "\xc3"}},
    {"\\d{4}-\\d\\d", {"2024-01"}, {"2024-1", "x024-01"}},
    {".+", {"a b", "\xe4\xb8\xad"}, {"", "a\nb"}},
    {"\\u00e9|\\x41|\\u{1F600}|\\uD83D\\uDE00b",
     {"\xc3\xa9", "A", "\xf0\x9f\x98\x80",
      "\xf0\x9f\x98\x80"
      "b"},
     {"B"}},
    {"(?:yes|no)(?<mark>!?)", {"yes", "no!"}, {"yes!!", "maybe"}},
    {"[]a-]+\\.", {"]a-."}, {"b.", "]"}},
    {"a{,2}{x}", {"{x}", "aa{x}"}, {"aaa{x}"}},
    {"\\S+\\s\\w+", {"a_! b_1"}, {"a b!", " b"}},
    {"(a|b)*a(a|b){12}", {"abbbbbbbbbbbb", "aaaaaaaaaaaaaaaaa"}, {"bbbbbbbbbbbbb", "a"}},
};

static const example schemas[] = {
    {"{\"type\": \"object\"}",
     {"{}", "{\"a\": 1}", "{\"a\":[1,-2.5e3,{\"b\":null}],\"c\":\"x\\n\\u00e9\\ud83d\\ude00\"}", "{\n  \"a\": true\n}"},
     {"[]", "{\"a\"}", "{\"a\":01}", "{\"a\":\"\\ud800\"}", "{,}", "{} ", "{\"a\":\"\n\"}"}},
    {"{\"type\": \"object\", \"properties\": {\"name\": {\"type\": \"string\"}, \"age\": {\"type\": \"integer\", "
     "\"minimum\": 0, \"maximum\": 150}, \"ok\": {\"type\": \"boolean\"}}, \"required\": [\"name\", \"ok\"], "
     "\"additionalProperties\": false}",
     {"{\"name\":\"x\",\"ok\":true}", "{\"name\": \"x\", \"age\": 150, \"ok\": false}",
      "{\"name\":\"\",\"age\":0,\"ok\":true}"},
     {"{}", "{\"name\":\"x\"}", "{\"name\":\"x\",\"age\":151,\"ok\":true}", "{\"name\":\"x\",\"ok\":1}",
      "{\"name\":\"x\",\"ok\":true,\"z\":1}", "{\"ok\":true,\"name\":\"x\"}"}},
    {"{\"type\": \"object\", \"properties\": {\"ab\": {\"type\": \"null\"}, \"ac\": {\"type\": \"null\"}}, "
     "\"additionalProperties\": {\"type\": \"integer\"}}",
     {"{}", "{\"ab\":null}", "{\"a\":1}", "{\"abc\":1}", "{\"ac\":null,\"\":0,\"\xc3\xa9\":2}"},
     {"{\"ab\":1}", "{\"a\":null}", "{\"ac\":null,\"ab\":3}", "{\"\\u0061b\":1}"}},
    {"{\"enum\": [1, \"a\\\"b\", null, [1, 2], {\"k\": \"v\"}, 2.5]}",
     {"1", "\"a\\\"b\"", "null", "[1, 2]", "{\"k\":\"v\"}", "2.5"},
     {"2", "\"a\"", "[1]", "{}"}},
    {"{\"type\": \"array\", \"items\": {\"type\": \"integer\"}, \"minItems\": 1, \"maxItems\": 3}",
     {"[1]", "[1, 2,3]"},
     {"[]", "[1,2,3,4]", "[\"a\"]"}},
    {"{\"type\": \"array\", \"prefixItems\": [{\"const\": \"x\"}, {\"type\": \"boolean\"}], \"items\": false}",
     {"[]", "[\"x\"]", "[\"x\", true]"},
     {"[\"x\", true, 1]", "[true]"}},
    {"{\"type\": \"string\", \"minLength\": 2, \"maxLength\": 3}",
     {"\"ab\"", "\"a\\u00e9\xc3\xa9\"", "\"\\ud83d\\ude00x\""},
     {"\"a\"", "\"abcd\""}},
    {"{\"type\": \"string\", \"pattern\": \"^[A-Z]{2}|x$\"}",
     {"\"AB\"", "\"ABc\"", "\"x\"", "\"a\\nx\""},
     {"\"A\"", "\"xy\"", "\"\""}},
    {"{\"type\": \"string\", \"pattern\": \"^a\\\"\\\\\\\\\\\\n$\"}",
     {"\"a\\\"\\\\\\n\""},
     {"\"a\"", "\"a\\\"\\\\n\""}},
    {"{\"type\": \"string\", \"format\": \"date-time\"}",
     {"\"2024-02-28T23:59:59Z\"", "\"1999-12-31T00:00:00.5+02:00\""},
     {"\"2024-02-30T00:00:00Z\"", "\"2024-01-01\""}},
    {"{\"type\": [\"integer\", \"null\"]}", {"0", "-17", "null"}, {"1.5", "01", "\"1\"", "-"}},
    {"{\"type\": \"integer\", \"exclusiveMinimum\": -13, \"maximum\": 1005}",
     {"-12", "-9", "0", "99", "1000", "1005"},
     {"-13", "-20", "1006", "1010", "2000", "-0"}},
    {"{\"type\": \"integer\", \"minimum\": 95}", {"95", "100", "12345"}, {"94", "9", "-95", "095"}},
    {"{\"type\": \"number\", \"minimum\": 0, \"maximum\": 1}",
     {"0", "0.5", "1", "0.999"},
     {"1.5", "-0.5", "2", "1.01"}},
    {"{\"type\": \"number\", \"minimum\": -2}", {"-2", "-1.5", "-0.25", "7.5"}, {"-2.5", "-3"}},
    {"{\"anyOf\": [{\"type\": \"boolean\"}, {\"$ref\": \"#/$defs/leaf\"}], \"$defs\": {\"leaf\": {\"const\": 7}}}",
     {"true", "7"},
     {"8", "null"}},
    {"{\"$ref\": \"#/definitions/tree\", \"definitions\": {\"tree\": {\"type\": \"object\", \"properties\": {\"v\": "
     "{\"type\": \"integer\"}, \"kids\": {\"type\": \"array\", \"items\": {\"$ref\": \"#/definitions/tree\"}}}, "
     "\"required\": [\"v\"]}}}",
     {"{\"v\":1}", "{\"v\":1,\"kids\":[{\"v\":2,\"kids\":[]},{\"v\":3}]}"},
     {"{\"kids\":[]}", "{\"v\":1,\"kids\":[1]}"}},
    {"{\"oneOf\": [{\"type\": \"object\", \"properties\": {\"t\": {\"const\": \"a\"}}, \"required\": [\"t\"]}, "
     "{\"type\": "
     "\"object\", \"properties\": {\"t\": {\"const\": \"b\"}, \"n\": {\"type\": \"integer\"}}, \"required\": [\"t\"]}, "
     "{\"type\": \"string\"}]}",
     {"{\"t\":\"a\"}", "{\"t\":\"b\",\"n\":4}", "\"s\""},
     {"{}", "{\"t\":\"a\",\"n\":4}"}},
};

#define JSON_CALL(name, arguments) "<tool_call>\n{\"name\": \"" name "\", \"arguments\": " arguments "}\n</tool_call>"
#define XML_CALL(name, parameters) "<tool_call>\n<function=" name ">\n" parameters "</function>\n</tool_call>"
#define VALUE(name, value) "<parameter=" name ">\n" value "\n</parameter>\n"
#define TWO_TOOLS                                                                                              \
    "\"tools\": [{\"name\": \"a\", \"parameters\": {\"type\": \"object\", \"properties\": {\"s\": {\"type\": " \
    "\"string\"}, \"n\": {\"type\": \"integer\"}, \"e\": {\"$ref\": \"#/$defs/e\"}}, \"required\": [\"s\"], "  \
    "\"$defs\": "                                                                                              \
    "{\"e\": {\"enum\": [\"x\", \"y z\"]}}}}, {\"name\": \"ping\"}]}"

static const example calls[] = {
    {"{\"form\": \"json\", " TWO_TOOLS,
     {JSON_CALL("ping", "{}"), JSON_CALL("a", "{\"s\": \"<b\"}"),
      JSON_CALL("a", "{\"s\": \"\", \"n\": 4, \"e\": \"y z\"}")},
     {"", JSON_CALL("b", "{}"), JSON_CALL("ping", "{\"s\": 1}"), JSON_CALL("a", "{}"), JSON_CALL("a", "{\"s\": 1}"),
      JSON_CALL("ping", "{}") "\n" JSON_CALL("ping", "{}"), "\n" JSON_CALL("ping", "{}"), JSON_CALL("ping", "{}") "."}},
    {"{\"form\": \"xml\", \"repeats\": true, \"breaks\": true, " TWO_TOOLS,
     {XML_CALL("ping", ""), XML_CALL("a", VALUE("s", "")),
      XML_CALL("a", VALUE("s", "a\n</p> <</parameter") VALUE("n", "-3")),
      XML_CALL("a", VALUE("s", "\"1\"\n") VALUE("e", "y z")), "\n\n" XML_CALL("ping", "") "\n" XML_CALL("ping", "")},
     {XML_CALL("b", ""), XML_CALL("a", ""), XML_CALL("a", VALUE("s", "") VALUE("n", "1.5")),
      XML_CALL("a", VALUE("s", "") VALUE("e", "\"x\"")), XML_CALL("a", VALUE("n", "1") VALUE("s", "")),
      XML_CALL("a", VALUE("s", "x</parameter>")), "\n\n\n" XML_CALL("ping", ""), XML_CALL("ping", VALUE("s", ""))}},
    {"{\"form\": \"xml\", \"tools\": [{\"name\": \"a\", \"parameters\": {\"required\": [\"b\"], "
     "\"additionalProperties\": {\"type\": [\"boolean\", \"null\"]}}}]}",
     {XML_CALL("a", VALUE("b", "true")), XML_CALL("a", VALUE("b", "null") VALUE("other_1", "false"))},
     {XML_CALL("a", ""), XML_CALL("a", VALUE("b", "yes")), XML_CALL("a", VALUE("b", "true") VALUE("1", "true"))}},
    {"{\"form\": \"xml\", \"tools\": [{\"name\": \"a\", \"parameters\": {\"properties\": {\"p\": {\"anyOf\": "
     "[{\"type\": "
     "\"integer\"}, {\"type\": \"string\", \"pattern\": \"^[ab]+$\"}, {\"const\": \"c<\"}]}, \"l\": {\"type\": "
     "\"string\", \"minLength\": 1, \"maxLength\": 2}}}}]}",
     {XML_CALL("a", ""), XML_CALL("a", VALUE("p", "ab")), XML_CALL("a", VALUE("p", "c<") VALUE("l", "\xc3\xa9-"))},
     {XML_CALL("a", VALUE("p", "1")), XML_CALL("a", VALUE("l", "")), XML_CALL("a", VALUE("l", "abc")),
      XML_CALL("a", VALUE("l", "<"))}},
};

static void check_examples(carry_constraint_kind kind, const example *examples, size_t count) {
    for (size_t i = 0; i < count; i++) {
        for (int k = 0; k < 8 && examples[i].good[k] != NULL; k++) {
            if (!matches(kind, examples[i].constraint, examples[i].good[k], strlen(examples[i].good[k]))) {
                fail_msg("%s refuses %s", examples[i].constraint, examples[i].good[k]);
            }
        }
        for (int k = 0; k < 8 && examples[i].bad[k] != NULL; k++) {
            if (matches(kind, examples[i].constraint, examples[i].bad[k], strlen(examples[i].bad[k]))) {
                fail_msg("%s accepts %s", examples[i].constraint, examples[i].bad[k]);
            }
        }
    }
}

static void test_matching_texts_are_accepted(void **unused) {
    (void)unused;
    check_examples(CARRY_CONSTRAINT_REGEX, regexes, sizeof regexes / sizeof *regexes);
    check_examples(CARRY_CONSTRAINT_SCHEMA, schemas, sizeof schemas / sizeof *schemas);
    check_examples(CARRY_CONSTRAINT_CALLS, calls, sizeof calls / sizeof *calls);
}

/* A walk of random allowed tokens, in which closing characters are likelier so that texts end. Returns the number of
   bytes, or 0 if the text did not end. */
static size_t walk(carry_constraint_kind kind, const char *constraint, uint64_t seed, char *text) {
    static const int32_t ends[] = {END};
    carry_cursor *cursor = open_cursor(pieces, kind, constraint);
    size_t length = 0;
    uint64_t step = 0;
    bool is_ended = false;
    while (!is_ended && length < LONGEST - 64) {
        uint32_t mask[WORDS];
        int64_t allowed[WORDS * 32];
        uint64_t count = 0;
        memset(mask, 0xff, sizeof mask);
        assert_true(carry_cursor_allow(cursor, ends, 1, mask, WORDS));
        assert_int_equal((mask[END / 32] >> END % 32 & 1u) != 0, carry_cursor_is_whole(cursor));
        for (int64_t i = 0; i < WORDS * 32; i++) {
            const bool closes = i == '"' || i == '}' || i == ']' || i == END;
            for (int k = 0; k < (closes ? 8 : 1) && (mask[i / 32] >> i % 32 & 1u) != 0; k++) {
                allowed[count < WORDS * 32 ? count++ : count - 1] = i;
            }
        }
        assert_true(count > 0);
        const int64_t token = allowed[carry_philox(seed, 0, step++).word[0] % count];
        is_ended = token == END;
        if (!is_ended) {
            length += carry_decode_token(pieces, token, false, text + length);
            assert_true(carry_cursor_take(cursor, token));
        }
    }
    carry_cursor_free(cursor);
    text[length] = '\0';
    return is_ended ? length : 0;
}

static void check_walks(carry_constraint_kind kind, const char *constraint) {
    static char text[LONGEST];
    for (uint64_t seed = 0; seed < 20; seed++) {
        const size_t length = walk(kind, constraint, seed, text);
        if (length == 0) {
            continue;
        }
        assert_true(matches(kind, constraint, text, length));
        if (kind == CARRY_CONSTRAINT_SCHEMA) {
            carry_json *root;
            assert_ok(ctx, carry_json_parse(ctx, &root, text, length, text));
            carry_json_free(root);
        }
    }
}

static void test_random_walks_give_matching_texts(void **unused) {
    (void)unused;
    for (size_t i = 0; i < sizeof regexes / sizeof *regexes; i++) {
        check_walks(CARRY_CONSTRAINT_REGEX, regexes[i].constraint);
    }
    for (size_t i = 0; i < sizeof schemas / sizeof *schemas; i++) {
        check_walks(CARRY_CONSTRAINT_SCHEMA, schemas[i].constraint);
    }
    for (size_t i = 0; i < sizeof calls / sizeof *calls; i++) {
        check_walks(CARRY_CONSTRAINT_CALLS, calls[i].constraint);
    }
}

/* A token is allowed exactly if a cursor accepts its bytes one by one. */
static void test_masks_equal_bytes(void **unused) {
    (void)unused;
    for (size_t i = 0; i < sizeof schemas / sizeof *schemas; i++) {
        const char *prefix = schemas[i].good[0];
        for (size_t length = 0; length <= strlen(prefix); length++) {
            carry_cursor *cursor = open_cursor(pieces, CARRY_CONSTRAINT_SCHEMA, schemas[i].constraint);
            uint32_t mask[WORDS];
            memset(mask, 0xff, sizeof mask);
            for (size_t k = 0; k < length; k++) {
                assert_true(carry_cursor_take(cursor, (unsigned char)prefix[k]));
            }
            assert_true(carry_cursor_allow(cursor, NULL, 0, mask, WORDS));
            for (int64_t id = 257; id < carry_tokenizer_size(pieces); id++) {
                char token[64];
                const size_t size = carry_decode_token(pieces, id, false, token);
                carry_cursor *other = open_cursor(bytes, CARRY_CONSTRAINT_SCHEMA, schemas[i].constraint);
                bool is_good = true;
                for (size_t k = 0; k < length; k++) {
                    (void)carry_cursor_take(other, (unsigned char)prefix[k]);
                }
                for (size_t k = 0; k < size && is_good; k++) {
                    is_good = carry_cursor_take(other, (unsigned char)token[k]);
                }
                assert_int_equal(is_good, mask[id / 32] >> id % 32 & 1u);
                carry_cursor_free(other);
            }
            carry_cursor_free(cursor);
        }
    }
}

static void test_deep_values_stay_within_the_bound(void **unused) {
    (void)unused;
    carry_cursor *cursor = open_cursor(bytes, CARRY_CONSTRAINT_SCHEMA, "true");
    int depth = 0;
    while (depth < 1000 && carry_cursor_take(cursor, '[')) {
        depth++;
    }
    carry_cursor_free(cursor);
    assert_in_range(depth, 32, 64);
    cursor = open_cursor(bytes, CARRY_CONSTRAINT_SCHEMA, "true");
    for (int i = 0; i < 2 * depth; i++) {
        assert_true(carry_cursor_take(cursor, i < depth ? '[' : ']'));
    }
    assert_true(carry_cursor_is_finished(cursor));
    carry_cursor_free(cursor);
}

typedef struct refusal {
    carry_constraint_kind kind;
    const char *text;
    carry_status status;
    const char *names; /* part of the message */
} refusal;

static const refusal refusals[] = {
    {CARRY_CONSTRAINT_REGEX, "(a", CARRY_EARGUMENT, "character 1: ( without )"},
    {CARRY_CONSTRAINT_REGEX, "a)", CARRY_EARGUMENT, "character 2"},
    {CARRY_CONSTRAINT_REGEX, "\xc3\xa9*+", CARRY_EUNSUPPORTED, "character 3"},
    {CARRY_CONSTRAINT_REGEX, "[z-a]", CARRY_EARGUMENT, "range"},
    {CARRY_CONSTRAINT_REGEX, "[a", CARRY_EARGUMENT, "[ without ]"},
    {CARRY_CONSTRAINT_REGEX, "*a", CARRY_EARGUMENT, "nothing to repeat"},
    {CARRY_CONSTRAINT_REGEX, "a{3,2}", CARRY_EARGUMENT, "{m,n}"},
    {CARRY_CONSTRAINT_REGEX, "(a)\\1", CARRY_EUNSUPPORTED, "references to groups"},
    {CARRY_CONSTRAINT_REGEX, "(?=a)b", CARRY_EUNSUPPORTED, "looking ahead"},
    {CARRY_CONSTRAINT_REGEX, "\\bword", CARRY_EUNSUPPORTED, "word boundaries"},
    {CARRY_CONSTRAINT_REGEX, "\\p{L}", CARRY_EUNSUPPORTED, "Unicode"},
    {CARRY_CONSTRAINT_REGEX, "(?i)a", CARRY_EUNSUPPORTED, "not supported"},
    {CARRY_CONSTRAINT_REGEX, "a^b", CARRY_EUNSUPPORTED, "^ and $"},
    {CARRY_CONSTRAINT_REGEX, "((a{1000}){1000}){1000}", CARRY_ESIZE, "nodes"},
    {CARRY_CONSTRAINT_REGEX, "\xff", CARRY_EARGUMENT, "UTF-8"},
    {CARRY_CONSTRAINT_REGEX, "\\", CARRY_EARGUMENT, "backslash"},
    {CARRY_CONSTRAINT_REGEX, "[^\\x00-\\u{10FFFF}]", CARRY_EARGUMENT, "no text can match"},
    {CARRY_CONSTRAINT_SCHEMA, "{", CARRY_EFORMAT, "JSON schema"},
    {CARRY_CONSTRAINT_SCHEMA, "3", CARRY_EARGUMENT, "expected a schema"},
    {CARRY_CONSTRAINT_SCHEMA, "false", CARRY_EARGUMENT, "no text can match"},
    {CARRY_CONSTRAINT_SCHEMA, "{\"type\": \"text\"}", CARRY_EARGUMENT, "expected null, boolean"},
    {CARRY_CONSTRAINT_SCHEMA, "{\"not\": {}}", CARRY_EUNSUPPORTED, "\"not\""},
    {CARRY_CONSTRAINT_SCHEMA, "{\"type\": \"array\", \"uniqueItems\": true}", CARRY_EUNSUPPORTED, "uniqueItems"},
    {CARRY_CONSTRAINT_SCHEMA, "{\"patternProperties\": {}}", CARRY_EUNSUPPORTED, "patternProperties"},
    {CARRY_CONSTRAINT_SCHEMA, "{\"$ref\": \"other.json\"}", CARRY_EUNSUPPORTED, "reference"},
    {CARRY_CONSTRAINT_SCHEMA, "{\"$ref\": \"#/nothing\"}", CARRY_EARGUMENT, "not found"},
    {CARRY_CONSTRAINT_SCHEMA, "{\"$ref\": \"#\"}", CARRY_EARGUMENT, "no text can match"},
    {CARRY_CONSTRAINT_SCHEMA, "{\"oneOf\": [{\"type\": \"integer\"}, {\"type\": \"number\"}]}", CARRY_EUNSUPPORTED,
     "oneOf"},
    {CARRY_CONSTRAINT_SCHEMA, "{\"type\": \"string\", \"maxLength\": 1000000}", CARRY_ESIZE, "nodes"},
    {CARRY_CONSTRAINT_SCHEMA, "{\"type\": \"string\", \"format\": \"idn\"}", CARRY_EUNSUPPORTED, "format"},
    {CARRY_CONSTRAINT_SCHEMA, "{\"type\": \"string\", \"pattern\": \"(\"}", CARRY_EARGUMENT, "pattern, character 1"},
    {CARRY_CONSTRAINT_SCHEMA, "{\"required\": [\"a\"], \"additionalProperties\": false}", CARRY_EARGUMENT, "required"},
    {CARRY_CONSTRAINT_SCHEMA,
     "{\"$ref\": \"#/$defs/a\", \"$defs\": {\"a\": {\"type\": \"object\", \"properties\": {\"n\": {\"$ref\": "
     "\"#/$defs/a\"}}, \"required\": [\"n\"]}}}",
     CARRY_EARGUMENT, "no text can match"},
};

static void test_wrong_constraints_are_refused_by_name(void **unused) {
    (void)unused;
    for (size_t i = 0; i < sizeof refusals / sizeof *refusals; i++) {
        carry_cursor *cursor;
        const refusal *r = &refusals[i];
        const carry_status status = carry_cursor_new(ctx, &cursor, bytes, r->kind, r->text, strlen(r->text));
        if (status != r->status || strstr(carry_ctx_error(ctx), r->names) == NULL) {
            fail_msg("%s: %s: %s", r->text, carry_status_name(status), carry_ctx_error(ctx));
        }
        assert_null(cursor);
    }
}

/* More states than the memory limit allows: they are dropped and computed again, and the text goes on. */
static void test_many_states_are_dropped_and_found_again(void **unused) {
    (void)unused;
    carry_cursor *cursor = open_cursor(bytes, CARRY_CONSTRAINT_REGEX, "(a|b)*a(a|b){14}c");
    for (int i = 0; i < 60000; i++) {
        assert_true(carry_cursor_take(cursor, 'a' + (int64_t)(carry_philox(7, 0, (uint64_t)i).word[0] & 1)));
    }
    for (int i = 0; i < 16; i++) {
        assert_true(carry_cursor_take(cursor, 'a'));
    }
    assert_true(carry_cursor_take(cursor, 'c'));
    assert_true(carry_cursor_is_finished(cursor));
    assert_false(carry_cursor_take(cursor, 'c'));
    carry_cursor_free(cursor);
}

static int print_walks(carry_constraint_kind kind, const char *constraint, int count) {
    static char text[LONGEST];
    for (int i = 0; i < count; i++) {
        const size_t length = walk(kind, constraint, (uint64_t)i + 1000, text);
        if (length == 0) {
            continue;
        }
        carry_json_text line = {0};
        carry_json_put_bytes(&line, text, length);
        (void)printf("%.*s\n", (int)line.length, line.bytes);
        carry_json_text_free(&line);
    }
    return 0;
}

int main(int argc, char **argv) {
    static const char *const added[] = {CARRY_END_OF_TEXT};
    ctx = support_ctx(1, NULL, NULL);
    assert_ok(ctx, carry_tokenizer_bytes(ctx, &bytes, added, 1));
    pieces = make_pieces();
    int failures = 0;
    if (argc == 4) {
        failures = print_walks(strcmp(argv[1], "regex") == 0 ? CARRY_CONSTRAINT_REGEX : CARRY_CONSTRAINT_SCHEMA,
                               argv[2], atoi(argv[3]));
    } else {
        const struct CMUnitTest tests[] = {
            cmocka_unit_test(test_matching_texts_are_accepted),
            cmocka_unit_test(test_random_walks_give_matching_texts),
            cmocka_unit_test(test_masks_equal_bytes),
            cmocka_unit_test(test_deep_values_stay_within_the_bound),
            cmocka_unit_test(test_wrong_constraints_are_refused_by_name),
            cmocka_unit_test(test_many_states_are_dropped_and_found_again),
        };
        failures = cmocka_run_group_tests(tests, NULL, NULL);
    }
    carry_tokenizer_close(pieces);
    carry_tokenizer_close(bytes);
    carry_ctx_free(ctx);
    return failures;
}
