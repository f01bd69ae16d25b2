/* The gated delta rule: every method equals the float64 recurrence for every option; calls may be split anywhere;
   nothing depends on threads, on neighbours or on the layout of inputs in memory; bad input is refused by name. */
#include <math.h>

#include "support.h"

enum { MAX = 1 << 17 };

typedef struct data {
    carry_delta_problem p;
    int64_t sequences;
    float *q, *k, *v, *beta, *g, *state, *A_log, *dt_bias;
    const int64_t *borders;
    double *o, *final;
} data;

static float *normals(carry_ctx *ctx, int64_t count, uint64_t stream, float deviation) {
    float *made = malloc((size_t)(count > 0 ? count : 1) * sizeof *made);
    assert_non_null(made);
    assert_ok(ctx, carry_random_normal(ctx, carry_view_1d(made, CARRY_F32, count), 9, stream, 0.0f, deviation));
    return made;
}

static carry_delta_forward_args inputs(const data *d, carry_tensor t[8]) {
    const carry_delta_problem *p = &d->p;
    t[0] = p->gate == CARRY_DELTA_KEY_GATE ? carry_view_4d(d->g, CARRY_F32, p->batch, p->tokens, p->value_heads, p->key)
                                           : carry_view_3d(d->g, CARRY_F32, p->batch, p->tokens, p->value_heads);
    int64_t rows = p->state_transposed ? p->value : p->key;
    t[1] = carry_view_4d(d->state, CARRY_F32, d->sequences, p->value_heads, rows, p->key + p->value - rows);
    t[2] = carry_view_1d((void *)(uintptr_t)d->borders, CARRY_I64, d->sequences + 1);
    t[3] = carry_view_1d(d->A_log, CARRY_F32, p->value_heads);
    t[4] = carry_view_1d(d->dt_bias, CARRY_F32, p->value_heads);
    return (carry_delta_forward_args){.q = carry_view_4d(d->q, CARRY_F32, p->batch, p->tokens, p->heads, p->key),
                                      .k = carry_view_4d(d->k, CARRY_F32, p->batch, p->tokens, p->heads, p->key),
                                      .v =
                                          carry_view_4d(d->v, CARRY_F32, p->batch, p->tokens, p->value_heads, p->value),
                                      .beta = carry_view_3d(d->beta, CARRY_F32, p->batch, p->tokens, p->value_heads),
                                      .g = p->gate != CARRY_DELTA_NO_GATE ? t[0] : (carry_tensor){0},
                                      .initial_state = t[1],
                                      .cu_seqlens = d->borders != NULL ? t[2] : (carry_tensor){0},
                                      .A_log = p->gate_inside ? t[3] : (carry_tensor){0},
                                      .dt_bias = p->gate_inside ? t[4] : (carry_tensor){0}};
}

static data make(carry_ctx *ctx, carry_delta_problem p, const int64_t *borders) {
    data d = {.p = p, .sequences = p.sequences > 0 ? p.sequences : p.batch, .borders = borders};
    int64_t tokens = p.batch * p.tokens;
    d.q = normals(ctx, tokens * p.heads * p.key, 0, p.l2norm ? 1.0f : 1.0f / sqrtf((float)p.key));
    d.k = normals(ctx, tokens * p.heads * p.key, 1, p.l2norm ? 1.0f : 1.0f / sqrtf((float)p.key));
    d.v = normals(ctx, tokens * p.value_heads * p.value, 2, 1.0f);
    d.beta = normals(ctx, tokens * p.value_heads, 3, 1.0f);
    d.g = normals(ctx, tokens * p.value_heads * (p.gate == CARRY_DELTA_KEY_GATE ? p.key : 1), 4, 1.0f);
    d.state = normals(ctx, d.sequences * p.value_heads * p.key * p.value, 5, 0.3f);
    d.A_log = normals(ctx, p.value_heads, 6, 0.5f);
    d.dt_bias = normals(ctx, p.value_heads, 7, 0.5f);
    for (int64_t i = 0; !p.beta_sigmoid && i < tokens * p.value_heads; i++) {
        d.beta[i] = 1.0f / (1.0f + expf(-d.beta[i]));
    }
    for (int64_t i = 0; !p.gate_inside && i < tokens * p.value_heads * (p.gate == CARRY_DELTA_KEY_GATE ? p.key : 1);
         i++) {
        d.g[i] = -0.3f * fabsf(d.g[i]);
    }
    d.o = calloc((size_t)(tokens * p.value_heads * p.value), sizeof *d.o);
    d.final = calloc((size_t)(d.sequences * p.value_heads * p.key * p.value), sizeof *d.final);
    assert_true(d.o != NULL && d.final != NULL);
    carry_tensor t[8];
    carry_delta_forward_args args = inputs(&d, t);
    assert_ok(ctx, carry_delta_reference(ctx, d.o, d.final, &d.p, &args));
    return d;
}

