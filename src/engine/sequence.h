/* A text in progress: its tokens, its state in the pool, its options.

   A track is a list of tokens and the state after the first `length` of them. Sequences have a track, and so do states
   that are kept after their text has ended (states.c). Pages of a track may be shared with other tracks and with cached
   prefixes: if the last page is shared, carry_track_extend copies it before a step writes to it. */
#ifndef CARRY_ENGINE_SEQUENCE_H
#define CARRY_ENGINE_SEQUENCE_H

#include "engine/draft.h"
#include "engine/prefix.h"

#define CARRY_ROLL_BACK 16 /* maximum number of tokens by which a kept state can be rolled back */
#define CARRY_TRACK_ANCHORS 2

typedef struct carry_track {
    int32_t *ids;
    int64_t count, room; /* number of tokens; those from `length` on have not been read */
    int64_t length;      /* may be count + 1 while a sampled token is not yet known */
    int32_t slot;
    int32_t *pages;
    int64_t page_count, page_room;
    /* Snapshots for rolling back, the older first. After an anchor, tokens were read one by one. */
    int32_t anchor[CARRY_TRACK_ANCHORS];
    int64_t anchor_length[CARRY_TRACK_ANCHORS];
} carry_track;

#define CARRY_TRACK_EMPTY                                                       \
    {                                                                           \
        .slot = CARRY_POOL_NONE, .anchor = { CARRY_POOL_NONE, CARRY_POOL_NONE } \
    }

carry_status carry_track_append(carry_ctx *ctx, carry_track *track, const int32_t *ids, int64_t count);
/* Makes sure that there are pages for `more` tokens after `length`, and that no page from that of `length` on is
   shared. */
carry_status carry_track_extend(carry_prefix *prefix, carry_track *track, int64_t more);
/* Reserves memory for the page numbers of `length` tokens. */
carry_status carry_track_reserve(carry_ctx *ctx, carry_track *track, const carry_runner_sizes *sizes, int64_t length);
/* Copies the tokens and the state of `from` to `to`, which must be empty and have a slot. On failure `to` has only the
   slot. */
carry_status carry_track_fork(carry_prefix *prefix, carry_track *to, const carry_track *from);
/* Stores a snapshot of the current state, if a slot is free. */
void carry_track_anchor(carry_prefix *prefix, carry_track *track);
void carry_track_drop_anchors(carry_state_pool *pool, carry_track *track,
                              int64_t after); /* drops those after this length */
void carry_track_cut_pages(carry_state_pool *pool, carry_track *track,
                           int64_t length); /* drops those after this length */
void carry_track_close(carry_state_pool *pool, carry_track *track);

typedef enum carry_phase { CARRY_PHASE_WAITS, CARRY_PHASE_READS, CARRY_PHASE_WRITES, CARRY_PHASE_ENDED } carry_phase;

typedef enum carry_outcome {
    CARRY_OUTCOME_NONE,
    CARRY_OUTCOME_LENGTH,  /* it has the number of tokens that was asked for */
    CARRY_OUTCOME_TOKEN,   /* a token that ends the text */
    CARRY_OUTCOME_CONTEXT, /* the context is full */
    CARRY_OUTCOME_CANCELLED,
    CARRY_OUTCOME_FAILED, /* status and message tell why */
} carry_outcome;

typedef struct carry_sequence_options {
    const int32_t *ids;
    int64_t count;
    int64_t tokens; /* maximum number; 0: the prompt is read and nothing is sampled */
    carry_sampling sampling;
    uint64_t stream;         /* as in carry_sample */
    const uint32_t *allowed; /* as in carry_run; borrowed until the sequence ends */
    const int32_t *ends;
    int64_t end_count;
    int logprobs;               /* as in carry_run */
    uint64_t state;             /* a kept state to continue from; 0: none */
    uint64_t shares;            /* a request with the same prompt, which is read once for both; 0: none */
    bool keeps;                 /* keep its state when it ends */
    bool is_uncached;           /* does not use cached prefixes and adds none */
    bool is_undrafted;          /* its tokens are not guessed */
    void *user;                 /* for events */
    double frequency, presence; /* penalties for tokens of the text */
    const int64_t *bias_ids;    /* tokens to whose logits `biases` are added */
    const float *biases;
    int64_t bias_count;
    bool (*constrain)(void *constraint, int64_t last, uint32_t *allowed); /* as in carry/engine.h; may be NULL */
    void *constraint;
} carry_sequence_options;

