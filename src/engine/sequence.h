/* A text under way: its tokens, its state in the pool, its options.

   A track is a list of tokens and the state after the first `length` of them. A sequence has a track; so has a state
   that is kept after its text has ended (engine/states.h). Pages of a track may be shared with other tracks and with
   cached prefixes: carry_track_extend copies the last page before a step writes to it, if it is shared. */
#ifndef CARRY_ENGINE_SEQUENCE_H
#define CARRY_ENGINE_SEQUENCE_H

#include "engine/draft.h"
#include "engine/prefix.h"

#define CARRY_ROLL_BACK 16 /* tokens that a kept state can go back, at most */
#define CARRY_TRACK_ANCHORS 2

typedef struct carry_track {
    int32_t *ids;
    int64_t count, room; /* tokens; those from `length` on were not read yet */
    int64_t length;      /* may be one more than count while a sampled token is not known yet */
    int32_t slot;
    int32_t *pages;
    int64_t page_count, page_room;
    /* Snapshots to roll back to, the older first. From anchors on, tokens were read one by one. */
    int32_t anchor[CARRY_TRACK_ANCHORS];
    int64_t anchor_length[CARRY_TRACK_ANCHORS];
} carry_track;

#define CARRY_TRACK_EMPTY                                                       \
    {                                                                           \
        .slot = CARRY_POOL_NONE, .anchor = { CARRY_POOL_NONE, CARRY_POOL_NONE } \
    }

carry_status carry_track_append(carry_ctx *ctx, carry_track *track, const int32_t *ids, int64_t count);
/* Pages for `more` tokens after `length`, owned by this track alone from the page of `length` on. */
carry_status carry_track_extend(carry_prefix *prefix, carry_track *track, int64_t more);
/* Makes room for the page numbers of `length` tokens. */
carry_status carry_track_reserve(carry_ctx *ctx, carry_track *track, const carry_runner_sizes *sizes, int64_t length);
/* `to` is empty and has a slot: it gets the tokens and the state of `from`. On failure it keeps the slot alone. */
carry_status carry_track_fork(carry_prefix *prefix, carry_track *to, const carry_track *from);
/* Remembers the state as it is now, if there is a slot for that. */
void carry_track_anchor(carry_prefix *prefix, carry_track *track);
void carry_track_drop_anchors(carry_state_pool *pool, carry_track *track, int64_t after); /* those after this length */
void carry_track_cut_pages(carry_state_pool *pool, carry_track *track, int64_t length);   /* those after this length */
void carry_track_close(carry_state_pool *pool, carry_track *track);

typedef enum carry_phase { CARRY_PHASE_WAITS, CARRY_PHASE_READS, CARRY_PHASE_WRITES, CARRY_PHASE_ENDED } carry_phase;

typedef enum carry_outcome {
    CARRY_OUTCOME_NONE,
    CARRY_OUTCOME_LENGTH,  /* as many tokens as were asked for */
    CARRY_OUTCOME_TOKEN,   /* a token that ends texts */
    CARRY_OUTCOME_CONTEXT, /* the context is full */
    CARRY_OUTCOME_CANCELLED,
    CARRY_OUTCOME_FAILED, /* status and message tell why */
} carry_outcome;

typedef struct carry_sequence_options {
    const int32_t *ids;
    int64_t count;
    int64_t tokens; /* at most; 0: the prompt is read and nothing is sampled */
    carry_sampling sampling;
    uint64_t stream;         /* as in carry_sample */
    const uint32_t *allowed; /* as in carry_run; borrowed until the sequence ends */
    const int32_t *ends;
    int64_t end_count;
    int logprobs;               /* as in carry_run */
    uint64_t state;             /* a kept state that it goes on from; 0: none */
    uint64_t shares;            /* a request with the same prompt, which is read once for both; 0: none */
    bool keeps;                 /* its state is kept at its end */
    bool is_uncached;           /* uses no cached prefix and leaves none */
    bool is_undrafted;          /* its tokens are not guessed */
    void *user;                 /* for events */
    double frequency, presence; /* penalties of tokens of the text */
    const int64_t *bias_ids;    /* tokens whose logits get `biases` added */
    const float *biases;
    int64_t bias_count;
    bool (*constrain)(void *constraint, int64_t last, uint32_t *allowed); /* as in carry/engine.h; may be NULL */
    void *constraint;
} carry_sequence_options;

