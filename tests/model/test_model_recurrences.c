/* Every implementation of a layer's recurrence gives the results of the chunk recurrence: outputs, states and all
   gradients, over odd sizes and all flags; and a whole model with it has the same loss and gradients. */
#include "recurrence_support.h"

/* |a - b| <= tolerance (|b| + floor), in RMS; floor is the size of a gradient's terms, which may cancel. */
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

/* f32: sums of the products of up to 64 tokens and 300 columns in another order, some tens of roundings of 6e-8: 1e-5.
   bf16: both round the same sums, sometimes to neighbouring numbers, which are 2^-8 apart. */
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

static void compare_recurrences(carry_ctx *ctx, const carry_delta_problem *problem, bool packed, bool with_initial) {
    layer wanted = layer_new(problem, packed, with_initial);
    assert_ok(ctx, run(ctx, &wanted, &carry_lm_recurrence_chunk, "chunk16"));
    for (int i = 0; carry_lm_recurrence_at(i) != NULL; i++) {
        char name[160];
        const carry_delta_problem *p = problem;
        (void)snprintf(name, sizeof name,
                       "%s, %lldx%lld of %lld/%lld heads of %lldx%lld, gate %d%s, norm %d, beta %d x%g%s%s",
                       carry_lm_recurrence_at(i)->name, (long long)p->batch, (long long)p->tokens, (long long)p->heads,
                       (long long)p->value_heads, (long long)p->key, (long long)p->value, (int)p->gate,
                       p->gate_inside ? " inside" : "", p->l2norm, p->beta_sigmoid, (double)p->beta_factor,
                       packed ? ", packed" : "", with_initial ? ", from states" : "");
        layer got = layer_new(problem, packed, with_initial);
        assert_ok(ctx, run(ctx, &got, carry_lm_recurrence_at(i), NULL));
        compare_layers(name, &got, &wanted);
        layer_free(&got);
    }
    layer_free(&wanted);
}

