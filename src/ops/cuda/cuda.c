/* The operators of NVIDIA GPUs: all of CARRY_OPERATOR_LIST. An operator without a CUDA entry would be "#define
   carry_cuda_<name> NULL" here. */
#include "ops/cuda/cuda.h"

#if defined(CARRY_HAVE_CUDA)

#include "device/backend.h"
#include "ops/quantised/tile_product.h"

extern const carry_operators carry_operators_cuda;

carry_status carry_cuda_matmul(carry_ctx *ctx, carry_tensor c, carry_tensor a, carry_tensor b,
                               const carry_matmul_options *o) {
    int ordinal = 0;
    (void)carry_backend_of(c.device, &ordinal);
    carry_device_product product = {.m = c.shape[1],
                                    .n = c.shape[2],
                                    .k = a.shape[o->a_transposed ? 1 : 2],
                                    .count = c.shape[0],
                                    .a = a.data,
                                    .b = b.data,
                                    .c = c.data,
                                    .a_row = a.stride[1],
                                    .b_row = b.stride[1],
                                    .c_row = c.stride[1],
                                    .a_next = a.stride[0],
                                    .b_next = b.stride[0],
                                    .c_next = c.stride[0],
                                    .type = a.dtype,
                                    .c_type = c.dtype,
                                    .a_transposed = o->a_transposed,
                                    .b_transposed = o->b_transposed,
                                    .accumulate = o->accumulate,
                                    .ordinal = ordinal,
                                    .stream = carry_ctx_stream(ctx, c.device)};
    return carry_cuda_product(ctx, &product, NULL);
}

#define X(name, types, parameters) .name = carry_cuda_##name,
const carry_operators carry_operators_cuda = {.backend = "cuda",
                                              .matmul_types = CARRY_REAL,
                                              .ways = carry_cuda_ways,
                                              .product_choice = carry_cuda_product_choice,
                                              .product = carry_cuda_product,
                                              .reads_quantised = carry_cuda_tile_product_works,
                                              .fp8_absence = carry_cuda_fp8_absence,
                                              CARRY_OPERATOR_LIST(X)};

#endif
