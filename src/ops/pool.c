/* Copies rows into pages and out of them, and computes rotary tables. */
#include "ops/pool.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "core/context.h"
#include "core/tensor.h"
#include "core/threads.h"
#include "ops/convert.h"
#include "ops/cpu.h"
#include "ops/nn.h"

#define COPIED ((size_t)256 << 10) /* bytes that one thread copies at a time */

static carry_status expect_rows(carry_ctx *ctx, const carry_tensor *to, const carry_tensor *from, bool may_convert) {
    CARRY_TRY(carry_expect_rank(ctx, "to", to, 2));
    CARRY_TRY(carry_expect_rank(ctx, "from", from, 2));
    CARRY_TRY(carry_expect_activation(ctx, "to", to, 2, to->shape, to->device));
    CARRY_TRY(carry_expect_activation(ctx, "from", from, 2, from->shape, to->device));
    if ((to->dtype != from->dtype && !may_convert) || to->shape[1] != from->shape[1]) {
        return carry_fail(ctx, CARRY_ESHAPE, "rows of %" PRId64 " %s and of %" PRId64 " %s: expected the same",
                          to->shape[1], carry_dtype_name(to->dtype), from->shape[1], carry_dtype_name(from->dtype));
    }
    return CARRY_OK;
}

static carry_status expect_same_rows(carry_ctx *ctx, const carry_tensor *to, const carry_tensor *from) {
    return expect_rows(ctx, to, from, false);
}

/* Rows of a pool, which may be bf16 beside rows in f32. */
static carry_status expect_slots(carry_ctx *ctx, const carry_tensor *pool, const carry_tensor *rows) {
    return expect_rows(ctx, pool, rows, pool->dtype == CARRY_BF16 && rows->dtype == CARRY_F32);
}

carry_status carry_copy_slots(carry_ctx *ctx, carry_tensor pool, const int32_t *to, const int32_t *from,
                              int64_t count) {
    CARRY_OPERATOR(ctx, operators, copy_slots, &pool)
    CARRY_TRY(expect_same_rows(ctx, &pool, &pool));
    return operators->copy_slots(ctx, pool, to, from, count);
}

carry_status carry_take_slots(carry_ctx *ctx, carry_tensor to, carry_tensor pool, const int32_t *slots) {
    CARRY_OPERATOR(ctx, operators, take_slots, &pool)
    CARRY_TRY(expect_slots(ctx, &pool, &to));
    return operators->take_slots(ctx, to, pool, slots);
}

carry_status carry_put_slots(carry_ctx *ctx, carry_tensor pool, carry_tensor from, const int32_t *slots) {
    CARRY_OPERATOR(ctx, operators, put_slots, &pool)
    CARRY_TRY(expect_slots(ctx, &pool, &from));
    return operators->put_slots(ctx, pool, from, slots);
}

carry_status carry_put_rows(carry_ctx *ctx, carry_tensor to, carry_tensor from, const int64_t *rows) {
    CARRY_OPERATOR(ctx, operators, put_rows, &to)
    CARRY_TRY(expect_rows(ctx, &to, &from, to.device == 0));
    return operators->put_rows(ctx, to, from, rows);
}

carry_status carry_take_pages(carry_ctx *ctx, carry_tensor to, carry_tensor from, const int32_t *pages) {
    CARRY_OPERATOR(ctx, operators, take_pages, &to)
    CARRY_TRY(expect_same_rows(ctx, &to, &from));
    return operators->take_pages(ctx, to, from, pages);
}

carry_status carry_rotary_turns(carry_ctx *ctx, carry_tensor table, const int64_t *positions, const float *rates) {
    CARRY_OPERATOR(ctx, operators, rotary_turns, &table)
    CARRY_TRY(carry_expect_rank(ctx, "table", &table, 3));
    const int64_t shape[] = {table.shape[0], table.shape[1], 2};
    CARRY_TRY(carry_expect_f32(ctx, "table", &table, 3, shape, table.device));
    return operators->rotary_turns(ctx, table, positions, rates);
}

static size_t row_bytes(const carry_tensor *rows) {
    return (size_t)rows->shape[1] * carry_dtype_size(rows->dtype);
}

typedef struct copying {
    char *data;
    size_t bytes, each; /* bytes of a row, and of a part of it that one thread copies */
    const int32_t *to, *from;
} copying;

static void copy_range(void *argument, int64_t begin, int64_t end, int worker) {
    (void)worker;
    const copying *j = argument;
    const size_t parts = (j->bytes + j->each - 1) / j->each;
    for (int64_t i = begin; i < end; i++) {
        const size_t row = (size_t)i / parts;
        const size_t at = (size_t)i % parts * j->each;
        const size_t left = j->bytes - at;
        memcpy(j->data + (size_t)j->to[row] * j->bytes + at, j->data + (size_t)j->from[row] * j->bytes + at,
               left < j->each ? left : j->each);
    }
}

