/* Chunk by chunk. If there are fewer sequences than threads, time is divided:

       1. all chunks but the last, in parallel: the chunk's transition M and its end state L from zero; h is not
          written;
       2. one after the other: S[c+1] = M[c] S[c] + L[c], the state that enters each chunk;
       3. all chunks in parallel: walk the chunk again from S[c] and write h.

   Reading b twice is cheaper than writing h, reading it again and correcting it. If the batch alone keeps all threads
   busy and the caller gave no chunk size, a sequence is one chunk, and only step 3 is done. */
#include <string.h>

#include "core/context.h"
#include "core/span.h"
#include "core/threads.h"
#include "ops/convert.h"
#include "scan/algorithm.h"
#include "scan/walk.h"

/* A shorter chunk would spend more time on starting than on walking. */
#define LEAST_CHUNK 16

typedef struct job {
    carry_scan_work *work;
    int64_t chunks, chunk;
    carry_scan_lanes lanes;
    int64_t A_size, state_floats, scratch_floats;
    float *transitions;    /* [batch, chunks, A_size] */
    float *states;         /* [batch, chunks, state]: L, then S */
    float *scratch, *hold; /* one for each thread */
} job;

static int64_t chunk_of(const carry_scan_shape *shape, int threads) {
    int64_t chunk = shape->chunk;
    if (chunk == 0) {
        int64_t parts = shape->batch >= threads ? 1 : (threads + shape->batch - 1) / shape->batch;
        chunk = (shape->steps + parts - 1) / parts;
        chunk = chunk < LEAST_CHUNK ? LEAST_CHUNK : chunk;
    }
    return chunk < shape->steps ? chunk : shape->steps;
}

static void lay_out(const carry_scan_shape *shape, int threads, carry_arena *arena, job *j) {
    j->chunk = chunk_of(shape, threads);
    j->chunks = (shape->steps + j->chunk - 1) / j->chunk;
    j->lanes = (carry_scan_lanes){.per_item = 1, .size = shape->kind == CARRY_SCAN_DENSE ? shape->width : shape->n};
    j->A_size = carry_scan_A_size(shape);
    j->state_floats = carry_scan_lane_state(shape, j->lanes);
    j->scratch_floats = carry_scan_walk_scratch(shape);
    size_t pieces = 0;
    if (!carry_size_mul(&pieces, (size_t)shape->batch, (size_t)j->chunks)) {
        arena->overflowed = true;
    }
    size_t A_floats = 0;
    size_t S_floats = 0;
    if (!carry_size_mul(&A_floats, pieces, (size_t)j->A_size) ||
        !carry_size_mul(&S_floats, pieces, (size_t)j->state_floats)) {
        arena->overflowed = true;
    }
    j->transitions = carry_arena_take(arena, A_floats, sizeof(float));
    j->states = carry_arena_take(arena, S_floats, sizeof(float));
    j->scratch = carry_arena_take(arena, (size_t)threads, (size_t)j->scratch_floats * sizeof(float));
    j->hold = carry_arena_take(arena, (size_t)threads, (size_t)(2 * j->A_size) * sizeof(float));
}

/* The address of a step of A as f32, converted into `beside` if needed. */
static const float *A_step(const job *j, int64_t item, int64_t step, float *beside);

static void multiply_diagonal(const job *j, int64_t item, int64_t from, int64_t to, float *M, float *beside) {
    for (int64_t r = 0; r < j->A_size; r++) {
        M[r] = 1.0f;
    }
    for (int64_t t = from; t < to; t++) {
        const float *a = A_step(j, item, t, beside);
        for (int64_t r = 0; r < j->A_size; r++) {
            M[r] *= a[r];
        }
    }
}

