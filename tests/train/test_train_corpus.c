/* Corpora: the tokens of windows and blocks are those of the whole text; a damaged or shrinking file is refused with a
   message; WikiText's words are counted as in the literature. */
#include "support.h"

#include <sys/stat.h>
#include <unistd.h>

#include "core/rng.h"
#include "train/data/corpus.h"
#include "tokenizer/wikitext.h"

static carry_ctx *ctx;
static char folder[64];
static char path_room[8][128];

static const char *path_of(int slot, const char *name) {
    (void)snprintf(path_room[slot], sizeof path_room[slot], "%s/%s", folder, name);
    return path_room[slot];
}

static void write_file(const char *path, const void *bytes, size_t length) {
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(bytes, 1, length, file), length);
    assert_int_equal(fclose(file), 0);
}

/* Words, some of them not ASCII, with single and double spaces and line ends. */
static size_t make_text(char *text, size_t most, uint64_t seed) {
    static const char *const words[] = {"the",  "of",           "caf\xC3\xA9", "\xE6\xBC\xA2\xE5\xAD\x97",
                                        "it's", "1234",         "\n\n",        " ",
                                        "\n",   "\xE3\x80\x80", "x,y",         "(z)"};
    size_t length = 0;
    for (uint64_t i = 0; length + 16 < most; i++) {
        carry_words draw = carry_philox(seed, 0, i);
        length += (size_t)sprintf(text + length, "%s%s", words[draw.word[0] % 12], draw.word[1] % 4 == 0 ? "" : " ");
    }
    return length;
}

static carry_tokenizer *golden(void) {
    carry_tokenizer *tokenizer;
    assert_ok(ctx, carry_tokenizer_open(ctx, &tokenizer, CARRY_SOURCE "/tests/golden/tokenizer"));
    return tokenizer;
}

static carry_ids encode_whole(const carry_tokenizer *tokenizer, const char *text, size_t length) {
    carry_encoder *encoder;
    carry_ids ids = {0};
    assert_ok(ctx, carry_encoder_new(ctx, &encoder, tokenizer));
    assert_ok(ctx, carry_encode(ctx, encoder, &ids, text, length, CARRY_SPECIALS_FOUND));
    carry_encoder_free(encoder);
    return ids;
}

static char text[200000];

static void test_windows_in_order_are_the_whole_text(void **state) {
    (void)state;
    carry_tokenizer *tokenizer = golden();
    const char *path = path_of(0, "whole.txt");
    static const int64_t windows[] = {4096, 10000, 70000, 1 << 24};
    for (size_t w = 0; w < sizeof windows / sizeof windows[0]; w++) {
        size_t length = make_text(text, sizeof text - 4999 * w, 5 + w);
        write_file(path, text, length);
        carry_ids whole = encode_whole(tokenizer, text, length);
        carry_corpus *corpus;
        carry_corpus_options options = {
            .tokenizer = tokenizer, .window_bytes = windows[w], .block_bytes = 4096, .in_order = true};
        assert_ok(ctx, carry_corpus_open(ctx, &corpus, &path, 1, &options));
        int64_t at = 0;
        int64_t count = 1;
        for (int64_t i = 0; i < count; i++) {
            assert_ok(ctx, carry_corpus_load(ctx, corpus, 0, i));
            count = carry_corpus_windows(corpus);
            for (int64_t j = 0; j < carry_corpus_tokens(corpus); j++) {
                if (j == 0 && i > 0) {
                    assert_int_equal(carry_corpus_token(corpus, 0), whole.id[at - 1]);
                    continue;
                }
                int64_t expected = at < (int64_t)whole.count ? (int64_t)whole.id[at] : carry_tokenizer_end(tokenizer);
                assert_int_equal(carry_corpus_token(corpus, j), expected);
                at++;
            }
        }
        assert_int_equal(at, whole.count + 1); /* and the end of the text */
        assert_true(w > 0 || count > 40);
        assert_refused(ctx, CARRY_ERANGE, "windows", carry_corpus_load(ctx, corpus, 0, count));
        carry_corpus_free(corpus);
        carry_ids_free(&whole);
    }
    carry_tokenizer_close(tokenizer);
}

static uint64_t sum_of_epoch(carry_corpus *corpus, int64_t epoch, int64_t *tokens, uint64_t *in_order) {
    uint64_t sum = 0;
    int64_t windows = 1;
    *tokens = 0;
    *in_order = 0;
    for (int64_t i = 0; i < windows; i++) {
        assert_ok(ctx, carry_corpus_load(ctx, corpus, epoch, i));
        windows = carry_corpus_windows(corpus);
        for (int64_t j = 0; j < carry_corpus_tokens(corpus); j++) {
            sum += (uint64_t)carry_corpus_token(corpus, j) + 1;
            *in_order = *in_order * 31 + (uint64_t)carry_corpus_token(corpus, j);
        }
        *tokens += carry_corpus_tokens(corpus);
    }
    return sum;
}

