/* Token by token equals all at once: a prompt and steps give the logits of the full forward pass, whatever other
   sequences are in the batch. */
#include "lm_support.h"

#include "engine/generator.h"

#define TOKENS 41
#define SEQUENCES 3
#define VOCABULARY SUPPORT_VOCABULARY

static void make_ids(int64_t ids[SEQUENCES][TOKENS]) {
    for (int64_t s = 0; s < SEQUENCES; s++) {
        for (int64_t i = 0; i < TOKENS; i++) {
            ids[s][i] = (i * i * 3 + 5 * s + i / 4) % VOCABULARY;
        }
    }
}

static void full_logits(carry_ctx *ctx, carry_lm *lm, int64_t *ids, float *logits) {
    const carry_lm_args args = {.ids = carry_view_2d(ids, CARRY_I64, 1, TOKENS),
                                .logits = carry_view_3d(logits, CARRY_F32, 1, TOKENS, VOCABULARY)};
    assert_ok(ctx, run_once(lm, &(carry_lm_pass_options){.batch = 1, .tokens = TOKENS, .forward_only = true}, &args));
}

/* Each sequence has a prompt of another length, and is continued to the end of its tokens. 1e-5 is some hundred
   roundings of 6e-8, since chunks end elsewhere. */
static void follow(carry_ctx *ctx, carry_lm_config config, const int64_t prompts[SEQUENCES]) {
    carry_lm *lm = model(ctx, config);
    carry_lm_generator *generator;
    int64_t ids[SEQUENCES][TOKENS];
    static float wanted[SEQUENCES][TOKENS][VOCABULARY];
    make_ids(ids);
    assert_ok(ctx, carry_lm_generator_new(lm, &generator, SEQUENCES, CARRY_F32));
    for (int64_t s = 0; s < SEQUENCES; s++) {
        float got[VOCABULARY];
        full_logits(ctx, lm, ids[s], &wanted[s][0][0]);
        assert_ok(ctx, carry_lm_generator_prompt(generator, s, ids[s], prompts[s], got));
        assert_true(apart_f32(got, wanted[s][prompts[s] - 1], VOCABULARY) <= 1e-5);
    }
    for (int64_t step = 0; step < 20; step++) {
        int64_t next[SEQUENCES];
        float got[SEQUENCES][VOCABULARY];
        memset(got, 0xff, sizeof got);
        for (int64_t s = 0; s < SEQUENCES; s++) {
            next[s] = ids[s][prompts[s] + step];
        }
        assert_ok(ctx, carry_lm_generator_step(generator, next, &got[0][0]));
        for (int64_t s = 0; s < SEQUENCES; s++) {
            assert_true(apart_f32(got[s], wanted[s][prompts[s] + step], VOCABULARY) <= 1e-5);
        }
    }
    carry_lm_generator_free(generator);
    carry_lm_free(lm);
}

static void steps_after_a_prompt_equal_the_whole(void **unused) {
    (void)unused;
    static const int64_t prompts[] = {1, 2, 21}; /* shorter than the convolution, and longer than a chunk of 16 */
    carry_ctx *ctx = support_ctx(2, NULL, NULL);
    carry_lm_config gated = small(&carry_lm_family_gated_deltanet);
    follow(ctx, gated, prompts);
    carry_lm_fla_of(&gated)->num_v_heads = 4;
    gated.delta.allow_neg_eigval = true;
    gated.tie_word_embeddings = true;
    follow(ctx, gated, prompts);
    gated.delta.use_short_conv = false;
    gated.delta.use_gate = false;
    follow(ctx, gated, prompts);
    carry_lm_config wide = small(&carry_lm_family_gated_deltanet);
    carry_lm_fla_of(&wide)->expand_v = 60.0; /* two slices a head */
    follow(ctx, wide, prompts);
    carry_lm_config conv = small(&carry_lm_family_gated_deltanet);
    conv.delta.conv_size = 1;
    follow(ctx, conv, prompts);
    carry_lm_config delta = small(&carry_lm_family_delta_net);
    follow(ctx, delta, prompts);
    delta.delta.use_beta = false;
    delta.delta.qk_activation = CARRY_ELU;
    follow(ctx, delta, prompts);
    carry_ctx_free(ctx);
}

