/* Gradients of attention against float64, analytic and by differences; accumulated if asked for, and the same for any
   number of threads. */
#include "attention_support.h"

typedef struct problem {
    placed q, k, v, d_o, o;
    placed dq, dk, dv;
    array lse;
    carry_key_run run[CARRY_MAX_KEY_RUNS];
    int runs;
    float scale;
} problem;

static carry_attention_backward_args args_of(problem *p) {
    return (carry_attention_backward_args){.dq = p->dq.t,
                                           .dk = p->dk.t,
                                           .dv = p->dv.t,
                                           .d_o = p->d_o.t,
                                           .forward = {.o = p->o.t,
                                                       .lse = p->lse.t,
                                                       .q = p->q.t,
                                                       .k = p->k.t,
                                                       .v = p->v.t,
                                                       .run = p->run,
                                                       .runs = p->runs,
                                                       .scale = p->scale}};
}

static problem some_problem(carry_dtype type, int64_t T, int64_t S, int64_t H, int64_t D, int layout, int set) {
    problem p = {.q = random_placed(type, T, H, D, layout, 1.0f),
                 .k = random_placed(type, S, H, D, (layout + 1) % LAYOUTS, 1.0f),
                 .v = random_placed(type, S, H, D, (layout + 2) % LAYOUTS, 1.0f),
                 .d_o = random_placed(type, T, H, D, (layout + 3) % LAYOUTS, 1.0f),
                 .o = place(type, T, H, D, (layout + 1) % LAYOUTS),
                 .dq = place(type, T, H, D, (layout + 2) % LAYOUTS),
                 .dk = random_placed(type, S, H, D, layout, 1.0f),
                 .dv = random_placed(type, S, H, D, (layout + 1) % LAYOUTS, 1.0f),
                 .lse = poisoned(CARRY_F32, 2, SHAPE(H, T))};
    p.runs = some_runs(p.run, set, S);
    return p;
}

static void forward(problem *p) {
    carry_attention_backward_args args = args_of(p);
    size_t bytes = carry_attention_workspace(&args.forward);
    assert_ok(ctxs[0], carry_attention(ctxs[0], &args.forward, workspace_of(bytes), bytes));
}

static void backward(carry_ctx *ctx, problem *p) {
    carry_attention_backward_args args = args_of(p);
    size_t bytes = carry_attention_backward_workspace(&args);
    unsigned char *workspace = workspace_of(bytes);
    assert_ok(ctx, carry_attention_backward(ctx, &args, workspace, bytes));
    assert_int_equal(workspace[bytes], 255);
}

static double *doubles(const carry_tensor *like) {
    return keep(calloc((size_t)carry_tensor_count(like) + 1, sizeof(double)));
}

static void add_values(double *sum, const carry_tensor *t) {
    for (int64_t i = 0; i < carry_tensor_count(t); i++) {
        sum[i] += value(t, i / t->shape[2] / t->shape[1], i / t->shape[2] % t->shape[1], i % t->shape[2]);
    }
}

static bool is_seen(const problem *p, int64_t row) {
    bool seen = p->runs == 0;
    for (int i = 0; i < p->runs; i++) {
        seen =
            seen || (row >= p->run[i].first && row < p->run[i].first + p->run[i].count && p->run[i].bias > -INFINITY);
    }
    return seen;
}

/* Scores and dP are sums of D products below 1 and round to about 2^-20; P, dS and dQ inherit that. dK and dV are sums
   over T queries, whose errors have either sign. mean = dO.O uses the stored o, which has its type's rounding of 2^-8
   or 2^-11 in each of D terms; times D^-1/2 for the score, that is one such rounding again. */
static double bound_of(const problem *p) {
    double stored = p->q.t.dtype == CARRY_F32 ? 0.0 : 2.0 * rounding(p->q.t.dtype);
    double scale = p->scale != 0.0f ? fabs((double)p->scale) * sqrt((double)p->q.t.shape[2]) : 1.0;
    return (0x1p-17 + stored) * (1.0 + sqrt((double)p->q.t.shape[0])) * fmax(1.0, scale);
}

