/* Attention against float64: every size around the blocks, every type and layout, any runs, any number of threads. */
#include "attention_support.h"

#include "ops/kernels/bf16.h"

typedef struct problem {
    placed q, k, v;
    carry_key_run run[CARRY_MAX_KEY_RUNS];
    int runs;
    float scale;
    bool causal;
    int64_t window;
} problem;

static problem some_problem(carry_dtype type, int64_t T, int64_t S, int64_t H, int64_t D, int layout, int set) {
    problem p = {.q = random_placed(type, T, H, D, layout, 1.0f),
                 .k = random_placed(type, S, H, D, (layout + 1) % LAYOUTS, 1.0f),
                 .v = random_placed(type, S, H, D, (layout + 2) % LAYOUTS, 1.0f)};
    p.runs = some_runs(p.run, set, S);
    return p;
}

static carry_attention_args args_of(problem *p, const carry_tensor *o, const carry_tensor *lse) {
    return (carry_attention_args){.o = *o,
                                  .lse = lse != NULL ? *lse : absent,
                                  .q = p->q.t,
                                  .k = p->k.t,
                                  .v = p->v.t,
                                  .run = p->run,
                                  .runs = p->runs,
                                  .scale = p->scale,
                                  .causal = p->causal,
                                  .window = p->window};
}

static void run(carry_ctx *ctx, const carry_attention_args *args) {
    size_t bytes = carry_attention_workspace(args);
    unsigned char *workspace = workspace_of(bytes);
    assert_ok(ctx, carry_attention(ctx, args, workspace, bytes));
    assert_int_equal(workspace[bytes], 255);
}

/* A score is a sum of D products below 1, times D^-1/2: it is off by about 2^-24 sqrt(D) <= 2^-20, and the exponential
   by 2^-22. o is a mean of numbers below 1, so it has both errors, twice because of the sum it is divided by, and as
   much again for the sums over keys. */
#define BOUND 0x1p-18

static void check(carry_ctx **contexts, int count, problem *p, int layout) {
    const carry_tensor *q = &p->q.t;
    int64_t size = q->shape[0] * q->shape[1] * q->shape[2];
    double *o64 = keep(calloc((size_t)size + 1, sizeof *o64));
    double *lse64 = keep(calloc((size_t)(q->shape[0] * q->shape[1]) + 1, sizeof *lse64));
    placed first = {.bytes = 0};
    array first_lse = {.count = 0};
    for (int c = 0; c < count; c++) {
        placed o = place(q->dtype, q->shape[0], q->shape[1], q->shape[2], layout);
        array lse = poisoned(CARRY_F32, 2, SHAPE(q->shape[1], q->shape[0]));
        carry_attention_args args = args_of(p, &o.t, &lse.t);
        run(contexts[c], &args);
        if (c == 0) {
            assert_ok(contexts[c], carry_attention_reference(contexts[c], o64, lse64, &args));
            assert_placed_near("o", &o.t, o64, BOUND);
            assert_near("lse", &lse, lse64, BOUND);
            first = o;
            first_lse = lse;
        }
        assert_memory_equal(o.memory, first.memory, o.bytes);
        assert_same("lse", &lse, &first_lse);
    }
    assert_gaps_untouched("o", &first);
}

static const int64_t shapes[][4] = {
    /* T, S, H, D; blocks have 256 queries, in parts of 64, and 64 keys; up to 4 queries take another path */
    {1, 1, 1, 1},    {1, 2, 3, 5},     {2, 1, 2, 128},  {7, 127, 1, 64},  {13, 63, 3, 17}, {31, 129, 2, 33},
    {63, 64, 1, 20}, {64, 65, 2, 7},   {65, 128, 1, 8}, {255, 130, 1, 8}, {256, 64, 1, 3}, {257, 67, 2, 9},
    {4, 131, 2, 48}, {5, 300, 1, 256}, {3, 65, 5, 255}, {513, 5, 1, 16},
};

