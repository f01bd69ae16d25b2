/* Builds states from sets of positions: closure, shared frames, hash tables. */
#include "tokenizer/constraint/automaton.h"

#include <stdlib.h>
#include <string.h>

#include "core/error.h"

/* A node and a frame in one number; the node is in the high 32 bits. */
typedef uint64_t position;

typedef struct frame {
    uint32_t next, parent; /* the node after the call, and the frame around it; frame 0 is the outermost */
    uint32_t depth;
} frame;

typedef struct state {
    position *position; /* sorted; only nodes that read a byte */
    uint32_t count;
    bool accepts;
    uint32_t next[]; /* next state for each byte class; 0: not computed yet */
} state;

/* A hash table whose slots hold indices; 0 means free. */
typedef struct table {
    uint32_t *slot;
    uint32_t size, used;
} table;

struct carry_automaton {
    carry_grammar grammar;
    unsigned char class_of[256];
    int classes;
    state **state; /* valid from index 2: 0 means unknown, 1 is the dead state */
    uint32_t state_count, state_room;
    frame *frame;
    uint32_t frame_count, frame_room;
    table states, frames;
    size_t bytes; /* memory of states and frames */
    uint32_t epoch;
    /* Workspace of one closure. */
    position *todo, *found;
    size_t todo_count, todo_room, found_count, found_room;
    position *seen; /* hash table of positions; an entry belongs to this closure if its stamp equals turn */
    uint32_t *stamp;
    uint32_t seen_size, seen_used, turn;
};

static uint64_t mix(uint64_t x) {
    x ^= x >> 31;
    x *= 0x9E3779B97F4A7C15u;
    return x ^ x >> 29;
}

