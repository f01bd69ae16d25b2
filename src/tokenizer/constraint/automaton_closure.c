/* The closure of a set of positions: follows calls, choices and ends of rules up to the nodes that read a byte. Frames
   of calls are shared. */
#include <stdlib.h>
#include <string.h>

#include "tokenizer/constraint/automaton_inside.h"

uint64_t carry_automaton_mix(uint64_t x) {
    x ^= x >> 31;
    x *= 0x9E3779B97F4A7C15u;
    return x ^ x >> 29;
}

bool carry_automaton_grow(void *list, size_t *room, size_t count, size_t item) {
    void **at = list;
    if (count < *room) {
        return true;
    }
    const size_t more = *room > 0 ? 2 * *room : 256;
    void *grown = realloc(*at, more * item);
    if (grown == NULL) {
        return false;
    }
    *at = grown;
    *room = more;
    return true;
}

bool carry_automaton_make_table(carry_automaton_table *t, uint32_t size) {
    free(t->slot);
    *t = (carry_automaton_table){.slot = calloc(size, sizeof *t->slot), .size = size};
    return t->slot != NULL;
}

static uint64_t hash_frame(const carry_automaton_frame *f) {
    return carry_automaton_mix((uint64_t)f->next << 32 | f->parent);
}

static bool grow_frames(carry_automaton *a) {
    size_t room = a->frame_room;
    if (!carry_automaton_grow(&a->frame, &room, a->frame_count, sizeof *a->frame)) {
        return false;
    }
    a->frame_room = (uint32_t)room;
    if (2 * a->frames.used >= a->frames.size) {
        if (!carry_automaton_make_table(&a->frames, 2 * a->frames.size)) {
            return false;
        }
        for (uint32_t i = 1; i < a->frame_count; i++) {
            uint32_t at = (uint32_t)hash_frame(&a->frame[i]) & (a->frames.size - 1);
            while (a->frames.slot[at] != 0) {
                at = (at + 1) & (a->frames.size - 1);
            }
            a->frames.slot[at] = i;
        }
        a->frames.used = a->frame_count - 1;
    }
    return true;
}

/* Finds or makes the frame of a call. Returns false if out of memory. */
static bool push(carry_automaton *a, uint32_t next, uint32_t parent, uint32_t *made) {
    const carry_automaton_frame wanted = {.next = next, .parent = parent, .depth = a->frame[parent].depth + 1};
    if (!grow_frames(a)) {
        return false;
    }
    uint32_t at = (uint32_t)hash_frame(&wanted) & (a->frames.size - 1);
    for (; a->frames.slot[at] != 0; at = (at + 1) & (a->frames.size - 1)) {
        const carry_automaton_frame *f = &a->frame[a->frames.slot[at]];
        if (f->next == next && f->parent == parent) {
            *made = a->frames.slot[at];
            return true;
        }
    }
    a->frame[a->frame_count] = wanted;
    a->frames.slot[at] = a->frame_count;
    a->frames.used++;
    a->bytes += sizeof wanted + 2 * sizeof *a->frames.slot;
    *made = a->frame_count++;
    return true;
}

static bool grow_seen(carry_automaton *a) {
    const uint32_t size = a->seen_size > 0 ? 2 * a->seen_size : 1024;
    carry_automaton_position *seen = calloc(size, sizeof *seen);
    uint32_t *stamp = calloc(size, sizeof *stamp);
    if (seen == NULL || stamp == NULL) {
        free(seen);
        free(stamp);
        return false;
    }
    for (uint32_t i = 0; i < a->seen_size; i++) {
        if (a->stamp[i] == a->turn) {
            uint32_t at = (uint32_t)carry_automaton_mix(a->seen[i]) & (size - 1);
            while (stamp[at] == a->turn) {
                at = (at + 1) & (size - 1);
            }
            seen[at] = a->seen[i];
            stamp[at] = a->turn;
        }
    }
    free(a->seen);
    free(a->stamp);
    a->seen = seen;
    a->stamp = stamp;
    a->seen_size = size;
    return true;
}

bool carry_automaton_visit(carry_automaton *a, uint32_t node, uint32_t inside) {
    const carry_automaton_position p = (carry_automaton_position)node << 32 | inside;
    if (a->grammar.node[node].need + a->frame[inside].depth > CARRY_GRAMMAR_DEPTH) {
        return true;
    }
    if (2 * a->seen_used >= a->seen_size && !grow_seen(a)) {
        return false;
    }
    uint32_t at = (uint32_t)carry_automaton_mix(p) & (a->seen_size - 1);
    for (; a->stamp[at] == a->turn; at = (at + 1) & (a->seen_size - 1)) {
        if (a->seen[at] == p) {
            return true;
        }
    }
    a->seen[at] = p;
    a->stamp[at] = a->turn;
    a->seen_used++;
    if (!carry_automaton_grow(&a->todo, &a->todo_room, a->todo_count, sizeof *a->todo)) {
        return false;
    }
    a->todo[a->todo_count++] = p;
    return true;
}

bool carry_automaton_expand(carry_automaton *a, carry_automaton_position p, bool *accepts) {
    const uint32_t inside = (uint32_t)p;
    const carry_grammar_node *n = &a->grammar.node[p >> 32];
    uint32_t called = inside;
    switch ((carry_grammar_kind)n->kind) {
    case CARRY_NODE_BYTES:
        if (!carry_automaton_grow(&a->found, &a->found_room, a->found_count, sizeof *a->found)) {
            return false;
        }
        a->found[a->found_count++] = p;
        return true;
    case CARRY_NODE_SPLIT:
        return carry_automaton_visit(a, n->next, inside) && carry_automaton_visit(a, n->other, inside);
    case CARRY_NODE_CALL: /* a call at the end of a rule needs no frame of its own */
        return (n->next == CARRY_GRAMMAR_END || push(a, n->next, inside, &called)) &&
               carry_automaton_visit(a, a->grammar.entry[n->other], called);
    case CARRY_NODE_END:
        break;
    }
    *accepts = *accepts || inside == 0;
    return inside == 0 || carry_automaton_visit(a, a->frame[inside].next, a->frame[inside].parent);
}

void carry_automaton_begin(carry_automaton *a) {
    a->todo_count = a->found_count = a->seen_used = 0;
    if (++a->turn == 0) {
        memset(a->stamp, 0, a->seen_size * sizeof *a->stamp);
        a->turn = 1;
    }
}