static void multiply_dense(const job *j, int64_t item, int64_t from, int64_t to, float *M, float *hold) {
    const carry_scan_work *work = j->work;
    float *beside = hold;
    float *product = hold + j->A_size;
    memcpy(M, A_step(j, item, from, beside), (size_t)j->A_size * sizeof *M);
    for (int64_t t = from + 1; t < to; t++) {
        const float *A = A_step(j, item, t, beside);
        /* Transposed transitions stay as stored and are multiplied in reverse order (element.c). */
        work->kernels->product(&(carry_product){.m = work->n,
                                                .n = work->n,
                                                .k = work->n,
                                                .count = 1,
                                                .a = work->transposed ? M : A,
                                                .b = work->transposed ? A : M,
                                                .c = product,
                                                .a_row = work->n,
                                                .b_row = work->n,
                                                .c_row = work->n});
        memcpy(M, product, (size_t)j->A_size * sizeof *M);
    }
}

static void summarise(void *argument, int64_t begin, int64_t end, int worker) {
    const job *j = argument;
    for (int64_t i = begin; i < end; i++) {
        int64_t item = i / (j->chunks - 1);
        int64_t c = i % (j->chunks - 1);
        int64_t from = c * j->chunk;
        int64_t to = from + j->chunk;
        float *M = j->transitions + (item * j->chunks + c) * j->A_size;
        float *hold = j->hold + (int64_t)worker * 2 * j->A_size;
        if (j->work->kind == CARRY_SCAN_DENSE) {
            multiply_dense(j, item, from, to, M, hold);
        } else {
            multiply_diagonal(j, item, from, to, M, hold);
        }
        float *L = j->states + (item * j->chunks + c + 1) * j->state_floats;
        memset(L, 0, (size_t)j->state_floats * sizeof *L);
        carry_scan_walk(j->work, carry_scan_lane_at(j->work, j->lanes, item), from, to, true, L,
                        j->scratch + worker * j->scratch_floats);
    }
}

/* states[c+1] holds L[c] and becomes S[c+1] = M[c] S[c] + L[c]. */
static void chain(const job *j, int64_t item) {
    const carry_scan_work *work = j->work;
    float *states = j->states + item * j->chunks * j->state_floats;
    const float *M = j->transitions + item * j->chunks * j->A_size;
    carry_scan_lane_start(work, carry_scan_lane_at(work, j->lanes, item), states);
    if (work->kind == CARRY_SCAN_DENSE) {
        work->kernels->product(&(carry_product){.m = work->n,
                                                .n = work->width,
                                                .k = work->n,
                                                .count = j->chunks - 1,
                                                .a = M,
                                                .b = states,
                                                .base = states + j->state_floats,
                                                .c = states + j->state_floats,
                                                .a_row = work->n,
                                                .b_row = work->width,
                                                .base_row = work->width,
                                                .c_row = work->width,
                                                .a_next = j->A_size,
                                                .b_next = j->state_floats,
                                                .base_next = j->state_floats,
                                                .c_next = j->state_floats,
                                                .a_transposed = work->transposed});
        return;
    }
    work->kernels->diagonal_apply(
        &(carry_diagonal_apply){.count = j->chunks - 1,
                                .rows = work->n,
                                .width = work->width,
                                .a = M,
                                .x = states,
                                .base = states + j->state_floats,
                                .y = states + j->state_floats,
                                .a_next = j->A_size,
                                .x_next = j->state_floats,
                                .base_next = j->state_floats,
                                .y_next = j->state_floats}); /* processed in order, so that x[i] is y[i-1] */
}

static void finish(void *argument, int64_t begin, int64_t end, int worker) {
    const job *j = argument;
    for (int64_t i = begin; i < end; i++) {
        int64_t item = i / j->chunks;
        int64_t from = i % j->chunks * j->chunk;
        int64_t to = from + j->chunk < j->work->steps ? from + j->chunk : j->work->steps;
        carry_scan_walk(j->work, carry_scan_lane_at(j->work, j->lanes, item), from, to, false,
                        j->states + i * j->state_floats, j->scratch + worker * j->scratch_floats);
    }
}