static void test_attention_matches_float64_for_every_size(void **state) {
    (void)state;
    int turn = 0;
    for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++) {
        for (int type = 0; type < 3; type++) {
            for (int set = 0; set < RUN_SETS; set++, turn++) {
                if (!support_takes(turn, 11)) {
                    continue;
                }
                const int64_t *n = shapes[s];
                problem p = some_problem(types[type], n[0], n[1], n[2], n[3], turn % LAYOUTS, set);
                p.scale = turn % 7 == 0 ? -0.3f : 0.0f;
                check(ctxs, 1, &p, (turn + 3) % LAYOUTS);
                free_kept(NULL);
            }
        }
    }
}

static void test_attention_is_the_same_for_any_number_of_threads(void **state) {
    (void)state;
    carry_ctx *contexts[] = {support_ctx(1, NULL, NULL), support_ctx(2, NULL, NULL), support_ctx(3, NULL, NULL),
                             support_ctx(5, NULL, NULL)};
    for (int type = 0; type < 3; type++) {
        problem p = some_problem(types[type], 517, support_cases(131, 67), support_cases(3, 2), 24, type, type);
        check(contexts, support_cases(4, 3), &p, type);
    }
    for (int i = 0; i < 4; i++) {
        carry_ctx_free(contexts[i]);
    }
}

static void test_attention_matches_float64_with_every_set_of_kernels(void **state) {
    (void)state;
    for (int i = 0; carry_kernels_at(i) != NULL; i++) {
        if (carry_kernels_at(i)->usable()) {
            carry_ctx *ctx = support_ctx(2, carry_kernels_at(i)->name, NULL);
            problem p = some_problem(CARRY_BF16, 37, 141, 2, 40, i % LAYOUTS, 2);
            check(&ctx, 1, &p, 2);
            carry_ctx_free(ctx);
        }
    }
}

/* Tiles of bf16, emulated, and native if the processor has them: sizes around panels of 32 and blocks of 64 and 256,
   runs, causal calls, any number of threads. With few cases: three threads alone, and causal calls of one block of
   queries; test_attention_unseen has causal calls of several. */
static void test_attention_by_tiles_matches_float64(void **state) {
    (void)state;
    const char *const names[] = {"amx-emulated", "amx"};
    const int64_t tiled[][4] = {{32, 33, 2, 32}, {33, 64, 1, 64}, {64, 130, 2, 33}, {97, 71, 1, 100}, {257, 96, 1, 48}};
    for (int i = 0; i < 2; i++) {
        const carry_bf16 *by = carry_bf16_named(names[i]);
        if (by == NULL || by->missing() != NULL) {
            print_message("skipped: %s: %s\n", names[i], by != NULL ? by->missing() : "not in this build");
            continue;
        }
        carry_ctx *contexts[] = {support_ctx(1, names[i], NULL), support_ctx(3, names[i], NULL)};
        const int count = support_cases(2, 1);
        for (size_t s = 0; s < sizeof tiled / sizeof *tiled; s++) {
            const int64_t *n = tiled[s];
            problem p = some_problem(CARRY_BF16, n[0], n[1], n[2], n[3], (int)s % LAYOUTS, (int)s % RUN_SETS);
            check(contexts + 2 - count, count, &p, (int)s % LAYOUTS);
        }
        /* causal, with grouped heads, after other keys or not, with a window */
        for (int form = 0; form < support_cases(4, 2); form++) {
            const int64_t T = form < 2 ? 70 : 300, S = form % 2 != 0 ? T : T + 33, H = support_cases(2, 1);
            problem p = {.q = random_placed(CARRY_BF16, T, 2 * H, 40, form, 1.0f),
                         .k = random_placed(CARRY_BF16, S, H, 40, form, 1.0f),
                         .v = random_placed(CARRY_BF16, S, H, 40, form, 1.0f),
                         .causal = true,
                         .window = form == 1 || form == 2 ? 21 : 0};
            check(contexts + 2 - count, count, &p, form);
        }
        carry_ctx_free(contexts[0]);
        carry_ctx_free(contexts[1]);
    }
}

