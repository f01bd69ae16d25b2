/* Shared by the operators of carry/nn.h: checks whose messages name the tensor, and pieces of rows in f32. */
#ifndef CARRY_OPS_NN_H
#define CARRY_OPS_NN_H

#include "carry/nn.h"
#include "ops/kernels/kernels.h"

#define CARRY_PIECE 1024 /* elements of a 16-bit tensor that are widened into a buffer at a time */

/* The length of the piece at `at` of a row that ends at `end`. */
static inline int64_t carry_piece(int64_t at, int64_t end) {
    return end - at < CARRY_PIECE ? end - at : CARRY_PIECE;
}

/* Each checks that a tensor is packed, has this shape, and is on `device` (or that of `like` or of the activations).
   Accepted types: carry_expect_activation: f32, bf16 and f16; carry_expect_like: that of `like`; carry_expect_weight:
   f32 and the activations' type, on the CPU f32, bf16 and f16; carry_expect_f32, _i64 and _f64: that type. */
carry_status carry_expect_activation(carry_ctx *ctx, const char *name, const carry_tensor *tensor, int rank,
                                     const int64_t *shape, int device);
carry_status carry_expect_like(carry_ctx *ctx, const char *name, const carry_tensor *tensor, const carry_tensor *like);
/* Like carry_expect_like, but on a GPU the stride between rows (of the last index) may be larger than a row. */
carry_status carry_expect_rows(carry_ctx *ctx, const char *name, const carry_tensor *tensor, const carry_tensor *like);
carry_status carry_expect_weight(carry_ctx *ctx, const char *name, const carry_tensor *tensor, int rank,
                                 const int64_t *shape, const carry_tensor *activations);
carry_status carry_expect_f32(carry_ctx *ctx, const char *name, const carry_tensor *tensor, int rank,
                              const int64_t *shape, int device);
carry_status carry_expect_i64(carry_ctx *ctx, const char *name, const carry_tensor *tensor, int64_t count, int device);
carry_status carry_expect_f64(carry_ctx *ctx, const char *name, const carry_tensor *tensor, int64_t count, int device);
carry_status carry_expect_rank(carry_ctx *ctx, const char *name, const carry_tensor *tensor, int rank);
/* Checks that a workspace is aligned to f32, large enough, and on the device. */
carry_status carry_expect_workspace(carry_ctx *ctx, const char *operator_name, const void *workspace, size_t bytes,
                                    size_t needed, int device);

static inline bool carry_is_here(const carry_tensor *tensor) {
    return tensor->data != NULL;
}

/* The kernels of half_rows.h if all of these tensors that are present are bf16, else NULL. */
static inline const carry_half_rows *carry_half_rows_for(const carry_kernels *kernels, const carry_tensor *x,
                                                         const carry_tensor *y, const carry_tensor *z) {
    const bool all = x->dtype == CARRY_BF16 && y->dtype == CARRY_BF16 && (z->data == NULL || z->dtype == CARRY_BF16);
    return all ? kernels->half_rows : NULL;
}

/* Returns elements at..at+count-1 as f32: a pointer into an f32 tensor, or `beside`, a buffer of the caller to which
   the elements of other types are converted. NULL if the tensor is absent. */
const float *carry_piece_in(const carry_kernels *kernels, float *beside, const carry_tensor *tensor, int64_t at,
                            int64_t count);
/* Returns the address to which the caller writes elements from `at` on: a pointer into an f32 tensor, or `beside`, from
   which carry_piece_done then stores them in the tensor. */
float *carry_piece_out(float *beside, const carry_tensor *tensor, int64_t at);
/* The same, filled with the current values, to add to them. */
float *carry_piece_open(const carry_kernels *kernels, float *beside, const carry_tensor *tensor, int64_t at,
                        int64_t count);
void carry_piece_done(const carry_kernels *kernels, const float *beside, const carry_tensor *tensor, int64_t at,
                      int64_t count);

/* Tokens are summed in at most this many blocks, of at least this many tokens each. */
#define CARRY_TOKEN_BLOCKS 256
#define CARRY_TOKEN_BLOCK 64
int64_t carry_token_block(int64_t tokens); /* tokens per block; depends only on their number */
/* The largest number of blocks for these tokens or any smaller number of them: 16385 tokens are 253 blocks, and
   16384 are 256. */
int64_t carry_token_blocks_most(int64_t tokens);

#endif