static void a_prompt_in_pieces_equals_the_whole(void **unused) {
    (void)unused;
    carry_ctx *ctx = support_ctx(1, NULL, NULL);
    carry_lm *lm = model(ctx, small(&carry_lm_family_gated_deltanet));
    carry_lm_generator *generator;
    enum { LONG = 1100 }; /* more than two of the pieces in which a long prompt is read */
    int64_t *ids = malloc(LONG * sizeof *ids);
    float *all = malloc(sizeof(float) * LONG * VOCABULARY);
    assert_true(ids != NULL && all != NULL);
    for (int64_t i = 0; i < LONG; i++) {
        ids[i] = (i * 7 + i / 5) % VOCABULARY;
    }
    const carry_lm_args args = {.ids = carry_view_2d(ids, CARRY_I64, 1, LONG),
                                .logits = carry_view_3d(all, CARRY_F32, 1, LONG, VOCABULARY)};
    assert_ok(ctx, run_once(lm, &(carry_lm_pass_options){.batch = 1, .tokens = LONG}, &args));
    assert_ok(ctx, carry_lm_generator_new(lm, &generator, 1, CARRY_F32));
    float whole[VOCABULARY];
    float pieces[VOCABULARY];
    assert_ok(ctx, carry_lm_generator_prompt(generator, 0, ids, LONG, whole));
    assert_true(apart_f32(whole, all + (size_t)(LONG - 1) * VOCABULARY, VOCABULARY) <= 1e-5);
    carry_lm_state_clear(carry_lm_generator_state(generator), 0);
    assert_ok(ctx, carry_lm_generator_prompt(generator, 0, ids, 700, pieces));
    assert_ok(ctx, carry_lm_generator_prompt(generator, 0, ids + 700, LONG - 700, pieces));
    assert_true(apart_f32(pieces, whole, VOCABULARY) <= 1e-5);
    carry_lm_generator_free(generator);
    carry_lm_free(lm);
    free(ids);
    free(all);
    carry_ctx_free(ctx);
}

/* A copy continues as the original does; a cleared state as a new one. */
static void states_are_copied_and_cleared(void **unused) {
    (void)unused;
    carry_ctx *ctx = support_ctx(1, NULL, NULL);
    carry_lm_config config = small(&carry_lm_family_gated_deltanet);
    carry_lm_fla_of(&config)->expand_v = 60.0;
    carry_lm *lm = model(ctx, config);
    carry_lm_generator *generator;
    static const int64_t prompt[] = {3, 1, 4, 1, 5};
    float logits[3][VOCABULARY];
    assert_ok(ctx, carry_lm_generator_new(lm, &generator, 3, CARRY_F32));
    carry_lm_state *state = carry_lm_generator_state(generator);
    assert_ok(ctx, carry_lm_generator_prompt(generator, 1, prompt, 5, logits[0]));
    assert_ok(ctx, carry_lm_state_copy(state, 2, state, 1));
    static const int64_t next[] = {9, 9, 9};
    assert_ok(ctx, carry_lm_generator_step(generator, next, &logits[0][0]));
    assert_memory_equal(logits[1], logits[2], sizeof logits[1]);
    assert_true(memcmp(logits[0], logits[1], sizeof logits[0]) != 0);
    float first[VOCABULARY];
    memcpy(first, logits[0], sizeof first);
    carry_lm_state_clear(state, 1);
    assert_ok(ctx, carry_lm_generator_step(generator, next, &logits[0][0]));
    assert_memory_equal(logits[1], first, sizeof first);
    assert_refused(ctx, CARRY_EARGUMENT, "sequence 3", carry_lm_state_copy(state, 3, state, 0));
    assert_refused(ctx, CARRY_EARGUMENT, "prompt of 0", carry_lm_generator_prompt(generator, 0, prompt, 0, first));
    static const int64_t unknown[] = {0, VOCABULARY, 0};
    assert_refused(ctx, CARRY_ERANGE, "11", carry_lm_generator_step(generator, unknown, &logits[0][0]));
    carry_lm_generator_free(generator);
    carry_lm_free(lm);
    carry_ctx_free(ctx);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(steps_after_a_prompt_equal_the_whole),
        cmocka_unit_test(a_prompt_in_pieces_equals_the_whole),
        cmocka_unit_test(states_are_copied_and_cleared),
    };
    return cmocka_run_group_tests_name("model/generate", tests, NULL, NULL);
}
