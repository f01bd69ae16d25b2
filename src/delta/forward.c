/* The forward pass. A unit of work is one head of one sequence and some columns of V: columns of the state are
   independent of each other, so where sequences and heads are fewer than threads V is cut instead of time. (Cutting
   time by the scan of (M, L) pairs does the work three times over, cutting V repeats only k k^T and q k^T:
   docs/results/delta.md.)

   Chunk by chunk, S the state that enters and V' = (I + A)^-1 R:

       R = beta (V - fade K S);   O = scale fade Q S + P V';   S <- e^{G[C]} S + (left K)^T V' */
#include "delta/forward.h"

#include <string.h>

#include "core/context.h"
#include "core/span.h"
#include "core/threads.h"

#define LEAST_COLUMNS 16 /* narrower products leave the vectors half full */

static int64_t snapshot_position(const carry_delta_plan *plan, int64_t length, int64_t index) {
    const carry_delta_problem *p = &plan->problem;
    if (p->snapshot_every > 0) {
        return (index + 1) * p->snapshot_every < length ? (index + 1) * p->snapshot_every : length;
    }
    int64_t position = length - p->snapshot_last + 1 + index;
    return position > 0 ? position : 0;
}

/* Where the chunk that starts at token t ends: a full chunk on, or where the next snapshot is due. */
static int64_t chunk_end(const carry_delta_plan *plan, int64_t length, int64_t t, int64_t next_snapshot) {
    int64_t end = t + plan->chunk < length ? t + plan->chunk : length;
    if (next_snapshot < carry_delta_snapshots(plan)) {
        int64_t due = snapshot_position(plan, length, next_snapshot);
        end = due > t && due < end ? due : end;
    }
    return end;
}

typedef struct unit {
    const carry_delta_run *run;
    carry_delta_scratch *scratch;
    const carry_delta_sequence *sequence;
    int64_t index;          /* of the sequence */
    int64_t head;           /* of q and k */
    int64_t first, columns; /* of V */
} unit;

static float *state_of(const unit *u, int64_t member) {
    return u->scratch->S + member * u->run->plan->problem.key * u->run->width;
}

/* Snapshots that are due at token t of the sequence; the number of the next one. */
static int64_t store_snapshots(const unit *u, int64_t next, int64_t t) {
    const carry_delta_plan *plan = u->run->plan;
    int64_t count = u->run->snapshots != NULL ? carry_delta_snapshots(plan) : 0;
    for (; next < count && snapshot_position(plan, u->sequence->length, next) <= t; next++) {
        for (int64_t member = 0; member < plan->group; member++) {
            int64_t value_head = u->head * plan->group + member;
            int64_t at = (u->index * count + next) * plan->problem.value_heads + value_head;
            carry_delta_state_store(plan, u->run->snapshots, at, state_of(u, member), u->columns, u->first, u->columns);
        }
    }
    return next;
}

static void product(const carry_delta_plan *plan, int64_t m, int64_t n, int64_t k, const float *a, int64_t a_row,
                    const float *b, const float *base, float *c) {
    plan->kernels->product(&(carry_product){.m = m,
                                            .n = n,
                                            .k = k,
                                            .count = 1,
                                            .a = a,
                                            .b = b,
                                            .base = base,
                                            .c = c,
                                            .a_row = a_row,
                                            .b_row = n,
                                            .base_row = n,
                                            .c_row = n});
}

/* R into X: beta v, less what the state already holds for k. */
static void residual(const unit *u, int64_t t, int64_t tokens, int64_t value_head, const float *S) {
    const carry_delta_run *run = u->run;
    const carry_delta_plan *plan = run->plan;
    carry_delta_scratch *s = u->scratch;
    int64_t K = plan->problem.key;
    CARRY_SPAN(plan->ctx, "delta", "residual");
    if (run->no_values) {
        memset(s->X, 0, (size_t)(tokens * u->columns) * sizeof *s->X);
    } else {
        carry_delta_load(plan, s->X, run->in.v, u->sequence->batch, u->sequence->start + t, value_head, tokens,
                         u->first, u->columns);
        for (int64_t i = 0; i < tokens; i++) {
            for (int64_t j = 0; j < u->columns; j++) {
                s->X[i * u->columns + j] *= s->heads.beta[i];
            }
        }
    }
    carry_delta_scale_rows(plan, s->weighed, s->rows.k, s->heads.fade, s->heads.beta, -1.0f, tokens);
    product(plan, tokens, u->columns, K, s->weighed, K, S, s->X, s->X);
}

