/* The ceilings of a device that a bench prints: the rates of a product and of a copy (ops/product/ceiling.h). */
#include "bench/bench.h"
#include "core/context.h"
#include "core/span.h"
#include "ops/product/ceiling.h"

static carry_status measure(carry_ctx *ctx, int device, carry_dtype type, int ranks, carry_ceilings *ceilings) {
    CARRY_SPAN(ctx, "bench", "ceilings");
    double bytes_s;
    double flops_s;
    CARRY_TRY(carry_ceiling_copy(ctx, device, ranks, &bytes_s));
    CARRY_TRY(carry_ceiling_product(ctx, device, type, &flops_s));
    ceilings->copy_gbytes_s = 1e-9 * bytes_s;
    ceilings->gemm_gflops = 1e-9 * flops_s;
    return CARRY_OK;
}

carry_status carry_ceilings_measure_on(carry_ctx *ctx, int device, carry_dtype type, carry_ceilings *ceilings) {
    return measure(ctx, device, type, 1, ceilings);
}

carry_status carry_ceilings_measure(carry_ctx *ctx, int ranks, carry_ceilings *ceilings) {
    return measure(ctx, 0, CARRY_F32, ranks, ceilings);
}
