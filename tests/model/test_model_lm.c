/* Language models: every variant equals the float64 model of lm_reference.h, logits and gradients; packed sequences
   equal separate ones; options that must not change a bit do not. */
#include "lm_reference.h"
#include "lm_support.h"

#define B 2
#define T 19 /* one chunk of 16 and some */
#define VOCABULARY SUPPORT_VOCABULARY

typedef struct batch {
    int64_t ids[B * T], labels[B * T];
    float logits[B * T * VOCABULARY];
    double loss;
    int64_t counted;
} batch;

static void fill(batch *x) {
    for (int64_t i = 0; i < B * T; i++) {
        x->ids[i] = (i * i * 7 + i / 3) % VOCABULARY;
    }
    for (int64_t i = 0; i < B * T; i++) {
        x->labels[i] = (i + 1) % T == 0 || i == 4 ? -100 : x->ids[i + 1];
    }
    memset(x->logits, 0xff, sizeof x->logits);
}

static carry_lm_args args_of(batch *x, int64_t rows, int64_t tokens) {
    return (carry_lm_args){.ids = carry_view_2d(x->ids, CARRY_I64, rows, tokens),
                           .labels = carry_view_2d(x->labels, CARRY_I64, rows, tokens),
                           .logits = carry_view_3d(x->logits, CARRY_F32, rows, tokens, VOCABULARY),
                           .backward = true,
                           .loss = &x->loss,
                           .counted = &x->counted};
}

static uint64_t noise(uint64_t x) {
    x ^= x >> 33;
    x *= 0xff51afd7ed558ccdu;
    x ^= x >> 33;
    x *= 0xc4ceb9fe1a85ec53u;
    return x ^ x >> 33;
}

/* Compares the gradient of every parameter, along a direction of random signs, with a central difference of the float64
   loss. The step 1e-6 leaves 1e-12 of curvature and 1e-8 of float64's rounding. f32 gradients are accurate to some 1e-6
   of their length, and their projection on random signs is about as long as the gradient itself: 1e-4 of it is generous
   and still finds any wrong term. */
static void compare_gradients(const char *name, carry_lm *lm, double *weights, const batch *x) {
    reference r = {.lm = lm, .weights = weights};
    for (int64_t i = 0; i < lm->own.parameters; i += support_cases(1, 2)) {
        const carry_lm_parameter *p = &lm->own.parameter[i];
        double along = 0.0;
        double length = 0.0;
        double losses[2];
        for (int side = 0; side < 2; side++) {
            for (int64_t j = 0; j < p->count; j++) {
                double sign = noise((uint64_t)(i * 1000003 + j)) % 2 == 0 ? 1.0 : -1.0;
                double gradient = (double)lm->own.gradients[p->offset + j];
                weights[p->offset + j] = (double)lm->own.weights[p->offset + j] + (side == 0 ? 1e-6 : -1e-6) * sign;
                along += side == 0 ? gradient * sign : 0.0;
                length += side == 0 ? gradient * gradient : 0.0;
            }
            losses[side] = reference_loss(&r, x->ids, x->labels, B, T);
        }
        for (int64_t j = 0; j < p->count; j++) {
            weights[p->offset + j] = (double)lm->own.weights[p->offset + j];
        }
        double slope = (losses[0] - losses[1]) / 2e-6 / (double)x->counted;
        if (!(length > 0.0) || !(fabs(slope - along) <= 1e-4 * sqrt(length) + 1e-8)) {
            fail_msg("%s: the gradient of %s is %g along a direction where the loss has slope %g (length %g)", name,
                     p->name, along, slope, sqrt(length));
        }
    }
}