/* Results known by hand, so that the reference is checked, too: with q = 0 the weights follow from the biases. */
static void test_biases_weigh_keys(void **state) {
    (void)state;
    float q[2] = {0}, k[6] = {1, 2, 3, 4, 5, 6}, v[6] = {1, 10, 2, 20, 4, 40}, o[2], lse[1];
    const carry_key_run run_of[] = {{.first = 2, .count = 1, .bias = -INFINITY},
                                    {.first = 1, .count = 1, .bias = -0.69314718f},
                                    {.first = 0, .count = 1}};
    carry_attention_args args = {.o = carry_view_3d(o, CARRY_F32, 1, 1, 2),
                                 .lse = carry_view_2d(lse, CARRY_F32, 1, 1),
                                 .q = carry_view_3d(q, CARRY_F32, 1, 1, 2),
                                 .k = carry_view_3d(k, CARRY_F32, 3, 1, 2),
                                 .v = carry_view_3d(v, CARRY_F32, 3, 1, 2),
                                 .run = run_of,
                                 .runs = 3};
    run(ctxs[0], &args);
    assert_float_equal(o[0], 4.0f / 3.0f, 1e-6);
    assert_float_equal(o[1], 40.0f / 3.0f, 1e-5);
    assert_float_equal(lse[0], logf(1.5f), 1e-6);
    args.runs = 0;
    run(ctxs[0], &args);
    assert_float_equal(o[0], 7.0f / 3.0f, 1e-6);
    assert_float_equal(lse[0], logf(3.0f), 1e-6);
    q[0] = 1.0f; /* one key: o is its value, and lse its score 0.5 3 + 2 minus the bias */
    args.runs = 1;
    args.run = (const carry_key_run[]){{.first = 1, .count = 1, .bias = 2.0f}};
    args.scale = 0.5f;
    run(ctxs[0], &args);
    assert_float_equal(o[1], 20.0f, 0.0f);
    assert_float_equal(lse[0], 1.5f, 1e-6);
}

static void test_keys_of_no_run_are_never_read(void **state) {
    (void)state;
    problem p = some_problem(CARRY_F32, 9, 150, 2, 7, 0, 0);
    for (int64_t row = 40; row < 60; row++) {
        for (int64_t h = 0; h < 2; h++) {
            set_value(&p.k.t, row, h, 0, NAN);
            set_value(&p.v.t, row, h, 0, INFINITY);
        }
    }
    p.run[0] = (carry_key_run){.first = 60, .count = 90, .bias = -1.0f};
    p.run[1] = (carry_key_run){.first = 0, .count = 40};
    p.run[2] = (carry_key_run){.first = 50, .count = 10, .bias = -INFINITY};
    p.runs = 3;
    check(ctxs, CTXS, &p, 2);
}

static void test_nothing_seen_gives_zeros(void **state) {
    (void)state;
    for (int way = 0; way < 3; way++) {
        problem p = some_problem(CARRY_BF16, 5, way == 2 ? 0 : 20, 3, 8, 1, 0);
        p.run[0] = (carry_key_run){.first = 3, .count = way == 1 ? 0 : 17, .bias = -INFINITY};
        p.run[1] = (carry_key_run){.first = 0, .count = way == 1 ? 0 : 3, .bias = -INFINITY};
        p.runs = way == 2 ? 0 : 2;
        placed o = place(CARRY_BF16, 5, 3, 8, 2);
        array lse = poisoned(CARRY_F32, 2, SHAPE(3, 5));
        carry_attention_args args = args_of(&p, &o.t, &lse.t);
        run(ctxs[1], &args);
        for (int64_t i = 0; i < 15; i++) {
            assert_true(carry_tensor_at(&lse.t, i) == -INFINITY);
            for (int64_t d = 0; d < 8; d++) {
                assert_true(value(&o.t, i / 3, i % 3, d) == 0.0);
            }
        }
    }
}

