/* All argument checks of the delta rule, done before anything is written, and the table of sequences. */
#include <inttypes.h>
#include <string.h>

#include "core/context.h"
#include "core/tensor.h"
#include "delta/forward.h"

#define MAX_SIZE ((int64_t)1 << 40)

static carry_status check_size(carry_ctx *ctx, const char *name, int64_t size, int64_t most) {
    if (size < 1 || size > most) {
        return carry_fail(ctx, CARRY_ESIZE, "%s is %" PRId64 " and must be 1 to %" PRId64, name, size, most);
    }
    return CARRY_OK;
}

carry_status carry_delta_check_problem(carry_ctx *ctx, const carry_delta_problem *p) {
    CARRY_TRY(check_size(ctx, "batch", p->batch, MAX_SIZE));
    CARRY_TRY(check_size(ctx, "tokens", p->tokens, MAX_SIZE));
    CARRY_TRY(check_size(ctx, "heads", p->heads, MAX_SIZE));
    CARRY_TRY(check_size(ctx, "value_heads", p->value_heads, MAX_SIZE));
    CARRY_TRY(check_size(ctx, "K (q's and k's last size)", p->key, CARRY_MAX_DELTA_DIM));
    CARRY_TRY(check_size(ctx, "V (v's last size)", p->value, CARRY_MAX_DELTA_VALUE));
    if (p->value_heads % p->heads != 0) {
        return carry_fail(ctx, CARRY_ESHAPE,
                          "q has %" PRId64 " heads and v has %" PRId64 ": v's heads must be a multiple of q's",
                          p->heads, p->value_heads);
    }
    if (p->sequences < 0 || (p->sequences > 0 && p->batch != 1)) {
        return carry_fail(ctx, CARRY_EARGUMENT, "packed sequences (%" PRId64 ") need a batch of 1, not %" PRId64,
                          p->sequences, p->batch);
    }
    const int64_t sizes[] = {p->batch, p->tokens, p->value_heads, CARRY_MAX_DELTA_VALUE, 64};
    const int64_t states[] = {p->sequences > 0 ? p->sequences : p->batch, p->value_heads, CARRY_MAX_DELTA_DIM,
                              CARRY_MAX_DELTA_VALUE, 64};
    size_t bytes;
    if (!carry_size_product(&bytes, sizes, 5, 4) || !carry_size_product(&bytes, states, 5, 4)) {
        return carry_fail(ctx, CARRY_ESIZE,
                          "batch %" PRId64 ", tokens %" PRId64 ", value_heads %" PRId64
                          " multiply to more than memory can be: reduce one",
                          p->batch, p->tokens, p->value_heads);
    }
    if (p->dtype != CARRY_F32 && p->dtype != CARRY_BF16 && p->dtype != CARRY_F16) {
        return carry_fail(ctx, CARRY_EDTYPE, "the delta rule stores f32, bf16 or f16, not %s",
                          carry_dtype_name(p->dtype));
    }
    if (p->gate < CARRY_DELTA_NO_GATE || p->gate > CARRY_DELTA_KEY_GATE) {
        return carry_fail(ctx, CARRY_EARGUMENT, "gate %d is not a carry_gate", (int)p->gate);
    }
    if (p->gate_inside && p->gate != CARRY_DELTA_HEAD_GATE) {
        return carry_fail(
            ctx, CARRY_EARGUMENT,
            "gate_inside (A_log, dt_bias) goes with a gate a head: with a gate a key channel give the gate itself, "
            "-exp(A_log) softplus(a + dt_bias)");
    }
    if (p->beta_factor != 0.0f && p->beta_factor != 1.0f && p->beta_factor != 2.0f) {
        return carry_fail(ctx, CARRY_EARGUMENT, "beta_factor is %g and must be 1 or 2", (double)p->beta_factor);
    }
    if (p->snapshot_every < 0 || p->snapshot_last < 0 || (p->snapshot_every > 0 && p->snapshot_last > 0) ||
        p->snapshot_last > p->tokens) {
        return carry_fail(ctx, CARRY_EARGUMENT,
                          "snapshots every %" PRId64 " tokens and at the last %" PRId64
                          ": give one of them, the second at most tokens",
                          p->snapshot_every, p->snapshot_last);
    }
    return CARRY_OK;
}

