/* Internals of a training run. */
#ifndef CARRY_TRAIN_TRAINING_H
#define CARRY_TRAIN_TRAINING_H

#include "model/lm/lm_fp8.h"
#include "train/data/batches.h"
#include "train/feed.h"
#include "train/memory.h"
#include "train/loop.h"
#include "train/data/material.h"
#include "train/recurrences.h"
#include "train/parallel.h"
#include "train/steps.h"

typedef struct carry_training {
    carry_ctx *ctx;
    carry_comm *comm;
    carry_comm *moving; /* for sequence ranks on a GPU: a communicator based on grid.sequence for device memory; else
                           NULL */
    carry_train_options options;
    const carry_train_hooks *hooks;
    carry_steps loop;
    carry_grid grid;
    carry_material material;
    carry_lm *lm;
    carry_train_recurrence_choice recurrence;
    carry_lm_pass *pass;
    carry_lm_pass_options pass_options;
    carry_lm_fp8 fp8; /* scales.data NULL: not used */
    carry_train_memory memory_plan;
    carry_batches *batches;
    const carry_batch *batch;  /* batch of the step, on the CPU */
    carry_feed feed;           /* uploads batches to a GPU */
    int64_t *cuts;             /* for packed examples: cu_seqlens of a part, [sequences of the pass + 1]; else NULL */
    carry_batches *evaluation; /* NULL until the first evaluation */
    bool cannot_evaluate;
    void *memory;
    size_t bytes;
    carry_tensor logits; /* logits of an evaluation of a task, on the model's device */
    void *logits_seen;   /* the same in host memory */
    int64_t *chosen;
    bool held_back; /* the resumed run held out a part of the text */
    int64_t rows;   /* rows of one part of a rank's rows */
    double flops;   /* per token */
    double most;    /* maximum memory of the process so far, in bytes */
} carry_training;

extern const carry_trainee carry_training_trainee;

/* Prepares everything before the first step. t must be zero except for ctx, comm, options and hooks; close it also
   after a failure. */
carry_status carry_training_open(carry_training *t);
void carry_training_close(carry_training *t);

carry_status carry_training_evaluate(void *training);
/* Runs the pass for one part of a batch: rows [part * rows, ...). */
carry_status carry_training_pass(carry_training *t, const carry_batch *batch, int64_t part, carry_lm_args *args);

#endif
