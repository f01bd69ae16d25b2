/* Batches: the parts of all ranks together equal the batch of one rank; a position is all that resuming needs; in one
   pass every label counts once. */
#include "support.h"

#include <unistd.h>

#include "train/data/batches.h"
#include "train/data/corpus.h"
#include "train/data/shuffle.h"
#include "train/data/tasks.h"

static carry_ctx *ctx;
static char path_room[64];
static const char *path = path_room;
static carry_tokenizer *tokenizer;

#define TEXT_BYTES 30000

static void write_text(void) {
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    for (int i = 0; ftell(file) < TEXT_BYTES; i++) {
        (void)fprintf(file, "%d%s", i * 7919 % 1000, i % 9 == 8 ? "<|endoftext|>" : i % 5 == 0 ? "\n" : " ");
    }
    assert_int_equal(fclose(file), 0);
}

static carry_corpus *open_corpus(bool in_order, int64_t window) {
    carry_corpus *corpus;
    carry_corpus_options options = {
        .tokenizer = tokenizer, .block_bytes = 4096, .window_bytes = window, .in_order = in_order, .seed = 4};
    assert_ok(ctx, carry_corpus_open(ctx, &corpus, &path, 1, &options));
    return corpus;
}

static carry_batches *make(const carry_source *source, carry_batches_options options) {
    carry_batches *batches;
    assert_ok(ctx, carry_batches_new(ctx, &batches, source, &options));
    return batches;
}

static void test_shuffled_orders_are_permutations(void **state) {
    (void)state;
    static const int64_t counts[] = {1, 2, 3, 4, 5, 16, 17, 97, 1000};
    for (size_t c = 0; c < sizeof counts / sizeof counts[0]; c++) {
        int moved = 0;
        for (uint64_t seed = 0; seed < 5; seed++) {
            char seen[1000] = {0};
            for (int64_t i = 0; i < counts[c]; i++) {
                int64_t at = carry_shuffle(seed, 3, counts[c], i);
                assert_in_range(at, 0, counts[c] - 1);
                assert_int_equal(seen[at]++, 0);
                moved += at != i;
            }
        }
        assert_true(moved > 0 || counts[c] == 1);
    }
}

/* For each split: joins the parts of all ranks and compares them with one rank. Every rank reads separately. */
static void compare_split(int ranks, int parts, bool shuffle) {
    enum { ROWS = 12, LENGTH = 60, STEPS = 40 };
    carry_corpus *corpus = open_corpus(false, 9000);
    carry_source source = carry_corpus_source(corpus);
    carry_batches_options options = {.rows = ROWS, .length = LENGTH, .shuffle = shuffle, .seed = 8};
    carry_batches *whole = make(&source, options);
    carry_corpus *corpora[36];
    carry_batches *shares[36];
    for (int i = 0; i < ranks * parts; i++) {
        options.rank = i / parts;
        options.ranks = ranks;
        options.part = i % parts;
        options.parts = parts;
        corpora[i] = open_corpus(false, 9000);
        carry_source own = carry_corpus_source(corpora[i]);
        shares[i] = make(&own, options);
    }
    for (int step = 0; step < STEPS; step++) {
        const carry_batch *all;
        assert_ok(ctx, carry_batches_next(ctx, whole, &all));
        int64_t labels = 0;
        for (int i = 0; i < ranks * parts; i++) {
            const carry_batch *share;
            assert_ok(ctx, carry_batches_next(ctx, shares[i], &share));
            assert_int_equal(share->rows, ROWS / ranks);
            assert_int_equal(share->length, LENGTH / parts);
            assert_int_equal(share->labels_whole, all->labels_whole);
            labels += share->labels;
            for (int64_t row = 0; row < share->rows; row++) {
                int64_t from = (i / parts * share->rows + row) * LENGTH + i % parts * share->length;
                assert_memory_equal(share->input + row * share->length, all->input + from, (size_t)share->length * 8);
                assert_memory_equal(share->label + row * share->length, all->label + from, (size_t)share->length * 8);
            }
        }
        assert_int_equal(labels, all->labels_whole);
    }
    for (int i = 0; i < ranks * parts; i++) {
        carry_batches_free(shares[i]);
        carry_corpus_free(corpora[i]);
    }
    carry_batches_free(whole);
    carry_corpus_free(corpus);
}

static void test_the_union_over_ranks_is_the_batch_of_one(void **state) {
    (void)state;
    compare_split(2, 1, true);
    compare_split(1, 3, true);
    compare_split(3, 2, true);
    compare_split(4, 5, false);
}

