/* Views, and the checks on them. */
#include "core/tensor.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "core/error.h"
#include "core/memory.h"

static bool shapes_equal(const carry_tensor *tensor, int rank, const int64_t *shape) {
    if (tensor->rank != rank) {
        return false;
    }
    return rank == 0 || memcmp(tensor->shape, shape, (size_t)rank * sizeof *shape) == 0;
}

const char *carry_shape_text(char text[CARRY_SHAPE_TEXT], int rank, const int64_t *shape) {
    int used = snprintf(text, CARRY_SHAPE_TEXT, "[");
    for (int i = 0; i < rank && i < CARRY_MAX_RANK; i++) {
        used += snprintf(text + used, (size_t)(CARRY_SHAPE_TEXT - used), "%s%" PRId64, i > 0 ? ", " : "", shape[i]);
    }
    (void)snprintf(text + used, (size_t)(CARRY_SHAPE_TEXT - used), "]");
    return text;
}

int64_t carry_tensor_count(const carry_tensor *tensor) {
    int64_t count = 1;
    for (int i = 0; i < tensor->rank; i++) {
        count *= tensor->shape[i];
    }
    return count;
}

bool carry_dtype_is_real(carry_dtype dtype) {
    return dtype == CARRY_F32 || dtype == CARRY_BF16 || dtype == CARRY_F16;
}

double carry_tensor_at(const carry_tensor *tensor, int64_t index) {
    if (tensor->dtype == CARRY_F32) {
        return ((const float *)tensor->data)[index];
    }
    uint16_t bits = ((const uint16_t *)tensor->data)[index];
    return tensor->dtype == CARRY_BF16 ? carry_f32_from_bf16(bits) : carry_f32_from_f16(bits);
}

bool carry_tensor_is_packed(const carry_tensor *tensor, int from) {
    int64_t expected = 1;
    for (int i = tensor->rank - 1; i >= from; i--) {
        if (tensor->shape[i] != 1 && tensor->stride[i] != expected) {
            return false;
        }
        if (__builtin_mul_overflow(expected, tensor->shape[i], &expected)) {
            expected = INT64_MAX; /* no stride equals it, and carry_tensor_expect rejects such a shape */
        }
    }
    return true;
}

static uint64_t distance(int64_t stride) {
    return stride < 0 ? 0 - (uint64_t)stride : (uint64_t)stride;
}

/* Sorts the indices before `from` by the size of their strides, smallest first. */
static void by_distance(int order[CARRY_MAX_RANK], const carry_tensor *tensor, int from) {
    for (int i = 0; i < from; i++) {
        int at = i;
        for (; at > 0 && distance(tensor->stride[order[at - 1]]) > distance(tensor->stride[i]); at--) {
            order[at] = order[at - 1];
        }
        order[at] = i;
    }
}

bool carry_tensor_is_apart(const carry_tensor *tensor, int from) {
    int order[CARRY_MAX_RANK] = {0};
    uint64_t reach = 1; /* elements from the first to past the last one, over the indices so far */
    for (int i = 0; i < tensor->rank; i++) {
        if (tensor->shape[i] < 1) {
            return true;
        }
        reach *= i >= from ? (uint64_t)tensor->shape[i] : 1;
    }
    by_distance(order, tensor, from);
    for (int i = 0; i < from; i++) {
        uint64_t step = distance(tensor->stride[order[i]]);
        uint64_t steps = (uint64_t)tensor->shape[order[i]] - 1;
        if (steps > 0 && step < reach) {
            return false;
        }
        if (__builtin_mul_overflow(steps, step, &step) || __builtin_add_overflow(reach, step, &reach)) {
            reach = UINT64_MAX;
        }
    }
    return true;
}