static void check(carry_ctx *ctx, problem *p) {
    double *dq = doubles(&p->dq.t);
    double *dk = doubles(&p->dk.t);
    double *dv = doubles(&p->dv.t);
    double *before[2] = {doubles(&p->dk.t), doubles(&p->dv.t)};
    forward(p);
    carry_attention_backward_args args = args_of(p);
    assert_ok(ctx, carry_attention_reference_backward(ctx, dq, dk, dv, &args));
    add_values(dk, &p->dk.t);
    add_values(dv, &p->dv.t);
    add_values(before[0], &p->dk.t);
    add_values(before[1], &p->dv.t);
    backward(ctx, p);
    assert_placed_near("dq", &p->dq.t, dq, bound_of(p));
    assert_placed_near("dk", &p->dk.t, dk, bound_of(p));
    assert_placed_near("dv", &p->dv.t, dv, bound_of(p));
    int64_t row = p->k.t.shape[1] * p->k.t.shape[2];
    for (int64_t i = 0; i < p->k.t.shape[0] * row; i++) {
        if (!is_seen(p, i / row)) {
            int64_t h = i % row / p->k.t.shape[2];
            assert_true(value(&p->dk.t, i / row, h, i % p->k.t.shape[2]) == before[0][i]);
            assert_true(value(&p->dv.t, i / row, h, i % p->k.t.shape[2]) == before[1][i]);
        }
    }
    assert_gaps_untouched("dq", &p->dq);
    assert_gaps_untouched("dk", &p->dk);
    assert_gaps_untouched("dv", &p->dv);
}

static const int64_t shapes[][4] = {
    /* T, S, H, D; blocks have 128 queries and 128 keys; 16 or more heads are not split */
    {1, 1, 1, 1},     {1, 2, 3, 5},     {2, 1, 2, 128},  {7, 127, 1, 64},  {13, 128, 3, 17}, {31, 129, 2, 33},
    {127, 130, 1, 8}, {128, 300, 1, 3}, {129, 67, 2, 9}, {5, 259, 1, 256}, {3, 40, 17, 6},
};

static void test_gradients_match_float64_for_every_size(void **state) {
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
                check(ctxs[turn % CTXS], &p);
                free_kept(NULL);
            }
        }
    }
}

static double loss(problem *p) {
    double *o = doubles(&p->o.t);
    double *d_o = doubles(&p->o.t);
    carry_attention_backward_args args = args_of(p);
    assert_ok(ctxs[0], carry_attention_reference(ctxs[0], o, NULL, &args.forward));
    add_values(d_o, &p->d_o.t);
    double sum = 0.0;
    for (int64_t i = 0; i < carry_tensor_count(&p->o.t); i++) {
        sum += o[i] * d_o[i];
    }
    return sum;
}

/* The analytic gradient in float64 is itself compared with (L(x + h) - L(x - h)) / 2h, h = 2^-10: off by h^2 / 6 times
   a third derivative of order 1, 2e-7. */
static void test_float64_gradients_match_differences(void **state) {
    (void)state;
    problem p = some_problem(CARRY_F32, 3, 7, 2, 5, 0, 2);
    double *want[3] = {doubles(&p.q.t), doubles(&p.k.t), doubles(&p.v.t)};
    carry_attention_backward_args args = args_of(&p);
    assert_ok(ctxs[0], carry_attention_reference_backward(ctxs[0], want[0], want[1], want[2], &args));
    const carry_tensor *input[3] = {&p.q.t, &p.k.t, &p.v.t};
    for (int i = 0; i < 3; i++) {
        const carry_tensor *t = input[i];
        for (int64_t j = 0; j < carry_tensor_count(t); j += support_cases(1, 3)) {
            int64_t at[3] = {j / t->shape[2] / t->shape[1], j / t->shape[2] % t->shape[1], j % t->shape[2]};
            float x = (float)value(t, at[0], at[1], at[2]);
            float ends[2] = {x + 0x1p-10f, x - 0x1p-10f};
            double losses[2];
            for (int side = 0; side < 2; side++) {
                set_value(t, at[0], at[1], at[2], ends[side]);
                losses[side] = loss(&p);
            }
            set_value(t, at[0], at[1], at[2], x);
            double difference = (losses[0] - losses[1]) / ((double)ends[0] - (double)ends[1]);
            if (!(fabs(difference - want[i][j]) <= 2e-6)) {
                fail_msg("tensor %d element %lld: %.9g by differences, %.9g analytic", i, (long long)j, difference,
                         want[i][j]);
            }
        }
    }
}

