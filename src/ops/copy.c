/* Copies between devices, and constants: whole packed tensors, enqueued on the context's stream. */
#include <math.h>
#include <string.h>

#include "carry/device.h"
#include "carry/ops.h"
#include "core/context.h"
#include "core/tensor.h"
#include "ops/cpu.h"

static carry_status expect_packed(carry_ctx *ctx, const char *name, const carry_tensor *tensor,
                                  const carry_tensor *like) {
    CARRY_TRY(carry_tensor_expect(ctx, name, tensor, like->rank, like->shape));
    if (tensor->dtype != like->dtype) {
        return carry_fail(ctx, CARRY_EDTYPE, "%s is %s and from is %s: a copy changes no type (carry_convert does)",
                          name, carry_dtype_name(tensor->dtype), carry_dtype_name(like->dtype));
    }
    if (!carry_tensor_is_packed(tensor, 0)) {
        return carry_fail(ctx, CARRY_ESTRIDE, "%s is not packed: its elements must follow each other", name);
    }
    return carry_device_expect(ctx, name, tensor, tensor->device);
}

carry_status carry_copy(carry_ctx *ctx, carry_tensor to, carry_tensor from) {
    CARRY_TRY(expect_packed(ctx, "from", &from, &from));
    CARRY_TRY(expect_packed(ctx, "to", &to, &from));
    const size_t bytes = (size_t)carry_tensor_count(&from) * carry_dtype_size(from.dtype);
    const int device = to.device != 0 ? to.device : from.device;
    return bytes == 0 || to.data == from.data ? CARRY_OK
                                              : carry_device_copy(ctx, to.data, to.device, from.data, from.device,
                                                                  bytes, carry_ctx_stream(ctx, device));
}

carry_status carry_zero(carry_ctx *ctx, carry_tensor to) {
    CARRY_TRY(expect_packed(ctx, "to", &to, &to));
    const size_t bytes = (size_t)carry_tensor_count(&to) * carry_dtype_size(to.dtype);
    return bytes == 0 ? CARRY_OK
                      : carry_device_fill(ctx, to.data, to.device, 0, bytes, carry_ctx_stream(ctx, to.device));
}

/* The value's bits in the tensor's type. */
static void encode(unsigned char bits[8], carry_dtype dtype, double value) {
    const float single = (float)value;
    const int64_t whole = dtype == CARRY_I64 ? (int64_t)value : 0;
    const uint16_t half = dtype == CARRY_BF16 ? carry_bf16_from_f32(single) : carry_f16_from_f32(single);
    const void *from = dtype == CARRY_F64   ? (const void *)&value
                       : dtype == CARRY_I64 ? (const void *)&whole
                       : dtype == CARRY_F32 ? (const void *)&single
                                            : (const void *)&half;
    memcpy(bits, from, carry_dtype_size(dtype));
}

carry_status carry_fill(carry_ctx *ctx, carry_tensor to, double value) {
    CARRY_OPERATOR(ctx, operators, fill, &to)
    CARRY_TRY(expect_packed(ctx, "to", &to, &to));
    if (to.dtype > CARRY_F64) {
        return carry_fail(ctx, CARRY_EDTYPE, "to is %s: expected f32, bf16, f16, i64 or f64",
                          carry_dtype_name(to.dtype));
    }
    if (to.dtype == CARRY_I64 && !(fabs(value) <= 9007199254740992.0)) {
        return carry_fail(ctx, CARRY_ERANGE, "%g cannot be the value of an i64 tensor: -2^53 to 2^53 can", value);
    }
    unsigned char bits[8] = {0};
    encode(bits, to.dtype, value);
    return operators->fill(ctx, to, bits);
}

carry_status carry_cpu_fill(carry_ctx *ctx, carry_tensor to, const unsigned char *bits) {
    (void)ctx;
    const int64_t count = carry_tensor_count(&to);
    const size_t size = carry_dtype_size(to.dtype);
    for (int64_t i = 0; i < count; i++) {
        memcpy((unsigned char *)to.data + (size_t)i * size, bits, size);
    }
    return CARRY_OK;
}