static void test_labels_are_the_inputs_shifted(void **state) {
    (void)state;
    carry_corpus *corpus = open_corpus(false, 9000);
    carry_source source = carry_corpus_source(corpus);
    carry_batches *batches = make(&source, (carry_batches_options){.rows = 3, .length = 37, .shuffle = true});
    for (int step = 0; step < 50; step++) {
        const carry_batch *batch;
        assert_ok(ctx, carry_batches_next(ctx, batches, &batch));
        for (int64_t i = 0; i < 3 * 37; i++) {
            assert_true(i % 37 == 36 || batch->label[i] == batch->input[i + 1]);
            assert_in_range(batch->input[i], 0, source.vocabulary - 1);
        }
        assert_int_equal(batch->labels, 3 * 37);
    }
    carry_batches_free(batches);
    carry_corpus_free(corpus);
}

/* Stops after any batch and starts again at its position, also with another number of ranks: the same batches
   follow. */
static void test_a_position_is_all_that_resuming_needs(void **state) {
    (void)state;
    carry_corpus *corpus = open_corpus(false, 9000);
    carry_corpus *other = open_corpus(false, 9000);
    carry_source source = carry_corpus_source(corpus);
    carry_source other_source = carry_corpus_source(other);
    carry_batches_options options = {.rows = 4, .length = 50, .shuffle = true, .seed = 2};
    carry_batches *batches = make(&source, options);
    carry_position last = {0};
    for (int step = 0; step < 120; step++) {
        const carry_batch *batch;
        carry_position at = carry_batches_position(batches);
        assert_ok(ctx, carry_batches_next(ctx, batches, &batch));
        options.ranks = step % 2 == 0 ? 1 : 2;
        carry_batches *resumed = make(&other_source, options);
        carry_batches_seek(resumed, at);
        const carry_batch *again;
        assert_ok(ctx, carry_batches_next(ctx, resumed, &again));
        assert_memory_equal(again->input, batch->input, (size_t)(again->rows * again->length) * 8);
        assert_memory_equal(again->label, batch->label, (size_t)(again->rows * again->length) * 8);
        last = carry_batches_position(resumed);
        carry_position next = carry_batches_position(batches);
        assert_memory_equal(&last, &next, sizeof last);
        carry_batches_free(resumed);
    }
    assert_true(last.epoch >= 1); /* across windows and epochs */
    carry_batches_seek(batches, (carry_position){0, 0, -5});
    const carry_batch *none;
    assert_refused(ctx, CARRY_ERANGE, "not a position", carry_batches_next(ctx, batches, &none));
    carry_batches_seek(batches, (carry_position){0, 99, 0});
    assert_refused(ctx, CARRY_ERANGE, "windows", carry_batches_next(ctx, batches, &none));
    carry_batches_free(batches);
    carry_corpus_free(other);
    carry_corpus_free(corpus);
}

/* In order and once: the labels, one after the other, are all tokens except the first; also over several windows. */
static void test_one_pass_counts_every_label_once(void **state) {
    (void)state;
    carry_corpus *one = open_corpus(true, 1 << 24);
    assert_ok(ctx, carry_corpus_load(ctx, one, 0, 0));
    int64_t expected = carry_corpus_tokens(one) - 1;
    static const int64_t lengths[] = {1, 7, 64, 100000};
    for (int i = 0; i < 4; i++) {
        carry_corpus *corpus = open_corpus(true, 8000);
        carry_source source = carry_corpus_source(corpus);
        carry_batches *batches = make(&source, (carry_batches_options){.rows = 5, .length = lengths[i], .once = true});
        int64_t seen = 0;
        for (;;) {
            const carry_batch *batch;
            assert_ok(ctx, carry_batches_next(ctx, batches, &batch));
            if (batch->rows == 0) {
                break;
            }
            for (int64_t j = 0; j < batch->rows * batch->length; j++) {
                if (batch->label[j] != CARRY_NO_LABEL) {
                    assert_int_equal(batch->label[j], carry_corpus_token(one, ++seen));
                }
            }
        }
        assert_int_equal(seen, expected);
        carry_batches_free(batches);
        carry_corpus_free(corpus);
    }
    carry_corpus_free(one);
}

