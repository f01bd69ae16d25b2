/* Constraints that cursors share. */
#ifndef CARRY_TOKENIZER_CONSTRAINT_INSIDE_H
#define CARRY_TOKENIZER_CONSTRAINT_INSIDE_H

#include <pthread.h>

#include "tokenizer/constraint/automaton.h"
#include "tokenizer/constraint/constraint.h"
#include "tokenizer/constraint/vocabulary.h"

/* The tokens that a state allows. */
typedef struct carry_state_mask {
    uint32_t state; /* 0: free */
    uint32_t *bits;
} carry_state_mask;

typedef struct carry_constraint {
    pthread_mutex_t lock; /* guards all fields below except users and used_at */
    carry_automaton *automaton;
    const carry_vocabulary *vocabulary;
    carry_state_mask *mask; /* a hash table by state number */
    uint32_t masks, mask_count;
    uint32_t epoch;    /* the automaton's epoch for which the masks are valid */
    uint32_t *reached; /* workspace: the states along a path of the vocabulary, [CARRY_VOCABULARY_DEPTH + 1] */
    carry_constraint_kind kind;
    char *text;
    size_t length;
    int64_t users;    /* the number of cursors, plus one for the cache */
    uint64_t used_at; /* set by the cache; larger is more recent */
} carry_constraint;

/* constraint_cache.c. Finds or makes the constraint of a text; the caller releases it. */
carry_status carry_constraint_get(carry_ctx *ctx, carry_constraint **found, const carry_tokenizer *tokenizer,
                                  carry_constraint_kind kind, const char *text, size_t length);
void carry_constraint_release(const carry_tokenizer *tokenizer, carry_constraint *constraint);

/* Returns the bits of a state, valid until the next call, or NULL if there was too much work or no memory.
   If *is_dropped, all states were dropped instead, and the cursor must find its state again. The caller holds the
   lock. */
const uint32_t *carry_constraint_mask(carry_constraint *c, uint32_t state, bool *is_dropped);

#endif
