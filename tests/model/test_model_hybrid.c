/* Models with attention among their layers: gradients, packed documents, generation from states, and states in files
   and snapshots. */
#include "hybrid_support.h"

#include <unistd.h>

#include "engine/generator.h"

#define TOKENS 41
#define VOCABULARY SUPPORT_VOCABULARY

typedef struct batch {
    int64_t ids[TOKENS], labels[TOKENS];
    float logits[TOKENS * VOCABULARY];
    double loss;
} batch;

static void fill(batch *b) {
    for (int64_t i = 0; i < TOKENS; i++) {
        b->ids[i] = (i * i * 3 + i / 4) % VOCABULARY;
        b->labels[i] = i % 7 == 3 ? -100 : (i * 5 + 1) % VOCABULARY;
    }
    memset(b->logits, 0xff, sizeof b->logits);
}

static carry_lm_args args_of(batch *b, int64_t first, int64_t count, bool backward) {
    return (carry_lm_args){.ids = carry_view_2d(b->ids + first, CARRY_I64, 1, count),
                           .labels = carry_view_2d(b->labels + first, CARRY_I64, 1, count),
                           .logits = carry_view_3d(b->logits + first * VOCABULARY, CARRY_F32, 1, count, VOCABULARY),
                           .backward = backward,
                           .scale = 0.125f,
                           .loss = &b->loss};
}

static double loss_of(carry_ctx *ctx, carry_lm *lm) {
    batch b;
    fill(&b);
    const carry_lm_args args = args_of(&b, 0, TOKENS, false);
    assert_ok(ctx, run_once(lm, &(carry_lm_pass_options){.batch = 1, .tokens = TOKENS, .forward_only = true}, &args));
    return 0.125 * b.loss;
}

/* Along its own direction a gradient equals its norm. The loss, about 10, is known to some 1e-6 and changes by 2e-2, so
   the quotient is accurate to 1e-3. The curvature over such a step is of third order. */
static void gradients_equal_differences(void **unused) {
    (void)unused;
    carry_ctx *ctx = support_ctx(2, NULL, NULL);
    for (int i = 0; i < HYBRIDS; i++) {
        carry_lm_config config = hybrid(i);
        config.experts.chosen = config.experts.count; /* no difference exists where a choice changes with the weights */
        config.experts.router.groups = 1;
        carry_lm *lm = model_scaled(ctx, config, 8.0f);
        batch b;
        fill(&b);
        const carry_lm_args args = args_of(&b, 0, TOKENS, true);
        assert_ok(ctx, run_once(lm, &(carry_lm_pass_options){.batch = 1, .tokens = TOKENS}, &args));
        for (int64_t j = i % support_cases(1, 7); j < lm->own.parameters; j += support_cases(1, 7)) {
            const carry_parameter *p = &lm->own.parameter[j];
            float *w = lm->own.weights + p->offset;
            const float *g = lm->own.gradients + p->offset;
            float *kept = malloc((size_t)p->count * sizeof *kept);
            double squares = 0.0;
            double side[2];
            assert_non_null(kept);
            memcpy(kept, w, (size_t)p->count * sizeof *kept);
            for (int64_t k = 0; k < p->count; k++) {
                squares += (double)g[k] * (double)g[k];
            }
            if (strstr(p->name, "e_score_correction_bias") != NULL) { /* not trained */
                assert_true(squares == 0.0);
                free(kept);
                continue;
            }
            assert_true(squares > 0.0);
            const double step = 1e-2 / squares > 3e-3 / sqrt(squares) ? 3e-3 / sqrt(squares) : 1e-2 / squares;
            for (int s = 0; s < 2; s++) {
                for (int64_t k = 0; k < p->count; k++) {
                    w[k] = (float)((double)kept[k] + (s == 0 ? step : -step) * (double)g[k]);
                }
                side[s] = loss_of(ctx, lm);
            }
            memcpy(w, kept, (size_t)p->count * sizeof *kept);
            free(kept);
            const double slope = (side[0] - side[1]) / (2.0 * step * squares);
            const double slack = 0.02 + 4e-6 / (step * squares); /* the accuracy of the loss */
            if (!(fabs(slope - 1.0) <= slack)) {
                fail_msg("model %d: %s: the difference is %g times the gradient (%g allowed)", i, p->name, slope,
                         slack);
            }
        }
        carry_lm_free(lm);
    }
    carry_ctx_free(ctx);
}