carry_status carry_tensor_expect(carry_ctx *ctx, const char *name, const carry_tensor *tensor, int rank,
                                 const int64_t *shape) {
    size_t item = carry_dtype_size(tensor->dtype);
    if (item == 0) {
        return carry_fail(ctx, CARRY_EDTYPE, "%s has element type %d, which is not a carry_dtype", name,
                          (int)tensor->dtype);
    }
    if (tensor->rank < 0 || tensor->rank > CARRY_MAX_RANK) {
        return carry_fail(ctx, CARRY_ESHAPE, "%s has rank %d: 0 to %d can be", name, tensor->rank, CARRY_MAX_RANK);
    }
    if (!shapes_equal(tensor, rank, shape)) {
        char has[CARRY_SHAPE_TEXT];
        char needs[CARRY_SHAPE_TEXT];
        return carry_fail(ctx, CARRY_ESHAPE, "%s has shape %s where %s is needed", name,
                          carry_shape_text(has, tensor->rank, tensor->shape), carry_shape_text(needs, rank, shape));
    }
    size_t bytes;
    if (!carry_size_product(&bytes, shape, rank, item)) {
        char has[CARRY_SHAPE_TEXT];
        return carry_fail(ctx, CARRY_ESIZE, "%s has shape %s: a size is below 0, or all are more than memory can be",
                          name, carry_shape_text(has, rank, shape));
    }
    if (tensor->data == NULL && bytes > 0) {
        return carry_fail(ctx, CARRY_EARGUMENT, "%s has no data (a null pointer)", name);
    }
    if ((uintptr_t)tensor->data % item != 0) {
        return carry_fail(ctx, CARRY_EALIGN,
                          "%s is at an address that is not a multiple of %zu, the size of %s: copy it "
                          "to an aligned place",
                          name, item, carry_dtype_name(tensor->dtype));
    }
    return CARRY_OK;
}

carry_tensor carry_view(void *data, carry_dtype dtype, int rank, const int64_t *shape) {
    carry_tensor view = {.data = data, .dtype = dtype, .rank = rank};
    int64_t stride = 1;
    for (int i = rank - 1; i >= 0 && rank <= CARRY_MAX_RANK; i--) {
        view.shape[i] = shape[i];
        view.stride[i] = stride;
        if (__builtin_mul_overflow(stride, shape[i], &stride)) {
            stride = INT64_MAX; /* carry_tensor_expect rejects such a shape */
        }
    }
    return view;
}

carry_tensor carry_view_on(int device, void *data, carry_dtype dtype, int rank, const int64_t *shape) {
    carry_tensor view = carry_view(data, dtype, rank, shape);
    view.device = device;
    return view;
}

carry_tensor carry_reshape(carry_tensor tensor, int rank, const int64_t *shape) {
    return carry_view_on(tensor.device, tensor.data, tensor.dtype, rank, shape);
}

carry_tensor carry_reshape_1d(carry_tensor tensor, int64_t s0) {
    return carry_reshape(tensor, 1, (const int64_t[]){s0});
}

carry_tensor carry_reshape_2d(carry_tensor tensor, int64_t s0, int64_t s1) {
    return carry_reshape(tensor, 2, (const int64_t[]){s0, s1});
}

carry_tensor carry_reshape_3d(carry_tensor tensor, int64_t s0, int64_t s1, int64_t s2) {
    return carry_reshape(tensor, 3, (const int64_t[]){s0, s1, s2});
}

carry_tensor carry_reshape_4d(carry_tensor tensor, int64_t s0, int64_t s1, int64_t s2, int64_t s3) {
    return carry_reshape(tensor, 4, (const int64_t[]){s0, s1, s2, s3});
}

carry_tensor carry_slice(carry_tensor tensor, int64_t first, int64_t count) {
    if (tensor.data != NULL) {
        tensor.data = (char *)tensor.data + first * tensor.stride[0] * (int64_t)carry_dtype_size(tensor.dtype);
    }
    tensor.shape[0] = count;
    return tensor;
}

carry_tensor carry_arena_tensor(carry_arena *arena, int device, carry_dtype dtype, int rank, const int64_t *shape) {
    size_t count;
    if (!carry_size_product(&count, shape, rank, 1)) {
        arena->overflowed = true;
        return (carry_tensor){.dtype = dtype, .device = device};
    }
    return carry_view_on(device, carry_arena_take(arena, count, carry_dtype_size(dtype)), dtype, rank, shape);
}

carry_tensor carry_view_1d(void *data, carry_dtype dtype, int64_t s0) {
    return carry_view(data, dtype, 1, (const int64_t[]){s0});
}

carry_tensor carry_view_2d(void *data, carry_dtype dtype, int64_t s0, int64_t s1) {
    return carry_view(data, dtype, 2, (const int64_t[]){s0, s1});
}

carry_tensor carry_view_3d(void *data, carry_dtype dtype, int64_t s0, int64_t s1, int64_t s2) {
    return carry_view(data, dtype, 3, (const int64_t[]){s0, s1, s2});
}

carry_tensor carry_view_4d(void *data, carry_dtype dtype, int64_t s0, int64_t s1, int64_t s2, int64_t s3) {
    return carry_view(data, dtype, 4, (const int64_t[]){s0, s1, s2, s3});
}