/* Scores of about 10^9 that differ by 10^6 or more, all exact in f32: the largest gets all the weight, on either side
   of a block's border and with either sign. */
static void test_huge_scores_do_not_overflow(void **state) {
    (void)state;
    for (int sign = -1; sign <= 1; sign += 2) {
        problem p = some_problem(CARRY_F32, 3, 300, 1, 4, 0, 0);
        p.scale = 1.0f;
        for (int64_t t = 0; t < 3; t++) {
            set_value(&p.q.t, t, 0, 0, (float)sign * 0x1p20f);
            for (int64_t d = 1; d < 4; d++) {
                set_value(&p.q.t, t, 0, d, 0.0f);
            }
        }
        for (int64_t j = 0; j < 300; j++) {
            set_value(&p.k.t, j, 0, 0, (float)(j * 37 % 300 + 700));
        }
        int64_t best = 0;
        for (int64_t j = 0; j < 300; j++) {
            best = sign * value(&p.k.t, j, 0, 0) > sign * value(&p.k.t, best, 0, 0) ? j : best;
        }
        placed o = place(CARRY_F32, 3, 1, 4, 0);
        array lse = poisoned(CARRY_F32, 2, SHAPE(1, 3));
        carry_attention_args args = args_of(&p, &o.t, &lse.t);
        run(ctxs[0], &args);
        for (int64_t t = 0; t < 3; t++) {
            assert_true(carry_tensor_at(&lse.t, t) == sign * 0x1p20 * value(&p.k.t, best, 0, 0));
            for (int64_t d = 0; d < 4; d++) {
                assert_true(value(&o.t, t, 0, d) == value(&p.v.t, best, 0, d));
            }
        }
    }
}

/* Keys with -infinity have no weight, even when a whole block of them comes first. A NaN affects its own query only. */
static void test_infinities_and_nans_stay_where_they_belong(void **state) {
    (void)state;
    problem p = some_problem(CARRY_F32, 6, 150, 1, 5, 0, 0);
    for (int64_t t = 0; t < 6; t++) {
        set_value(&p.q.t, t, 0, 0, 0.5f);
    }
    for (int64_t j = 0; j < 100; j++) {
        set_value(&p.k.t, j, 0, 0, -INFINITY);
    }
    check(ctxs, CTXS, &p, 1);
    set_value(&p.q.t, 2, 0, 1, NAN);
    placed o = place(CARRY_F32, 6, 1, 5, 0);
    array lse = poisoned(CARRY_F32, 2, SHAPE(1, 6));
    carry_attention_args args = args_of(&p, &o.t, &lse.t);
    run(ctxs[0], &args);
    for (int64_t t = 0; t < 6; t++) {
        assert_int_equal(isnan(carry_tensor_at(&lse.t, t)) != 0, t == 2);
        for (int64_t d = 0; d < 5; d++) {
            assert_int_equal(isnan(value(&o.t, t, 0, d)) != 0, t == 2);
        }
    }
}

/* A NaN in v of token 50 and an infinity in v of token 60 reach the queries that see these tokens, in the same channel,
   but no earlier query and none beyond the window. */
static void check_values_stay(carry_ctx *ctx, carry_dtype type, int64_t window) {
    enum { T = 100, D = 33 };
    problem p = some_problem(type, T, T, 2, D, 0, 0);
    p.causal = true;
    p.window = window;
    p.runs = 0;
    set_value(&p.v.t, 50, 1, 3, NAN);
    set_value(&p.v.t, 60, 1, 4, INFINITY);
    placed o = place(type, T, 2, D, 0);
    carry_attention_args args = args_of(&p, &o.t, NULL);
    run(ctx, &args);
    for (int64_t i = 0; i < (int64_t)T * 2 * D; i++) {
        int64_t t = i / (2 * D), head = i / D % 2, d = i % D;
        double is = value(&o.t, t, head, d);
        bool sees_nan = t >= 50 && (window == 0 || t < 50 + window),
             sees_infinity = t >= 60 && (window == 0 || t < 60 + window);
        if (head == 1 && d == 3 && sees_nan) {
            assert_true(isnan(is));
        } else if (head == 1 && d == 4 && sees_infinity) {
            assert_true(is == INFINITY);
        } else {
            assert_true(isfinite(is));
        }
    }
}

