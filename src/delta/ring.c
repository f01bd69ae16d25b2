/* Steps with a ring: the public calls, and the computation on the CPU. S is the state as last written. The ring
   holds waiting tokens with decays d[j]; w[j] is the product of the decays after j, including this token's, and w
   the product of all:

       seen = (w S)^T k + sum_j (w[j] k[j] . k) u[j];   u = beta (v - seen)
       out  = (w S)^T q + sum_j (w[j] k[j] . q) u[j];   o = scale (out + (k.q) u)

   Then k, u and the decay are appended to the ring or, if it is full, S <- w S + sum_j w[j] k[j] u[j]^T + k u^T. */
#include "delta/ring.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "core/context.h"
#include "core/span.h"
#include "core/threads.h"
#include "delta/forward.h"

#define MOST CARRY_MAX_DELTA_RING
#define DIM CARRY_MAX_DELTA_DIM
#define LARGE 128e6 /* bytes of all states from which rings pay */

/* Sets the pointers of the rings of `rows` sequences to memory (or to offsets from NULL), and returns their bytes.
   Offsets do not depend on the address, so a copy of the bytes is a copy of the rings. */
static size_t lay(const carry_delta_plan *plan, carry_delta_ring *ring, int64_t length, int64_t rows, void *memory) {
    const carry_delta_problem *p = &plan->problem;
    const size_t units = (size_t)(rows * p->value_heads);
    const size_t tokens = units * (size_t)length;
    ring->length = length;
    ring->decays = p->gate == CARRY_DELTA_KEY_GATE ? p->key : 1;
    const size_t sizes[] = {units * CARRY_DELTA_RING_COUNTS, tokens * (size_t)p->key, tokens * (size_t)ring->decays,
                            tokens * (size_t)p->value};
    float *places[4];
    size_t at = 0;
    for (int i = 0; i < 4; i++) {
        places[i] = memory != NULL ? (float *)memory + at : NULL;
        at += (sizes[i] + 3) / 4 * 4;
    }
    ring->counts = (int32_t *)(void *)places[0];
    ring->k = places[1];
    ring->decay = places[2];
    ring->u = places[3];
    return at * sizeof(float);
}

/* Returns the reason why the plan has no ring, or NULL if it has one. */
static const char *no_ring(const carry_delta_plan *plan) {
    const carry_delta_problem *p = &plan->problem;
    return p->tokens != 1 || p->sequences != 0  ? "a step takes one token for each of batch sequences"
           : p->state_transposed                ? "states are transposed"
           : p->value > DIM                     ? "V is more than 256"
           : p->device != 0 && p->value % 4 > 0 ? "on a GPU V is a multiple of 4"
                                                : NULL;
}

/* Returns the length that minimises the memory traffic of a step. With a ring of L tokens, a step reads and writes on
   average KV (1 + 1/L) floats of the state and reads (K + V) (L - 1) / 2 of the ring. The minimum is at
   sqrt(2 KV / (K + V)), which is 11 for K = V = 128. It is flat, and for heads of 128 the step that writes the state
   takes twice as long as other steps, so K = V = 128 gets the longest ring; for other sizes lengths up to 8 were
   measured. Rings pay only on GPUs, for states that do not fit in a cache and K up to 128: elsewhere the plain step was
   measured to be faster (docs/results/delta-cuda.md). */
int64_t carry_delta_ring_length(const carry_delta_plan *plan) {
    const carry_delta_problem *p = &plan->problem;
    const double K = (double)p->key;
    const double V = (double)p->value;
    const double best = sqrt(2.0 * K * V / (K + V));
    const double states = 4.0 * (double)plan->sequences * (double)p->value_heads * K * V;
    if (no_ring(plan) != NULL || p->device == 0 || states < LARGE || p->key > 128) {
        return 0;
    }
    if (p->key == 128 && p->value == 128) {
        return MOST;
    }
    return best > 8.0 ? 8 : best < 2.0 ? 1 : (int64_t)best;
}

size_t carry_delta_ring_bytes(const carry_delta_plan *plan, int64_t length) {
    carry_delta_ring ring;
    return length >= 1 && length <= MOST ? lay(plan, &ring, length, plan->sequences, NULL) : 0;
}