static carry_status check_device(carry_ctx *ctx, const carry_delta_problem *p, const char *name,
                                 const carry_tensor *tensor) {
    if (tensor->device != p->device) {
        return carry_fail(ctx, CARRY_EDEVICE, "%s is on device %d and the problem is planned for device %d%s", name,
                          tensor->device, p->device, p->device == 0 ? ", the CPU" : "");
    }
    return p->device != 0 ? carry_device_check_pointer(ctx, name, tensor->data, p->device) : CARRY_OK;
}

static carry_status check_rows(carry_ctx *ctx, const carry_delta_problem *p, const char *name,
                               const carry_tensor *tensor, int rank, const int64_t *shape, bool f32_allowed) {
    CARRY_TRY(carry_tensor_expect(ctx, name, tensor, rank, shape));
    if (tensor->dtype != p->dtype && !(f32_allowed && tensor->dtype == CARRY_F32)) {
        return carry_fail(ctx, CARRY_EDTYPE,
                          "%s is %s and the problem is planned for %s: q, k, v and o have the problem's type, g and "
                          "beta that type or f32",
                          name, carry_dtype_name(tensor->dtype), carry_dtype_name(p->dtype));
    }
    CARRY_TRY(check_device(ctx, p, name, tensor));
    if (rank == 4 && !carry_tensor_is_packed(tensor, 3)) {
        return carry_fail(ctx, CARRY_ESTRIDE, "%s has stride %" PRId64 " over its last index, which must be 1", name,
                          tensor->stride[3]);
    }
    for (int i = 0; i < 3; i++) {
        int64_t reach;
        if (__builtin_mul_overflow(shape[i] - 1, tensor->stride[i], &reach) || reach > PTRDIFF_MAX / 64 ||
            reach < -(PTRDIFF_MAX / 64)) {
            return carry_fail(ctx, CARRY_ESTRIDE, "%s has stride %" PRId64 " over index %d, which leaves memory", name,
                              tensor->stride[i], i);
        }
    }
    return CARRY_OK;
}

carry_status carry_delta_check_f32(carry_ctx *ctx, const carry_delta_problem *p, const char *name,
                                   const carry_tensor *tensor, int rank, const int64_t *shape) {
    CARRY_TRY(carry_tensor_expect(ctx, name, tensor, rank, shape));
    CARRY_TRY(check_device(ctx, p, name, tensor));
    if (tensor->dtype != CARRY_F32 || !carry_tensor_is_packed(tensor, 0)) {
        return carry_fail(ctx, tensor->dtype != CARRY_F32 ? CARRY_EDTYPE : CARRY_ESTRIDE,
                          "%s is %s%s: it must be packed f32", name, carry_dtype_name(tensor->dtype),
                          carry_tensor_is_packed(tensor, 0) ? "" : " and not packed");
    }
    return CARRY_OK;
}

carry_status carry_delta_check_like(carry_ctx *ctx, const carry_delta_problem *p, const char *name,
                                    const carry_tensor *tensor, int64_t heads, int64_t size) {
    const int64_t shape[] = {p->batch, p->tokens, heads, size};
    return check_rows(ctx, p, name, tensor, size > 0 ? 4 : 3, shape, size == 0);
}

/* Checks the gate, or its gradient. */
static carry_status check_gate(carry_ctx *ctx, const carry_delta_problem *p, const char *name,
                               const carry_tensor *tensor) {
    const int64_t shape[] = {p->batch, p->tokens, p->value_heads, p->key};
    return check_rows(ctx, p, name, tensor, p->gate == CARRY_DELTA_KEY_GATE ? 4 : 3, shape, true);
}

static carry_status check_apart(carry_ctx *ctx, const char *name, const carry_tensor *tensor) {
    if (!carry_tensor_is_apart(tensor, 3)) {
        char strides[CARRY_SHAPE_TEXT];
        return carry_fail(ctx, CARRY_ESTRIDE, "%s has strides %s: its elements would overlap", name,
                          carry_shape_text(strides, tensor->rank, tensor->stride));
    }
    return CARRY_OK;
}

carry_status carry_delta_check_written(carry_ctx *ctx, const carry_delta_problem *p, const char *name,
                                       const carry_tensor *tensor, int64_t heads, int64_t size) {
    CARRY_TRY(carry_delta_check_like(ctx, p, name, tensor, heads, size));
    return check_apart(ctx, name, tensor);
}

carry_status carry_delta_check_gate_gradient(carry_ctx *ctx, const carry_delta_problem *p, const carry_tensor *dg) {
    CARRY_TRY(check_gate(ctx, p, "dg", dg));
    return check_apart(ctx, "dg", dg);
}

