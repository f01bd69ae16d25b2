/* Batches of shapes for the training pass of the video transformer (model/dit/dit_pass.h): drawn, encoded, noised.

   With noise e and latents x: noisy = (1 - s) x + s e, target = e - x, t = 1000 s, s = carry_flow_sigma of a time that
   is one of the sampler's own steps half the time, so that sampling in few steps is learnt best, and anything between 0
   and 1000 otherwise.

   In a stream the past is made by the model, and small errors must not grow. The past of a chunk is therefore x with a
   little noise. The training loop may replace it by the output of the model for x with the noise of one of the
   sampler's last steps:

       carry_shapes_batch_make(batch, ...);
       carry_shapes_batch_own(batch, &args);   sets args for a forward pass that writes velocities to the batch
       carry_dit_pass_run(...);
       carry_shapes_batch_past(batch);         computes the past of the batch from these velocities

   A chunk has no loss if it is empty. The first chunk of a video has a loss only if the shape starts near the middle,
   as in a stream: elsewhere its position cannot be predicted. Everything is a function of the seed and the video's
   number. */
#ifndef CARRY_TRAIN_SHAPES_BATCH_H
#define CARRY_TRAIN_SHAPES_BATCH_H

#include "model/dit/dit_pass.h"
#include "train/dit/shapes.h"

typedef struct carry_shapes_batch_options {
    int64_t videos, chunks, chunk; /* videos of this rank; chunks of a video; frames of a chunk */
    int64_t side;                  /* pixels */
    double speed;                  /* pixels per frame */
    double past_noise;             /* the largest standard deviation of the noise that is added to the past */
    double changes, unnamed;       /* as in carry_shapes_options */
    uint64_t seed;
} carry_shapes_batch_options;

typedef struct carry_shapes_batch carry_shapes_batch;

carry_status carry_shapes_batch_new(carry_ctx *ctx, carry_shapes_batch **made, const carry_dit_config *config,
                                    const carry_shapes_batch_options *options);
void carry_shapes_batch_free(carry_shapes_batch *batch);

/* Makes videos first, first + 1, ...; sets all inputs in args, which are valid until the next call. *counted: the
   number of elements that have a loss. */
carry_status carry_shapes_batch_make(carry_shapes_batch *batch, int64_t first, carry_dit_pass_args *args,
                                     double *counted);
carry_status carry_shapes_batch_own(carry_shapes_batch *batch, carry_dit_pass_args *args);
void carry_shapes_batch_past(carry_shapes_batch *batch);

#endif
