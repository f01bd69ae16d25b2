/* Checks on problems and tensors. */
#include "scan/check.h"

#include <inttypes.h>

#include "core/context.h"
#include "core/tensor.h"

/* Far beyond any size in use. */
#define MAX_SIZE ((int64_t)1 << 40)

static carry_status check_dtype(carry_ctx *ctx, const carry_scan_problem *problem, const char *name,
                                const carry_tensor *tensor, bool f32_allowed) {
    if (tensor->dtype != problem->dtype && !(f32_allowed && tensor->dtype == CARRY_F32)) {
        return carry_fail(ctx, CARRY_EDTYPE, "%s is %s and the problem is planned for %s%s", name,
                          carry_dtype_name(tensor->dtype), carry_dtype_name(problem->dtype),
                          f32_allowed && problem->dtype != CARRY_F32 ? " (or f32 here)" : "");
    }
    if (tensor->device != problem->device) {
        return carry_fail(ctx, CARRY_EDEVICE, "%s is on device %d and the problem is planned for device %d", name,
                          tensor->device, problem->device);
    }
    return carry_device_check_pointer(ctx, name, tensor->data, tensor->device);
}

/* The range of bytes that a view touches, from its first to past its last element, for any strides. */
static void extent(const carry_tensor *tensor, uintptr_t *low, uintptr_t *high) {
    ptrdiff_t down = 0;
    ptrdiff_t up = 0;
    for (int i = 0; i < tensor->rank; i++) {
        ptrdiff_t reach = (ptrdiff_t)(tensor->shape[i] - 1) * (ptrdiff_t)tensor->stride[i];
        if (reach < 0) {
            down += reach;
        } else {
            up += reach;
        }
    }
    ptrdiff_t item = (ptrdiff_t)carry_dtype_size(tensor->dtype);
    *low = (uintptr_t)tensor->data + (uintptr_t)(down * item);
    *high = (uintptr_t)tensor->data + (uintptr_t)((up + 1) * item);
}

static bool same_view(const carry_tensor *a, const carry_tensor *b) {
    if (a->data != b->data || a->dtype != b->dtype || a->rank != b->rank) {
        return false;
    }
    for (int i = 0; i < a->rank; i++) {
        if (a->shape[i] > 1 && a->stride[i] != b->stride[i]) {
            return false;
        }
    }
    return true;
}

/* Strides over batch and time are arbitrary, but addresses must be representable. */
static carry_status check_strides(carry_ctx *ctx, const char *name, const carry_tensor *tensor, int outer) {
    if (!carry_tensor_is_packed(tensor, outer)) {
        return carry_fail(ctx, CARRY_ESTRIDE, "%s is not packed inside a step: make the last %d indices contiguous",
                          name, tensor->rank - outer);
    }
    for (int i = 0; i < outer; i++) {
        int64_t reach;
        if (__builtin_mul_overflow(tensor->shape[i] - 1, tensor->stride[i], &reach) || reach > PTRDIFF_MAX / 64 ||
            reach < -(PTRDIFF_MAX / 64)) {
            return carry_fail(ctx, CARRY_ESTRIDE, "%s has stride %" PRId64 " over index %d, which leaves memory", name,
                              tensor->stride[i], i);
        }
    }
    return CARRY_OK;
}

carry_status carry_scan_check_problem(carry_ctx *ctx, const carry_scan_problem *problem) {
    const int64_t sizes[] = {problem->batch, problem->steps, problem->n, problem->width};
    static const char *const names[] = {"batch", "steps", "n", "width"};
    if (problem->kind != CARRY_SCAN_DIAGONAL && problem->kind != CARRY_SCAN_DENSE) {
        return carry_fail(ctx, CARRY_EARGUMENT, "scan kind %d is neither diagonal nor dense", (int)problem->kind);
    }
    for (int i = 0; i < 4; i++) {
        if (sizes[i] < 1 || sizes[i] > MAX_SIZE) {
            return carry_fail(ctx, CARRY_ESIZE, "%s is %" PRId64 " and must be 1 to %" PRId64, names[i], sizes[i],
                              MAX_SIZE);
        }
    }
    const int64_t A_sizes[] = {problem->batch, problem->steps, problem->n, problem->n};
    size_t bytes;
    if (!carry_size_product(&bytes, sizes, 4, 64) ||
        !carry_size_product(&bytes, A_sizes, problem->kind == CARRY_SCAN_DENSE ? 4 : 3, 64)) {
        return carry_fail(ctx, CARRY_ESIZE,
                          "batch %" PRId64 ", steps %" PRId64 ", n %" PRId64 ", width %" PRId64
                          " multiply to more than memory can be: reduce one",
                          problem->batch, problem->steps, problem->n, problem->width);
    }
    if (problem->dtype != CARRY_F32 && problem->dtype != CARRY_BF16 && problem->dtype != CARRY_F16) {
        return carry_fail(ctx, CARRY_EDTYPE, "a scan stores f32, bf16 or f16, not %s",
                          carry_dtype_name(problem->dtype));
    }
    if (problem->device != 0 && carry_scan_name(problem->device, 0) == NULL) {
        return carry_fail(ctx, CARRY_EUNSUPPORTED, "scans run on device 0 (the CPU) in this build, not on device %d",
                          problem->device);
    }
    return CARRY_OK;
}

