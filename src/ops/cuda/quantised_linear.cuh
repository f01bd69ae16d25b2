/* Operators with a quantised weight in tiles, for the files of those operators. */
#ifndef CARRY_OPS_CUDA_QUANTISED_LINEAR_CUH
#define CARRY_OPS_CUDA_QUANTISED_LINEAR_CUH

#include "ops/cuda/linear.cuh"
#include "ops/quantised/tile_product.h"

/* c = a W^T for m rows of a, plus base unless that is NULL. */
carry_status quantised_linear(carry_ctx *ctx, int device, matrix c, int64_t m, matrix a, const carry_tensor &W,
                              const void *base);
/* Gathers rows of the table by number, on the device of y. */
carry_status quantised_embed(carry_ctx *ctx, carry_tensor y, carry_tensor table, const int64_t *ids);
/* Decodes the whole weight into new memory, to be freed with carry_cuda_free_on on the context's stream. */
carry_status quantised_decoded(carry_ctx *ctx, carry_tensor *decoded, const carry_tensor &W, carry_dtype dtype);

#endif
