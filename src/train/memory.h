/* The memory of a training run, computed before the first step by the code that lays out its buffers. If a batch does
   not fit on a GPU, the error says how much memory is missing and what would fit. */
#ifndef CARRY_TRAIN_MEMORY_H
#define CARRY_TRAIN_MEMORY_H

#include <stddef.h>

#include "model/lm/lm.h"

/* Bytes on the model's device. */
typedef struct carry_train_memory {
    size_t weights, copies, gradients; /* of the model, allocated before the pass: weights in f32, copies in 16 bits,
                                          gradients in f32 */
    size_t moments;                    /* AdamW's m and v: this rank's share */
    size_t activations;                /* of the pass, with its workspace */
    size_t other;                      /* prefetched batches, predictions of evaluations, the workspace of products */
    size_t total;                      /* sum of the above */
    size_t missing;                    /* bytes that are needed but not free; 0: it fits, or it is the CPU */
    size_t available;                  /* free bytes when it was computed; 0: unknown */
} carry_train_memory;

struct carry_training;

/* Call it after the pass is planned and before its memory is allocated. CARRY_EMEMORY if it does not fit. */
carry_status carry_training_count_memory(struct carry_training *t);

#endif
