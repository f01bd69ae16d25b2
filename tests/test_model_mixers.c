/* Every way to run a layer's recurrence does what the chunk mixer does: outputs, states and all gradients, over odd
   sizes and all flags; and a whole model with it has the same loss and gradients. */
#include "lm_support.h"

#include "core/rng.h"

typedef struct shape {
    int64_t batch, tokens, heads, value_heads, key, value;
} shape;

/* One token; less, as much and more than a chunk of 16; a prime length; one head and groups; K and V of one, odd, above
   a vector; V that a state has in two slices. */
static const shape shapes[] = {{1, 1, 1, 1, 1, 1},   {2, 15, 1, 2, 3, 5},   {1, 16, 2, 2, 8, 4},  {3, 17, 1, 1, 4, 1},
                               {1, 37, 2, 6, 17, 9}, {2, 64, 1, 1, 32, 32}, {1, 33, 1, 2, 5, 300}};

enum { Q, K, V, BETA, G, TENSORS };

/* Inputs, outputs and gradients of a layer, in the problem's type but for states and parameters. */
typedef struct layer {
    carry_delta_problem problem;
    int64_t sequences; /* N, also where not packed */
    int64_t cuts[8];
    void *x[TENSORS], *dx[TENSORS], *o, *grad_o;
    float *initial, *final, *A_log, *dt_bias, *dA_log, *ddt_bias;
    int64_t count[TENSORS], states;
    bool with_initial;
} layer;

static float uniform(uint64_t key, int64_t i) {
    return (float)carry_philox(11, key, (uint64_t)i).word[0] * 0x1p-31f - 1.0f;
}

static void *numbers(carry_dtype dtype, int64_t count, uint64_t key, float factor, float shift) {
    void *data = malloc((size_t)count * sizeof(float));
    assert_non_null(data);
    for (int64_t i = 0; i < count; i++) {
        float value = shift + factor * uniform(key, i);
        if (dtype == CARRY_F32) {
            ((float *)data)[i] = value;
        } else {
            ((uint16_t *)data)[i] = carry_bf16_from_f32(value);
        }
    }
    return data;
}

static void *poison(int64_t count) {
    void *data = malloc((size_t)count * sizeof(float));
    assert_non_null(data);
    memset(data, 0xff, (size_t)count * sizeof(float));
    return data;
}

/* A packed row of a sequence of one token, an empty one, the rest in two. */
static void cut(layer *l) {
    int64_t T = l->problem.tokens;
    const int64_t cuts[] = {0, T > 1 ? 1 : 0, T > 1 ? 1 : 0, (T + 1) / 2, T};
    memcpy(l->cuts, cuts, sizeof cuts);
    l->problem.sequences = l->sequences = 4;
}

static layer layer_new(const carry_delta_problem *problem, bool packed, bool with_initial) {
    layer l = {.problem = *problem, .sequences = problem->batch, .with_initial = with_initial};
    const carry_delta_problem *p = &l.problem;
    if (packed) {
        cut(&l);
    }
    int64_t tokens = p->batch * p->tokens;
    const int64_t counts[] = {tokens * p->heads * p->key, tokens * p->heads * p->key,
                              tokens * p->value_heads * p->value, tokens * p->value_heads, tokens * p->value_heads};
    float size = p->l2norm ? 1.0f : 1.0f / sqrtf((float)p->key); /* keys are no longer than one */
    for (int i = 0; i < TENSORS; i++) {
        l.count[i] = counts[i];
        l.dx[i] = poison(counts[i]);
    }
    l.x[Q] = numbers(p->dtype, counts[Q], 1, size, 0.0f);
    l.x[K] = numbers(p->dtype, counts[K], 2, size, 0.0f);
    l.x[V] = numbers(p->dtype, counts[V], 3, 1.0f, 0.0f);
    l.x[BETA] = numbers(p->dtype, counts[BETA], 4, p->beta_sigmoid ? 2.0f : 0.5f, p->beta_sigmoid ? 0.0f : 0.5f);
    l.x[G] = numbers(p->dtype, counts[G], 5, 0.5f, p->gate_inside ? 0.0f : -0.5f);
    l.o = poison(counts[V]);
    l.grad_o = numbers(p->dtype, counts[V], 6, 1.0f, 0.0f);
    l.states = l.sequences * p->value_heads * p->key * p->value;
    l.initial = numbers(CARRY_F32, l.states, 7, 0.5f, 0.0f);
    l.final = poison(l.states);
    l.A_log = numbers(CARRY_F32, p->value_heads, 8, 0.5f, -1.0f);
    l.dt_bias = numbers(CARRY_F32, p->value_heads, 9, 0.5f, -0.5f);
    l.dA_log = poison(p->value_heads);
    l.ddt_bias = poison(p->value_heads);
    return l;
}

