/* Training the video transformer on shapes with the training loop (train/steps.h). After each step the running average
   of the weights is updated.

   The saved model is the running average of the weights; the weights themselves are in the optimizer's file of a
   checkpoint. If a loss or gradient is not finite, the run ends before the weights change, and the state before that
   step is saved. An interrupted run finishes its step and saves. */
#ifndef CARRY_TRAIN_DIT_LOOP_H
#define CARRY_TRAIN_DIT_LOOP_H

#include "carry/comm.h"
#include "core/sink.h"
#include "train/dit/dit_evaluate.h"
#include "train/dit/dit_options.h"

typedef struct carry_dit_train_start {
    const carry_dit *dit;
    const carry_dit_train_options *options;
    const char *resumed; /* folder of the checkpoint; NULL: the run starts at the beginning */
    int64_t step;        /* done */
    int ranks;
    size_t memory; /* bytes of activations of one rank */
    double flops;  /* per step */
} carry_dit_train_start;

typedef struct carry_dit_train_report {
    int64_t step, steps;
    double loss, rate, norm;
    double videos_per_s, gflops; /* since the last report, of all ranks, not counting checkpoints and evaluations */
    double memory;               /* bytes held by this process */
    double left;                 /* seconds */
} carry_dit_train_report;

/* Callbacks for rank 0, except stop, which every rank calls. All ranks must be given the same ones. Any may be NULL; if
   there is neither `evaluated` nor a metric in the sink, nothing is evaluated. */
typedef struct carry_dit_train_hooks {
    carry_sink sink;
    bool (*stop)(void);
    void (*started)(void *user, const carry_dit_train_start *start);
    void (*report)(void *user, const carry_dit_train_report *report);
    void (*evaluated)(void *user, int64_t step, const carry_dit_evaluation *evaluation);
    void *user;
    int device;  /* device to train on, with one rank; 0: the CPU */
    bool resume; /* continue from the newest complete checkpoint in options->out */
} carry_dit_train_hooks;

/* A collective; the options must be the same on every rank. CARRY_EINTERRUPTED after Ctrl-C, with everything saved. */
carry_status carry_dit_train_run(carry_comm *comm, const carry_dit_train_options *options,
                                 const carry_dit_train_hooks *hooks);

#endif
