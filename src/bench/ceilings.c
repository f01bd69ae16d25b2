/* What this machine can do at most, measured: a product and a copy. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/clock.h"
#include "core/context.h"
#include "core/memory.h"
#include "core/span.h"
#include "core/threads.h"
#include "bench/bench.h"
#include "ops/matmul.h"

#define GEMM_SIZE 512
#define GEMM_SECONDS 0.06
#define COPY_BYTES ((size_t)256 << 20)
#define CEILING_RUNS 7

typedef struct copy {
    char *to;
    const char *from;
    size_t piece;
} copy;

static void copy_piece(void *argument, int64_t begin, int64_t end, int worker) {
    (void)worker;
    const copy *c = argument;
    memcpy(c->to + (size_t)begin * c->piece, c->from + (size_t)begin * c->piece, (size_t)(end - begin) * c->piece);
}

static double copy_rate(carry_ctx *ctx, char *to, const char *from) {
    int threads = carry_ctx_threads(ctx);
    copy c = {.to = to, .from = from, .piece = COPY_BYTES / (size_t)threads};
    double best = INFINITY;
    for (int i = 0; i < CEILING_RUNS; i++) {
        double start = carry_seconds();
        carry_parallel(ctx, threads, 1, copy_piece, &c);
        double spent = carry_seconds() - start;
        best = spent < best ? spent : best;
    }
    return 2e-9 * (double)(c.piece * (size_t)threads) / best;
}

static double gemm_rate(carry_ctx *ctx, const carry_kernels *kernels, float *floats) {
    const int64_t size = (int64_t)GEMM_SIZE * GEMM_SIZE;
    double best = INFINITY;
    carry_product p = {.m = GEMM_SIZE,
                       .n = GEMM_SIZE,
                       .k = GEMM_SIZE,
                       .count = 1,
                       .a = floats,
                       .b = floats + size,
                       .c = floats + 2 * size,
                       .a_row = GEMM_SIZE,
                       .b_row = GEMM_SIZE,
                       .c_row = GEMM_SIZE};
    const double until = carry_seconds() + GEMM_SECONDS; /* processors and threads need a moment to reach their speed */
    for (int i = 0; i < 2 * CEILING_RUNS || carry_seconds() < until; i++) {
        bool blas = i % 2 == 1 && carry_blas_product != NULL;
        double start = carry_seconds();
        carry_products_by(ctx, blas ? carry_blas_product : kernels->product, &p);
        double spent = carry_seconds() - start;
        best = spent < best ? spent : best;
    }
    return 2e-9 * GEMM_SIZE * GEMM_SIZE * GEMM_SIZE / best;
}

carry_status carry_ceilings_measure(carry_ctx *ctx, carry_ceilings *ceilings) {
    CARRY_SPAN(ctx, "bench", "ceilings");
    const carry_kernels *kernels;
    CARRY_TRY(carry_kernels_of(ctx, &kernels));
    char *from = carry_aligned_new(COPY_BYTES);
    char *to = carry_aligned_new(COPY_BYTES);
    if (from == NULL || to == NULL) {
        free(from);
        free(to);
        return carry_fail(ctx, CARRY_EMEMORY, "no memory to measure the ceilings (%zu bytes)", 2 * COPY_BYTES);
    }
    float *floats = (float *)(void *)from;
    for (size_t i = 0; i < COPY_BYTES / sizeof *floats; i++) {
        floats[i] = (float)(i % 13) - 6.0f;
    }
    memset(to, 0, COPY_BYTES);
    ceilings->copy_gbytes_s = copy_rate(ctx, to, from);
    ceilings->gemm_gflops = gemm_rate(ctx, kernels, floats);
    free(from);
    free(to);
    return CARRY_OK;
}

carry_status carry_ceilings_gemm(carry_ctx *ctx, double *gflops) {
    const carry_kernels *kernels;
    const size_t count = (size_t)3 * GEMM_SIZE * GEMM_SIZE;
    CARRY_TRY(carry_kernels_of(ctx, &kernels));
    float *floats = carry_aligned_new(count * sizeof *floats);
    if (floats == NULL) {
        return carry_fail(ctx, CARRY_EMEMORY, "no memory to measure a product");
    }
    for (size_t i = 0; i < count; i++) {
        floats[i] = 1e-3f * (float)(i % 1000);
    }
    *gflops = gemm_rate(ctx, kernels, floats);
    free(floats);
    return CARRY_OK;
}
