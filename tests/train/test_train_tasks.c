/* Synthetic tasks: the answers of each row follow from the row and are right; rows are functions of seed and number. */
#include "support.h"

#include "train/data/batches.h"
#include "train/data/tasks.h"

static carry_ctx *ctx;

static carry_source open_task(carry_task_rows *rows, const char *name, carry_task_size size, uint64_t seed) {
    carry_source source;
    assert_ok(ctx, carry_task_open(ctx, rows, &source, name, size, seed));
    return source;
}

static void test_every_task_makes_the_same_row_again(void **state) {
    (void)state;
    for (int i = 0; carry_task_list[i] != NULL; i++) {
        const carry_task *task = carry_task_list[i];
        carry_task_rows rows;
        carry_source source = open_task(&rows, task->name, (carry_task_size){0}, 3);
        assert_int_equal(rows.size.length, task->length);
        assert_true(strlen(task->about) > 0);
        int64_t *row = malloc(6 * (size_t)task->length * sizeof *row);
        assert_non_null(row);
        memset(row, 0x5a, 6 * (size_t)task->length * sizeof *row); /* every place must be written */
        int64_t n = task->length;
        task->make(&rows.size, 3, 7, row, row + n);
        task->make(&rows.size, 3, 7, row + 2 * n, row + 3 * n);
        assert_memory_equal(row, row + 2 * n, 2 * (size_t)n * sizeof *row);
        task->make(&rows.size, 3, 8, row + 4 * n, row + 5 * n);
        assert_memory_not_equal(row, row + 4 * n, 2 * (size_t)n * sizeof *row);
        task->make(&rows.size, 4, 7, row + 4 * n, row + 5 * n);
        assert_memory_not_equal(row, row + 4 * n, 2 * (size_t)n * sizeof *row);
        int64_t asked;
        int64_t count = 0;
        for (int64_t j = 0; j < n; j++) {
            assert_in_range(row[j], 0, source.vocabulary - 1);
            assert_true(row[n + j] == CARRY_NO_LABEL || (row[n + j] >= 0 && row[n + j] < source.vocabulary));
            count += row[n + j] != CARRY_NO_LABEL;
        }
        assert_int_equal(task->score(row + n, row + n, n, &asked), count);
        assert_int_equal(asked, count);
        assert_true(count > 0);
        for (int64_t j = 0; j < n; j++) {
            row[2 * n + j] = row[n + j] + 1;
        }
        assert_int_equal(task->score(row + 2 * n, row + n, n, &asked), 0);
        free(row);
    }
}

/* Each expected answer is the value that followed the key; every pair is asked for once. */
static void test_recall_is_answered_by_its_pairs(void **state) {
    (void)state;
    static const carry_task_size sizes[] = {
        {512, 256, 64, 0}, {512, 130, 64, 64}, {256, 131, 64, 0}, {8, 6, 2, 0}, {4, 4, 1, 0}};
    for (size_t s = 0; s < sizeof sizes / sizeof sizes[0]; s++) {
        carry_task_rows rows;
        (void)open_task(&rows, "mqar", sizes[s], 5);
        int64_t input[512];
        int64_t label[512];
        for (int64_t index = 0; index < 50; index++) {
            rows.task->make(&rows.size, 5, index, input, label);
            int64_t value_of[256] = {0};
            int64_t asked = 0;
            for (int64_t i = 0; i < rows.size.pairs; i++) {
                assert_in_range(input[2 * i], 1, rows.size.vocabulary / 2 - 1);
                assert_in_range(input[2 * i + 1], rows.size.vocabulary / 2, rows.size.vocabulary - 1);
                assert_int_equal(value_of[input[2 * i]], 0); /* keys differ */
                value_of[input[2 * i]] = input[2 * i + 1];
            }
            for (int64_t i = 0; i < rows.size.length; i++) {
                if (label[i] == CARRY_NO_LABEL) {
                    assert_true(i < 2 * rows.size.pairs || input[i] == 0);
                    continue;
                }
                assert_true(i >= 2 * rows.size.pairs);
                assert_int_equal(label[i], value_of[input[i]]);
                value_of[input[i]] = 0; /* asked once */
                asked++;
            }
            assert_int_equal(asked, rows.size.pairs);
        }
    }
}