/* O = scale fade Q S + P V', the second by blocks of rows since P is a triangle. */
static void output(const unit *u, int64_t t, int64_t tokens, int64_t value_head, const float *S) {
    const carry_delta_plan *plan = u->run->plan;
    carry_delta_scratch *s = u->scratch;
    int64_t K = plan->problem.key;
    CARRY_SPAN(plan->ctx, "delta", "output");
    carry_delta_scale_rows(plan, s->weighed, s->rows.q, s->heads.fade, NULL, plan->scale, tokens);
    product(plan, tokens, u->columns, K, s->weighed, K, S, NULL, s->O);
    for (int64_t i = 0; i < tokens; i += CARRY_DELTA_BLOCK) {
        int64_t m = tokens - i < CARRY_DELTA_BLOCK ? tokens - i : CARRY_DELTA_BLOCK;
        float *rows = s->O + i * u->columns;
        product(plan, m, u->columns, i + m, s->heads.P + i * plan->chunk, plan->chunk, s->X, rows, rows);
    }
    carry_delta_store(plan, u->run->o, s->O, u->sequence->batch, u->sequence->start + t, value_head, tokens, u->first,
                      u->columns);
}

/* S <- e^{G[C]} S + (left K)^T V'. */
static void advance(const unit *u, int64_t tokens, float *S) {
    const carry_delta_plan *plan = u->run->plan;
    carry_delta_scratch *s = u->scratch;
    int64_t K = plan->problem.key;
    CARRY_SPAN(plan->ctx, "delta", "state");
    for (int64_t i = 0; i < K && plan->problem.gate != CARRY_DELTA_NO_GATE; i++) {
        for (int64_t j = 0; j < u->columns; j++) {
            S[i * u->columns + j] *= s->heads.end[i];
        }
    }
    carry_delta_scale_rows(plan, s->weighed, s->rows.k, s->heads.left, NULL, 1.0f, tokens);
    plan->kernels->product(&(carry_product){.m = K,
                                            .n = u->columns,
                                            .k = tokens,
                                            .count = 1,
                                            .a = s->weighed,
                                            .b = s->X,
                                            .base = S,
                                            .c = S,
                                            .a_row = K,
                                            .b_row = u->columns,
                                            .base_row = u->columns,
                                            .c_row = u->columns,
                                            .a_transposed = true});
}

static void keep(const unit *u, int64_t t, int64_t tokens, int64_t value_head, const float *S, bool values) {
    const carry_delta_plan *plan = u->run->plan;
    const carry_delta_problem *p = &plan->problem;
    if (!values) {
        float *to = carry_delta_kept_state(plan, u->run->kept, u->sequence->chunk_start + t / plan->chunk, value_head);
        for (int64_t i = 0; i < p->key; i++) {
            memcpy(to + i * p->value + u->first, S + i * u->columns, (size_t)u->columns * sizeof *S);
        }
        return;
    }
    for (int64_t i = 0; i < tokens; i++) {
        int64_t token = u->sequence->batch * p->tokens + u->sequence->start + t + i;
        memcpy(carry_delta_kept_values(plan, u->run->kept, token, value_head) + u->first,
               u->scratch->X + i * u->columns, (size_t)u->columns * sizeof *S);
    }
}