carry_status carry_delta_check_state(carry_ctx *ctx, const carry_delta_problem *p, const char *name,
                                     const carry_tensor *tensor) {
    const int64_t shape[] = {p->sequences > 0 ? p->sequences : p->batch, p->value_heads,
                             p->state_transposed ? p->value : p->key, p->state_transposed ? p->key : p->value};
    return carry_delta_check_f32(ctx, p, name, tensor, 4, shape);
}

carry_status carry_delta_check_heads(carry_ctx *ctx, const carry_delta_problem *p, const char *name,
                                     const carry_tensor *tensor) {
    return carry_delta_check_f32(ctx, p, name, tensor, 1, &p->value_heads);
}

carry_status carry_delta_check_borders(carry_ctx *ctx, const carry_delta_problem *p, int64_t tokens,
                                       const carry_tensor *cu_seqlens) {
    if ((cu_seqlens != NULL) != (p->sequences > 0)) {
        return carry_fail(ctx, CARRY_EARGUMENT, "cu_seqlens is %s and the plan has %" PRId64 " packed sequences",
                          cu_seqlens != NULL ? "given" : "missing", p->sequences);
    }
    if (cu_seqlens == NULL) {
        return CARRY_OK;
    }
    const int64_t count = p->sequences + 1;
    CARRY_TRY(carry_tensor_expect(ctx, "cu_seqlens", cu_seqlens, 1, &count));
    if (cu_seqlens->dtype != CARRY_I64 || !carry_tensor_is_packed(cu_seqlens, 0) || cu_seqlens->device != 0) {
        return carry_fail(ctx, CARRY_EDTYPE, "cu_seqlens must be packed i64 on the CPU");
    }
    const int64_t *at = cu_seqlens->data;
    for (int64_t i = 0; i < p->sequences; i++) {
        if (at[i + 1] < at[i] || at[0] != 0) {
            return carry_fail(ctx, CARRY_EARGUMENT,
                              "cu_seqlens must start at 0 and not decrease; entries %" PRId64 " and %" PRId64
                              " are %" PRId64 " and %" PRId64,
                              i, i + 1, at[i], at[i + 1]);
        }
    }
    if (at[p->sequences] != tokens) {
        return carry_fail(ctx, CARRY_EARGUMENT, "cu_seqlens ends at %" PRId64 " and there are %" PRId64 " tokens",
                          at[p->sequences], tokens);
    }
    return CARRY_OK;
}

carry_status carry_delta_check_rows(carry_ctx *ctx, const carry_delta_problem *p, const carry_delta_inputs *in) {
    CARRY_TRY(carry_delta_check_like(ctx, p, "q", in->q, p->heads, p->key));
    CARRY_TRY(carry_delta_check_like(ctx, p, "k", in->k, p->heads, p->key));
    CARRY_TRY(carry_delta_check_like(ctx, p, "v", in->v, p->value_heads, p->value));
    CARRY_TRY(carry_delta_check_like(ctx, p, "beta", in->beta, p->value_heads, 0));
    if ((in->g != NULL) != (p->gate != CARRY_DELTA_NO_GATE)) {
        return carry_fail(ctx, CARRY_EARGUMENT, "g is %s and the plan has %s gate", in->g != NULL ? "given" : "missing",
                          p->gate != CARRY_DELTA_NO_GATE ? "a" : "no");
    }
    return in->g != NULL ? check_gate(ctx, p, "g", in->g) : CARRY_OK;
}

carry_status carry_delta_check_parameters(carry_ctx *ctx, const carry_delta_problem *p, const carry_delta_inputs *in) {
    if (p->gate_inside) {
        if (in->A_log == NULL || in->dt_bias == NULL) {
            return carry_fail(ctx, CARRY_EARGUMENT, "gate_inside needs A_log and dt_bias");
        }
        CARRY_TRY(carry_delta_check_heads(ctx, p, "A_log", in->A_log));
        CARRY_TRY(carry_delta_check_heads(ctx, p, "dt_bias", in->dt_bias));
    }
    if (in->initial_state != NULL) {
        CARRY_TRY(carry_delta_check_state(ctx, p, "initial_state", in->initial_state));
    }
    return CARRY_OK;
}

carry_status carry_delta_check_inputs(carry_ctx *ctx, const carry_delta_problem *p, const carry_delta_inputs *in) {
    CARRY_TRY(carry_delta_check_rows(ctx, p, in));
    CARRY_TRY(carry_delta_check_parameters(ctx, p, in));
    return carry_delta_check_borders(ctx, p, p->tokens, in->cu_seqlens);
}