static double cost(const carry_scan_shape *shape, const carry_rates_table *rates, int threads) {
    bool dense = shape->kind == CARRY_SCAN_DENSE;
    int64_t chunk = chunk_of(shape, threads);
    double chunks = (double)((shape->steps + chunk - 1) / chunk);
    double pieces = (double)shape->batch * chunks;
    double rounds = (double)(((int64_t)pieces + threads - 1) / threads);
    double apply = dense ? carry_rates_product(rates, shape->n, shape->width)
                         : carry_rates_diagonal_step(rates, shape->n * shape->width);
    double compose =
        dense ? carry_rates_product(rates, shape->n, shape->n) : carry_rates_diagonal_step(rates, shape->n);
    double first = chunks > 1.0 ? apply + compose : 0.0;
    double busy = pieces < threads ? pieces : (double)threads;
    double split = busy > 1.0 && shape->batch < threads ? 1.0 + (busy - 1.0) * CARRY_TIME_SPLIT : busy;
    double work = rounds * (double)chunk * (apply + first) * busy / split + (chunks > 1.0 ? 5.0 : 1.0) * rates->fork;
    /* The second pass reads A and b from the caches if the first pass fits there. */
    double once = (double)carry_scan_A_size(shape) + 2.0 * (double)carry_scan_b_size(shape);
    double again = chunks > 1.0 ? (double)(carry_scan_A_size(shape) + carry_scan_b_size(shape)) : 0.0;
    double steps = (double)shape->batch * (double)shape->steps;
    double bytes = 4.0 * steps * (once + (4.0 * steps * once > rates->cache_bytes ? again : 0.0));
    double traffic = bytes / carry_rates_bandwidth(rates, busy);
    return work > traffic ? work : traffic;
}

static bool workspace(const carry_scan_shape *shape, int threads, size_t *bytes) {
    carry_arena arena = carry_arena_over(NULL, 0);
    job j;
    lay_out(shape, threads, &arena, &j);
    return carry_arena_total(&arena, bytes);
}

static void count(carry_scan_work *work, int64_t compositions, int64_t applications) {
    double A_size = (double)carry_scan_A_size(work);
    double across = work->kind == CARRY_SCAN_DENSE ? (double)work->n : 1.0;
    work->products += work->batch * (compositions + applications);
    work->flops += 2.0 * (double)work->batch * A_size *
                   ((double)compositions * across + (double)applications * (double)work->width);
}

static carry_status run(carry_scan_work *work) {
    carry_arena arena = carry_arena_over(work->workspace, work->workspace_bytes);
    job j = {.work = work};
    lay_out(work, carry_ctx_threads(work->ctx), &arena, &j);
    if (j.chunks > 1) {
        CARRY_SPAN(work->ctx, "scan", "chunkwise summaries");
        carry_parallel(work->ctx, work->batch * (j.chunks - 1), 1, summarise, &j);
        count(work, (j.chunks - 1) * (j.chunk - (work->kind == CARRY_SCAN_DENSE ? 1 : 0)),
              (j.chunks - 1) * (j.chunk + 1));
    }
    for (int64_t item = 0; item < work->batch; item++) {
        chain(&j, item);
    }
    CARRY_SPAN(work->ctx, "scan", "chunkwise finish");
    carry_parallel(work->ctx, work->batch * j.chunks, 1, finish, &j);
    count(work, 0, work->steps);
    return CARRY_OK;
}

static const float *A_step(const job *j, int64_t item, int64_t step, float *beside) {
    const carry_scan_array *A = &j->work->A;
    ptrdiff_t elements = item * A->item + step * A->step;
    const char *from = (const char *)A->data + elements * (ptrdiff_t)carry_dtype_size(A->dtype);
    if (A->dtype == CARRY_F32) {
        return (const float *)(const void *)from;
    }
    carry_widen(j->work->kernels, beside, from, A->dtype, j->A_size);
    return beside;
}

const carry_scan_algorithm carry_scan_chunkwise = {
    .name = "chunkwise",
    .span = CARRY_SPAN_SITE("scan", "chunkwise"),
    .about = "chunks at once: summaries, the chain of chunk ends, then each chunk from its state",
    .applies = carry_scan_always,
    .cost = cost,
    .workspace = workspace,
    .run = run,
};
