/* Tokenizers: ids and texts equal those that the `tokenizers` library gave for golden/tokenizer; any bytes decode to
   themselves after encoding; a damaged tokenizer.json is refused with an error message. */
#include "support.h"

#include <sys/stat.h>
#include <unistd.h>

#include "core/file.h"
#include "core/rng.h"
#include "tokenizer/pattern.h"
#include "tokenizer/tokenizer.h"
#include "tokenizer/utf8.h"

#define GOLDEN CARRY_SOURCE "/tests/golden/tokenizer"

static carry_ctx *ctx;

static carry_tokenizer *golden(void) {
    carry_tokenizer *tokenizer;
    assert_ok(ctx, carry_tokenizer_open(ctx, &tokenizer, GOLDEN));
    return tokenizer;
}

static uint32_t draw(uint64_t stream, uint64_t at, uint32_t below) {
    return carry_philox(11, stream, at).word[0] % below;
}

static size_t take_hex(const char *text, unsigned char *bytes) {
    size_t count = 0;
    for (unsigned value; text[0] != '\0' && sscanf(text, "%2x", &value) == 1 && text[0] != ' '; text += 2) {
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

static void check_encode(carry_encoder *encoder, const char *line, const char *expected) {
    static unsigned char bytes[4096];
    static uint32_t ids[4096];
    size_t length = take_hex(line, bytes);
    size_t count = take_ids(expected, ids);
    carry_ids got = {0};
    for (int turn = 0; turn < 2; turn++) { /* the second turn finds its pieces in the cache */
        got.count = 0;
        assert_ok(ctx, carry_encode(ctx, encoder, &got, bytes, length, CARRY_SPECIALS_FOUND));
        if (got.count != count || (count > 0 && memcmp(got.id, ids, count * sizeof *ids) != 0)) {
            fail_msg("other numbers for %s", line);
        }
    }
    carry_ids_free(&got);
}

static void check_decode(const carry_tokenizer *tokenizer, const char *line, const char *expected) {
    static unsigned char bytes[4096];
    static uint32_t ids[4096];
    static char text[16384];
    size_t count = take_ids(line, ids);
    size_t length = take_hex(expected, bytes);
    carry_unfold unfold = {0};
    size_t written = 0;
    for (size_t i = 0; i < count; i++) {
        size_t token_length;
        const char *token = carry_tokenizer_token(tokenizer, ids[i], &token_length);
        written += carry_unfold_bytes(&unfold, text + written, token, token_length);
        assert_true(unfold.count < CARRY_UTF8_LONGEST);
    }
    written += carry_unfold_end(&unfold, text + written);
    assert_int_equal(written, length);
    assert_memory_equal(text, bytes, length);
}

static void test_tokens_equal_those_of_tokenizers(void **state) {
    (void)state;
    carry_tokenizer *tokenizer = golden();
    carry_encoder *encoder;
    assert_ok(ctx, carry_encoder_new(ctx, &encoder, tokenizer));
    FILE *cases = fopen(GOLDEN "/cases.txt", "r");
    assert_non_null(cases);
    static char line[16384];
    int encoded = 0;
    int decoded = 0;
    while (fgets(line, sizeof line, cases) != NULL) {
        char *middle = strstr(line, " : ");
        if (line[0] == '#') {
            continue;
        }
        assert_non_null(middle);
        *middle = '\0';
        line[strcspn(line, "\n")] = '\0';
        if (strncmp(line, "encode ", 7) == 0) {
            check_encode(encoder, line + 7, middle + 3);
            encoded++;
        } else {
            check_decode(tokenizer, line + 7, middle + 3);
            decoded++;
        }
    }
    (void)fclose(cases);
    assert_true(encoded >= 70 && decoded >= 30);
    carry_encoder_free(encoder);
    carry_tokenizer_close(tokenizer);
}

/* Training on the same text gives the same tokenizer and the same file, however the text is split into blocks. */
static void test_training_equals_that_of_tokenizers(void **state) {
    (void)state;
    char *text;
    size_t length;
    assert_ok(ctx, carry_file_read(ctx, &text, &length, GOLDEN "/text.txt", 1 << 20));
    carry_tokenizer *theirs = golden();
    char *expected;
    size_t expected_length;
    assert_ok(ctx, carry_tokenizer_write(ctx, theirs, &expected, &expected_length));
    static const char *const added[] = {"<|endoftext|>", "<|pad|>"};
    for (size_t most = 500; most < 20000; most *= 6) {
        carry_trainer *trainer;
        carry_tokenizer *ours;
        carry_trainer_options options = {.size = 600, .added = added, .added_count = 2};
        assert_ok(ctx, carry_trainer_new(ctx, &trainer, &options));
        for (size_t at = 0; at < length;) {
            size_t cut = at + most < length ? carry_pattern_last_cut(text + at, most) : length - at;
            assert_true(cut > 0);
            assert_ok(ctx, carry_trainer_feed(ctx, trainer, text + at, cut));
            at += cut;
        }
        assert_ok(ctx, carry_trainer_finish(ctx, trainer, &ours));
        carry_trainer_free(trainer);
        char *written;
        size_t written_length;
        assert_ok(ctx, carry_tokenizer_write(ctx, ours, &written, &written_length));
        assert_string_equal(written, expected);
        assert_int_equal(carry_tokenizer_crc(ours), carry_tokenizer_crc(theirs));
        free(written);
        carry_tokenizer_close(ours);
    }
    free(expected);
    free(text);
    carry_tokenizer_close(theirs);
}

static void test_what_is_written_is_read_again(void **state) {
    (void)state;
    static const char *const added[] = {CARRY_END_OF_TEXT, "<a \"b\">", "caf\xC3\xA9"};
    carry_tokenizer *bytes;
    assert_ok(ctx, carry_tokenizer_bytes(ctx, &bytes, added, 3));
    assert_int_equal(carry_tokenizer_size(bytes), 259);
    assert_int_equal(carry_tokenizer_end(bytes), 256);
    assert_int_equal(carry_tokenizer_find(bytes, "<a \"b\">"), 257);
    assert_int_equal(carry_tokenizer_find(bytes, "<"), -1);
    char folder[] = "/tmp/carry-tokenizer-XXXXXX";
    char path[64];
    assert_non_null(mkdtemp(folder));
    (void)snprintf(path, sizeof path, "%s/tokenizer.json", folder);
    assert_ok(ctx, carry_tokenizer_save(ctx, bytes, path));
    carry_tokenizer *again;
    assert_ok(ctx, carry_tokenizer_open(ctx, &again, folder));
    assert_int_equal(carry_tokenizer_crc(again), carry_tokenizer_crc(bytes));
    for (int64_t id = 0; id < 259; id++) {
        size_t length;
        size_t length_again;
        const char *token = carry_tokenizer_token(bytes, id, &length);
        const char *token_again = carry_tokenizer_token(again, id, &length_again);
        assert_int_equal(length, length_again);
        assert_memory_equal(token, token_again, length);
        assert_int_equal(carry_tokenizer_is_special(again, id), id >= 256);
    }
    (void)unlink(path);
    (void)rmdir(folder);
    carry_tokenizer_close(again);
    carry_tokenizer_close(bytes);
}

/* Random bytes with stretches of text: any byte sequence is encoded and decoded to itself. */
static size_t random_bytes(uint64_t stream, unsigned char *bytes, size_t most) {
    size_t length = draw(stream, 0, (uint32_t)most);
    static const char *const parts[] = {"the ",   " and\n",        "'s",           "\xE6\xBC\xA2", "\xF0\x9F\x99\x82",
                                        "  \r\n", "<|endoftext|>", "\xE3\x80\x80", "\xC2\x85",     "<|pad|> "};
    for (size_t at = 0; at < length;) {
        uint32_t kind = draw(stream, at + 1, 14);
        if (kind < 10) {
            size_t part = strlen(parts[kind]);
            part = part < length - at ? part : length - at;
            memcpy(bytes + at, parts[kind], part);
            at += part;
        } else {
            bytes[at] = (unsigned char)draw(stream, at + 100000, 256);
            at++;
        }
    }
    return length;
}

static void test_any_bytes_come_back(void **state) {
    (void)state;
    carry_tokenizer *tokenizer = golden();
    carry_encoder *encoder;
    assert_ok(ctx, carry_encoder_new(ctx, &encoder, tokenizer));
    static unsigned char bytes[3000];
    for (uint64_t turn = 0; turn < 600; turn++) {
        size_t length = random_bytes(turn, bytes, turn % 10 == 0 ? sizeof bytes : 60);
        for (int specials = 0; specials < 2; specials++) {
            carry_ids ids = {0};
            char *text;
            size_t decoded;
            assert_ok(ctx, carry_encode(ctx, encoder, &ids, bytes, length, (carry_specials)specials));
            assert_ok(ctx, carry_decode(ctx, tokenizer, &text, &decoded, ids.id, ids.count, false));
            assert_int_equal(decoded, length);
            assert_memory_equal(text, bytes, length);
            for (size_t i = 0; i < ids.count && specials == CARRY_SPECIALS_AS_TEXT; i++) {
                assert_false(carry_tokenizer_is_special(tokenizer, ids.id[i]));
            }
            free(text);
            carry_ids_free(&ids);
        }
    }
    carry_encoder_free(encoder);
    carry_tokenizer_close(tokenizer);
}

/* Long pieces use the heap, short ones do not: both must merge by the definition. */
static void test_long_pieces_merge_as_short_ones(void **state) {
    (void)state;
    /* Overlaps and chains. */
    static const uint32_t merge[4][3] = {{'a', 'b', 256}, {'a', 'a', 257}, {256, 256, 258}, {257, 'a', 259}};
    carry_tokenizer *bytes;
    assert_ok(ctx, carry_tokenizer_bytes(ctx, &bytes, NULL, 0));
    char *written;
    size_t written_length;
    assert_ok(ctx, carry_tokenizer_write(ctx, bytes, &written, &written_length));
    char *end = strstr(written, ": 255\n"); /* behind the last byte's token */
    assert_non_null(end);
    char *json = malloc(written_length + 256);
    assert_non_null(json);
    (void)sprintf(
        json,
        "%.*s, \"ab\":256, \"aa\":257, \"abab\":258, \"aaa\":259}, \"merges\":[\"a b\",\"a a\",\"ab ab\",\"aa a\"]}}",
        (int)(end - written) + 5, written);
    carry_tokenizer *tokenizer;
    assert_ok(ctx, carry_tokenizer_parse(ctx, &tokenizer, json, strlen(json), "made"));
    carry_encoder *encoder;
    assert_ok(ctx, carry_encoder_new(ctx, &encoder, tokenizer));
    for (uint64_t turn = 0; turn < 400; turn++) {
        unsigned char piece[200];
        uint32_t id[200];
        size_t length = 1 + draw(turn, 0, 199);
        for (size_t i = 0; i < length; i++) {
            piece[i] = (unsigned char)(draw(turn, i + 1, 3) == 0 ? 'b' : 'a');
            id[i] = piece[i];
        }
        size_t count = length;
        for (int rank = 0; rank < 4;) { /* applies the first matching rule at its leftmost place, then starts again */
            size_t at = 0;
            while (at + 1 < count && (id[at] != merge[rank][0] || id[at + 1] != merge[rank][1])) {
                at++;
            }
            if (at + 1 >= count) {
                rank++;
                continue;
            }
            id[at] = merge[rank][2];
            memmove(id + at + 1, id + at + 2, (count - at - 2) * sizeof *id);
            count--;
            rank = 0;
        }
        carry_ids got = {0};
        assert_ok(ctx, carry_encode(ctx, encoder, &got, piece, length, CARRY_SPECIALS_FOUND));
        assert_int_equal(got.count, count);
        assert_memory_equal(got.id, id, count * sizeof *id);
        carry_ids_free(&got);
    }
    carry_encoder_free(encoder);
    carry_tokenizer_close(tokenizer);
    free(json);
    free(written);
    carry_tokenizer_close(bytes);
}

/* The two parts of a text that is cut at a good place have the tokens of the whole. */
static void test_cuts_change_no_tokens(void **state) {
    (void)state;
    static const char *const added[] = {CARRY_END_OF_TEXT, "<|a b c|>"};
    carry_tokenizer *tokenizer;
    carry_encoder *encoder;
    assert_ok(ctx, carry_tokenizer_bytes(ctx, &tokenizer, added, 2));
    assert_ok(ctx, carry_encoder_new(ctx, &encoder, tokenizer));
    static unsigned char bytes[400];
    int cuts = 0;
    for (uint64_t turn = 0; turn < 2000; turn++) {
        size_t length = random_bytes(turn, bytes, sizeof bytes);
        if (turn % 3 == 0 && length > 40) {
            memcpy(bytes + length - 30, "x <|a b c|> y", 13);
        }
        size_t known =
            length - draw(turn, 7, (uint32_t)(length / 3 + 1)); /* the bytes that were read when the cut was chosen */
        size_t cut = carry_tokenizer_last_cut(tokenizer, bytes, known);
        assert_true(cut < known || known == 0);
        carry_ids whole = {0};
        carry_ids parts = {0};
        assert_ok(ctx, carry_encode(ctx, encoder, &whole, bytes, length, CARRY_SPECIALS_FOUND));
        assert_ok(ctx, carry_encode(ctx, encoder, &parts, bytes, cut, CARRY_SPECIALS_FOUND));
        assert_ok(ctx, carry_encode(ctx, encoder, &parts, bytes + cut, length - cut, CARRY_SPECIALS_FOUND));
        assert_int_equal(parts.count, whole.count);
        assert_true(whole.count == 0 || memcmp(parts.id, whole.id, whole.count * sizeof *whole.id) == 0);
        cuts += cut > 0;
        carry_ids_free(&whole);
        carry_ids_free(&parts);
    }
    assert_true(cuts > 1000);
    carry_encoder_free(encoder);
    carry_tokenizer_close(tokenizer);
}

/* The pieces stay the same, too: bytes alone do not show where pieces end. */
static void test_cuts_change_no_pieces(void **state) {
    (void)state;
    carry_pattern *pattern;
    assert_ok(ctx, carry_pattern_new(ctx, &pattern));
    carry_cutter *cutter = carry_cutter_new(pattern);
    assert_non_null(cutter);
    static unsigned char bytes[400];
    for (uint64_t turn = 0; turn < 2000; turn++) {
        size_t length = random_bytes(5000 + turn, bytes, sizeof bytes);
        size_t cut = carry_pattern_last_cut(bytes, length);
        bool is_end = cut == 0;
        size_t total = 0;
        const unsigned char *piece;
        carry_cutter_start(cutter, bytes, length);
        for (size_t count; (count = carry_cutter_next(cutter, &piece)) > 0; total += count) {
            assert_ptr_equal(piece, bytes + total);
            is_end = is_end || total + count == cut;
        }
        assert_int_equal(total, length);
        assert_true(is_end);
    }
    carry_cutter_free(cutter);
    carry_pattern_free(pattern);
}

static void test_a_text_that_grows_is_utf8_at_every_moment(void **state) {
    (void)state;
    static unsigned char bytes[300];
    static char text[3 * 304];
    for (uint64_t turn = 0; turn < 500; turn++) {
        size_t length = random_bytes(9000 + turn, bytes, sizeof bytes);
        carry_unfold unfold = {0};
        size_t written = 0;
        for (size_t at = 0; at < length;) {
            size_t step = 1 + draw(turn, at, 5);
            step = step < length - at ? step : length - at;
            written += carry_unfold_bytes(&unfold, text + written, bytes + at, step);
            at += step;
        }
        written += carry_unfold_end(&unfold, text + written);
        size_t valid = 0; /* valid UTF-8 in the bytes must be in the text, in order */
        for (size_t at = 0; at < written;) {
            int used = carry_utf8_at((const unsigned char *)text + at, written - at);
            assert_true(used > 0);
            at += (size_t)used;
        }
        for (size_t at = 0; at < length;) {
            int used = carry_utf8_at(bytes + at, length - at);
            if (used > 0) {
                while (memcmp(text + valid, "\xEF\xBF\xBD", 3) == 0) {
                    valid += 3;
                }
                assert_memory_equal(text + valid, bytes + at, (size_t)used);
                valid += (size_t)used;
            }
            at += used > 0 ? (size_t)used : 1;
        }
    }
}

static void test_numbers_that_are_no_tokens_are_refused(void **state) {
    (void)state;
    carry_tokenizer *tokenizer = golden();
    char *text;
    size_t length;
    assert_refused(ctx, CARRY_ERANGE, "token 1 is 600",
                   carry_decode(ctx, tokenizer, &text, &length, (uint32_t[]){0, 600}, 2, false));
    assert_null(text);
    assert_null(carry_tokenizer_token(tokenizer, -1, &length));
    assert_ok(ctx, carry_decode(ctx, tokenizer, &text, &length, (uint32_t[]){0, 1, 0}, 3, true));
    assert_int_equal(length, 0);
    free(text);
    carry_tokenizer_close(tokenizer);
}

/* The golden file with one text replaced must be refused. */
static void expect_refusal(const char *file, const char *from, const char *to, carry_status status, const char *words) {
    const char *at = strstr(file, from);
    assert_non_null(at);
    char *damaged = malloc(strlen(file) + strlen(to) + 1);
    assert_non_null(damaged);
    (void)sprintf(damaged, "%.*s%s%s", (int)(at - file), file, to, at + strlen(from));
    carry_tokenizer *tokenizer;
    assert_refused(ctx, status, words, carry_tokenizer_parse(ctx, &tokenizer, damaged, strlen(damaged), "damaged"));
    assert_null(tokenizer);
    free(damaged);
}

static void test_what_is_not_honoured_is_refused_by_name(void **state) {
    (void)state;
    char *file;
    size_t length;
    assert_ok(ctx, carry_file_read(ctx, &file, &length, GOLDEN "/tokenizer.json", 1 << 20));
    static const struct {
        const char *from, *to;
        carry_status status;
        const char *words;
    } cases[] = {
        {"\"normalizer\":null", "\"normalizer\":{\"type\":\"NFKC\"}", CARRY_EUNSUPPORTED, "NFKC"},
        {"\"truncation\":null", "\"truncation\":{\"max_length\":5}", CARRY_EUNSUPPORTED, "truncation"},
        {"\"padding\":null", "\"padding\":{}", CARRY_EUNSUPPORTED, "padding"},
        {"\"pre_tokenizer\":{\"type\":\"ByteLevel\"", "\"pre_tokenizer\":{\"type\":\"Whitespace\"", CARRY_EUNSUPPORTED,
         "Whitespace"},
        {"\"add_prefix_space\":false", "\"add_prefix_space\":true", CARRY_EUNSUPPORTED, "add_prefix_space"},
        {"\"use_regex\":true", "\"use_regex\":7", CARRY_EUNSUPPORTED, "use_regex"},
        {"\"post_processor\":{\"type\":\"ByteLevel\"", "\"post_processor\":{\"type\":\"RobertaProcessing\"",
         CARRY_EUNSUPPORTED, "RobertaProcessing"},
        {"\"decoder\":{\"type\":\"ByteLevel\"", "\"decoder\":{\"type\":\"WordPiece\"", CARRY_EUNSUPPORTED, "WordPiece"},
        {"\"type\":\"BPE\"", "\"type\":\"Unigram\"", CARRY_EUNSUPPORTED, "Unigram"},
        {"\"dropout\":null", "\"dropout\":0.1", CARRY_EUNSUPPORTED, "dropout"},
        {"\"byte_fallback\":false", "\"byte_fallback\":1", CARRY_EUNSUPPORTED, "byte_fallback"},
        {"\"end_of_word_suffix\":null", "\"end_of_word_suffix\":\"</w>\"", CARRY_EUNSUPPORTED, "</w>"},
        {"\"lstrip\":false", "\"lstrip\":true", CARRY_EUNSUPPORTED, "lstrip"},
        {"\"vocab\":", "\"vocap\":", CARRY_EFORMAT, "no vocab"},
        {"\"merges\":", "\"merge\":", CARRY_EFORMAT, "no merges"},
        {"\"^\":63,", "\"^\":64,", CARRY_EFORMAT, "which another token has"},
        {"\"^\":63,", "", CARRY_EFORMAT, "number"},
        {"\"^\":63,", "\"^\":700000,", CARRY_EFORMAT, "number"},
        {"\"^\":63,", "\"^\":-4,", CARRY_EFORMAT, "number"},
        {"\"^\":63,", "\"^\":4.5,", CARRY_EFORMAT, "number"},
        {"\"^\":63,", "\"^^\":63,", CARRY_EFORMAT, "byte 0x5e"},
        {"\"^\":63,", "\"_\":63,", CARRY_EFORMAT, "twice"},
        {"\"merges\":[[\"", "\"merges\":[[\"qqq", CARRY_EFORMAT, "not in the vocab"},
        {"\"merges\":[", "\"merges\":[[\"^\",\"^\"],", CARRY_EFORMAT, "makes a token that is not in the vocab"},
        {"\"merges\":[", "\"merges\":[[\"#\"],", CARRY_EFORMAT, "does not name two tokens"},
        {"\"merges\":[", "\"merges\":[7,", CARRY_EFORMAT, "does not name two tokens"},
        {"\"id\":1,", "\"id\":0,", CARRY_EFORMAT, "another"},
        {"\"content\":\"<|pad|>\"", "\"content\":\"\"", CARRY_EFORMAT, "content"},
        {"\"added_tokens\":[", "\"added_tokens\":[{},", CARRY_EFORMAT, "content"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        expect_refusal(file, cases[i].from, cases[i].to, cases[i].status, cases[i].words);
    }
    for (size_t cut = 0; cut < length - 1; cut += 1 + cut / 9) { /* a file that ends too early, at many places */
        carry_tokenizer *tokenizer;
        assert_true(carry_tokenizer_parse(ctx, &tokenizer, file, cut, "cut") != CARRY_OK);
        assert_true(strlen(carry_ctx_error(ctx)) > 0);
    }
    free(file);
}

static void test_sizes_that_cannot_be_are_refused(void **state) {
    (void)state;
    carry_trainer *trainer;
    static const char *const twice[] = {"<a>", "<a>"};
    assert_refused(ctx, CARRY_EARGUMENT, "vocabulary of 255",
                   carry_trainer_new(ctx, &trainer, &(carry_trainer_options){.size = 255}));
    carry_tokenizer *tokenizer;
    assert_refused(ctx, CARRY_EARGUMENT, "given once", carry_tokenizer_bytes(ctx, &tokenizer, twice, 2));
    assert_ok(ctx, carry_trainer_new(ctx, &trainer, &(carry_trainer_options){.size = 300}));
    assert_ok(ctx, carry_trainer_finish(ctx, trainer, &tokenizer)); /* nothing was fed: the bytes alone */
    assert_int_equal(carry_tokenizer_size(tokenizer), 256);
    carry_tokenizer_close(tokenizer);
    carry_trainer_free(trainer);
    assert_refused(ctx, CARRY_ENOTFOUND, "cannot be read", carry_tokenizer_open(ctx, &tokenizer, "/nonexistent/t"));
}

int main(void) {
    ctx = support_ctx(1, NULL, NULL);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_tokens_equal_those_of_tokenizers),
        cmocka_unit_test(test_training_equals_that_of_tokenizers),
        cmocka_unit_test(test_what_is_written_is_read_again),
        cmocka_unit_test(test_any_bytes_come_back),
        cmocka_unit_test(test_long_pieces_merge_as_short_ones),
        cmocka_unit_test(test_cuts_change_no_tokens),
        cmocka_unit_test(test_cuts_change_no_pieces),
        cmocka_unit_test(test_a_text_that_grows_is_utf8_at_every_moment),
        cmocka_unit_test(test_numbers_that_are_no_tokens_are_refused),
        cmocka_unit_test(test_what_is_not_honoured_is_refused_by_name),
        cmocka_unit_test(test_sizes_that_cannot_be_are_refused),
    };
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    carry_ctx_free(ctx);
    return failed;
}
