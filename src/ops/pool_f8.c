/* Keys and values of a pool in 8 bits (ops/f8.h): writes and reads heads. */
#include <inttypes.h>

#include "core/context.h"
#include "core/tensor.h"
#include "core/threads.h"
#include "ops/convert.h"
#include "ops/cpu.h"
#include "ops/f8.h"
#include "ops/nn.h"
#include "ops/pool.h"

#define PIECE 256 /* elements of a head that are converted at a time */

static carry_status expect_pool(carry_ctx *ctx, const carry_f8_pool *pool, const carry_tensor *heads) {
    const carry_tensor *n = &pool->numbers;
    const carry_tensor *s = &pool->scales;
    CARRY_TRY(carry_expect_rank(ctx, "the rows of keys or values", heads, 3));
    CARRY_TRY(carry_expect_activation(ctx, "the rows of keys or values", heads, 3, heads->shape, n->device));
    if (n->dtype != CARRY_F8 || n->rank != 3 || n->shape[1] != heads->shape[1] || n->shape[2] != heads->shape[2] ||
        s->dtype != CARRY_I8 || s->rank != 2 || s->shape[0] != n->shape[0] || s->shape[1] != n->shape[1] ||
        s->device != n->device || !carry_tensor_is_packed(n, 0) || !carry_tensor_is_packed(s, 0)) {
        return carry_fail(ctx, CARRY_ESHAPE,
                          "keys or values in 8 bits: expected packed f8_e4m3 [rows, %" PRId64 ", %" PRId64
                          "] and i8 [rows, %" PRId64 "]",
                          heads->shape[1], heads->shape[2], heads->shape[1]);
    }
    return CARRY_OK;
}

carry_status carry_put_rows_f8(carry_ctx *ctx, carry_f8_pool to, carry_tensor from, const int64_t *rows) {
    CARRY_OPERATOR(ctx, operators, put_rows_f8, &to.numbers)
    CARRY_TRY(expect_pool(ctx, &to, &from));
    return operators->put_rows_f8(ctx, to, from, rows);
}

carry_status carry_take_pages_f8(carry_ctx *ctx, carry_tensor to, carry_f8_pool from, const int32_t *pages) {
    CARRY_OPERATOR(ctx, operators, take_pages_f8, &to)
    CARRY_TRY(expect_pool(ctx, &from, &to));
    return operators->take_pages_f8(ctx, to, from, pages);
}

typedef struct moving {
    const carry_kernels *kernels;
    carry_f8_pool pool;
    carry_tensor heads;
    const int64_t *rows;
    const int32_t *pages;
} moving;

static const unsigned char *head_at(const moving *j, int64_t head, int64_t first) {
    const carry_tensor *h = &j->heads;
    return (const unsigned char *)h->data + (size_t)(head * h->shape[2] + first) * carry_dtype_size(h->dtype);
}

static void put_head(const moving *j, uint8_t *to, uint8_t *scale, int64_t head) {
    const int64_t D = j->heads.shape[2];
    float x[PIECE];
    uint32_t largest = 0;
    for (int64_t at = 0; at < D; at += PIECE) {
        const int64_t count = D - at < PIECE ? D - at : PIECE;
        carry_widen(j->kernels, x, head_at(j, head, at), j->heads.dtype, count);
        const uint32_t size = carry_f8_largest(x, count);
        largest = size > largest ? size : largest;
    }
    const uint32_t e = carry_f8_scale_of(largest);
    const float inverse = carry_f8_inverse(e);
    *scale = (uint8_t)e;
    for (int64_t at = 0; at < D; at += PIECE) {
        const int64_t count = D - at < PIECE ? D - at : PIECE;
        if (D > PIECE) { /* else x still has them */
            carry_widen(j->kernels, x, head_at(j, head, at), j->heads.dtype, count);
        }
        carry_f8_encode(to + at, x, inverse, count);
    }
}

static void put_range(void *argument, int64_t begin, int64_t end, int worker) {
    (void)worker;
    const moving *j = argument;
    const int64_t H = j->heads.shape[1];
    for (int64_t i = begin; i < end; i++) {
        const int64_t head = j->rows[i / H] * H + i % H;
        put_head(j, (uint8_t *)j->pool.numbers.data + head * j->heads.shape[2], (uint8_t *)j->pool.scales.data + head,
                 i);
    }
}

carry_status carry_cpu_put_rows_f8(carry_ctx *ctx, carry_f8_pool to, carry_tensor from, const int64_t *rows) {
    moving j = {.pool = to, .heads = from, .rows = rows};
    CARRY_TRY(carry_kernels_of(ctx, &j.kernels));
    carry_parallel(ctx, from.shape[0] * from.shape[1], 16, put_range, &j);
    return CARRY_OK;
}

static void take_range(void *argument, int64_t begin, int64_t end, int worker) {
    (void)worker;
    const moving *j = argument;
    const int64_t H = j->heads.shape[1];
    const int64_t D = j->heads.shape[2];
    for (int64_t i = begin; i < end; i++) {
        const int64_t t = i / H;
        const int64_t row = (int64_t)j->pages[t / CARRY_POOL_PAGE] * CARRY_POOL_PAGE + t % CARRY_POOL_PAGE;
        const uint8_t *codes = (const uint8_t *)j->pool.numbers.data + (row * H + i % H) * D;
        const float scale = carry_f8_scale(((const uint8_t *)j->pool.scales.data)[row * H + i % H]);
        for (int64_t at = 0; at < D; at += PIECE) {
            float x[PIECE];
            const int64_t count = D - at < PIECE ? D - at : PIECE;
            carry_f8_decode(x, codes + at, scale, count);
            carry_narrow(j->kernels, (unsigned char *)(uintptr_t)head_at(j, i, at), x, j->heads.dtype, count);
        }
    }
}

carry_status carry_cpu_take_pages_f8(carry_ctx *ctx, carry_tensor to, carry_f8_pool from, const int32_t *pages) {
    moving j = {.pool = from, .heads = to, .pages = pages};
    CARRY_TRY(carry_kernels_of(ctx, &j.kernels));
    carry_parallel(ctx, to.shape[0] * to.shape[1], 16, take_range, &j);
    return CARRY_OK;
}