/* Each epoch has all tokens once, in another order; the same epoch always has the same order. */
static void test_epochs_are_other_orders_of_the_same_text(void **state) {
    (void)state;
    carry_tokenizer *tokenizer = golden();
    const char *path = path_of(0, "whole.txt");
    write_file(path, text, make_text(text, sizeof text, 3));
    carry_corpus *corpus;
    carry_corpus_options options = {.tokenizer = tokenizer, .window_bytes = 30000, .block_bytes = 4096, .seed = 9};
    assert_ok(ctx, carry_corpus_open(ctx, &corpus, &path, 1, &options));
    int64_t tokens[4];
    uint64_t sums[4];
    uint64_t orders[4];
    static const int64_t epochs[] = {0, 1, 2, 0};
    for (int i = 0; i < 4; i++) {
        sums[i] = sum_of_epoch(corpus, epochs[i], &tokens[i], &orders[i]);
        assert_int_equal(tokens[i], tokens[0]);
        assert_int_equal(sums[i], sums[0]);
    }
    assert_true(orders[0] != orders[1] && orders[1] != orders[2] && orders[0] == orders[3]);
    carry_corpus_free(corpus);
    carry_tokenizer_close(tokenizer);
}

static void test_folders_are_read_in_the_order_of_names(void **state) {
    (void)state;
    carry_tokenizer *tokenizer;
    static const char *const added[] = {CARRY_END_OF_TEXT};
    assert_ok(ctx, carry_tokenizer_bytes(ctx, &tokenizer, added, 1));
    const char *root = path_of(0, "tree");
    assert_int_equal(mkdir(root, 0755), 0);
    assert_int_equal(mkdir(path_of(1, "tree/b"), 0755), 0);
    write_file(path_of(2, "tree/c.txt"), "C", 1);
    write_file(path_of(3, "tree/a.txt"), "A", 1);
    write_file(path_of(4, "tree/b/x"), "B", 1);
    write_file(path_of(5, "tree/empty"), "", 0);
    write_file(path_of(6, "tree/.hidden"), "H", 1);
    assert_int_equal(symlink(root, path_of(7, "tree/b/loop")), 0);
    carry_corpus *corpus;
    assert_ok(ctx, carry_corpus_open(ctx, &corpus, &root, 1, &(carry_corpus_options){.tokenizer = tokenizer}));
    assert_ok(ctx, carry_corpus_load(ctx, corpus, 0, 0));
    static const int64_t expected[] = {'A', 256, 'B', 256, 'C', 256};
    assert_int_equal(carry_corpus_tokens(corpus), 6);
    for (int i = 0; i < 6; i++) {
        assert_int_equal(carry_corpus_token(corpus, i), expected[i]);
    }
    assert_int_equal(carry_text_files(carry_corpus_text(corpus)), 3);
    carry_corpus_free(corpus);
    carry_tokenizer_close(tokenizer);
}

static void test_bad_files_are_refused_with_an_error_message(void **state) {
    (void)state;
    carry_tokenizer *tokenizer = golden();
    carry_corpus_options options = {.tokenizer = tokenizer, .block_bytes = 4096, .window_bytes = 4096};
    carry_corpus *corpus;
    const char *path = path_of(0, "bad");
    assert_refused(ctx, CARRY_ENOTFOUND, "bad", carry_corpus_open(ctx, &corpus, &path, 1, &options));
    write_file(path, "", 0);
    assert_refused(ctx, CARRY_EFORMAT, "is empty", carry_corpus_open(ctx, &corpus, &path, 1, &options));
    write_file(path, "ELF\0\1\2", 6);
    assert_refused(ctx, CARRY_EFORMAT, "0 byte at place 3", carry_corpus_open(ctx, &corpus, &path, 1, &options));
    write_file(path, "\xff\xfe\xff\xfe\xff\xfe\xff\xfe\xff\xfe\xff\xfe\xff\xfe latin", 20);
    assert_refused(ctx, CARRY_EFORMAT, "not UTF-8", carry_corpus_open(ctx, &corpus, &path, 1, &options));
    options.take_binary = true;
    assert_ok(ctx, carry_corpus_open(ctx, &corpus, &path, 1, &options));
    carry_corpus_free(corpus);
    options.take_binary = false;
    const char *device = "/dev/null";
    assert_refused(ctx, CARRY_EIO, "neither", carry_corpus_open(ctx, &corpus, &device, 1, &options));
    const char *nothing = path_of(1, "nothing");
    assert_int_equal(mkdir(nothing, 0755), 0);
    assert_refused(ctx, CARRY_EFORMAT, "no file", carry_corpus_open(ctx, &corpus, &nothing, 1, &options));
    /* Binary data far after the start of a file is reported when it is reached. */
    size_t length = make_text(text, 40000, 1);
    text[30000] = '\0';
    write_file(path, text, length);
    options.in_order = true;
    assert_ok(ctx, carry_corpus_open(ctx, &corpus, &path, 1, &options));
    assert_ok(ctx, carry_corpus_load(ctx, corpus, 0, 0));
    assert_refused(ctx, CARRY_EFORMAT, "does not look like text", carry_corpus_load(ctx, corpus, 0, 7));
    assert_ok(ctx, carry_corpus_load(ctx, corpus, 0, 1)); /* the rest is still there */
    carry_corpus_free(corpus);
    carry_tokenizer_close(tokenizer);
}