static void discard(data *d) {
    void *all[] = {d->q, d->k, d->v, d->beta, d->g, d->state, d->A_log, d->dt_bias, d->o, d->final};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
        free(all[i]);
    }
}

/* f32 sums of at most K + C terms through a solve: 1e-5 of the largest element is some ten times the observed error,
   and far below the effect of a wrong index. */
static void compare(const float *got, const double *wanted, int64_t count, double tolerance, const char *what) {
    double largest = 1e-30;
    for (int64_t i = 0; i < count; i++) {
        largest = fmax(largest, fabs(wanted[i]));
    }
    for (int64_t i = 0; i < count; i++) {
        if (!(fabs((double)got[i] - wanted[i]) <= tolerance * largest)) {
            fail_msg("%s: element %lld is %g and should be %g", what, (long long)i, (double)got[i], wanted[i]);
        }
    }
}

static double state_at(const data *d, const float *states, int64_t index, int64_t i, int64_t j) {
    const carry_delta_problem *p = &d->p;
    const float *S = states + index * p->key * p->value;
    return d->p.state_transposed ? S[j * p->key + i] : S[i * p->value + j];
}

static void check_methods(carry_ctx *ctx, data *d) {
    const carry_delta_problem *p = &d->p;
    int64_t o_count = p->batch * p->tokens * p->value_heads * p->value;
    int64_t s_count = d->sequences * p->value_heads * p->key * p->value;
    float *o = malloc((size_t)o_count * sizeof *o);
    float *final = malloc((size_t)s_count * sizeof *final);
    float *plain = malloc((size_t)s_count * sizeof *plain);
    assert_true(o != NULL && final != NULL && plain != NULL);
    for (int m = 0; carry_delta_name(0, m) != NULL; m++) {
        carry_delta_plan *plan;
        carry_tensor t[8];
        carry_delta_forward_args args = inputs(d, t);
        assert_ok(ctx, carry_delta_plan_new(ctx, &plan, p,
                                            &(carry_delta_options){CARRY_INIT(carry_delta_options),
                                                                   .algorithm = carry_delta_name(0, m)}));
        carry_tensor final_view = args.initial_state;
        final_view.data = final;
        memset(o, 0xff, (size_t)o_count * sizeof *o);
        memset(final, 0xff, (size_t)s_count * sizeof *final);
        args.o = carry_view_4d(o, CARRY_F32, p->batch, p->tokens, p->value_heads, p->value);
        args.final_state = final_view;
        size_t bytes = carry_delta_forward_workspace(plan);
        unsigned char *workspace = malloc(bytes + 8);
        assert_non_null(workspace);
        memset(workspace + bytes, 0x5a, 8);
        assert_ok(ctx, carry_delta_forward(plan, &args, workspace, bytes));
        for (int i = 0; i < 8; i++) {
            assert_int_equal(workspace[bytes + (size_t)i], 0x5a);
        }
        for (int64_t i = 0; i < s_count; i++) {
            int64_t inside = i % (p->key * p->value);
            plain[i] = (float)state_at(d, final, i / (p->key * p->value), inside / p->value, inside % p->value);
        }
        char what[96];
        (void)snprintf(what, sizeof what, "o by %s, T=%lld H=%lld HV=%lld K=%lld V=%lld", carry_delta_name(0, m),
                       (long long)p->tokens, (long long)p->heads, (long long)p->value_heads, (long long)p->key,
                       (long long)p->value);
        compare(o, d->o, o_count, 1e-5, what);
        what[0] = 'S';
        compare(plain, d->final, s_count, 1e-5, what);
        free(workspace);
        carry_delta_plan_free(plan);
    }
    free(o);
    free(final);
    free(plain);
}