static bool grow(void *list, size_t *room, size_t count, size_t item) {
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

/* Finds the byte classes: bytes that every node treats alike. */
static void find_classes(carry_automaton *a) {
    bool starts[257] = {[0] = true};
    for (uint32_t i = 0; i < a->grammar.count; i++) {
        const carry_grammar_node *n = &a->grammar.node[i];
        if (n->kind == CARRY_NODE_BYTES && n->low <= n->high) {
            starts[n->low] = true;
            starts[n->high + 1] = true;
        }
    }
    for (int i = 0; i < 256; i++) {
        a->classes += starts[i];
        a->class_of[i] = (unsigned char)(a->classes - 1);
    }
}

static void forget(carry_automaton *a) {
    for (uint32_t i = 2; i < a->state_count; i++) {
        free(a->state[i]->position);
        free(a->state[i]);
    }
    a->state_count = 2;
    a->frame_count = 1;
    a->states.used = a->frames.used = 0;
    if (a->states.slot != NULL) {
        memset(a->states.slot, 0, a->states.size * sizeof *a->states.slot);
    }
    if (a->frames.slot != NULL) {
        memset(a->frames.slot, 0, a->frames.size * sizeof *a->frames.slot);
    }
    a->bytes = 0;
    a->epoch++;
}

static bool make_table(table *t, uint32_t size) {
    free(t->slot);
    *t = (table){.slot = calloc(size, sizeof *t->slot), .size = size};
    return t->slot != NULL;
}

carry_status carry_automaton_new(carry_ctx *ctx, carry_automaton **made, carry_grammar *grammar) {
    carry_automaton *a = calloc(1, sizeof *a);
    *made = NULL;
    if (a == NULL) {
        carry_grammar_free(grammar);
        return carry_fail(ctx, CARRY_EMEMORY, "out of memory: an automaton");
    }
    a->grammar = *grammar;
    *grammar = (carry_grammar){0};
    find_classes(a);
    a->state_count = 2;
    a->state_room = 256;
    a->state = calloc(a->state_room, sizeof(state *));
    a->frame_room = 256;
    a->frame = calloc(a->frame_room, sizeof *a->frame);
    a->frame_count = 1;
    a->seen_size = 1024;
    a->seen = calloc(a->seen_size, sizeof *a->seen);
    a->stamp = calloc(a->seen_size, sizeof *a->stamp);
    const bool has_tables = make_table(&a->states, 1024) && make_table(&a->frames, 1024);
    if (a->state == NULL || a->frame == NULL || a->seen == NULL || a->stamp == NULL || !has_tables) {
        carry_automaton_free(a);
        return carry_fail(ctx, CARRY_EMEMORY, "out of memory: an automaton");
    }
    *made = a;
    return CARRY_OK;
}

void carry_automaton_free(carry_automaton *a) {
    if (a == NULL) {
        return;
    }
    for (uint32_t i = 2; i < a->state_count && a->state != NULL; i++) {
        free(a->state[i]->position);
        free(a->state[i]);
    }
    carry_grammar_free(&a->grammar);
    free(a->state);
    free(a->frame);
    free(a->states.slot);
    free(a->frames.slot);
    free(a->todo);
    free(a->found);
    free(a->seen);
    free(a->stamp);
    free(a);
}

/* Frames. */

static uint64_t hash_frame(const frame *f) {
    return mix((uint64_t)f->next << 32 | f->parent);
}

static bool grow_frames(carry_automaton *a) {
    size_t room = a->frame_room;
    if (!grow(&a->frame, &room, a->frame_count, sizeof *a->frame)) {
        return false;
    }
    a->frame_room = (uint32_t)room;
    if (2 * a->frames.used >= a->frames.size) {
        if (!make_table(&a->frames, 2 * a->frames.size)) {
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
    const frame wanted = {.next = next, .parent = parent, .depth = a->frame[parent].depth + 1};
    if (!grow_frames(a)) {
        return false;
    }
    uint32_t at = (uint32_t)hash_frame(&wanted) & (a->frames.size - 1);
    for (; a->frames.slot[at] != 0; at = (at + 1) & (a->frames.size - 1)) {
        const frame *f = &a->frame[a->frames.slot[at]];
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

/* Closure. */

static bool grow_seen(carry_automaton *a) {
    const uint32_t size = a->seen_size > 0 ? 2 * a->seen_size : 1024;
    position *seen = calloc(size, sizeof *seen);
    uint32_t *stamp = calloc(size, sizeof *stamp);
    if (seen == NULL || stamp == NULL) {
        free(seen);
        free(stamp);
        return false;
    }
    for (uint32_t i = 0; i < a->seen_size; i++) {
        if (a->stamp[i] == a->turn) {
            uint32_t at = (uint32_t)mix(a->seen[i]) & (size - 1);
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

/* Adds a position to the work list unless it is already there. Drops positions from which the rule cannot end within
   the depth limit. */
static bool visit(carry_automaton *a, uint32_t node, uint32_t inside) {
    const position p = (position)node << 32 | inside;
    if (a->grammar.node[node].need + a->frame[inside].depth > CARRY_GRAMMAR_DEPTH) {
        return true;
    }
    if (2 * a->seen_used >= a->seen_size && !grow_seen(a)) {
        return false;
    }
    uint32_t at = (uint32_t)mix(p) & (a->seen_size - 1);
    for (; a->stamp[at] == a->turn; at = (at + 1) & (a->seen_size - 1)) {
        if (a->seen[at] == p) {
            return true;
        }
    }
    a->seen[at] = p;
    a->stamp[at] = a->turn;
    a->seen_used++;
    if (!grow(&a->todo, &a->todo_room, a->todo_count, sizeof *a->todo)) {
        return false;
    }
    a->todo[a->todo_count++] = p;
    return true;
}

static bool expand(carry_automaton *a, position p, bool *accepts) {
    const uint32_t inside = (uint32_t)p;
    const carry_grammar_node *n = &a->grammar.node[p >> 32];
    uint32_t called = inside;
    switch ((carry_grammar_kind)n->kind) {
    case CARRY_NODE_BYTES:
        if (!grow(&a->found, &a->found_room, a->found_count, sizeof *a->found)) {
            return false;
        }
        a->found[a->found_count++] = p;
        return true;
    case CARRY_NODE_SPLIT:
        return visit(a, n->next, inside) && visit(a, n->other, inside);
    case CARRY_NODE_CALL: /* a call at the end of a rule needs no frame of its own */
        return (n->next == CARRY_GRAMMAR_END || push(a, n->next, inside, &called)) &&
               visit(a, a->grammar.entry[n->other], called);
    case CARRY_NODE_END:
        break;
    }
    *accepts = *accepts || inside == 0;
    return inside == 0 || visit(a, a->frame[inside].next, a->frame[inside].parent);
}

static void begin(carry_automaton *a) {
    a->todo_count = a->found_count = a->seen_used = 0;
    if (++a->turn == 0) {
        memset(a->stamp, 0, a->seen_size * sizeof *a->stamp);
        a->turn = 1;
    }
}

static int by_number(const void *x, const void *y) {
    const position one = *(const position *)x;
    const position other = *(const position *)y;
    return (one > other) - (one < other);
}

/* States. */

static uint64_t hash_state(const position *p, size_t count, bool accepts) {
    uint64_t hash = accepts ? 0x517CC1B727220A95u : 0;
    for (size_t i = 0; i < count; i++) {
        hash = mix(hash ^ p[i]);
    }
    return hash;
}

static bool grow_states(carry_automaton *a) {
    size_t room = a->state_room;
    if (!grow(&a->state, &room, a->state_count, sizeof(state *))) {
        return false;
    }
    a->state_room = (uint32_t)room;
    if (2 * a->states.used >= a->states.size) {
        if (!make_table(&a->states, 2 * a->states.size)) {
            return false;
        }
        for (uint32_t i = 2; i < a->state_count; i++) {
            const state *s = a->state[i];
            uint32_t at = (uint32_t)hash_state(s->position, s->count, s->accepts) & (a->states.size - 1);
            while (a->states.slot[at] != 0) {
                at = (at + 1) & (a->states.size - 1);
            }
            a->states.slot[at] = i;
        }
        a->states.used = a->state_count - 2;
    }
    return true;
}

static bool add_state(carry_automaton *a, bool accepts, uint32_t at, uint32_t *made) {
    const size_t table_bytes = (size_t)a->classes * sizeof(uint32_t);
    state *s = calloc(1, sizeof *s + table_bytes);
    position *own = malloc((a->found_count + 1) * sizeof *own);
    if (s == NULL || own == NULL) {
        free(s);
        free(own);
        return false;
    }
    if (a->found_count > 0) {
        memcpy(own, a->found, a->found_count * sizeof *own);
    }
    s->position = own;
    s->count = (uint32_t)a->found_count;
    s->accepts = accepts;
    a->bytes += sizeof *s + table_bytes + (a->found_count + 1) * sizeof *own + sizeof(state *);
    a->states.slot[at] = a->state_count;
    a->states.used++;
    a->state[a->state_count] = s;
    *made = a->state_count++;
    return true;
}

/* Computes the closure of the visited positions, and finds or makes its state. */
static carry_automaton_result close_state(carry_automaton *a, int64_t *work, uint32_t *made) {
    bool accepts = false;
    while (a->todo_count > 0) {
        if (--*work < 0 || !expand(a, a->todo[--a->todo_count], &accepts) ||
            a->found_count > CARRY_AUTOMATON_POSITIONS) {
            return CARRY_AUTOMATON_FAILED;
        }
    }
    if (a->found_count == 0 && !accepts) {
        *made = CARRY_AUTOMATON_DEAD;
        return CARRY_AUTOMATON_OK;
    }
    if (a->found_count > 1) {
        qsort(a->found, a->found_count, sizeof *a->found, by_number);
    }
    if (!grow_states(a)) {
        return CARRY_AUTOMATON_FAILED;
    }
    uint32_t at = (uint32_t)hash_state(a->found, a->found_count, accepts) & (a->states.size - 1);
    for (; a->states.slot[at] != 0; at = (at + 1) & (a->states.size - 1)) {
        const state *s = a->state[a->states.slot[at]];
        if (s->count == a->found_count && s->accepts == accepts &&
            (s->count == 0 || memcmp(s->position, a->found, s->count * sizeof *s->position) == 0)) {
            *made = a->states.slot[at];
            return CARRY_AUTOMATON_OK;
        }
    }
    return add_state(a, accepts, at, made) ? CARRY_AUTOMATON_OK : CARRY_AUTOMATON_FAILED;
}

carry_automaton_result carry_automaton_start(carry_automaton *a, int64_t *work, uint32_t *made) {
    begin(a);
    return visit(a, a->grammar.entry[0], 0) ? close_state(a, work, made) : CARRY_AUTOMATON_FAILED;
}

carry_automaton_result carry_automaton_step(carry_automaton *a, uint32_t from, unsigned char byte, int64_t *work,
                                            uint32_t *next) {
    if (from == CARRY_AUTOMATON_DEAD) {
        *next = CARRY_AUTOMATON_DEAD;
        return CARRY_AUTOMATON_OK;
    }
    const int class = a->class_of[byte];
    *next = a->state[from]->next[class];
    if (*next != 0) {
        return CARRY_AUTOMATON_OK;
    }
    if (a->bytes > CARRY_AUTOMATON_BYTES) {
        forget(a);
        return CARRY_AUTOMATON_FULL;
    }
    begin(a);
    for (uint32_t i = 0; i < a->state[from]->count; i++) {
        const position p = a->state[from]->position[i];
        const carry_grammar_node *n = &a->grammar.node[p >> 32];
        if (n->low <= byte && byte <= n->high && !visit(a, n->next, (uint32_t)p)) {
            return CARRY_AUTOMATON_FAILED;
        }
    }
    *work -= a->state[from]->count;
    const carry_automaton_result result = close_state(a, work, next);
    if (result == CARRY_AUTOMATON_OK) {
        a->state[from]->next[class] = *next;
    }
    return result;
}

uint32_t carry_automaton_epoch(const carry_automaton *a) {
    return a->epoch;
}

bool carry_automaton_accepts(const carry_automaton *a, uint32_t number) {
    return number != CARRY_AUTOMATON_DEAD && a->state[number]->accepts;
}

bool carry_automaton_goes_on(const carry_automaton *a, uint32_t number) {
    return number != CARRY_AUTOMATON_DEAD && a->state[number]->count > 0;
}