static void layer_free(layer *l) {
    for (int i = 0; i < TENSORS; i++) {
        free(l->x[i]);
        free(l->dx[i]);
    }
    void *rest[] = {l->o, l->grad_o, l->initial, l->final, l->A_log, l->dt_bias, l->dA_log, l->ddt_bias};
    for (size_t i = 0; i < sizeof rest / sizeof rest[0]; i++) {
        free(rest[i]);
    }
}

static carry_tensor rows(const layer *l, void *data, int64_t heads, int64_t width) {
    const int64_t sizes[] = {l->problem.batch, l->problem.tokens, heads, width};
    return carry_view(data, l->problem.dtype, width > 0 ? 4 : 3, sizes);
}

/* Forward and backward in a workspace of exactly the size that was stated. */
static carry_status run(carry_ctx *ctx, layer *l, const carry_lm_mixer *mixer, const void *options) {
    const carry_delta_problem *p = &l->problem;
    void *mixing;
    carry_status status = mixer->open(ctx, &mixing, p, options);
    if (status != CARRY_OK) {
        return status;
    }
    size_t bytes = mixer->workspace(mixing);
    void *workspace = malloc(bytes + 1), *kept = malloc(mixer->kept(mixing) + 1);
    assert_true(workspace != NULL && kept != NULL);
    memset(workspace, 0xff, bytes);
    const bool gated = p->gate != CARRY_DELTA_NO_GATE;
    carry_tensor g = rows(l, l->x[G], p->value_heads, 0), dg = rows(l, l->dx[G], p->value_heads, 0);
    carry_tensor A_log = carry_view_1d(l->A_log, CARRY_F32, p->value_heads);
    carry_tensor dt_bias = carry_view_1d(l->dt_bias, CARRY_F32, p->value_heads);
    carry_tensor dA_log = carry_view_1d(l->dA_log, CARRY_F32, p->value_heads);
    carry_tensor ddt_bias = carry_view_1d(l->ddt_bias, CARRY_F32, p->value_heads);
    carry_tensor cuts = carry_view_1d(l->cuts, CARRY_I64, p->sequences + 1);
    carry_tensor initial = carry_view_4d(l->initial, CARRY_F32, l->sequences, p->value_heads, p->key, p->value);
    carry_tensor final = carry_view_4d(l->final, CARRY_F32, l->sequences, p->value_heads, p->key, p->value);
    const carry_delta_forward_args forward = {.o = rows(l, l->o, p->value_heads, p->value),
                                              .final_state = &final,
                                              .kept = kept,
                                              .q = rows(l, l->x[Q], p->heads, p->key),
                                              .k = rows(l, l->x[K], p->heads, p->key),
                                              .v = rows(l, l->x[V], p->value_heads, p->value),
                                              .beta = rows(l, l->x[BETA], p->value_heads, 0),
                                              .g = gated ? &g : NULL,
                                              .initial_state = l->with_initial ? &initial : NULL,
                                              .cu_seqlens = p->sequences > 0 ? &cuts : NULL,
                                              .A_log = p->gate_inside ? &A_log : NULL,
                                              .dt_bias = p->gate_inside ? &dt_bias : NULL};
    const carry_delta_backward_args backward = {.dq = rows(l, l->dx[Q], p->heads, p->key),
                                                .dk = rows(l, l->dx[K], p->heads, p->key),
                                                .dv = rows(l, l->dx[V], p->value_heads, p->value),
                                                .dbeta = rows(l, l->dx[BETA], p->value_heads, 0),
                                                .dg = gated ? &dg : NULL,
                                                .dA_log = p->gate_inside ? &dA_log : NULL,
                                                .ddt_bias = p->gate_inside ? &ddt_bias : NULL,
                                                .grad_o = rows(l, l->grad_o, p->value_heads, p->value),
                                                .kept = kept,
                                                .q = forward.q,
                                                .k = forward.k,
                                                .v = forward.v,
                                                .beta = forward.beta,
                                                .g = forward.g,
                                                .initial_state = forward.initial_state,
                                                .cu_seqlens = forward.cu_seqlens,
                                                .A_log = forward.A_log,
                                                .dt_bias = forward.dt_bias};
    status = mixer->forward(mixing, &forward, workspace, bytes);
    if (status == CARRY_OK) {
        status = mixer->backward(mixing, &backward, workspace, bytes);
    }
    free(workspace);
    free(kept);
    mixer->close(mixing);
    return status;
}

