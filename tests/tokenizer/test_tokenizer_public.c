/* carry/tokenizer.h: ids and texts equal those of the `tokenizers` package (golden/tokenizers) when they are written
   into memory of any capacity, and texts that are decoded token by token equal the whole. */
#include "support.h"

#include "carry/tokenizer.h"

#define GOLDEN CARRY_SOURCE "/tests/golden/tokenizers/"

enum { LINE = 65536, TEXT = 8192 };

static carry_ctx *ctx;

static size_t take_hex(const char *text, char *bytes) {
    size_t count = 0;
    for (unsigned value; sscanf(text, "%2x", &value) == 1; text += 2) {
        bytes[count++] = (char)value;
    }
    return count;
}

static int64_t take_ids(const char *text, int64_t *ids) {
    int64_t count = 0;
    int used;
    for (long long value; sscanf(text, "%lld%n", &value, &used) == 1; text += used) {
        ids[count++] = value;
    }
    return count;
}

static void check_decoding(const carry_tokenizer *tokenizer, const int64_t *ids, int64_t count, const char *wanted,
                           size_t length) {
    static char text[4 * TEXT], slow[4 * TEXT];
    carry_decoder *decoder;
    const char *piece;
    size_t got, some, at = 0;
    assert_ok(ctx, carry_tokenizer_decode(ctx, tokenizer, text, sizeof text, &got, ids, count, true));
    assert_int_equal(got, length);
    assert_memory_equal(text, wanted, length);
    assert_int_equal(text[length], 0);
    assert_ok(ctx, carry_decoder_new(ctx, &decoder, tokenizer, true));
    for (int64_t i = 0; i < count; i++) {
        assert_ok(ctx, carry_decoder_put(decoder, ids[i], &piece, &some));
        memcpy(slow + at, piece, some + 1);
        at += some;
    }
    assert_ok(ctx, carry_decoder_end(decoder, &piece, &some));
    memcpy(slow + at, piece, some + 1);
    assert_int_equal(at + some, length);
    assert_memory_equal(slow, text, length + 1);
    carry_decoder_free(decoder);
    if (length > 0) { /* truncated, with the whole length */
        memset(text, 0x5a, sizeof text);
        assert_ok(ctx, carry_tokenizer_decode(ctx, tokenizer, text, length, &got, ids, count, true));
        assert_int_equal(got, length);
        assert_memory_equal(text, wanted, length - 1);
        assert_int_equal(text[length - 1], 0);
        assert_int_equal(text[length], 0x5a);
        assert_ok(ctx, carry_tokenizer_decode(ctx, tokenizer, NULL, 0, &got, ids, count, true));
        assert_int_equal(got, length);
    }
}

static void check_text(const carry_tokenizer *tokenizer, const char *hex, char *expected) {
    static char text[TEXT], back[TEXT];
    static int64_t wanted[TEXT], ids[TEXT];
    char *middle = strstr(expected, " : ");
    int64_t count, all;
    assert_non_null(middle);
    *middle = '\0';
    const size_t length = take_hex(hex, text);
    const int64_t most = take_ids(expected, wanted);
    assert_ok(ctx, carry_tokenizer_encode(ctx, tokenizer, ids, TEXT, &count, text, length, NULL));
    assert_int_equal(count, most);
    assert_memory_equal(ids, wanted, (size_t)most * sizeof *ids);
    ids[most / 2] = -1;
    assert_ok(ctx, carry_tokenizer_encode(ctx, tokenizer, ids, most / 2, &all, text, length, NULL));
    assert_int_equal(all, most);
    assert_int_equal(ids[most / 2], -1);
    const bool is_same = middle[3] == '=';
    check_decoding(tokenizer, wanted, most, is_same ? text : back, is_same ? length : take_hex(middle + 3, back));
}

static void ids_and_texts_equal_those_of_tokenizers(void **state) {
    (void)state;
    static const char *const kinds[] = {"llama2", "llama3", "olmo2", "metaspace"};
    static char hex[LINE], expected[LINE];
    for (size_t k = 0; k < sizeof kinds / sizeof kinds[0]; k++) {
        char path[256];
        carry_tokenizer *tokenizer;
        (void)snprintf(path, sizeof path, GOLDEN "%s.json", kinds[k]);
        assert_ok(ctx, carry_tokenizer_open(ctx, &tokenizer, path));
        (void)snprintf(path, sizeof path, GOLDEN "%s.txt", kinds[k]);
        FILE *texts = fopen(GOLDEN "texts.txt", "r");
        FILE *results = fopen(path, "r");
        assert_true(texts != NULL && results != NULL);
        for (int line = 0; fgets(hex, sizeof hex, texts) != NULL; line++) {
            assert_non_null(fgets(expected, sizeof expected, results));
            if (line % support_cases(1, 8) == 0) {
                check_text(tokenizer, hex, expected);
            }
        }
        (void)fclose(texts);
        (void)fclose(results);
        carry_tokenizer_close(tokenizer);
    }
}

