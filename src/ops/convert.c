/* Conversion between element types, through f32. */
#include <string.h>

#include "carry/ops.h"
#include "core/context.h"
#include "core/tensor.h"
#include "core/threads.h"
#include "ops/convert.h"
#include "ops/cpu.h"

#define PIECE 16384
#define BESIDE 1024

typedef struct job {
    const carry_kernels *kernels;
    carry_tensor to, from;
} job;

/* Converts any type to any type: widens into a buffer that stays in the first-level cache, then narrows. */
static void convert_range(void *argument, int64_t begin, int64_t end, int worker) {
    (void)worker;
    const job *j = argument;
    float beside[BESIDE];
    size_t from_size = carry_dtype_size(j->from.dtype);
    size_t to_size = carry_dtype_size(j->to.dtype);
    if (j->to.dtype == j->from.dtype) {
        memmove((char *)j->to.data + (size_t)begin * to_size, (const char *)j->from.data + (size_t)begin * from_size,
                (size_t)(end - begin) * to_size);
        return;
    }
    if (j->to.dtype == CARRY_F32) {
        carry_widen(j->kernels, (float *)j->to.data + begin, (const char *)j->from.data + (size_t)begin * from_size,
                    j->from.dtype, end - begin);
        return;
    }
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

carry_status carry_expect_packed(carry_ctx *ctx, const char *name, const carry_tensor *tensor,
                                 const carry_tensor *like) {
    CARRY_TRY(carry_tensor_expect(ctx, name, tensor, like->rank, like->shape));
    if (!carry_dtype_is_real(tensor->dtype)) {
        return carry_fail(ctx, CARRY_EDTYPE, "%s is %s, and f32, bf16 or f16 is needed", name,
                          carry_dtype_name(tensor->dtype));
    }
    if (!carry_tensor_is_packed(tensor, 0)) {
        return carry_fail(ctx, CARRY_ESTRIDE, "%s is not packed: its elements must follow each other", name);
    }
    return carry_device_expect(ctx, name, tensor, like->device);
}

carry_status carry_convert(carry_ctx *ctx, carry_tensor to, carry_tensor from) {
    CARRY_OPERATOR(ctx, operators, convert, &from)
    CARRY_TRY(carry_expect_packed(ctx, "from", &from, &from));
    CARRY_TRY(carry_expect_packed(ctx, "to", &to, &from));
    return operators->convert(ctx, to, from);
}

carry_status carry_cpu_convert(carry_ctx *ctx, carry_tensor to, carry_tensor from) {
    job j = {.to = to, .from = from};
    CARRY_TRY(carry_kernels_of(ctx, &j.kernels));
    carry_parallel(ctx, carry_tensor_count(&from), PIECE, convert_range, &j);
    return CARRY_OK;
}
