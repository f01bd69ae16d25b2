/* Inputs of delta-rule problems. */
#include "bench/family/delta_set.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "bench/deviation.h"
#include "bench/family/capacity.h"
#include "carry/device.h"
#include "core/context.h"
#include "core/memory.h"
#include "core/tensor.h"
#include "delta/plan.h"

#define SIZES "b, t, hv, k or v"

enum { STATE = 5, STREAMS = 8 };

static double shape_bytes(carry_dtype dtype, int rank, const int64_t *shape) {
    double bytes = (double)carry_dtype_size(dtype);
    for (int i = 0; i < rank; i++) {
        bytes *= (double)shape[i];
    }
    return bytes;
}

static carry_status make(carry_ctx *ctx, carry_tensor *tensor, carry_dtype dtype, int rank, const int64_t *shape) {
    size_t bytes;
    if (!carry_size_product(&bytes, shape, rank, carry_dtype_size(dtype))) {
        return carry_fail(ctx, CARRY_ESIZE, "the problem is larger than memory can be: reduce " SIZES);
    }
    *tensor = carry_view(carry_aligned_new(bytes > 0 ? bytes : 1), dtype, rank, shape);
    if (tensor->data == NULL) {
        return carry_fail(ctx, CARRY_EMEMORY, "%.3g GB of memory cannot be allocated: reduce " SIZES,
                          1e-9 * (double)bytes);
    }
    memset(tensor->data, 0, bytes);
    return CARRY_OK;
}

/* Without l2norm, q and k have a norm of about 1. */
static carry_status fill(carry_ctx *ctx, carry_delta_set *s, const carry_delta_problem *p, bool backward, uint64_t seed,
                         int rank) {
    const uint64_t stream = (uint64_t)rank * STREAMS;
    const float of_keys = p->l2norm ? 1.0f : 1.0f / sqrtf((float)p->key);
    const struct {
        carry_tensor tensor;
        uint64_t stream;
        float deviation;
    } all[] = {{s->q, stream, of_keys},      {s->k, stream + 1, of_keys}, {s->v, stream + 2, 1.0f},
               {s->beta, stream + 3, 1.0f},  {s->g, stream + 4, 1.0f},    {s->state, STATE, 0.1f},
               {s->grad_o, stream + 6, 1.0f}};
    for (size_t i = 0; i < sizeof all / sizeof all[0] - (backward ? 0 : 1); i++) {
        if (carry_tensor_count(&all[i].tensor) > 0) {
            CARRY_TRY(carry_random_normal(ctx, all[i].tensor, seed, all[i].stream, 0.0f, all[i].deviation));
        }
    }
    float *beta = s->beta.data;
    float *g = s->g.data;
    for (int64_t i = 0; i < carry_tensor_count(&s->beta); i++) {
        beta[i] = 1.0f / (1.0f + expf(-beta[i]));
    }
    for (int64_t i = 0; i < carry_tensor_count(&s->g); i++) {
        g[i] = -0.25f * log1pf(expf(-g[i]));
    }
    return CARRY_OK;
}

void carry_delta_set_gates(carry_delta_set *s, const char *gates) {
    float *g = s->g.data;
    const int64_t heads = s->g.rank > 2 ? s->g.shape[2] : 1;
    const int64_t each = s->g.rank > 3 ? s->g.shape[3] : 1;
    for (int64_t i = 0; gates[0] != '\0' && g != NULL && i < carry_tensor_count(&s->g); i++) {
        const bool none = strcmp(gates, "zero") == 0 || i / each % heads % 4 == 3;
        g[i] = none ? 0.0f : 0.25f * g[i];
    }
}

