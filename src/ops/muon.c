/* Muon's operators on the CPU. */
#include "ops/muon.h"

#include <math.h>
#include <string.h>

#include "core/context.h"
#include "core/tensor.h"
#include "core/threads.h"
#include "ops/convert.h"
#include "ops/cpu.h"
#include "ops/dither.h"
#include "ops/nn.h"
#include "ops/optimizer.h"
#include "ops/table.h"

#define GRAIN 4096
#define BLOCK 1024
#define SMALL 1e-7

typedef struct job {
    const carry_kernels *kernels;
    carry_tensor to, low, x, z; /* of momentum: u, -, m, g */
    double a, b;
    uint32_t step;
    bool transposed;
} job;

/* Reads and writes the momentum, which is f32 or bf16. */
static float momentum_at(const carry_tensor *m, int64_t i) {
    float value;
    if (m->dtype == CARRY_F32) {
        return ((const float *)m->data)[i];
    }
    const uint32_t bits = (uint32_t)((const uint16_t *)m->data)[i] << 16;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static void put_momentum(const carry_tensor *m, int64_t i, float value, float slope, uint32_t step) {
    uint32_t bits;
    uint32_t change;
    if (m->dtype == CARRY_F32) {
        ((float *)m->data)[i] = value;
        return;
    }
    memcpy(&bits, &value, sizeof bits);
    memcpy(&change, &slope, sizeof change);
    ((uint16_t *)m->data)[i] = carry_dither(bits, carry_dither_bits(i, bits, change, step));
}

static void momentum_range(void *argument, int64_t begin, int64_t end, int worker) {
    const job *j = argument;
    float *u = j->to.data;
    const float *g = j->z.data;
    const float clip = (float)j->a;
    const float momentum = (float)j->b;
    (void)worker;
    for (int64_t i = begin; i < end; i++) {
        const float slope = clip * g[i];
        const float m = momentum * momentum_at(&j->x, i) + slope;
        put_momentum(&j->x, i, m, slope, j->step);
        u[i] = slope + momentum * m;
    }
}

carry_status carry_cpu_muon_momentum(carry_ctx *ctx, carry_tensor u, carry_tensor m, carry_tensor g, carry_tensor clip,
                                     carry_tensor step, double momentum) {
    job j = {.to = u, .x = m, .z = g, .a = 1.0, .b = momentum};
    j.step = carry_is_here(&step) ? (uint32_t) * (const float *)step.data : 0;
    j.a = carry_is_here(&clip) ? (double)*(const float *)clip.data : 1.0;
    if (isnan(j.a)) {
        for (int64_t i = 0; i < carry_tensor_count(&u); i++) {
            ((float *)u.data)[i] = 0.0f;
        }
        return CARRY_OK;
    }
    carry_parallel(ctx, carry_tensor_count(&u), GRAIN, momentum_range, &j);
    return CARRY_OK;
}

/* Computes rows of the result. */
static void normalise_rows(void *argument, int64_t begin, int64_t end, int worker) {
    const job *j = argument;
    const float *u = j->x.data;
    const int64_t columns = j->to.shape[1];
    const size_t size = carry_dtype_size(j->to.dtype);
    (void)worker;
    for (int64_t row = begin; row < end; row++) {
        for (int64_t first = 0; first < columns; first += BLOCK) {
            float values[BLOCK];
            const int64_t count = columns - first < BLOCK ? columns - first : BLOCK;
            for (int64_t i = 0; i < count; i++) {
                const int64_t column = first + i;
                values[i] = (float)j->a * (j->transposed ? u[column * j->x.shape[1] + row] : u[row * columns + column]);
            }
            carry_narrow(j->kernels, (char *)j->to.data + (size_t)(row * columns + first) * size, values, j->to.dtype,
                         count);
        }
    }
}

carry_status carry_cpu_muon_normalise(carry_ctx *ctx, carry_tensor x, carry_tensor u, carry_tensor squares,
                                      bool transposed) {
    job j = {.to = x, .x = u, .transposed = transposed};
    j.a = 1.0 / (sqrt(*(const double *)squares.data) + SMALL);
    CARRY_TRY(carry_kernels_of(ctx, &j.kernels));
    carry_parallel(ctx, x.shape[0], GRAIN / (x.shape[1] + 1) + 1, normalise_rows, &j);
    return CARRY_OK;
}

static void blend_blocks(void *argument, int64_t begin, int64_t end, int worker) {
    const job *j = argument;
    const size_t size = carry_dtype_size(j->to.dtype);
    const int64_t all = carry_tensor_count(&j->to);
    (void)worker;
    for (int64_t block = begin; block < end; block++) {
        float x[BLOCK];
        float z[BLOCK];
        const int64_t first = block * BLOCK;
        const int64_t count = all - first < BLOCK ? all - first : BLOCK;
        carry_widen(j->kernels, x, (const char *)j->x.data + (size_t)first * size, j->x.dtype, count);
        carry_widen(j->kernels, z, (const char *)j->z.data + (size_t)first * size, j->z.dtype, count);
        for (int64_t i = 0; i < count; i++) {
            x[i] = (float)j->a * x[i] + (float)j->b * z[i];
        }
        carry_narrow(j->kernels, (char *)j->to.data + (size_t)first * size, x, j->to.dtype, count);
    }
}

carry_status carry_cpu_blend(carry_ctx *ctx, carry_tensor y, carry_tensor x, carry_tensor z, double a, double b) {
    job j = {.to = y, .x = x, .z = z, .a = a, .b = b};
    CARRY_TRY(carry_kernels_of(ctx, &j.kernels));
    carry_parallel(ctx, (carry_tensor_count(&y) + BLOCK - 1) / BLOCK, 4, blend_blocks, &j);
    return CARRY_OK;
}

static void update_rows(void *argument, int64_t begin, int64_t end, int worker) {
    const job *j = argument;
    float *w = j->to.data;
    const int64_t columns = j->to.shape[1];
    (void)worker;
    for (int64_t row = begin; row < end; row++) {
        float *at = w + row * columns;
        for (int64_t i = 0; i < columns; i++) {
            const int64_t from = j->transposed ? i * j->x.shape[1] + row : row * columns + i;
            const float o = (float)carry_tensor_at(&j->x, from);
            at[i] = at[i] - (float)j->a * o - (float)j->b * at[i];
        }
        if (carry_is_here(&j->low)) {
            const size_t size = carry_dtype_size(j->low.dtype);
            carry_narrow(j->kernels, (char *)j->low.data + (size_t)(row * columns) * size, at, j->low.dtype, columns);
        }
    }
}

carry_status carry_cpu_muon_update(carry_ctx *ctx, carry_tensor w, carry_tensor low, carry_tensor o, carry_tensor rates,
                                   carry_tensor clip, double scale, bool transposed) {
    const float *rate = rates.data;
    if (carry_is_here(&clip) && isnan(*(const float *)clip.data)) {
        return CARRY_OK;
    }
    job j = {.to = w,
             .low = low,
             .x = o,
             .a = (double)(rate[0] * (float)scale),
             .b = (double)rate[1],
             .transposed = transposed};
    CARRY_TRY(carry_kernels_of(ctx, &j.kernels));
    carry_parallel(ctx, w.shape[0], GRAIN / (w.shape[1] + 1) + 1, update_rows, &j);
    return CARRY_OK;
}

static carry_status expect_one(carry_ctx *ctx, const char *name, const carry_tensor *x, int64_t count, int device) {
    return carry_is_here(x) ? carry_expect_f32(ctx, name, x, 1, &count, device) : CARRY_OK;
}

/* Checks that x has the shape of w [rows, columns], or of its transpose. */
static carry_status expect_turned(carry_ctx *ctx, const char *name, const carry_tensor *x, const carry_tensor *w,
                                  bool transposed) {
    const int64_t shape[] = {w->shape[transposed ? 1 : 0], w->shape[transposed ? 0 : 1]};
    return carry_expect_activation(ctx, name, x, 2, shape, w->device);
}

carry_status carry_muon_momentum(carry_ctx *ctx, carry_tensor u, carry_tensor m, carry_tensor g, carry_tensor clip,
                                 carry_tensor step, double momentum) {
    CARRY_OPERATOR(ctx, operators, muon_momentum, &g)
    CARRY_TRY(carry_expect_f32(ctx, "g", &g, g.rank, g.shape, g.device));
    CARRY_TRY(carry_expect_moment(ctx, "m", &m, &g));
    CARRY_TRY(carry_expect_f32(ctx, "u", &u, g.rank, g.shape, g.device));
    CARRY_TRY(expect_one(ctx, "clip", &clip, 1, g.device));
    CARRY_TRY(expect_one(ctx, "step", &step, 1, g.device));
    if (m.dtype == CARRY_BF16 && !carry_is_here(&step)) {
        return carry_fail(ctx, CARRY_EARGUMENT, "step is absent: rounding m to bf16 needs it");
    }
    return operators->muon_momentum(ctx, u, m, g, clip, step, momentum);
}

carry_status carry_muon_normalise(carry_ctx *ctx, carry_tensor x, carry_tensor u, carry_tensor squares,
                                  bool transposed) {
    CARRY_OPERATOR(ctx, operators, muon_normalise, &u)
    CARRY_TRY(carry_expect_rank(ctx, "u", &u, 2));
    CARRY_TRY(carry_expect_f32(ctx, "u", &u, 2, u.shape, u.device));
    CARRY_TRY(carry_expect_f64(ctx, "squares", &squares, 1, u.device));
    CARRY_TRY(expect_turned(ctx, "x", &x, &u, transposed));
    return operators->muon_normalise(ctx, x, u, squares, transposed);
}

carry_status carry_blend(carry_ctx *ctx, carry_tensor y, carry_tensor x, carry_tensor z, double a, double b) {
    CARRY_OPERATOR(ctx, operators, blend, &x)
    CARRY_TRY(carry_expect_like(ctx, "x", &x, &x));
    CARRY_TRY(carry_expect_like(ctx, "y", &y, &x));
    CARRY_TRY(carry_expect_like(ctx, "z", &z, &x));
    return operators->blend(ctx, y, x, z, a, b);
}

carry_status carry_muon_update(carry_ctx *ctx, carry_tensor w, carry_tensor low, carry_tensor o, carry_tensor rates,
                               carry_tensor clip, double scale, bool transposed) {
    CARRY_OPERATOR(ctx, operators, muon_update, &w)
    CARRY_TRY(carry_expect_rank(ctx, "w", &w, 2));
    CARRY_TRY(carry_expect_f32(ctx, "w", &w, 2, w.shape, w.device));
    CARRY_TRY(expect_turned(ctx, "o", &o, &w, transposed));
    CARRY_TRY(carry_expect_f32(ctx, "rates", &rates, 1, (const int64_t[]){2}, w.device));
    CARRY_TRY(expect_one(ctx, "clip", &clip, 1, w.device));
    if (carry_is_here(&low)) {
        CARRY_TRY(carry_expect_activation(ctx, "low", &low, 2, w.shape, w.device));
    }
    return operators->muon_update(ctx, w, low, o, rates, clip, scale, transposed);
}
