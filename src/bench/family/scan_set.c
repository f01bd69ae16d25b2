/* Sets of inputs and outputs of a scan problem. */
#include "bench/family/scan_set.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "carry/device.h"
#include "core/context.h"
#include "core/memory.h"
#include "core/tensor.h"
#include "bench/deviation.h"
#include "bench/family/capacity.h"

#define DENSE_SPREAD 0.78f
#define TENSORS 7
#define SIZES "b, t, n or w"

/* The tensors of a set by index; the last three belong to the backward pass. */
static carry_tensor *tensor_at(carry_scan_set *s, int index) {
    carry_tensor *const all[TENSORS] = {&s->A, &s->b, &s->h, &s->h0, &s->g, &s->dA, &s->dh0};
    return all[index];
}

static bool is_output(int index) {
    return index == 2 || index >= 5;
}

static size_t bytes_of(const carry_tensor *tensor) {
    return carry_dtype_size(tensor->dtype) * (size_t)carry_tensor_count(tensor);
}

static carry_status make(carry_ctx *ctx, carry_tensor *tensor, int device, carry_dtype dtype, int rank,
                         const int64_t *shape) {
    size_t bytes;
    if (!carry_size_product(&bytes, shape, rank, carry_dtype_size(dtype))) {
        return carry_fail(ctx, CARRY_ESIZE, "the problem is larger than memory can be: reduce " SIZES);
    }
    *tensor = carry_view(NULL, dtype, rank, shape);
    tensor->device = device;
    if (device != 0) {
        return carry_device_alloc(ctx, &tensor->data, device, bytes);
    }
    tensor->data = carry_aligned_new(bytes);
    if (tensor->data == NULL) {
        return carry_fail(ctx, CARRY_EMEMORY, "%.3g GB of memory cannot be allocated: reduce " SIZES,
                          1e-9 * (double)bytes);
    }
    return CARRY_OK;
}

/* Replaces u in [0, 1) by e^(-40 u), and by 0 in the last eighth. */
static void deepen(carry_tensor *A, int64_t count) {
    float *a = A->data;
    for (int64_t i = 0; i < count; i++) {
        a[i] = a[i] < 0.875f ? expf(-40.0f * a[i] / 0.875f) : 0.0f;
    }
}

static carry_status fill_A(carry_ctx *ctx, carry_tensor *A, const carry_scan_problem *p, bool deep, uint64_t seed) {
    if (p->kind == CARRY_SCAN_DENSE) {
        float spread = DENSE_SPREAD / sqrtf((float)p->n);
        return carry_random_uniform(ctx, *A, seed, 0, -spread, spread);
    }
    if (!deep) {
        return carry_random_uniform(ctx, *A, seed, 0, 0.8f, 1.0f);
    }
    CARRY_TRY(carry_random_uniform(ctx, *A, seed, 0, 0.0f, 1.0f));
    deepen(A, p->batch * p->steps * p->n);
    return CARRY_OK;
}

static double set_bytes(const carry_scan_problem *p) {
    const double rows = (double)p->batch * (double)p->steps * (double)p->n;
    const double A = rows * (p->kind == CARRY_SCAN_DENSE ? (double)p->n : 1.0);
    const double b = rows * (double)p->width;
    const double given = (double)carry_dtype_size(p->dtype);
    const double result = (double)carry_dtype_size(p->f32_result ? CARRY_F32 : p->dtype);
    return A * (given + (p->backward ? result : 0.0)) + b * (given + result + (p->backward ? given : 0.0));
}

carry_status carry_scan_set_new(carry_ctx *ctx, carry_scan_set *s, const carry_scan_problem *p, bool deep,
                                uint64_t seed) {
    const int64_t A_shape[] = {p->batch, p->steps, p->n, p->n};
    const int64_t b_shape[] = {p->batch, p->steps, p->n, p->width};
    const int64_t state_shape[] = {p->batch, p->n, p->width};
    int A_rank = p->kind == CARRY_SCAN_DENSE ? 4 : 3;
    carry_dtype result = p->f32_result ? CARRY_F32 : p->dtype;
    *s = (carry_scan_set){0};
    CARRY_TRY(carry_check_capacity(ctx, set_bytes(p), SIZES));
    CARRY_TRY(make(ctx, &s->A, 0, p->dtype, A_rank, A_shape));
    CARRY_TRY(make(ctx, &s->b, 0, p->dtype, 4, b_shape));
    CARRY_TRY(make(ctx, &s->h, 0, result, 4, b_shape));
    CARRY_TRY(make(ctx, &s->h0, 0, p->dtype, 3, state_shape));
    CARRY_TRY(fill_A(ctx, &s->A, p, deep, seed));
    CARRY_TRY(carry_random_normal(ctx, s->b, seed, 1, 0.0f, 0.1f));
    CARRY_TRY(carry_random_normal(ctx, s->h0, seed, 2, 0.0f, 1.0f));
    memset(s->h.data, 0, bytes_of(&s->h));
    if (p->backward) {
        CARRY_TRY(make(ctx, &s->g, 0, p->dtype, 4, b_shape));
        CARRY_TRY(make(ctx, &s->dA, 0, result, A_rank, A_shape));
        CARRY_TRY(make(ctx, &s->dh0, 0, result, 3, state_shape));
        CARRY_TRY(carry_random_normal(ctx, s->g, seed, 3, 0.0f, 0.1f));
    }
    return CARRY_OK;
}

carry_status carry_scan_set_upload(carry_ctx *ctx, carry_scan_set *to, carry_scan_set *from, int device) {
    *to = (carry_scan_set){0};
    for (int i = 0; i < TENSORS; i++) {
        const carry_tensor *host = tensor_at(from, i);
        if (host->data != NULL) {
            CARRY_TRY(make(ctx, tensor_at(to, i), device, host->dtype, host->rank, host->shape));
            CARRY_TRY(carry_device_copy(ctx, tensor_at(to, i)->data, device, host->data, 0, bytes_of(host), NULL));
        }
    }
    return carry_stream_wait(ctx, device, NULL);
}

static carry_status move_outputs(carry_ctx *ctx, carry_scan_set *to, carry_scan_set *from) {
    for (int i = 0; i < TENSORS; i++) {
        const carry_tensor *source = tensor_at(from, i);
        const carry_tensor *target = tensor_at(to, i);
        if (is_output(i) && source->data != NULL) {
            CARRY_TRY(carry_device_copy(ctx, target->data, target->device, source->data, source->device,
                                        bytes_of(source), NULL));
        }
    }
    int device = to->h.device != 0 ? to->h.device : from->h.device;
    return carry_stream_wait(ctx, device, NULL);
}

carry_status carry_scan_set_poison(carry_ctx *ctx, carry_scan_set *set, carry_scan_set *host) {
    for (int i = 0; i < TENSORS; i++) {
        if (is_output(i) && tensor_at(host, i)->data != NULL) {
            carry_poison(tensor_at(host, i));
        }
    }
    return set->h.data != host->h.data ? move_outputs(ctx, set, host) : CARRY_OK;
}

carry_status carry_scan_set_download(carry_ctx *ctx, carry_scan_set *host, carry_scan_set *set) {
    return set->h.data != host->h.data ? move_outputs(ctx, host, set) : CARRY_OK;
}

void carry_scan_set_free(carry_ctx *ctx, carry_scan_set *set) {
    for (int i = 0; i < TENSORS; i++) {
        carry_tensor *tensor = tensor_at(set, i);
        if (tensor->device != 0) {
            carry_device_free(ctx, tensor->device, tensor->data);
        } else {
            free(tensor->data);
        }
        tensor->data = NULL;
    }
}
