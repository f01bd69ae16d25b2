/* A language model on every GPU against the same model on the CPU: initial weights bit by bit, loss, logits and
   gradients, generation, and states that move between devices in files. Without a GPU all of it is reported as
   skipped. */
/* labels: gpu */
#include "hybrid_support.h"

#include <unistd.h>

#include "carry/device.h"
#include "engine/generator.h"
#include "model/host.h"

#define BATCH 2
#define TOKENS 70 /* more than a chunk, and not a multiple of one */
#define VOCABULARY SUPPORT_VOCABULARY

typedef struct outcome {
    double loss;
    float logits[BATCH * TOKENS * VOCABULARY];
    float *gradients;
} outcome;

static void run_on(carry_ctx *ctx, carry_lm *lm, const carry_lm_pass_options *options, bool packed, outcome *o) {
    static int64_t ids[BATCH * TOKENS], labels[BATCH * TOKENS];
    int64_t cuts[] = {0, 3, 67, BATCH * TOKENS};
    for (int64_t i = 0; i < BATCH * TOKENS; i++) {
        ids[i] = (7 * i * i + i / 5) % VOCABULARY;
        labels[i] = i % 9 == 4 ? -100 : (3 * i + 2) % VOCABULARY;
    }
    carry_lm_pass *pass;
    void *memory;
    void *logits;
    int64_t counted;
    const int device = lm->own.device;
    assert_ok(ctx, carry_lm_pass_new(lm, &pass, options));
    assert_ok(ctx, carry_lm_pass_take(pass, &memory));
    assert_ok(ctx, carry_device_alloc(ctx, &logits, device, sizeof o->logits));
    assert_ok(ctx, carry_device_fill(ctx, memory, device, 0xff, carry_lm_pass_memory(pass), NULL));
    const int64_t shape[] = {options->batch, options->tokens, VOCABULARY};
    const carry_lm_args args = {
        .ids = carry_view_2d(ids, CARRY_I64, shape[0], shape[1]),
        .labels = carry_view_2d(labels, CARRY_I64, shape[0], shape[1]),
        .cu_seqlens = packed ? carry_view_1d(cuts, CARRY_I64, 4) : (carry_tensor){0},
        .logits = options->dtype == CARRY_F32 ? carry_view_on(device, logits, CARRY_F32, 3, shape) : (carry_tensor){0},
        .backward = true,
        .loss = &o->loss,
        .counted = &counted};
    assert_ok(ctx, carry_lm_run(pass, &args, memory, carry_lm_pass_memory(pass)));
    if (options->dtype == CARRY_F32) {
        assert_ok(ctx, carry_read(ctx, carry_view(o->logits, CARRY_F32, 3, shape), args.logits));
    }
    o->gradients = calloc((size_t)lm->own.count, sizeof(float));
    assert_non_null(o->gradients);
    assert_ok(ctx, carry_parameters_download(&lm->own, o->gradients, lm->own.gradients, 0, lm->own.count));
    carry_lm_pass_give(pass, memory);
    carry_device_free(ctx, device, logits);
    carry_lm_pass_free(pass);
}

/* A copy of the model on a GPU. */
static carry_lm *moved(carry_ctx *ctx, const carry_lm *lm, int device) {
    carry_lm *there;
    assert_ok(ctx, carry_lm_new(ctx, &there, &lm->config, device));
    for (int64_t i = 0; i < lm->own.parameters; i++) { /* their places may differ */
        const carry_parameter *from = &lm->own.parameter[i];
        assert_ok(ctx, carry_parameters_upload(&there->own, there->own.weights, there->own.parameter[i].offset,
                                               lm->own.weights + from->offset, from->count));
    }
    assert_ok(ctx, carry_lm_want_gradients(there));
    return there;
}

/* True if the gradients of a parameter are zero on both sides, such as a router's bias, which affects only the
   choice. */
static bool has_no_gradient(const float *here, const float *there, const carry_lm *other, int64_t index) {
    const carry_parameter *p = &other->own.parameter[index];
    bool zero = true;
    for (int64_t i = 0; i < p->count; i++) {
        zero = zero && here[i] == 0.0f && there[p->offset + i] == 0.0f;
    }
    return zero;
}

/* f32 sums in another order: some hundred roundings of 6e-8 in the loss; gradients pass through two layers more. */
static void compare(carry_ctx *ctx, carry_lm_config config, carry_lm_pass_options options, bool packed) {
    static outcome here, there;
    options.batch = packed ? 1 : BATCH;
    options.tokens = packed ? BATCH * TOKENS : TOKENS;
    options.sequences = packed ? 3 : 0;
    const bool is_wide = options.dtype == CARRY_F32;
    for (int device = 1; device < carry_device_count(); device++) {
        carry_lm *lm = model(ctx, config);
        carry_lm *other = moved(ctx, lm, device);
        run_on(ctx, lm, &options, packed, &here);
        run_on(ctx, other, &options, packed, &there);
        assert_true(fabs(here.loss - there.loss) <= (is_wide ? 1e-5 : 3e-2) * fabs(here.loss));
        if (is_wide) {
            assert_true(apart_f32(there.logits, here.logits, BATCH * TOKENS * VOCABULARY) <= 1e-4);
        }
        for (int64_t i = 0; i < lm->own.parameters && is_wide; i++) {
            const carry_parameter *p = &lm->own.parameter[i];
            const double off =
                apart_f32(there.gradients + other->own.parameter[i].offset, here.gradients + p->offset, p->count);
            if (!(off <= 2e-3) && !has_no_gradient(here.gradients + p->offset, there.gradients, other, i)) {
                fail_msg("the gradient of %s is off by %g", p->name, off);
            }
        }
        free(here.gradients);
        free(there.gradients);
        carry_lm_free(other);
        carry_lm_free(lm);
    }
}

