/* The CUDA entries of the operator table, defined in the files of this folder, and declarations that those files share.
   A C header. */
#ifndef CARRY_OPS_CUDA_H
#define CARRY_OPS_CUDA_H

#include "ops/table.h"

#ifdef __cplusplus
extern "C" {
#endif

#define X(name, types, parameters) carry_status carry_cuda_##name parameters;
CARRY_OPERATOR_LIST(X)
#undef X

/* matmul.cu: the implementations of a product; way NULL is the one that carry_cuda_product_choice returns. */
extern const char *const carry_cuda_ways[];
const char *carry_cuda_product_choice(carry_ctx *ctx, const carry_device_product *product);
carry_status carry_cuda_product(carry_ctx *ctx, const carry_device_product *product, const char *way);

/* blaslt.cu: a product through cuBLASLt, which is opened at the first call. *done is false if the library is missing
   (a warning says so once per context) or does not support this shape; then nothing was done. */
carry_status carry_cuda_blaslt(carry_ctx *ctx, const carry_device_product *product, bool *done);

/* True if the library is there. */
bool carry_cuda_has_blaslt(carry_ctx *ctx);
/* fp8.cu: why the GPU does not multiply 8-bit floats fast, or not with a scale for each row; NULL: it does. */
const char *carry_cuda_fp8_absence(carry_ctx *ctx, int ordinal, bool by_rows);

/* sums.cu: to[i] += the sum over b < blocks, in their order, of from[b * stride + i], for i < n. */
carry_status carry_cuda_add_blocks(carry_ctx *ctx, carry_tensor to, const float *from, int64_t blocks, int64_t n,
                                   int64_t stride);

#ifdef __cplusplus
}
#endif
#endif
