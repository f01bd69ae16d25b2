/* Conversion between element types, through f32. */
#include <string.h>

#include "carry/ops.h"
#include "core/context.h"
#include "core/tensor.h"
#include "core/threads.h"
#include "ops/convert.h"

#define PIECE 16384
#define BESIDE 1024

typedef struct job {
    const carry_kernels *kernels;
    carry_tensor to, from;
} job;

/* Any type to any type: widened into a buffer that stays in the first cache, then narrowed. */
static void convert_range(void *argument, int64_t begin, int64_t end, int worker) {
    (void)worker;
    const job *j = argument;
    float beside[BESIDE];
    size_t from_size = carry_dtype_size(j->from.dtype);
    size_t to_size = carry_dtype_size(j->to.dtype);
    for (int64_t at = begin; at < end; at += BESIDE) {
        int64_t count = end - at < BESIDE ? end - at : BESIDE;
        carry_widen(j->kernels, beside, (const char *)j->from.data + (size_t)at * from_size, j->from.dtype, count);
        carry_narrow(j->kernels, (char *)j->to.data + (size_t)at * to_size, beside, j->to.dtype, count);
    }
}

void carry_widen(const carry_kernels *kernels, float *to, const void *from, carry_dtype dtype, int64_t count) {
    if (dtype == CARRY_BF16) {
        kernels->f32_from_bf16(to, from, count);
    } else if (dtype == CARRY_F16) {
        kernels->f32_from_f16(to, from, count);
    } else if (to != from) {
        memcpy(to, from, (size_t)count * sizeof *to);
    }
}

void carry_narrow(const carry_kernels *kernels, void *to, const float *from, carry_dtype dtype, int64_t count) {
    if (dtype == CARRY_BF16) {
        kernels->bf16_from_f32(to, from, count);
    } else if (dtype == CARRY_F16) {
        kernels->f16_from_f32(to, from, count);
    } else if (to != from) {
        memcpy(to, from, (size_t)count * sizeof *from);
    }
}

carry_status carry_convert(carry_ctx *ctx, carry_tensor to, carry_tensor from) {
    job j = {.to = to, .from = from};
    CARRY_TRY(carry_kernels_of(ctx, &j.kernels));
    CARRY_TRY(carry_tensor_expect(ctx, "from", &from, from.rank, from.shape));
    CARRY_TRY(carry_tensor_expect(ctx, "to", &to, from.rank, from.shape));
    if (to.dtype == CARRY_I64 || from.dtype == CARRY_I64) {
        return carry_fail(ctx, CARRY_EDTYPE, "carry_convert goes between f32, bf16 and f16, not from %s to %s",
                          carry_dtype_name(from.dtype), carry_dtype_name(to.dtype));
    }
    if (!carry_tensor_is_packed(&to, 0) || !carry_tensor_is_packed(&from, 0) || to.device != 0 || from.device != 0) {
        return carry_fail(ctx, CARRY_ESTRIDE, "carry_convert takes packed tensors on the CPU");
    }
    carry_parallel(ctx, carry_tensor_count(&from), PIECE, convert_range, &j);
    return CARRY_OK;
}