static void test_values_that_are_not_finite_reach_no_earlier_query(void **state) {
    (void)state;
    carry_ctx *tiles = support_ctx(2, "amx-emulated", NULL);
    for (int window = 0; window <= 21; window += 21) {
        for (int i = 0; i < 3; i++) {
            check_values_stay(ctxs[1], types[i], window);
        }
        check_values_stay(tiles, CARRY_BF16, window);
    }
    carry_ctx_free(tiles);
}

/* A bias larger than every score: as the only bias it changes nothing; beside other biases its keys have no weight. */
static void test_huge_biases_do_not_overflow(void **state) {
    (void)state;
    problem p = some_problem(CARRY_F32, 11, 200, 2, 16, 0, 0);
    placed q = random_placed(CARRY_F32, 11, 2, 16, 0, 300.0f); /* scores far beyond 88 */
    p.q = q;
    placed o[4];
    array lse[4];
    for (int i = 0; i < 4; i++) {
        o[i] = place(CARRY_F32, 11, 2, 16, 0);
        lse[i] = poisoned(CARRY_F32, 2, SHAPE(2, 11));
        p.run[0] = (carry_key_run){.first = 0, .count = i < 2 ? 200 : 150, .bias = i % 2 == 0 ? 0.0f : -1e30f};
        p.runs = 1;
        if (i == 2) {
            p.run[0] = (carry_key_run){.first = 150, .count = 50};
        } else if (i == 3) {
            p.run[1] = (carry_key_run){.first = 150, .count = 50};
            p.runs = 2;
        }
        carry_attention_args args = args_of(&p, &o[i].t, &lse[i].t);
        run(ctxs[0], &args);
    }
    assert_memory_equal(lse[0].t.data, lse[1].t.data, 22 * sizeof(float)); /* less the largest bias */
    assert_memory_equal(lse[2].t.data, lse[3].t.data, 22 * sizeof(float));
    assert_memory_equal(o[2].memory, o[3].memory, o[2].bytes);
    for (int64_t i = 0; i < 11 * 32; i++) {
        assert_true(carry_tensor_at(&o[1].t, i) == carry_tensor_at(&o[0].t, i));
    }
}