static void compare_with_reference(carry_ctx *ctx, const char *name, carry_lm_config config) {
    carry_lm *lm = model(ctx, config);
    batch x;
    fill(&x);
    const carry_lm_pass_options options = {.batch = B, .tokens = T};
    carry_lm_args args = args_of(&x, B, T);
    assert_ok(ctx, run_once(lm, &options, &args));
    double *weights = reference_new(lm->own.count);
    for (int64_t i = 0; i < lm->own.count; i++) {
        weights[i] = (double)lm->own.weights[i];
    }
    reference r = {.lm = lm, .weights = weights};
    for (int64_t b = 0; b < B; b++) {
        double *wanted = reference_logits(&r, x.ids + b * T, T);
        double error = apart(x.logits + b * T * VOCABULARY, wanted, T * VOCABULARY);
        free(wanted);
        if (!(error <= 2e-5)) { /* some tens of roundings of 6e-8, through two layers */
            fail_msg("%s: logits are %g apart", name, error);
        }
    }
    assert_int_equal(x.counted, B * (T - 1) - 1);
    double loss = reference_loss(&r, x.ids, x.labels, B, T);
    if (!(fabs(x.loss - loss) <= 1e-5 * fabs(loss))) {
        fail_msg("%s: the loss is %.9g and should be %.9g", name, x.loss, loss);
    }
    compare_gradients(name, lm, weights, &x);
    free(weights);
    carry_lm_free(lm);
}

static void every_gated_variant_is_the_reference(void **unused) {
    (void)unused;
    carry_ctx *ctx = support_ctx(2, NULL, NULL);
    carry_lm_config plain = small(&carry_lm_family_gated_deltanet);
    compare_with_reference(ctx, "gated", plain);
    carry_lm_config c = plain;
    carry_lm_fla_of(&c)->num_v_heads = 4;
    c.delta.allow_neg_eigval = true;
    compare_with_reference(ctx, "grouped value heads, negative eigenvalues", c);
    c.tie_word_embeddings = true;
    c.delta.use_gate = false;
    compare_with_reference(ctx, "tied, without output gate", c);
    c = plain;
    c.delta.use_short_conv = false;
    carry_lm_fla_of(&c)->intermediate_size = 0;
    carry_lm_fla_of(&c)->hidden_ratio = 3.0;
    compare_with_reference(ctx, "without convolutions, intermediate from the ratio", c);
    c = plain;
    c.delta.conv_size = 1;
    compare_with_reference(ctx, "conv 1", c);
    c.delta.conv_size = 7;
    c.num_hidden_layers = 1;
    compare_with_reference(ctx, "conv 7", c);
    c = plain;
    c.num_hidden_layers = 1;
    c.delta.heads = 1;
    carry_lm_fla_of(&c)->num_v_heads = 2;
    carry_lm_fla_of(&c)->expand_v = 60.0; /* 300 wide: two slices of 150 */
    compare_with_reference(ctx, "wide value heads", c);
    carry_ctx_free(ctx);
}

static void every_delta_variant_is_the_reference(void **unused) {
    (void)unused;
    carry_ctx *ctx = support_ctx(2, NULL, NULL);
    carry_lm_config plain = small(&carry_lm_family_delta_net);
    compare_with_reference(ctx, "delta", plain);
    carry_lm_config c = plain;
    carry_lm_fla_of(&c)->expand_k = 0.5;
    carry_lm_fla_of(&c)->expand_v = 1.5;
    c.delta.use_gate = true;
    carry_lm_fla_of(&c)->use_output_norm = false; /* changes nothing, as in flash-linear-attention */
    compare_with_reference(ctx, "expanded, with output gate", c);
    c = plain;
    c.delta.use_beta = false;
    compare_with_reference(ctx, "without beta", c);
    c.delta.allow_neg_eigval = true;
    c.tie_word_embeddings = true;
    carry_lm_fla_of(&c)->expand_k = 0.5;
    compare_with_reference(ctx, "beta 2, tied", c);
    static const carry_activation activations[] = {CARRY_RELU, CARRY_ELU, CARRY_NO_ACTIVATION, CARRY_SILU};
    for (int i = 0; i < 8; i++) {
        c = plain;
        c.num_hidden_layers = 1;
        c.delta.qk_activation = activations[i / 2];
        c.delta.use_short_conv = i % 2 == 0;
        compare_with_reference(ctx, "activation", c);
    }
    carry_ctx_free(ctx);
}

