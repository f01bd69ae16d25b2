/* Shared by the operators of carry/nn.h: checks that name the tensor, and pieces of rows in f32. */
#ifndef CARRY_OPS_NN_H
#define CARRY_OPS_NN_H

#include "carry/nn.h"
#include "ops/kernels/kernels.h"

#define CARRY_PIECE 1024 /* elements that are widened beside a tensor of 16 bits at a time */

/* The length of the piece at `at` of a row that ends at `end`. */
static inline int64_t carry_piece(int64_t at, int64_t end) {
    return end - at < CARRY_PIECE ? end - at : CARRY_PIECE;
}

/* Packed, on `device` (or that of like, or of the activations), of this shape; and f32, bf16 or f16 / of the
   activations' type / f32 or of the activations' type, on the CPU any of the three / f32 / i64 / f64. */
carry_status carry_expect_activation(carry_ctx *ctx, const char *name, const carry_tensor *tensor, int rank,
                                     const int64_t *shape, int device);
carry_status carry_expect_like(carry_ctx *ctx, const char *name, const carry_tensor *tensor, const carry_tensor *like);
/* As carry_expect_like; on a GPU rows, of the last index, may be further apart than they are long. */
carry_status carry_expect_rows(carry_ctx *ctx, const char *name, const carry_tensor *tensor, const carry_tensor *like);
carry_status carry_expect_weight(carry_ctx *ctx, const char *name, const carry_tensor *tensor, int rank,
                                 const int64_t *shape, const carry_tensor *activations);
carry_status carry_expect_f32(carry_ctx *ctx, const char *name, const carry_tensor *tensor, int rank,
                              const int64_t *shape, int device);
carry_status carry_expect_i64(carry_ctx *ctx, const char *name, const carry_tensor *tensor, int64_t count, int device);
carry_status carry_expect_f64(carry_ctx *ctx, const char *name, const carry_tensor *tensor, int64_t count, int device);
carry_status carry_expect_rank(carry_ctx *ctx, const char *name, const carry_tensor *tensor, int rank);
/* Workspaces are arrays of f32: aligned to them, large enough, and on the device. */
carry_status carry_expect_workspace(carry_ctx *ctx, const char *operator_name, const void *workspace, size_t bytes,
                                    size_t needed, int device);

static inline bool carry_is_here(const carry_tensor *tensor) {
    return tensor->data != NULL;
}

/* The kernels of half_rows.h where all of these tensors that are there are bf16; else NULL. */
static inline const carry_half_rows *carry_half_rows_for(const carry_kernels *kernels, const carry_tensor *x,
                                                         const carry_tensor *y, const carry_tensor *z) {
    const bool all = x->dtype == CARRY_BF16 && y->dtype == CARRY_BF16 && (z->data == NULL || z->dtype == CARRY_BF16);
    return all ? kernels->half_rows : NULL;
}

/* Elements at..at+count-1 as f32: the tensor's own memory, or widened into beside; NULL of an absent tensor. */
const float *carry_piece_in(const carry_kernels *kernels, float *beside, const carry_tensor *tensor, int64_t at,
                            int64_t count);
/* Where to write those elements: the tensor's own memory, or beside; then carry_piece_done stores the elements of
   beside. */
float *carry_piece_out(float *beside, const carry_tensor *tensor, int64_t at);
/* The same with the current values, for adding to them. */
float *carry_piece_open(const carry_kernels *kernels, float *beside, const carry_tensor *tensor, int64_t at,
                        int64_t count);
void carry_piece_done(const carry_kernels *kernels, const float *beside, const carry_tensor *tensor, int64_t at,
                      int64_t count);

/* Tokens are summed in this many blocks at most, of this many tokens at least. */
#define CARRY_TOKEN_BLOCKS 256
#define CARRY_TOKEN_BLOCK 64
int64_t carry_token_block(int64_t tokens); /* tokens in a block: a function of their number alone */
/* As many blocks as these tokens, or fewer of them, may have: 16385 tokens are 253 blocks, and 16384 are 256. */
int64_t carry_token_blocks_most(int64_t tokens);

#endif
