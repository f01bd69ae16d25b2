/* Operators with a quantised weight in tiles, for the files of those operators. */
#ifndef CARRY_OPS_CUDA_QUANTISED_LINEAR_CUH
#define CARRY_OPS_CUDA_QUANTISED_LINEAR_CUH

#include "ops/cuda/linear.cuh"
#include "ops/quantised/tile_product.h"

/* Bytes of rows that are decoded or copied at once: at least the widest matrix of a layer of a 4B model. */
constexpr size_t DECODED_BYTES = (size_t)1 << 27;

/* c = a W^T for m rows of a, plus base unless that is NULL. */
carry_status quantised_linear(carry_ctx *ctx, int device, matrix c, int64_t m, matrix a, const carry_tensor &W,
                              const void *base);
/* The same for several weights, without a base, if the products are faster together. *done: the number of weights, from
   the first on, whose products have been computed. */
carry_status quantised_linears(carry_ctx *ctx, int device, const matrix *c, int64_t m, const matrix &a,
                               const carry_tensor *W, int count, int *done);
/* The same with activations rounded to 8 bits, for many rows and weights of 8-bit floats (quantised_fp8_hopper.cu). */
carry_status quantised_fp8(carry_ctx *ctx, const place &at, const matrix *c, int64_t m, const matrix &a,
                           const carry_tensor *W, int count, const void *base, int *done);
/* c = a W^T by reading the tiles, CARRY_TILE_PRODUCT_ROWS rows of a at a time. base is c or NULL. */
carry_status quantised_by_tiles(carry_ctx *ctx, const place &at, matrix c, int64_t m, matrix a, const carry_tensor &W,
                                const void *base);
/* Decodes experts first to first + count - 1 of a stack. */
carry_status quantised_experts_decoded(carry_ctx *ctx, const place &at, void *to, carry_dtype dtype,
                                       const carry_tensor &W, int64_t first, int64_t count);
/* The products of carry_grouped_linear by reading the tiles of experts that have rows. *done is false, and nothing was
   done, if decoding is faster or the experts have too many columns. */
carry_status quantised_experts_by_tiles(carry_ctx *ctx, const carry_tensor &y, const carry_tensor &x,
                                        const carry_tensor &W, const carry_tensor &offsets, bool *done);
/* True while the stream of a place is captured: memory must not be allocated then. */
bool is_recorded(const place &at);
/* Gathers rows of the table by number, on the device of y. */
carry_status quantised_embed(carry_ctx *ctx, carry_tensor y, carry_tensor table, const int64_t *ids);
/* Decodes the whole weight into new memory, to be freed with carry_cuda_free_on on the context's stream. */
carry_status quantised_decoded(carry_ctx *ctx, carry_tensor *decoded, const carry_tensor &W, carry_dtype dtype);

#endif