/* Results of a run, compared bit by bit. */
typedef struct outcome {
    float logits[B * T * VOCABULARY];
    double loss;
    float *gradients;
    int64_t count;
} outcome;

static outcome outcome_of(int threads, carry_lm_config config, const carry_lm_pass_options *options) {
    carry_ctx *ctx = support_ctx(threads, NULL, NULL);
    carry_lm *lm = model(ctx, config);
    batch x;
    fill(&x);
    carry_lm_args args = args_of(&x, B, T);
    assert_ok(ctx, run_once(lm, options, &args));
    outcome o = {.loss = x.loss, .gradients = lm->own.gradients, .count = lm->own.count};
    memcpy(o.logits, x.logits, sizeof o.logits);
    lm->own.gradients = NULL;
    carry_lm_free(lm);
    carry_ctx_free(ctx);
    return o;
}

static void assert_same(const outcome *a, const outcome *b) {
    assert_memory_equal(a->logits, b->logits, sizeof a->logits);
    assert_true(a->loss == b->loss);
    assert_int_equal(a->count, b->count);
    assert_memory_equal(a->gradients, b->gradients, (size_t)a->count * sizeof(float));
}

static void threads_and_recomputation_change_no_bit(void **unused) {
    (void)unused;
    for (int which = 0; which < 2; which++) {
        const carry_lm_family *family = which == 0 ? &carry_lm_family_gated_deltanet : &carry_lm_family_delta_net;
        outcome first = outcome_of(1, small(family), &(carry_lm_pass_options){.batch = B, .tokens = T});
        for (int threads = support_cases(1, 3); threads <= 3; threads++) {
            outcome kept = outcome_of(threads, small(family), &(carry_lm_pass_options){.batch = B, .tokens = T});
            outcome again = outcome_of(threads, small(family),
                                       &(carry_lm_pass_options){.batch = B, .tokens = T, .recompute = true});
            assert_same(&first, &kept);
            assert_same(&first, &again);
            free(kept.gradients);
            free(again.gradients);
        }
        free(first.gradients);
    }
}

static void recomputing_takes_less_memory(void **unused) {
    (void)unused;
    carry_ctx *ctx = support_ctx(1, NULL, NULL);
    carry_lm_config config = small(&carry_lm_family_gated_deltanet);
    config.num_hidden_layers = 8;
    carry_lm *lm = model(ctx, config);
    size_t bytes[3];
    for (int i = 0; i < 3; i++) {
        carry_lm_pass *pass;
        const carry_lm_pass_options options = {.batch = B, .tokens = 256, .recompute = i == 1, .forward_only = i == 2};
        assert_ok(ctx, carry_lm_pass_new(lm, &pass, &options));
        bytes[i] = carry_lm_pass_memory(pass);
        carry_lm_pass_free(pass);
    }
    assert_true(bytes[1] < bytes[0] / 2 && bytes[2] < bytes[1]);
    carry_lm_free(lm);
    carry_ctx_free(ctx);
}

static void packed_sequences_equal_those_apart(void **unused) {
    (void)unused;
    static int64_t borders[] = {0, 1, 1, 18, 38}; /* sequences of one token, of none, across chunks */
    carry_ctx *ctx = support_ctx(2, NULL, NULL);
    for (int which = 0; which < 2; which++) {
        const carry_lm_family *family = which == 0 ? &carry_lm_family_gated_deltanet : &carry_lm_family_delta_net;
        carry_lm *lm = model(ctx, small(family));
        batch packed;
        fill(&packed);
        carry_lm_args args = args_of(&packed, 1, B * T);
        args.cu_seqlens = carry_view_1d(borders, CARRY_I64, 5);
        args.scale = 0.125f;
        assert_ok(ctx, run_once(lm, &(carry_lm_pass_options){.batch = 1, .tokens = B * T, .sequences = 4}, &args));
        float *gradients = lm->own.gradients;
        lm->own.gradients = NULL;
        assert_ok(ctx, carry_lm_want_gradients(lm));
        double loss = 0.0;
        batch whole;
        fill(&whole);
        for (int i = 0; i < 4; i++) {
            int64_t first = borders[i];
            int64_t length = borders[i + 1] - first;
            if (length == 0) {
                continue;
            }
            batch one;
            memcpy(one.ids, whole.ids + first, (size_t)length * sizeof *one.ids);
            memcpy(one.labels, whole.labels + first, (size_t)length * sizeof *one.labels);
            carry_lm_args apart_args = args_of(&one, 1, length);
            apart_args.scale = 0.125f;
            assert_ok(ctx, run_once(lm, &(carry_lm_pass_options){.batch = 1, .tokens = length}, &apart_args));
            loss += one.loss;
            assert_true(apart_f32(packed.logits + first * VOCABULARY, one.logits, length * VOCABULARY) <= 1e-5);
        }
        assert_true(fabs(packed.loss - loss) <= 1e-5 * fabs(loss));
        assert_true(apart_f32(gradients, lm->own.gradients, lm->own.count) <= 1e-5);
        free(gradients);
        carry_lm_free(lm);
    }
    carry_ctx_free(ctx);
}