static void test_documents_are_cut_apart(void **state) {
    (void)state;
    carry_corpus *corpus = open_corpus(false, 9000);
    carry_source source = carry_corpus_source(corpus);
    carry_batches *batches =
        make(&source, (carry_batches_options){.rows = 4, .length = 90, .shuffle = true, .documents = true});
    int64_t cuts = 0;
    for (int step = 0; step < 30; step++) {
        const carry_batch *batch;
        assert_ok(ctx, carry_batches_next(ctx, batches, &batch));
        assert_int_equal(batch->cu_seqlens[0], 0);
        assert_int_equal(batch->cu_seqlens[batch->sequences], 4 * 90);
        int64_t labels = 0;
        int64_t sequence = 1;
        for (int64_t i = 0; i < 4 * 90; i++) {
            bool starts = i > 0 && (i % 90 == 0 || batch->input[i - 1] == source.end);
            if (starts) {
                assert_int_equal(batch->cu_seqlens[sequence++], i);
            }
            assert_int_equal(batch->input[i] == source.end, batch->label[i] == CARRY_NO_LABEL);
            labels += batch->label[i] != CARRY_NO_LABEL;
        }
        assert_int_equal(sequence, batch->sequences);
        assert_int_equal(labels, batch->labels);
        cuts += batch->sequences - 4;
    }
    assert_true(cuts > 100);
    carry_batches_free(batches);
    carry_corpus_free(corpus);
}

static void test_a_text_shorter_than_a_row_is_padded(void **state) {
    (void)state;
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    (void)fputs("ab", file);
    assert_int_equal(fclose(file), 0);
    carry_corpus *corpus = open_corpus(false, 1 << 20);
    carry_source source = carry_corpus_source(corpus);
    carry_batches *batches = make(&source, (carry_batches_options){.rows = 2, .length = 8});
    const carry_batch *batch;
    assert_ok(ctx, carry_batches_next(ctx, batches, &batch));
    assert_int_equal(batch->labels, 4); /* in each of two rows: b after a, and the end after b */
    assert_int_equal(batch->input[0], 'a');
    assert_int_equal(batch->label[1], source.end);
    assert_int_equal(batch->label[2], CARRY_NO_LABEL);
    carry_batches_free(batches);
    carry_corpus_free(corpus);
    write_text();
}

static void test_splits_that_do_not_divide_are_refused(void **state) {
    (void)state;
    carry_task_rows rows;
    carry_source source;
    carry_batches *batches;
    assert_ok(ctx, carry_task_open(ctx, &rows, &source, "copy", (carry_task_size){.length = 16}, 1));
    assert_refused(
        ctx, CARRY_EARGUMENT, "5 data ranks",
        carry_batches_new(ctx, &batches, &source, &(carry_batches_options){.rows = 8, .length = 16, .ranks = 5}));
    assert_refused(
        ctx, CARRY_EARGUMENT, "3 sequence ranks",
        carry_batches_new(ctx, &batches, &source, &(carry_batches_options){.rows = 8, .length = 16, .parts = 3}));
    assert_refused(ctx, CARRY_EARGUMENT, "at least 0 and below",
                   carry_batches_new(ctx, &batches, &source,
                                     &(carry_batches_options){.rows = 8, .length = 16, .rank = 2, .ranks = 2}));
    assert_refused(ctx, CARRY_EARGUMENT, "must be at least 1",
                   carry_batches_new(ctx, &batches, &source, &(carry_batches_options){.rows = 0, .length = 16}));
    assert_refused(ctx, CARRY_EUNSUPPORTED, "end-of-text",
                   carry_batches_new(ctx, &batches, &source,
                                     &(carry_batches_options){.rows = 8, .length = 16, .documents = true}));
    assert_refused(ctx, CARRY_ESIZE, "too large",
                   carry_batches_new(ctx, &batches, &source,
                                     &(carry_batches_options){.rows = INT64_MAX / 4, .length = INT64_MAX / 4}));
    batches = make(&source, (carry_batches_options){.rows = 8, .length = 17});
    const carry_batch *batch;
    assert_refused(ctx, CARRY_EARGUMENT, "rows of 16", carry_batches_next(ctx, batches, &batch));
    carry_batches_free(batches);
}

int main(void) {
    static const char *const added[] = {CARRY_END_OF_TEXT};
    ctx = support_ctx(2, NULL, NULL);
    (void)snprintf(path_room, sizeof path_room, "/tmp/carry-batches-XXXXXX");
    int file = mkstemp(path_room);
    if (file < 0 || carry_tokenizer_bytes(ctx, &tokenizer, added, 1) != CARRY_OK) {
        return 1;
    }
    (void)close(file);
    write_text();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_shuffled_orders_are_permutations),
        cmocka_unit_test(test_the_union_over_ranks_is_the_batch_of_one),
        cmocka_unit_test(test_labels_are_the_inputs_shifted),
        cmocka_unit_test(test_a_position_is_all_that_resuming_needs),
        cmocka_unit_test(test_one_pass_counts_every_label_once),
        cmocka_unit_test(test_documents_are_cut_apart),
        cmocka_unit_test(test_a_text_shorter_than_a_row_is_padded),
        cmocka_unit_test(test_splits_that_do_not_divide_are_refused),
    };
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    (void)unlink(path);
    carry_tokenizer_close(tokenizer);
    carry_ctx_free(ctx);
    return failed;
}