/* |a - b| <= tolerance (|b| + floor), in RMS: floor is what a gradient is made of, where it cancels. */
static void compare(const char *name, const char *what, carry_dtype dtype, const void *got, const void *wanted,
                    int64_t count, double tolerance) {
    double difference = 0.0, magnitude = 0.0;
    for (int64_t i = 0; i < count; i++) {
        double a, b;
        if (dtype == CARRY_F32) {
            a = (double)((const float *)got)[i];
            b = (double)((const float *)wanted)[i];
        } else {
            a = (double)carry_f32_from_bf16(((const uint16_t *)got)[i]);
            b = (double)carry_f32_from_bf16(((const uint16_t *)wanted)[i]);
        }
        difference += (a - b) * (a - b);
        magnitude += b * b;
    }
    const double floor = 0.1 * sqrt((double)count);
    if (!(sqrt(difference) <= tolerance * (sqrt(magnitude) + floor))) {
        fail_msg("%s: %s is %g apart, of %g", name, what, sqrt(difference), sqrt(magnitude));
    }
}

/* f32: sums of up to 64 tokens' and 300 columns' products in another order, some tens of roundings of 6e-8: 1e-5. bf16:
   both round the same sums, now and then to neighbours, which are 2^-8 apart. */
static void compare_layers(const char *name, const layer *a, const layer *b) {
    static const char *const names[] = {"dq", "dk", "dv", "dbeta", "dg"};
    const carry_delta_problem *p = &b->problem;
    const double tolerance = p->dtype == CARRY_F32 ? 1e-5 : 2e-3;
    compare(name, "o", p->dtype, a->o, b->o, b->count[V], tolerance);
    compare(name, "the final state", CARRY_F32, a->final, b->final, b->states, 1e-5);
    for (int i = 0; i < TENSORS; i++) {
        if (i != G || p->gate != CARRY_DELTA_NO_GATE) {
            compare(name, names[i], p->dtype, a->dx[i], b->dx[i], b->count[i], tolerance);
        }
    }
    if (p->gate_inside) {
        compare(name, "dA_log", CARRY_F32, a->dA_log, b->dA_log, p->value_heads, 2e-5);
        compare(name, "ddt_bias", CARRY_F32, a->ddt_bias, b->ddt_bias, p->value_heads, 2e-5);
    }
}

static void compare_mixers(carry_ctx *ctx, const carry_delta_problem *problem, bool packed, bool with_initial) {
    layer wanted = layer_new(problem, packed, with_initial);
    assert_ok(ctx, run(ctx, &wanted, &carry_lm_mixer_chunk, "chunk16"));
    for (int i = 0; carry_lm_mixer_at(i) != NULL; i++) {
        char name[160];
        const carry_delta_problem *p = problem;
        (void)snprintf(name, sizeof name,
                       "%s, %lldx%lld of %lld/%lld heads of %lldx%lld, gate %d%s, norm %d, beta %d x%g%s%s",
                       carry_lm_mixer_at(i)->name, (long long)p->batch, (long long)p->tokens, (long long)p->heads,
                       (long long)p->value_heads, (long long)p->key, (long long)p->value, (int)p->gate,
                       p->gate_inside ? " inside" : "", p->l2norm, p->beta_sigmoid, (double)p->beta_factor,
                       packed ? ", packed" : "", with_initial ? ", from states" : "");
        layer got = layer_new(problem, packed, with_initial);
        assert_ok(ctx, run(ctx, &got, carry_lm_mixer_at(i), NULL));
        compare_layers(name, &got, &wanted);
        layer_free(&got);
    }
    layer_free(&wanted);
}

static carry_delta_problem problem_of(const shape *s) {
    return (carry_delta_problem){.batch = s->batch,
                                 .tokens = s->tokens,
                                 .heads = s->heads,
                                 .value_heads = s->value_heads,
                                 .key = s->key,
                                 .value = s->value};
}

