/* bf16 weights whose panels (kernels/bf16.h) are packed once and kept, for products that use them repeatedly, such
   as prompts through a model that is only read. A product finds the panels by the weight's address and shape, and
   has the same bits with them as without; except for some products of 9 to 24 tokens, which few.c computes in parts of
   at most 8 tokens if there are no panels. */
#ifndef CARRY_OPS_PRODUCT_KEPT_H
#define CARRY_OPS_PRODUCT_KEPT_H

#include "carry/tensor.h"
#include "ops/kernels/bf16.h"
#include "ops/linear.h"

typedef struct carry_kept carry_kept;

/* Bytes of the panels of W [out, in] for an entry of kernels/bf16.h, a multiple of 64. 0 if its products do not use
   them, or `by` is NULL. */
size_t carry_kept_bytes(const carry_bf16 *by, carry_tensor W);
/* Packs W into `panels`, which has carry_kept_bytes bytes. Neither may change or move until carry_kept_forget. */
carry_status carry_kept_add(carry_ctx *ctx, const carry_bf16 *by, carry_tensor W, void *panels);
/* Forgets the panels that are inside these bytes. */
void carry_kept_forget(carry_ctx *ctx, const void *panels, size_t bytes);

/* Returns the kept panels of b, which is W^T with n columns, or NULL. */
const uint16_t *carry_kept_find(carry_ctx *ctx, const carry_bf16 *by, const carry_mixed_product *product);

#endif
