/* A layer's recurrence as a dense scan, for comparing recurrence methods inside a real training run. For each value
   head

       S[t] = A[t] S[t-1] + b[t],   A[t] = e^g (I - beta k k^T),   b[t] = beta k v^T,   o[t] = scale S[t]^T q[t]

   with A stored as a K x K matrix for each token, and the scan computed by one of the algorithms of scan/. All
   algorithms do the same work around the scan, so they differ only in the scan. The recurrence `linear` is another
   model, gated linear attention: without the correction, A is e^g I and the scan is diagonal. Where a sequence starts,
   A is 0, and b includes the contribution of the initial state, if there is one.

   States are not kept for the backward pass, which computes them again: for all heads of all layers they would take
   most of a run's memory. */
#include "model/lm/recurrence/scan.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/context.h"
#include "core/span.h"
#include "core/threads.h"
#include "delta/forward.h"
#include "model/lm/recurrence/scan_device.h"

#define TOGETHER 8 /* maximum number of units at a time: more would need more memory without employing more threads */

static float *take(carry_arena *arena, int64_t a, int64_t b, int64_t c, int64_t d) {
    const int64_t sizes[] = {a, b, c, d};
    size_t count;
    if (!carry_size_product(&count, sizes, 4, 1)) {
        arena->overflowed = true;
        return NULL;
    }
    return carry_arena_take(arena, count, sizeof(float));
}

static void take_token(const carry_recurrence_scan *m, carry_arena *arena, carry_recurrence_token *token) {
    int64_t K = m->problem.key;
    int64_t V = m->problem.value;
    *token = (carry_recurrence_token){
        .rows = {.q = take(arena, 1, 1, 1, K),
                 .k = take(arena, 1, 1, 1, K),
                 .q_norm = take(arena, 1, 1, 1, 1),
                 .k_norm = take(arena, 1, 1, 1, 1)},
        .head = {.g = take(arena, 1, 1, 1, 1), .end = take(arena, 1, 1, 1, K), .beta = take(arena, 1, 1, 1, 1)},
        .v = take(arena, 1, 1, 1, V),
        .o = take(arena, 1, 1, 1, V),
        .sum = {take(arena, 1, 1, 1, V), take(arena, 1, 1, 1, V)},
        .on_k = {take(arena, 1, 1, 1, K), take(arena, 1, 1, 1, K)}};
}

void carry_recurrence_scan_take(const carry_recurrence_scan *m, carry_arena *arena, carry_recurrence_scan_work *w) {
    const carry_delta_problem *p = &m->problem;
    int threads = carry_ctx_threads(m->ctx);
    w->starts = carry_arena_take(arena, p->sequences > 0 ? (size_t)p->tokens : 0, sizeof *w->starts);
    w->A = take(arena, 1, m->together, p->tokens, m->transition);
    w->S = take(arena, m->together, p->tokens, p->key, p->value);
    w->dS = take(arena, m->together, p->tokens, p->key, p->value);
    w->dq = take(arena, p->batch, p->tokens, p->heads, p->key);
    w->dk = take(arena, p->batch, p->tokens, p->heads, p->key);
    w->dgate = take(arena, 1, 1, m->together, p->tokens);
    w->given = take(arena, 1, 1, m->together, p->tokens);
    w->token = carry_arena_take(arena, (size_t)threads, sizeof *w->token);
    for (int i = 0; i < threads; i++) {
        carry_recurrence_token none;
        take_token(m, arena, w->token != NULL ? &w->token[i] : &none);
    }
    w->scan = carry_arena_take(arena, m->scan_bytes, 1);
}

static void close_scan(void *running) {
    carry_recurrence_scan *m = running;
    if (m != NULL) {
        carry_recurrence_device_close(m->device);
        carry_delta_plan_free(m->delta);
        carry_scan_plan_free(m->forward);
        carry_scan_plan_free(m->backward);
        free(m);
    }
}