static void every_method_equals_the_recurrence_for_every_shape(void **unused) {
    (void)unused;
    static const int64_t shapes[][6] = {{1, 1, 1, 1, 1, 1},      {1, 17, 1, 2, 3, 5},   {2, 33, 2, 2, 16, 16},
                                        {1, 65, 1, 1, 60, 100},  {3, 15, 1, 3, 33, 17}, {1, 129, 2, 4, 8, 1},
                                        {1, 200, 1, 1, 64, 64},  {1, 64, 1, 2, 1, 31},  {1, 20, 1, 1, 256, 256},
                                        {1, 70, 4, 8, 20, 24},   {1, 40, 8, 8, 16, 80}, /* heads in turns */
                                        {1, 20, 1, 2, 256, 512}, {1, 35, 1, 1, 7, 511}};
    for (int threads = 1; threads <= 3; threads++) {
        carry_ctx *ctx = support_ctx(threads, NULL, NULL);
        for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++) {
            for (int gate = 0; gate < 3; gate++) {
                if (!support_takes(threads * 27 + (int)i * 3 + gate, 5)) {
                    continue;
                }
                data d = make(ctx,
                              (carry_delta_problem){.batch = shapes[i][0],
                                                    .tokens = shapes[i][1],
                                                    .heads = shapes[i][2],
                                                    .value_heads = shapes[i][3],
                                                    .key = shapes[i][4],
                                                    .value = shapes[i][5],
                                                    .gate = (carry_delta_gate)gate,
                                                    .l2norm = i % 2 == 0,
                                                    .state_transposed = i % 3 == 1,
                                                    .scale = i % 4 == 2 ? 0.7f : 0.0f},
                              NULL);
                check_methods(ctx, &d);
                discard(&d);
            }
        }
        carry_ctx_free(ctx);
    }
}

static void options_inside_the_rule_equal_the_recurrence(void **unused) {
    (void)unused;
    carry_ctx *ctx = support_ctx(2, NULL, NULL);
    for (int form = 0; form < 8; form++) {
        data d = make(ctx,
                      (carry_delta_problem){.batch = 2,
                                            .tokens = 40,
                                            .heads = 1,
                                            .value_heads = 2,
                                            .key = 12,
                                            .value = 20,
                                            .gate = CARRY_DELTA_HEAD_GATE,
                                            .gate_inside = (form & 1) != 0,
                                            .beta_sigmoid = (form & 2) != 0,
                                            .beta_factor = (form & 2) != 0 ? 2.0f : 0.0f,
                                            .l2norm = true,
                                            .state_transposed = (form & 4) != 0},
                      NULL);
        check_methods(ctx, &d);
        discard(&d);
    }
    carry_ctx_free(ctx);
}

