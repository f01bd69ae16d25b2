/* Reads a grammar byte by byte with a deterministic automaton, whose states are made when they are first reached. A
   state is a set of positions. A position is a node that reads a byte, and the calls around it; positions share their
   calls as a tree of frames. Memory is bounded: when it is used up, all states are dropped, and `epoch` changes so that
   users of states start again. Work is bounded too: making states consumes work units, of which the caller sets the
   number. */
#ifndef CARRY_TOKENIZER_CONSTRAINT_AUTOMATON_H
#define CARRY_TOKENIZER_CONSTRAINT_AUTOMATON_H

#include "tokenizer/constraint/grammar.h"

#define CARRY_AUTOMATON_BYTES ((size_t)8 << 20) /* limit for all states together */
#define CARRY_AUTOMATON_POSITIONS 16384         /* limit for one state */
#define CARRY_AUTOMATON_DEAD 1                  /* the state after a byte that is not allowed */

typedef struct carry_automaton carry_automaton;

/* Takes ownership of a finished grammar, and frees it on failure too. */
carry_status carry_automaton_new(carry_ctx *ctx, carry_automaton **made, carry_grammar *grammar);
void carry_automaton_free(carry_automaton *automaton);

typedef enum carry_automaton_result {
    CARRY_AUTOMATON_OK,
    CARRY_AUTOMATON_FULL,   /* all states were dropped; the epoch has changed */
    CARRY_AUTOMATON_FAILED, /* a state needs too many positions or too much work, or memory ran out */
} carry_automaton_result;

/* *made: the state before the first byte. */
carry_automaton_result carry_automaton_start(carry_automaton *automaton, int64_t *work, uint32_t *made);
carry_automaton_result carry_automaton_step(carry_automaton *automaton, uint32_t from, unsigned char byte,
                                            int64_t *work, uint32_t *next);
uint32_t carry_automaton_epoch(const carry_automaton *automaton);
bool carry_automaton_accepts(const carry_automaton *automaton, uint32_t number); /* the text may end here */
bool carry_automaton_goes_on(const carry_automaton *automaton, uint32_t number); /* some byte may follow */

#endif
