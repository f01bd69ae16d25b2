/* Products through packed panels, over the context's threads. */
#ifndef CARRY_OPS_PACKED_H
#define CARRY_OPS_PACKED_H

#include "carry/context.h"
#include "ops/kernels/bf16.h"
#include "ops/kernels/kernels.h"

/* Is this product large enough that packing pays? */
bool carry_packed_pays(const carry_kernels *kernels, const carry_product *product);

/* Item `item` of a product, with the bits of kernels->product whatever the number of threads. May be called by a task
   of the context's pool, and then stays on its thread. */
void carry_packed_run(carry_ctx *ctx, const carry_kernels *kernels, const carry_product *product, int64_t item);

/* The first item on this thread alone. */
void carry_packed_run_alone(carry_ctx *ctx, const carry_kernels *kernels, const carry_product *product);

/* The size from which this context's products go through OpenBLAS: 0 until it is settled; NULL when not prepared. */
double *carry_packed_blas_from(carry_ctx *ctx);

/* This thread's buffer for panels, of *elements elements of 16 bits; NULL: out of memory. The thread that uses the
   context gets the large one, which all threads fill together. */
uint16_t *carry_packed_buffer(carry_ctx *ctx, int64_t *elements);

/* Sums of a tile of bf16 products, of this thread alone; NULL: out of memory. */
#define CARRY_PACKED_SUMS (256 * (256 + 16))
float *carry_packed_sums(carry_ctx *ctx);

/* Keeps the kernels chosen for the context, with a table of its buffers; each buffer is allocated at its first use.
   carry_packed_kernels is NULL before. */
carry_status carry_packed_prepare(carry_ctx *ctx, const carry_kernels *kernels, const carry_bf16 *bf16);
const carry_kernels *carry_packed_kernels(const carry_ctx *ctx);
/* Even if measured slower; carry_bf16_of returns the one in use. */
const carry_bf16 *carry_packed_bf16(const carry_ctx *ctx);

/* Bytes for decoded rows of a quantised weight, of the thread that uses the context; NULL: out of memory, or called by
   another thread. They stay valid until more bytes are requested. */
void *carry_packed_decoded(carry_ctx *ctx, size_t bytes);

/* The weights whose panels are kept (kept.h); NULL when not prepared. */
struct carry_kept;
struct carry_kept **carry_packed_kept(carry_ctx *ctx);
void carry_kept_free(struct carry_kept *kept);

#endif
