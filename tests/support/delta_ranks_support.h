/* Shared by the tests of the delta rule over ranks, which compare with one rank that has all tokens. All ranks work on
   views of the same tensors, so that a write into another rank's part shows. */
#ifndef CARRY_TESTS_DELTA_RANKS_SUPPORT_H
#define CARRY_TESTS_DELTA_RANKS_SUPPORT_H

#include "comm_support.h"

#include <math.h>

#include "comm/rates.h"

enum { RESULTS = 10 };

static const char *const result_name[RESULTS] = {"o",     "final_state", "dq", "dk", "dv",
                                                 "dbeta", "dinitial",    "dg", "dA", "ddt"};

/* Inputs and results of the whole batch. All are f32 except the borders. */
typedef struct whole {
    carry_delta_problem p;
    const int64_t *borders;
    int64_t states;
    float *q, *k, *v, *beta, *g, *initial, *A_log, *dt_bias, *grad_o, *dfinal;
    float *wanted[RESULTS];
    float *got[RESULTS];
    int64_t count[RESULTS];
    double rounding[RESULTS]; /* change by another chunk size on one rank, as a fraction of the largest element */
    float *heads;             /* [RANKS, 2, HV]: dA_log and ddt_bias of each rank */
} whole;

typedef struct split {
    whole *w;
    int64_t cut[RANKS + 1];
    carry_delta_ranks_options options;
    bool no_initial, no_dfinal, forward_only;
    bool halves; /* on a GPU: q, k, v, o and their gradients in bf16 */
    int threads;
    int ranks;       /* under mpirun */
    const char *way; /* how memory moves between ranks that share a GPU; NULL: on the CPU */
    whole *shared;   /* `w` in memory of the GPU; run_on_ranks makes it */
} split;

static inline float *whole_normals(carry_ctx *ctx, int64_t count, uint64_t stream, float deviation) {
    float *made = malloc((size_t)(count + 1) * sizeof *made);
    assert_non_null(made);
    if (count > 0) {
        assert_ok(ctx, carry_random_normal(ctx, carry_view_1d(made, CARRY_F32, count), 77, stream, 0.0f, deviation));
    }
    return made;
}

static inline carry_tensor rows(float *data, const carry_delta_problem *p, int64_t first, int64_t tokens, int64_t heads,
                                int64_t size) {
    carry_tensor t = carry_view_4d(data, p->dtype, p->batch, p->tokens, heads, size);
    t.data = (char *)data + (size_t)(first * heads * size) * carry_dtype_size(p->dtype);
    t.shape[1] = tokens;
    t.device = p->device;
    return t;
}

static inline carry_tensor scalars(float *data, const carry_delta_problem *p, int64_t first, int64_t tokens) {
    carry_tensor t = carry_view_3d(data, CARRY_F32, p->batch, p->tokens, p->value_heads);
    t.data = data + first * p->value_heads;
    t.shape[1] = tokens;
    t.device = p->device;
    return t;
}

static inline carry_tensor gates(float *data, const carry_delta_problem *p, int64_t first, int64_t tokens) {
    return p->gate == CARRY_DELTA_KEY_GATE ? rows(data, p, first, tokens, p->value_heads, p->key)
                                           : scalars(data, p, first, tokens);
}

/* The arguments for tokens first..first+tokens-1, with results written to `to`. */
typedef struct call {
    carry_tensor g, initial, borders, A_log, dt_bias, final, dg, dinitial, dfinal, dA, ddt;
    carry_delta_forward_args forward;
    carry_delta_backward_args backward;
} call;