static void packed_documents_do_not_see_each_other(void **unused) {
    (void)unused;
    static int64_t borders[] = {0, 1, 1, 18, TOKENS};
    carry_ctx *ctx = support_ctx(2, NULL, NULL);
    for (int i = 0; i < HYBRIDS; i++) {
        carry_lm *lm = model(ctx, hybrid(i));
        batch packed;
        batch apart;
        fill(&packed);
        fill(&apart);
        carry_lm_args args = args_of(&packed, 0, TOKENS, true);
        args.cu_seqlens = carry_view_1d(borders, CARRY_I64, 5);
        assert_ok(ctx, run_once(lm, &(carry_lm_pass_options){.batch = 1, .tokens = TOKENS, .sequences = 4}, &args));
        float *gradients = lm->own.gradients;
        lm->own.gradients = NULL;
        assert_ok(ctx, carry_lm_want_gradients(lm));
        double loss = 0.0;
        for (int d = 0; d < 4; d++) {
            const int64_t count = borders[d + 1] - borders[d];
            if (count > 0) {
                const carry_lm_args one = args_of(&apart, borders[d], count, true);
                assert_ok(ctx, run_once(lm, &(carry_lm_pass_options){.batch = 1, .tokens = count}, &one));
                loss += apart.loss;
            }
        }
        assert_true(fabs(packed.loss - loss) <= 1e-5 * fabs(loss));
        assert_true(apart_f32(packed.logits, apart.logits, TOKENS * VOCABULARY) <= 1e-5);
        assert_true(apart_f32(gradients, lm->own.gradients, lm->own.count) <= 2e-5);
        free(gradients);
        carry_lm_free(lm);
    }
    carry_ctx_free(ctx);
}

static void recomputation_changes_no_bit(void **unused) {
    (void)unused;
    carry_ctx *ctx = support_ctx(3, NULL, NULL);
    for (int i = 0; i < HYBRIDS; i++) {
        carry_lm *lm = model(ctx, hybrid(i));
        float *kept = NULL;
        for (int again = 0; again < 2; again++) {
            batch b;
            fill(&b);
            const carry_lm_args args = args_of(&b, 0, TOKENS, true);
            assert_ok(ctx, carry_lm_want_gradients(lm));
            assert_ok(ctx, run_once(lm, &(carry_lm_pass_options){.batch = 1, .tokens = TOKENS, .recompute = again == 1},
                                    &args));
            if (again == 0) {
                kept = lm->own.gradients;
                lm->own.gradients = NULL;
            }
        }
        assert_memory_equal(kept, lm->own.gradients, (size_t)lm->own.count * sizeof(float));
        free(kept);
        carry_lm_free(lm);
    }
    carry_ctx_free(ctx);
}

/* Two sequences whose prompts have different lengths, each followed to the end of its tokens. */
static void steps_after_a_prompt_equal_the_whole(void **unused) {
    (void)unused;
    static const int64_t prompts[] = {1, 21};
    carry_ctx *ctx = support_ctx(2, NULL, NULL);
    for (int i = 0; i < HYBRIDS; i++) {
        carry_lm *lm = model(ctx, hybrid(i));
        carry_lm_generator *generator;
        batch b;
        float got[2][VOCABULARY];
        fill(&b);
        const carry_lm_args args = args_of(&b, 0, TOKENS, false);
        assert_ok(ctx,
                  run_once(lm, &(carry_lm_pass_options){.batch = 1, .tokens = TOKENS, .forward_only = true}, &args));
        assert_ok(ctx, carry_lm_generator_new(lm, &generator, 2, CARRY_F32));
        for (int64_t s = 0; s < 2; s++) {
            assert_ok(ctx, carry_lm_generator_prompt(generator, s, b.ids, prompts[s], got[s]));
            assert_true(apart_f32(got[s], b.logits + (prompts[s] - 1) * VOCABULARY, VOCABULARY) <= 1e-5);
        }
        for (int64_t step = 0; step < 20; step++) {
            const int64_t next[] = {b.ids[prompts[0] + step], b.ids[prompts[1] + step]};
            assert_ok(ctx, carry_lm_generator_step(generator, next, &got[0][0]));
            for (int64_t s = 0; s < 2; s++) {
                assert_true(apart_f32(got[s], b.logits + (prompts[s] + step) * VOCABULARY, VOCABULARY) <= 1e-5);
            }
        }
        assert_int_equal(carry_lm_state_length(carry_lm_generator_state(generator), 0), 21);
        carry_lm_generator_free(generator);
        carry_lm_free(lm);
    }
    carry_ctx_free(ctx);
}

