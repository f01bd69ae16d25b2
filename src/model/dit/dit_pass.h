/* Training the video transformer causally: all chunks of several videos in one pass, with the gradients of all
   parameters.

   Teacher forcing. The pass has a video of C chunks twice, as 2C - 1 units of one chunk: clean (t = 0), as in a
   stream's cache, without the last chunk, to which no chunk attends; and noisy, each with its own t. Clean chunk i
   attends to the clean chunks up to i, noisy chunk i to the clean chunks before it and to itself, both inside the
   window: the same as carry_dit_forward chunk after chunk. Every operator works on all rows of the batch, except
   attention, which is called for each unit with runs of keys (at most two, without a mask), and modulation, which uses
   the unit's t.

       rows: [video][clean 0 .. C-2, noisy 0 .. C-1][frame, row, column of patches]

   The loss is the sum over noisy chunks of the chunk's weight times the squared distance of its velocity from the
   target. A pass is a plan for batches of one shape; a call allocates nothing. Results do not depend on the number of
   threads. */
#ifndef CARRY_MODEL_DIT_PASS_H
#define CARRY_MODEL_DIT_PASS_H

#include "model/dit/dit.h"

typedef struct carry_dit_pass_options {
    int64_t videos, chunks; /* chunks of each video */
    int64_t frames;         /* of a chunk */
    int64_t height, width;  /* of the latents */
    int64_t window;         /* frames that a chunk attends to, including its own; there is no sink */
    int64_t texts;          /* captions of each video: the prompt may change within a video */
    carry_dtype dtype;      /* type of activations: f32, bf16 or f16; with copies of the weights in that type */
} carry_dit_pass_options;

typedef struct carry_dit_pass carry_dit_pass;

/* The model must be whole (not a shard) and have gradients, qk_norm and cross_attn_norm. The pass uses dit and must be
   freed before it. */
carry_status carry_dit_pass_new(carry_dit *dit, carry_dit_pass **made, const carry_dit_pass_options *options);
void carry_dit_pass_free(carry_dit_pass *pass);
size_t carry_dit_pass_memory(const carry_dit_pass *pass);
double carry_dit_pass_flops(const carry_dit_pass *pass); /* of forward and backward; a multiply-add counts as two */

/* All tensors are in host memory, where they are checked and cut into patches; on a GPU the patches are uploaded. The
   latents of all chunks are [videos, chunks, in_dim, frames, height, width], f32, packed. */
typedef struct carry_dit_pass_args {
    carry_tensor clean, noisy;
    carry_tensor text;      /* [videos * texts, text_len, text_dim], with zeros after a caption's last word */
    const double *t;        /* [videos, chunks]: time of the noisy chunks, 0 to 1000 */
    const int64_t *caption; /* [videos, chunks]: index of the caption, 0 to texts - 1 */
    const int64_t *start;   /* [videos]: position of the first frame, for rotary positions */
    const float *weight;    /* [videos, chunks]: weight of the chunk's loss */
    carry_tensor target;    /* target of the velocity; absent: no loss */
    carry_tensor velocity;  /* output; absent: not wanted */
    bool backward;          /* adds to the gradients */
    double scale;           /* factor on the loss in the gradients */
    double *loss;           /* output: sum over chunks of weight times the sum of squares; the call waits for it */
    carry_tensor total;     /* [1], f64, on the model's device: gets the loss instead, without a wait; or absent */
    /* Called in backward when the gradients are complete: once, with the range of all of them. NULL: not wanted. */
    carry_status (*ready)(void *user, int64_t first, int64_t count);
    void *user;
} carry_dit_pass_args;

/* memory has carry_dit_pass_memory bytes of any alignment on the model's device, and may be reused afterwards. */
carry_status carry_dit_pass_run(carry_dit_pass *pass, const carry_dit_pass_args *args, void *memory, size_t bytes);

#endif