static carry_status plan_scans(carry_recurrence_scan *m) {
    const carry_delta_problem *p = &m->problem;
    carry_scan_problem scan = {.kind = m->linear ? CARRY_SCAN_DIAGONAL : CARRY_SCAN_DENSE,
                               .batch = m->together,
                               .steps = p->tokens,
                               .n = p->key,
                               .width = p->value,
                               .dtype = CARRY_F32};
    const carry_scan_options options = {CARRY_INIT(carry_scan_options), .algorithm = m->algorithm};
    CARRY_TRY(carry_scan_plan_new(m->ctx, &m->forward, &scan, &options));
    scan.backward = true;
    CARRY_TRY(carry_scan_plan_new(m->ctx, &m->backward, &scan, &options));
    size_t forward = carry_scan_run_workspace(m->forward);
    size_t backward = carry_scan_backward_workspace(m->backward);
    m->scan_bytes = forward > backward ? forward : backward;
    carry_arena count = carry_arena_over(NULL, 0);
    carry_recurrence_scan_take(m, &count, &(carry_recurrence_scan_work){0});
    if (!carry_arena_total(&count, &m->workspace)) {
        return carry_fail(m->ctx, CARRY_ESIZE, "the workspace of a layer is larger than memory can be");
    }
    (void)snprintf(m->about, sizeof m->about, "%lld of %lld heads at a time, %.3g MB; %.100s", (long long)m->together,
                   (long long)m->units, 1e-6 * (double)m->workspace, carry_scan_plan_about(m->forward));
    return CARRY_OK;
}

/* The largest number of units at a time that divides their total, so that one plan is enough. */
static int64_t share_units(int64_t units, int threads) {
    int64_t most = threads < TOGETHER ? threads : TOGETHER;
    while (units % most != 0) {
        most--;
    }
    return most;
}

static carry_status open_either(carry_ctx *ctx, void **running, const carry_delta_problem *problem,
                                const char *algorithm, bool linear) {
    *running = NULL;
    if (problem->gate == CARRY_DELTA_KEY_GATE || problem->state_transposed || problem->snapshot_every > 0 ||
        problem->snapshot_last > 0) {
        return carry_fail(ctx, CARRY_EUNSUPPORTED,
                          "a layer as a scan has no key gate, no transposed states and no snapshots");
    }
    carry_recurrence_scan *m = calloc(1, sizeof *m);
    if (m == NULL) {
        return carry_fail(ctx, CARRY_EMEMORY, "out of memory: a recurrence");
    }
    m->ctx = ctx;
    m->algorithm = algorithm;
    m->problem = *problem;
    m->linear = linear;
    if (problem->device != 0) {
        const carry_status on_gpu = carry_recurrence_device_open(ctx, &m->device, problem, algorithm, linear);
        *running = on_gpu == CARRY_OK ? m : NULL;
        if (on_gpu != CARRY_OK) {
            close_scan(m);
        }
        return on_gpu;
    }
    m->slices = carry_lm_recurrence_slices(problem->value);
    m->slice = m->slices > 0 ? problem->value / m->slices : 0;
    carry_delta_problem narrow = *problem;
    narrow.value = m->slice;
    carry_status status = carry_delta_plan_new(
        ctx, &m->delta, &narrow, &(carry_delta_options){CARRY_INIT(carry_delta_options), .algorithm = "recurrent"});
    if (status == CARRY_OK) { /* it has refused sizes whose products overflow */
        m->units = problem->batch * problem->value_heads;
        m->transition = linear ? problem->key : problem->key * problem->key;
        m->together = share_units(m->units, carry_ctx_threads(ctx));
        status = plan_scans(m);
    }
    if (status != CARRY_OK) {
        close_scan(m);
        return status;
    }
    *running = m;
    return CARRY_OK;
}

static const char *plan_line(const void *running) {
    const carry_recurrence_scan *m = running;
    return m->device != NULL ? carry_recurrence_device_plan(m->device) : m->about;
}

static size_t workspace_bytes(const void *running) {
    const carry_recurrence_scan *m = running;
    return m->device != NULL ? carry_recurrence_device_workspace(m->device) : m->workspace;
}

static size_t kept_bytes(const void *running) {
    (void)running;
    return 0;
}

void carry_recurrence_scan_start(carry_recurrence_scan_work *w) {
    const carry_delta_problem *p = &w->m->problem;
    for (int64_t t = 0; p->sequences > 0 && t < p->tokens; t++) {
        w->starts[t] = -1;
    }
    for (int64_t i = 0; i < p->sequences; i++) {
        const int64_t *at = w->in.cu_seqlens->data;
        if (at[i] < at[i + 1]) {
            w->starts[at[i]] = i;
        }
    }
}