static void test_a_file_that_shrinks_is_refused_with_an_error_message(void **state) {
    (void)state;
    carry_tokenizer *tokenizer = golden();
    const char *path = path_of(0, "shrinks.txt");
    write_file(path, text, make_text(text, 60000, 2));
    carry_corpus_options options = {
        .tokenizer = tokenizer, .block_bytes = 4096, .window_bytes = 8192, .in_order = true};
    carry_corpus *corpus;
    assert_ok(ctx, carry_corpus_open(ctx, &corpus, &path, 1, &options));
    assert_ok(ctx, carry_corpus_load(ctx, corpus, 0, 0));
    assert_int_equal(truncate(path, 20000), 0);
    assert_refused(ctx, CARRY_EIO, "shrank", carry_corpus_load(ctx, corpus, 0, 5));
    assert_int_equal(unlink(path), 0);
    assert_refused(ctx, CARRY_EIO, "cannot be read", carry_corpus_load(ctx, corpus, 0, 1));
    carry_corpus_free(corpus);
    carry_tokenizer_close(tokenizer);
}

/* A text without spaces can only be cut between characters: nothing is lost. */
static void test_a_text_without_spaces_is_whole(void **state) {
    (void)state;
    carry_tokenizer *tokenizer = golden();
    const char *path = path_of(0, "dense.txt");
    size_t length = 0;
    for (int i = 0; i < 20000; i++) {
        memcpy(text + length, "\xE6\xBC\xA2x", i % 7 == 0 ? 4 : 3);
        length += i % 7 == 0 ? 4 : 3;
    }
    write_file(path, text, length);
    carry_text *blocks;
    assert_ok(ctx, carry_text_open(ctx, &blocks, &path, 1,
                                   &(carry_text_options){.tokenizer = tokenizer, .block_bytes = 4096}));
    carry_bytes bytes = {0};
    for (int64_t i = 0; i < carry_text_blocks(blocks); i++) {
        bool ends;
        size_t before = bytes.count;
        assert_ok(ctx, carry_text_read(ctx, blocks, i, &bytes, &ends));
        assert_true(((unsigned char)bytes.at[before] & 0xC0) != 0x80);
        assert_int_equal(ends, i + 1 == carry_text_blocks(blocks));
    }
    assert_int_equal(bytes.count, length);
    assert_memory_equal(bytes.at, text, length);
    free(bytes.at);
    carry_text_free(blocks);
    carry_tokenizer_close(tokenizer);
}

static void test_words_of_wikitext_are_counted(void **state) {
    (void)state;
    const char *path = path_of(0, "some");
    int64_t words;
    bool is;
    static const char small[] = " \n = A name = \n \n one <unk> two\n";
    write_file(path, small, sizeof small - 1);
    assert_ok(ctx, carry_wikitext_words(ctx, path, &words));
    assert_int_equal(words, 4 + 3 + 4); /* = A name =, three words, four line ends */
    assert_ok(ctx, carry_wikitext_is(ctx, path, &is));
    assert_true(is);
    write_file(path, "a b", 3);
    assert_ok(ctx, carry_wikitext_words(ctx, path, &words));
    assert_int_equal(words, 3);
    assert_ok(ctx, carry_wikitext_is(ctx, path, &is));
    assert_false(is);
    assert_refused(ctx, CARRY_ENOTFOUND, "cannot be read", carry_wikitext_words(ctx, "/nonexistent", &words));
    double perplexity = carry_wikitext_perplexity(20.0, 10);
    assert_true(perplexity > 7.389 && perplexity < 7.3891); /* e^2 */
    const char *test = CARRY_SOURCE "/../shared/data/wikitext-103/wiki.test.tokens";
    if (access(test, R_OK) != 0) {
        print_message("skipped: wiki.test.tokens is not beside the checkout\n");
        return;
    }
    assert_ok(ctx, carry_wikitext_words(ctx, test, &words));
    assert_int_equal(words, 245569);
    assert_ok(ctx, carry_wikitext_is(ctx, test, &is));
    assert_true(is);
}

int main(void) {
    ctx = support_ctx(2, NULL, NULL);
    (void)snprintf(folder, sizeof folder, "/tmp/carry-corpus-XXXXXX");
    if (mkdtemp(folder) == NULL) {
        return 1;
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_windows_in_order_are_the_whole_text),
        cmocka_unit_test(test_epochs_are_other_orders_of_the_same_text),
        cmocka_unit_test(test_folders_are_read_in_the_order_of_names),
        cmocka_unit_test(test_bad_files_are_refused_with_an_error_message),
        cmocka_unit_test(test_a_file_that_shrinks_is_refused_with_an_error_message),
        cmocka_unit_test(test_a_text_without_spaces_is_whole),
        cmocka_unit_test(test_words_of_wikitext_are_counted),
    };
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    char remove[128];
    (void)snprintf(remove, sizeof remove, "rm -r '%s'", folder);
    failed += system(remove) != 0;
    carry_ctx_free(ctx);
    return failed;
}