carry_status carry_scan_check_steps(carry_ctx *ctx, const carry_scan_problem *problem, const char *name,
                                    const carry_tensor *tensor, bool is_A, bool f32_allowed) {
    const int64_t shape[] = {problem->batch, problem->steps, problem->n, is_A ? problem->n : problem->width};
    int rank = is_A && problem->kind == CARRY_SCAN_DIAGONAL ? 3 : 4;
    CARRY_TRY(carry_tensor_expect(ctx, name, tensor, rank, shape));
    CARRY_TRY(check_dtype(ctx, problem, name, tensor, f32_allowed));
    return check_strides(ctx, name, tensor, 2);
}

carry_status carry_scan_check_state(carry_ctx *ctx, const carry_scan_problem *problem, const char *name,
                                    const carry_tensor *tensor, bool f32_allowed) {
    const int64_t shape[] = {problem->batch, problem->n, problem->width};
    CARRY_TRY(carry_tensor_expect(ctx, name, tensor, 3, shape));
    CARRY_TRY(check_dtype(ctx, problem, name, tensor, f32_allowed));
    return check_strides(ctx, name, tensor, 1);
}

carry_status carry_scan_check_inputs(carry_ctx *ctx, const carry_scan_problem *problem, const carry_tensor *A,
                                     const carry_tensor *b, const carry_tensor *h0) {
    CARRY_TRY(carry_scan_check_steps(ctx, problem, "A", A, true, false));
    CARRY_TRY(carry_scan_check_steps(ctx, problem, "b", b, false, false));
    return h0 != NULL ? carry_scan_check_state(ctx, problem, "h0", h0, true) : CARRY_OK;
}

carry_status carry_scan_check_output(carry_ctx *ctx, const char *name, const carry_tensor *tensor, int outer) {
    if (!carry_tensor_is_apart(tensor, outer)) {
        char strides[CARRY_SHAPE_TEXT];
        return carry_fail(ctx, CARRY_ESTRIDE, "%s has strides %s over its first indices: its elements would overlap",
                          name, carry_shape_text(strides, outer, tensor->stride));
    }
    return CARRY_OK;
}

carry_status carry_scan_check_apart(carry_ctx *ctx, const char *name, const carry_tensor *tensor,
                                    const char *other_name, const carry_tensor *other, bool same) {
    if (same && same_view(tensor, other)) {
        return CARRY_OK;
    }
    uintptr_t low;
    uintptr_t high;
    uintptr_t other_low;
    uintptr_t other_high;
    extent(tensor, &low, &high);
    extent(other, &other_low, &other_high);
    /* The address ranges of interleaved views may overlap although no element is shared, so only packed views are
       compared. */
    bool certain = carry_tensor_is_packed(tensor, 0) && carry_tensor_is_packed(other, 0);
    if (certain && low < other_high && other_low < high) {
        return carry_fail(ctx, CARRY_EARGUMENT, "%s shares memory with %s%s", name, other_name,
                          same ? " without being the same view: give the same tensor or another one" : "");
    }
    return CARRY_OK;
}

carry_status carry_scan_check_workspace(carry_ctx *ctx, const void *workspace, size_t bytes, size_t needed,
                                        int device) {
    if (bytes < needed || (workspace == NULL && needed > 0)) {
        return carry_fail(ctx, CARRY_EWORKSPACE,
                          "the workspace has %zu bytes and the plan needs %zu (carry_scan_run_workspace, "
                          "carry_scan_backward_workspace)",
                          workspace == NULL ? 0 : bytes, needed);
    }
    return needed > 0 ? carry_device_check_pointer(ctx, "the workspace", workspace, device) : CARRY_OK;
}