/* Empty sequences among the others, one longer than a chunk by one, and a thousand of one token. */
static void packed_sequences_do_not_leak(void **unused) {
    (void)unused;
    static const int64_t borders[] = {0, 0, 15, 100, 100, 165, 166, 300};
    static int64_t singles[1001];
    for (int64_t i = 0; i <= 1000; i++) {
        singles[i] = i;
    }
    carry_ctx *ctx = support_ctx(2, NULL, NULL);
    data d = make(ctx,
                  (carry_delta_problem){.batch = 1,
                                        .tokens = 300,
                                        .heads = 2,
                                        .value_heads = 4,
                                        .key = 16,
                                        .value = 18,
                                        .sequences = 7,
                                        .gate = CARRY_DELTA_HEAD_GATE,
                                        .l2norm = true},
                  borders);
    check_methods(ctx, &d);
    discard(&d);
    d = make(ctx,
             (carry_delta_problem){.batch = 1,
                                   .tokens = 1000,
                                   .heads = 1,
                                   .value_heads = 1,
                                   .key = 4,
                                   .value = 4,
                                   .sequences = 1000,
                                   .gate = CARRY_DELTA_HEAD_GATE,
                                   .l2norm = true},
             singles);
    check_methods(ctx, &d);
    discard(&d);
    carry_ctx_free(ctx);
}

/* No decay, decay of e^-20 a token, beta = 0, beta near 2. */
static void extreme_gates_and_betas_stay_finite_and_right(void **unused) {
    (void)unused;
    carry_ctx *ctx = support_ctx(2, NULL, NULL);
    for (int form = 0; form < 4; form++) {
        carry_delta_problem p = {.batch = 1,
                                 .tokens = 150,
                                 .heads = 1,
                                 .value_heads = 2,
                                 .key = 32,
                                 .value = 32,
                                 .gate = CARRY_DELTA_HEAD_GATE,
                                 .l2norm = true};
        data d = make(ctx, p, NULL);
        for (int64_t i = 0; i < p.tokens * p.value_heads; i++) {
            d.g[i] = form == 0 ? 0.0f : form == 1 ? -20.0f : i % 2 == 0 ? 0.0f : -20.0f;
            d.beta[i] = form == 2 ? 0.0f : form == 3 ? 1.99f : d.beta[i];
        }
        carry_tensor t[8];
        carry_delta_forward_args args = inputs(&d, t);
        assert_ok(ctx, carry_delta_reference(ctx, d.o, d.final, &d.p, &args));
        check_methods(ctx, &d);
        discard(&d);
    }
    carry_ctx_free(ctx);
}

/* One long call, any split into two calls with the state passed on, and prefill followed by steps: equal bit for bit if
   the split is between chunks, within rounding elsewhere. */
static void splits_and_steps_agree_with_one_call(void **unused) {
    (void)unused;
    enum { T = 70, HV = 2, K = 24, V = 20 };
    carry_ctx *ctx = support_ctx(2, NULL, NULL);
    carry_delta_problem p = {.batch = 1,
                             .tokens = T,
                             .heads = 1,
                             .value_heads = HV,
                             .key = K,
                             .value = V,
                             .gate = CARRY_DELTA_HEAD_GATE,
                             .l2norm = true};
    data d = make(ctx, p, NULL);
    for (int64_t cut = 1; cut < T; cut += 6) {
        static float o[T * HV * V], state[HV * K * V];
        memcpy(state, d.state, sizeof state);
        for (int part = 0; part < 2; part++) {
            int64_t from = part == 0 ? 0 : cut;
            int64_t tokens = part == 0 ? cut : T - cut;
            bool by_steps = part == 1 && cut % 4 == 3;
            for (int64_t t = from; t < from + tokens; t += by_steps ? 1 : tokens) {
                carry_delta_problem q = p;
                q.tokens = by_steps ? 1 : tokens;
                carry_delta_plan *plan;
                assert_ok(
                    ctx, carry_delta_plan_new(ctx, &plan, &q,
                                              &(carry_delta_options){CARRY_INIT(carry_delta_options),
                                                                     .algorithm = by_steps ? "recurrent" : "chunk16"}));
                void *workspace = malloc(carry_delta_forward_workspace(plan));
                assert_non_null(workspace);
                carry_tensor state_view = carry_view_4d(state, CARRY_F32, 1, HV, K, V);
                carry_tensor g = carry_view_3d(d.g + t * HV, CARRY_F32, 1, q.tokens, HV);
                carry_delta_forward_args args = {.o = carry_view_4d(o + t * HV * V, CARRY_F32, 1, q.tokens, HV, V),
                                                 .final_state = state_view,
                                                 .q = carry_view_4d(d.q + t * K, CARRY_F32, 1, q.tokens, 1, K),
                                                 .k = carry_view_4d(d.k + t * K, CARRY_F32, 1, q.tokens, 1, K),
                                                 .v = carry_view_4d(d.v + t * HV * V, CARRY_F32, 1, q.tokens, HV, V),
                                                 .beta = carry_view_3d(d.beta + t * HV, CARRY_F32, 1, q.tokens, HV),
                                                 .g = g,
                                                 .initial_state = state_view};
                if (by_steps) {
                    assert_ok(ctx, carry_delta_step(plan, args.o, state_view, &args, workspace,
                                                    carry_delta_forward_workspace(plan)));
                } else {
                    assert_ok(ctx, carry_delta_forward(plan, &args, workspace, carry_delta_forward_workspace(plan)));
                }
                free(workspace);
                carry_delta_plan_free(plan);
            }
        }
        compare(o, d.o, T * HV * V, 1e-5, "o of split calls");
        compare(state, d.final, HV * K * V, 1e-5, "state of split calls");
    }
    discard(&d);
    carry_ctx_free(ctx);
}