void carry_recurrence_scan_load(const carry_recurrence_scan_work *w, int64_t item, carry_recurrence_token *token) {
    const carry_delta_problem *p = &w->m->problem;
    int64_t unit = w->first + item / p->tokens;
    int64_t t = item % p->tokens;
    int64_t b = unit / p->value_heads;
    int64_t value_head = unit % p->value_heads;
    carry_delta_token_load(w->m->delta, &w->in, b, t, value_head / w->m->delta->group, &token->rows);
    carry_delta_token_head_load(w->m->delta, &w->in, b, t, value_head, &token->head);
    carry_delta_load(w->m->delta, token->v, w->in.v, b, t, value_head, 1, 0, p->value);
}

/* b = beta k v^T + e^g (S0 - erased k (k^T S0)) for the first token of a sequence with initial state S0; the second
   term is A S0. */
static void add_initial(const carry_recurrence_scan_work *w, const carry_recurrence_token *x, int64_t sequence,
                        int64_t value_head, float *b) {
    const carry_recurrence_scan *m = w->m;
    float decay = x->head.end[0];
    float erased = carry_recurrence_scan_erased(m, x);
    for (int64_t slice = 0; slice < m->slices; slice++) {
        float *seen = x->sum[0];
        memset(seen, 0, (size_t)m->slice * sizeof *seen);
        for (int64_t r = 0; r < m->problem.key; r++) {
            const float *S0 = carry_recurrence_scan_state(m, w->in.initial_state, sequence, value_head, r, slice);
            for (int64_t j = 0; j < m->slice; j++) {
                seen[j] += x->rows.k[r] * S0[j];
            }
        }
        for (int64_t r = 0; r < m->problem.key; r++) {
            const float *S0 = carry_recurrence_scan_state(m, w->in.initial_state, sequence, value_head, r, slice);
            float *to = b + r * m->problem.value + slice * m->slice;
            for (int64_t j = 0; j < m->slice; j++) {
                to[j] += decay * (S0[j] - erased * x->rows.k[r] * seen[j]);
            }
        }
    }
}

static void write_steps(void *argument, int64_t begin, int64_t end, int worker) {
    const carry_recurrence_scan_work *w = argument;
    const carry_delta_problem *p = &w->m->problem;
    carry_recurrence_token *x = &w->token[worker];
    int64_t K = p->key;
    int64_t V = p->value;
    for (int64_t item = begin; item < end; item++) {
        int64_t unit = w->first + item / p->tokens;
        int64_t sequence = carry_recurrence_scan_starts(w, unit / p->value_heads, item % p->tokens);
        carry_recurrence_scan_load(w, item, x);
        float decay = sequence < 0 ? x->head.end[0] : 0.0f;
        float *A = w->A + item * w->m->transition;
        float *b = w->S + item * K * V;
        for (int64_t r = 0; r < K; r++) {
            float along = x->head.beta[0] * x->rows.k[r];
            for (int64_t j = 0; j < K && !w->m->linear; j++) {
                A[r * K + j] = -decay * along * x->rows.k[j];
            }
            if (w->m->linear) {
                A[r] = decay;
            } else {
                A[r * K + r] += decay;
            }
            for (int64_t j = 0; j < V; j++) {
                b[r * V + j] = along * x->v[j];
            }
        }
        if (sequence >= 0 && w->in.initial_state != NULL) {
            add_initial(w, x, sequence, unit % p->value_heads, b);
        }
    }
}

/* Gives each thread pieces of some hundred microseconds. */
static int64_t grain(const carry_delta_problem *p) {
    return 16384 / (p->key * (p->key + p->value)) + 1;
}

carry_tensor carry_recurrence_scan_transitions(const carry_recurrence_scan_work *w) {
    const carry_recurrence_scan *m = w->m;
    const carry_delta_problem *p = &m->problem;
    return m->linear ? carry_view_3d(w->A, CARRY_F32, m->together, p->tokens, p->key)
                     : carry_view_4d(w->A, CARRY_F32, m->together, p->tokens, p->key, p->key);
}

carry_status carry_recurrence_scan_states(carry_recurrence_scan_work *w) {
    const carry_recurrence_scan *m = w->m;
    const carry_delta_problem *p = &m->problem;
    {
        CARRY_SPAN(m->ctx, "model", "scan steps");
        carry_parallel(m->ctx, m->together * p->tokens, grain(p), write_steps, w);
    }
    carry_tensor A = carry_recurrence_scan_transitions(w);
    carry_tensor S = carry_view_4d(w->S, CARRY_F32, m->together, p->tokens, p->key, p->value);
    return carry_scan_run(m->forward, &(carry_scan_args){.h = S, .A = A, .b = S}, w->scan, m->scan_bytes);
}