static void test_gradients_are_the_same_for_any_number_of_threads(void **state) {
    (void)state;
    static const int threads[] = {1, 2, 3, 5};
    for (int type = 0; type < 3; type++) {
        problem p = some_problem(types[type], 150, support_cases(700, 300), type == 0 ? 1 : 3, 24, type, type);
        forward(&p);
        placed first[3];
        for (int c = 0; c < 4; c += support_cases(1, 2)) {
            carry_ctx *ctx = support_ctx(threads[c], NULL, NULL);
            placed *made[3] = {&p.dq, &p.dk, &p.dv};
            placed kept_before[2] = {p.dk, p.dv};
            for (int i = 0; i < 2; i++) { /* each run accumulates into the same numbers */
                unsigned char *copy = keep(malloc(made[i + 1]->bytes));
                memcpy(copy, made[i + 1]->memory, made[i + 1]->bytes);
                made[i + 1]->t.data = copy + ((unsigned char *)made[i + 1]->t.data - made[i + 1]->memory);
                made[i + 1]->memory = copy;
            }
            p.dq = place(types[type], 150, p.q.t.shape[1], 24, type);
            backward(ctx, &p);
            for (int i = 0; i < 3; i++) {
                first[i] = c == 0 ? *made[i] : first[i];
                assert_memory_equal(made[i]->memory, first[i].memory, first[i].bytes);
            }
            p.dk = kept_before[0];
            p.dv = kept_before[1];
            carry_ctx_free(ctx);
        }
    }
}

static carry_tensor rows_from(const carry_tensor *t, int64_t first, int64_t count) {
    carry_tensor part = *t;
    part.data = (unsigned char *)t->data + first * t->stride[0] * (int64_t)carry_dtype_size(t->dtype);
    part.shape[0] = count;
    return part;
}

/* dk and dv accumulated over two calls with different queries equal those of one call with all queries, to rounding. */
static void test_calls_over_parts_of_queries_add_up(void **state) {
    (void)state;
    problem p = some_problem(CARRY_F32, 50, 33, 1, 12, 2, 1);
    double *dq = doubles(&p.dq.t);
    double *dk = doubles(&p.dk.t);
    double *dv = doubles(&p.dv.t);
    forward(&p);
    carry_attention_backward_args whole = args_of(&p);
    assert_ok(ctxs[0], carry_attention_reference_backward(ctxs[0], dq, dk, dv, &whole));
    add_values(dk, &p.dk.t);
    add_values(dv, &p.dv.t);
    for (int i = 0; i < 2; i++) {
        int64_t first = i == 0 ? 0 : 19;
        int64_t count = i == 0 ? 19 : 31;
        carry_attention_backward_args part = whole;
        part.dq = rows_from(&whole.dq, first, count);
        part.d_o = rows_from(&whole.d_o, first, count);
        part.forward.o = rows_from(&whole.forward.o, first, count);
        part.forward.q = rows_from(&whole.forward.q, first, count);
        part.forward.lse = carry_view_2d((float *)p.lse.t.data + first, CARRY_F32, 1, count);
        size_t bytes = carry_attention_backward_workspace(&part);
        assert_ok(ctxs[0], carry_attention_backward(ctxs[0], &part, workspace_of(bytes), bytes));
    }
    assert_placed_near("dq", &p.dq.t, dq, bound_of(&p));
    assert_placed_near("dk", &p.dk.t, dk, bound_of(&p));
    assert_placed_near("dv", &p.dv.t, dv, bound_of(&p));
}

static void test_nothing_seen_gives_no_gradient(void **state) {
    (void)state;
    problem p = some_problem(CARRY_BF16, 5, 20, 2, 8, 0, 0);
    p.run[0] = (carry_key_run){.first = 0, .count = 20, .bias = -INFINITY};
    p.runs = 1;
    set_value(&p.k.t, 3, 0, 0, NAN);
    check(ctxs[1], &p);
}

/* A bias that all keys share changes no probability, even if it is so large that the scores lose their digits. */
static void test_large_biases_keep_the_gradients(void **state) {
    (void)state;
    static const float biases[] = {-1e4f, -1e9f, -1e30f, 1e4f, 1e30f};
    for (size_t i = 0; i < sizeof biases / sizeof biases[0]; i++) {
        for (int runs = 1; runs <= 3; runs++) {
            if (!support_takes((int)i * 3 + runs, 4)) {
                continue;
            }
            problem p = some_problem(CARRY_F32, 40, 150, 2, 16, 0, 0);
            for (int r = 0; r < runs; r++) {
                p.run[r] = (carry_key_run){.first = 50 * r, .count = r == runs - 1 ? 150 - 50 * r : 50};
                p.run[r].bias = r == 1 ? biases[i] - 2.0f : biases[i];
            }
            p.runs = runs;
            check(ctxs[0], &p);
        }
    }
}