static void every_mixer_is_chunk_for_every_shape_and_flag(void **unused) {
    (void)unused;
    carry_ctx *ctx = support_ctx(2, NULL, NULL);
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++) {
        for (int flags = 0; flags < 12; flags++) {
            carry_delta_problem p = problem_of(&shapes[i]);
            p.gate = flags % 3 == 0 ? CARRY_DELTA_NO_GATE : CARRY_DELTA_HEAD_GATE;
            p.gate_inside = flags % 3 == 2;
            p.l2norm = flags / 3 % 2 == 0;
            p.beta_sigmoid = flags / 6 == 0;
            p.beta_factor = p.beta_sigmoid && flags % 2 == 1 ? 2.0f : 0.0f;
            p.scale = flags % 4 == 3 ? 0.7f : 0.0f;
            compare_mixers(ctx, &p, p.batch == 1 && flags % 2 == 0, flags % 3 == 1 || flags == 8);
        }
    }
    carry_ctx_free(ctx);
}

static void storage_in_16_bits_is_rounded_alike(void **unused) {
    (void)unused;
    carry_ctx *ctx = support_ctx(1, NULL, NULL);
    carry_delta_problem p = problem_of(&shapes[4]);
    p.dtype = CARRY_BF16;
    p.gate = CARRY_DELTA_HEAD_GATE;
    p.gate_inside = p.l2norm = p.beta_sigmoid = true;
    compare_mixers(ctx, &p, true, false);
    carry_ctx_free(ctx);
}

static void threads_change_no_bit(void **unused) {
    (void)unused;
    for (int i = 1; carry_lm_mixer_at(i) != NULL; i++) {
        layer of[2];
        for (int k = 0; k < 2; k++) {
            carry_ctx *ctx = support_ctx(1 + 2 * k, NULL, NULL);
            carry_delta_problem p = problem_of(&shapes[4]);
            p.gate = CARRY_DELTA_HEAD_GATE;
            p.gate_inside = p.l2norm = p.beta_sigmoid = true;
            of[k] = layer_new(&p, true, true);
            assert_ok(ctx, run(ctx, &of[k], carry_lm_mixer_at(i), NULL));
            carry_ctx_free(ctx);
        }
        assert_memory_equal(of[0].o, of[1].o, (size_t)of[0].count[V] * sizeof(float));
        for (int k = 0; k < TENSORS; k++) {
            assert_memory_equal(of[0].dx[k], of[1].dx[k], (size_t)of[0].count[k] * sizeof(float));
        }
        assert_memory_equal(of[0].dA_log, of[1].dA_log, (size_t)of[0].problem.value_heads * sizeof(float));
        layer_free(&of[0]);
        layer_free(&of[1]);
    }
}

/* The loss of a model by a mixer, and its gradients, which the caller frees. */
static double loss_of(const carry_lm_mixer *mixer, carry_lm_config config, bool recompute, float **gradients,
                      int64_t *count) {
    enum { B = 2, T = 29 };
    carry_ctx *ctx = support_ctx(2, NULL, NULL);
    carry_lm *lm = model(ctx, config);
    int64_t ids[B * T], labels[B * T];
    double loss = 0.0;
    for (int64_t i = 0; i < B * T; i++) {
        ids[i] = (3 * i + i * i) % SUPPORT_VOCABULARY;
        labels[i] = (5 * i + 1) % SUPPORT_VOCABULARY;
    }
    const carry_lm_args args = {.ids = carry_view_2d(ids, CARRY_I64, B, T),
                                .labels = carry_view_2d(labels, CARRY_I64, B, T),
                                .backward = true,
                                .loss = &loss};
    const carry_lm_pass_options options = {.batch = B, .tokens = T, .mixer = mixer, .recompute = recompute};
    assert_ok(ctx, run_once(lm, &options, &args));
    *gradients = lm->gradients;
    *count = lm->count;
    lm->gradients = NULL;
    carry_lm_free(lm);
    carry_ctx_free(ctx);
    return loss;
}

static void a_model_is_the_same_with_every_mixer(void **unused) {
    (void)unused;
    for (int variant = 0; variant < 3; variant++) {
        carry_lm_config config = small(variant == 0 ? CARRY_LM_DELTA_NET : CARRY_LM_GATED_DELTANET);
        config.allow_neg_eigval = variant == 2;
        float *wanted, *got;
        int64_t count;
        double loss = loss_of(&carry_lm_mixer_chunk, config, false, &wanted, &count);
        for (int i = 1; carry_lm_mixer_at(i) != NULL; i++) {
            double other = loss_of(carry_lm_mixer_at(i), config, variant == 1, &got, &count);
            if (!(fabs(other - loss) <= 1e-5 * loss) || !(apart_f32(got, wanted, count) <= 1e-4)) {
                fail_msg("%s: the loss is %.9g and should be %.9g; gradients are %g apart", carry_lm_mixer_at(i)->name,
                         other, loss, apart_f32(got, wanted, count));
            }
            free(got);
        }
        free(wanted);
    }
}

