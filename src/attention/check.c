/* All argument checks of attention, done before anything is written, and the runs of a call. */
#include <inttypes.h>
#include <math.h>

#include "attention/attention.h"
#include "core/context.h"
#include "core/tensor.h"
#include "ops/device.h"

#define GIVEN_ALIGN 16 /* alignment of a workspace, which malloc guarantees */

/* Strides between rows and heads are arbitrary, but all addresses must be representable. */
static carry_status check_rows(carry_ctx *ctx, const char *name, const carry_tensor *tensor, const carry_tensor *q,
                               int64_t rows, int64_t heads) {
    CARRY_TRY(carry_tensor_expect(ctx, name, tensor, 3, (const int64_t[]){rows, heads, q->shape[2]}));
    if (tensor->dtype != q->dtype) {
        return carry_fail(ctx, CARRY_EDTYPE, "%s is %s and q is %s: attention has one type for all", name,
                          carry_dtype_name(tensor->dtype), carry_dtype_name(q->dtype));
    }
    if (tensor->shape[2] > 1 && tensor->stride[2] != 1) {
        return carry_fail(ctx, CARRY_ESTRIDE, "%s has stride %" PRId64 " over its last index, which must be 1", name,
                          tensor->stride[2]);
    }
    for (int i = 0; i < 2; i++) {
        int64_t reach;
        if (__builtin_mul_overflow(tensor->shape[i], tensor->stride[i], &reach) || reach > PTRDIFF_MAX / 64 ||
            reach < -(PTRDIFF_MAX / 64)) {
            return carry_fail(ctx, CARRY_ESTRIDE, "%s has stride %" PRId64 " over index %d, which leaves memory", name,
                              tensor->stride[i], i);
        }
    }
    return carry_device_expect(ctx, name, tensor, q->device);
}

/* Checks a tensor that is written: its elements must not overlap. */
static carry_status check_written(carry_ctx *ctx, const char *name, const carry_tensor *tensor, const carry_tensor *q,
                                  int64_t rows, int64_t heads) {
    CARRY_TRY(check_rows(ctx, name, tensor, q, rows, heads));
    if (!carry_tensor_is_apart(tensor, 2)) {
        return carry_fail(ctx, CARRY_ESTRIDE,
                          "%s has strides %" PRId64 " and %" PRId64 " over rows and heads: its elements would overlap",
                          name, tensor->stride[0], tensor->stride[1]);
    }
    return CARRY_OK;
}

static carry_status check_lse(carry_ctx *ctx, const carry_attention_args *args) {
    const carry_tensor *lse = &args->lse;
    const int64_t shape[] = {args->q.shape[1], args->q.shape[0]};
    CARRY_TRY(carry_tensor_expect(ctx, "lse", lse, 2, shape));
    if (lse->dtype != CARRY_F32) {
        return carry_fail(ctx, CARRY_EDTYPE, "lse is %s and must be f32", carry_dtype_name(lse->dtype));
    }
    if (!carry_tensor_is_packed(lse, 0)) {
        return carry_fail(ctx, CARRY_ESTRIDE, "lse has strides %" PRId64 " and %" PRId64 " and must be packed",
                          lse->stride[0], lse->stride[1]);
    }
    return carry_device_expect(ctx, "lse", lse, args->q.device);
}

static carry_status check_run(carry_ctx *ctx, const carry_attention_args *args, int i) {
    const carry_key_run *run = &args->run[i];
    int64_t rows = args->k.shape[0];
    if (run->count < 0 || run->first < 0 || run->first > rows || run->count > rows - run->first) {
        return carry_fail(ctx, CARRY_ERANGE,
                          "run %d is %" PRId64 " rows from row %" PRId64 " on, and k and v have %" PRId64 " rows", i,
                          run->count, run->first, rows);
    }
    if (isnan(run->bias) || run->bias == INFINITY) {
        return carry_fail(ctx, CARRY_ERANGE,
                          "run %d has a bias of %g: it must be a number, or -infinity to leave its keys out", i,
                          (double)run->bias);
    }
    for (int other = 0; other < i; other++) {
        const carry_key_run *before = &args->run[other];
        if (before->count > 0 && run->count > 0 && before->first < run->first + run->count &&
            run->first < before->first + before->count) {
            return carry_fail(ctx, CARRY_ERANGE, "runs %d and %d both have row %" PRId64, other, i,
                              before->first > run->first ? before->first : run->first);
        }
    }
    return CARRY_OK;
}

static carry_status check_runs(carry_ctx *ctx, const carry_attention_args *args) {
    if (args->runs < 0 || args->runs > CARRY_MAX_KEY_RUNS || (args->runs > 0 && args->run == NULL)) {
        return carry_fail(ctx, CARRY_EARGUMENT, "%d runs of keys%s: 0 to %d can be", args->runs,
                          args->runs > 0 && args->run == NULL ? " at a null pointer" : "", CARRY_MAX_KEY_RUNS);
    }
    for (int i = 0; i < args->runs; i++) {
        CARRY_TRY(check_run(ctx, args, i));
    }
    return CARRY_OK;
}

static carry_status check_causal(carry_ctx *ctx, const carry_attention_args *args) {
    if (args->window < 0 || (args->window > 0 && !args->causal)) {
        return carry_fail(ctx, CARRY_EARGUMENT, "a window of %" PRId64 " keys: a causal call may have one, from 1 on",
                          args->window);
    }
    if (args->causal && args->q.shape[0] > args->k.shape[0]) {
        return carry_fail(ctx, CARRY_ESHAPE,
                          "q has %" PRId64 " rows and k %" PRId64 ": the queries of a causal call are its last tokens",
                          args->q.shape[0], args->k.shape[0]);
    }
    return CARRY_OK;
}

