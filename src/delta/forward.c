/* The forward pass. A unit of work is one head of one sequence and some columns of V: columns of the state are
   independent of each other, so if there are fewer sequences and heads than threads, V is divided and not time.
   (Dividing time by a scan of (M, L) pairs (range.c) does three times the work; dividing V repeats only k k^T and
   q k^T: docs/attempts/delta.md.)

   For each chunk, with S the state that enters and V' = (I + A)^-1 R:

       R = beta (V - fade K S);   O = scale fade Q S + P V';   S <- e^{G[C]} S + (left K)^T V' */
#include "delta/forward.h"

#include <string.h>

#include "core/context.h"
#include "core/span.h"
#include "core/threads.h"

typedef carry_delta_unit unit;

#define LEAST_COLUMNS 16 /* narrower products leave vector registers half full */
/* Columns of the state that a chunk processes at a time. They are stored contiguously: 32 KiB with 128 keys, which fits
   in an L1 cache of 48 KiB. As columns of rows of 512 bytes they would map to half of its sets. */
#define PANEL 64

static int64_t snapshot_position(const carry_delta_plan *plan, int64_t length, int64_t index) {
    const carry_delta_problem *p = &plan->problem;
    if (p->snapshot_every > 0) {
        return (index + 1) * p->snapshot_every < length ? (index + 1) * p->snapshot_every : length;
    }
    int64_t position = length - p->snapshot_last + 1 + index;
    return position > 0 ? position : 0;
}

/* The end of the chunk that starts at token t: after a full chunk, or at the next snapshot. */
static int64_t chunk_end(const carry_delta_plan *plan, int64_t length, int64_t t, int64_t next_snapshot) {
    int64_t end = t + plan->chunk < length ? t + plan->chunk : length;
    if (next_snapshot < carry_delta_snapshots(plan)) {
        int64_t due = snapshot_position(plan, length, next_snapshot);
        end = due > t && due < end ? due : end;
    }
    return end;
}

static bool by_tokens(const carry_delta_run *run) {
    return run->plan->method->chunk == 0 && !run->chunks_only;
}

/* Stores the snapshots that are due at token t of the sequence. Returns the index of the next one. */
static int64_t store_snapshots(const unit *u, int64_t next, int64_t t) {
    const carry_delta_plan *plan = u->run->plan;
    if (u->run->snapshots == NULL) {
        return next;
    }
    int64_t count = carry_delta_snapshots(plan);
    for (; next < count && snapshot_position(plan, u->sequence->length, next) <= t; next++) {
        for (int64_t member = 0; member < plan->group; member++) {
            int64_t value_head = u->head * plan->group + member;
            int64_t index = (u->sequence->index * count + next) * plan->problem.value_heads + value_head;
            for (int64_t at = 0; at < u->columns; at += u->panel) {
                unit part = carry_delta_panel_of(u, at);
                carry_delta_state_store(plan, u->run->snapshots->data, index, carry_delta_state_of(&part, member),
                                        part.columns, part.first, part.columns);
            }
        }
    }
    return next;
}