carry_status carry_cpu_copy_slots(carry_ctx *ctx, carry_tensor pool, const int32_t *to, const int32_t *from,
                                  int64_t count) {
    copying j = {.data = pool.data, .bytes = row_bytes(&pool), .each = COPIED, .to = to, .from = from};
    carry_parallel(ctx, count * (int64_t)((j.bytes + COPIED - 1) / COPIED), 1, copy_range, &j);
    return CARRY_OK;
}

/* Rows into[i] of `to` become rows out[i] of `from`; a list that is NULL has the rows in order. */
typedef struct converting {
    const carry_kernels *kernels;
    carry_tensor to, from;
    const int32_t *into, *out;
} converting;

static void convert_rows(void *argument, int64_t begin, int64_t end, int worker) {
    (void)worker;
    const converting *j = argument;
    const int64_t n = j->to.shape[1];
    for (int64_t i = begin; i < end; i++) {
        char *to = (char *)j->to.data + (size_t)(j->into != NULL ? j->into[i] : i) * row_bytes(&j->to);
        const char *from = (const char *)j->from.data + (size_t)(j->out != NULL ? j->out[i] : i) * row_bytes(&j->from);
        if (j->to.dtype == j->from.dtype) {
            memcpy(to, from, row_bytes(&j->to));
        } else if (j->to.dtype == CARRY_F32) {
            carry_widen(j->kernels, (float *)(void *)to, from, j->from.dtype, n);
        } else {
            carry_narrow(j->kernels, to, (const float *)(const void *)from, j->to.dtype, n);
        }
    }
}

carry_status carry_cpu_take_slots(carry_ctx *ctx, carry_tensor to, carry_tensor pool, const int32_t *slots) {
    converting j = {.to = to, .from = pool, .out = slots};
    CARRY_TRY(carry_kernels_of(ctx, &j.kernels));
    carry_parallel(ctx, to.shape[0], 1, convert_rows, &j);
    return CARRY_OK;
}

carry_status carry_cpu_put_slots(carry_ctx *ctx, carry_tensor pool, carry_tensor from, const int32_t *slots) {
    converting j = {.to = pool, .from = from, .into = slots};
    CARRY_TRY(carry_kernels_of(ctx, &j.kernels));
    carry_parallel(ctx, from.shape[0], 1, convert_rows, &j);
    return CARRY_OK;
}

#define BESIDE 256 /* elements of a row that are converted at a time */

carry_status carry_cpu_put_rows(carry_ctx *ctx, carry_tensor to, carry_tensor from, const int64_t *rows) {
    const carry_kernels *kernels;
    const size_t bytes = row_bytes(&to);
    const size_t from_size = carry_dtype_size(from.dtype);
    const int64_t n = to.shape[1];
    CARRY_TRY(carry_kernels_of(ctx, &kernels));
    for (int64_t i = 0; i < from.shape[0]; i++) {
        char *row = (char *)to.data + (size_t)rows[i] * bytes;
        const char *source = (const char *)from.data + (size_t)(i * n) * from_size;
        if (to.dtype == from.dtype) {
            memcpy(row, source, bytes);
            continue;
        }
        for (int64_t at = 0; at < n; at += BESIDE) {
            float beside[BESIDE];
            const int64_t count = n - at < BESIDE ? n - at : BESIDE;
            carry_widen(kernels, beside, source + (size_t)at * from_size, from.dtype, count);
            carry_narrow(kernels, row + (size_t)at * carry_dtype_size(to.dtype), beside, to.dtype, count);
        }
    }
    return CARRY_OK;
}

carry_status carry_cpu_take_pages(carry_ctx *ctx, carry_tensor to, carry_tensor from, const int32_t *pages) {
    (void)ctx;
    const size_t bytes = row_bytes(&to);
    for (int64_t t = 0; t < to.shape[0]; t += CARRY_POOL_PAGE) {
        const int64_t count = to.shape[0] - t < CARRY_POOL_PAGE ? to.shape[0] - t : CARRY_POOL_PAGE;
        const size_t row = (size_t)pages[t / CARRY_POOL_PAGE] * CARRY_POOL_PAGE;
        memcpy((char *)to.data + (size_t)t * bytes, (const char *)from.data + row * bytes, (size_t)count * bytes);
    }
    return CARRY_OK;
}

typedef struct turning {
    float *table;
    const int64_t *positions;
    const float *rates;
    int64_t half;
} turning;

static void turn_range(void *argument, int64_t begin, int64_t end, int worker) {
    (void)worker;
    const turning *j = argument;
    for (int64_t t = begin; t < end; t++) {
        float *to = j->table + t * j->half * 2;
        for (int64_t i = 0; i < j->half; i++) {
            const float angle = (float)j->positions[t] * j->rates[i];
            to[2 * i] = (float)cos((double)angle);
            to[2 * i + 1] = (float)sin((double)angle);
        }
    }
}

carry_status carry_cpu_rotary_turns(carry_ctx *ctx, carry_tensor table, const int64_t *positions, const float *rates) {
    turning j = {.table = table.data, .positions = positions, .rates = rates, .half = table.shape[1]};
    carry_parallel(ctx, table.shape[0], 64, turn_range, &j);
    return CARRY_OK;
}