/* Rows of 3, 6, 12 and 20 pairs, all of which occur; each has 20 questions, spread evenly over its pairs. */
static void test_rows_of_fewer_pairs_ask_as_much(void **state) {
    (void)state;
    carry_task_rows rows;
    (void)open_task(&rows, "mqar", (carry_task_size){.length = 90, .vocabulary = 64, .pairs = 20, .fewest = 3}, 5);
    int64_t rows_of[21] = {0};
    for (int64_t index = 0; index < 400; index++) {
        int64_t input[90];
        int64_t label[90];
        int64_t value_of[64] = {0};
        int64_t asked_of[64] = {0};
        int64_t pairs = 0;
        int64_t asked = 0;
        rows.task->make(&rows.size, 5, index, input, label);
        for (; pairs < 20 && input[2 * pairs] != 0; pairs++) {
            assert_int_equal(value_of[input[2 * pairs]], 0);
            value_of[input[2 * pairs]] = input[2 * pairs + 1];
        }
        for (int64_t i = 0; i < 90; i++) {
            if (label[i] == CARRY_NO_LABEL) {
                assert_true(i < 2 * pairs || input[i] == 0);
                continue;
            }
            assert_true(i >= 40 && value_of[input[i]] != 0);
            assert_int_equal(label[i], value_of[input[i]]);
            asked_of[input[i]]++;
            asked++;
        }
        assert_int_equal(asked, 20);
        for (int64_t i = 0; i < pairs; i++) {
            assert_in_range(asked_of[input[2 * i]], 20 / pairs, (20 + pairs - 1) / pairs);
        }
        rows_of[pairs]++;
    }
    /* 100 of each are expected, with a deviation of 9. */
    assert_true(rows_of[3] > 55 && rows_of[6] > 55 && rows_of[12] > 55 && rows_of[20] > 55);
    assert_int_equal(rows_of[3] + rows_of[6] + rows_of[12] + rows_of[20], 400);
    carry_source source;
    assert_refused(ctx, CARRY_EARGUMENT, "3 at most",
                   carry_task_open(ctx, &rows, &source, "mqar", (carry_task_size){.pairs = 3, .fewest = 4}, 1));
}

/* Checked without the task's own numbers: a table of products, built from the labels, must be that of a group of
   120. */
static void test_permutations_multiply_as_a_group(void **state) {
    (void)state;
    static short product[120][120]; /* [so far][next] + 1 */
    carry_task_rows rows;
    (void)open_task(&rows, "s5", (carry_task_size){.length = 256}, 6);
    int64_t input[256];
    int64_t label[256];
    for (int64_t index = 0; index < 2000; index++) {
        rows.task->make(&rows.size, 6, index, input, label);
        assert_int_equal(label[0], input[0]);
        for (int t = 1; t < 256; t++) {
            short *entry = &product[label[t - 1]][input[t]];
            assert_true(*entry == 0 || *entry == label[t] + 1); /* a function of the two */
            *entry = (short)(label[t] + 1);
        }
    }
    int non_commuting = 0;
    for (int a = 0; a < 120; a++) {
        int seen[120] = {0};
        assert_int_equal(product[a][0], a + 1); /* 0 is the identity */
        for (int b = 0; b < 120; b++) {
            assert_true(product[a][b] > 0); /* half a million steps over 14,400 pairs leave none out */
            assert_int_equal(seen[product[a][b] - 1]++, 0);
            non_commuting += product[a][b] != product[b][a];
        }
    }
    assert_true(non_commuting > 7200);
    for (int i = 0; i < 1000; i++) { /* associative */
        int a = i * 7 % 120;
        int b = i * 31 % 120;
        int c = i * 57 % 120;
        assert_int_equal(product[product[a][b] - 1][c], product[a][product[b][c] - 1]);
    }
    (void)open_task(&rows, "s5-swaps", (carry_task_size){.length = 256}, 6);
    int used[120] = {0};
    int kinds = 0;
    for (int64_t index = 0; index < 50; index++) {
        rows.task->make(&rows.size, 6, index, input, label);
        for (int t = 0; t < 256; t++) {
            kinds += used[input[t]]++ == 0;
            assert_int_equal(product[input[t]][input[t]], 1); /* each undoes itself */
            assert_true(t == 0 || product[label[t - 1]][input[t]] == label[t] + 1);
        }
    }
    assert_int_equal(kinds, 11);
}

