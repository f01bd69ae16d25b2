/* Types of the automaton, and the closure of a set of positions. Shared by automaton.c and automaton_closure.c. */
#ifndef CARRY_TOKENIZER_CONSTRAINT_AUTOMATON_INSIDE_H
#define CARRY_TOKENIZER_CONSTRAINT_AUTOMATON_INSIDE_H

#include "tokenizer/constraint/automaton.h"

/* A node and a frame in one number; the node is in the high 32 bits. */
typedef uint64_t carry_automaton_position;

typedef struct carry_automaton_frame {
    uint32_t next, parent; /* the node after the call, and the frame around it; frame 0 is the outermost */
    uint32_t depth;
} carry_automaton_frame;

typedef struct carry_automaton_state {
    carry_automaton_position *position; /* sorted; only nodes that read a byte */
    uint32_t count;
    bool accepts;
    uint32_t next[]; /* next state for each byte class; 0: not computed yet */
} carry_automaton_state;

/* A hash table whose slots hold indices; 0 means free. */
typedef struct carry_automaton_table {
    uint32_t *slot;
    uint32_t size, used;
} carry_automaton_table;

struct carry_automaton {
    carry_grammar grammar;
    unsigned char class_of[256];
    int classes;
    carry_automaton_state **state; /* valid from index 2: 0 means unknown, 1 is the dead state */
    uint32_t state_count, state_room;
    carry_automaton_frame *frame;
    uint32_t frame_count, frame_room;
    carry_automaton_table states, frames;
    size_t bytes; /* memory of states and frames */
    uint32_t epoch;
    /* Workspace of one closure. */
    carry_automaton_position *todo, *found;
    size_t todo_count, todo_room, found_count, found_room;
    carry_automaton_position
        *seen; /* hash table of positions; an entry belongs to this closure if its stamp equals turn */
    uint32_t *stamp;
    uint32_t seen_size, seen_used, turn;
};

/* Helpers of hash tables and lists; `list` is the address of a pointer. The last two return false if out of memory. */
uint64_t carry_automaton_mix(uint64_t x);
bool carry_automaton_grow(void *list, size_t *room, size_t count, size_t item);
bool carry_automaton_make_table(carry_automaton_table *t, uint32_t size);

/* Starts a closure with no positions. */
void carry_automaton_begin(carry_automaton *a);
/* Adds a position to the work list unless it is already there. Drops positions from which the rule cannot end within
   the depth limit. Returns false if out of memory. */
bool carry_automaton_visit(carry_automaton *a, uint32_t node, uint32_t inside);
/* Follows a position of the work list: adds it to `found` if its node reads a byte, otherwise visits the positions
   after it. Sets *accepts if the text may end there. Returns false if out of memory. */
bool carry_automaton_expand(carry_automaton *a, carry_automaton_position p, bool *accepts);

#endif