/* A prompt in pieces leaves the same state as the whole, also when the cache has grown. */
static void a_long_prompt_in_pieces_equals_the_whole(void **unused) {
    (void)unused;
    enum { LONG = 1100 };
    static int64_t ids[LONG];
    carry_ctx *ctx = support_ctx(2, NULL, NULL);
    for (int64_t i = 0; i < LONG; i++) {
        ids[i] = (i * 7 + i / 3) % VOCABULARY;
    }
    for (int i = 0; i < 2; i++) {
        carry_lm *lm = model(ctx, hybrid(i));
        carry_lm_generator *generator;
        float wanted[VOCABULARY];
        float got[VOCABULARY];
        const carry_lm_args args = {.ids = carry_view_2d(ids, CARRY_I64, 1, LONG),
                                    .logits = carry_view_2d(wanted, CARRY_F32, 1, VOCABULARY),
                                    .last_logits = true};
        assert_ok(ctx, run_once(lm, &(carry_lm_pass_options){.batch = 1, .tokens = LONG, .forward_only = true}, &args));
        assert_ok(ctx, carry_lm_generator_new(lm, &generator, 1, CARRY_F32));
        assert_ok(ctx, carry_lm_generator_prompt(generator, 0, ids, LONG, got));
        assert_true(apart_f32(got, wanted, VOCABULARY) <= 1e-5);
        carry_lm_generator_free(generator);
        carry_lm_free(lm);
    }
    carry_ctx_free(ctx);
}

static void states_go_to_files_and_snapshots_and_back(void **unused) {
    (void)unused;
    char path[] = "/tmp/carry-state-XXXXXX";
    const int file = mkstemp(path);
    carry_ctx *ctx = support_ctx(2, NULL, NULL);
    assert_true(file >= 0);
    (void)close(file);
    for (int i = 0; i < HYBRIDS; i++) {
        carry_lm *lm = model(ctx, hybrid(i));
        carry_lm_generator *generator;
        carry_lm_state *snapshot;
        batch b;
        float first[VOCABULARY];
        float again[VOCABULARY];
        fill(&b);
        assert_ok(ctx, carry_lm_generator_new(lm, &generator, 1, CARRY_F32));
        carry_lm_state *state = carry_lm_generator_state(generator);
        assert_ok(ctx, carry_lm_state_new(lm, &snapshot, 2));
        assert_ok(ctx, carry_lm_generator_prompt(generator, 0, b.ids, 20, first));
        assert_ok(ctx, carry_lm_state_save(state, 0, path));
        assert_ok(ctx, carry_lm_state_copy(snapshot, 1, state, 0));
        assert_ok(ctx, carry_lm_generator_step(generator, b.ids + 20, first));
        assert_ok(ctx, carry_lm_state_copy(state, 0, snapshot, 1));
        assert_ok(ctx, carry_lm_generator_step(generator, b.ids + 20, again));
        assert_memory_equal(first, again, sizeof first);
        assert_ok(ctx, carry_lm_generator_step(generator, b.ids + 21, again));
        assert_ok(ctx, carry_lm_state_load(state, 0, path));
        assert_int_equal(carry_lm_state_length(state, 0), 20);
        assert_ok(ctx, carry_lm_generator_step(generator, b.ids + 20, again));
        assert_memory_equal(first, again, sizeof first);
        lm->own.weights[0] += 1.0f;
        assert_refused(ctx, CARRY_EFORMAT, "another model", carry_lm_state_load(state, 0, path));
        carry_lm_state_free(snapshot);
        carry_lm_generator_free(generator);
        carry_lm_free(lm);
    }
    assert_int_equal(unlink(path), 0);
    carry_ctx_free(ctx);
}