size_t carry_delta_ring_bytes_of(const carry_delta_plan *plan, int64_t length, int64_t rows) {
    carry_delta_ring ring;
    return no_ring(plan) == NULL && length >= 1 && length <= MOST ? lay(plan, &ring, length, rows, NULL) : 0;
}

size_t carry_delta_ring_count_bytes(const carry_delta_plan *plan) {
    return (size_t)(plan->sequences * plan->problem.value_heads) * CARRY_DELTA_RING_COUNTS * sizeof(int32_t);
}

/* is_pool: the state has any number of rows, and a ring for each. */
static carry_status open_ring(carry_delta_plan *plan, carry_delta_ring *made, const carry_tensor *state, bool is_pool,
                              void *ring, int64_t length) {
    carry_ctx *ctx = plan->ctx;
    const carry_delta_problem *p = &plan->problem;
    const char *why = no_ring(plan);
    if (why != NULL) {
        return carry_fail(ctx, CARRY_EUNSUPPORTED, "this plan has no ring: %s", why);
    }
    if (length < 1 || length > MOST) {
        return carry_fail(ctx, CARRY_EARGUMENT, "a ring of %" PRId64 " tokens: it takes 1 to %d", length, MOST);
    }
    if (ring == NULL || (uintptr_t)ring % 16 != 0) {
        return carry_fail(ctx, CARRY_EALIGN, "the ring is at %p, which is not a multiple of 16", ring);
    }
    carry_tensor rows = *state;
    rows.shape[0] = is_pool ? p->batch : rows.shape[0];
    CARRY_TRY(carry_delta_check_state(ctx, p, "state", &rows));
    if (p->device != 0) {
        CARRY_TRY(carry_device_check_pointer(ctx, "the ring", ring, p->device));
        if ((uintptr_t)state->data % 16 != 0) {
            return carry_fail(ctx, CARRY_EALIGN, "state is at an address that is not a multiple of 16");
        }
    }
    (void)lay(plan, made, length, state->shape[0], ring);
    return CARRY_OK;
}

typedef struct ring_run {
    carry_delta_run run;
    carry_delta_ring ring;
    const int32_t *slots; /* NULL: sequence i has state i */
    int64_t first;        /* first unit to flush */
} ring_run;

/* Computes the effect of a unit's waiting tokens now: their keys times the decays since then (keys), and the product of
   all decays (base). decay: of this token, or NULL for no decay. */
static void weigh(const ring_run *r, int64_t unit, int64_t waiting, const float *decay, float (*keys)[DIM],
                  float *base) {
    const int64_t K = r->run.plan->problem.key;
    const carry_delta_ring *ring = &r->ring;
    for (int64_t i = 0; i < K; i++) {
        base[i] = decay != NULL ? decay[i] : 1.0f;
    }
    for (int64_t j = waiting - 1; j >= 0; j--) {
        const float *k = ring->k + (unit * ring->length + j) * K;
        const float *d = ring->decay + (unit * ring->length + j) * ring->decays;
        for (int64_t i = 0; i < K; i++) {
            keys[j][i] = base[i] * k[i];
            base[i] *= d[ring->decays > 1 ? i : 0];
        }
    }
}

static void write_state(const ring_run *r, int64_t unit, int64_t waiting, float (*keys)[DIM], const float *base,
                        float *S) {
    const int64_t K = r->run.plan->problem.key;
    const int64_t V = r->run.plan->problem.value;
    for (int64_t i = 0; i < K; i++) {
        for (int64_t c = 0; c < V; c++) {
            S[i * V + c] *= base[i];
        }
        for (int64_t j = 0; j < waiting; j++) {
            const float *u = r->ring.u + (unit * r->ring.length + j) * V;
            for (int64_t c = 0; c < V; c++) {
                S[i * V + c] += keys[j][i] * u[c];
            }
        }
    }
}

static void set_count(const ring_run *r, int64_t unit, int64_t waiting) {
    for (int i = 0; i < CARRY_DELTA_RING_COUNTS; i++) {
        r->ring.counts[unit * CARRY_DELTA_RING_COUNTS + i] = (int32_t)waiting;
    }
}

