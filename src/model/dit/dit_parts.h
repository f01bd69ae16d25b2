/* Shared by all passes over a video transformer, of one chunk or a training batch: weights as matrices, the sinusoidal
   embedding of time, rotary positions, patches. */
#ifndef CARRY_MODEL_DIT_PARTS_H
#define CARRY_MODEL_DIT_PARTS_H

#include "carry/nn.h"
#include "ops/video.h"
#include "model/dit/dit.h"

/* carry_parameter.start. */
enum {
    CARRY_DIT_START_LINEAR,     /* N(0, 1/sqrt(in)) */
    CARRY_DIT_START_BIAS,       /* zero, or N(0, 0.02) */
    CARRY_DIT_START_ONES,       /* norms: one, or N(1, 0.1) */
    CARRY_DIT_START_MODULATION, /* N(0, 1/sqrt(dim)) */
};

static inline int64_t carry_dit_head(const carry_dit *dit) {
    return dit->config.dim / dit->config.num_heads;
}

/* The slot of a product's bias. It follows its weight in the list; the biases of q, k and v follow all three
   weights. */
static inline carry_dit_slot carry_dit_bias(carry_dit_slot weight) {
    return (carry_dit_slot)(weight + (weight >= CARRY_DIT_Q && weight <= CARRY_DIT_V ? 3 : 1));
}

/* A parameter in the shape that operators need: vectors unchanged, modulations as [6, dim] and [2, dim], the patch
   embedding as [dim, channels of a patch]. buffer: dit->own.weights or dit->own.gradients. Absent for index -1. */
carry_tensor carry_dit_view(const carry_dit *dit, float *buffer, int64_t index);
carry_tensor carry_dit_block_weight(const carry_dit *dit, int64_t block, carry_dit_slot slot);
carry_tensor carry_dit_outer_weight(const carry_dit *dit, carry_dit_outer outer);
/* The same as input of a product with activations of this type: its 16-bit copy if there is one of that type. */
carry_tensor carry_dit_product(const carry_dit *dit, int64_t index, carry_dtype dtype);
/* y = f(W x + b), or y += f(W x + b) if accumulate. affine takes the indices of W and b. outer_affine takes the entry
   of W among the parameters outside of blocks; b is the next entry. */
carry_status carry_dit_affine(carry_dit *dit, carry_tensor y, carry_tensor x, int64_t weight, int64_t bias,
                              carry_activation activation, bool accumulate);
carry_status carry_dit_outer_affine(carry_dit *dit, carry_tensor y, carry_tensor x, carry_dit_outer outer,
                                    carry_activation activation);
/* q, k and v as one product, [3 width, dim]; possible only if they are adjacent in the flat buffers. */
bool carry_dit_has_qkv(const carry_dit *dit);
void carry_dit_qkv(const carry_dit *dit, int64_t block, carry_dtype dtype, carry_tensor *W, carry_tensor *b);

/* [cos(t w_0), ..., sin(t w_0), ...], w_i = 10000^(-i/half), computed in float64. */
void carry_dit_sinusoid(float *to, int64_t freq_dim, double t);

/* Rotary positions. A head's pairs are split in time, height and width: pairs - 2 (pairs/3), pairs/3, pairs/3; pair i
   of a part of n pairs turns by 10000^(-i/n) radians per position. positions: [CARRY_DIT_POSITIONS, head/2, 2], the
   (cosine, sine) of every pair at every position; table: [frames rows columns, head/2, 2] for carry_rotary, frames
   counted from `first`. */
void carry_dit_positions(float *positions, int64_t head);
void carry_dit_rotary_table(float *table, const float *positions, int64_t head, int64_t first, int64_t frames,
                            int64_t rows, int64_t columns);

/* Converts latents [C, F, h, w] to patches. The order is that of the patch embedding's weights, [F (h/p) (w/q), C p q]
   with the channel slowest, or, if by_head, that of the head's output, [F (h/p) (w/q), p q C] with the channel fastest;
   unpatchify converts back from the latter. f32, in host memory; patch is p, q. The caller checks shapes. */
void carry_dit_patchify(carry_ctx *ctx, float *patches, const carry_tensor *latents, const int64_t patch[2],
                        bool by_head);
void carry_dit_unpatchify(carry_ctx *ctx, const carry_tensor *latents, const float *patches, const int64_t patch[2]);

#endif