static inline void make_call(call *c, const whole *w, float *const to[RESULTS], int64_t first, int64_t tokens,
                             void *kept) {
    const carry_delta_problem *p = &w->p;
    carry_tensor states = carry_view_4d(w->initial, CARRY_F32, w->states, p->value_heads, p->key, p->value);
    states.device = p->device;
    c->initial = c->final = c->dinitial = c->dfinal = states;
    c->final.data = to[1];
    c->dinitial.data = to[6];
    c->dfinal.data = w->dfinal;
    c->g = gates(w->g, p, first, tokens);
    c->dg = gates(to[7], p, first, tokens);
    c->borders = carry_view_1d((void *)(uintptr_t)w->borders, CARRY_I64, w->states + 1);
    c->A_log = carry_view_1d(w->A_log, CARRY_F32, p->value_heads);
    c->dt_bias = carry_view_1d(w->dt_bias, CARRY_F32, p->value_heads);
    c->dA = carry_view_1d(to[8], CARRY_F32, p->value_heads);
    c->ddt = carry_view_1d(to[9], CARRY_F32, p->value_heads);
    c->A_log.device = c->dt_bias.device = c->dA.device = c->ddt.device = p->device;
    bool gated = p->gate != CARRY_DELTA_NO_GATE;
    c->forward = (carry_delta_forward_args){.o = rows(to[0], p, first, tokens, p->value_heads, p->value),
                                            .final_state = c->final,
                                            .kept = kept,
                                            .q = rows(w->q, p, first, tokens, p->heads, p->key),
                                            .k = rows(w->k, p, first, tokens, p->heads, p->key),
                                            .v = rows(w->v, p, first, tokens, p->value_heads, p->value),
                                            .beta = scalars(w->beta, p, first, tokens),
                                            .g = gated ? c->g : (carry_tensor){0},
                                            .initial_state = c->initial,
                                            .cu_seqlens = p->sequences > 0 ? c->borders : (carry_tensor){0},
                                            .A_log = p->gate_inside ? c->A_log : (carry_tensor){0},
                                            .dt_bias = p->gate_inside ? c->dt_bias : (carry_tensor){0}};
    c->backward = (carry_delta_backward_args){.dq = rows(to[2], p, first, tokens, p->heads, p->key),
                                              .dk = rows(to[3], p, first, tokens, p->heads, p->key),
                                              .dv = rows(to[4], p, first, tokens, p->value_heads, p->value),
                                              .dbeta = scalars(to[5], p, first, tokens),
                                              .dg = gated ? c->dg : (carry_tensor){0},
                                              .dinitial_state = c->dinitial,
                                              .dA_log = p->gate_inside ? c->dA : (carry_tensor){0},
                                              .ddt_bias = p->gate_inside ? c->ddt : (carry_tensor){0},
                                              .d_o = rows(w->grad_o, p, first, tokens, p->value_heads, p->value),
                                              .dfinal_state = c->dfinal,
                                              .kept = kept,
                                              .q = c->forward.q,
                                              .k = c->forward.k,
                                              .v = c->forward.v,
                                              .beta = c->forward.beta,
                                              .g = c->forward.g,
                                              .initial_state = c->forward.initial_state,
                                              .cu_seqlens = c->forward.cu_seqlens,
                                              .A_log = c->forward.A_log,
                                              .dt_bias = c->forward.dt_bias};
}

/* The results of one rank that has all tokens, by the plain functions. */
static inline void run_method(carry_ctx *ctx, whole *w, const char *method, float *const to[RESULTS], bool no_initial,
                              bool no_dfinal) {
    carry_delta_plan *plan;
    assert_ok(ctx, carry_delta_plan_new(ctx, &plan, &w->p,
                                        &(carry_delta_options){CARRY_INIT(carry_delta_options), .algorithm = method}));
    size_t bytes = carry_delta_backward_workspace(plan) + carry_delta_forward_workspace(plan);
    void *workspace = malloc(bytes);
    void *kept = malloc(carry_delta_kept_bytes(plan));
    assert_true(workspace != NULL && kept != NULL);
    call c;
    make_call(&c, w, to, 0, w->p.tokens, kept);
    if (no_initial) {
        c.forward.initial_state = c.backward.initial_state = (carry_tensor){0};
    }
    if (no_dfinal) {
        c.backward.dfinal_state = (carry_tensor){0};
    }
    assert_ok(ctx, carry_delta_forward(plan, &c.forward, workspace, bytes));
    assert_ok(ctx, carry_delta_backward(plan, &c.backward, workspace, bytes));
    free(workspace);
    free(kept);
    carry_delta_plan_free(plan);
}

/* The largest difference of a result, as a fraction of its largest magnitude. */
static inline double deviation_of(const whole *w, int result) {
    double largest = 1e-30;
    double off = 0.0;
    for (int64_t i = 0; i < w->count[result]; i++) {
        largest = fmax(largest, fabs((double)w->wanted[result][i]));
        double d = fabs((double)w->got[result][i] - (double)w->wanted[result][i]);
        off = d <= off ? off : d; /* NaN passes */
    }
    return off / largest;
}