static void every_recurrence_is_chunk_for_every_shape_and_flag(void **unused) {
    (void)unused;
    carry_ctx *ctx = support_ctx(2, NULL, NULL);
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++) {
        for (int flags = support_cases(0, (int)i % 5); flags < 12; flags += support_cases(1, 5)) {
            carry_delta_problem p = problem_of(&shapes[i]);
            p.gate = flags % 3 == 0 ? CARRY_DELTA_NO_GATE : CARRY_DELTA_HEAD_GATE;
            p.gate_inside = flags % 3 == 2;
            p.l2norm = flags / 3 % 2 == 0;
            p.beta_sigmoid = flags / 6 == 0;
            p.beta_factor = p.beta_sigmoid && flags % 2 == 1 ? 2.0f : 0.0f;
            p.scale = flags % 4 == 3 ? 0.7f : 0.0f;
            compare_recurrences(ctx, &p, p.batch == 1 && flags % 2 == 0, flags % 3 == 1 || flags == 8);
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
    compare_recurrences(ctx, &p, true, false);
    carry_ctx_free(ctx);
}

static void threads_change_no_bit(void **unused) {
    (void)unused;
    for (int i = 1; carry_lm_recurrence_at(i) != NULL; i++) {
        layer of[2];
        for (int k = 0; k < 2; k++) {
            carry_ctx *ctx = support_ctx(1 + 2 * k, NULL, NULL);
            carry_delta_problem p = problem_of(&shapes[4]);
            p.gate = CARRY_DELTA_HEAD_GATE;
            p.gate_inside = p.l2norm = p.beta_sigmoid = true;
            of[k] = layer_new(&p, true, true);
            assert_ok(ctx, run(ctx, &of[k], carry_lm_recurrence_at(i), NULL));
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

/* The loss of a model by a recurrence, and its gradients, which the caller frees. */
static double loss_of(const carry_lm_recurrence *recurrence, carry_lm_config config, bool recompute, float **gradients,
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
    const carry_lm_pass_options options = {.batch = B, .tokens = T, .recurrence = recurrence, .recompute = recompute};
    assert_ok(ctx, run_once(lm, &options, &args));
    *gradients = lm->own.gradients;
    *count = lm->own.count;
    lm->own.gradients = NULL;
    carry_lm_free(lm);
    carry_ctx_free(ctx);
    return loss;
}

static void a_model_is_the_same_with_every_recurrence(void **unused) {
    (void)unused;
    for (int variant = 0; variant < 3; variant++) {
        carry_lm_config config = small(variant == 0 ? &carry_lm_family_delta_net : &carry_lm_family_gated_deltanet);
        config.delta.allow_neg_eigval = variant == 2;
        float *wanted, *got;
        int64_t count;
        double loss = loss_of(&carry_lm_recurrence_chunk, config, false, &wanted, &count);
        for (int i = 1; carry_lm_recurrence_at(i) != NULL; i++) {
            double other = loss_of(carry_lm_recurrence_at(i), config, variant == 1, &got, &count);
            if (!(fabs(other - loss) <= 1e-5 * loss) || !(apart_f32(got, wanted, count) <= 1e-4)) {
                fail_msg("%s: the loss is %.9g and should be %.9g; gradients are %g apart",
                         carry_lm_recurrence_at(i)->name, other, loss, apart_f32(got, wanted, count));
            }
            free(got);
        }
        free(wanted);
    }
}

/* Every method needs A, b, the gradients, and the scan's own copy of them. sequential adds nothing, cyclic and blelloch
   add the transitions of their levels, and doubling adds a second copy of everything. */
static void memory_is_what_the_algorithm_needs(void **unused) {
    (void)unused;
    carry_ctx *ctx = support_ctx(1, NULL, NULL);
    const carry_delta_problem p = {.batch = 1, .tokens = 512, .heads = 2, .value_heads = 2, .key = 32, .value = 32};
    size_t bytes[8] = {0};
    for (int i = 1; carry_lm_recurrence_at(i) != NULL; i++) {
        void *running;
        assert_ok(ctx, carry_lm_recurrence_at(i)->open(ctx, &running, &p, NULL));
        bytes[i] = carry_lm_recurrence_at(i)->workspace(running);
        assert_int_equal(carry_lm_recurrence_at(i)->kept(running), 0);
        assert_non_null(strstr(carry_lm_recurrence_at(i)->plan(running), "1 of 2 heads at a time"));
        carry_lm_recurrence_at(i)->close(running);
    }
    const size_t cyclic = bytes[1], scan = bytes[2], blelloch = bytes[3], sequential = bytes[4];
    const size_t steps = 512 * 32 * 32 * sizeof(float); /* of A, of b, of l and so on */
    assert_true(sequential >= 4 * steps && sequential < 5 * steps);
    assert_true(sequential < cyclic && cyclic < scan);
    assert_true(sequential < blelloch && blelloch < scan);
    carry_ctx_free(ctx);
}

static void recurrences_have_names_and_refuse_what_they_cannot_do(void **unused) {
    (void)unused;
    carry_ctx *ctx = support_ctx(1, NULL, NULL);
    static const char *const names[] = {"chunk", "cyclic", "scan", "blelloch", "sequential"};
    for (int i = 0; i < 5; i++) {
        assert_ptr_equal(carry_lm_recurrence_named(names[i]), carry_lm_recurrence_at(i));
        assert_string_equal(carry_lm_recurrence_at(i)->name, names[i]);
    }
    assert_null(carry_lm_recurrence_at(5));
    assert_null(carry_lm_recurrence_at(-1));
    assert_null(carry_lm_recurrence_named("chunky"));
    const carry_lm_recurrence *scan = carry_lm_recurrence_named("scan");
    carry_delta_problem p = problem_of(&shapes[1]);
    void *running;
    p.gate = CARRY_DELTA_KEY_GATE;
    assert_refused(ctx, CARRY_EUNSUPPORTED, "no key gate", scan->open(ctx, &running, &p, NULL));
    assert_null(running);
    p.gate = CARRY_DELTA_NO_GATE;
    p.tokens = p.value_heads = (int64_t)1 << 30;
    assert_refused(ctx, CARRY_ESIZE, "memory", scan->open(ctx, &running, &p, NULL));
    assert_null(running);
    p.tokens = 3;

    p.value_heads = 0;
    assert_refused(ctx, CARRY_ESIZE, "value_heads", scan->open(ctx, &running, &p, NULL));
    p.value_heads = 2;
    assert_ok(ctx, scan->open(ctx, &running, &p, NULL));
    assert_refused(ctx, CARRY_ESHAPE, "q", scan->forward(running, &(carry_delta_forward_args){0}, NULL, 0));
    scan->close(running);
    carry_ctx_free(ctx);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_recurrence_is_chunk_for_every_shape_and_flag),
        cmocka_unit_test(storage_in_16_bits_is_rounded_alike),
        cmocka_unit_test(threads_change_no_bit),
        cmocka_unit_test(a_model_is_the_same_with_every_recurrence),
        cmocka_unit_test(memory_is_what_the_algorithm_needs),
        cmocka_unit_test(recurrences_have_names_and_refuse_what_they_cannot_do),
    };
    return cmocka_run_group_tests_name("model/recurrences", tests, NULL, NULL);
}