/* Processes one unit. scratch holds q (times scale), k, v, beta and the decays of the token. */
static void step_unit(const ring_run *r, carry_delta_scratch *s, int64_t unit, float *S) {
    const int64_t K = r->run.plan->problem.key;
    const int64_t V = r->run.plan->problem.value;
    const carry_delta_ring *ring = &r->ring;
    const int64_t waiting = ring->counts[unit * CARRY_DELTA_RING_COUNTS];
    const float *k = s->rows.k;
    const float *q = s->rows.q;
    float keys[MOST][DIM], base[DIM], seen[DIM], out[DIM];
    weigh(r, unit, waiting, s->heads.end, keys, base);
    memset(seen, 0, sizeof seen);
    memset(out, 0, sizeof out);
    for (int64_t i = 0; i < K; i++) {
        for (int64_t c = 0; c < V; c++) {
            seen[c] += base[i] * k[i] * S[i * V + c];
            out[c] += base[i] * q[i] * S[i * V + c];
        }
    }
    for (int64_t j = 0; j < waiting; j++) {
        const float *u = ring->u + (unit * ring->length + j) * V;
        const float on_k = carry_delta_dot(keys[j], k, K);
        const float on_q = carry_delta_dot(keys[j], q, K);
        for (int64_t c = 0; c < V; c++) {
            seen[c] += on_k * u[c];
            out[c] += on_q * u[c];
        }
    }
    const float kq = carry_delta_dot(k, q, K);
    /* The last entry is also used in the step that fills the ring. */
    float *u = ring->u + (unit * ring->length + waiting) * V;
    for (int64_t c = 0; c < V; c++) {
        u[c] = s->heads.beta[0] * (s->X[c] - seen[c]);
        s->O[c] = out[c] + kq * u[c];
    }
    if (waiting + 1 == ring->length) {
        memcpy(keys[waiting], k, (size_t)K * sizeof(float));
        write_state(r, unit, ring->length, keys, base, S);
        set_count(r, unit, 0);
        return;
    }
    memcpy(ring->k + (unit * ring->length + waiting) * K, k, (size_t)K * sizeof(float));
    memcpy(ring->decay + (unit * ring->length + waiting) * ring->decays, s->heads.end,
           (size_t)ring->decays * sizeof(float));
    set_count(r, unit, waiting + 1);
}

static void step_units(void *argument, int64_t begin, int64_t end, int worker) {
    const ring_run *r = argument;
    const carry_delta_run *run = &r->run;
    const carry_delta_plan *plan = run->plan;
    const carry_delta_problem *p = &plan->problem;
    carry_delta_scratch *s = &run->scratch[worker];
    for (int64_t i = begin; i < end; i++) {
        const int64_t item = i / p->heads;
        carry_delta_token_load(plan, &run->in, item, 0, i % p->heads, &s->rows);
        for (int64_t c = 0; c < p->key; c++) {
            s->rows.q[c] *= plan->scale;
        }
        for (int64_t member = 0; member < plan->group; member++) {
            const int64_t head = i % p->heads * plan->group + member;
            const int64_t unit = (r->slots != NULL ? r->slots[item] : item) * p->value_heads + head;
            carry_delta_token_head_load(plan, &run->in, item, 0, head, &s->heads);
            carry_delta_load(plan, s->X, run->in.v, item, 0, head, 1, 0, p->value);
            step_unit(r, s, unit, (float *)run->final_state->data + unit * p->key * p->value);
            carry_delta_store(plan, run->o, s->O, item, 0, head, 1, 0, p->value);
        }
    }
}

