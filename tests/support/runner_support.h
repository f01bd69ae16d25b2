/* Sequences of small models through a runner: random pieces and single tokens in the same steps, in shuffled pages. */
#ifndef CARRY_TESTS_RUNNER_SUPPORT_H
#define CARRY_TESTS_RUNNER_SUPPORT_H

#include "hybrid_support.h"

#include "engine/model_runner.h"

#define RUNNER_TOKENS 150 /* of a sequence: more than two pages */
#define RUNNER_SEQUENCES 4
#define RUNNER_PAGES 3 /* of a sequence */
#define RUNNER_VOCABULARY SUPPORT_VOCABULARY
#define RUNNER_MODELS (HYBRIDS + 7)

/* Models with every kind of mixer and option of the state: the hybrids, then models with one kind of layer. */
static inline carry_lm_config runner_model(int index) {
    if (index < HYBRIDS) {
        return hybrid(index);
    }
    carry_lm_config c = small(index >= HYBRIDS + 4 ? &carry_lm_family_delta_net : &carry_lm_family_gated_deltanet);
    switch (index - HYBRIDS) {
    case 1: /* two slices a head */
        carry_lm_fla_of(&c)->expand_v = 60.0;
        break;
    case 2: /* no tails */
        c.delta.conv_size = 1;
        break;
    case 3:
        c.delta.use_short_conv = false;
        c.delta.use_gate = false;
        c.tie_word_embeddings = true;
        break;
    case 5:
        c.delta.use_beta = false;
        c.delta.qk_activation = CARRY_ELU;
        break;
    case 6:
        c.delta.use_delta_rule = false;
        break;
    default:
        break;
    }
    return c;
}

typedef struct runner_case {
    carry_ctx *ctx;
    carry_lm *lm;
    carry_runner *runner;
    int32_t ids[RUNNER_SEQUENCES][RUNNER_TOKENS];
    int32_t pages[RUNNER_SEQUENCES][RUNNER_PAGES];
    int32_t slot[RUNNER_SEQUENCES];
    int64_t length[RUNNER_SEQUENCES];
    uint32_t random;
    bool wants_all; /* ask for a token in every run; otherwise in most of them */
    /* Log probabilities of all tokens after each position, and whether they were asked for. */
    float got[RUNNER_SEQUENCES][RUNNER_TOKENS][RUNNER_VOCABULARY];
    bool has[RUNNER_SEQUENCES][RUNNER_TOKENS];
} runner_case;

static inline uint32_t runner_random(runner_case *c, uint32_t below) {
    c->random = c->random * 1664525u + 1013904223u;
    return (c->random >> 8) % below;
}

static inline void runner_fill(runner_case *c) {
    int32_t pages[RUNNER_SEQUENCES * RUNNER_PAGES];
    for (int32_t i = 0; i < RUNNER_SEQUENCES * RUNNER_PAGES; i++) {
        const uint32_t j = runner_random(c, (uint32_t)i + 1);
        pages[i] = pages[j];
        pages[j] = i;
    }
    for (int32_t s = 0; s < RUNNER_SEQUENCES; s++) {
        c->slot[s] = (s * 3 + 1) % (RUNNER_SEQUENCES + 1);
        c->length[s] = 0;
        for (int i = 0; i < RUNNER_TOKENS; i++) {
            c->ids[s][i] = (i * i * 3 + 5 * s + i / 4) % RUNNER_VOCABULARY;
        }
        memcpy(c->pages[s], pages + s * RUNNER_PAGES, sizeof c->pages[s]);
    }
    memset(c->has, 0, sizeof c->has);
}

static inline void runner_open_with(runner_case *c, carry_lm *lm, carry_dtype dtype,
                                    const carry_model_runner_options *options, uint32_t seed) {
    const carry_runner_sizes sizes = {.slots = RUNNER_SEQUENCES + 1,
                                      .pages = RUNNER_SEQUENCES * RUNNER_PAGES,
                                      .sequences = RUNNER_SEQUENCES,
                                      .tokens = 128,
                                      .context = RUNNER_TOKENS};
    c->ctx = lm->ctx;
    c->lm = lm;
    c->random = seed;
    c->wants_all = false;
    assert_ok(c->ctx, carry_model_runner_new_with(lm, &c->runner, &sizes, dtype, options));
    runner_fill(c);
}

/* types: NULL: the usual types of states. */
static inline void runner_open_typed(runner_case *c, carry_lm *lm, carry_dtype dtype, bool same_bits,
                                     const carry_state_types *types, uint32_t seed) {
    runner_open_with(c, lm, dtype, &(carry_model_runner_options){.same_bits = same_bits, .types = types}, seed);
}

static inline void runner_open(runner_case *c, carry_lm *lm, carry_dtype dtype, bool same_bits, uint32_t seed) {
    runner_open_typed(c, lm, dtype, same_bits, NULL, seed);
}

static inline carry_run runner_run(const runner_case *c, int s, int64_t count) {
    static const carry_sampling greedy = {.top_p = 1.0};
    return (carry_run){.slot = c->slot[s],
                       .pages = c->pages[s],
                       .length = c->length[s],
                       .ids = c->ids[s] + c->length[s],
                       .count = count,
                       .wants_token = true,
                       .sampling = &greedy,
                       .logprobs = CARRY_RUN_LOGPROBS};
}