carry_status carry_delta_set_new(carry_ctx *ctx, carry_delta_set *s, const carry_delta_problem *p, bool backward,
                                 uint64_t seed, int rank) {
    *s = (carry_delta_set){0};
    const int64_t qk[] = {p->batch, p->tokens, p->heads, p->key};
    const int64_t vo[] = {p->batch, p->tokens, p->value_heads, p->value};
    const int64_t gate[] = {p->batch, p->tokens, p->value_heads, p->key};
    const int64_t state[] = {p->batch, p->value_heads, p->key, p->value};
    const struct {
        carry_tensor *tensor;
        carry_dtype dtype;
        int rank;
        const int64_t *shape;
        bool wanted;
    } all[] = {{&s->q, p->dtype, 4, qk, true},
               {&s->k, p->dtype, 4, qk, true},
               {&s->v, p->dtype, 4, vo, true},
               {&s->o, p->dtype, 4, vo, true},
               {&s->grad_o, p->dtype, 4, vo, backward},
               {&s->beta, CARRY_F32, 3, vo, true},
               {&s->g, CARRY_F32, p->gate == CARRY_DELTA_KEY_GATE ? 4 : 3, gate, true},
               {&s->state, CARRY_F32, 4, state, true},
               {&s->final, CARRY_F32, 4, state, true},
               {&s->dq, p->dtype, 4, qk, backward},
               {&s->dk, p->dtype, 4, qk, backward},
               {&s->dv, p->dtype, 4, vo, backward},
               {&s->dbeta, CARRY_F32, 3, vo, backward},
               {&s->dg, CARRY_F32, p->gate == CARRY_DELTA_KEY_GATE ? 4 : 3, gate, backward},
               {&s->dstate, CARRY_F32, 4, state, backward}};
    double bytes = 0.0;
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
        bytes += all[i].wanted ? shape_bytes(all[i].dtype, all[i].rank, all[i].shape) : 0.0;
    }
    CARRY_TRY(carry_check_capacity(ctx, bytes, SIZES));
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
        if (all[i].wanted) {
            CARRY_TRY(make(ctx, all[i].tensor, all[i].dtype, all[i].rank, all[i].shape));
        }
    }
    return fill(ctx, s, p, backward, seed, rank);
}

/* The tensors of a set by index; those from TENSORS_READ on are written. */
enum { TENSORS = 15, TENSORS_READ = 6 };

static carry_tensor *tensor_at(carry_delta_set *s, int index) {
    carry_tensor *const all[TENSORS] = {&s->q,     &s->k,  &s->v,  &s->beta, &s->g,     &s->grad_o, &s->state, &s->o,
                                        &s->final, &s->dq, &s->dk, &s->dv,   &s->dbeta, &s->dg,     &s->dstate};
    return all[index];
}

static size_t bytes_of(const carry_tensor *tensor) {
    return carry_dtype_size(tensor->dtype) * (size_t)carry_tensor_count(tensor);
}

carry_status carry_delta_set_upload(carry_ctx *ctx, carry_delta_set *to, carry_delta_set *from, int device) {
    *to = (carry_delta_set){0};
    for (int i = 0; i < TENSORS; i++) {
        const carry_tensor *host = tensor_at(from, i);
        carry_tensor *there = tensor_at(to, i);
        if (host->data != NULL) {
            *there = *host;
            there->data = NULL;
            there->device = device;
            CARRY_TRY(carry_device_alloc(ctx, &there->data, device, bytes_of(host)));
            CARRY_TRY(carry_device_copy(ctx, there->data, device, host->data, 0, bytes_of(host), NULL));
        }
    }
    return carry_stream_wait(ctx, device, NULL);
}

static carry_status move_written(carry_ctx *ctx, carry_delta_set *to, carry_delta_set *from) {
    int device = to->q.device != 0 ? to->q.device : from->q.device;
    carry_stream *stream = carry_ctx_stream(ctx, device);
    for (int i = TENSORS_READ; to->q.data != from->q.data && i < TENSORS; i++) {
        const carry_tensor *source = tensor_at(from, i);
        const carry_tensor *target = tensor_at(to, i);
        if (source->data != NULL) {
            CARRY_TRY(carry_device_copy(ctx, target->data, target->device, source->data, source->device,
                                        bytes_of(source), stream));
        }
    }
    return carry_stream_wait(ctx, device, stream);
}

