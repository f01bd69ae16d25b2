/* Walks through time: diagonal steps directly on the stored type, dense ones in f32, through a small buffer for 16-bit
   storage. */
#include "scan/walk.h"

#include <string.h>

#include "ops/convert.h"

/* A narrower lane would share cache lines with its neighbours and leave vector registers half full. */
#define LANE_FLOATS 64
/* Floats of A, and of b, that are converted at a time, so that both stay in the L1 cache. */
#define BLOCK_FLOATS 4096

static bool is_dense(const carry_scan_shape *shape) {
    return shape->kind == CARRY_SCAN_DENSE;
}

static bool all_f32(const carry_scan_shape *shape) {
    return shape->A.dtype == CARRY_F32 && shape->b.dtype == CARRY_F32 && shape->h.dtype == CARRY_F32;
}

/* A step of one lane: rows of `columns` floats, `row` apart. */
typedef struct layout {
    int64_t rows, columns, row, offset;
} layout;

static layout layout_of(const carry_scan_work *work, carry_scan_lane lane) {
    int64_t extent = lane.end - lane.first;
    if (is_dense(work)) {
        return (layout){.rows = work->n, .columns = extent, .row = work->width, .offset = lane.first};
    }
    return (layout){.rows = extent, .columns = work->width, .row = work->width, .offset = lane.first * work->width};
}

/* The number of steps in a block. It is computed from the whole step and not from a lane, so that every lane, also the
   narrower last one, fits the scratch size. */
static int64_t block_steps(const carry_scan_shape *shape) {
    int64_t A_size = carry_scan_A_size(shape);
    int64_t b_size = carry_scan_b_size(shape);
    int64_t largest = A_size > b_size ? A_size : b_size;
    int64_t steps = BLOCK_FLOATS / largest;
    return steps > 0 ? steps : 1;
}

static const char *address(const carry_scan_array *array, int64_t item, int64_t step, int64_t offset) {
    ptrdiff_t elements = item * array->item + step * array->step + offset;
    return (const char *)array->data + elements * (ptrdiff_t)carry_dtype_size(array->dtype);
}

/* Converts between packed floats and a lane's rows. */
static void widen_rows(const carry_kernels *kernels, float *to, const char *from, carry_dtype dtype, layout l) {
    if (l.row == l.columns) {
        carry_widen(kernels, to, from, dtype, l.rows * l.columns);
        return;
    }
    for (int64_t r = 0; r < l.rows; r++) {
        carry_widen(kernels, to + r * l.columns, from + (size_t)(r * l.row) * carry_dtype_size(dtype), dtype,
                    l.columns);
    }
}

static void narrow_rows(const carry_kernels *kernels, char *to, const float *from, carry_dtype dtype, layout l) {
    if (l.row == l.columns) {
        carry_narrow(kernels, to, from, dtype, l.rows * l.columns);
        return;
    }
    for (int64_t r = 0; r < l.rows; r++) {
        carry_narrow(kernels, to + (size_t)(r * l.row) * carry_dtype_size(dtype), from + r * l.columns, dtype,
                     l.columns);
    }
}

/* Diagonal: the kernel reads and writes 16-bit storage itself. Only the transitions, which are few, are converted
   first, block by block. */
static void walk_diagonal(const carry_scan_work *work, carry_scan_lane lane, layout l, int64_t from, int64_t to,
                          bool only_state, float *state, float *scratch) {
    bool as_it_lies = work->A.dtype == CARRY_F32;
    int64_t most = as_it_lies ? to - from : block_steps(work);
    for (int64_t t = from; t < to; t += most) {
        int64_t steps = to - t < most ? to - t : most;
        for (int64_t i = 0; !as_it_lies && i < steps; i++) {
            carry_widen(work->kernels, scratch + i * l.rows, address(&work->A, lane.item, t + i, lane.first),
                        work->A.dtype, l.rows);
        }
        void *h = only_state ? NULL : (void *)(uintptr_t)address(&work->h, lane.item, t, l.offset);
        work->kernels->diagonal_scan(&(carry_diagonal_scan){
            .steps = steps,
            .rows = l.rows,
            .width = l.columns,
            .state = state,
            .h = h,
            .a = as_it_lies ? (const float *)(const void *)address(&work->A, lane.item, t, lane.first) : scratch,
            .b = address(&work->b, lane.item, t, l.offset),
            .a_step = as_it_lies ? work->A.step : l.rows,
            .b_step = work->b.step,
            .h_step = work->h.step,
            .b_type = work->b.dtype,
            .h_type = work->h.dtype});
    }
}

/* Some dense steps whose arrays are f32. A, b and h point to the first of them, at the lane's first column. */
typedef struct stretch {
    const float *A, *b;
    float *h;
    ptrdiff_t A_step, b_step, h_step, b_row, h_row;
    int64_t steps;
} stretch;

