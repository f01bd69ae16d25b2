/* Training a language model with the training loop (train/steps.h).

   The loss of a step is the mean over the labels of its whole batch, however it is split into ranks and parts; reports
   are the same for any number of ranks, except for the order of sums. */
#ifndef CARRY_TRAIN_LOOP_H
#define CARRY_TRAIN_LOOP_H

#include "carry/comm.h"
#include "core/sink.h"
#include "model/lm/lm.h"
#include "train/options.h"

/* Describes the run that is about to start. */
typedef struct carry_train_start {
    const carry_lm *lm;
    const carry_train_options *options; /* with all defaults filled in */
    const char *plan;                   /* text about the recurrence */
    const char *resumed;                /* folder of the checkpoint; NULL: the run starts at the beginning */
    int64_t step, steps;                /* steps done, and total number of steps */
    int64_t tokens;                     /* tokens per step */
    double flops;                       /* per token */
    double rows_of_epoch;               /* about */
    int ranks, parts;
    size_t memory; /* bytes of activations of one rank */
    const struct carry_train_memory *memory_plan;
} carry_train_start;

typedef struct carry_train_report {
    int64_t step, steps, seen; /* seen: tokens */
    double loss, rate, norm;
    double tokens_per_s; /* since the last report, of all ranks, not counting checkpoints and evaluations */
    double mfu;          /* fraction of the peak; NaN if the peak is unknown */
    double memory;       /* bytes held by this process, or in use on the GPU: the maximum over all reports */
    double left;         /* seconds */
} carry_train_report;

typedef struct carry_train_evaluation {
    int64_t step, labels;
    double loss, accuracy; /* accuracy of the predictions for a task; NaN for a text */
} carry_train_evaluation;

/* Callbacks for rank 0, except stop, which every rank calls. Any may be NULL. */
typedef struct carry_train_hooks {
    carry_sink sink;
    bool (*stop)(void);
    /* Called on every rank, before each step and after the last (is_end); done: number of completed steps. */
    void (*step)(carry_ctx *ctx, int rank, int device, int64_t done, bool is_end);
    void (*started)(void *user, const carry_train_start *start);
    void (*report)(void *user, const carry_train_report *report);
    void (*evaluated)(void *user, const carry_train_evaluation *evaluation);
    void (*saved)(void *user, int64_t step, const char *folder);
    void *user;
    double peak;   /* flop/s of all ranks together; 0: unknown */
    int device;    /* device of carry/device.h that has the model and does all the work */
    bool spreads;  /* ranks are assigned to the GPUs in turn, starting with the first; device is then any GPU */
    bool slow_fp8; /* for tests: accept --fp8 on any device, also the CPU */
    bool resume;   /* continue from the newest complete checkpoint in options->out */
} carry_train_hooks;

/* A collective; the options must be the same on every rank. CARRY_EINTERRUPTED after Ctrl-C, with everything saved. */
carry_status carry_train_run(carry_comm *comm, const carry_train_options *options, const carry_train_hooks *hooks);

/* Floating point operations per token; a multiply-add counts as two. Counts linear layers and the recurrence in its
   sequential form, forward and backward: three times the forward pass. Additional work of an algorithm (recomputation,
   chunks) is not counted. */
double carry_train_flops(const carry_lm *lm);

#endif
