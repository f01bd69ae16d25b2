/* Tokenizers of the published kinds (Qwen, OLMo, GPT-NeoX, Llama 2 and 3, Mistral, ...): tokens and texts equal those
   that the `tokenizers` package gave (golden/tokenizers, made by make_tokenizers.py); a text decoded token by token
   equals the whole; a split text has the same tokens. */
#include "support.h"

#include "core/file.h"
#include "core/rng.h"
#include "tokenizer/tokenizer.h"
#include "tokenizer/tokenizer_internal.h"

#define GOLDEN CARRY_SOURCE "/tests/golden/tokenizers/"
#define LINE 65536
#define TEXT 8192

static carry_ctx *ctx;

static const char *const kinds[] = {"qwen2",  "qwen3_5", "olmo2",      "neox",    "llama3",    "gpt4o",
                                    "digits", "llama2",  "llama2_old", "mistral", "metaspace", "marks"};
#define KINDS (sizeof kinds / sizeof kinds[0])

static bool needs_nfc(const char *kind) {
    return strncmp(kind, "qwen", 4) == 0 || strcmp(kind, "neox") == 0;
}

/* NULL if this build cannot read it; then it must be refused by name. */
static carry_tokenizer *open_kind(const char *kind) {
    char path[256];
    (void)snprintf(path, sizeof path, GOLDEN "%s.json", kind);
    carry_tokenizer *tokenizer;
    if (needs_nfc(kind) && !carry_normal_has_nfc()) {
        assert_refused(ctx, CARRY_EUNSUPPORTED, "utf8proc", carry_tokenizer_open(ctx, &tokenizer, path));
        return NULL;
    }
    assert_ok(ctx, carry_tokenizer_open(ctx, &tokenizer, path));
    return tokenizer;
}

static size_t take_hex(const char *text, unsigned char *bytes) {
    size_t count = 0;
    for (unsigned value; sscanf(text, "%2x", &value) == 1; text += 2) {
        bytes[count++] = (unsigned char)value;
    }
    return count;
}

static size_t take_ids(const char *text, uint32_t *ids) {
    size_t count = 0;
    int used;
    for (unsigned value; sscanf(text, "%u%n", &value, &used) == 1; text += used) {
        ids[count++] = value;
    }
    return count;
}

static void encode_whole(carry_encoder *encoder, const carry_tokenizer *tokenizer, carry_ids *ids, const void *text,
                         size_t length) {
    ids->count = 0;
    assert_ok(ctx, carry_encode_start(ctx, tokenizer, ids));
    assert_ok(ctx, carry_encode(ctx, encoder, ids, text, length, CARRY_SPECIALS_FOUND));
    assert_ok(ctx, carry_encode_end(ctx, tokenizer, ids));
}

/* The text of all ids, decoded at once. */
static size_t decode_whole(const carry_tokenizer *tokenizer, const carry_ids *ids, char *shown) {
    char *text;
    size_t length;
    assert_ok(ctx, carry_decode(ctx, tokenizer, &text, &length, ids->id, ids->count, false));
    carry_unfold unfold = {0};
    size_t written = carry_unfold_bytes(&unfold, shown, text, length);
    written += carry_unfold_end(&unfold, shown + written);
    free(text);
    return written;
}

/* And as tokens come. */
static size_t decode_slowly(const carry_tokenizer *tokenizer, const carry_ids *ids, char *shown) {
    static char token[TEXT];
    carry_unfold unfold = {0};
    size_t written = 0;
    for (size_t i = 0; i < ids->count; i++) {
        size_t length = carry_decode_token(tokenizer, ids->id[i], i == 0, token);
        written += carry_unfold_bytes(&unfold, shown + written, token, length);
    }
    return written + carry_unfold_end(&unfold, shown + written);
}

static void check_text(const char *kind, const carry_tokenizer *tokenizer, carry_encoder *encoder, const char *hex,
                       char *expected) {
    static unsigned char text[TEXT], back[TEXT];
    static uint32_t ids[TEXT];
    static char shown[4 * TEXT], slow[4 * TEXT];
    char *middle = strstr(expected, " : ");
    assert_non_null(middle);
    *middle = '\0';
    size_t length = take_hex(hex, text);
    size_t count = take_ids(expected, ids);
    carry_ids got = {0};
    for (int turn = 0; turn < 2; turn++) { /* the second turn finds its pieces in the cache */
        encode_whole(encoder, tokenizer, &got, text, length);
        if (got.count != count || (count > 0 && memcmp(got.id, ids, count * sizeof *ids) != 0)) {
            fail_msg("%s: other tokens for %s", kind, hex);
        }
    }
    size_t decoded = middle[3] == '=' ? length : take_hex(middle + 3, back);
    size_t written = decode_whole(tokenizer, &got, shown);
    if (written != decoded || memcmp(shown, middle[3] == '=' ? text : back, decoded) != 0) {
        fail_msg("%s: other text for the tokens of %s", kind, hex);
    }
    assert_int_equal(decode_slowly(tokenizer, &got, slow), written);
    assert_memory_equal(slow, shown, written);
    carry_ids_free(&got);
}