static void bf16_is_near_f32(void **unused) {
    (void)unused;
    carry_lm_config config = small(&carry_lm_family_gated_deltanet);
    config.hidden_size = 48; /* small heads are badly conditioned, which is not tested here */
    carry_lm_fla_of(&config)->head_dim = 16;
    carry_ctx *ctx = support_ctx(2, NULL, NULL);
    carry_lm *lm = model_scaled(ctx, config, 5.0f);
    batch exact;
    fill(&exact);
    carry_lm_args args = args_of(&exact, B, T);
    assert_ok(ctx, run_once(lm, &(carry_lm_pass_options){.batch = B, .tokens = T}, &args));
    float *gradients = lm->own.gradients;
    lm->own.gradients = NULL;
    assert_ok(ctx, carry_lm_want_gradients(lm));
    batch x;
    fill(&x);
    uint16_t low[B * T * VOCABULARY];
    args = args_of(&x, B, T);
    args.logits = carry_view_3d(low, CARRY_BF16, B, T, VOCABULARY);
    assert_ok(ctx, run_once(lm, &(carry_lm_pass_options){.batch = B, .tokens = T, .dtype = CARRY_BF16}, &args));
    for (int i = 0; i < B * T * VOCABULARY; i++) {
        x.logits[i] = carry_f32_from_bf16(low[i]);
    }
    /* A rounding is 2^-9 = 2e-3 of a value; some forty of them in a row add up to about six times that. */
    assert_true(apart_f32(x.logits, exact.logits, B * T * VOCABULARY) <= 1.2e-2);
    assert_true(fabs(x.loss - exact.loss) <= 2e-3 * exact.loss);
    assert_true(apart_f32(lm->own.gradients, gradients, lm->own.count) <= 2.5e-2);
    free(gradients);
    carry_lm_free(lm);
    carry_ctx_free(ctx);
}

typedef struct order {
    const carry_lm *lm;
    int64_t end, calls;
    float *seen;
} order;

/* Ranges are reported from the end of the buffer to its beginning. */
static carry_status note_ready(void *user, int64_t first, int64_t count) {
    order *o = user;
    assert_int_equal(first + count, o->end);
    memcpy(o->seen + first, o->lm->own.gradients + first, (size_t)count * sizeof(float));
    o->end = first;
    o->calls++;
    return CARRY_OK;
}

static carry_status stop_at_once(void *user, int64_t first, int64_t count) {
    (void)user;
    (void)first;
    (void)count;
    return CARRY_EINTERRUPTED;
}