typedef struct carry_sequence {
    struct carry_sequence *next; /* of those that wait */
    uint64_t request;
    carry_phase phase;
    carry_track track;
    carry_sequence_options options; /* ids, ends and biases are not kept: */
    int32_t *ends;
    float *bias;            /* [vocabulary]: biases, less penalties; NULL: none */
    unsigned char *is_used; /* with a presence penalty: a bit for each token of the text */
    uint32_t *mask;         /* with a constraint: the tokens that may be sampled next */
    int64_t mask_words;
    int32_t last;           /* token of the text; -1: none */
    uint32_t *seen;         /* with a repetition penalty: each token of the prompt and the text, once */
    unsigned char *is_seen; /* a bit for each token of the vocabulary: whether it is in seen */
    int64_t seen_count;
    int64_t before;                /* tokens of the kept state */
    int64_t prompt_end;            /* tokens before the text */
    int64_t cached;                /* tokens that were not read, since a cached prefix had them */
    int64_t branch;                /* tokens shared with another prompt, where a snapshot is taken; 0: none */
    struct carry_sequence *reader; /* reads the prompt for this one too, which waits; NULL: none */
    bool has_followers;            /* is the reader of others */
    int64_t page_limit;            /* pages that it can need, at most */
    int64_t written;               /* tokens of the text */
    bool is_planned;               /* the step that is being planned has considered its prompt */
    int in_flight;                 /* steps whose results were not read */
    int pending;                   /* of them, those that sample a token of this sequence */
    /* Guesses of the step under way, and the slots that they leave their states in. */
    int32_t draft[CARRY_DRAFT_MOST], draft_slot[CARRY_DRAFT_MOST];
    int64_t draft_count;
    int64_t drafted, accepted; /* guesses, in all */
    carry_outcome outcome;
    carry_status status; /* of a failure, with */
    char message[256];
    double submitted, started, first, ended; /* seconds; started: the first step */
} carry_sequence;

/* Checks all options against the sizes; CARRY_ERANGE, CARRY_EARGUMENT or CARRY_ESIZE names what is wrong. Can be called
   from any thread, with a context of that thread. */
carry_status carry_sequence_new(carry_ctx *ctx, carry_sequence **made, const carry_runner_sizes *sizes,
                                const carry_sequence_options *options);
/* Its track must have been closed, or never have had slots and pages. */
void carry_sequence_free(carry_sequence *sequence);
/* sequence_rules.c: penalties, biases and the constraint, from checked and copied options. */
carry_status carry_sequence_open_rules(carry_ctx *ctx, carry_sequence *sequence, int64_t vocabulary,
                                       const carry_sequence_options *options);
void carry_sequence_close_rules(carry_sequence *sequence);
/* A token of the text, for penalties and the constraint. */
void carry_sequence_note(carry_sequence *sequence, int32_t id);
/* The tokens that may be sampled next, as `allowed` of carry_run; asks the constraint. False: it failed. */
bool carry_sequence_allow(carry_sequence *sequence, const uint32_t **allowed);
/* True if sampling depends on the last token other than through the logits. */
bool carry_sequence_needs_last(const carry_sequence *sequence);
/* Where the last block of the prompt begins: states are shared and cached there. 0 for prompts of less than 128 tokens.
 */
int64_t carry_sequence_last_block(const carry_sequence *sequence);
bool carry_sequence_ends_with(const carry_sequence *sequence, int32_t id);

#endif
