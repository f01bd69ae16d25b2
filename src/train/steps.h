/* The training loop, for any model:

       data of a step -> gradients -> sum over ranks -> clip -> AdamW -> weights to all ranks

   with reports, evaluations and checkpoints in between. The model provides these as functions (carry_trainee); the loop
   owns the optimizer, the schedule, the folder of the run and the step counter.

   A step whose loss or gradients are not finite is skipped: it changes neither the weights nor the state of the
   optimizer, and is counted and reported. More than skip_limit such steps in a row end the run: the state before the
   first is saved, and the error message names the first tensor that was not finite. An interrupted run finishes its
   step and saves. On the CPU, and with several ranks, the loss of every step is read and added over ranks before the
   weights change. On a GPU with one rank a step waits for nothing: it is one recorded graph if the trainee has a key,
   the device itself skips steps that are not finite, and after too many in a row it changes nothing more. The host
   notices when it reads the losses: for a report, an evaluation or a checkpoint, and at least every CARRY_STEPS_LAG
   steps. */
#ifndef CARRY_TRAIN_STEPS_H
#define CARRY_TRAIN_STEPS_H

#include "carry/device.h"
#include "core/sink.h"
#include "train/checkpoint.h"
#include "train/keys.h"
#include "train/optimizer.h"
#include "train/schedule.h"

#define CARRY_STEPS_SUMS 3 /* of a step: sum and count of the loss, squares of gradients */
#define CARRY_STEPS_LAG 64

typedef struct carry_steps_report {
    int64_t step, steps, seen;
    double loss, mean; /* of the newest step; mean over the steps since the last report */
    double rate, norm;
    double seconds;               /* of the steps since the last report */
    int64_t since;                /* number of steps since the last report */
    double left;                  /* seconds */
    int64_t skipped, skipped_all; /* skipped steps since the last report, and since the start */
} carry_steps_report;

typedef struct carry_trainee {
    const char *resume; /* the command that resumes: "carry train --resume" */
    bool evaluates_at_end;
    void (*before)(void *self, bool is_end); /* called before each step, and after the last. NULL: nothing to do */
    /* Gets the data of the next step; *after: the position of the step after it. */
    carry_status (*next)(void *self, carry_position *after);
    /* Computes the gradients, which are zero on entry, and the loss: its sum and the count by which it is divided go to
       total ([2], f64, on the device of the parameters). ready is passed to the pass, or is NULL. */
    carry_status (*gradients)(void *self, carry_tensor total, carry_status (*ready)(void *, int64_t, int64_t),
                              void *user);
    /* A key for the recording of `gradients`: steps with the same key can replay the same recording; 0: do not record
       this step. Called after next; data must be at the same addresses in every step. NULL: never recorded. */
    uint64_t (*key)(void *self);
    /* Called after the step is enqueued, to prepare the data of the next one meanwhile; a failure is reported by next.
       NULL: nothing to do. */
    void (*ahead)(void *self);
    /* Called after a step whose loss or gradients were not finite: writes where the first NaN was found, or an empty
       text. NULL: not known. */
    carry_status (*explain)(void *self, char *text, size_t size);
    carry_status (*stepped)(void *self);                          /* the weights changed. NULL: nothing to do */
    void (*report)(void *self, const carry_steps_report *report); /* called on rank 0 */
    carry_status (*evaluate)(void *self);                         /* called on all ranks; checks carry_steps_stop */
    void (*saved)(void *self, const char *folder);                /* on rank 0. NULL: nothing to do */
    /* Fills in the trainee's part of a checkpoint: model, tokenizer, source. Called on rank 0. */
    carry_status (*describe)(const void *self, carry_checkpoint *checkpoint);
} carry_trainee;

/* The position of a run before a step. */
typedef struct carry_steps_place {
    int64_t step, seen;
    carry_position position;
} carry_steps_place;

typedef struct carry_steps {
    carry_ctx *ctx;
    carry_comm *comm;
    carry_comm *moving; /* with several ranks on a GPU: a communicator based on comm for device memory; else NULL */
    const carry_trainee *trainee;
    void *self;
    /* Set from the options: */
    const char *out;
    int64_t log_every, eval_every;
    int64_t save_every, keep;    /* save_every 0: only if the run is interrupted or fails */
    int64_t skip_limit;          /* maximum number of consecutive non-finite steps that are skipped */
    bool no_graph;               /* launch the work of each step piece by piece */
    const carry_train_key *keys; /* keys of the options, for checkpoints */
    const void *options;
    bool (*stop)(void); /* may be NULL */
    const carry_sink *sink;
    carry_schedule schedule;
    carry_tensor scales;      /* of products in 8-bit floats, [n, numbers], f32, saved in checkpoints; absent: none */
    int64_t seen_each;        /* tokens, or other units, per step */
    double flops, items_each; /* of this rank's part of a step, for spans; 0: unknown */
    /* Fields of the loop: */
    bool speaks; /* rank 0 */
    carry_parameters *own;
    carry_optimizer *optimizer;
    carry_run_folder folder;
    carry_found found; /* the checkpoint from which the run resumes; step -1: none */
    float *gathered;   /* m and v of the whole model in host memory, on rank 0 */
    int64_t step, seen;
    carry_position position; /* position of the step after `step` */
    double spent;            /* seconds spent in steps since the start */
    int64_t done;            /* steps since the start */
    double rate, loss, norm; /* of the newest step that was read and finite */
    carry_tensor sums; /* [lag + 1, CARRY_STEPS_SUMS], f64, on the device of the parameters; the last row is for the
                          current step */
    int64_t lag;       /* maximum number of steps whose sums are unread. Set before open; 0: 1 on the CPU, else the
                          maximum */
    int64_t unread;
    carry_steps_place before[CARRY_STEPS_LAG];
    bool was_stopped;     /* stopped inside an evaluation, on all ranks */
    carry_stream *stream; /* made for the context on a GPU; NULL: none was made */
    carry_graph *graph;   /* recording of a step; NULL: none yet */
    uint64_t graph_key, last_key;
    int64_t skipped, bad_in_row;
    carry_steps_place first_bad; /* the position before the first of them */
} carry_steps;

/* Call it first; after it the loop can be closed. out and sink must outlive s. */
void carry_steps_init(carry_steps *s, carry_comm *comm, const char *out, const carry_sink *sink);
/* Finds the newest complete checkpoint if `resume`: rank 0 looks for it, and all ranks use the same. */
carry_status carry_steps_find(carry_steps *s, bool resume);
/* Call it next, with a model that has gradients, after all fields that are not the loop's own are set. It makes the
   optimizer and then, last, the folder, so that a failure leaves no folder behind. */
carry_status carry_steps_open(carry_steps *s, carry_parameters *own, const carry_optimizer_options *adam);
/* Runs the remaining steps. A collective. CARRY_EINTERRUPTED after a stop, with everything saved. */
carry_status carry_steps_run(carry_steps *s);
void carry_steps_close(carry_steps *s); /* call it before the model is freed */

/* Asks whether the run should stop. A collective, so that all ranks stop at the same point; was_stopped stores the
   result. */
carry_status carry_steps_stop(carry_steps *s, bool *stop);

/* Rank 0 runs `work` and sends heartbeats while the others wait (comm/alone.h); all ranks get its status. */
carry_status carry_steps_alone(carry_steps *s, carry_status (*work)(void *user), void *user, const char *what);

#endif