static void one_chunk(const unit *u, int64_t t, int64_t end) {
    const carry_delta_run *run = u->run;
    const carry_delta_plan *plan = run->plan;
    carry_delta_scratch *s = u->scratch;
    int64_t tokens = end - t;
    carry_delta_rows_load(plan, &run->in, u->sequence->batch, u->sequence->start + t, u->head, tokens, &s->rows);
    for (int64_t member = 0; member < plan->group; member++) {
        int64_t value_head = u->head * plan->group + member;
        float *S = state_of(u, member);
        carry_delta_head_load(plan, &run->in, u->sequence->batch, u->sequence->start + t, value_head, &s->rows,
                              &s->heads);
        if (run->kept != NULL) {
            keep(u, t, tokens, value_head, S, false);
        }
        residual(u, t, tokens, value_head, S);
        carry_delta_solve(plan, &s->heads, tokens, s->X, u->columns, s->beside);
        if (run->kept != NULL) {
            keep(u, t, tokens, value_head, S, true);
        }
        if (run->o != NULL) {
            output(u, t, tokens, value_head, S);
        }
        advance(u, tokens, S);
    }
}

/* The state of every value head of the group before the first token. */
static void start(const unit *u) {
    const carry_delta_run *run = u->run;
    const carry_delta_plan *plan = run->plan;
    int64_t K = plan->problem.key;
    for (int64_t member = 0; member < plan->group; member++) {
        float *S = state_of(u, member);
        int64_t at = u->index * plan->problem.value_heads + u->head * plan->group + member;
        if (run->in.initial_state != NULL) {
            carry_delta_state_load(plan, S, u->columns, run->in.initial_state, at, u->first, u->columns);
            continue;
        }
        memset(S, 0, (size_t)(K * u->columns) * sizeof *S);
        for (int64_t i = 0; run->identity && i < u->columns; i++) {
            S[(u->first + i) * u->columns + i] = 1.0f;
        }
    }
}

static void finish(const unit *u) {
    const carry_delta_run *run = u->run;
    const carry_delta_plan *plan = run->plan;
    for (int64_t member = 0; run->final_state != NULL && member < plan->group; member++) {
        int64_t at = u->index * plan->problem.value_heads + u->head * plan->group + member;
        if (!run->identity) {
            carry_delta_state_store(plan, run->final_state, at, state_of(u, member), u->columns, u->first, u->columns);
            continue;
        }
        int64_t K = plan->problem.key;
        float *to = (float *)run->final_state->data + at * K * K + u->first;
        for (int64_t i = 0; i < K; i++) {
            memcpy(to + i * K, state_of(u, member) + i * u->columns, (size_t)u->columns * sizeof *to);
        }
    }
}

static void run_unit(const unit *u) {
    CARRY_SPAN(u->run->plan->ctx, "delta", "walk");
    int64_t length = u->sequence->length;
    start(u);
    int64_t next = store_snapshots(u, 0, 0);
    for (int64_t t = 0; t < length;) {
        int64_t end = chunk_end(u->run->plan, length, t, u->run->snapshots != NULL ? next : INT64_MAX);
        if (u->run->plan->method->chunk == 0 && !u->run->chunks_only) {
            end = t + 1;
            carry_delta_tokens(u->run, u->scratch, u->sequence, u->head, t, u->first, u->columns, u->scratch->S,
                               u->columns, u->run->plan->problem.key * u->run->width);
        } else {
            one_chunk(u, t, end);
        }
        next = store_snapshots(u, next, end);
        t = end;
    }
    finish(u);
}

static void run_units(void *argument, int64_t begin, int64_t end, int worker) {
    const carry_delta_run *run = argument;
    const carry_delta_problem *p = &run->plan->problem;
    int64_t width = run->identity ? p->key : p->value;
    for (int64_t i = begin; i < end; i++) {
        int64_t block = i % run->blocks;
        unit u = {.run = run,
                  .scratch = &run->scratch[worker],
                  .head = i / run->blocks % p->heads,
                  .index = i / run->blocks / p->heads,
                  .first = block * run->width};
        u.sequence = &run->sequences[u.index];
        u.columns = width - u.first < run->width ? width - u.first : run->width;
        run_unit(&u);
    }
}

