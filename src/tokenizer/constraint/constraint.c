/* Cursors, and the token masks of states. */
#include "tokenizer/constraint/constraint.h"

#include <stdlib.h>
#include <string.h>

#include "core/error.h"
#include "tokenizer/constraint/constraint_inside.h"

struct carry_cursor {
    const carry_tokenizer *tokenizer;
    carry_constraint *constraint;
    uint32_t state, epoch;
    char *text; /* bytes read so far, from which the state is found again after states were dropped */
    size_t length, room;
    bool is_lost; /* a byte was not allowed, or an error occurred */
};

static size_t mask_words(const carry_constraint *c) {
    return ((size_t)c->vocabulary->size + 31) / 32;
}

/* Walks through the vocabulary tree. A subtree is skipped when its bytes lead to the dead state. */
static carry_automaton_result walk(carry_constraint *c, uint32_t state, uint32_t *bits) {
    const carry_vocabulary *v = c->vocabulary;
    int64_t work = CARRY_CONSTRAINT_WORK;
    c->reached[0] = state;
    for (uint32_t i = 0; i < v->count;) {
        const carry_vocabulary_node *n = &v->node[i];
        uint32_t *next = &c->reached[n->depth];
        const carry_automaton_result result =
            carry_automaton_step(c->automaton, c->reached[n->depth - 1], n->byte, &work, next);
        if (result != CARRY_AUTOMATON_OK) {
            return result;
        }
        if (*next == CARRY_AUTOMATON_DEAD) {
            i = n->after;
            continue;
        }
        for (uint32_t k = n->tokens; k < n[1].tokens; k++) {
            bits[v->token[k] / 32] |= 1u << v->token[k] % 32;
        }
        i++;
    }
    return CARRY_AUTOMATON_OK;
}

static void drop_masks(carry_constraint *c) {
    for (uint32_t i = 0; i < c->masks; i++) {
        free(c->mask[i].bits);
        c->mask[i].bits = NULL;
        c->mask[i].state = 0;
    }
    c->mask_count = 0;
    c->epoch = carry_automaton_epoch(c->automaton);
}

const uint32_t *carry_constraint_mask(carry_constraint *c, uint32_t state, bool *is_dropped) {
    *is_dropped = false;
    if (c->epoch != carry_automaton_epoch(c->automaton) ||
        (size_t)c->mask_count * mask_words(c) * sizeof(uint32_t) >= CARRY_CONSTRAINT_MASK_BYTES ||
        2 * c->mask_count >= c->masks) {
        drop_masks(c);
    }
    uint32_t at = (state * 0x9E3779B1u) % c->masks;
    for (; c->mask[at].state != 0; at = (at + 1) % c->masks) {
        if (c->mask[at].state == state && c->mask[at].bits != NULL) {
            return c->mask[at].bits;
        }
    }
    uint32_t *bits = calloc(mask_words(c) + 1, sizeof *bits);
    const carry_automaton_result result = bits != NULL ? walk(c, state, bits) : CARRY_AUTOMATON_FAILED;
    if (result != CARRY_AUTOMATON_OK) {
        free(bits);
        *is_dropped = result == CARRY_AUTOMATON_FULL;
        return NULL;
    }
    c->mask[at] = (carry_state_mask){.state = state, .bits = bits};
    c->mask_count++;
    return bits;
}

/* Finds the state after all bytes read so far, once states have been dropped. */
static bool find_again(carry_cursor *cursor) {
    carry_automaton *a = cursor->constraint->automaton;
    int64_t work = CARRY_CONSTRAINT_WORK;
    for (int attempt = 0; attempt < 2; attempt++) {
        carry_automaton_result result = carry_automaton_start(a, &work, &cursor->state);
        for (size_t i = 0; i < cursor->length && result == CARRY_AUTOMATON_OK; i++) {
            result = carry_automaton_step(a, cursor->state, (unsigned char)cursor->text[i], &work, &cursor->state);
        }
        cursor->epoch = carry_automaton_epoch(a);
        if (result != CARRY_AUTOMATON_FULL) {
            return result == CARRY_AUTOMATON_OK;
        }
    }
    return false;
}

static bool is_current(carry_cursor *cursor) {
    return cursor->epoch == carry_automaton_epoch(cursor->constraint->automaton) || find_again(cursor);
}

static bool keep_bytes(carry_cursor *cursor, const char *bytes, size_t length) {
    if (cursor->length + length > cursor->room) {
        const size_t room = 2 * (cursor->length + length) + 64;
        char *grown = realloc(cursor->text, room);
        if (grown == NULL) {
            return false;
        }
        cursor->text = grown;
        cursor->room = room;
    }
    memcpy(cursor->text + cursor->length, bytes, length);
    cursor->length += length;
    return true;
}

