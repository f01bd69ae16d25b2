/* One layer's recurrence with all its tensors, for tests of recurrences. */
#ifndef CARRY_TESTS_RECURRENCE_SUPPORT_H
#define CARRY_TESTS_RECURRENCE_SUPPORT_H

#include "lm_support.h"

#include "core/rng.h"

typedef struct shape {
    int64_t batch, tokens, heads, value_heads, key, value;
} shape;

/* One token; fewer, as many and more tokens than a chunk of 16; a prime length; one head and groups; K and V of one,
   odd, longer than a vector; V that a state holds in two slices. */
static const shape shapes[] = {{1, 1, 1, 1, 1, 1},   {2, 15, 1, 2, 3, 5},   {1, 16, 2, 2, 8, 4},  {3, 17, 1, 1, 4, 1},
                               {1, 37, 2, 6, 17, 9}, {2, 64, 1, 1, 32, 32}, {1, 33, 1, 2, 5, 300}};

enum { Q, K, V, BETA, G, TENSORS };

/* Inputs, outputs and gradients of a layer, in the problem's type except for states and parameters. */
typedef struct layer {
    carry_delta_problem problem;
    int64_t sequences; /* N, also where not packed */
    int64_t cuts[8];
    void *x[TENSORS], *dx[TENSORS], *o, *grad_o;
    float *initial, *final, *A_log, *dt_bias, *dA_log, *ddt_bias;
    int64_t count[TENSORS], states;
    bool with_initial;
} layer;

static inline float uniform(uint64_t key, int64_t i) {
    return (float)carry_philox(11, key, (uint64_t)i).word[0] * 0x1p-31f - 1.0f;
}

static inline void *numbers(carry_dtype dtype, int64_t count, uint64_t key, float factor, float shift) {
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

static inline void *poison(int64_t count) {
    void *data = malloc((size_t)count * sizeof(float));
    assert_non_null(data);
    memset(data, 0xff, (size_t)count * sizeof(float));
    return data;
}

/* Packs a row: a sequence of one token, an empty one, and two with the rest. */
static inline void cut(layer *l) {
    int64_t T = l->problem.tokens;
    const int64_t cuts[] = {0, T > 1 ? 1 : 0, T > 1 ? 1 : 0, (T + 1) / 2, T};
    memcpy(l->cuts, cuts, sizeof cuts);
    l->problem.sequences = l->sequences = 4;
}

static inline layer layer_new(const carry_delta_problem *problem, bool packed, bool with_initial) {
    layer l = {.problem = *problem, .sequences = problem->batch, .with_initial = with_initial};
    const carry_delta_problem *p = &l.problem;
    if (packed) {
        cut(&l);
    }
    int64_t tokens = p->batch * p->tokens;
    const int64_t counts[] = {tokens * p->heads * p->key, tokens * p->heads * p->key,
                              tokens * p->value_heads * p->value, tokens * p->value_heads, tokens * p->value_heads};
    float size = p->l2norm ? 1.0f : 1.0f / sqrtf((float)p->key); /* keys are at most 1 long */
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

static inline void layer_free(layer *l) {
    for (int i = 0; i < TENSORS; i++) {
        free(l->x[i]);
        free(l->dx[i]);
    }
    void *rest[] = {l->o, l->grad_o, l->initial, l->final, l->A_log, l->dt_bias, l->dA_log, l->ddt_bias};
    for (size_t i = 0; i < sizeof rest / sizeof rest[0]; i++) {
        free(rest[i]);
    }
}

static inline carry_tensor rows(const layer *l, void *data, int64_t heads, int64_t width) {
    const int64_t sizes[] = {l->problem.batch, l->problem.tokens, heads, width};
    return carry_view(data, l->problem.dtype, width > 0 ? 4 : 3, sizes);
}

/* Runs forward and backward in a workspace of exactly the stated size. */
static inline carry_status run(carry_ctx *ctx, layer *l, const carry_lm_recurrence *recurrence, const void *options) {
    const carry_delta_problem *p = &l->problem;
    void *running;
    carry_status status = recurrence->open(ctx, &running, p, options);
    if (status != CARRY_OK) {
        return status;
    }
    size_t bytes = recurrence->workspace(running);
    void *workspace = malloc(bytes + 1), *kept = malloc(recurrence->kept(running) + 1);
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
                                              .final_state = final,
                                              .kept = kept,
                                              .q = rows(l, l->x[Q], p->heads, p->key),
                                              .k = rows(l, l->x[K], p->heads, p->key),
                                              .v = rows(l, l->x[V], p->value_heads, p->value),
                                              .beta = rows(l, l->x[BETA], p->value_heads, 0),
                                              .g = gated ? g : (carry_tensor){0},
                                              .initial_state = l->with_initial ? initial : (carry_tensor){0},
                                              .cu_seqlens = p->sequences > 0 ? cuts : (carry_tensor){0},
                                              .A_log = p->gate_inside ? A_log : (carry_tensor){0},
                                              .dt_bias = p->gate_inside ? dt_bias : (carry_tensor){0}};
    const carry_delta_backward_args backward = {.dq = rows(l, l->dx[Q], p->heads, p->key),
                                                .dk = rows(l, l->dx[K], p->heads, p->key),
                                                .dv = rows(l, l->dx[V], p->value_heads, p->value),
                                                .dbeta = rows(l, l->dx[BETA], p->value_heads, 0),
                                                .dg = gated ? dg : (carry_tensor){0},
                                                .dA_log = p->gate_inside ? dA_log : (carry_tensor){0},
                                                .ddt_bias = p->gate_inside ? ddt_bias : (carry_tensor){0},
                                                .d_o = rows(l, l->grad_o, p->value_heads, p->value),
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
    status = recurrence->forward(running, &forward, workspace, bytes);
    if (status == CARRY_OK) {
        status = recurrence->backward(running, &backward, workspace, bytes);
    }
    free(workspace);
    free(kept);
    recurrence->close(running);
    return status;
}

static inline carry_delta_problem problem_of(const shape *s) {
    return (carry_delta_problem){.batch = s->batch,
                                 .tokens = s->tokens,
                                 .heads = s->heads,
                                 .value_heads = s->value_heads,
                                 .key = s->key,
                                 .value = s->value};
}

#endif