static carry_tokenizer *open_llama2(void) {
    carry_tokenizer *tokenizer;
    assert_ok(ctx, carry_tokenizer_open(ctx, &tokenizer, GOLDEN "llama2.json"));
    return tokenizer;
}

static void options_say_where_a_text_starts_and_ends(void **state) {
    (void)state;
    carry_tokenizer *tokenizer = open_llama2();
    int64_t whole[16], ids[16], count, some;
    assert_ok(ctx, carry_tokenizer_encode(ctx, tokenizer, whole, 16, &count, "ab", 2, NULL));
    assert_int_equal(whole[0], carry_tokenizer_find(tokenizer, "<s>"));
    carry_encode_options options = {CARRY_INIT(carry_encode_options), .is_bare = true};
    assert_ok(ctx, carry_tokenizer_encode(ctx, tokenizer, ids, 16, &some, "ab", 2, &options));
    assert_int_equal(some, count - 1);
    assert_memory_equal(ids, whole + 1, (size_t)some * sizeof *ids);
    options = (carry_encode_options){CARRY_INIT(carry_encode_options), .is_continuation = true};
    assert_ok(ctx, carry_tokenizer_encode(ctx, tokenizer, ids, 16, &some, "<s>", 3, &options));
    assert_int_equal(some, 1);
    assert_int_equal(ids[0], whole[0]);
    options.specials_as_text = true;
    assert_ok(ctx, carry_tokenizer_encode(ctx, tokenizer, ids, 16, &some, "<s>", 3, &options));
    assert_true(some >= 1 && ids[0] != whole[0]);
    carry_tokenizer_close(tokenizer);
}

static void special_tokens_are_left_out_unless_asked_for(void **state) {
    (void)state;
    carry_tokenizer *tokenizer = open_llama2();
    const int64_t start = carry_tokenizer_find(tokenizer, "<s>");
    int64_t ids[16], count;
    char text[16];
    size_t length;
    assert_true(carry_tokenizer_is_special(tokenizer, start));
    assert_false(carry_tokenizer_is_special(tokenizer, carry_tokenizer_size(tokenizer)));
    assert_ok(ctx, carry_tokenizer_encode(ctx, tokenizer, ids, 16, &count, "ab", 2, NULL));
    assert_ok(ctx, carry_tokenizer_decode(ctx, tokenizer, text, sizeof text, &length, ids, count, false));
    assert_string_equal(text, "ab");
    assert_int_equal(carry_tokenizer_find(tokenizer, "<nosuch>"), -1);
    carry_tokenizer_close(tokenizer);
}

static void mistakes_are_named(void **state) {
    (void)state;
    carry_tokenizer *tokenizer;
    const char *piece;
    char text[8];
    size_t length;
    int64_t id = -1;
    assert_true(carry_tokenizer_open(ctx, &tokenizer, "/nowhere") != CARRY_OK);
    assert_null(tokenizer);
    tokenizer = open_llama2();
    assert_refused(ctx, CARRY_ERANGE, "token -1",
                   carry_tokenizer_decode(ctx, tokenizer, text, sizeof text, &length, &id, 1, true));
    assert_refused(ctx, CARRY_EARGUMENT, "CARRY_INIT(carry_encode_options)",
                   carry_tokenizer_encode(ctx, tokenizer, &id, 1, &id, "a", 1, &(carry_encode_options){0}));
    carry_decoder *decoder;
    assert_ok(ctx, carry_decoder_new(ctx, &decoder, tokenizer, false));
    assert_refused(ctx, CARRY_ERANGE, "token",
                   carry_decoder_put(decoder, carry_tokenizer_size(tokenizer), &piece, NULL));
    assert_ok(ctx, carry_decoder_end(decoder, &piece, &length));
    assert_string_equal(piece, "");
    carry_decoder_free(decoder);
    carry_decoder_free(NULL);
    carry_tokenizer_close(tokenizer);
    carry_tokenizer_close(NULL);
}

static int open_ctx(void **state) {
    (void)state;
    ctx = support_ctx(1, NULL, NULL);
    return 0;
}

static int close_ctx(void **state) {
    (void)state;
    carry_ctx_free(ctx);
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ids_and_texts_equal_those_of_tokenizers),
        cmocka_unit_test(options_say_where_a_text_starts_and_ends),
        cmocka_unit_test(special_tokens_are_left_out_unless_asked_for),
        cmocka_unit_test(mistakes_are_named),
    };
    return cmocka_run_group_tests(tests, open_ctx, close_ctx);
}
