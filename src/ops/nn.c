/* Checks and pieces of rows that the operators of carry/nn.h share. */
#include "ops/nn.h"

#include "core/context.h"
#include "core/tensor.h"
#include "ops/convert.h"
#include "ops/device.h"

carry_status carry_expect_rank(carry_ctx *ctx, const char *name, const carry_tensor *tensor, int rank) {
    if (tensor->rank != rank) {
        return carry_fail(ctx, CARRY_ESHAPE, "%s has rank %d where %d is needed", name, tensor->rank, rank);
    }
    return CARRY_OK;
}

carry_status carry_expect_activation(carry_ctx *ctx, const char *name, const carry_tensor *tensor, int rank,
                                     const int64_t *shape, int device) {
    carry_tensor like = {.rank = rank, .device = device};
    for (int i = 0; i < rank && i < CARRY_MAX_RANK; i++) {
        like.shape[i] = shape[i];
    }
    return carry_expect_packed(ctx, name, tensor, &like);
}

carry_status carry_expect_like(carry_ctx *ctx, const char *name, const carry_tensor *tensor, const carry_tensor *like) {
    CARRY_TRY(carry_expect_packed(ctx, name, tensor, like));
    if (tensor->dtype != like->dtype) {
        return carry_fail(ctx, CARRY_EDTYPE, "%s is %s and the other activations are %s: they must be of one type",
                          name, carry_dtype_name(tensor->dtype), carry_dtype_name(like->dtype));
    }
    return CARRY_OK;
}

carry_status carry_expect_rows(carry_ctx *ctx, const char *name, const carry_tensor *tensor, const carry_tensor *like) {
    carry_tensor packed = *tensor;
    if (tensor->device != 0 && tensor->rank >= 2 && tensor->rank <= CARRY_MAX_RANK) {
        int64_t next = tensor->stride[tensor->rank - 2];
        bool rows = tensor->stride[tensor->rank - 1] == 1 && next >= tensor->shape[tensor->rank - 1];
        for (int i = tensor->rank - 2; i >= 0 && rows; i--) {
            rows = tensor->stride[i] == next && !__builtin_mul_overflow(next, tensor->shape[i], &next);
        }
        if (rows) {
            packed = carry_reshape(*tensor, tensor->rank, tensor->shape);
        }
    }
    return carry_expect_like(ctx, name, &packed, like);
}

carry_status carry_expect_weight(carry_ctx *ctx, const char *name, const carry_tensor *tensor, int rank,
                                 const int64_t *shape, const carry_tensor *activations) {
    CARRY_TRY(carry_expect_activation(ctx, name, tensor, rank, shape, activations->device));
    /* The CPU widens any type. */
    if (tensor->device != 0 && tensor->dtype != CARRY_F32 && tensor->dtype != activations->dtype) {
        return carry_fail(ctx, CARRY_EDTYPE, "%s is %s: f32 or the activations' type, %s, is needed", name,
                          carry_dtype_name(tensor->dtype), carry_dtype_name(activations->dtype));
    }
    return CARRY_OK;
}

carry_status carry_expect_f32(carry_ctx *ctx, const char *name, const carry_tensor *tensor, int rank,
                              const int64_t *shape, int device) {
    CARRY_TRY(carry_expect_activation(ctx, name, tensor, rank, shape, device));
    if (tensor->dtype != CARRY_F32) {
        return carry_fail(ctx, CARRY_EDTYPE, "%s is %s and f32 is needed", name, carry_dtype_name(tensor->dtype));
    }
    return CARRY_OK;
}

static carry_status expect_8_bytes(carry_ctx *ctx, const char *name, const carry_tensor *tensor, int64_t count,
                                   carry_dtype dtype, int device) {
    CARRY_TRY(carry_tensor_expect(ctx, name, tensor, 1, &count));
    if (tensor->dtype != dtype) {
        return carry_fail(ctx, CARRY_EDTYPE, "%s is %s and %s is needed", name, carry_dtype_name(tensor->dtype),
                          carry_dtype_name(dtype));
    }
    if (!carry_tensor_is_packed(tensor, 0)) {
        return carry_fail(ctx, CARRY_ESTRIDE, "%s is not packed: its elements must follow each other", name);
    }
    return carry_device_expect(ctx, name, tensor, device);
}

carry_status carry_expect_i64(carry_ctx *ctx, const char *name, const carry_tensor *tensor, int64_t count, int device) {
    return expect_8_bytes(ctx, name, tensor, count, CARRY_I64, device);
}

carry_status carry_expect_f64(carry_ctx *ctx, const char *name, const carry_tensor *tensor, int64_t count, int device) {
    return expect_8_bytes(ctx, name, tensor, count, CARRY_F64, device);
}

carry_status carry_expect_workspace(carry_ctx *ctx, const char *operator_name, const void *workspace, size_t bytes,
                                    size_t needed, int device) {
    if (bytes < needed || (workspace == NULL && needed > 0)) {
        return carry_fail(ctx, CARRY_EWORKSPACE, "%s needs a workspace of %zu bytes, and %zu are given", operator_name,
                          needed, workspace != NULL ? bytes : (size_t)0);
    }
    if ((uintptr_t)workspace % sizeof(float) != 0) {
        return carry_fail(ctx, CARRY_EALIGN, "the workspace of %s is at an address that is not a multiple of %zu",
                          operator_name, sizeof(float));
    }
    return device != 0 && needed > 0 ? carry_device_check_pointer(ctx, "the workspace", workspace, device) : CARRY_OK;
}

const float *carry_piece_in(const carry_kernels *kernels, float *beside, const carry_tensor *tensor, int64_t at,
                            int64_t count) {
    if (tensor->data == NULL) {
        return NULL;
    }
    if (tensor->dtype == CARRY_F32) {
        return (const float *)tensor->data + at;
    }
    carry_widen(kernels, beside, (const uint16_t *)tensor->data + at, tensor->dtype, count);
    return beside;
}

float *carry_piece_out(float *beside, const carry_tensor *tensor, int64_t at) {
    if (tensor->data == NULL) {
        return NULL;
    }
    return tensor->dtype == CARRY_F32 ? (float *)tensor->data + at : beside;
}

float *carry_piece_open(const carry_kernels *kernels, float *beside, const carry_tensor *tensor, int64_t at,
                        int64_t count) {
    float *to = carry_piece_out(beside, tensor, at);
    if (to != NULL) {
        (void)carry_piece_in(kernels, beside, tensor, at, count);
    }
    return to;
}

void carry_piece_done(const carry_kernels *kernels, const float *beside, const carry_tensor *tensor, int64_t at,
                      int64_t count) {
    if (tensor->data != NULL && tensor->dtype != CARRY_F32) {
        carry_narrow(kernels, (uint16_t *)tensor->data + at, beside, tensor->dtype, count);
    }
}

int64_t carry_token_block(int64_t tokens) {
    int64_t block = tokens / CARRY_TOKEN_BLOCKS + (tokens % CARRY_TOKEN_BLOCKS != 0);
    return block > CARRY_TOKEN_BLOCK ? block : CARRY_TOKEN_BLOCK;
}

int64_t carry_token_blocks_most(int64_t tokens) {
    int64_t blocks = tokens / CARRY_TOKEN_BLOCK + (tokens % CARRY_TOKEN_BLOCK != 0);
    return blocks < CARRY_TOKEN_BLOCKS ? blocks : CARRY_TOKEN_BLOCKS;
}
