/* Steps of a model for sequences whose states are in a pool.

   A pool has slots and pages, both made once, when the runner is opened. A slot holds the recurrent part of one
   sequence's state: convolution tails and states of the delta rule. A page holds the keys and values of
   CARRY_PAGE_TOKENS tokens in all attention layers. A sequence names its slot and its pages in every step; the caller
   manages their ownership (engine/pool.h). Snapshots and cached prefixes are slots and pages too.

   A step reads some tokens of each of its sequences: pieces of prompts and single tokens side by side. A sequence whose
   next token is wanted gets it by its own sampling. Steps are put into the device's stream in order; results are read
   later with carry_runner_results, so that a step can be enqueued before the results of the one before it are known. */
#ifndef CARRY_ENGINE_RUNNER_H
#define CARRY_ENGINE_RUNNER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "carry/context.h"
#include "engine/sample.h"

#define CARRY_PAGE_TOKENS 64
#define CARRY_RUN_LOGPROBS 20 /* log probabilities of the likeliest tokens, at most */

/* Sizes that a runner has for its whole life. */
typedef struct carry_runner_sizes {
    int64_t slots;      /* recurrent states */
    int64_t pages;      /* 0 for a model without attention */
    int64_t sequences;  /* runs of one step, at most */
    int64_t tokens;     /* of one step, all sequences together, at most; at least `sequences` */
    int64_t context;    /* tokens of one sequence, at most */
    int64_t vocabulary; /* ids are below it */
    size_t slot_bytes, page_bytes;
} carry_runner_sizes;

/* One sequence in a step. Before the step its slot and pages hold the state after `length` tokens; after it, after
   length + count. */
typedef struct carry_run {
    int32_t slot;
    const int32_t *pages; /* at least (length + count + CARRY_PAGE_TOKENS - 1) / CARRY_PAGE_TOKENS of them, all its own
                             from page length / CARRY_PAGE_TOKENS on */
    int64_t length;
    const int32_t *ids; /* [count]; NULL with count 1: the token that the last step of this slot has sampled */
    int64_t count;
    bool wants_token;       /* the next one, sampled after the last of these tokens */
    const int32_t *targets; /* for a runner that scores: [count], the token that comes after each; -1: not counted */
    /* One token that comes after that of the run before this one in the step, which has one token too, with the same
       pages. Its state goes on from that run's and is left in this run's slot; so both remain, and whether the token
       was right can be decided later. */
    bool follows;
    /* Where wants_token. The token is a function of the logits, these options and `at`. */
    const carry_sampling *sampling;
    uint64_t stream, at;  /* as in carry_sample */
    const uint32_t *seen; /* tokens for the repetition penalty, each once */
    int64_t seen_count;
    const uint32_t *allowed; /* bit i of word i / 32: token i may be sampled. NULL: all may */
    const float *bias;       /* [vocabulary], added to the logits. NULL: none */
    int logprobs;            /* how many of the likeliest tokens are asked for; -1: not even the sampled one's */
} carry_run;

typedef struct carry_run_result {
    int32_t token;  /* -1: none was wanted */
    bool is_failed; /* NaN, plus infinity or no token that may be taken: the sequence cannot go on */
    float logprob;  /* of the token, before temperature and filters */
    int32_t top[CARRY_RUN_LOGPROBS];
    float top_logprob[CARRY_RUN_LOGPROBS];
} carry_run_result;

typedef struct carry_runner carry_runner;

/* The operations of a runner. model_runner.c has those of a model on a device; tests have a small one of their own. */
typedef struct carry_runner_ops {
    void (*close)(carry_runner *runner);
    /* Enqueues a step. Pointers in `runs` are borrowed for the call alone. A failure before anything ran leaves all
       states as they were. */
    carry_status (*step)(carry_runner *runner, const carry_run *runs, int64_t count);
    /* The results of the oldest step whose results were not read, in the order of its runs. Waits for it. */
    carry_status (*results)(carry_runner *runner, carry_run_result *results, int64_t count);
    /* Instead of results, for a runner that scores: the sum of -ln p over the targets of each run. */
    carry_status (*scores)(carry_runner *runner, double *losses, int64_t count);
    carry_status (*clear_slot)(carry_runner *runner, int32_t slot); /* no tokens read */
    carry_status (*copy_slot)(carry_runner *runner, int32_t to, int32_t from);
    carry_status (*copy_page)(carry_runner *runner, int32_t to, int32_t from);
    /* To and from host memory: slot_bytes and page_bytes. They wait. */
    carry_status (*read_slot)(carry_runner *runner, void *to, int32_t slot);
    carry_status (*write_slot)(carry_runner *runner, int32_t slot, const void *from);
    carry_status (*read_page)(carry_runner *runner, void *to, int32_t page);
    carry_status (*write_page)(carry_runner *runner, int32_t page, const void *from);
    /* A hash of configuration and weights: states of models with another hash are refused. */
    carry_status (*hash)(carry_runner *runner, uint64_t *hash);
} carry_runner_ops;

/* The head of every runner. */
struct carry_runner {
    const carry_runner_ops *ops;
    carry_ctx *ctx;
    carry_runner_sizes sizes;
    bool overlaps; /* steps run beside the host: the next one should be enqueued before the results of the last are
                      read. False where a step is done when it returns (the CPU) */
};

#endif
