/* The scheduler decides which sequences take part in each step of a runner.

   Requests wait in a bounded queue, first come, first served. A request is admitted when the pool has a slot and all
   pages that it may ever need, so that an admitted sequence can always finish; cached prefixes are evicted for it. A
   step has one token of every sequence that is generating, with its guesses, and pieces of prompts. A piece ends at the
   end of its prompt or at a multiple of CARRY_PAGE_TOKENS tokens of the text, unless the runner reads prompts token by
   token. While texts are generated, pieces are kept small and rare enough that each text keeps at least half of the
   rate that it has without them.

   If the runner overlaps with the host, a step is enqueued before the results of the last one are read. If a sequence
   ends in the meantime, that step has already read its last token, and the result is dropped.

   All functions must be called by one thread. Events are reported by a callback, which may add and cancel requests. */
#ifndef CARRY_ENGINE_SCHEDULER_H
#define CARRY_ENGINE_SCHEDULER_H

#include "engine/sequence.h"

typedef struct carry_scheduler carry_scheduler;

/* A token of a text (result is not NULL), or the end of a request: then the sequence has outcome, status, message and
   counts. state: the handle of the kept state, or 0. */
typedef struct carry_sequence_event {
    const carry_sequence *sequence;
    const carry_run_result *result;
    uint64_t state;
} carry_sequence_event;

typedef struct carry_scheduler_options {
    carry_prefix_options cache;
    int64_t queue;              /* maximum number of waiting requests; 0: 1,024 */
    int64_t texts;              /* maximum number of active requests; 0: the number of runs in a step of the runner. The
                                   other runs are for guesses */
    carry_draft_function draft; /* NULL: none */
    void *draft_user;
    bool heads_draft;     /* the runner guesses instead (runner.h) */
    int64_t draft_tokens; /* maximum number of guesses of a text in a step, up to CARRY_DRAFT_MOST */
    int64_t draft_forced; /* for measurements: this many guesses of a step count as right, whatever was sampled */
    int64_t
        snapshot_every; /* interval of snapshots in a prompt, in tokens: a multiple of CARRY_PAGE_TOKENS; 0: 1,024 */
    /* Prompts with fewer than this many tokens to read are not split before their last block, where the state is
       otherwise cached: it is cached at the end of the prompt instead. On a GPU an additional piece costs more than
       reading a short prompt again. Not used with same_bits. */
    int64_t cut_from;
    bool same_bits; /* texts do not depend on the contents of the cache: no snapshots after sampled tokens */
    double (*clock)(void *user); /* NULL: carry_seconds */
    void (*on_event)(void *user, const carry_sequence_event *event);
    void *user; /* argument of both functions */
} carry_scheduler_options;

/* The runner is borrowed: close it after the scheduler. */
carry_status carry_scheduler_new(carry_ctx *ctx, carry_scheduler **made, carry_runner *runner,
                                 const carry_scheduler_options *options);
/* Active requests end without events. */
void carry_scheduler_free(carry_scheduler *scheduler);

/* Takes over the sequence on success. CARRY_ESIZE: the queue is full. */
carry_status carry_scheduler_add(carry_scheduler *s, carry_sequence *q, uint64_t request);
/* Returns false if the request is unknown or has ended. Its end is reported by this or a later step. */
bool carry_scheduler_cancel(carry_scheduler *scheduler, uint64_t request);
void carry_scheduler_cancel_all(carry_scheduler *scheduler);

/* Runs one step: admits requests, enqueues a step of the runner, reads results. *is_busy: there is more to do. A
   failure of a sequence or of a step ends the requests concerned; the status reports only failures after which nothing
   can continue. */
carry_status carry_scheduler_step(carry_scheduler *scheduler, bool *is_busy);

typedef struct carry_scheduler_stats {
    int64_t waiting, active, states; /* requests, and kept states */
    int64_t slots, free_slots, pages, free_pages;
    int64_t steps, requests, finished, cancelled, failed; /* since the start */
    int64_t prompt_tokens, cached_tokens, written_tokens;
    int64_t drafted_tokens, accepted_tokens; /* guesses */
    carry_prefix_stats cache;
} carry_scheduler_stats;
carry_scheduler_stats carry_scheduler_statistics(const carry_scheduler *scheduler);

/* Kept states, by handle. CARRY_ENOTFOUND: unknown handle. */
carry_status carry_scheduler_state_length(carry_scheduler *scheduler, uint64_t state, int64_t *tokens);
carry_status carry_scheduler_state_fork(carry_scheduler *scheduler, uint64_t state, uint64_t *made);
/* Drops the last `tokens` tokens, at most CARRY_ROLL_BACK. It replays tokens from a snapshot, so the result is
   exact. */
carry_status carry_scheduler_state_roll_back(carry_scheduler *scheduler, uint64_t state, int64_t tokens);
carry_status carry_scheduler_state_save(carry_scheduler *scheduler, uint64_t state, const char *path);
carry_status carry_scheduler_state_load(carry_scheduler *scheduler, uint64_t *made, const char *path);
/* states_move.c, as carry_engine_state_to_host and carry_engine_state_move. */
carry_status carry_scheduler_state_to_host(carry_scheduler *scheduler, uint64_t state);
carry_status carry_scheduler_state_move(carry_scheduler *s, uint64_t state, carry_scheduler *to, uint64_t *made);
carry_status carry_scheduler_state_drop(carry_scheduler *scheduler, uint64_t state);
/* Adds a copy of the state to the cached prefixes. */
carry_status carry_scheduler_state_cache(carry_scheduler *scheduler, uint64_t state);

#endif
