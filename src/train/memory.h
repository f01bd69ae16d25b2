/* The memory of a training run, computed before the first step by the code that lays out its buffers. A batch that
   does not fit on a GPU is refused, with the missing memory and what would fit. */
#ifndef CARRY_TRAIN_MEMORY_H
#define CARRY_TRAIN_MEMORY_H

#include <stddef.h>

#include "model/lm/lm.h"

/* Bytes on the model's device. */
typedef struct carry_train_memory {
    size_t weights, copies, gradients; /* f32; in 16 bits; f32: of the model, allocated before the pass */
    size_t moments;                    /* of AdamW: this rank's share */
    size_t activations;                /* of the pass, with its workspace */
    size_t other;                      /* batches on their way, predictions of evaluations, the workspace of products */
    size_t total;                      /* of all these */
    size_t missing;                    /* of what is not allocated yet, more than is free; 0: it fits, or the CPU's */
    size_t available;                  /* free when it was asked; 0: unknown */
} carry_train_memory;

struct carry_training;

/* Once the pass is planned and before it gets memory. CARRY_EMEMORY where it does not fit. */
carry_status carry_training_count_memory(struct carry_training *t);

#endif