/* A, b, the gradients, and the scan's own copy of them are everybody's; sequential adds nothing to that, cyclic the
   transitions of its levels, doubling a copy of everything to go to and fro. */
static void memory_is_what_the_algorithm_needs(void **unused) {
    (void)unused;
    carry_ctx *ctx = support_ctx(1, NULL, NULL);
    const carry_delta_problem p = {.batch = 1, .tokens = 512, .heads = 2, .value_heads = 2, .key = 32, .value = 32};
    size_t bytes[8] = {0};
    for (int i = 1; carry_lm_mixer_at(i) != NULL; i++) {
        void *mixing;
        assert_ok(ctx, carry_lm_mixer_at(i)->open(ctx, &mixing, &p, NULL));
        bytes[i] = carry_lm_mixer_at(i)->workspace(mixing);
        assert_int_equal(carry_lm_mixer_at(i)->kept(mixing), 0);
        assert_non_null(strstr(carry_lm_mixer_at(i)->plan(mixing), "1 of 2 heads at a time"));
        carry_lm_mixer_at(i)->close(mixing);
    }
    const size_t cyclic = bytes[1], scan = bytes[2], blelloch = bytes[3], sequential = bytes[4];
    const size_t steps = 512 * 32 * 32 * sizeof(float); /* of A, of b, of l and so on */
    assert_true(sequential >= 4 * steps && sequential < 5 * steps);
    assert_true(sequential < cyclic && cyclic < scan && cyclic < blelloch);
    carry_ctx_free(ctx);
}

static void mixers_have_names_and_refuse_what_they_cannot_do(void **unused) {
    (void)unused;
    carry_ctx *ctx = support_ctx(1, NULL, NULL);
    static const char *const names[] = {"chunk", "cyclic", "scan", "blelloch", "sequential"};
    for (int i = 0; i < 5; i++) {
        assert_ptr_equal(carry_lm_mixer_named(names[i]), carry_lm_mixer_at(i));
        assert_string_equal(carry_lm_mixer_at(i)->name, names[i]);
    }
    assert_null(carry_lm_mixer_at(5));
    assert_null(carry_lm_mixer_at(-1));
    assert_null(carry_lm_mixer_named("chunky"));
    const carry_lm_mixer *scan = carry_lm_mixer_named("scan");
    carry_delta_problem p = problem_of(&shapes[1]);
    void *mixing;
    p.gate = CARRY_DELTA_KEY_GATE;
    assert_refused(ctx, CARRY_EUNSUPPORTED, "no key gate", scan->open(ctx, &mixing, &p, NULL));
    assert_null(mixing);
    p.gate = CARRY_DELTA_NO_GATE;
    p.tokens = p.value_heads = (int64_t)1 << 30;
    assert_refused(ctx, CARRY_ESIZE, "memory", scan->open(ctx, &mixing, &p, NULL));
    assert_null(mixing);
    p.tokens = 3;

    p.value_heads = 0;
    assert_refused(ctx, CARRY_ESIZE, "value_heads", scan->open(ctx, &mixing, &p, NULL));
    p.value_heads = 2;
    assert_ok(ctx, scan->open(ctx, &mixing, &p, NULL));
    assert_refused(ctx, CARRY_ESHAPE, "q", scan->forward(mixing, &(carry_delta_forward_args){0}, NULL, 0));
    scan->close(mixing);
    carry_ctx_free(ctx);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_mixer_is_chunk_for_every_shape_and_flag),
        cmocka_unit_test(storage_in_16_bits_is_rounded_alike),
        cmocka_unit_test(threads_change_no_bit),
        cmocka_unit_test(a_model_is_the_same_with_every_mixer),
        cmocka_unit_test(memory_is_what_the_algorithm_needs),
        cmocka_unit_test(mixers_have_names_and_refuse_what_they_cannot_do),
    };
    return cmocka_run_group_tests_name("model/mixers", tests, NULL, NULL);
}
