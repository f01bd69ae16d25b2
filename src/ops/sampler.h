/* Operators of a few-step sampler of video latents, so that a chunk stays on its device from noise to clean latents. */
#ifndef CARRY_OPS_SAMPLER_H
#define CARRY_OPS_SAMPLER_H

#include <stdbool.h>

#include "carry/tensor.h"

/* Converts latents [C, F, h, w] to patches [F (h/p) (w/q), C p q], with the channel slowest, as in a patch
   embedding's weights; or with by_head to [F (h/p) (w/q), p q C], with the channel fastest, as in a head's output.
   carry_unpatchify is the inverse. f32, packed; patch is p, q. */
carry_status carry_patchify(carry_ctx *ctx, carry_tensor patches, carry_tensor latents, const int64_t patch[2],
                            bool by_head);
carry_status carry_unpatchify(carry_ctx *ctx, carry_tensor latents, carry_tensor patches, const int64_t patch[2],
                              bool by_head);

/* x0 = x - sigma velocity, then x = keep x0 + scale noise; if noise is absent, x is unchanged. All are f32, packed,
   and of one shape. x0 may be velocity; it may be x only if there is no noise. noise is neither x nor x0. bad: [1] f32,
   set to 1 if an element of x0 is not finite, else unchanged; may be absent. */
typedef struct carry_flow_step_args {
    carry_tensor x0, x, velocity, noise, bad;
    float sigma, keep, scale;
} carry_flow_step_args;
carry_status carry_flow_step(carry_ctx *ctx, const carry_flow_step_args *args);

/* carry_random_normal on any device. Devices other than the CPU may round an element to the neighbouring number. */
carry_status carry_random_fill(carry_ctx *ctx, carry_tensor out, uint64_t seed, uint64_t stream, float mean,
                               float deviation);

/* Computes a part of what carry_random_fill would write: `out`, packed, gets columns [first, first + columns) of every
   row of a tensor whose rows have `next` elements. */
typedef struct carry_random_part_args {
    carry_tensor out;
    uint64_t seed, stream;
    float mean, deviation;
    int64_t columns, next, first;
} carry_random_part_args;
carry_status carry_random_part(carry_ctx *ctx, const carry_random_part_args *args);

#endif