static void gradients_are_complete_when_they_are_said_to_be(void **unused) {
    (void)unused;
    carry_ctx *ctx = support_ctx(1, NULL, NULL);
    for (int tied = 0; tied < 2; tied++) {
        carry_lm_config config = small(&carry_lm_family_gated_deltanet);
        config.tie_word_embeddings = tied != 0;
        carry_lm *lm = model(ctx, config);
        order o = {.lm = lm, .end = lm->own.count, .seen = calloc((size_t)lm->own.count, sizeof(float))};
        batch x;
        fill(&x);
        carry_lm_args args = args_of(&x, B, T);
        args.ready = note_ready;
        args.user = &o;
        const carry_lm_pass_options options = {.batch = B, .tokens = T};
        assert_ok(ctx, run_once(lm, &options, &args));
        assert_int_equal(o.end, 0);
        assert_int_equal(o.calls, 4);
        assert_memory_equal(o.seen, lm->own.gradients, (size_t)lm->own.count * sizeof(float));
        /* A second run adds the same gradients again. */
        args.ready = NULL;
        assert_ok(ctx, run_once(lm, &options, &args));
        for (int64_t i = 0; i < lm->own.count; i++) {
            o.seen[i] *= 2.0f;
        }
        assert_true(apart_f32(lm->own.gradients, o.seen, lm->own.count) <= 1e-6);
        args.ready = stop_at_once;
        assert_int_equal(run_once(lm, &options, &args), CARRY_EINTERRUPTED);
        free(o.seen);
        carry_lm_free(lm);
    }
    carry_ctx_free(ctx);
}

static void what_does_not_fit_is_refused(void **unused) {
    (void)unused;
    carry_ctx *ctx = support_ctx(1, NULL, NULL);
    carry_lm *lm = model(ctx, small(&carry_lm_family_gated_deltanet));
    const carry_lm_pass_options options = {.batch = B, .tokens = T};
    batch x;
    fill(&x);
    carry_lm_args args = args_of(&x, B, T);
    x.ids[3] = VOCABULARY;
    assert_refused(ctx, CARRY_ERANGE, "11", run_once(lm, &options, &args));
    x.ids[3] = -1;
    assert_true(run_once(lm, &options, &args) != CARRY_OK);
    x.ids[3] = 1;
    x.labels[2] = VOCABULARY;
    assert_true(run_once(lm, &options, &args) != CARRY_OK);
    x.labels[2] = 1;
    args.cu_seqlens = carry_view_1d(x.ids, CARRY_I64, 3);
    assert_refused(ctx, CARRY_EARGUMENT, "cu_seqlens", run_once(lm, &options, &args));
    args.cu_seqlens = (carry_tensor){0};
    assert_refused(ctx, CARRY_EARGUMENT, "forward_only",
                   run_once(lm, &(carry_lm_pass_options){.batch = B, .tokens = T, .forward_only = true}, &args));
    assert_refused(ctx, CARRY_ESHAPE, "ids",
                   run_once(lm, &(carry_lm_pass_options){.batch = B, .tokens = T + 1}, &args));
    assert_refused(ctx, CARRY_ESIZE, "cannot be planned", run_once(lm, &(carry_lm_pass_options){.batch = B}, &args));
    assert_refused(ctx, CARRY_EDTYPE, "i64",
                   run_once(lm, &(carry_lm_pass_options){.batch = B, .tokens = T, .dtype = CARRY_I64}, &args));
    assert_refused(
        ctx, CARRY_ENOTFOUND, "nosuch",
        run_once(lm, &(carry_lm_pass_options){.batch = B, .tokens = T, .recurrence_options = "nosuch"}, &args));
    carry_lm_pass *pass;
    assert_ok(ctx, carry_lm_pass_new(lm, &pass, &options));
    char little[64];
    assert_refused(ctx, CARRY_EWORKSPACE, "bytes", carry_lm_run(pass, &args, little, sizeof little));
    carry_lm_pass_free(pass);
    carry_lm_free(lm);
    carry_ctx_free(ctx);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_gated_variant_is_the_reference),
        cmocka_unit_test(every_delta_variant_is_the_reference),
        cmocka_unit_test(threads_and_recomputation_change_no_bit),
        cmocka_unit_test(recomputing_takes_less_memory),
        cmocka_unit_test(packed_sequences_equal_those_apart),
        cmocka_unit_test(bf16_is_near_f32),
        cmocka_unit_test(gradients_are_complete_when_they_are_said_to_be),
        cmocka_unit_test(what_does_not_fit_is_refused),
    };
    return cmocka_run_group_tests_name("model/lm", tests, NULL, NULL);
}