static inline void run_whole(carry_ctx *ctx, whole *w, bool no_initial, bool no_dfinal) {
    static const char *const others[] = {"chunk16", "chunk32", "chunk128"};
    run_method(ctx, w, "chunk64", w->wanted, no_initial, no_dfinal);
    for (size_t i = 0; i < sizeof others / sizeof others[0]; i++) {
        run_method(ctx, w, others[i], w->got, no_initial, no_dfinal);
        for (int r = 0; r < RESULTS; r++) {
            w->rounding[r] = fmax(w->rounding[r], deviation_of(w, r));
        }
    }
}

static inline whole make_whole(carry_ctx *ctx, carry_delta_problem p, const int64_t *borders) {
    whole w = {.p = p, .borders = borders, .states = p.sequences > 0 ? p.sequences : p.batch};
    int64_t tokens = p.batch * p.tokens;
    int64_t values = tokens * p.value_heads * p.value;
    int64_t keys = tokens * p.heads * p.key;
    int64_t scalar = tokens * p.value_heads;
    int64_t states = w.states * p.value_heads * p.key * p.value;
    float root = p.l2norm ? 1.0f : 1.0f / sqrtf((float)p.key);
    w.q = whole_normals(ctx, keys, 0, root);
    w.k = whole_normals(ctx, keys, 1, root);
    w.v = whole_normals(ctx, values, 2, 1.0f);
    w.beta = whole_normals(ctx, scalar, 3, 1.0f);
    int64_t gate = scalar * (p.gate == CARRY_DELTA_KEY_GATE ? p.key : 1);
    w.g = whole_normals(ctx, gate, 4, 1.0f);
    w.initial = whole_normals(ctx, states, 5, 0.3f);
    w.A_log = whole_normals(ctx, p.value_heads, 6, 0.5f);
    w.dt_bias = whole_normals(ctx, p.value_heads, 7, 0.5f);
    w.grad_o = whole_normals(ctx, values, 8, 1.0f);
    w.dfinal = whole_normals(ctx, states, 9, 1.0f);
    for (int64_t i = 0; i < scalar; i++) {
        w.beta[i] = p.beta_sigmoid ? w.beta[i] : 1.0f / (1.0f + expf(-w.beta[i]));
    }
    for (int64_t i = 0; i < gate; i++) {
        w.g[i] = p.gate_inside ? w.g[i] - 4.0f : -0.02f * fabsf(w.g[i]); /* states last over many tokens */
    }
    const int64_t count[RESULTS] = {values, states, keys, keys,          values,
                                    scalar, states, gate, p.value_heads, p.value_heads};
    for (int r = 0; r < RESULTS; r++) {
        w.count[r] = count[r];
        w.wanted[r] = calloc((size_t)count[r] + 1, sizeof(float));
        w.got[r] = calloc((size_t)count[r] + 1, sizeof(float));
        assert_true(w.wanted[r] != NULL && w.got[r] != NULL);
    }
    w.heads = calloc((size_t)(RANKS * 2 * p.value_heads), sizeof(float));
    assert_non_null(w.heads);
    return w;
}

static inline void discard_whole(whole *w) {
    void *all[] = {w->q, w->k, w->v, w->beta, w->g, w->initial, w->A_log, w->dt_bias, w->grad_o, w->dfinal, w->heads};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
        free(all[i]);
    }
    for (int r = 0; r < RESULTS; r++) {
        free(w->wanted[r]);
        free(w->got[r]);
    }
}

static inline carry_status fill_with_nan(carry_ctx *ctx, int device, void *data, size_t bytes) {
    return carry_device_fill(ctx, data, device, 0xff, bytes, NULL);
}