static void take_scratch(const carry_delta_plan *plan, carry_arena *arena, carry_delta_scratch *s, int64_t width) {
    size_t C = (size_t)plan->chunk;
    size_t K = (size_t)plan->problem.key;
    size_t W = (size_t)width;
    carry_delta_rows_take(plan, arena, &s->rows);
    carry_delta_head_take(plan, arena, &s->heads);
    s->weighed = carry_arena_take(arena, C * K, sizeof(float));
    s->X = carry_arena_take(arena, C * W, sizeof(float));
    s->O = carry_arena_take(arena, C * W, sizeof(float));
    s->beside = carry_arena_take(arena, CARRY_DELTA_BLOCK * W, sizeof(float));
    s->S = carry_arena_take(arena, (size_t)plan->group * K, W * sizeof(float));
}

bool carry_delta_run_take(const carry_delta_plan *plan, carry_arena *arena, carry_delta_run *run, int64_t columns,
                          bool cut) {
    int threads = carry_ctx_threads(plan->ctx);
    int64_t units = plan->sequences * plan->problem.heads;
    int64_t wanted = cut && units < threads ? (threads + units - 1) / units : 1;
    int64_t width = (columns + wanted - 1) / wanted;
    width = (width + LEAST_COLUMNS - 1) / LEAST_COLUMNS * LEAST_COLUMNS;
    while (width < columns && columns % width == 1) { /* one column alone would be summed in another order */
        width += LEAST_COLUMNS;
    }
    run->plan = plan;
    run->width = width < columns ? width : columns;
    run->blocks = (columns + run->width - 1) / run->width;
    run->sequences = carry_arena_take(arena, (size_t)plan->sequences, sizeof *run->sequences);
    run->scratch = carry_arena_take(arena, (size_t)threads, sizeof *run->scratch);
    for (int i = 0; i < threads; i++) {
        carry_delta_scratch none;
        take_scratch(plan, arena, run->scratch != NULL ? &run->scratch[i] : &none, run->width);
    }
    return !arena->overflowed;
}

void carry_delta_run_all(carry_delta_run *run) {
    carry_delta_sequences(run->plan, &run->in, run->sequences);
    carry_parallel(run->plan->ctx, run->plan->sequences * run->plan->problem.heads * run->blocks, 1, run_units, run);
}

/* Products as they are done, triangles by blocks; the work of one value head, and of one head shared by its group. */
double carry_delta_forward_flops(const carry_delta_plan *plan) {
    const carry_delta_problem *p = &plan->problem;
    double tokens = (double)(p->batch * p->tokens);
    double KV = (double)(p->key * p->value);
    if (plan->method->chunk == 0) {
        return tokens * (double)p->value_heads * 7.0 * KV;
    }
    double C = (double)plan->chunk;
    double triangle = 0.5 * (C + CARRY_DELTA_BLOCK); /* columns of a triangle's row on average */
    double shared = 4.0 * triangle * (double)p->key;
    double own = 6.0 * KV + 4.0 * triangle * (double)p->value;
    return tokens * ((double)p->heads * shared + (double)p->value_heads * own);
}

carry_status carry_delta_forward(carry_delta_plan *plan, const carry_delta_forward_args *args, void *workspace,
                                 size_t workspace_bytes) {
    carry_ctx *ctx = plan->ctx;
    const carry_delta_problem *p = &plan->problem;
    CARRY_SPAN(ctx, "delta", "forward");
    carry_delta_run run = {.in = carry_delta_inputs_of(args),
                           .o = &args->o,
                           .final_state = args->final_state,
                           .snapshots = args->snapshots,
                           .kept = args->kept};
    CARRY_TRY(carry_delta_check_inputs(ctx, p, &run.in));
    CARRY_TRY(carry_delta_check_like(ctx, p, "o", &args->o, p->value_heads, p->value));
    CARRY_TRY(carry_delta_check_outputs(ctx, plan, args));
    CARRY_TRY(carry_delta_check_workspace(ctx, workspace, workspace_bytes, plan->forward_workspace));
    carry_arena arena = carry_arena_over(workspace, workspace_bytes);
    run.chunks_only = args->kept != NULL; /* what is kept is kept by chunks */
    (void)carry_delta_run_take(plan, &arena, &run, p->value, true);
    carry_delta_run_all(&run);
    plan->flops = carry_delta_forward_flops(plan);
    carry_span_work(ctx, plan->flops, (double)(p->batch * p->tokens));
    return CARRY_OK;
}