static carry_status step(carry_delta_plan *plan, carry_tensor o, carry_tensor state, const int32_t *slots,
                         carry_delta_ring_memory ring, const carry_delta_forward_args *inputs, void *workspace,
                         size_t workspace_bytes) {
    carry_ctx *ctx = plan->ctx;
    const carry_delta_problem *p = &plan->problem;
    CARRY_SPAN(ctx, "delta", "step with a ring");
    ring_run r = {.run = {.in = carry_delta_inputs_of(inputs), .o = &o, .final_state = &state}, .slots = slots};
    r.run.in.initial_state = NULL;
    CARRY_TRY(open_ring(plan, &r.ring, &state, slots != NULL, ring.data, ring.length));
    CARRY_TRY(carry_delta_check_inputs(ctx, p, &r.run.in));
    CARRY_TRY(carry_delta_check_written(ctx, p, "o", &o, p->value_heads, p->value));
    CARRY_TRY(carry_delta_check_workspace(ctx, workspace, workspace_bytes, plan->forward_workspace));
    plan->flops = (double)(p->batch * p->value_heads) * 4.0 * (double)(p->key * p->value);
#if defined(CARRY_HAVE_CUDA)
    if (p->device != 0) {
        return carry_delta_cuda_step_ring(plan, &o, &state, slots, &r.ring, inputs);
    }
#endif
    carry_arena arena = carry_arena_over(workspace, workspace_bytes);
    (void)carry_delta_run_take(plan, &arena, &r.run, p->value, false);
    const int64_t units = p->batch * p->heads;
    carry_parallel(ctx, units, (units + carry_ctx_threads(ctx) - 1) / carry_ctx_threads(ctx), step_units, &r);
    return CARRY_OK;
}

carry_status carry_delta_step_ring(carry_delta_plan *plan, carry_tensor o, carry_tensor state,
                                   carry_delta_ring_memory ring, const carry_delta_forward_args *inputs,
                                   void *workspace, size_t workspace_bytes) {
    return step(plan, o, state, NULL, ring, inputs, workspace, workspace_bytes);
}

carry_status carry_delta_step_ring_slots(carry_delta_plan *plan, carry_tensor o, carry_tensor pool,
                                         carry_delta_ring_memory ring, const int32_t *slots,
                                         const carry_delta_forward_args *inputs, void *workspace,
                                         size_t workspace_bytes) {
    return step(plan, o, pool, slots, ring, inputs, workspace, workspace_bytes);
}

static void flush_units(void *argument, int64_t begin, int64_t end, int worker) {
    const ring_run *r = argument;
    const carry_delta_problem *p = &r->run.plan->problem;
    float keys[MOST][DIM], base[DIM];
    (void)worker;
    for (int64_t unit = r->first + begin; unit < r->first + end; unit++) {
        const int64_t waiting = r->ring.counts[unit * CARRY_DELTA_RING_COUNTS];
        if (waiting > 0) {
            weigh(r, unit, waiting, NULL, keys, base);
            write_state(r, unit, waiting, keys, base, (float *)r->run.final_state->data + unit * p->key * p->value);
            set_count(r, unit, 0);
        }
    }
}

/* Rows first to first + rows - 1. */
static carry_status flush(carry_delta_plan *plan, carry_tensor state, bool is_pool, carry_delta_ring_memory ring,
                          int64_t first, int64_t rows) {
    const int64_t heads = plan->problem.value_heads;
    CARRY_SPAN(plan->ctx, "delta", "flush a ring");
    ring_run r = {.run = {.plan = plan, .final_state = &state}, .first = first * heads};
    CARRY_TRY(open_ring(plan, &r.ring, &state, is_pool, ring.data, ring.length));
#if defined(CARRY_HAVE_CUDA)
    if (plan->problem.device != 0) {
        return carry_delta_cuda_ring_flush(plan, &state, &r.ring, r.first, rows * heads);
    }
#endif
    carry_parallel(plan->ctx, rows * heads, 1, flush_units, &r);
    return CARRY_OK;
}

carry_status carry_delta_ring_flush(carry_delta_plan *plan, carry_tensor state, carry_delta_ring_memory ring) {
    return flush(plan, state, false, ring, 0, plan->sequences);
}

carry_status carry_delta_ring_flush_slot(carry_delta_plan *plan, carry_tensor pool, carry_delta_ring_memory ring,
                                         int64_t slot) {
    return slot < 0 ? flush(plan, pool, true, ring, 0, pool.shape[0]) : flush(plan, pool, true, ring, slot, 1);
}