/* The part of the split that each rank runs; comm moves memory of w->p.device. */
static inline carry_status run_split_on(split *s, const whole *w, carry_comm *comm) {
    int rank = carry_comm_rank(comm);
    carry_ctx *ctx = carry_comm_ctx(comm);
    carry_delta_problem p = w->p;
    p.tokens = s->cut[rank + 1] - s->cut[rank];
    carry_delta_ranks_plan *plan;
    carry_delta_ranks_options options = s->options;
    options.size = sizeof options;
    TRY(carry_delta_ranks_plan_new(comm, &plan, &p, &options));
    size_t forward = carry_delta_ranks_forward_workspace(plan), backward = carry_delta_ranks_backward_workspace(plan);
    size_t bytes = forward > backward ? forward : backward;
    unsigned char *workspace;
    unsigned char behind[8];
    void *kept;
    TRY(carry_device_alloc(ctx, (void **)&workspace, p.device, bytes + 8));
    TRY(carry_device_alloc(ctx, &kept, p.device, carry_delta_ranks_kept_bytes(plan) + 4));
    TRY(fill_with_nan(ctx, p.device, workspace, bytes));
    TRY(carry_device_fill(ctx, workspace + bytes, p.device, 0x5a, 8, NULL));
    TRY(fill_with_nan(ctx, p.device, kept, carry_delta_ranks_kept_bytes(plan)));
    float *to[RESULTS];
    memcpy(to, w->got, sizeof to);
    to[8] = w->heads + rank * 2 * p.value_heads;
    to[9] = to[8] + p.value_heads;
    call c;
    make_call(&c, w, to, s->cut[rank], p.tokens, kept);
    c.forward.initial_state = s->no_initial ? (carry_tensor){0} : c.forward.initial_state;
    c.backward.initial_state = c.forward.initial_state;
    c.backward.dfinal_state = s->no_dfinal ? (carry_tensor){0} : c.backward.dfinal_state;
    if (s->forward_only) {
        c.forward.kept = NULL;
    }
    carry_status status = carry_delta_ranks_forward(plan, &c.forward, workspace, bytes);
    double seconds = carry_delta_ranks_last_seconds(plan);
    EXPECT(comm, p.device > 0 || (seconds > 0.0 && carry_delta_ranks_last_exposed(plan) <= seconds),
           "exposed %g of %g seconds", carry_delta_ranks_last_exposed(plan), seconds);
    if (status == CARRY_OK && !s->forward_only) {
        TRY(fill_with_nan(ctx, p.device, workspace, bytes));
        status = carry_delta_ranks_backward(plan, &c.backward, workspace, bytes);
    }
    TRY(carry_device_copy(ctx, behind, 0, workspace + bytes, p.device, 8, NULL));
    for (int i = 0; i < 8; i++) {
        EXPECT(comm, behind[i] == 0x5a, "wrote behind the workspace");
    }
    carry_device_free(ctx, p.device, workspace);
    carry_device_free(ctx, p.device, kept);
    carry_delta_ranks_plan_free(plan);
    return status;
}

static inline carry_status run_split(void *user, carry_comm *comm) {
    split *s = user;
    carry_comm *gpus;
    if (s->way == NULL) {
        return run_split_on(s, s->w, comm);
    }
    TRY(carry_comm_open_device(comm, &gpus, s->shared->p.device, s->way));
    const carry_status status = run_split_on(s, s->shared, gpus);
    carry_comm_close(gpus);
    return status;
}

/* Rounds every number to bf16. */
static inline void round_all(float *data, int64_t count) {
    for (int64_t i = 0; i < count; i++) {
        data[i] = carry_f32_from_bf16(carry_bf16_from_f32(data[i]));
    }
}

static inline void round_whole(whole *w) {
    round_all(w->q, w->count[2]);
    round_all(w->k, w->count[3]);
    round_all(w->v, w->count[4]);
    round_all(w->grad_o, w->count[4]);
}

static inline void upload_halves(carry_ctx *ctx, void *to, const float *from, int64_t count) {
    uint16_t *narrow = malloc((size_t)(count + 1) * sizeof *narrow);
    assert_non_null(narrow);
    for (int64_t i = 0; i < count; i++) {
        narrow[i] = carry_bf16_from_f32(from[i]);
    }
    assert_ok(ctx, carry_device_copy(ctx, to, 1, narrow, 0, (size_t)count * sizeof *narrow, NULL));
    assert_ok(ctx, carry_stream_wait(ctx, 1, NULL));
    free(narrow);
}