static void test_tokens_and_texts_equal_those_of_tokenizers(void **state) {
    (void)state;
    static char hex[LINE], expected[LINE];
    for (size_t k = 0; k < KINDS; k++) {
        carry_tokenizer *tokenizer = open_kind(kinds[k]);
        if (tokenizer == NULL) {
            continue;
        }
        carry_encoder *encoder;
        assert_ok(ctx, carry_encoder_new(ctx, &encoder, tokenizer));
        char path[256];
        (void)snprintf(path, sizeof path, GOLDEN "%s.txt", kinds[k]);
        FILE *texts = fopen(GOLDEN "texts.txt", "r");
        FILE *results = fopen(path, "r");
        assert_true(texts != NULL && results != NULL);
        int lines = 0;
        for (; fgets(hex, sizeof hex, texts) != NULL; lines++) {
            hex[strcspn(hex, "\n")] = '\0';
            assert_non_null(fgets(expected, sizeof expected, results));
            check_text(kinds[k], tokenizer, encoder, hex, expected);
        }
        assert_true(lines > 100);
        (void)fclose(texts);
        (void)fclose(results);
        carry_encoder_free(encoder);
        carry_tokenizer_close(tokenizer);
    }
}

static size_t random_bytes(uint64_t stream, unsigned char *bytes, size_t most) {
    static const char *const parts[] = {"the ",   " and\n",       "'s",        "\xE6\xBC\xA2", "\xF0\x9F\x99\x82",
                                        "  \r\n", "<s>",          "\t",        "\xE3\x80\x80", "<|im_end|> ",
                                        " ",      "\xE2\x96\x81", "e\xCC\x81", ". ",           "7"};
    uint32_t length = carry_philox(3, stream, 0).word[0] % (uint32_t)most;
    for (size_t at = 0; at < length;) {
        uint32_t kind = carry_philox(3, stream, at + 1).word[0] % 18;
        size_t part = kind < 15 ? strlen(parts[kind]) : 1;
        part = part < length - at ? part : length - at;
        if (kind < 15) {
            memcpy(bytes + at, parts[kind], part);
        } else {
            bytes[at] = (unsigned char)carry_philox(3, stream, at + 1).word[1];
        }
        at += part;
    }
    return length;
}

static void test_cuts_change_no_tokens(void **state) {
    (void)state;
    static unsigned char bytes[300];
    for (size_t k = 0; k < KINDS; k++) {
        carry_tokenizer *tokenizer = open_kind(kinds[k]);
        if (tokenizer == NULL) {
            continue;
        }
        carry_encoder *encoder;
        assert_ok(ctx, carry_encoder_new(ctx, &encoder, tokenizer));
        int cuts = 0;
        for (uint64_t turn = 0; turn < 600; turn++) {
            size_t length = random_bytes(turn, bytes, sizeof bytes);
            size_t cut = carry_tokenizer_last_cut(tokenizer, bytes, length - length / 4);
            carry_ids whole = {0};
            carry_ids parts = {0};
            assert_ok(ctx, carry_encode(ctx, encoder, &whole, bytes, length, CARRY_SPECIALS_FOUND));
            assert_ok(ctx, carry_encode(ctx, encoder, &parts, bytes, cut, CARRY_SPECIALS_FOUND));
            assert_ok(ctx, carry_encode(ctx, encoder, &parts, bytes + cut, length - cut,
                                        cut > 0 ? CARRY_TEXT_GOES_ON : CARRY_SPECIALS_FOUND));
            if (parts.count != whole.count ||
                (whole.count > 0 && memcmp(parts.id, whole.id, whole.count * sizeof *whole.id) != 0)) {
                fail_msg("%s: a cut at %zu of text %llu changes its tokens", kinds[k], cut, (unsigned long long)turn);
            }
            cuts += cut > 0;
            carry_ids_free(&whole);
            carry_ids_free(&parts);
        }
        /* No cuts for an unknown pattern, nor where whole pieces are looked up (mistral). */
        assert_true(cuts > 300 || strcmp(kinds[k], "gpt4o") == 0 || strcmp(kinds[k], "mistral") == 0);
        carry_encoder_free(encoder);
        carry_tokenizer_close(tokenizer);
    }
}

