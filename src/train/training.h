/* The inside of a run. */
#ifndef CARRY_TRAIN_TRAINING_H
#define CARRY_TRAIN_TRAINING_H

#include "train/data/batches.h"
#include "train/checkpoint.h"
#include "train/loop.h"
#include "train/data/material.h"
#include "train/mixers.h"
#include "train/optimizer.h"
#include "train/parallel.h"

#define CARRY_TRAIN_SUMS 3 /* of a step: loss, labels, squares of gradients */
#define CARRY_TRAIN_LAG 64 /* steps whose sums wait on a GPU to be read, at most */

/* Where a run stood before a step. */
typedef struct carry_train_place {
    int64_t step, seen;
    carry_position position;
    int64_t labels; /* of the step's whole batch */
} carry_train_place;

typedef struct carry_training {
    carry_ctx *ctx;
    carry_comm *comm;
    carry_train_options options;
    const carry_train_hooks *hooks;
    bool speaks; /* rank 0 */
    carry_grid grid;
    carry_material material;
    carry_lm *lm;
    carry_train_mixing mixing;
    carry_lm_pass *pass;
    carry_optimizer *optimizer;
    carry_batches *batches;
    carry_batches *exam; /* NULL until the first */
    bool has_no_exam;
    void *memory;
    size_t bytes;
    carry_tensor sums; /* [lag, CARRY_TRAIN_SUMS], f64, on the model's device */
    int64_t lag;       /* 1 on the CPU: read in every step */
    int64_t unread;    /* steps whose sums were not read */
    carry_train_place before[CARRY_TRAIN_LAG];
    carry_tensor logits; /* of an evaluation of a task, on the model's device, */
    void *logits_seen;   /* and in host memory */
    int64_t *chosen;
    float *gathered; /* m and v of the whole model, on rank 0 of several */
    carry_run_folder folder;
    carry_found found;
    bool held_back; /* by the run that goes on, a part of the text */
    carry_schedule schedule;
    int64_t rows; /* of a part of a rank's rows */
    int64_t step, seen;
    carry_position position; /* where the step after `step` begins */
    double spent;            /* seconds of steps, since the start */
    int64_t done;            /* steps since the start */
    double flops;
    double most; /* bytes of memory that the process was seen to hold */
} carry_training;

/* Everything before the first step. t is all zero but ctx, comm, options and hooks; it is closed in any case. */
carry_status carry_training_open(carry_training *t);
void carry_training_close(carry_training *t);

carry_status carry_training_examine(carry_training *t);
/* A collective; nothing is done when this step is saved. */
carry_status carry_training_save(carry_training *t);
/* One part of a batch: rows [part * rows, ...). */
carry_status carry_training_pass(carry_training *t, const carry_batch *batch, int64_t part, carry_lm_args *args);

#endif