carry_status carry_delta_check_kept(carry_ctx *ctx, const carry_delta_problem *p, const void *kept) {
    unsigned alignment = p->device != 0 ? 16 : (unsigned)sizeof(float);
    if ((uintptr_t)kept % alignment != 0) {
        return carry_fail(ctx, CARRY_EALIGN, "kept is at an address that is not a multiple of %u", alignment);
    }
    return p->device != 0 ? carry_device_check_pointer(ctx, "kept", kept, p->device) : CARRY_OK;
}

carry_status carry_delta_check_outputs(carry_ctx *ctx, const carry_delta_plan *plan,
                                       const carry_delta_forward_args *args) {
    const carry_delta_problem *p = &plan->problem;
    if (args->final_state.data != NULL) {
        CARRY_TRY(carry_delta_check_state(ctx, p, "final_state", &args->final_state));
    }
    if (args->snapshots.data != NULL) {
        const int64_t shape[] = {plan->sequences, carry_delta_snapshots(plan), p->value_heads,
                                 p->state_transposed ? p->value : p->key, p->state_transposed ? p->key : p->value};
        CARRY_TRY(carry_delta_check_f32(ctx, p, "snapshots", &args->snapshots, 5, shape));
        if (args->kept != NULL) {
            return carry_fail(ctx, CARRY_EARGUMENT, "snapshots and what backward needs cannot be kept by one call");
        }
    }
    return carry_delta_check_kept(ctx, p, args->kept);
}

carry_status carry_delta_check_workspace(carry_ctx *ctx, const void *workspace, size_t bytes, size_t needed) {
    if (bytes < needed || (workspace == NULL && needed > 0)) {
        return carry_fail(ctx, CARRY_EWORKSPACE, "the workspace has %zu bytes and the plan needs %zu",
                          workspace == NULL ? 0 : bytes, needed);
    }
    return CARRY_OK;
}

carry_delta_inputs carry_delta_inputs_of(const carry_delta_forward_args *args) {
    return (carry_delta_inputs){.q = &args->q,
                                .k = &args->k,
                                .v = &args->v,
                                .beta = &args->beta,
                                .g = carry_delta_given(&args->g),
                                .initial_state = carry_delta_given(&args->initial_state),
                                .cu_seqlens = carry_delta_given(&args->cu_seqlens),
                                .A_log = carry_delta_given(&args->A_log),
                                .dt_bias = carry_delta_given(&args->dt_bias)};
}

void carry_delta_sequences(const carry_delta_plan *plan, const carry_delta_inputs *in, carry_delta_sequence *table) {
    const carry_delta_problem *p = &plan->problem;
    int64_t chunks = 0;
    for (int64_t i = 0; i < plan->sequences; i++) {
        if (p->sequences > 0) {
            const int64_t *at = in->cu_seqlens->data;
            table[i] = (carry_delta_sequence){.start = at[i], .length = at[i + 1] - at[i]};
        } else {
            table[i] = (carry_delta_sequence){.batch = i, .length = p->tokens};
        }
        table[i].index = i;
        table[i].chain = i;
        table[i].chunk_start = chunks;
        chunks += (table[i].length + plan->chunk - 1) / plan->chunk;
    }
}

void carry_delta_state_load(const carry_delta_plan *plan, float *S, ptrdiff_t stride, const float *states,
                            int64_t index, int64_t first, int64_t columns) {
    const carry_delta_problem *p = &plan->problem;
    const float *from = states + index * p->key * p->value;
    for (int64_t i = 0; i < p->key; i++) {
        for (int64_t j = 0; j < columns; j++) {
            S[i * stride + j] = p->state_transposed ? from[(first + j) * p->key + i] : from[i * p->value + first + j];
        }
    }
}

void carry_delta_state_store(const carry_delta_plan *plan, float *states, int64_t index, const float *S,
                             ptrdiff_t stride, int64_t first, int64_t columns) {
    const carry_delta_problem *p = &plan->problem;
    float *to = states + index * p->key * p->value;
    for (int64_t i = 0; i < p->key; i++) {
        for (int64_t j = 0; j < columns; j++) {
            *(p->state_transposed ? &to[(first + j) * p->key + i] : &to[i * p->value + first + j]) = S[i * stride + j];
        }
    }
}
