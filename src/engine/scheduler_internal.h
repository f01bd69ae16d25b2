/* Shared by the files of the scheduler. */
#ifndef CARRY_ENGINE_SCHEDULER_INTERNAL_H
#define CARRY_ENGINE_SCHEDULER_INTERNAL_H

#include "engine/scheduler.h"

#define CARRY_FLIGHTS 2

/* A step whose results have not been read. */
typedef struct carry_flight {
    carry_sequence **sequences; /* the sequence of each run */
    bool *wants;                /* whether each run wants a token */
    bool *follows;              /* the run is a guess, for the sequence of the run before */
    int64_t count, writers, prompt_tokens;
    double enqueued, predicted; /* seconds: time of the call, and expected duration */
} carry_flight;

typedef struct carry_kept {
    struct carry_kept *next;
    uint64_t handle;
    carry_track track;
    int64_t singles;     /* tokens from this index on were read one by one */
    unsigned char *host; /* slot and pages in host memory; the track then has neither. NULL: they are on the device */
} carry_kept;

struct carry_scheduler {
    carry_ctx *ctx;
    carry_runner *runner;
    carry_state_pool pool;
    carry_prefix prefix;
    carry_scheduler_options options;
    carry_sequence *first, *last; /* waiting requests */
    carry_sequence **active;
    int64_t active_count;
    int64_t reserved; /* number of pages that active sequences may need */
    carry_kept *states;
    int32_t *kept_owners; /* for each page: the number of kept states that have it */
    int64_t state_pages;  /* number of pages that kept states have */
    uint64_t next_state;
    carry_flight flights[CARRY_FLIGHTS];
    int flight_first, flight_count;
    carry_run *runs;
    carry_run_result *results;
    carry_sequence **guessing; /* texts for which the runner guesses */
    int32_t *guesses;          /* [texts, CARRY_DRAFT_MOST] */
    /* Measured times in seconds: of a step without prompts, and of a token of a prompt. debt: the time by which prompts
       have slowed down texts beyond the half that they may take (scheduler_plan.c). */
    double write_s, token_s, debt, last_result;
    bool has_ended; /* some sequence has ended since the last sweep */
    carry_scheduler_stats stats;
};

double carry_scheduler_now(const carry_scheduler *scheduler);
/* Ends a sequence; it is reported and freed when no step in progress uses it. */
void carry_scheduler_end(carry_scheduler *s, carry_sequence *q, carry_outcome outcome);
/* The same for a failure, with the message of the context. */
void carry_scheduler_fail(carry_scheduler *s, carry_sequence *q, carry_status status);

/* scheduler_admit.c */
void carry_scheduler_admit(carry_scheduler *scheduler);
/* Called after a piece of a prompt was enqueued: copies the reader's state to the requests that wait for it. */
void carry_scheduler_share(carry_scheduler *s, carry_sequence *reader);
/* Lets one of the requests that wait for an ended one read the prompt for the others. */
void carry_scheduler_replace_reader(carry_scheduler *s, const carry_sequence *ended);

/* scheduler_plan.c */
/* Enqueues a step; *count: the number of its runs, 0 if there is nothing to enqueue now. */
void carry_scheduler_enqueue(carry_scheduler *scheduler, int64_t *count);
void carry_scheduler_learn(carry_scheduler *scheduler, const carry_flight *flight); /* updates the measured times from
                                                                                       its duration */

/* The run of a sequence; adds it to a step. */
carry_run carry_scheduler_run_of(const carry_sequence *q, const int32_t *ids, int64_t count, bool wants);
void carry_scheduler_add_run(carry_scheduler *s, carry_sequence *q, carry_flight *f, const int32_t *ids, int64_t count,
                             bool wants);
/* True if a text cannot take part in a step before a pending result is read. */
bool carry_scheduler_waits(const carry_scheduler *s, const carry_sequence *q);

/* scheduler_draft.c */
bool carry_scheduler_is_drafted(const carry_scheduler *s, const carry_sequence *q); /* true if the text gets guesses */
/* Finds guesses for the tokens after the last one of each text. */
void carry_scheduler_find_drafts(carry_scheduler *s);
/* Adds the last token of a text and the guesses after it, as far as there are slots for their states. */
void carry_scheduler_add_drafted(carry_scheduler *s, carry_sequence *q, carry_flight *f);
/* Frees the slots of the sequence's guesses. */
void carry_scheduler_drop_drafts(carry_scheduler *s, carry_sequence *q);

/* states.c */
carry_kept *carry_scheduler_state(const carry_scheduler *scheduler, uint64_t handle); /* or NULL */
/* Makes the track of a sequence a kept state and returns its handle, or 0 if memory is short. */
uint64_t carry_scheduler_keep(carry_scheduler *scheduler, carry_track *track, int64_t singles);
/* Counts the pages of a track as pages of a kept state (more = 1), or no longer (-1). */
void carry_scheduler_count_pages(carry_scheduler *s, const carry_track *track, int more);
/* states_move.c: moves a state back to the device if it is in host memory. */
carry_status carry_scheduler_to_device(carry_scheduler *s, carry_kept *kept);
int64_t carry_scheduler_host_pages(const carry_scheduler *s,
                                   const carry_kept *kept); /* number of pages that this takes */
/* Reads all outstanding results, so that the runner can be used outside of the schedule. */
carry_status carry_scheduler_drain(carry_scheduler *scheduler);
void carry_scheduler_free_states(carry_scheduler *scheduler);

#endif
