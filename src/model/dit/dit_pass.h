/* Training the video transformer causally: all chunks of several videos in one pass, with the gradients of all
   parameters.

   Teacher forcing. A video of C chunks is in the pass twice, as 2C - 1 units of one chunk: clean (t = 0), as in
   a stream's cache, without the last, which no chunk sees; and noisy, each with its own t. Clean chunk i
   sees the clean chunks up to i, noisy chunk i the clean chunks before it and itself, both inside the window: exactly
   what carry_dit_forward sees chunk after chunk. Every operator works on all rows of the batch but attention, which is
   called per unit with runs of keys (two at most, no mask), and modulation, whose t is the unit's.

       rows: [video][clean 0 .. C-2, noisy 0 .. C-1][frame, row, column of patches]

   The loss is the squared distance of the velocity from its target, over noisy chunks that have a weight. A pass is a
   plan for batches of one shape; a call allocates nothing. Results do not depend on the number of threads. */
#ifndef CARRY_MODEL_DIT_PASS_H
#define CARRY_MODEL_DIT_PASS_H

#include "model/dit/dit.h"

typedef struct carry_dit_pass_options {
    int64_t videos, chunks; /* chunks of each video */
    int64_t frames;         /* of a chunk */
    int64_t height, width;  /* of the latents */
    int64_t window;         /* frames that a chunk sees, its own among them; no sink */
    int64_t texts;          /* captions of each video: a prompt may change on the way */
    carry_dtype dtype;      /* of activations: f32, bf16 or f16; with copies of the weights in it */
} carry_dit_pass_options;

typedef struct carry_dit_pass carry_dit_pass;

/* A whole model (no shard), with qk_norm and cross_attn_norm; the pass uses dit and is freed before it. */
carry_status carry_dit_pass_new(carry_dit *dit, carry_dit_pass **made, const carry_dit_pass_options *options);
void carry_dit_pass_free(carry_dit_pass *pass);
size_t carry_dit_pass_memory(const carry_dit_pass *pass);
double carry_dit_pass_flops(const carry_dit_pass *pass); /* of forward and backward; multiply-adds count two */

/* All in host memory, where it is checked and cut into patches; on a GPU these are uploaded.
   The latents of all chunks: [videos, chunks, in_dim, frames, height, width], f32, packed. */
typedef struct carry_dit_pass_args {
    carry_tensor clean, noisy;
    carry_tensor text;      /* [videos * texts, text_len, text_dim], zeros after a caption's last word */
    const double *t;        /* [videos, chunks]: of the noisy chunks, 0 to 1000 */
    const int64_t *caption; /* [videos, chunks]: 0 to texts - 1 */
    const int64_t *start;   /* [videos]: the place of the first frame, for rotary positions */
    const float *weight;    /* [videos, chunks]: of the chunk's loss */
    carry_tensor target;    /* of the velocity; absent: no loss */
    carry_tensor velocity;  /* gets it; absent: not wanted */
    bool backward;          /* adds to the gradients */
    double scale;           /* of the loss, in the gradients */
    double *loss;           /* sum over chunks of weight times the sum of squares, which is waited for */
    carry_tensor total;     /* [1], f64, on the model's device: gets the same instead, without a wait; or absent */
    /* Called in backward when a range of the gradients is complete: once, with all. NULL: not wanted. */
    carry_status (*ready)(void *user, int64_t first, int64_t count);
    void *user;
} carry_dit_pass_args;

/* memory: carry_dit_pass_memory bytes of any alignment, on the model's device; nothing in it is needed afterwards. */
carry_status carry_dit_pass_run(carry_dit_pass *pass, const carry_dit_pass_args *args, void *memory, size_t bytes);

#endif
