/* The tensors of an attention problem: attention_set.h. */
#include "bench/family/attention_set.h"

#include <stdlib.h>

#include "bench/family/capacity.h"
#include "carry/device.h"
#include "core/context.h"
#include "core/memory.h"
#include "core/tensor.h"

#define SIZES "h, q, kv or d"

static int tensors_of(const carry_attention_problem *p) {
    return p->backward ? SET_TENSORS : SET_D_O;
}

carry_tensor carry_attention_set_shape(const carry_attention_problem *p, int tensor) {
    if (tensor == SET_LSE) {
        return carry_view_2d(NULL, CARRY_F32, p->heads, p->queries);
    }
    bool of_keys = tensor == SET_K || tensor == SET_V || tensor == SET_DK || tensor == SET_DV;
    return of_keys ? carry_view_3d(NULL, p->dtype, p->keys, p->key_heads, p->dim)
                   : carry_view_3d(NULL, p->dtype, p->queries, p->heads, p->dim);
}

size_t carry_attention_set_bytes(const carry_tensor *tensor) {
    return (size_t)carry_tensor_count(tensor) * carry_dtype_size(tensor->dtype);
}

double carry_attention_set_moved(const carry_attention_problem *p) {
    double sum = 0.0;
    for (int i = 0; i < tensors_of(p); i++) {
        carry_tensor tensor = carry_attention_set_shape(p, i);
        sum += (i == SET_DK || i == SET_DV ? 2.0 : 1.0) * (double)carry_attention_set_bytes(&tensor);
    }
    return sum;
}

static carry_status copied(carry_ctx *ctx, carry_tensor *there, int device, const void *data, size_t bytes) {
    there->device = device;
    there->data = NULL;
    CARRY_TRY(carry_device_alloc(ctx, &there->data, device, bytes));
    CARRY_TRY(carry_device_copy(ctx, there->data, device, data, 0, bytes, NULL));
    return carry_stream_wait(ctx, device, NULL);
}

static carry_status make(carry_ctx *ctx, carry_tensor *there, carry_tensor *here, const carry_attention_problem *p,
                         int tensor, uint64_t seed) {
    carry_tensor made = carry_attention_set_shape(p, tensor);
    size_t bytes = carry_attention_set_bytes(&made);
    CARRY_TRY(carry_check_capacity(ctx, (double)bytes, SIZES));
    made.data = carry_aligned_new(bytes);
    if (made.data == NULL) {
        return carry_fail(ctx, CARRY_EMEMORY, "%.3g GB of memory cannot be allocated: reduce " SIZES,
                          1e-9 * (double)bytes);
    }
    carry_status status = carry_random_normal(ctx, made, seed, (uint64_t)tensor, 0.0f, 1.0f);
    *there = made;
    if (p->device != 0) {
        carry_status copy = copied(ctx, there, p->device, made.data, bytes);
        status = status == CARRY_OK ? copy : status;
    }
    if (here != NULL) {
        *here = made;
    } else if (p->device != 0) {
        free(made.data);
    }
    return status;
}

carry_status carry_attention_set_new(carry_ctx *ctx, carry_tensor set[SET_TENSORS], carry_tensor *here,
                                     const carry_attention_problem *p, uint64_t seed) {
    for (int i = 0; i < tensors_of(p); i++) {
        CARRY_TRY(make(ctx, &set[i], here != NULL ? &here[i] : NULL, p, i, seed));
    }
    return CARRY_OK;
}

void carry_attention_set_free(carry_ctx *ctx, carry_tensor set[SET_TENSORS], int device) {
    for (int i = 0; i < SET_TENSORS; i++) {
        carry_device_free(ctx, device, set[i].data);
    }
}

carry_attention_backward_args carry_attention_set_args(const carry_attention_problem *p,
                                                       const carry_tensor set[SET_TENSORS]) {
    return (carry_attention_backward_args){.dq = set[SET_DQ],
                                           .dk = set[SET_DK],
                                           .dv = set[SET_DV],
                                           .d_o = set[SET_D_O],
                                           .forward = {.o = set[SET_O],
                                                       .lse = set[SET_LSE],
                                                       .q = set[SET_Q],
                                                       .k = set[SET_K],
                                                       .v = set[SET_V],
                                                       .run = p->run,
                                                       .runs = p->biased ? CARRY_ATTENTION_BIASED_RUNS : 0,
                                                       .causal = p->causal}};
}

size_t carry_attention_set_workspace(const carry_attention_problem *p) {
    carry_tensor set[SET_TENSORS];
    for (int i = 0; i < SET_TENSORS; i++) {
        set[i] = carry_attention_set_shape(p, i);
        set[i].device = p->device;
    }
    carry_attention_backward_args args = carry_attention_set_args(p, set);
    size_t forward = carry_attention_workspace(&args.forward);
    size_t backward = p->backward ? carry_attention_backward_workspace(&args) : 0;
    return forward > backward ? forward : backward;
}
