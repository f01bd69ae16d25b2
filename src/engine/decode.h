/* Decoding steps of one token by the decoding kernel (decode_ops.h): one launch for a token of every sequence.

   It supports models in bf16 in which every layer has a mixer (the delta rule with heads of 128, or attention over all
   tokens) and a SwiGLU, and norms before both; for up to CARRY_DECODE_SEQUENCES sequences on a Hopper GPU. Other models
   and devices use the chain of kernels (chain.h) or the passes of model/lm. */
#ifndef CARRY_ENGINE_DECODE_H
#define CARRY_ENGINE_DECODE_H

#include "engine/runner.h"
#include "model/lm/lm.h"

typedef struct carry_decode carry_decode;

typedef struct carry_decode_options {
    int64_t sequences; /* maximum number of a step */
    bool same_bits;    /* the results of a sequence have the same bits in all steps of 1 to 8 sequences, and the same
                          bits in all steps of 9 to 16; slower */
    int32_t *last;     /* [slots], on the device: the last token sampled for each slot. NULL: every run gives its id */
} carry_decode_options;

/* state: a pool, whose caches are pages; or a state whose caches have a capacity that is a multiple of
   CARRY_PAGE_TOKENS tokens. The pages of its sequence b then start at b capacity / CARRY_PAGE_TOKENS. logits:
   [sequences, vocabulary], f32, on the model's device. *made is NULL if the kernel does not support the model or the
   device. */
carry_status carry_decode_open(carry_decode **made, carry_lm *lm, carry_lm_state *state, carry_tensor logits,
                               const carry_decode_options *options);
void carry_decode_close(carry_decode *decode);
/* The maximum number of sequences of a step; less than the number asked for if they do not fit. */
int64_t carry_decode_sequences(const carry_decode *decode);
/* Reads one token of every run; row i of the logits belongs to run i. It does not sample. The work is enqueued in the
   stream. The caches must have space for the token. */
carry_status carry_decode_step(carry_decode *decode, const carry_run *runs, int64_t count);

#endif