/* Stores the log probabilities of a result, whose sampled token must be the likeliest. */
static inline void runner_keep(runner_case *c, int s, const carry_run_result *result) {
    float *to = c->got[s][c->length[s] - 1];
    assert_false(result->is_failed);
    assert_int_equal(result->token, result->top[0]);
    assert_true(result->logprob == result->top_logprob[0]);
    for (int i = 0; i < RUNNER_VOCABULARY; i++) {
        to[result->top[i]] = result->top_logprob[i];
    }
    c->has[s][c->length[s] - 1] = true;
}

/* Runs one step of the sequences whose count is not 0. */
static inline void runner_step(runner_case *c, const int64_t count[RUNNER_SEQUENCES]) {
    carry_run runs[RUNNER_SEQUENCES];
    carry_run_result results[RUNNER_SEQUENCES];
    int of[RUNNER_SEQUENCES];
    int64_t n = 0;
    for (int s = 0; s < RUNNER_SEQUENCES; s++) {
        if (count[s] > 0) {
            runs[n] = runner_run(c, s, count[s]);
            runs[n].wants_token = c->wants_all || runner_random(c, 4) > 0;
            of[n++] = s;
        }
    }
    assert_ok(c->ctx, c->runner->ops->step(c->runner, runs, n));
    assert_ok(c->ctx, c->runner->ops->results(c->runner, results, n));
    for (int64_t i = 0; i < n; i++) {
        c->length[of[i]] += runs[i].count;
        if (runs[i].wants_token) {
            runner_keep(c, of[i], &results[i]);
        } else {
            assert_int_equal(results[i].token, -1);
        }
    }
}

/* Runs all sequences to their ends, in random pieces; with `alone`, one sequence after the other. */
static inline void runner_finish(runner_case *c, bool alone) {
    for (;;) {
        int64_t count[RUNNER_SEQUENCES] = {0};
        int64_t left = 0;
        int64_t room = 128;
        for (int s = 0; s < RUNNER_SEQUENCES; s++) {
            const int64_t rest = RUNNER_TOKENS - c->length[s];
            int64_t wanted = runner_random(c, 3) > 0 ? 1 : 1 + runner_random(c, 70);
            wanted = wanted < rest ? wanted : rest;
            wanted = wanted < room - RUNNER_SEQUENCES ? wanted : rest > 0 ? 1 : 0;
            count[s] = !alone && runner_random(c, 5) == 0 ? 0 : wanted;
            left += rest;
            if (alone && left > rest) {
                count[s] = 0;
            }
            room -= count[s];
        }
        if (left == 0) {
            return;
        }
        if (count[0] + count[1] + count[2] + count[3] > 0) {
            runner_step(c, count);
        }
    }
}

static inline void runner_log_softmax(const float *logits, float *to) {
    double sum = 0.0;
    for (int i = 0; i < RUNNER_VOCABULARY; i++) {
        sum += exp((double)logits[i]);
    }
    for (int i = 0; i < RUNNER_VOCABULARY; i++) {
        to[i] = (float)((double)logits[i] - log(sum));
    }
}

/* Compares with the full forward pass of a model on the CPU, by the relative RMS of each token's log probabilities.
   Returns the number of tokens that are farther from it than allowed; *of gets the number that was compared. */
static inline int runner_differences(const runner_case *c, carry_lm *reference, double allowed, bool fails, int *of) {
    static float logits[RUNNER_TOKENS][RUNNER_VOCABULARY];
    int different = 0;
    *of = 0;
    for (int s = 0; s < RUNNER_SEQUENCES; s++) {
        int64_t ids[RUNNER_TOKENS];
        for (int i = 0; i < RUNNER_TOKENS; i++) {
            ids[i] = c->ids[s][i];
        }
        const carry_lm_args args = {.ids = carry_view_2d(ids, CARRY_I64, 1, RUNNER_TOKENS),
                                    .logits = carry_view_3d(logits, CARRY_F32, 1, RUNNER_TOKENS, RUNNER_VOCABULARY)};
        assert_ok(c->ctx,
                  run_once(reference,
                           &(carry_lm_pass_options){.batch = 1, .tokens = RUNNER_TOKENS, .forward_only = true}, &args));
        for (int i = 0; i < RUNNER_TOKENS; i++) {
            float wanted[RUNNER_VOCABULARY];
            runner_log_softmax(logits[i], wanted);
            const double far = c->has[s][i] ? apart_f32(c->got[s][i], wanted, RUNNER_VOCABULARY) : 0.0;
            *of += c->has[s][i];
            if (!(far <= allowed)) {
                different++;
                if (fails) {
                    fail_msg("sequence %d, token %d: %g apart, %g allowed", s, i, far, allowed);
                }
            }
        }
    }
    return different;
}

static inline void runner_compare(const runner_case *c, carry_lm *reference, double allowed) {
    int of;
    (void)runner_differences(c, reference, allowed, true, &of);
}

#endif