/* Widens bf16 numbers in place. They are in the first half of the memory, so the loop starts from the last. */
static inline void widen_halves(float *data, int64_t count) {
    const uint16_t *narrow = (const uint16_t *)(const void *)data;
    for (int64_t i = count - 1; i >= 0; i--) {
        const float wide = carry_f32_from_bf16(narrow[i]);
        memcpy(data + i, &wide, sizeof wide);
    }
}

/* Copies all tensors to the first GPU; fetch_whole copies the results back. */
static inline void share_whole(carry_ctx *ctx, whole *there, const whole *w, bool halves) {
    const carry_delta_problem *p = &w->p;
    const int64_t scalar = p->batch * p->tokens * p->value_heads;
    *there = *w;
    there->p.device = 1;
    there->p.dtype = halves ? CARRY_BF16 : CARRY_F32;
    float **all[] = {&there->q,     &there->k,       &there->v,      &there->beta,   &there->g,    &there->initial,
                     &there->A_log, &there->dt_bias, &there->grad_o, &there->dfinal, &there->heads};
    const int64_t sizes_of[] = {w->count[2],
                                w->count[3],
                                w->count[4],
                                scalar,
                                w->count[7],
                                w->count[1],
                                p->value_heads,
                                p->value_heads,
                                w->count[4],
                                w->count[1],
                                RANKS * 2 * p->value_heads};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
        const size_t bytes = (size_t)sizes_of[i] * sizeof(float);
        const float *host = *all[i];
        assert_ok(ctx, carry_device_alloc(ctx, (void **)all[i], 1, bytes));
        if (halves && (i < 3 || i == 8)) {
            upload_halves(ctx, *all[i], host, sizes_of[i]);
        } else {
            assert_ok(ctx, carry_device_copy(ctx, *all[i], 1, host, 0, bytes, NULL));
        }
    }
    for (int r = 0; r < RESULTS; r++) {
        const size_t bytes = (size_t)w->count[r] * sizeof(float);
        assert_ok(ctx, carry_device_alloc(ctx, (void **)&there->got[r], 1, bytes));
        assert_ok(ctx, fill_with_nan(ctx, 1, there->got[r], bytes));
    }
    assert_ok(ctx, carry_stream_wait(ctx, 1, NULL));
}

static inline void fetch_whole(carry_ctx *ctx, whole *there, whole *w) {
    float *const all[] = {there->q,       there->k,     there->v,       there->beta,   there->g,
                          there->initial, there->A_log, there->dt_bias, there->grad_o, there->dfinal};
    for (int r = 0; r < RESULTS; r++) {
        assert_ok(ctx,
                  carry_device_copy(ctx, w->got[r], 0, there->got[r], 1, (size_t)w->count[r] * sizeof(float), NULL));
        carry_device_free(ctx, 1, there->got[r]);
        if (there->p.dtype == CARRY_BF16 && (r == 0 || (r >= 2 && r <= 4))) {
            widen_halves(w->got[r], w->count[r]);
        }
    }
    assert_ok(ctx, carry_device_copy(ctx, w->heads, 0, there->heads, 1,
                                     (size_t)(RANKS * 2 * w->p.value_heads) * sizeof(float), NULL));
    carry_device_free(ctx, 1, there->heads);
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
        carry_device_free(ctx, 1, all[i]);
    }
}

/* Processes do not share memory, so the elements that each has written are merged. An element written by two ranks is
   an error. */
static inline carry_status merge(carry_comm *comm, float *data, int64_t count) {
    const int size = carry_comm_size(comm);
    uint32_t *all = malloc((size_t)size * (size_t)(count + 1) * sizeof *all), *to = (uint32_t *)(void *)data;
    EXPECT(comm, all != NULL, "memory");
    TRY(carry_all_gather(comm, all, data, (size_t)count * sizeof *all));
    for (int64_t i = 0; i < count; i++) {
        int writers = 0;
        for (int r = 0; r < size; r++) {
            const uint32_t bits = all[r * count + i];
            writers += bits != UINT32_MAX;
            to[i] = bits != UINT32_MAX ? bits : to[i];
        }
        EXPECT(comm, writers <= 1, "element %lld has been written by %d ranks", (long long)i, writers);
    }
    free(all);
    return CARRY_OK;
}