static void read_outputs(void *argument, int64_t begin, int64_t end, int worker) {
    const carry_recurrence_scan_work *w = argument;
    const carry_delta_problem *p = &w->m->problem;
    carry_recurrence_token *x = &w->token[worker];
    int64_t V = p->value;
    for (int64_t item = begin; item < end; item++) {
        int64_t unit = w->first + item / p->tokens;
        const float *S = w->S + item * p->key * V;
        carry_recurrence_scan_load(w, item, x);
        memset(x->o, 0, (size_t)V * sizeof *x->o);
        for (int64_t r = 0; r < p->key; r++) {
            float q = w->m->delta->scale * x->rows.q[r];
            for (int64_t j = 0; j < V; j++) {
                x->o[j] += q * S[r * V + j];
            }
        }
        carry_delta_store(w->m->delta, &w->forward->o, x->o, unit / p->value_heads, item % p->tokens,
                          unit % p->value_heads, 1, 0, V);
    }
}

/* Stores the state after the last token of every sequence of a unit; for an empty sequence, its initial state. */
static void store_final(const carry_recurrence_scan_work *w, int64_t member) {
    const carry_recurrence_scan *m = w->m;
    const carry_delta_problem *p = &m->problem;
    int64_t b = (w->first + member) / p->value_heads;
    int64_t value_head = (w->first + member) % p->value_heads;
    int64_t count = p->sequences > 0 ? p->sequences : 1;
    for (int64_t i = 0; i < count * m->slices * p->key; i++) {
        int64_t r = i % p->key;
        int64_t slice = i / p->key % m->slices;
        int64_t sequence = p->sequences > 0 ? i / p->key / m->slices : b;
        const int64_t *cuts = p->sequences > 0 ? w->in.cu_seqlens->data : NULL;
        int64_t last = cuts != NULL ? cuts[sequence + 1] - 1 : p->tokens - 1;
        float *to =
            carry_recurrence_scan_state(m, carry_delta_given(&w->forward->final_state), sequence, value_head, r, slice);
        const float *from = w->S + ((member * p->tokens + last) * p->key + r) * p->value + slice * m->slice;
        if (cuts != NULL && cuts[sequence] == cuts[sequence + 1]) {
            from = w->in.initial_state != NULL
                       ? carry_recurrence_scan_state(m, w->in.initial_state, sequence, value_head, r, slice)
                       : NULL;
        }
        if (from == NULL) {
            memset(to, 0, (size_t)m->slice * sizeof *to);
        } else if (from != to) {
            memcpy(to, from, (size_t)m->slice * sizeof *to);
        }
    }
}

static carry_status forward(void *running, const carry_delta_forward_args *args, void *workspace, size_t bytes) {
    carry_recurrence_scan *m = running;
    if (m->device != NULL) {
        return carry_recurrence_device_forward(m->device, args, workspace, bytes);
    }
    const carry_delta_problem *p = &m->problem;
    carry_delta_inputs in = carry_delta_inputs_of(args);
    carry_delta_inputs checked = in;
    checked.initial_state = m->pool > 0 ? NULL : in.initial_state;
    CARRY_TRY(carry_delta_check_inputs(m->ctx, p, &checked));
    CARRY_TRY(carry_delta_check_written(m->ctx, p, "o", &args->o, p->value_heads, p->value));
    if (args->final_state.data != NULL && m->pool == 0) {
        CARRY_TRY(carry_delta_check_state(m->ctx, p, "final_state", &args->final_state));
    }
    CARRY_TRY(carry_delta_check_workspace(m->ctx, workspace, bytes, m->workspace));
    carry_recurrence_scan_work w = {.m = m, .in = in, .forward = args};
    carry_arena arena = carry_arena_over(workspace, bytes);
    carry_recurrence_scan_take(m, &arena, &w);
    carry_recurrence_scan_start(&w);
    for (w.first = 0; w.first < m->units; w.first += m->together) {
        CARRY_TRY(carry_recurrence_scan_states(&w));
        carry_parallel(m->ctx, m->together * p->tokens, grain(p), read_outputs, &w);
        for (int64_t i = 0; args->final_state.data != NULL && i < m->together; i++) {
            store_final(&w, i);
        }
    }
    return CARRY_OK;
}

