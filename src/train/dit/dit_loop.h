/* Training the video transformer on shapes, by the loop over steps (train/steps.h); after each step the weights join
   their running average.

   What is saved as the model is the running average of the weights; the weights themselves are in the optimizer's file
   of a checkpoint. A loss or gradient that is not finite ends the run before it reaches the weights, with the state
   before it saved. An interrupted run finishes its step and saves. */
#ifndef CARRY_TRAIN_DIT_LOOP_H
#define CARRY_TRAIN_DIT_LOOP_H

#include "carry/comm.h"
#include "core/sink.h"
#include "train/dit/dit_evaluate.h"
#include "train/dit/dit_options.h"

typedef struct carry_dit_train_start {
    const carry_dit *dit;
    const carry_dit_train_options *options;
    const char *resumed; /* the checkpoint's folder; NULL: from the start */
    int64_t step;        /* done */
    int ranks;
    size_t memory; /* bytes of activations, of a rank */
    double flops;  /* of a step */
} carry_dit_train_start;

typedef struct carry_dit_train_report {
    int64_t step, steps;
    double loss, rate, norm;
    double videos_per_s, gflops; /* since the last report, of all ranks, without checkpoints and evaluations */
    double memory;               /* bytes that this process holds */
    double left;                 /* seconds */
} carry_dit_train_report;

/* Called on rank 0, except stop, which each rank asks; given alike on every rank. Any may be NULL; nothing is evaluated
   where neither evaluated nor a metric of the sink is there. */
typedef struct carry_dit_train_hooks {
    carry_sink sink;
    bool (*stop)(void);
    void (*started)(void *user, const carry_dit_train_start *start);
    void (*report)(void *user, const carry_dit_train_report *report);
    void (*evaluated)(void *user, int64_t step, const carry_dit_evaluation *evaluation);
    void *user;
    int device;  /* that is trained on, with one rank; 0: the CPU */
    bool resume; /* go on from the newest whole checkpoint in options->out */
} carry_dit_train_hooks;

/* A collective; the options are the same on every rank. CARRY_EINTERRUPTED after Ctrl-C, with everything saved. */
carry_status carry_dit_train_run(carry_comm *comm, const carry_dit_train_options *options,
                                 const carry_dit_train_hooks *hooks);

#endif