static void test_wrong_calls_are_refused(void **state) {
    (void)state;
    carry_ctx *ctx = ctxs[0];
    problem p = some_problem(CARRY_F32, 6, 20, 2, 8, 0, 2);
    placed o = place(CARRY_F32, 6, 2, 8, 0);
    array lse = poisoned(CARRY_F32, 2, SHAPE(2, 6));
    const carry_attention_args good = args_of(&p, &o.t, &lse.t);
    size_t bytes = carry_attention_workspace(&good);
    unsigned char *w = workspace_of(bytes);
    carry_attention_args bad = good;
#define REFUSED(status, words, change)                                            \
    do {                                                                          \
        bad = good;                                                               \
        change;                                                                   \
        assert_refused(ctx, status, words, carry_attention(ctx, &bad, w, bytes)); \
    } while (0)
    REFUSED(CARRY_ESHAPE, "q has rank 2", bad.q.rank = 2);
    REFUSED(CARRY_ESHAPE, "k has rank 4", bad.k.rank = 4);
    REFUSED(CARRY_ESHAPE, "k has shape [20, 3, 8]", bad.k.shape[1] = 3);
    REFUSED(CARRY_ESHAPE, "v has shape [19, 2, 8]", bad.v.shape[0] = 19);
    REFUSED(CARRY_ESHAPE, "o has shape [6, 2, 7]", bad.o.shape[2] = 7);
    REFUSED(CARRY_ESHAPE, "lse has shape [6, 2]", (bad.lse.shape[0] = 6, bad.lse.shape[1] = 2));
    REFUSED(CARRY_ESHAPE, "1 to 640", bad.q.shape[2] = 641);
    REFUSED(CARRY_ESHAPE, "1 to 640", bad.q.shape[2] = 0);
    REFUSED(CARRY_EDTYPE, "k is bf16 and q is f32", bad.k.dtype = CARRY_BF16);
    REFUSED(CARRY_EDTYPE, "q is i64", bad.q.dtype = CARRY_I64);
    REFUSED(CARRY_EDTYPE, "lse is bf16", bad.lse.dtype = CARRY_BF16);
    REFUSED(CARRY_ESTRIDE, "v has stride 2", bad.v.stride[2] = 2);
    REFUSED(CARRY_ESTRIDE, "leaves memory", bad.k.stride[0] = INT64_MAX / 4);
    REFUSED(CARRY_ESTRIDE, "would overlap", bad.o.stride[1] = 0);
    REFUSED(CARRY_ESTRIDE, "would overlap", bad.o.stride[0] = 12);
    REFUSED(CARRY_ESTRIDE, "lse has strides", bad.lse.stride[0] = 7);
    REFUSED(CARRY_EDEVICE, "k is on device 3", bad.k.device = 3);
    REFUSED(CARRY_EUNSUPPORTED, "attention has no entry for device 77", bad.q.device = 77);
    REFUSED(CARRY_EARGUMENT, "v has no data", bad.v.data = NULL);
    REFUSED(CARRY_EARGUMENT, "65 runs", bad.runs = 65);
    REFUSED(CARRY_EARGUMENT, "-1 runs", bad.runs = -1);
    REFUSED(CARRY_EARGUMENT, "null pointer", bad.run = NULL);
    REFUSED(CARRY_ERANGE, "scale is nan", bad.scale = NAN);
#define RUN(...) (bad.runs = 1, bad.run = (const carry_key_run[]){{__VA_ARGS__}})
    REFUSED(CARRY_ERANGE, "run 0 is 2 rows from row 19", RUN(.first = 19, .count = 2));
    REFUSED(CARRY_ERANGE, "run 0 is", RUN(.first = -1, .count = 2));
    REFUSED(CARRY_ERANGE, "run 0 is", RUN(.first = 1, .count = -1));
    REFUSED(CARRY_ERANGE, "run 0 is", RUN(.first = 2, .count = INT64_MAX));
    REFUSED(CARRY_ERANGE, "run 0 is", RUN(.first = INT64_MAX, .count = 1));
    REFUSED(CARRY_ERANGE, "bias of nan", RUN(.first = 1, .count = 1, .bias = NAN));
    REFUSED(CARRY_ERANGE, "bias of nan", RUN(.first = 1, .count = 0, .bias = NAN));
    REFUSED(CARRY_ERANGE, "bias of inf", RUN(.first = 1, .count = 1, .bias = INFINITY));
    REFUSED(CARRY_ERANGE, "runs 0 and 2 both have row 5",
            (bad.runs = 3, bad.run = (const carry_key_run[]){
                               {.first = 0, .count = 6}, {.first = 5, .count = 0}, {.first = 5, .count = 9}}));
    assert_refused(ctx, CARRY_EWORKSPACE, "the workspace has", carry_attention(ctx, &good, w, bytes - 1));
    assert_refused(ctx, CARRY_EWORKSPACE, "null pointer", carry_attention(ctx, &good, NULL, bytes));
    assert_refused(ctx, CARRY_EALIGN, "aligned", carry_attention(ctx, &good, w + 4, bytes));
    for (size_t i = 0; i < o.bytes; i++) {
        assert_int_equal(o.memory[i], 255);
    }
    assert_ok(ctx, carry_attention(ctx, &good, w, bytes));
}