/* Under mpirun: runs on the first s->ranks processes, and gives the result to all processes. */
static inline carry_status run_split_apart(void *user, carry_comm *comm) {
    split *s = user;
    carry_comm *part;
    TRY(carry_comm_split(comm, &part, carry_comm_rank(comm) < s->ranks ? 0 : -1, 0));
    carry_status status = part != NULL ? run_split(user, part) : CARRY_OK;
    carry_comm_close(part);
    TRY(status);
    for (int r = 0; r < RESULTS; r++) {
        TRY(merge(comm, s->w->got[r], s->w->count[r]));
    }
    return merge(comm, s->w->heads, RANKS * 2 * s->w->p.value_heads);
}

/* False if there are fewer processes than ranks: the case is left out. */
static inline bool has_ranks(int ranks) {
    return !is_under_mpi() || process_count() >= ranks;
}

static double worst_seen; /* over the whole program, printed at its end */

/* Ranks split the sums differently from one rank. Each sum rounds by 6e-8 of its terms, and every border adds K + V
   terms (M S + L). The effect depends on the problem (with K of 1 and beta near 2 nothing fades); another chunk size on
   one rank shows how large it is. Allowed are a millionth of the largest element plus four times that change. A wrong
   index is off by 1e-1. */
static inline double tolerance_of(const whole *w, int result) {
    return 1e-6 + 4.0 * w->rounding[result];
}

static inline void cut_evenly(split *s, int ranks) {
    for (int r = 0; r <= ranks; r++) {
        s->cut[r] = s->w->p.tokens * r / ranks;
    }
}

/* Runs on ranks, into w->got. */
static inline void run_on_ranks(split *s, int ranks, const char *what) {
    whole *w = s->w;
    char message[512];
    for (int r = 0; r < RESULTS; r++) {
        memset(w->got[r], 0xff, (size_t)w->count[r] * sizeof(float));
    }
    memset(w->heads, 0xff, (size_t)(RANKS * 2 * w->p.value_heads) * sizeof(float));
    s->ranks = ranks;
    carry_ctx *ctx = s->way != NULL ? support_ctx(1, NULL, NULL) : NULL;
    whole shared;
    if (ctx != NULL) {
        share_whole(ctx, &shared, w, s->halves);
        s->shared = &shared;
    }
    carry_status status = run_ranks_of(ranks, s->threads > 0 ? s->threads : 1, &world,
                                       is_under_mpi() ? run_split_apart : run_split, s, message);
    if (ctx != NULL) {
        fetch_whole(ctx, &shared, w);
        carry_ctx_free(ctx);
    }
    if (status != CARRY_OK) {
        fail_msg("%s on %d ranks: %s", what, ranks, message);
    }
    for (int64_t i = 0; i < w->p.value_heads; i++) { /* the gradient is the sum over ranks */
        w->got[8][i] = w->got[9][i] = 0.0f;
        for (int r = 0; r < ranks; r++) {
            w->got[8][i] += w->heads[r * 2 * w->p.value_heads + i];
            w->got[9][i] += w->heads[(r * 2 + 1) * w->p.value_heads + i];
        }
    }
}

/* Runs on ranks and compares with one rank; `more` is added to the tolerance. */
static inline void compare_split(split *s, int ranks, double more, const char *what) {
    const whole *w = s->w;
    if (!has_ranks(ranks)) {
        return;
    }
    run_on_ranks(s, ranks, what);
    for (int r = 0; r < (s->forward_only ? 2 : RESULTS); r++) {
        if ((r == 7 && w->p.gate == CARRY_DELTA_NO_GATE) || (r >= 8 && !w->p.gate_inside)) {
            continue;
        }
        double off = deviation_of(w, r);
        worst_seen = fmax(worst_seen, more == 0.0 ? off : 0.0);
        if (!(off <= tolerance_of(w, r) + more)) {
            char cuts[160] = "";
            for (int i = 0; i <= ranks; i++) {
                (void)snprintf(cuts + strlen(cuts), sizeof cuts - strlen(cuts), " %lld", (long long)s->cut[i]);
            }
            fail_msg("%s on %d ranks cut at%s: %s is off by %.3g of its largest", what, ranks, cuts, result_name[r],
                     off);
        }
    }
}

#endif
