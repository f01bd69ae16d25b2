/* Forward and backward on a GPU give the same bits in every run, by every method: segments of one sequence, packed
   sequences, many heads in rounds, f16 and f32, gates by key channel. Every second run of chunk64 keeps nothing for
   the backward pass. CARRY_RUNS is the number of runs (20).
   Without a GPU all of it is skipped. */
/* labels: gpu */
#include "delta_gpu_support.h"

static int runs_wanted(void) {
    const char *text = getenv("CARRY_RUNS");
    const long runs = text != NULL ? strtol(text, NULL, 10) : 20;
    return runs > 1 && runs <= 1000000 ? (int)runs : 20;
}

static bool is_written(const data *d, int which) {
    return which != SNAPSHOTS && (which < DA_LOG || d->p.gate_inside) &&
           (which != DG || d->p.gate != CARRY_DELTA_NO_GATE);
}

/* One run with NaN in the workspace and in all results before. */
static void run_once(const data *d, const device_plan *on, void *kept) {
    const size_t most = on->forward > on->backward ? on->forward : on->backward;
    carry_delta_forward_args args = forward_args(d, d->there);
    args.kept = kept;
    carry_delta_backward_args back = backward_args(d, d->there, args.kept);
    poison(d);
    assert_ok(d->ctx, carry_device_fill(d->ctx, on->workspace, GPU, 0xff, most, NULL));
    assert_ok(d->ctx, carry_delta_forward(on->plan, &args, on->workspace, on->forward));
    assert_ok(d->ctx, carry_delta_backward(on->plan, &back, on->workspace, on->backward));
}

static void compare_runs(data *d, const char *method) {
    device_plan on;
    void *first[ALL] = {NULL};
    if (!open_plan(d, &on, method)) {
        return;
    }
    const int runs = runs_wanted();
    const bool keeps_bits = strcmp(method, "chunk64") == 0;
    for (int run = 0; run < runs; run++) {
        run_once(d, &on, keeps_bits && run % 2 == 1 ? NULL : on.kept);
        for (int i = O; i < ALL; i++) {
            if (!is_written(d, i)) {
                continue;
            }
            const size_t bytes = bytes_of(&d->here[i]);
            fetch(d, i);
            if (run == 0) {
                first[i] = malloc(bytes);
                assert_non_null(first[i]);
                memcpy(first[i], d->here[i].data, bytes);
            } else if (memcmp(first[i], d->here[i].data, bytes) != 0) {
                fail_msg("%s by %s has other bits in run %d", names[i], method, run);
            }
        }
    }
    print_message("%s, %s, %lld x %lld tokens, heads %lld/%lld of %lld and %lld: %d runs, the same bits\n", method,
                  carry_dtype_name(d->p.dtype), (long long)d->p.batch, (long long)d->p.tokens, (long long)d->p.heads,
                  (long long)d->p.value_heads, (long long)d->p.key, (long long)d->p.value, runs);
    for (int i = 0; i < ALL; i++) {
        free(first[i]);
    }
    close_plan(d, &on);
}

static void check(carry_delta_problem p, const int64_t *borders) {
    carry_ctx *ctx = support_ctx(2, NULL, NULL);
    p.l2norm = true;
    data d = make(ctx, p, borders);
    for (int m = 0; carry_delta_name(GPU, m) != NULL; m++) {
        compare_runs(&d, carry_delta_name(GPU, m));
    }
    discard(&d);
    carry_ctx_free(ctx);
}

static carry_delta_problem problem_of(carry_dtype dtype, int64_t tokens, int64_t heads, int64_t value_heads,
                                      int64_t size) {
    return (carry_delta_problem){.batch = 1,
                                 .tokens = tokens,
                                 .heads = heads,
                                 .value_heads = value_heads,
                                 .key = size,
                                 .value = size,
                                 .dtype = dtype,
                                 .gate = CARRY_DELTA_HEAD_GATE};
}

static void one_sequence_in_segments(void **unused) {
    (void)unused;
    check(problem_of(CARRY_BF16, 1025, 1, 2, 128), NULL);
}

static void packed_sequences(void **unused) {
    (void)unused;
    static const int64_t borders[] = {0, 100, 100, 401, 466, 500};
    carry_delta_problem p = problem_of(CARRY_BF16, 500, 2, 4, 128);
    p.sequences = 5;
    p.gate_inside = true;
    check(p, borders);
}

static void many_heads(void **unused) {
    (void)unused;
    carry_delta_problem p = problem_of(CARRY_BF16, 130, 4, 8, 64);
    p.batch = 5;
    check(p, NULL);
}

/* Blocks of 128 values. */
static void heads_that_fill_the_gpu(void **unused) {
    (void)unused;
    check(problem_of(CARRY_BF16, 200, 26, 104, 128), NULL);
    check(problem_of(CARRY_F16, 130, 52, 104, 128), NULL);
}

/* Chunks are prepared on some multiprocessors while others walk. */
static void heads_that_fill_half_of_the_gpu(void **unused) {
    (void)unused;
    check(problem_of(CARRY_BF16, 700, 16, 32, 128), NULL);
}

static void other_types(void **unused) {
    (void)unused;
    check(problem_of(CARRY_F16, 200, 2, 4, 128), NULL);
    check(problem_of(CARRY_F32, 100, 2, 2, 60), NULL);
}

static void gates_by_key_channel(void **unused) {
    (void)unused;
    carry_delta_problem p = problem_of(CARRY_BF16, 200, 1, 2, 128);
    p.gate = CARRY_DELTA_KEY_GATE;
    check(p, NULL);
    p.dtype = CARRY_F16;
    p.key = 64;
    p.value_heads = 1;
    check(p, NULL);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_sequence_in_segments),
        cmocka_unit_test(packed_sequences),
        cmocka_unit_test(many_heads),
        cmocka_unit_test(heads_that_fill_the_gpu),
        cmocka_unit_test(heads_that_fill_half_of_the_gpu),
        cmocka_unit_test(other_types),
        cmocka_unit_test(gates_by_key_channel),
    };
    if (no_gpu()) {
        return 77;
    }
    if (getenv("CARRY_CASE") != NULL) { /* a pattern of test names */
        cmocka_set_test_filter(getenv("CARRY_CASE"));
    }
    return cmocka_run_group_tests_name("delta/gpu_bits", tests, NULL, NULL);
}