/* malloc guarantees no more than 16 bytes of alignment. */
static void test_a_workspace_needs_the_alignment_of_malloc_only(void **state) {
    (void)state;
    problem p = some_problem(CARRY_F32, 6, 20, 2, 8, 0, 2);
    placed first = place(CARRY_F32, 6, 2, 8, 0), second = place(CARRY_F32, 6, 2, 8, 0);
    array lse = poisoned(CARRY_F32, 2, SHAPE(2, 6));
    const carry_attention_args by_first = args_of(&p, &first.t, &lse.t), by_second = args_of(&p, &second.t, &lse.t);
    const size_t bytes = carry_attention_workspace(&by_first);
    unsigned char *w = workspace_of(bytes + 64);
    assert_ok(ctxs[0], carry_attention(ctxs[0], &by_first, w, bytes));
    for (size_t shift = 16; shift < 64; shift += 16) {
        memset(second.memory, 255, second.bytes);
        assert_ok(ctxs[0], carry_attention(ctxs[0], &by_second, w + shift, bytes));
        assert_memory_equal(first.memory, second.memory, first.bytes);
    }
}

/* A workspace is queried before all tensors exist. */
static void test_a_workspace_depends_on_q_and_k_alone(void **state) {
    (void)state;
    for (int type = 0; type < 3; type++) {
        const carry_tensor q = carry_view_3d(NULL, types[type], 64, 2, 32);
        const carry_tensor k = carry_view_3d(NULL, types[type], 96, 1, 32);
        const carry_attention_args some = {.q = q, .k = k}, all = {.o = q, .q = q, .k = k, .v = k};
        assert_int_equal(carry_attention_workspace(&some), carry_attention_workspace(&all));
    }
}

static void test_no_queries_and_no_heads_are_nothing_to_do(void **state) {
    (void)state;
    float one[64] = {0};
    for (int way = 0; way < 2; way++) {
        carry_tensor q = carry_view_3d(one, CARRY_F32, way == 0 ? 0 : 3, way == 0 ? 2 : 0, 4);
        carry_tensor k = carry_view_3d(one, CARRY_F32, 5, way == 0 ? 2 : 0, 4);
        carry_attention_args args = {.o = q, .q = q, .k = k, .v = k};
        assert_int_equal(carry_attention_workspace(&args), 0);
        assert_ok(ctxs[0], carry_attention(ctxs[0], &args, NULL, 0));
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(test_attention_matches_float64_for_every_size, free_kept),
        cmocka_unit_test_teardown(test_attention_is_the_same_for_any_number_of_threads, free_kept),
        cmocka_unit_test_teardown(test_attention_matches_float64_with_every_set_of_kernels, free_kept),
        cmocka_unit_test_teardown(test_attention_by_tiles_matches_float64, free_kept),
        cmocka_unit_test(test_a_workspace_depends_on_q_and_k_alone),
        cmocka_unit_test_teardown(test_biases_weigh_keys, free_kept),
        cmocka_unit_test_teardown(test_keys_of_no_run_are_never_read, free_kept),
        cmocka_unit_test_teardown(test_nothing_seen_gives_zeros, free_kept),
        cmocka_unit_test_teardown(test_huge_scores_do_not_overflow, free_kept),
        cmocka_unit_test_teardown(test_infinities_and_nans_stay_where_they_belong, free_kept),
        cmocka_unit_test_teardown(test_values_that_are_not_finite_reach_no_earlier_query, free_kept),
        cmocka_unit_test_teardown(test_huge_biases_do_not_overflow, free_kept),
        cmocka_unit_test_teardown(test_wrong_calls_are_refused, free_kept),
        cmocka_unit_test_teardown(test_a_workspace_needs_the_alignment_of_malloc_only, free_kept),
        cmocka_unit_test_teardown(test_no_queries_and_no_heads_are_nothing_to_do, free_kept),
    };
    return cmocka_run_group_tests(tests, open_contexts, close_contexts);
}
