/* Steps of a model for sequences whose states are in a pool.

   A pool has slots and pages, which are allocated when the runner is opened. A slot holds the recurrent part of one
   sequence's state: the previous inputs of convolutions and the states of the delta rule. A page holds the keys and
   values of CARRY_PAGE_TOKENS tokens in all attention layers. A sequence names its slot and its pages in every step;
   the caller manages their ownership (engine/pool.h). Snapshots and cached prefixes are slots and pages too.

   A step reads some tokens of each of its sequences: pieces of prompts and single tokens together. If the next token of
   a sequence is wanted, it is sampled with the sequence's own options. Steps are enqueued in the device's stream in
   order; results are read later (carry_runner_ops.results), so that a step can be enqueued before the results of the
   previous one are known. */
#ifndef CARRY_ENGINE_RUNNER_H
#define CARRY_ENGINE_RUNNER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "carry/context.h"
#include "engine/sample.h"

#define CARRY_PAGE_TOKENS 64
#define CARRY_RUN_LOGPROBS 20 /* maximum number of likeliest tokens with log probabilities */

/* Sizes that are fixed for the lifetime of a runner. */
typedef struct carry_runner_sizes {
    int64_t slots;      /* recurrent states */
    int64_t pages;      /* 0 for a model without attention */
    int64_t sequences;  /* maximum number of runs in a step */
    int64_t tokens;     /* maximum number of tokens in a step, over all sequences; at least `sequences` */
    int64_t context;    /* maximum number of tokens of one sequence */
    int64_t vocabulary; /* ids are below it */
    size_t slot_bytes, page_bytes;
    /* Names of the types of keys and values and of states ("fp8"), for files of states; "none": the model has no such
       part; NULL: not known. */
    const char *kv_type, *state_type;
} carry_runner_sizes;

/* One sequence in a step. Before the step its slot and pages hold the state after `length` tokens, after it the state
   after length + count tokens. */
typedef struct carry_run {
    int32_t slot;
    const int32_t *pages; /* at least (length + count + CARRY_PAGE_TOKENS - 1) / CARRY_PAGE_TOKENS pages; from page
                             length / CARRY_PAGE_TOKENS on, no other owner may share them */
    int64_t length;
    const int32_t *ids; /* [count]; NULL with count 1: the token that the last step of this slot sampled */
    int64_t count;
    bool wants_token;       /* sample the next token, after the last of these */
    const int32_t *targets; /* for a runner that scores: [count], the token that follows each; -1: not counted */
    /* This run has one token, which follows that of the previous run of the step (also one token, with the same pages).
       Its state continues from that run's and is stored in this run's slot. Both states remain, so that the caller can
       decide later whether the token was right. */
    bool follows;
    /* Used if wants_token. The token depends only on the logits and the fields from here to `bias`. */
    const carry_sampling *sampling;
    uint64_t stream, at;  /* as in carry_sample */
    const uint32_t *seen; /* tokens for the repetition penalty, each once */
    int64_t seen_count;
    const uint32_t *allowed; /* bit i of word i / 32: token i may be sampled. NULL: all may */
    const float *bias;       /* [vocabulary], added to the logits. NULL: none */
    int logprobs;            /* number of likeliest tokens to report; -1: not even the log probability of the sampled
                                one */
} carry_run;

typedef struct carry_run_result {
    int32_t token;  /* -1: none was wanted, or is_failed */
    bool is_failed; /* the logits have NaN or plus infinity, or allow no token: the sequence cannot continue */
    float logprob;  /* log probability of the token, before temperature and filters */
    int32_t top[CARRY_RUN_LOGPROBS];
    float top_logprob[CARRY_RUN_LOGPROBS];
} carry_run_result;

typedef struct carry_runner carry_runner;

/* The operations of a runner. model_runner.c implements them for a model on a device; tests have their own small
   runner. */
typedef struct carry_runner_ops {
    void (*close)(carry_runner *runner);
    /* Enqueues a step. Pointers in `runs` are used only during the call. On failure the states of the runs are
       unchanged, unless has_begun is set. */
    carry_status (*step)(carry_runner *runner, const carry_run *runs, int64_t count);
    /* Gets the results of the oldest step whose results have not been read, in the order of its runs. Waits for it. */
    carry_status (*results)(carry_runner *runner, carry_run_result *results, int64_t count);
    /* Instead of results, for a runner that scores: gets the sum of -ln p over the targets of each run. */
    carry_status (*scores)(carry_runner *runner, double *losses, int64_t count);
    carry_status (*clear_slot)(carry_runner *runner, int32_t slot); /* to a state without tokens */
    carry_status (*copy_slot)(carry_runner *runner, int32_t to, int32_t from);
    carry_status (*copy_page)(carry_runner *runner, int32_t to, int32_t from);
    /* Copy to and from host memory: slot_bytes or page_bytes. They wait for the copy. */
    carry_status (*read_slot)(carry_runner *runner, void *to, int32_t slot);
    carry_status (*write_slot)(carry_runner *runner, int32_t slot, const void *from);
    carry_status (*read_page)(carry_runner *runner, void *to, int32_t page);
    carry_status (*write_page)(carry_runner *runner, int32_t page, const void *from);
    /* A hash of configuration and weights: states of a model with another hash are refused. */
    carry_status (*hash)(carry_runner *runner, uint64_t *hash);
    /* Guesses the `most` tokens after each of `count` runs, which have one token each and whose ids are not NULL:
       guesses[i * most] is the first for run i. States do not change. The pages of a run must be enough for length +
       most tokens. NULL, or CARRY_EUNSUPPORTED: the runner does not guess. */
    carry_status (*draft)(carry_runner *runner, const carry_run *runs, int64_t count, int64_t most, int32_t *guesses);
    /* After a run that failed: gets the first layer in which the scores of a router of experts were NaN since the last
       call, or -1. NULL: not known. */
    carry_status (*router_nan)(carry_runner *runner, int64_t *layer);
} carry_runner_ops;

/* Writes why logits may not be finite: ": the router's scores are NaN in layer 3", or an empty text. */
void carry_runner_explain(carry_runner *runner, char *text, size_t size);

/* The first member of every runner. */
struct carry_runner {
    const carry_runner_ops *ops;
    carry_ctx *ctx;
    carry_runner_sizes sizes;
    bool overlaps; /* steps run asynchronously: the next one should be enqueued before the results of the last are read.
                      False if a step is done when it returns (on the CPU) */
    bool reads_singly; /* a step reads prompts token by token, so a piece may end at any token */
    bool has_begun;    /* the last step has begun to change the states of its runs */
};

#endif