/* Threads, neighbours in the batch and strides change no bit. */
static void results_depend_on_nothing_but_the_sequence(void **unused) {
    (void)unused;
    enum { B = 3, T = 50, H = 2, HV = 4, K = 20, V = 50, O = T * HV * V };
    static float first[O], o[B * O], spread[B * T * HV * (V + 6)];
    for (int m = 0; carry_delta_name(0, m) != NULL; m++) {
        carry_ctx *one = support_ctx(1, NULL, NULL);
        data d = make(one,
                      (carry_delta_problem){.batch = B,
                                            .tokens = T,
                                            .heads = H,
                                            .value_heads = HV,
                                            .key = K,
                                            .value = V,
                                            .gate = CARRY_DELTA_HEAD_GATE,
                                            .l2norm = true},
                      NULL);
        for (int form = 0; form < 6; form++) {
            carry_ctx *ctx = support_ctx(form < 5 ? form + 1 : 2, NULL, NULL);
            data alone = d;
            alone.p.batch = alone.sequences = form == 0 ? 1 : B; /* sequence 0 by itself first */
            carry_tensor t[8];
            carry_delta_forward_args args = inputs(&alone, t);
            args.o = carry_view_4d(o, CARRY_F32, alone.p.batch, T, HV, V);
            if (form == 5) { /* v with a gap after every head */
                for (int64_t i = 0; i < B * T * HV; i++) {
                    memcpy(spread + i * (V + 6), d.v + i * V, V * sizeof *spread);
                }
                args.v.data = spread;
                args.v.stride[2] = V + 6;
                args.v.stride[1] = HV * (V + 6);
                args.v.stride[0] = T * HV * (V + 6);
            }
            carry_delta_plan *plan;
            assert_ok(ctx, carry_delta_plan_new(ctx, &plan, &alone.p,
                                                &(carry_delta_options){CARRY_INIT(carry_delta_options),
                                                                       .algorithm = carry_delta_name(0, m)}));
            void *workspace = malloc(carry_delta_forward_workspace(plan));
            assert_non_null(workspace);
            assert_ok(ctx, carry_delta_forward(plan, &args, workspace, carry_delta_forward_workspace(plan)));
            if (form == 0) {
                memcpy(first, o, sizeof first);
            } else if (memcmp(first, o, sizeof first) != 0) {
                fail_msg("%s: sequence 0 differs in form %d", carry_delta_name(0, m), form);
            }
            free(workspace);
            carry_delta_plan_free(plan);
            carry_ctx_free(ctx);
        }
        discard(&d);
        carry_ctx_free(one);
    }
}