static void a_model_on_a_gpu_equals_the_one_on_the_cpu(void **unused) {
    (void)unused;
    carry_ctx *ctx = support_ctx(2, NULL, NULL);
    carry_lm_config c = small(&carry_lm_family_gated_deltanet);
    compare(ctx, c, (carry_lm_pass_options){0}, false);
    compare(ctx, c, (carry_lm_pass_options){0}, true);
    compare(ctx, c, (carry_lm_pass_options){.recompute = true}, false);
    compare(ctx, c, (carry_lm_pass_options){.dtype = CARRY_BF16}, false);
    carry_lm_fla_of(&c)->num_v_heads = 4;
    c.delta.allow_neg_eigval = c.tie_word_embeddings = true;
    compare(ctx, c, (carry_lm_pass_options){0}, false);
    c.delta.use_short_conv = c.delta.use_gate = false;
    compare(ctx, c, (carry_lm_pass_options){0}, false);
    c = small(&carry_lm_family_delta_net);
    compare(ctx, c, (carry_lm_pass_options){0}, false);
    c.delta.use_beta = false;
    c.delta.qk_activation = CARRY_ELU;
    compare(ctx, c, (carry_lm_pass_options){0}, false);
    for (int i = 0; i < 8; i += 7) { /* maps that are rows of shared tensors */
        c = hybrid(i);
        c.mixer[1] = CARRY_LM_MIXER_DELTA;
        compare(ctx, c, (carry_lm_pass_options){0}, false);
    }
    for (int i = 8; i < HYBRIDS; i++) { /* experts, Mamba-2; a close choice may differ after sums in another order */
        c = hybrid(i);
        if (!carry_lm_family_describe(c.family).on_cuda) {
            continue;
        }
        c.experts.chosen = c.experts.count - 1;
        c.experts.router.groups = 0;
        compare(ctx, c, (carry_lm_pass_options){0}, false);
        compare(ctx, c, (carry_lm_pass_options){.recompute = true}, false);
        compare(ctx, c, (carry_lm_pass_options){.dtype = CARRY_BF16}, false);
        if (i >= 10) {
            compare(ctx, c, (carry_lm_pass_options){0}, true); /* packed */
        }
    }
    carry_ctx_free(ctx);
}

static void start_values_are_the_same_bits_on_every_device(void **unused) {
    (void)unused;
    carry_ctx *ctx = support_ctx(2, NULL, NULL);
    const carry_lm_config c = small(&carry_lm_family_gated_deltanet);
    for (int device = 1; device < carry_device_count(); device++) {
        carry_lm *here;
        carry_lm *there;
        assert_ok(ctx, carry_lm_new(ctx, &here, &c, 0));
        assert_ok(ctx, carry_lm_new(ctx, &there, &c, device));
        assert_ok(ctx, carry_lm_init(here, 5));
        assert_ok(ctx, carry_lm_init(there, 5));
        float *seen = calloc((size_t)there->own.count, sizeof *seen);
        assert_non_null(seen);
        assert_ok(ctx, carry_parameters_download(&there->own, seen, there->own.weights, 0, there->own.count));
        for (int64_t i = 0; i < here->own.parameters; i++) {
            const carry_parameter *p = &here->own.parameter[i];
            assert_string_equal(p->name, there->own.parameter[i].name);
            assert_memory_equal(seen + there->own.parameter[i].offset, here->own.weights + p->offset,
                                (size_t)p->count * sizeof *seen);
        }
        free(seen);
        carry_lm_free(there);
        carry_lm_free(here);
    }
    carry_ctx_free(ctx);
}

static void generation_on_a_gpu_equals_the_cpu(void **unused) {
    (void)unused;
    carry_ctx *ctx = support_ctx(2, NULL, NULL);
    for (int device = 1; device < carry_device_count(); device++) {
        carry_lm *lm[2];
        carry_lm_generator *g[2];
        float logits[2][BATCH * VOCABULARY];
        lm[0] = model(ctx, small(&carry_lm_family_gated_deltanet));
        lm[1] = moved(ctx, lm[0], device);
        for (int i = 0; i < 2; i++) {
            const int64_t prompt[] = {1, 5, 2, 10, 0, 3, 7, 7};
            assert_ok(ctx, carry_lm_generator_new(lm[i], &g[i], BATCH, CARRY_F32));
            assert_ok(ctx, carry_lm_generator_prompt(g[i], 1, prompt, 8, logits[i]));
        }
        assert_true(apart_f32(logits[1], logits[0], VOCABULARY) <= 1e-4);
        for (int64_t step = 0; step < 30; step++) {
            const int64_t next[] = {step % VOCABULARY, (5 * step + 1) % VOCABULARY};
            assert_ok(ctx, carry_lm_generator_step(g[0], next, logits[0]));
            assert_ok(ctx, carry_lm_generator_step(g[1], next, logits[1]));
            assert_true(apart_f32(logits[1], logits[0], BATCH * VOCABULARY) <= 1e-4);
        }
        for (int i = 0; i < 2; i++) {
            carry_lm_generator_free(g[i]);
            carry_lm_free(lm[i]);
        }
    }
    carry_ctx_free(ctx);
}

