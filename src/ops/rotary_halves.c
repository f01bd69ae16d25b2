/* Operators for the attention layers of language models: rotary positions of pairs (i, i + half), where `half` is half
   of the rotated part of a head (ops/rotary.c rotates neighbours), and columns copied between rows. */
#include <inttypes.h>
#include <string.h>

#include "core/context.h"
#include "core/tensor.h"
#include "core/threads.h"
#include "ops/convert.h"
#include "ops/cpu.h"
#include "ops/nn.h"

#define GRAIN_ELEMENTS 16384
#define MAX_HEAD 4096 /* elements of a head: they are rotated in a copy, so that y may be x */

typedef struct job {
    const carry_kernels *kernels;
    carry_tensor y, x, table;
    float sign;
} job;

static void rotary_range(void *argument, int64_t begin, int64_t end, int worker) {
    (void)worker;
    const job *j = argument;
    const int64_t heads = j->x.shape[1];
    const int64_t size = j->x.shape[2];
    const int64_t half = j->table.shape[1];
    float x[MAX_HEAD];
    for (int64_t row = begin * heads; row < end * heads; row++) {
        const float *table = (const float *)j->table.data + row / heads * half * 2;
        const size_t bytes = carry_dtype_size(j->x.dtype);
        carry_widen(j->kernels, x, (const unsigned char *)j->x.data + (size_t)(row * size) * bytes, j->x.dtype, size);
        for (int64_t i = 0; i < half; i++) {
            const float a = x[i];
            const float b = x[i + half];
            const float c = table[2 * i];
            const float s = j->sign * table[2 * i + 1];
            x[i] = a * c - b * s;
            x[i + half] = b * c + a * s;
        }
        carry_narrow(j->kernels, (unsigned char *)j->y.data + (size_t)(row * size) * bytes, x, j->y.dtype, size);
    }
}

carry_status carry_rotary_halves(carry_ctx *ctx, carry_tensor y, carry_tensor x, carry_tensor table, bool inverse) {
    CARRY_OPERATOR(ctx, operators, rotary_halves, &x)
    CARRY_TRY(carry_expect_rank(ctx, "x", &x, 3));
    CARRY_TRY(carry_expect_like(ctx, "x", &x, &x));
    CARRY_TRY(carry_expect_like(ctx, "y", &y, &x));
    CARRY_TRY(carry_expect_rank(ctx, "table", &table, 3));
    const int64_t turned = table.shape[1] <= MAX_HEAD ? 2 * table.shape[1] : MAX_HEAD + 1;
    if (x.shape[2] > MAX_HEAD || turned > x.shape[2]) {
        return carry_fail(ctx, CARRY_ESHAPE,
                          "x has heads of %" PRId64 " elements, of which the table turns %" PRId64
                          ": at most all of them, and at most %d",
                          x.shape[2], turned, MAX_HEAD);
    }
    CARRY_TRY(carry_expect_f32(ctx, "table", &table, 3, (const int64_t[]){x.shape[0], turned / 2, 2}, x.device));
    return operators->rotary_halves(ctx, y, x, table, inverse);
}

carry_status carry_cpu_rotary_halves(carry_ctx *ctx, carry_tensor y, carry_tensor x, carry_tensor table, bool inverse) {
    job j = {.y = y, .x = x, .table = table, .sign = inverse ? -1.0f : 1.0f};
    CARRY_TRY(carry_kernels_of(ctx, &j.kernels));
    carry_parallel(ctx, x.shape[0], GRAIN_ELEMENTS / (x.shape[1] * x.shape[2] + 1) + 1, rotary_range, &j);
    return CARRY_OK;
}

typedef struct copy_job {
    carry_tensor to, from;
    size_t into, first, width; /* bytes */
    size_t to_row, from_row;
} copy_job;

static void columns_range(void *argument, int64_t begin, int64_t end, int worker) {
    (void)worker;
    const copy_job *j = argument;
    for (int64_t row = begin; row < end; row++) {
        memcpy((unsigned char *)j->to.data + (size_t)row * j->to_row + j->into,
               (const unsigned char *)j->from.data + (size_t)row * j->from_row + j->first, j->width);
    }
}

carry_status carry_copy_columns(carry_ctx *ctx, carry_tensor to, int64_t into, carry_tensor from, int64_t first,
                                int64_t width) {
    CARRY_OPERATOR(ctx, operators, copy_columns, &from)
    CARRY_TRY(carry_expect_rank(ctx, "from", &from, 2));
    CARRY_TRY(carry_expect_rank(ctx, "to", &to, 2));
    CARRY_TRY(carry_expect_like(ctx, "from", &from, &from));
    CARRY_TRY(carry_expect_activation(ctx, "to", &to, 2, (const int64_t[]){from.shape[0], to.shape[1]}, from.device));
    if (to.dtype != from.dtype) {
        return carry_fail(ctx, CARRY_EDTYPE, "to is %s and from is %s: columns are copied within one type",
                          carry_dtype_name(to.dtype), carry_dtype_name(from.dtype));
    }
    if (width < 0 || into < 0 || first < 0 || width > to.shape[1] - into || width > from.shape[1] - first) {
        return carry_fail(ctx, CARRY_ERANGE,
                          "%" PRId64 " columns from column %" PRId64 " of %" PRId64 " do not fit into column %" PRId64
                          " of %" PRId64,
                          width, first, from.shape[1], into, to.shape[1]);
    }
    return operators->copy_columns(ctx, to, into, from, first, width);
}

carry_status carry_cpu_copy_columns(carry_ctx *ctx, carry_tensor to, int64_t into, carry_tensor from, int64_t first,
                                    int64_t width) {
    const size_t size = carry_dtype_size(from.dtype);
    copy_job j = {.to = to,
                  .from = from,
                  .into = (size_t)into * size,
                  .first = (size_t)first * size,
                  .width = (size_t)width * size,
                  .to_row = (size_t)to.shape[1] * size,
                  .from_row = (size_t)from.shape[1] * size};
    carry_parallel(ctx, from.shape[0], GRAIN_ELEMENTS / (width + 1) + 1, columns_range, &j);
    return CARRY_OK;
}