static bool read_bytes(carry_cursor *cursor, const char *bytes, size_t length) {
    carry_automaton *a = cursor->constraint->automaton;
    int64_t work = CARRY_CONSTRAINT_WORK;
    if (!is_current(cursor) || !keep_bytes(cursor, bytes, length)) {
        return false;
    }
    for (size_t i = 0; i < length; i++) {
        const carry_automaton_result result =
            carry_automaton_step(a, cursor->state, (unsigned char)bytes[i], &work, &cursor->state);
        if (result == CARRY_AUTOMATON_FULL) {
            return find_again(cursor) && cursor->state != CARRY_AUTOMATON_DEAD;
        }
        if (result != CARRY_AUTOMATON_OK) {
            return false;
        }
    }
    return cursor->state != CARRY_AUTOMATON_DEAD;
}

bool carry_cursor_take(carry_cursor *cursor, int64_t token) {
    char few[64];
    size_t length;
    if (cursor->is_lost || carry_tokenizer_token(cursor->tokenizer, token, &length) == NULL ||
        carry_tokenizer_is_special(cursor->tokenizer, token)) {
        return !cursor->is_lost;
    }
    char *bytes = length <= sizeof few ? few : malloc(length);
    if (bytes == NULL) {
        cursor->is_lost = true;
        return false;
    }
    length = carry_decode_token(cursor->tokenizer, token, false, bytes);
    (void)pthread_mutex_lock(&cursor->constraint->lock);
    cursor->is_lost = !read_bytes(cursor, bytes, length);
    (void)pthread_mutex_unlock(&cursor->constraint->lock);
    if (bytes != few) {
        free(bytes);
    }
    return !cursor->is_lost;
}

static bool allow(carry_cursor *cursor, const int32_t *ends, int64_t end_count, uint32_t *mask, int64_t words) {
    const int64_t own = (int64_t)mask_words(cursor->constraint);
    const uint32_t *bits = NULL;
    bool is_dropped = true;
    for (int attempt = 0; attempt < 2 && bits == NULL && is_dropped; attempt++) {
        bits = is_current(cursor) ? carry_constraint_mask(cursor->constraint, cursor->state, &is_dropped) : NULL;
    }
    if (bits == NULL) {
        return false;
    }
    const bool may_end = carry_automaton_accepts(cursor->constraint->automaton, cursor->state);
    for (int64_t i = 0; i < words; i++) {
        uint32_t end_bits = 0; /* few tokens end a text */
        for (int64_t k = 0; k < end_count; k++) {
            end_bits |= ends[k] / 32 == i ? 1u << ends[k] % 32 : 0;
        }
        const uint32_t kept = i < own ? bits[i] : 0;
        mask[i] &= may_end ? kept | end_bits : kept & ~end_bits;
    }
    return true;
}

bool carry_cursor_allow(carry_cursor *cursor, const int32_t *ends, int64_t end_count, uint32_t *mask, int64_t words) {
    if (cursor->is_lost) {
        return false;
    }
    (void)pthread_mutex_lock(&cursor->constraint->lock);
    cursor->is_lost = !allow(cursor, ends, end_count, mask, words);
    (void)pthread_mutex_unlock(&cursor->constraint->lock);
    return !cursor->is_lost;
}

static bool ask(const carry_cursor *cursor, bool (*question)(const carry_automaton *automaton, uint32_t state)) {
    carry_cursor *own = (carry_cursor *)cursor; /* its state may have to be recomputed */
    (void)pthread_mutex_lock(&cursor->constraint->lock);
    const bool is_true = !cursor->is_lost && is_current(own) && question(cursor->constraint->automaton, cursor->state);
    (void)pthread_mutex_unlock(&cursor->constraint->lock);
    return is_true;
}

bool carry_cursor_is_whole(const carry_cursor *cursor) {
    return ask(cursor, carry_automaton_accepts);
}

bool carry_cursor_is_finished(const carry_cursor *cursor) {
    return ask(cursor, carry_automaton_accepts) && !ask(cursor, carry_automaton_goes_on);
}

carry_status carry_cursor_new(carry_ctx *ctx, carry_cursor **made, const carry_tokenizer *tokenizer,
                              carry_constraint_kind kind, const char *text, size_t length) {
    carry_cursor *cursor = calloc(1, sizeof *cursor);
    *made = NULL;
    if (cursor == NULL) {
        return carry_fail(ctx, CARRY_EMEMORY, "out of memory: a constraint");
    }
    cursor->tokenizer = tokenizer;
    carry_status status = carry_constraint_get(ctx, &cursor->constraint, tokenizer, kind, text, length);
    if (status == CARRY_OK) {
        (void)pthread_mutex_lock(&cursor->constraint->lock);
        if (!find_again(cursor)) {
            status =
                carry_fail(ctx, CARRY_ESIZE, "the constraint is too large: its first state has more than %d positions",
                           CARRY_AUTOMATON_POSITIONS);
        }
        (void)pthread_mutex_unlock(&cursor->constraint->lock);
    }
    if (status != CARRY_OK) {
        carry_cursor_free(cursor);
        return status;
    }
    *made = cursor;
    return CARRY_OK;
}

void carry_cursor_free(carry_cursor *cursor) {
    if (cursor != NULL) {
        if (cursor->constraint != NULL) {
            carry_constraint_release(cursor->tokenizer, cursor->constraint);
        }
        free(cursor->text);
        free(cursor);
    }
}