/* A snapshot is the state a shorter call would have ended in. */
static void snapshots_are_the_states_on_the_way(void **unused) {
    (void)unused;
    enum { T = 53, HV = 8, K = 10, V = 12, S = HV * K * V };
    carry_ctx *ctx = support_ctx(2, NULL, NULL);
    for (int form = 0; form < 6; form++) {
        carry_delta_problem p = {.batch = 1,
                                 .tokens = T,
                                 .heads = form % 4 == 2 ? HV / 2 : HV, /* two or four of them take turns */
                                 .value_heads = HV,
                                 .key = K,
                                 .value = V,
                                 .gate = CARRY_DELTA_HEAD_GATE,
                                 .l2norm = true,
                                 .snapshot_every = form < 3 ? 5 + 12 * form : 0,
                                 .snapshot_last = form < 3 ? 0 : 1 + 26 * (form - 3)};
        data d = make(ctx, p, NULL);
        static float o[T * HV * V], snapshots[T * S];
        carry_delta_plan *plan;
        assert_ok(ctx,
                  carry_delta_plan_new(ctx, &plan, &p,
                                       &(carry_delta_options){CARRY_INIT(carry_delta_options),
                                                              .algorithm = form % 2 == 0 ? "chunk16" : "recurrent"}));
        int64_t count = carry_delta_snapshots(plan);
        carry_tensor t[8];
        carry_delta_forward_args args = inputs(&d, t);
        carry_tensor views = carry_view(snapshots, CARRY_F32, 5, (const int64_t[]){1, count, HV, K, V});
        args.o = carry_view_4d(o, CARRY_F32, 1, T, HV, V);
        args.snapshots = views;
        void *workspace = malloc(carry_delta_forward_workspace(plan));
        assert_non_null(workspace);
        memset(snapshots, 0xff, sizeof snapshots);
        assert_ok(ctx, carry_delta_forward(plan, &args, workspace, carry_delta_forward_workspace(plan)));
        compare(o, d.o, T * HV * V, 1e-5, "o with snapshots");
        for (int64_t i = 0; i < count; i++) {
            int64_t every = p.snapshot_every;
            int64_t after = every > 0 ? ((i + 1) * every < T ? (i + 1) * every : T) : T - p.snapshot_last + 1 + i;
            data shorter = d;
            shorter.p.tokens = after;
            shorter.p.snapshot_every = shorter.p.snapshot_last = 0;
            double state[S];
            static double unwanted[T * HV * V];
            carry_delta_forward_args short_args = inputs(&shorter, t);
            assert_ok(ctx, carry_delta_reference(ctx, unwanted, state, &shorter.p, &short_args));
            compare(snapshots + i * S, state, S, 1e-5, "snapshot");
        }
        free(workspace);
        carry_delta_plan_free(plan);
        discard(&d);
    }
    carry_ctx_free(ctx);
}

/* S -> M S + L over the whole range equals the effect of the forward pass on the state. */
static void a_range_is_its_pair(void **unused) {
    (void)unused;
    enum { T = 77, HV = 2, K = 18, V = 25 };
    carry_ctx *ctx = support_ctx(3, NULL, NULL);
    data d = make(ctx,
                  (carry_delta_problem){.batch = 1,
                                        .tokens = T,
                                        .heads = 1,
                                        .value_heads = HV,
                                        .key = K,
                                        .value = V,
                                        .gate = CARRY_DELTA_HEAD_GATE,
                                        .l2norm = true},
                  NULL);
    static float M[HV * K * K], L[HV * K * V], end[HV * K * V];
    for (int m = 0; carry_delta_name(0, m) != NULL; m++) {
        carry_delta_plan *plan;
        carry_tensor t[8];
        carry_delta_forward_args args = inputs(&d, t);
        assert_ok(ctx, carry_delta_plan_new(ctx, &plan, &d.p,
                                            &(carry_delta_options){CARRY_INIT(carry_delta_options),
                                                                   .algorithm = carry_delta_name(0, m)}));
        void *workspace = malloc(carry_delta_range_workspace(plan));
        assert_non_null(workspace);
        assert_ok(ctx, carry_delta_range(plan, carry_view_4d(M, CARRY_F32, 1, HV, K, K),
                                         carry_view_4d(L, CARRY_F32, 1, HV, K, V), &args, workspace,
                                         carry_delta_range_workspace(plan)));
        for (int64_t h = 0; h < HV; h++) {
            for (int64_t i = 0; i < K * V; i++) {
                double sum = L[h * K * V + i];
                for (int64_t c = 0; c < K; c++) {
                    sum += (double)M[(h * K + i / V) * K + c] * (double)d.state[h * K * V + c * V + i % V];
                }
                end[h * K * V + i] = (float)sum;
            }
        }
        compare(end, d.final, HV * K * V, 1e-5, "M S + L");
        free(workspace);
        carry_delta_plan_free(plan);
    }
    discard(&d);
    carry_ctx_free(ctx);
}