typedef struct carry_sequence {
    struct carry_sequence *next; /* next waiting request */
    uint64_t request;
    carry_phase phase;
    carry_track track;
    carry_sequence_options options; /* ids, ends and biases are not kept here, but copied to the fields below: */
    int32_t *ends;
    float *bias;            /* [vocabulary]: biases minus penalties; NULL: none */
    unsigned char *is_used; /* with a presence penalty: one bit per token, set if it is in the text */
    uint32_t *mask;         /* with a constraint: the tokens that may be sampled next */
    int64_t mask_words;
    int32_t last;           /* last token of the text; -1: none */
    uint32_t *seen;         /* with a repetition penalty: each token of the prompt and the text, once */
    unsigned char *is_seen; /* one bit for each token of the vocabulary: set if it is in `seen` */
    int64_t seen_count;
    int64_t before;                /* tokens of the kept state */
    int64_t prompt_end;            /* tokens before the text */
    int64_t cached;                /* number of tokens that were not read because a cached prefix had them */
    int64_t branch;                /* number of tokens shared with another prompt, after which a snapshot is taken; 0:
                                      none */
    struct carry_sequence *reader; /* the sequence that reads the prompt for this one, which waits; NULL: none */
    bool has_followers;            /* other sequences wait for its prompt */
    int64_t page_limit;            /* maximum number of pages that it may need */
    int64_t written;               /* tokens of the text */
    bool is_planned;               /* the current planning of a step has considered its prompt */
    int in_flight;                 /* number of steps whose results have not been read */
    int pending;                   /* number of those that sample a token of this sequence */
    /* Guesses of the current step, and the slots for the states after them. */
    int32_t draft[CARRY_DRAFT_MOST], draft_slot[CARRY_DRAFT_MOST];
    int64_t found, draft_count; /* guesses that were found, and those that have slots */
    int64_t drafted, accepted;  /* total guesses, and accepted ones */
    /* A step with it failed, or gave logits that are not numbers: its state is not kept, and what was cached on the way
       to it is dropped. */
    bool is_doubtful;
    carry_outcome outcome;
    carry_status status; /* status of a failure; message is its text */
    char message[256];
    double submitted, started, first, ended; /* seconds; started: the first step */
} carry_sequence;

/* Checks all options against the sizes; CARRY_ERANGE, CARRY_EARGUMENT and CARRY_ESIZE name the wrong option. It can be
   called from any thread, with a context of that thread. */
carry_status carry_sequence_new(carry_ctx *ctx, carry_sequence **made, const carry_runner_sizes *sizes,
                                const carry_sequence_options *options);
/* Its track must have been closed, or must never have had slots and pages. */
void carry_sequence_free(carry_sequence *sequence);
/* sequence_rules.c: sets up penalties, biases and the constraint, from options that were checked and copied. */
carry_status carry_sequence_open_rules(carry_ctx *ctx, carry_sequence *sequence, int64_t vocabulary,
                                       const carry_sequence_options *options);
void carry_sequence_close_rules(carry_sequence *sequence);
/* Adds a token of the text to penalties and constraint. */
void carry_sequence_note(carry_sequence *sequence, int32_t id);
/* Gets the tokens that may be sampled next, as `allowed` of carry_run, by calling the constraint. Returns false if the
   constraint does: it allows no token or exceeds its bound of work. */
bool carry_sequence_allow(carry_sequence *sequence, const uint32_t **allowed);
/* True if sampling needs the last token in addition to the logits. */
bool carry_sequence_needs_last(const carry_sequence *sequence);
/* The position where the last block of the prompt begins: states are shared and cached there. 0 for prompts of fewer
   than 128 tokens. */
int64_t carry_sequence_last_block(const carry_sequence *sequence);
bool carry_sequence_ends_with(const carry_sequence *sequence, int32_t id);

#endif