static carry_status open_pooled(void *running, int64_t sequences) {
    const carry_recurrence_scan *m = running;
    (void)sequences;
    return m->device == NULL && m->problem.batch == 1 && m->problem.tokens == 1
               ? CARRY_OK
               : carry_fail(m->ctx, CARRY_EUNSUPPORTED, "a scan over states in a pool takes one token at a time");
}

static carry_tensor one_token(carry_tensor rows, int64_t b, int64_t t) {
    if (rows.data != NULL) {
        const int64_t at = b * rows.stride[0] + t * rows.stride[1];
        rows.data = (char *)rows.data + at * (int64_t)carry_dtype_size(rows.dtype);
        rows.shape[0] = rows.shape[1] = 1;
    }
    return rows;
}

/* Runs token by token: it serves models without the delta rule, which exist for comparison. */
static carry_status pooled(void *running, const carry_lm_pooled_call *call, const carry_delta_forward_args *args,
                           void *workspace, size_t bytes) {
    carry_recurrence_scan *m = running;
    carry_status status = CARRY_OK;
    m->pool = call->pool.shape[0];
    for (int64_t i = 0; status == CARRY_OK && i < call->batch * call->tokens; i++) {
        const int64_t b = i / call->tokens;
        const int64_t t = i % call->tokens;
        carry_delta_forward_args one = *args;
        m->slot = call->slots != NULL ? call->slots[b] : call->slot;
        one.initial_state = one.final_state = call->pool;
        one.o = one_token(args->o, b, t);
        one.q = one_token(args->q, b, t);
        one.k = one_token(args->k, b, t);
        one.v = one_token(args->v, b, t);
        one.beta = one_token(args->beta, b, t);
        one.g = one_token(args->g, b, t);
        status = forward(m, &one, workspace, bytes);
    }
    m->pool = m->slot = 0;
    return status;
}

static carry_status open_scan(carry_ctx *ctx, void **running, const carry_delta_problem *problem,
                              const char *algorithm) {
    return open_either(ctx, running, problem, algorithm, false);
}

static carry_status open_linear(carry_ctx *ctx, void **running, const carry_delta_problem *problem,
                                const void *options) {
    (void)options;
    return open_either(ctx, running, problem, "sequential", true);
}

static carry_status open_sequential(carry_ctx *ctx, void **running, const carry_delta_problem *problem,
                                    const void *options) {
    (void)options;
    return open_scan(ctx, running, problem, "sequential");
}

static carry_status open_hillis_steele(carry_ctx *ctx, void **running, const carry_delta_problem *problem,
                                       const void *options) {
    (void)options;
    return open_scan(ctx, running, problem, "hillis_steele");
}

static carry_status open_blelloch(carry_ctx *ctx, void **running, const carry_delta_problem *problem,
                                  const void *options) {
    (void)options;
    return open_scan(ctx, running, problem, "blelloch");
}

static carry_status open_cyclic(carry_ctx *ctx, void **running, const carry_delta_problem *problem,
                                const void *options) {
    (void)options;
    return open_scan(ctx, running, problem, "cyclic");
}

#define SCAN(NAME, ABOUT, OPEN)                                                                   \
    {                                                                                             \
        .name = (NAME), .about = (ABOUT), .open = (OPEN), .close = close_scan, .plan = plan_line, \
        .workspace = workspace_bytes, .kept = kept_bytes, .forward = forward,                     \
        .backward = carry_recurrence_scan_backward, .open_pooled = open_pooled, .pooled = pooled  \
    }

const carry_lm_recurrence carry_lm_recurrence_cyclic =
    SCAN("cyclic", "as a dense scan, by cyclic reduction", open_cyclic);
const carry_lm_recurrence carry_lm_recurrence_doubling =
    SCAN("scan", "as a dense scan, by doubling (hillis_steele)", open_hillis_steele);
const carry_lm_recurrence carry_lm_recurrence_blelloch =
    SCAN("blelloch", "as a dense scan, up and down a tree", open_blelloch);
const carry_lm_recurrence carry_lm_recurrence_sequential =
    SCAN("sequential", "as a dense recurrence, token after token", open_sequential);
const carry_lm_recurrence carry_lm_recurrence_linear =
    SCAN("linear", "no delta rule: gated linear attention, as a diagonal scan", open_linear);
