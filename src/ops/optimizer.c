/* AdamW in one pass, and the sum of squares that clipping by norm needs. */
#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "core/context.h"
#include "core/sized.h"
#include "core/tensor.h"
#include "core/threads.h"
#include "ops/convert.h"
#include "ops/cpu.h"
#include "ops/dither.h"
#include "ops/nn.h"
#include "ops/optimizer.h"

#define GRAIN 16384
/* Sums of squares on a GPU: smallest number of elements of a block, and largest number of blocks. */
#define CARRY_SQUARES_BLOCK 16384
#define CARRY_SQUARES_BLOCKS 1024
#define SKIPS 16777216 /* counts below this are exact in f32 */
#define SUMS 256       /* sums of pieces that are kept, then added in order */

typedef struct job {
    const carry_kernels *kernels;
    carry_tensor w, m, v, low, g;
    carry_adam_factors factors;
    int64_t first, count; /* first element and count; for AdamW, elements with the same factors */
    double *sums;
} job;

static uint32_t bits_of(float x) {
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

/* AdamW of elements whose m and v are bf16. The weights are computed from m and v before these are rounded. */
static void adamw_narrow(const job *j, int64_t at, int64_t count) {
    float m[CARRY_PIECE];
    float v[CARRY_PIECE];
    uint16_t *to_m = (uint16_t *)j->m.data + at;
    uint16_t *to_v = (uint16_t *)j->v.data + at;
    const uint32_t step = (uint32_t)j->factors.step;
    carry_widen(j->kernels, m, to_m, CARRY_BF16, count);
    carry_widen(j->kernels, v, to_v, CARRY_BF16, count);
    j->kernels->rows->adamw((float *)j->w.data + at, m, v, (const float *)j->g.data + at, &j->factors, count);
    for (int64_t i = 0; i < count; i++) {
        const uint32_t random = carry_dither_bits(at + i, bits_of(m[i]), bits_of(v[i]), step);
        to_m[i] = carry_dither(bits_of(m[i]), random);
        to_v[i] = carry_dither(bits_of(v[i]), random >> 16);
    }
}

static void adamw_range(void *argument, int64_t begin, int64_t end, int worker) {
    (void)worker;
    const job *j = argument;
    float *w = j->w.data;
    const float *g = j->g.data;
    const bool wide = j->m.dtype == CARRY_F32;
    end += j->first;
    for (int64_t at = j->first + begin; at < end; at += CARRY_PIECE) {
        int64_t count = carry_piece(at, end);
        if (wide) {
            j->kernels->rows->adamw(w + at, (float *)j->m.data + at, (float *)j->v.data + at, g + at, &j->factors,
                                    count);
        } else {
            adamw_narrow(j, at, count);
        }
        if (carry_is_here(&j->low) && j->low.dtype == CARRY_F32) {
            j->kernels->rows->activate((float *)j->low.data + at, w + at, count, CARRY_NO_ACTIVATION);
        }
        carry_piece_done(j->kernels, w + at, &j->low, at, count);
    }
}

static void squares_range(void *argument, int64_t begin, int64_t end, int worker) {
    (void)worker;
    const job *j = argument;
    const float *x = j->g.data;
    for (int64_t i = begin; i < end; i++) {
        int64_t at = i * GRAIN;
        int64_t count = j->count - at < GRAIN ? j->count - at : GRAIN;
        j->sums[i] = j->kernels->rows->sum_squares_double(x + j->first + at, count);
    }
}

size_t carry_sum_squares_workspace(int64_t count) {
    int64_t blocks = count / CARRY_SQUARES_BLOCK + 1;
    return (size_t)(blocks < CARRY_SQUARES_BLOCKS ? blocks : CARRY_SQUARES_BLOCKS) * sizeof(double);
}

carry_status carry_sum_squares(carry_ctx *ctx, carry_tensor sum, carry_tensor x, bool accumulate, void *workspace,
                               size_t workspace_bytes) {
    CARRY_OPERATOR(ctx, operators, sum_squares, &x)
    CARRY_TRY(carry_expect_f32(ctx, "x", &x, x.rank, x.shape, x.device));
    CARRY_TRY(carry_expect_f64(ctx, "sum", &sum, 1, x.device));
    CARRY_TRY(carry_expect_workspace(ctx, "sum_squares", workspace, workspace_bytes,
                                     carry_sum_squares_workspace(carry_tensor_count(&x)), x.device));
    if ((uintptr_t)workspace % sizeof(double) != 0) {
        return carry_fail(ctx, CARRY_EALIGN,
                          "the workspace of sum_squares is at an address that is not a multiple of 8");
    }
    return operators->sum_squares(ctx, sum, x, accumulate, workspace);
}

carry_status carry_cpu_sum_squares(carry_ctx *ctx, carry_tensor sum, carry_tensor x, bool accumulate, void *workspace) {
    (void)workspace;
    double sums[SUMS];
    job j = {.g = x, .sums = sums};
    CARRY_TRY(carry_kernels_of(ctx, &j.kernels));
    const int64_t count = carry_tensor_count(&x);
    double total = 0.0;
    for (j.first = 0; j.first < count; j.first += (int64_t)SUMS * GRAIN) {
        j.count = count - j.first < (int64_t)SUMS * GRAIN ? count - j.first : (int64_t)SUMS * GRAIN;
        int64_t pieces = (j.count + GRAIN - 1) / GRAIN;
        carry_parallel(ctx, pieces, 1, squares_range, &j);
        for (int64_t i = 0; i < pieces; i++) {
            total += sums[i];
        }
    }
    double *to = sum.data;
    *to = accumulate ? *to + total : total;
    return CARRY_OK;
}

carry_status carry_clip_factor(carry_ctx *ctx, carry_tensor factor, carry_tensor squares, double limit) {
    CARRY_OPERATOR(ctx, operators, clip_factor, &squares)
    CARRY_TRY(carry_expect_f64(ctx, "squares", &squares, 1, squares.device));
    CARRY_TRY(carry_expect_f32(ctx, "factor", &factor, 1, (const int64_t[]){1}, squares.device));
    return operators->clip_factor(ctx, factor, squares, limit);
}

carry_status carry_cpu_clip_factor(carry_ctx *ctx, carry_tensor factor, carry_tensor squares, double limit) {
    (void)ctx;
    const double norm = sqrt(*(const double *)squares.data);
    *(float *)factor.data = !isfinite(norm) ? NAN : limit > 0.0 && norm > limit ? (float)(limit / norm) : 1.0f;
    return CARRY_OK;
}

carry_status carry_skip_guard(carry_ctx *ctx, carry_tensor factor, carry_tensor bad, int64_t limit) {
    CARRY_OPERATOR(ctx, operators, skip_guard, &factor)
    CARRY_TRY(carry_expect_f32(ctx, "factor", &factor, 1, (const int64_t[]){1}, factor.device));
    CARRY_TRY(carry_expect_f32(ctx, "bad", &bad, 1, (const int64_t[]){1}, factor.device));
    if (limit < 0 || limit >= SKIPS) {
        return carry_fail(ctx, CARRY_ERANGE, "a limit of %" PRId64 " skipped steps: 0 to %d are accepted", limit,
                          SKIPS - 1);
    }
    return operators->skip_guard(ctx, factor, bad, limit);
}

carry_status carry_cpu_skip_guard(carry_ctx *ctx, carry_tensor factor, carry_tensor bad, int64_t limit) {
    (void)ctx;
    float *f = factor.data;
    float *row = bad.data;
    *row = *row > (float)limit ? *row : isnan(*f) ? *row + 1.0f : 0.0f;
    *f = *row > (float)limit ? NAN : *f;
    return CARRY_OK;
}

carry_status carry_expect_moment(carry_ctx *ctx, const char *name, const carry_tensor *m, const carry_tensor *w) {
    return m->dtype == CARRY_BF16 ? carry_expect_activation(ctx, name, m, w->rank, w->shape, w->device)
                                  : carry_expect_f32(ctx, name, m, w->rank, w->shape, w->device);
}

carry_status carry_adamw_step(carry_ctx *ctx, carry_tensor w, carry_tensor m, carry_tensor v, carry_tensor low,
                              carry_tensor g, const carry_adamw *options) {
    carry_adamw own;
    CARRY_TRY(CARRY_SIZED_READ(ctx, carry_adamw, &own, options));
    CARRY_OPERATOR(ctx, operators, adamw_step, &w)
    CARRY_TRY(carry_expect_f32(ctx, "w", &w, w.rank, w.shape, w.device));
    CARRY_TRY(carry_expect_moment(ctx, "m", &m, &w));
    CARRY_TRY(carry_expect_moment(ctx, "v", &v, &w));
    CARRY_TRY(carry_expect_f32(ctx, "g", &g, w.rank, w.shape, w.device));
    if (m.dtype != v.dtype) {
        return carry_fail(ctx, CARRY_EDTYPE, "m is %s and v is %s: they have one type", carry_dtype_name(m.dtype),
                          carry_dtype_name(v.dtype));
    }
    if (carry_is_here(&low)) {
        CARRY_TRY(carry_expect_activation(ctx, "low", &low, w.rank, w.shape, w.device));
    }
    if (carry_is_here(&own.clip)) {
        CARRY_TRY(carry_expect_f32(ctx, "clip", &own.clip, 1, (const int64_t[]){1}, w.device));
    }
    const bool has_factors = carry_is_here(&own.factors);
    if (has_factors) {
        CARRY_TRY(carry_expect_f32(ctx, "factors", &own.factors, 1, (const int64_t[]){CARRY_ADAMW_FACTORS}, w.device));
    }
    if (carry_is_here(&own.spared)) {
        const int64_t pairs = own.spared.shape[0] / 2;
        CARRY_TRY(carry_expect_i64(ctx, "spared", &own.spared, 2 * pairs, w.device));
    }
    if (!has_factors && own.step < 1) {
        return carry_fail(ctx, CARRY_EARGUMENT, "step is %" PRId64 ": it counts from 1", own.step);
    }
    return operators->adamw_step(ctx, w, m, v, low, g, &own);
}

carry_adam_factors carry_adam_factors_of(const carry_adamw *o, double clip) {
    return (carry_adam_factors){.b1 = (float)o->b1,
                                .c1 = (float)(1.0 - o->b1),
                                .b2 = (float)o->b2,
                                .c2 = (float)(1.0 - o->b2),
                                .factor = (float)(o->factor * clip),
                                .rate = (float)(o->rate / (1.0 - pow(o->b1, (double)o->step))),
                                .unbias_v = (float)(1.0 / sqrt(1.0 - pow(o->b2, (double)o->step))),
                                .eps = (float)o->eps,
                                .decay = (float)(o->rate * o->decay),
                                .step = (float)(o->step & 0xFFFFFF)};
}

carry_status carry_adamw_factors(carry_ctx *ctx, float factors[CARRY_ADAMW_FACTORS], const carry_adamw *options) {
    carry_adamw own;
    CARRY_TRY(CARRY_SIZED_READ(ctx, carry_adamw, &own, options));
    _Static_assert(sizeof(carry_adam_factors) == CARRY_ADAMW_FACTORS * sizeof(float), "they are floats, one by one");
    const carry_adam_factors f = carry_adam_factors_of(&own, 1.0);
    memcpy(factors, &f, sizeof f);
    return CARRY_OK;
}

/* Updates the elements from j->first to `end` - 1; j->first is `end` afterwards. */
static void adamw_until(carry_ctx *ctx, job *j, int64_t end, float decay) {
    if (end > j->first) {
        j->factors.decay = decay;
        carry_parallel(ctx, end - j->first, GRAIN, adamw_range, j);
        j->first = end;
    }
}

carry_status carry_cpu_adamw_step(carry_ctx *ctx, carry_tensor w, carry_tensor m, carry_tensor v, carry_tensor low,
                                  carry_tensor g, const carry_adamw *options) {
    const double clip = carry_is_here(&options->clip) ? (double)*(const float *)options->clip.data : 1.0;
    job j = {.w = w, .m = m, .v = v, .low = low, .g = g, .factors = carry_adam_factors_of(options, clip)};
    if (carry_is_here(&options->factors)) {
        memcpy(&j.factors, options->factors.data, sizeof j.factors);
        j.factors.factor = (float)((double)j.factors.factor * clip);
    }
    CARRY_TRY(carry_kernels_of(ctx, &j.kernels));
    const int64_t *spared = options->spared.data;
    const int64_t ends = carry_is_here(&options->spared) ? options->spared.shape[0] : 0;
    const int64_t count = carry_tensor_count(&w);
    for (int64_t i = 0; i < ends; i++) {
        if (spared[i] < (i > 0 ? spared[i - 1] : 0) || spared[i] > count) {
            return carry_fail(ctx, CARRY_EARGUMENT, "spared[%" PRId64 "] is %" PRId64 ": it ascends from 0 to %" PRId64,
                              i, spared[i], count);
        }
    }
    const float decay = j.factors.decay;
    for (int64_t i = 0; i < ends && !isnan(clip); i++) {
        adamw_until(ctx, &j, spared[i], i % 2 == 0 ? decay : 0.0f);
    }
    if (!isnan(clip)) {
        adamw_until(ctx, &j, count, decay);
    }
    return CARRY_OK;
}