/* The files have the same hash of the model and of the ids, also after steps that are recorded. */
static void states_move_between_cpu_and_gpu(void **unused) {
    (void)unused;
    char path[] = "/tmp/carry-moved-state-XXXXXX";
    const int file = mkstemp(path);
    carry_ctx *ctx = support_ctx(2, NULL, NULL);
    assert_true(file >= 0);
    (void)close(file);
    for (int device = 1; device < carry_device_count(); device++) {
        for (int kind = 0; kind < 2; kind++) { /* without attention a step is recorded */
            carry_lm *lm[2];
            carry_lm_generator *g[2];
            float logits[2][VOCABULARY];
            uint64_t hash[2];
            lm[0] = model(ctx, kind == 0 ? small(&carry_lm_family_gated_deltanet) : hybrid(0));
            lm[1] = moved(ctx, lm[0], device);
            for (int i = 0; i < 2; i++) {
                assert_ok(ctx, carry_lm_hash(lm[i], &hash[i]));
                assert_ok(ctx, carry_lm_generator_new(lm[i], &g[i], 1, CARRY_F32));
            }
            assert_true(hash[0] == hash[1]);
            for (int from = 0; from < 2; from++) {
                const int64_t ids[] = {1, 5, 2, 10, 0, 3, 7, 7};
                carry_lm_state *state = carry_lm_generator_state(g[from]);
                assert_ok(ctx, carry_lm_state_clear(state, 0));
                assert_ok(ctx, carry_lm_generator_prompt(g[from], 0, ids, 3, logits[from]));
                for (int i = 3; i < 7; i++) {
                    assert_ok(ctx, carry_lm_generator_step(g[from], ids + i, logits[from]));
                }
                assert_ok(ctx, carry_lm_state_save(state, 0, path));
                assert_ok(ctx, carry_lm_state_load(carry_lm_generator_state(g[1 - from]), 0, path));
                assert_int_equal(carry_lm_state_length(carry_lm_generator_state(g[1 - from]), 0), 7);
                assert_ok(ctx, carry_lm_generator_step(g[0], ids + 7, logits[0]));
                assert_ok(ctx, carry_lm_generator_step(g[1], ids + 7, logits[1]));
                assert_true(apart_f32(logits[1], logits[0], VOCABULARY) <= 1e-4);
            }
            for (int i = 0; i < 2; i++) {
                carry_lm_generator_free(g[i]);
                carry_lm_free(lm[i]);
            }
        }
    }
    assert_int_equal(unlink(path), 0);
    carry_ctx_free(ctx);
}

static void what_a_gpu_cannot_do_is_refused(void **unused) {
    (void)unused;
    carry_ctx *ctx = support_ctx(1, NULL, NULL);
    carry_lm_config c = small(&carry_lm_family_gated_deltanet);
    carry_lm *lm;
    carry_lm_pass *pass;
    assert_ok(ctx, carry_lm_new(ctx, &lm, &c, 1));
    const carry_lm_pass_options linear = {.batch = 1, .tokens = 4, .recurrence = &carry_lm_recurrence_linear};
    assert_refused(ctx, CARRY_EUNSUPPORTED, "linear works on the CPU only", carry_lm_pass_new(lm, &pass, &linear));
    const carry_lm_pass_options packed = {
        .batch = 1, .tokens = 4, .sequences = 2, .recurrence = carry_lm_recurrence_named("blelloch")};
    assert_refused(ctx, CARRY_EUNSUPPORTED, "no packed rows", carry_lm_pass_new(lm, &pass, &packed));
    carry_lm_free(lm);
    c.hidden_size = 1 << 20;
    c.vocab_size = 1 << 20;
    assert_refused(ctx, CARRY_EMEMORY, "are free: about", carry_lm_new(ctx, &lm, &c, 1));
    carry_ctx_free(ctx);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(start_values_are_the_same_bits_on_every_device),
        cmocka_unit_test(a_model_on_a_gpu_equals_the_one_on_the_cpu),
        cmocka_unit_test(generation_on_a_gpu_equals_the_cpu),
        cmocka_unit_test(states_move_between_cpu_and_gpu),
        cmocka_unit_test(what_a_gpu_cannot_do_is_refused),
    };
    if (carry_device_count() < 2) {
        (void)printf("skipped: there is no GPU here\n");
        return 77;
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}