/* The first step reads the packed state. The others read the previous step in h, all in one call (kernels.h). */
static void step_dense(const carry_scan_work *work, layout l, const stretch *s, float *state) {
    carry_product p = {.m = work->n,
                       .n = l.columns,
                       .k = work->n,
                       .count = 1,
                       .a = s->A,
                       .b = state,
                       .base = s->b,
                       .c = s->h,
                       .a_row = work->n,
                       .b_row = l.columns,
                       .base_row = s->b_row,
                       .c_row = s->h_row,
                       .a_transposed = work->transposed};
    work->kernels->product(&p);
    if (s->steps > 1) {
        p.count = s->steps - 1;
        p.a = s->A + s->A_step;
        p.b = s->h;
        p.base = s->b + s->b_step;
        p.c = s->h + s->h_step;
        p.b_row = s->h_row;
        p.a_next = s->A_step;
        p.b_next = p.c_next = s->h_step;
        p.base_next = s->b_step;
        work->kernels->product(&p);
    }
    const float *last = s->h + (s->steps - 1) * s->h_step;
    for (int64_t r = 0; r < l.rows; r++) {
        memcpy(state + r * l.columns, last + r * s->h_row, (size_t)l.columns * sizeof *state);
    }
}

/* For 16-bit storage, or if no output is wanted: processes blocks of steps through scratch. */
static void walk_dense_blocks(const carry_scan_work *work, carry_scan_lane lane, layout l, int64_t from, int64_t to,
                              bool only_state, float *state, float *scratch) {
    int64_t size = l.rows * l.columns;
    int64_t A_size = work->n * work->n;
    int64_t most = block_steps(work);
    float *A = scratch;
    float *h = scratch + most * A_size;
    for (int64_t t = from; t < to; t += most) {
        int64_t steps = to - t < most ? to - t : most;
        stretch s = {.A = A,
                     .b = h,
                     .h = h,
                     .A_step = A_size,
                     .b_step = size,
                     .h_step = size,
                     .b_row = l.columns,
                     .h_row = l.columns,
                     .steps = steps};
        for (int64_t i = 0; i < steps; i++) {
            if (work->A.dtype != CARRY_F32) {
                carry_widen(work->kernels, A + i * A_size, address(&work->A, lane.item, t + i, 0), work->A.dtype,
                            A_size);
            }
            widen_rows(work->kernels, h + i * size, address(&work->b, lane.item, t + i, l.offset), work->b.dtype, l);
        }
        if (work->A.dtype == CARRY_F32) {
            s.A = (const float *)(const void *)address(&work->A, lane.item, t, 0);
            s.A_step = work->A.step;
        }
        step_dense(work, l, &s, state);
        for (int64_t i = 0; !only_state && i < steps; i++) {
            char *out = (char *)(uintptr_t)address(&work->h, lane.item, t + i, l.offset);
            narrow_rows(work->kernels, out, h + i * size, work->h.dtype, l);
        }
    }
}

carry_scan_lanes carry_scan_cut(const carry_scan_shape *shape, int threads) {
    int64_t extent = is_dense(shape) ? shape->width : shape->n;
    int64_t least = is_dense(shape) ? LANE_FLOATS / 4 : (LANE_FLOATS + shape->width - 1) / shape->width;
    int64_t wanted = (threads + shape->batch - 1) / shape->batch;
    int64_t size = (extent + wanted - 1) / wanted;
    size = (size + least - 1) / least * least;
    /* A lane of one column would use the matrix-vector kernel and round differently from its neighbours. */
    while (size < extent && extent % size == 1) {
        size += least;
    }
    size = size < extent ? size : extent;
    return (carry_scan_lanes){.per_item = (extent + size - 1) / size, .size = size};
}

carry_scan_lane carry_scan_lane_at(const carry_scan_shape *shape, carry_scan_lanes lanes, int64_t index) {
    int64_t extent = is_dense(shape) ? shape->width : shape->n;
    int64_t first = index % lanes.per_item * lanes.size;
    int64_t end = first + lanes.size < extent ? first + lanes.size : extent;
    return (carry_scan_lane){.item = index / lanes.per_item, .first = first, .end = end};
}

int64_t carry_scan_lane_state(const carry_scan_shape *shape, carry_scan_lanes lanes) {
    return lanes.size * (is_dense(shape) ? shape->n : shape->width);
}

int64_t carry_scan_walk_scratch(const carry_scan_shape *shape) {
    return block_steps(shape) * (carry_scan_A_size(shape) + carry_scan_b_size(shape));
}

void carry_scan_lane_start(const carry_scan_work *work, carry_scan_lane lane, float *state) {
    layout l = layout_of(work, lane);
    if (work->h0.data == NULL) {
        memset(state, 0, (size_t)(l.rows * l.columns) * sizeof *state);
        return;
    }
    widen_rows(work->kernels, state, address(&work->h0, lane.item, 0, l.offset), work->h0.dtype, l);
}

void carry_scan_walk(const carry_scan_work *work, carry_scan_lane lane, int64_t from, int64_t to, bool only_state,
                     float *state, float *scratch) {
    layout l = layout_of(work, lane);
    if (from >= to) {
        return;
    }
    if (!is_dense(work)) {
        walk_diagonal(work, lane, l, from, to, only_state, state, scratch);
        return;
    }
    if (!all_f32(work) || only_state) {
        walk_dense_blocks(work, lane, l, from, to, only_state, state, scratch);
        return;
    }
    stretch s = {.A = (const float *)(const void *)address(&work->A, lane.item, from, 0),
                 .b = (const float *)(const void *)address(&work->b, lane.item, from, l.offset),
                 .h = (float *)(uintptr_t)address(&work->h, lane.item, from, l.offset),
                 .A_step = work->A.step,
                 .b_step = work->b.step,
                 .h_step = work->h.step,
                 .b_row = l.row,
                 .h_row = l.row,
                 .steps = to - from};
    step_dense(work, l, &s, state);
}