carry_status carry_attention_check(carry_ctx *ctx, const carry_attention_args *args) {
    const carry_tensor *q = &args->q;
    if (q->rank != 3 || args->k.rank != 3) {
        return carry_fail(ctx, CARRY_ESHAPE, "%s has rank %d: attention takes q [T, H, D], k and v [S, H, D]",
                          q->rank != 3 ? "q" : "k", q->rank != 3 ? q->rank : args->k.rank);
    }
    if (q->shape[2] < 1 || q->shape[2] > CARRY_ATTENTION_DIM) {
        return carry_fail(ctx, CARRY_ESHAPE, "q has D %" PRId64 ": attention takes 1 to %d", q->shape[2],
                          CARRY_ATTENTION_DIM);
    }
    if (q->dtype != CARRY_F32 && q->dtype != CARRY_BF16 && q->dtype != CARRY_F16) {
        return carry_fail(ctx, CARRY_EDTYPE, "q is %s: attention takes f32, bf16 or f16", carry_dtype_name(q->dtype));
    }
    const int64_t H = q->shape[1];
    const int64_t HK = args->k.shape[1];
    if (HK != H && (HK < 1 || H % HK != 0)) {
        return carry_tensor_expect(ctx, "k", &args->k, 3, (const int64_t[]){args->k.shape[0], H, q->shape[2]});
    }
    CARRY_TRY(check_rows(ctx, "q", q, q, q->shape[0], H));
    CARRY_TRY(check_rows(ctx, "k", &args->k, q, args->k.shape[0], HK));
    CARRY_TRY(check_rows(ctx, "v", &args->v, q, args->k.shape[0], HK));
    CARRY_TRY(check_written(ctx, "o", &args->o, q, q->shape[0], H));
    CARRY_TRY(check_causal(ctx, args));
    if (args->lse.data != NULL) {
        CARRY_TRY(check_lse(ctx, args));
    }
    if (!isfinite(args->scale)) {
        return carry_fail(ctx, CARRY_ERANGE, "scale is %g and must be a number; 0 is D^-1/2", (double)args->scale);
    }
    return check_runs(ctx, args);
}

carry_status carry_attention_check_backward(carry_ctx *ctx, const carry_attention_backward_args *args) {
    const carry_attention_args *f = &args->forward;
    CARRY_TRY(carry_attention_check(ctx, f));
    CARRY_TRY(check_lse(ctx, f));
    const int64_t H = f->q.shape[1];
    const int64_t HK = f->k.shape[1];
    CARRY_TRY(check_rows(ctx, "d_o", &args->d_o, &f->q, f->q.shape[0], H));
    CARRY_TRY(check_written(ctx, "dq", &args->dq, &f->q, f->q.shape[0], H));
    CARRY_TRY(check_written(ctx, "dk", &args->dk, &f->q, f->k.shape[0], HK));
    return check_written(ctx, "dv", &args->dv, &f->q, f->k.shape[0], HK);
}

carry_status carry_attention_check_workspace(carry_ctx *ctx, const void *workspace, size_t bytes, size_t needed) {
    if (bytes < needed || (workspace == NULL && needed > 0)) {
        return carry_fail(ctx, CARRY_EWORKSPACE, "the workspace has %zu bytes%s and attention needs %zu here", bytes,
                          workspace == NULL ? " at a null pointer" : "", needed);
    }
    if ((uintptr_t)workspace % GIVEN_ALIGN != 0) {
        return carry_fail(ctx, CARRY_EALIGN, "the workspace is not aligned to %d bytes", GIVEN_ALIGN);
    }
    return CARRY_OK;
}

size_t carry_attention_with_spare(size_t bytes) {
    return bytes > 0 ? bytes + CARRY_ALIGN - GIVEN_ALIGN : 0;
}

void carry_attention_align(void **workspace, size_t *bytes) {
    const size_t spare = (size_t)(-(uintptr_t)*workspace % CARRY_ALIGN);
    if (*workspace != NULL && spare <= *bytes) {
        *workspace = (char *)*workspace + spare;
        *bytes -= spare;
    }
}

int carry_attention_runs(const carry_attention_args *args, carry_key_run seen[CARRY_MAX_KEY_RUNS]) {
    int runs = 0;
    float top = 0.0f;
    if (args->runs == 0) {
        seen[runs++] = (carry_key_run){.first = 0, .count = args->k.shape[0]};
    }
    for (int i = 0; i < args->runs; i++) {
        if (args->run[i].count > 0 && args->run[i].bias > -INFINITY) {
            seen[runs++] = args->run[i];
            top = runs == 1 || args->run[i].bias > top ? args->run[i].bias : top;
        }
    }
    for (int i = 0; i < runs; i++) {
        seen[i].bias -= top;
    }
    return runs;
}

void carry_attention_span(const carry_attention_args *args, int64_t t, int64_t *first, int64_t *end) {
    const int64_t rows = args->k.shape[0];
    *end = args->causal ? rows - args->q.shape[0] + t + 1 : rows;
    *first = args->window > 0 && *end > args->window ? *end - args->window : 0;
}

int64_t carry_attention_key_head(const carry_attention_args *args, int64_t head) {
    return args->k.shape[1] == args->q.shape[1] ? head : head / (args->q.shape[1] / args->k.shape[1]);
}

float carry_attention_scale(const carry_attention_args *args) {
    return args->scale != 0.0f ? args->scale : (float)(1.0 / sqrt((double)args->q.shape[2]));
}
