/* Builds states from sets of positions: byte classes, a hash table of states. */
#include "tokenizer/constraint/automaton.h"

#include <stdlib.h>
#include <string.h>

#include "core/error.h"
#include "tokenizer/constraint/automaton_inside.h"

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
    a->state = calloc(a->state_room, sizeof(carry_automaton_state *));
    a->frame_room = 256;
    a->frame = calloc(a->frame_room, sizeof *a->frame);
    a->frame_count = 1;
    a->seen_size = 1024;
    a->seen = calloc(a->seen_size, sizeof *a->seen);
    a->stamp = calloc(a->seen_size, sizeof *a->stamp);
    const bool has_tables =
        carry_automaton_make_table(&a->states, 1024) && carry_automaton_make_table(&a->frames, 1024);
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

static int by_number(const void *x, const void *y) {
    const carry_automaton_position one = *(const carry_automaton_position *)x;
    const carry_automaton_position other = *(const carry_automaton_position *)y;
    return (one > other) - (one < other);
}

static uint64_t hash_state(const carry_automaton_position *p, size_t count, bool accepts) {
    uint64_t hash = accepts ? 0x517CC1B727220A95u : 0;
    for (size_t i = 0; i < count; i++) {
        hash = carry_automaton_mix(hash ^ p[i]);
    }
    return hash;
}

static bool grow_states(carry_automaton *a) {
    size_t room = a->state_room;
    if (!carry_automaton_grow(&a->state, &room, a->state_count, sizeof(carry_automaton_state *))) {
        return false;
    }
    a->state_room = (uint32_t)room;
    if (2 * a->states.used >= a->states.size) {
        if (!carry_automaton_make_table(&a->states, 2 * a->states.size)) {
            return false;
        }
        for (uint32_t i = 2; i < a->state_count; i++) {
            const carry_automaton_state *s = a->state[i];
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
    carry_automaton_state *s = calloc(1, sizeof *s + table_bytes);
    carry_automaton_position *own = malloc((a->found_count + 1) * sizeof *own);
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
    a->bytes += sizeof *s + table_bytes + (a->found_count + 1) * sizeof *own + sizeof(carry_automaton_state *);
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
        if (--*work < 0 || !carry_automaton_expand(a, a->todo[--a->todo_count], &accepts) ||
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
        const carry_automaton_state *s = a->state[a->states.slot[at]];
        if (s->count == a->found_count && s->accepts == accepts &&
            (s->count == 0 || memcmp(s->position, a->found, s->count * sizeof *s->position) == 0)) {
            *made = a->states.slot[at];
            return CARRY_AUTOMATON_OK;
        }
    }
    return add_state(a, accepts, at, made) ? CARRY_AUTOMATON_OK : CARRY_AUTOMATON_FAILED;
}

carry_automaton_result carry_automaton_start(carry_automaton *a, int64_t *work, uint32_t *made) {
    carry_automaton_begin(a);
    return carry_automaton_visit(a, a->grammar.entry[0], 0) ? close_state(a, work, made) : CARRY_AUTOMATON_FAILED;
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
    carry_automaton_begin(a);
    for (uint32_t i = 0; i < a->state[from]->count; i++) {
        const carry_automaton_position p = a->state[from]->position[i];
        const carry_grammar_node *n = &a->grammar.node[p >> 32];
        if (n->low <= byte && byte <= n->high && !carry_automaton_visit(a, n->next, (uint32_t)p)) {
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