static void test_copies_are_copies(void **state) {
    (void)state;
    for (int64_t length = 2; length < 40; length++) {
        carry_task_rows rows;
        (void)open_task(&rows, "copy", (carry_task_size){.length = length, .vocabulary = 9}, 1);
        int64_t input[40];
        int64_t label[40];
        rows.task->make(&rows.size, 1, length, input, label);
        int64_t half = length / 2;
        for (int64_t i = 0; i < length; i++) {
            bool asked = i >= half && i < 2 * half;
            assert_int_equal(label[i], asked ? input[i - half] : CARRY_NO_LABEL);
            assert_true(!asked || i + 1 == length || input[i + 1] == label[i]);
        }
        assert_int_equal(input[half], 0);
    }
}

static void test_tasks_come_in_batches_like_a_corpus(void **state) {
    (void)state;
    carry_task_rows rows;
    carry_source source = open_task(&rows, "mqar", (carry_task_size){.length = 64, .vocabulary = 64, .pairs = 8}, 2);
    carry_batches *whole;
    carry_batches *half;
    carry_batches_options options = {.rows = 6, .length = 64, .shuffle = true};
    assert_ok(ctx, carry_batches_new(ctx, &whole, &source, &options));
    options.rank = 1;
    options.ranks = 2;
    assert_ok(ctx, carry_batches_new(ctx, &half, &source, &options));
    for (int step = 0; step < 5; step++) {
        const carry_batch *all;
        const carry_batch *mine;
        assert_ok(ctx, carry_batches_next(ctx, whole, &all));
        assert_ok(ctx, carry_batches_next(ctx, half, &mine));
        assert_memory_equal(mine->input, all->input + 3 * 64, 3 * 64 * sizeof *all->input);
        assert_int_equal(all->labels, 6 * 8);
        assert_int_equal(mine->labels, 3 * 8);
        int64_t input[64];
        int64_t label[64];
        rows.task->make(&rows.size, 2, step * 6 + 4, input, label);
        assert_memory_equal(input, all->input + 4 * 64, sizeof input);
    }
    carry_batches_free(half);
    carry_batches_free(whole);
}

static void test_sizes_that_do_not_fit_are_refused(void **state) {
    (void)state;
    carry_task_rows rows;
    carry_source source;
    static const struct {
        const char *name;
        carry_task_size size;
        carry_status status;
        const char *words;
    } cases[] = {
        {"recall", {0}, CARRY_ENOTFOUND, "mqar, s5, s5-swaps, copy"},
        {"mqar", {512, 256, 129, 0}, CARRY_EARGUMENT, "129 pairs"},
        {"mqar", {512, 256, 128, 0}, CARRY_EARGUMENT, "128 pairs"},
        {"mqar", {255, 256, 64, 0}, CARRY_EARGUMENT, "256 tokens"},
        {"mqar", {512, 256, -1, 0}, CARRY_EARGUMENT, "pairs"},
        {"s5", {64, 119, 0, 0}, CARRY_EARGUMENT, "119"},
        {"copy", {1, 8, 0, 0}, CARRY_EARGUMENT, "too few"},
        {"copy", {-8, 8, 0, 0}, CARRY_ESIZE, "out of range"},
        {"copy", {8, INT64_MAX, 0, 0}, CARRY_ESIZE, "out of range"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        assert_refused(ctx, cases[i].status, cases[i].words,
                       carry_task_open(ctx, &rows, &source, cases[i].name, cases[i].size, 1));
    }
}

int main(void) {
    ctx = support_ctx(1, NULL, NULL);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_task_makes_the_same_row_again),
        cmocka_unit_test(test_recall_is_answered_by_its_pairs),
        cmocka_unit_test(test_rows_of_fewer_pairs_ask_as_much),
        cmocka_unit_test(test_permutations_multiply_as_a_group),
        cmocka_unit_test(test_copies_are_copies),
        cmocka_unit_test(test_tasks_come_in_batches_like_a_corpus),
        cmocka_unit_test(test_sizes_that_do_not_fit_are_refused),
    };
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    carry_ctx_free(ctx);
    return failed;
}