/* Bytes that are not UTF-8 have tokens, and decode to the same bytes if the tokenizer does not normalize and the text
   contains none of its marks. */
static void test_any_bytes_come_back(void **state) {
    (void)state;
    static const char *const kept[] = {"olmo2", "llama3", "gpt4o", "digits", "llama2", "marks"};
    for (size_t k = 0; k < sizeof kept / sizeof kept[0]; k++) {
        carry_tokenizer *tokenizer = open_kind(kept[k]);
        carry_encoder *encoder;
        assert_ok(ctx, carry_encoder_new(ctx, &encoder, tokenizer));
        for (uint64_t turn = 0; turn < 300; turn++) {
            unsigned char bytes[64];
            size_t length = 1 + carry_philox(5, turn, 0).word[0] % 63;
            for (size_t i = 0; i < length; i++) {
                carry_words words = carry_philox(5, turn, i + 1);
                bytes[i] = (unsigned char)(words.word[0] % 3 == 0 ? 'a' + words.word[1] % 26 : words.word[1]);
                bytes[i] = bytes[i] == 0xE2 ? 0xE3 : bytes[i];
            }
            carry_ids ids = {0};
            char *text;
            size_t decoded;
            assert_ok(ctx, carry_encode(ctx, encoder, &ids, bytes, length, CARRY_SPECIALS_AS_TEXT));
            assert_ok(ctx, carry_decode(ctx, tokenizer, &text, &decoded, ids.id, ids.count, false));
            assert_int_equal(decoded, length);
            assert_memory_equal(text, bytes, length);
            free(text);
            carry_ids_free(&ids);
        }
        carry_encoder_free(encoder);
        carry_tokenizer_close(tokenizer);
    }
}

/* A file with parts that this code does not write itself is kept as it is. */
static void test_what_was_read_is_written_byte_for_byte(void **state) {
    (void)state;
    for (size_t k = 0; k < KINDS; k++) {
        carry_tokenizer *tokenizer = open_kind(kinds[k]);
        if (tokenizer == NULL) {
            continue;
        }
        char path[256];
        char *file;
        char *written;
        size_t length;
        size_t written_length;
        (void)snprintf(path, sizeof path, GOLDEN "%s.json", kinds[k]);
        assert_ok(ctx, carry_file_read(ctx, &file, &length, path, 1 << 20));
        assert_ok(ctx, carry_tokenizer_write(ctx, tokenizer, &written, &written_length));
        assert_int_equal(written_length, length);
        assert_memory_equal(written, file, length);
        free(file);
        free(written);
        carry_tokenizer_close(tokenizer);
    }
}

/* The file of a kind with one text replaced must be refused. */
static void expect_refusal(const char *kind, const char *from, const char *to, const char *words) {
    char path[256];
    char *file;
    size_t length;
    (void)snprintf(path, sizeof path, GOLDEN "%s.json", kind);
    assert_ok(ctx, carry_file_read(ctx, &file, &length, path, 1 << 20));
    char *at = strstr(file, from);
    assert_non_null(at);
    char *damaged = malloc(length + strlen(to) + 1);
    assert_non_null(damaged);
    (void)sprintf(damaged, "%.*s%s%s", (int)(at - file), file, to, at + strlen(from));
    carry_tokenizer *tokenizer;
    carry_status status = carry_tokenizer_parse(ctx, &tokenizer, damaged, strlen(damaged), "damaged");
    assert_true(status == CARRY_EUNSUPPORTED || status == CARRY_EFORMAT);
    if (strstr(carry_ctx_error(ctx), words) == NULL) {
        fail_msg("%s with %s: '%s' is not in: %s", kind, to, words, carry_ctx_error(ctx));
    }
    assert_null(tokenizer);
    free(damaged);
    free(file);
}

