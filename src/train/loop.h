/* Training a language model with the loop over steps (train/steps.h).

   The loss of a step is the mean over the labels of its whole batch, whatever ranks and parts it is divided into;
   reports are the same with any number of ranks, except for the order of sums. */
#ifndef CARRY_TRAIN_LOOP_H
#define CARRY_TRAIN_LOOP_H

#include "carry/comm.h"
#include "core/sink.h"
#include "model/lm/lm.h"
#include "train/options.h"

/* The run that is about to start. */
typedef struct carry_train_start {
    const carry_lm *lm;
    const carry_train_options *options; /* with all defaults filled in */
    const char *plan;                   /* of the recurrence */
    const char *resumed;                /* the checkpoint's folder; NULL: from the start */
    int64_t step, steps;                /* done, and to be done in all */
    int64_t tokens;                     /* of a step */
    double flops;                       /* of a token */
    double rows_of_epoch;               /* about */
    int ranks, parts;
    size_t memory; /* bytes of activations, of a rank */
    const struct carry_train_memory *memory_plan;
} carry_train_start;

typedef struct carry_train_report {
    int64_t step, steps, seen; /* seen: tokens */
    double loss, rate, norm;
    double tokens_per_s; /* since the last report, of all ranks, without checkpoints and evaluations */
    double mfu;          /* of the peak; NaN when that is unknown */
    double memory;       /* bytes that this process holds, or of the GPU that are in use: the most of all reports */
    double left;         /* seconds */
} carry_train_report;

typedef struct carry_train_evaluation {
    int64_t step, labels;
    double loss, accuracy; /* of predictions, of a task; NaN for a text */
} carry_train_evaluation;

/* For rank 0, except stop, which each rank asks. Any may be NULL. */
typedef struct carry_train_hooks {
    carry_sink sink;
    bool (*stop)(void);
    /* On every rank, before each step and after the last (is_end); done: steps completed. */
    void (*step)(carry_ctx *ctx, int rank, int device, int64_t done, bool is_end);
    void (*started)(void *user, const carry_train_start *start);
    void (*report)(void *user, const carry_train_report *report);
    void (*evaluated)(void *user, const carry_train_evaluation *evaluation);
    void (*saved)(void *user, int64_t step, const char *folder);
    void *user;
    double peak;  /* flop/s of all ranks together; 0: unknown */
    int device;   /* of carry/device.h: where the model is, and all work is done */
    bool spreads; /* ranks have the GPUs in turn, from the first: device is any of them */
    bool resume;  /* go on from the newest whole checkpoint in options->out */
} carry_train_hooks;

/* A collective; the options are the same on every rank. CARRY_EINTERRUPTED after Ctrl-C, with everything saved. */
carry_status carry_train_run(carry_comm *comm, const carry_train_options *options, const carry_train_hooks *hooks);

/* Multiply-adds count two. Linear layers and the recurrence, in its sequential form, forward and backward: three times
   the forward's. What an algorithm does on top (recomputation, chunks) is not counted. */
double carry_train_flops(const carry_lm *lm);

#endif
