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
#include "ops/product/triangle.h"

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
    int64_t head;           /* of q and k */
    int64_t first, columns; /* of the state */
    int64_t values;         /* those of them that are V's; behind them are M's */
    bool pauses;            /* it runs in the thread that called */
} unit;

static float *state_of(const unit *u, int64_t member) {
    return u->scratch->S + member * u->run->plan->problem.key * u->run->width;
}

/* Snapshots that are due at token t of the sequence; the number of the next one. */
static int64_t store_snapshots(const unit *u, int64_t next, int64_t t) {
    const carry_delta_plan *plan = u->run->plan;
    if (u->run->snapshots == NULL) {
        return next;
    }
    int64_t count = carry_delta_snapshots(plan);
    for (; next < count && snapshot_position(plan, u->sequence->length, next) <= t; next++) {
        for (int64_t member = 0; member < plan->group; member++) {
            int64_t value_head = u->head * plan->group + member;
            int64_t at = (u->sequence->index * count + next) * plan->problem.value_heads + value_head;
            carry_delta_state_store(plan, u->run->snapshots->data, at, state_of(u, member), u->columns, u->first,
                                    u->columns);
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
    float *v = u->values == u->columns ? s->X : s->O; /* O is free: M and an output are never made together */
    if (u->values > 0) {
        carry_delta_load(plan, v, run->in.v, u->sequence->batch, u->sequence->start + t, value_head, tokens, u->first,
                         u->values);
    }
    for (int64_t i = 0; i < tokens; i++) {
        plan->kernels->rows->norm(s->X + i * u->columns, v + i * u->values, NULL, NULL, s->heads.beta[i], u->values);
        memset(s->X + i * u->columns + u->values, 0, (size_t)(u->columns - u->values) * sizeof *s->X);
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
        carry_triangle_product(plan->kernels,
                               &(carry_product){.m = m,
                                                .n = u->columns,
                                                .k = i + m,
                                                .count = 1,
                                                .a = s->heads.P + i * plan->chunk,
                                                .b = s->X,
                                                .base = rows,
                                                .c = rows,
                                                .a_row = plan->chunk,
                                                .b_row = u->columns,
                                                .base_row = u->columns,
                                                .c_row = u->columns},
                               s->X, i, false);
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
        plan->kernels->rows->scale(S + i * u->columns, s->heads.end[i], u->columns);
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
    s->rows.with_q = run->o != NULL;
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
        int64_t value_head = u->head * plan->group + member;
        if (run->maps == NULL && u->sequence->enters) {
            carry_delta_state_load(plan, S, u->columns, run->entering,
                                   carry_delta_chain_at(plan, &run->part, u->sequence, value_head), u->first,
                                   u->columns);
            continue;
        }
        if (run->maps == NULL && run->in.initial_state != NULL) {
            carry_delta_state_load(plan, S, u->columns, run->in.initial_state->data,
                                   carry_delta_state_at(plan, u->sequence, value_head), u->first, u->columns);
            continue;
        }
        memset(S, 0, (size_t)(K * u->columns) * sizeof *S);
        for (int64_t j = u->values; j < u->columns; j++) {
            S[(u->first + j - plan->problem.value) * u->columns + j] = 1.0f;
        }
    }
}

static void finish(const unit *u) {
    const carry_delta_run *run = u->run;
    const carry_delta_plan *plan = run->plan;
    const carry_delta_problem *p = &plan->problem;
    for (int64_t member = 0; member < plan->group; member++) {
        const float *S = state_of(u, member);
        int64_t value_head = u->head * plan->group + member;
        int64_t chain = carry_delta_chain_at(plan, &run->part, u->sequence, value_head);
        if (u->sequence->leaves && run->leaving != NULL) {
            carry_delta_state_store(plan, run->leaving, chain, S, u->columns, u->first, u->values);
        } else if (!u->sequence->leaves && run->final_state != NULL) {
            carry_delta_state_store(plan, run->final_state->data, carry_delta_state_at(plan, u->sequence, value_head),
                                    S, u->columns, u->first, u->values);
        }
        for (int64_t i = 0; u->values < u->columns && i < p->key; i++) {
            float *to = run->maps + (chain * p->key + i) * p->key + (u->first + u->values - p->value);
            memcpy(to, S + i * u->columns + u->values, (size_t)(u->columns - u->values) * sizeof *to);
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
        if (u->pauses) {
            u->run->part.pause(u->run->part.user);
        }
    }
    finish(u);
}

static void run_units(void *argument, int64_t begin, int64_t end, int worker) {
    const carry_delta_run *run = argument;
    int64_t V = run->plan->problem.value;
    for (int64_t i = begin; i < end; i++) {
        unit u = {.run = run,
                  .scratch = &run->scratch[worker],
                  .sequence = &run->part.sequences[i / run->blocks / run->part.heads],
                  .head = run->part.first_head + i / run->blocks % run->part.heads,
                  .first = i % run->blocks * run->width,
                  .pauses = worker == 0 && run->part.pause != NULL};
        u.columns = run->columns - u.first < run->width ? run->columns - u.first : run->width;
        u.values = V - u.first < u.columns ? V - u.first : u.columns;
        u.values = u.values > 0 ? u.values : 0;
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

bool carry_delta_run_take_part(const carry_delta_plan *plan, carry_arena *arena, carry_delta_run *run, int64_t columns,
                               bool cut) {
    int threads = carry_ctx_threads(plan->ctx);
    int64_t units = run->part.count * run->part.heads;
    int64_t wanted = cut && units > 0 && units < threads ? (threads + units - 1) / units : 1;
    int64_t width = (columns + wanted - 1) / wanted;
    width = (width + LEAST_COLUMNS - 1) / LEAST_COLUMNS * LEAST_COLUMNS;
    while (width < columns && columns % width == 1) { /* one column alone would be summed in another order */
        width += LEAST_COLUMNS;
    }
    run->plan = plan;
    run->columns = columns;
    run->width = width < columns ? width : columns;
    run->blocks = (columns + run->width - 1) / run->width;
    run->scratch = carry_arena_take(arena, (size_t)threads, sizeof *run->scratch);
    for (int i = 0; i < threads; i++) {
        carry_delta_scratch none;
        take_scratch(plan, arena, run->scratch != NULL ? &run->scratch[i] : &none, run->width);
    }
    return !arena->overflowed;
}

bool carry_delta_run_take(const carry_delta_plan *plan, carry_arena *arena, carry_delta_run *run, int64_t columns,
                          bool cut) {
    run->sequences = carry_arena_take(arena, (size_t)plan->sequences, sizeof *run->sequences);
    run->part = (carry_delta_part){.sequences = run->sequences, .count = plan->sequences, .heads = plan->problem.heads};
    return carry_delta_run_take_part(plan, arena, run, columns, cut);
}

void carry_delta_run_part(carry_delta_run *run) {
    carry_parallel(run->plan->ctx, run->part.count * run->part.heads * run->blocks, 1, run_units, run);
}

void carry_delta_run_all(carry_delta_run *run) {
    carry_delta_sequences(run->plan, &run->in, run->sequences);
    carry_delta_run_part(run);
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

carry_status carry_delta_cpu_forward(carry_delta_plan *plan, const carry_delta_forward_args *args, void *workspace,
                                     size_t workspace_bytes) {
    const carry_delta_problem *p = &plan->problem;
    carry_delta_run run = {.in = carry_delta_inputs_of(args),
                           .o = &args->o,
                           .final_state = carry_delta_given(&args->final_state),
                           .snapshots = carry_delta_given(&args->snapshots),
                           .kept = args->kept};
    carry_arena arena = carry_arena_over(workspace, workspace_bytes);
    run.chunks_only = args->kept != NULL; /* what is kept is kept by chunks */
    (void)carry_delta_run_take(plan, &arena, &run, p->value, true);
    carry_delta_run_all(&run);
    plan->flops = carry_delta_forward_flops(plan);
    carry_span_work(plan->ctx, plan->flops, (double)(p->batch * p->tokens));
    return CARRY_OK;
}