/* Sets the state of every value head of the group before the first token. */
static void start(const unit *u) {
    const carry_delta_run *run = u->run;
    const carry_delta_plan *plan = run->plan;
    int64_t K = plan->problem.key;
    for (int64_t member = 0; member < plan->group; member++) {
        float *S = carry_delta_state_of(u, member);
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
        const float *S = carry_delta_state_of(u, member);
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
    for (int64_t at = 0; at < u->columns; at += u->panel) {
        unit part = carry_delta_panel_of(u, at);
        start(&part);
    }
    int64_t next = store_snapshots(u, 0, 0);
    for (int64_t t = 0; t < length;) {
        int64_t end = chunk_end(u->run->plan, length, t, u->run->snapshots != NULL ? next : INT64_MAX);
        if (by_tokens(u->run)) {
            end = t + 1;
            carry_delta_tokens(u->run, u->scratch, u->sequence, u->head, t, u->first, u->columns, u->scratch->S,
                               u->columns, u->run->plan->problem.key * u->run->width);
        } else {
            carry_delta_forward_chunk(u, t, end);
        }
        next = store_snapshots(u, next, end);
        t = end;
        if (u->pauses) {
            u->run->part.pause(u->run->part.user);
        }
    }
    for (int64_t at = 0; at < u->columns; at += u->panel) {
        unit part = carry_delta_panel_of(u, at);
        finish(&part);
    }
}

/* Returns `width`, or more so that no part has a single column, which would be summed in another order. */
static int64_t no_column_alone(int64_t width, int64_t columns) {
    while (width < columns && columns % width == 1) {
        width += LEAST_COLUMNS;
    }
    return width;
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
        u.panel = by_tokens(run) || carry_delta_by_terms(run->plan) ? u.columns : no_column_alone(PANEL, u.columns);
        run_unit(&u);
    }
}

static void take_scratch(const carry_delta_plan *plan, carry_arena *arena, carry_delta_scratch *s, int64_t width) {
    size_t C = (size_t)plan->chunk;
    size_t K = (size_t)plan->problem.key;
    size_t W = (size_t)width;
    carry_delta_rows_take(plan, arena, &s->rows);
    carry_delta_head_take(plan, arena, &s->heads);
    s->fade_k = carry_delta_floats(arena, C * K);
    s->fade_q = carry_delta_floats(arena, C * K);
    s->left_k = carry_delta_floats(arena, C * K);
    s->by_k = carry_delta_floats(arena, C);
    s->by_q = carry_delta_floats(arena, C);
    s->norm_k = carry_delta_floats(arena, C);
    s->norm_q = carry_delta_floats(arena, C);
    s->norm_v = carry_delta_floats(arena, C);
    s->state = carry_delta_terms_take(plan, arena, width, plan->problem.key);
    s->values = carry_delta_terms_take(plan, arena, width, plan->chunk);
    s->triangle = carry_delta_terms_take(plan, arena, plan->chunk, plan->chunk);
    s->X = carry_delta_floats(arena, C * W);
    s->O = carry_delta_floats(arena, C * W);
    s->made = carry_delta_floats(arena, C * W);
    s->beside = carry_delta_floats(arena, CARRY_DELTA_BLOCK * W);
    s->S = carry_arena_take(arena, (size_t)plan->group * K, W * sizeof(float));
}

bool carry_delta_run_take_part(const carry_delta_plan *plan, carry_arena *arena, carry_delta_run *run, int64_t columns,
                               bool cut) {
    int threads = carry_ctx_threads(plan->ctx);
    int64_t units = run->part.count * run->part.heads;
    int64_t wanted = cut && units > 0 && units < threads ? (threads + units - 1) / units : 1;
    int64_t width = (columns + wanted - 1) / wanted;
    width = (width + LEAST_COLUMNS - 1) / LEAST_COLUMNS * LEAST_COLUMNS;
    width = no_column_alone(width, columns);
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

/* Counts products as they are done, with triangles by blocks: the work of each value head, and the work that the value
   heads of a group share. */
double carry_delta_forward_flops(const carry_delta_plan *plan) {
    const carry_delta_problem *p = &plan->problem;
    double tokens = (double)(p->batch * p->tokens);
    double KV = (double)(p->key * p->value);
    if (plan->method->chunk == 0) {
        return tokens * (double)p->value_heads * 7.0 * KV;
    }
    double C = (double)plan->chunk;
    double triangle = 0.5 * (C + CARRY_DELTA_BLOCK); /* average columns in a row of a triangle */
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
    (void)carry_delta_run_take(plan, &arena, &run, p->value, true);
    carry_delta_run_all(&run);
    plan->flops = carry_delta_forward_flops(plan);
    carry_span_work(plan->ctx, plan->flops, (double)(p->batch * p->tokens));
    return CARRY_OK;
}