static void test_parts_that_are_not_supported_are_named(void **state) {
    (void)state;
    static const char *const cases[][4] = {
        {"olmo2", "\"normalizer\":null", "\"normalizer\":{\"type\":\"NFKC\"}", "NFKC"},
        {"olmo2", "\"Removed\"", "\"MergedWithNext\"", "MergedWithNext"},
        {"olmo2", "\"invert\":true", "\"invert\":false", "Removed"},
        {"olmo2", "(?i:'s", "(?<=x)(?i:'s", "a group other than"},
        {"olmo2", "(?i:'s", "^(?i:'s", "an anchor"},
        {"olmo2", "(?i:'s", "\\\\w+|(?i:'s", "an escape other than"},
        {"olmo2", "(?i:'s", "[a[b]]|(?i:'s", "brackets inside brackets"},
        {"olmo2", "(?i:'s", "a{2}+|(?i:'s", "not a plain count"},
        {"olmo2", "(?i:'s", "\\\\p{Han}|(?i:'s", "not a general category"},
        {"olmo2", "(?i:'s", "(((?i:'s", "PCRE2 refuses"},
        {"olmo2", "(?i:'s", "(a*)*b|(?i:'s", "a group that is repeated"},
        {"olmo2", "\"decoder\":{\"type\":\"ByteLevel\"", "\"decoder\":{\"type\":\"CTC\"", "CTC"},
        {"digits", "\"type\":\"Digits\"", "\"type\":\"Punctuation\"", "Punctuation"},
        {"llama2", "\"type\":\"Prepend\"", "\"type\":\"Lowercase\"", "Lowercase"},
        {"llama2", "{\"String\":\" \"}", "{\"Regex\":\" +\"}", "Replace"},
        {"llama2", "\"byte_fallback\":true", "\"byte_fallback\":false", "byte_fallback"},
        {"llama2", "\"<0x41>\"", "\"<0x4x>\"", "byte 0x41"},
        {"llama2", "{\"type\":\"Fuse\"},", "", "Strip"},
        {"llama2", "\"stop\":0", "\"stop\":1", "stop"},
        {"llama2", "\"ids\":[1]", "\"ids\":[99999]", "not a token"},
        {"llama2", "{\"id\":\"A\"", "{\"id\":\"B\"", "template"},
        {"llama2", "\"special_tokens\":", "\"special\":", "special_tokens"},
        {"mistral", "\"prepend_scheme\":\"first\"", "\"prepend_scheme\":\"last\"", "last"},
        {"mistral", "\"replacement\":\"\xE2\x96\x81\"", "\"replacement\":\"ab\"", "replacement"},
        {"llama3", "\"type\":\"TemplateProcessing\"", "\"type\":\"BertProcessing\"", "BertProcessing"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        expect_refusal(cases[i][0], cases[i][1], cases[i][2], cases[i][3]);
    }
}

static carry_buffer nfc(const char *text, size_t length) {
    carry_buffer made = {0};
    assert_true(carry_nfc_put(&made, (const unsigned char *)text, length, NULL));
    return made;
}

/* Marks of three classes after a letter, in an order by the seed that keeps the order within each class. */
static size_t put_marks(char *text, uint64_t seed) {
    static const char *const marks[3][4] = {{"\xcc\x81", "\xcc\x88", "\xcc\x82", "\xcd\x84"},  /* 230; one decomposes */
                                            {"\xcc\xa3", "\xcc\xad", "\xcc\xb1", "\xcc\xa4"},  /* 220 */
                                            {"\xcc\xa7", "\xcc\xa8", "\xcc\xa7", "\xcc\xa8"}}; /* 202 */
    const carry_words chosen = carry_philox(7, seed / 16, 0);
    const size_t longest = chosen.word[0] % 24;
    size_t used[3] = {0};
    size_t length = (size_t)sprintf(text, "x\xff%s", chosen.word[1] % 2 == 0 ? "e" : "\xc3\xa4");
    for (uint64_t step = 0; used[0] + used[1] + used[2] < 3 * longest; step++) {
        const size_t class = carry_philox(seed, 1, step).word[0] % 3;
        if (used[class] < longest) {
            length += (size_t)sprintf(text + length, "%s", marks[class][(chosen.word[2] >> used[class]) % 4]);
            used[class]++;
        }
    }
    return length + (size_t)sprintf(text + length, "z");
}

static void test_nfc_does_not_depend_on_the_order_of_marks(void **unused) {
    (void)unused;
    if (!carry_normal_has_nfc()) {
        skip();
    }
    carry_buffer first = {0};
    for (uint64_t seed = 0; seed < 1600; seed++) {
        char text[512];
        carry_buffer made = nfc(text, put_marks(text, seed));
        carry_buffer again = nfc(made.at, made.count);
        assert_int_equal(made.count, again.count);
        assert_memory_equal(made.at, again.at, made.count);
        free(again.at);
        if (seed % 16 == 0) {
            free(first.at);
            first = made;
            continue;
        }
        assert_int_equal(made.count, first.count);
        assert_memory_equal(made.at, first.at, made.count);
        free(made.at);
    }
    free(first.at);
    static const char *const pairs[][2] = {{"e\xcc\x82\xcc\xa3", "\xe1\xbb\x87"},
                                           {"\xe1\x84\x80\xe1\x85\xa1\xe1\x86\xa8", "\xea\xb0\x81"},
                                           {"\xe2\x84\xab", "\xc3\x85"}};
    for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++) {
        carry_buffer made = nfc(pairs[i][0], strlen(pairs[i][0]));
        assert_int_equal(made.count, strlen(pairs[i][1]));
        assert_memory_equal(made.at, pairs[i][1], made.count);
        free(made.at);
    }
}

