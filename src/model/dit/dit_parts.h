/* What every pass over a video transformer needs, of one chunk or of a training batch: weights as matrices, the time's
   sinusoid, rotary positions, patches. */
#ifndef CARRY_MODEL_DIT_PARTS_H
#define CARRY_MODEL_DIT_PARTS_H

#include "model/dit/dit.h"

/* carry_parameter.start. */
enum {
    CARRY_DIT_START_LINEAR,     /* N(0, 1/sqrt(in)) */
    CARRY_DIT_START_BIAS,       /* zero, or N(0, 0.02) */
    CARRY_DIT_START_ONES,       /* norms: one, or N(1, 0.1) */
    CARRY_DIT_START_MODULATION, /* N(0, 1/sqrt(dim)) */
};

/* A parameter as operators want it: vectors as they are, modulations [6, dim] and [2, dim], the patch embedding
   [dim, channels of a patch]. buffer: dit->own.weights or dit->own.gradients. Absent for index -1. */
carry_tensor carry_dit_view(const carry_dit *dit, float *buffer, int64_t index);
carry_tensor carry_dit_block_weight(const carry_dit *dit, int64_t block, carry_dit_slot slot);
carry_tensor carry_dit_outer_weight(const carry_dit *dit, carry_dit_outer outer);

/* [cos(t w_0), ..., sin(t w_0), ...], w_i = 10000^(-i/half), computed in float64. */
void carry_dit_sinusoid(float *to, int64_t freq_dim, double t);

/* Rotary positions. A head's pairs are split in time, height and width: pairs - 2 (pairs/3), pairs/3, pairs/3; each
   part has bases 10000^(-i/part). positions: [CARRY_DIT_POSITIONS, head/2, 2], the (cosine, sine) of every pair at
   every position; table: [frames rows columns, head/2, 2] for carry_rotary, frames counted from `first`. */
void carry_dit_positions(float *positions, int64_t head);
void carry_dit_rotary_table(float *table, const float *positions, int64_t head, int64_t first, int64_t frames,
                            int64_t rows, int64_t columns);

/* Latents [C, F, h, w] as patches [F (h/p) (w/q), C p q], the order of the patch embedding's weights (channel slowest);
   and back from what the head gives, channel fastest: [F (h/p) (w/q), p q C]. f32; patch is p, q; shapes are the
   caller's to check. */
void carry_dit_patchify(carry_ctx *ctx, float *patches, const carry_tensor *latents, const int64_t patch[2]);
void carry_dit_unpatchify(carry_ctx *ctx, const carry_tensor *latents, const float *patches, const int64_t patch[2]);

#endif
