/* Products through packed panels, over the context's threads. */
#ifndef CARRY_OPS_PACKED_H
#define CARRY_OPS_PACKED_H

#include "carry/context.h"
#include "ops/kernels/bf16.h"
#include "ops/kernels/kernels.h"

/* True if the product is large enough that packing pays. */
bool carry_packed_pays(const carry_kernels *kernels, const carry_product *product);

/* Computes item `item` of a product, with the same bits as kernels->product for any number of threads. A task of the
   context's pool may call it; then it runs on that thread. */
void carry_packed_run(carry_ctx *ctx, const carry_kernels *kernels, const carry_product *product, int64_t item);

/* Computes the first item on this thread alone. */
void carry_packed_run_alone(carry_ctx *ctx, const carry_kernels *kernels, const carry_product *product);

/* The size from which this context's products use OpenBLAS; 0 until it is decided. Returns NULL before
   carry_packed_prepare. */
double *carry_packed_blas_from(carry_ctx *ctx);

/* Returns this thread's buffer for panels, of *elements 16-bit elements, or NULL if memory runs out. The thread that
   uses the context gets the large one, which all threads fill together. */
uint16_t *carry_packed_buffer(carry_ctx *ctx, int64_t *elements);

/* Returns this thread's memory for the sums of a tile of bf16 products, or NULL if memory runs out. */
#define CARRY_PACKED_SUMS (256 * (256 + 16))
float *carry_packed_sums(carry_ctx *ctx);

/* Keeps the kernels chosen for the context, with a table of its buffers; each buffer is allocated at its first use.
   carry_packed_kernels returns NULL before this call. */
carry_status carry_packed_prepare(carry_ctx *ctx, const carry_kernels *kernels, const carry_bf16 *bf16);
const carry_kernels *carry_packed_kernels(const carry_ctx *ctx);
/* Returns the bf16 kernels even if they were measured to be slower; carry_bf16_of returns the ones in use. */
const carry_bf16 *carry_packed_bf16(const carry_ctx *ctx);

/* True if products of many tokens of this type with quantised weights are faster by integers than with decoded rows. */
bool carry_packed_integers(carry_ctx *ctx, carry_dtype dtype);

/* Returns memory for decoded rows of a quantised weight, or NULL if memory runs out, if the caller is not the thread
   that uses the context, or before carry_packed_prepare. It stays valid until more bytes are requested. */
void *carry_packed_decoded(carry_ctx *ctx, size_t bytes);

/* The weights whose panels are kept (kept.h); NULL before carry_packed_prepare. */
struct carry_kept;
struct carry_kept **carry_packed_kept(carry_ctx *ctx);
void carry_kept_free(struct carry_kept *kept);

#endif