/* Two million marks, the higher class first: an exchange of neighbours would take 10^12 steps. The parts that a long
   text is cut into change nothing. */
static void test_long_runs_of_marks_take_linear_time(void **unused) {
    enum { MARKS = 1000000, PAIRS = 100000 };
    (void)unused;
    if (!carry_normal_has_nfc()) {
        skip();
    }
    char *text = malloc(4 * MARKS + 1);
    text[0] = 'q';
    for (size_t i = 0; i < 2 * MARKS; i++) {
        memcpy(text + 1 + 2 * i, i < MARKS ? "\xcc\x81" : "\xcc\xa3", 2);
    }
    carry_buffer made = nfc(text, 4 * MARKS + 1);
    assert_int_equal(made.count, 4 * MARKS + 1);
    for (size_t i = 0; i < 2 * MARKS; i++) {
        assert_memory_equal(made.at + 1 + 2 * i, i < MARKS ? "\xcc\xa3" : "\xcc\x81", 2);
    }
    free(made.at);
    for (size_t i = 0; i < PAIRS; i++) {
        memcpy(text + 3 * i, "e\xcc\x81", 3);
    }
    made = nfc(text, (size_t)3 * PAIRS);
    assert_int_equal(made.count, 2 * PAIRS);
    for (size_t i = 0; i < PAIRS; i++) {
        assert_memory_equal(made.at + 2 * i, "\xc3\xa9", 2);
    }
    free(made.at);
    free(text);
}

static void test_encoding_can_be_cancelled(void **unused) {
    static const char *const added[] = {CARRY_END_OF_TEXT};
    static atomic_bool is_cancelled;
    carry_tokenizer *tokenizer;
    carry_encoder *encoder;
    carry_ids ids = {0};
    (void)unused;
    assert_ok(ctx, carry_tokenizer_bytes(ctx, &tokenizer, added, 1));
    assert_ok(ctx, carry_encoder_new(ctx, &encoder, tokenizer));
    carry_encoder_set_cancel(encoder, &is_cancelled);
    assert_ok(ctx, carry_encode(ctx, encoder, &ids, "some text", 9, CARRY_SPECIALS_FOUND));
    atomic_store(&is_cancelled, true);
    assert_int_equal(carry_encode(ctx, encoder, &ids, "some text", 9, CARRY_SPECIALS_FOUND), CARRY_EINTERRUPTED);
    atomic_store(&is_cancelled, false);
    assert_ok(ctx, carry_encode(ctx, encoder, &ids, "some text", 9, CARRY_SPECIALS_FOUND));
    carry_ids_free(&ids);
    carry_encoder_free(encoder);
    carry_tokenizer_close(tokenizer);
}

int main(void) {
    ctx = support_ctx(1, NULL, NULL);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_tokens_and_texts_equal_those_of_tokenizers),
        cmocka_unit_test(test_cuts_change_no_tokens),
        cmocka_unit_test(test_any_bytes_come_back),
        cmocka_unit_test(test_what_was_read_is_written_byte_for_byte),
        cmocka_unit_test(test_parts_that_are_not_supported_are_named),
        cmocka_unit_test(test_nfc_does_not_depend_on_the_order_of_marks),
        cmocka_unit_test(test_long_runs_of_marks_take_linear_time),
        cmocka_unit_test(test_encoding_can_be_cancelled),
    };
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    carry_ctx_free(ctx);
    return failed;
}