static void bad_input_is_refused_by_name(void **unused) {
    (void)unused;
    carry_ctx *ctx = support_ctx(1, NULL, NULL);
    carry_delta_plan *plan;
    const carry_delta_problem good = {
        .batch = 1, .tokens = 8, .heads = 2, .value_heads = 4, .key = 4, .value = 4, .gate = CARRY_DELTA_HEAD_GATE};
    carry_delta_problem p = good;
    p.key = 257;
    assert_refused(ctx, CARRY_ESIZE, "K (q's and k's last size) is 257", carry_delta_plan_new(ctx, &plan, &p, NULL));
    p.key = 256;
    p.value = 513;
    assert_refused(ctx, CARRY_ESIZE, "V (v's last size) is 513 and must be 1 to 512",
                   carry_delta_plan_new(ctx, &plan, &p, NULL));
    p = good;
    p.value_heads = 3;
    assert_refused(ctx, CARRY_ESHAPE, "q has 2 heads and v has 3: v's heads must be a multiple of q's",
                   carry_delta_plan_new(ctx, &plan, &p, NULL));
    p = good;
    p.batch = p.tokens = p.value_heads = (int64_t)1 << 30;
    assert_refused(ctx, CARRY_ESIZE, "multiply", carry_delta_plan_new(ctx, &plan, &p, NULL));
    assert_refused(
        ctx, CARRY_ENOTFOUND, "no delta-rule method 'chunk7'",
        carry_delta_plan_new(ctx, &plan, &good,
                             &(carry_delta_options){CARRY_INIT(carry_delta_options), .algorithm = "chunk7"}));
    p = good;
    p.sequences = 2;
    p.batch = 3;
    assert_refused(ctx, CARRY_EARGUMENT, "need a batch of 1, not 3", carry_delta_plan_new(ctx, &plan, &p, NULL));
    p = good;
    p.sequences = 2;
    const int64_t wrong[][3] = {{0, 9, 8}, {1, 4, 8}, {0, 4, 7}};
    data d = make(ctx, good, NULL);
    d.sequences = 2;
    d.p = p;
    float state[2 * 64] = {0};
    free(d.state);
    d.state = malloc(sizeof state);
    assert_non_null(d.state);
    memcpy(d.state, state, sizeof state);
    assert_ok(ctx, carry_delta_plan_new(ctx, &plan, &p, NULL));
    size_t bytes = carry_delta_forward_workspace(plan);
    void *workspace = malloc(bytes);
    float o[8 * 4 * 4];
    assert_non_null(workspace);
    for (int i = 0; i < 3; i++) {
        d.borders = wrong[i];
        carry_tensor t[8];
        carry_delta_forward_args args = inputs(&d, t);
        args.o = carry_view_4d(o, CARRY_F32, 1, 8, 4, 4);
        assert_refused(ctx, CARRY_EARGUMENT, "cu_seqlens", carry_delta_forward(plan, &args, workspace, bytes));
    }
    const int64_t right[] = {0, 3, 8};
    d.borders = right;
    carry_tensor t[8];
    carry_delta_forward_args args = inputs(&d, t);
    args.o = carry_view_4d(o, CARRY_F32, 1, 8, 4, 4);
    assert_refused(ctx, CARRY_EWORKSPACE, "the plan needs", carry_delta_forward(plan, &args, workspace, bytes - 1));
    args.k.shape[3] = 5;
    assert_refused(ctx, CARRY_ESHAPE, "k has shape [1, 8, 2, 5] where [1, 8, 2, 4]",
                   carry_delta_forward(plan, &args, workspace, bytes));
    args = inputs(&d, t);
    args.o = carry_view_4d(o, CARRY_F32, 1, 8, 4, 4);
    args.g = (carry_tensor){0};
    assert_refused(ctx, CARRY_EARGUMENT, "g is missing", carry_delta_forward(plan, &args, workspace, bytes));
    args = inputs(&d, t);
    args.o = carry_view_4d(o, CARRY_F32, 1, 8, 4, 4);
    args.o.stride[2] = 3; /* heads of 4 */
    assert_refused(ctx, CARRY_ESTRIDE, "its elements would overlap",
                   carry_delta_forward(plan, &args, workspace, bytes));
    args.o.stride[2] = 4;
    args.v.dtype = CARRY_F16;
    assert_refused(ctx, CARRY_EDTYPE, "v is f16", carry_delta_forward(plan, &args, workspace, bytes));
    args = inputs(&d, t);
    args.o = carry_view_4d(o, CARRY_F32, 1, 8, 4, 4);
    carry_tensor elsewhere = carry_view_4d(d.state, CARRY_F32, 2, 4, 4, 4);
    elsewhere.device = 1;
    args.final_state = elsewhere;
    assert_refused(ctx, CARRY_EDEVICE, "final_state is on device 1",
                   carry_delta_forward(plan, &args, workspace, bytes));
    float gradient[8 * 4 * 4];
    carry_delta_backward_args back = {.dq = carry_view_4d(gradient, CARRY_F32, 1, 8, 2, 4),
                                      .dk = carry_view_4d(gradient, CARRY_F32, 1, 8, 2, 4),
                                      .dv = carry_view_4d(gradient, CARRY_F32, 1, 8, 4, 4),
                                      .dbeta = carry_view_3d(gradient, CARRY_F32, 1, 8, 4),
                                      .d_o = carry_view_4d(o, CARRY_F32, 1, 8, 4, 4),
                                      .kept = (const char *)o + 2,
                                      .q = args.q,
                                      .k = args.k,
                                      .v = args.v,
                                      .beta = args.beta,
                                      .g = args.g,
                                      .initial_state = args.initial_state,
                                      .cu_seqlens = args.cu_seqlens};
    assert_refused(ctx, CARRY_EALIGN, "kept is at an address", carry_delta_backward(plan, &back, NULL, 0));
    d.q[5] = NAN; /* passes through */
    args = inputs(&d, t);
    args.o = carry_view_4d(o, CARRY_F32, 1, 8, 4, 4);
    assert_ok(ctx, carry_delta_forward(plan, &args, workspace, bytes));
    free(workspace);
    carry_delta_plan_free(plan);
    discard(&d);
    carry_ctx_free(ctx);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_method_equals_the_recurrence_for_every_shape),
        cmocka_unit_test(options_inside_the_rule_equal_the_recurrence),
        cmocka_unit_test(packed_sequences_do_not_leak),
        cmocka_unit_test(extreme_gates_and_betas_stay_finite_and_right),
        cmocka_unit_test(splits_and_steps_agree_with_one_call),
        cmocka_unit_test(results_depend_on_nothing_but_the_sequence),
        cmocka_unit_test(snapshots_are_the_states_on_the_way),
        cmocka_unit_test(a_range_is_its_pair),
        cmocka_unit_test(bad_input_is_refused_by_name),
    };
    return cmocka_run_group_tests_name("delta/rule", tests, NULL, NULL);
}
