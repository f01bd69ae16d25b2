/* A grammar over bytes: rules whose bodies are graphs of nodes.

   A node does one of four things: it reads a byte of a range, splits into two alternatives, calls a rule and continues
   at another node when the rule ends, or ends the rule. Without calls this is an ordinary nondeterministic automaton.
   Graphs are built from their ends: a function takes the node that follows and returns the node where its part starts.
   After a failure, functions return the end node; carry_grammar_finish reports the first failure.

   Calls nest at most CARRY_GRAMMAR_DEPTH deep. Each node has `need`, the smallest depth of calls with which the
   end of its rule can be reached, so that no text is started that could not end within this limit. */
#ifndef CARRY_TOKENIZER_CONSTRAINT_GRAMMAR_H
#define CARRY_TOKENIZER_CONSTRAINT_GRAMMAR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "carry/context.h"

#define CARRY_GRAMMAR_NODES ((uint32_t)1 << 18)
#define CARRY_GRAMMAR_RULES ((uint32_t)1 << 14)
#define CARRY_GRAMMAR_DEPTH 64
#define CARRY_GRAMMAR_NEVER 255 /* `need` of a node from which the end cannot be reached */
#define CARRY_GRAMMAR_END 0     /* the node that ends every rule */

typedef enum carry_grammar_kind {
    CARRY_NODE_END,
    CARRY_NODE_BYTES, /* reads a byte from low to high, then goes to next; never matches if low is above high */
    CARRY_NODE_SPLIT, /* goes to next or to other */
    CARRY_NODE_CALL,  /* calls the rule `other`, then goes to next */
} carry_grammar_kind;

typedef struct carry_grammar_node {
    uint8_t kind, low, high, need;
    uint32_t next, other;
} carry_grammar_node;

typedef struct carry_grammar {
    carry_grammar_node *node;
    uint32_t count, room;
    uint32_t *entry; /* first node of each rule; the whole text is rule 0 */
    uint32_t rules, rule_room;
    carry_status status; /* the first failure */
    const char *bound;   /* name of the exceeded limit, with CARRY_ESIZE */
} carry_grammar;

carry_status carry_grammar_new(carry_ctx *ctx, carry_grammar *grammar); /* makes rule 0, which is not defined yet */
void carry_grammar_free(carry_grammar *grammar);

uint32_t carry_grammar_bytes(carry_grammar *g, unsigned low, unsigned high, uint32_t next);
uint32_t carry_grammar_never(carry_grammar *g);
uint32_t carry_grammar_split(carry_grammar *g, uint32_t one, uint32_t other);
uint32_t carry_grammar_call(carry_grammar *g, uint32_t rule, uint32_t next);
uint32_t carry_grammar_literal(carry_grammar *g, const char *bytes, size_t length, uint32_t next);
/* Makes a loop node. Build the body with this node as the one that follows, then pass the body's start to
   carry_grammar_close_loop. */
uint32_t carry_grammar_loop(carry_grammar *g, uint32_t next);
void carry_grammar_close_loop(carry_grammar *g, uint32_t loop, uint32_t body);
/* Makes a rule that has no body yet. */
uint32_t carry_grammar_rule(carry_grammar *g);
void carry_grammar_define(carry_grammar *g, uint32_t rule, uint32_t entry);

/* Computes `need` of all nodes. CARRY_ESIZE names the limit that was exceeded; CARRY_EARGUMENT: no text can match.
   what: the name of the source, for messages. */
carry_status carry_grammar_finish(carry_ctx *ctx, carry_grammar *g, const char *what);

#endif