carry_status carry_delta_set_poison(carry_ctx *ctx, carry_delta_set *set, carry_delta_set *host) {
    for (int i = TENSORS_READ + 1; i < TENSORS; i++) { /* all but the state, which a step also reads */
        if (tensor_at(host, i)->data != NULL) {
            carry_poison(tensor_at(host, i));
        }
    }
    return move_written(ctx, set, host);
}

carry_status carry_delta_set_download(carry_ctx *ctx, carry_delta_set *host, carry_delta_set *set) {
    return move_written(ctx, host, set);
}

void carry_delta_set_free(carry_ctx *ctx, carry_delta_set *s) {
    for (int i = 0; i < TENSORS; i++) {
        const carry_tensor *tensor = tensor_at(s, i);
        if (tensor->device != 0) {
            carry_device_free(ctx, tensor->device, tensor->data);
        } else {
            free(tensor->data);
        }
    }
    *s = (carry_delta_set){0};
}

double carry_delta_set_bytes(const carry_delta_problem *p, bool with_state, bool backward) {
    double item = (double)carry_dtype_size(p->dtype);
    double tokens = (double)(p->batch * p->tokens);
    double qk = 2.0 * tokens * (double)(p->heads * p->key) * item;
    double vo = 2.0 * tokens * (double)(p->value_heads * p->value) * item;
    double scalars = 8.0 * tokens * (double)p->value_heads;
    double state = 4.0 * (double)(p->batch * p->value_heads * p->key * p->value);
    double forward = qk + vo + scalars + (with_state ? 2.0 : 1.0) * state;
    return backward ? 2.0 * forward + vo : forward;
}

carry_delta_forward_args carry_delta_set_forward(carry_delta_set *s, const carry_delta_problem *p, bool initial) {
    return (carry_delta_forward_args){.o = s->o,
                                      .final_state = s->final,
                                      .q = s->q,
                                      .k = s->k,
                                      .v = s->v,
                                      .beta = s->beta,
                                      .g = p->gate != CARRY_DELTA_NO_GATE ? s->g : (carry_tensor){0},
                                      .initial_state = initial ? s->state : (carry_tensor){0}};
}

carry_delta_backward_args carry_delta_set_backward(carry_delta_set *s, const carry_delta_problem *p, bool initial,
                                                   void *kept) {
    const bool gated = p->gate != CARRY_DELTA_NO_GATE;
    return (carry_delta_backward_args){.dq = s->dq,
                                       .dk = s->dk,
                                       .dv = s->dv,
                                       .dbeta = s->dbeta,
                                       .dg = gated ? s->dg : (carry_tensor){0},
                                       .dinitial_state = s->dstate,
                                       .d_o = s->grad_o,
                                       .kept = kept,
                                       .q = s->q,
                                       .k = s->k,
                                       .v = s->v,
                                       .beta = s->beta,
                                       .g = gated ? s->g : (carry_tensor){0},
                                       .initial_state = initial ? s->state : (carry_tensor){0}};
}

/* Sums over K and over a chunk of C tokens have a rounding error of about sqrt(K + C) 2^-24, relative to their terms.
   With the decays of these inputs, errors fade within a few tokens, and the triangular solve at most triples them: 64
   times 2^-24 covers K = 256. The result is then rounded to its type. Tensor cores of a GPU multiply values rounded to
   the type of q, k and v, which adds a few rounding errors of that type. */
double carry_delta_set_bound(const carry_delta_plan *plan, carry_dtype result) {
    const carry_delta_problem *p = &plan->problem;
    bool products =
        p->device != 0 && p->dtype != CARRY_F32 && strcmp(carry_delta_plan_algorithm(plan), "recurrent") != 0;
    return 64.0 * 0x1p-24 + carry_unit_roundoff(result) + (products ? 4.0 * carry_unit_roundoff(p->dtype) : 0.0);
}