/* Heads wide enough for tiles of bf16, in every layer: no other operator needs as much workspace. */
static void a_prompt_of_bf16_has_the_workspace_of_wide_heads(void **unused) {
    (void)unused;
    static uint16_t logits[TOKENS * VOCABULARY];
    carry_ctx *ctx = support_ctx(2, NULL, NULL);
    carry_lm_config config = hybrid(0);
    config.attention.head_dim = 64;
    for (int i = 0; i < 3; i++) {
        config.mixer[i] = CARRY_LM_MIXER_ATTENTION;
    }
    carry_lm *lm = model(ctx, config);
    batch b;
    fill(&b);
    carry_lm_args args = args_of(&b, 0, TOKENS, false);
    args.logits = carry_view_3d(logits, CARRY_BF16, 1, TOKENS, VOCABULARY);
    const carry_lm_pass_options options = {.batch = 1, .tokens = TOKENS, .dtype = CARRY_BF16, .forward_only = true};
    assert_ok(ctx, run_once(lm, &options, &args));
    assert_true(isfinite(b.loss));
    carry_lm_free(lm);
    carry_ctx_free(ctx);
}

static void what_attention_cannot_do_is_refused(void **unused) {
    (void)unused;
    carry_ctx *ctx = support_ctx(1, NULL, NULL);
    carry_lm_config config = hybrid(0);
    config.mixer[0] = CARRY_LM_MIXER_ATTENTION;
    carry_lm *lm = model(ctx, config);
    carry_lm_pass *pass;
    assert_refused(
        ctx, CARRY_EUNSUPPORTED, "layers with attention",
        carry_lm_pass_new(lm, &pass,
                          &(carry_lm_pass_options){.batch = 1, .tokens = 8, .recurrence = &carry_lm_recurrence_ranks}));
    carry_lm_free(lm);
    carry_ctx_free(ctx);
}

/* Every part of a small model is listed in its family's row, which says where the part runs. */
static void families_list_the_parts_of_their_layers(void **unused) {
    (void)unused;
    carry_ctx *ctx = support_ctx(1, NULL, NULL);
    for (int i = 0; i < HYBRIDS; i++) {
        carry_lm_config c = hybrid(i);
        assert_ok(ctx, carry_lm_config_finish(ctx, &c));
        const carry_lm_family_row row = carry_lm_family_describe(c.family);
        bool on_cuda = true;
        for (int64_t l = 0; l < c.num_hidden_layers; l++) {
            const carry_lm_part *mixer = carry_lm_mixer_at(c.mixer[l]);
            const carry_lm_part *other = carry_lm_feedforward_at(c.feedforward[l]);
            assert_true(c.mixer[l] == CARRY_LM_MIXER_NONE || strstr(row.mixers, mixer->name) != NULL);
            assert_true(c.feedforward[l] == CARRY_LM_FEEDFORWARD_NONE || strstr(row.feedforwards, other->name) != NULL);
            on_cuda = on_cuda && !mixer->cpu_only && !other->cpu_only;
        }
        assert_true(on_cuda || !row.on_cuda);
        assert_true(row.trains);
    }
    carry_ctx_free(ctx);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gradients_equal_differences),
        cmocka_unit_test(packed_documents_do_not_see_each_other),
        cmocka_unit_test(recomputation_changes_no_bit),
        cmocka_unit_test(steps_after_a_prompt_equal_the_whole),
        cmocka_unit_test(a_long_prompt_in_pieces_equals_the_whole),
        cmocka_unit_test(states_go_to_files_and_snapshots_and_back),
        cmocka_unit_test(a_prompt_of_bf16_has_the_workspace_of_wide_heads),
        cmocka_unit_test(what_attention_cannot_do_is_refused),
        cmocka_unit_test(families_list_the_parts_of_their_layers),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