/* One query sees no finite score: its lse is -infinity, and the other queries' gradients are not affected. */
static void test_a_query_with_lse_of_minus_infinity_gives_nothing(void **state) {
    (void)state;
    problem p = some_problem(CARRY_F32, 4, 9, 1, 6, 0, 0);
    forward(&p);
    ((float *)p.lse.t.data)[2] = -INFINITY;
    for (int64_t d = 0; d < 6; d++) {
        set_value(&p.o.t, 2, 0, d, 0.0f);
    }
    backward(ctxs[0], &p);
    for (int64_t i = 0; i < 4 * 6; i++) {
        double have = value(&p.dq.t, i / 6, 0, i % 6);
        assert_true(i / 6 == 2 ? have == 0.0 : isfinite(have) && have != 0.0);
    }
    for (int64_t i = 0; i < 9 * 6; i++) {
        assert_true(isfinite(value(&p.dk.t, i / 6, 0, i % 6)) && isfinite(value(&p.dv.t, i / 6, 0, i % 6)));
    }
}

static void test_wrong_calls_are_refused(void **state) {
    (void)state;
    carry_ctx *ctx = ctxs[0];
    problem p = some_problem(CARRY_F32, 6, 20, 2, 8, 0, 2);
    forward(&p);
    const carry_attention_backward_args good = args_of(&p);
    size_t bytes = carry_attention_backward_workspace(&good);
    unsigned char *w = workspace_of(bytes);
    carry_attention_backward_args bad = good;
#define REFUSED(status, words, change)                                                     \
    do {                                                                                   \
        bad = good;                                                                        \
        change;                                                                            \
        assert_refused(ctx, status, words, carry_attention_backward(ctx, &bad, w, bytes)); \
    } while (0)
    REFUSED(CARRY_ESHAPE, "dk has shape [19, 2, 8]", bad.dk.shape[0] = 19);
    REFUSED(CARRY_ESHAPE, "d_o has shape [6, 2, 9]", bad.d_o.shape[2] = 9);
    REFUSED(CARRY_ESHAPE, "lse has shape", bad.forward.lse.rank = 1);
    REFUSED(CARRY_EARGUMENT, "lse has no data", bad.forward.lse.data = NULL);
    REFUSED(CARRY_EARGUMENT, "dv has no data", bad.dv.data = NULL);
    REFUSED(CARRY_EDTYPE, "dq is bf16 and q is f32", bad.dq.dtype = CARRY_BF16);
    REFUSED(CARRY_ESTRIDE, "dk has strides", bad.dk.stride[1] = 0);
    REFUSED(CARRY_EUNSUPPORTED, "no entry for device 9", bad.forward.q.device = 9);
    REFUSED(CARRY_ERANGE, "runs 0 and 1 both have row 4",
            (bad.forward.runs = 2,
             bad.forward.run = (const carry_key_run[]){{.first = 0, .count = 5}, {.first = 4, .count = 2}}));
    assert_refused(ctx, CARRY_EWORKSPACE, "the workspace has", carry_attention_backward(ctx, &good, w, bytes - 1));
    for (size_t i = 0; i < p.dq.bytes; i++) {
        assert_int_equal(p.dq.memory[i], 255);
    }
    assert_ok(ctx, carry_attention_backward(ctx, &good, w, bytes));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(test_gradients_match_float64_for_every_size, free_kept),
        cmocka_unit_test_teardown(test_float64_gradients_match_differences, free_kept),
        cmocka_unit_test_teardown(test_gradients_are_the_same_for_any_number_of_threads, free_kept),
        cmocka_unit_test_teardown(test_calls_over_parts_of_queries_add_up, free_kept),
        cmocka_unit_test_teardown(test_nothing_seen_gives_no_gradient, free_kept),
        cmocka_unit_test_teardown(test_large_biases_keep_the_gradients, free_kept),
        cmocka_unit_test_teardown(test_a_query_with_lse_of_minus_infinity_gives_nothing, free_kept),
        cmocka_unit_test_teardown(test_wrong_calls_are_refused, free_kept),
    };
    return cmocka_run_group_tests(tests, open_contexts, close_contexts);
}
