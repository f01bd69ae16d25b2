/* Builds grammars from nodes. */
#include "tokenizer/constraint/grammar.h"

#include <stdlib.h>

#include "core/error.h"

#define PASSES 512 /* at most this many passes over all nodes to compute `need`; a schema takes a few */

static void fail(carry_grammar *g, carry_status status, const char *bound) {
    if (g->status == CARRY_OK) {
        g->status = status;
        g->bound = bound;
    }
}

static uint32_t add(carry_grammar *g, carry_grammar_node node) {
    if (g->status != CARRY_OK) {
        return CARRY_GRAMMAR_END;
    }
    if (g->count == CARRY_GRAMMAR_NODES) {
        fail(g, CARRY_ESIZE, "nodes");
        return CARRY_GRAMMAR_END;
    }
    if (g->count == g->room) {
        const uint32_t room = g->room > 0 ? 2 * g->room : 1024;
        carry_grammar_node *grown = realloc(g->node, room * sizeof *grown);
        if (grown == NULL) {
            fail(g, CARRY_EMEMORY, NULL);
            return CARRY_GRAMMAR_END;
        }
        g->node = grown;
        g->room = room;
    }
    g->node[g->count] = node;
    return g->count++;
}

carry_status carry_grammar_new(carry_ctx *ctx, carry_grammar *g) {
    *g = (carry_grammar){0};
    (void)add(g, (carry_grammar_node){.kind = CARRY_NODE_END});
    (void)carry_grammar_rule(g);
    return g->status == CARRY_OK ? CARRY_OK : carry_fail(ctx, g->status, "out of memory: a grammar");
}

void carry_grammar_free(carry_grammar *g) {
    free(g->node);
    free(g->entry);
    *g = (carry_grammar){0};
}

uint32_t carry_grammar_bytes(carry_grammar *g, unsigned low, unsigned high, uint32_t next) {
    return add(
        g, (carry_grammar_node){.kind = CARRY_NODE_BYTES, .low = (uint8_t)low, .high = (uint8_t)high, .next = next});
}

uint32_t carry_grammar_never(carry_grammar *g) {
    return carry_grammar_bytes(g, 1, 0, CARRY_GRAMMAR_END);
}

uint32_t carry_grammar_split(carry_grammar *g, uint32_t one, uint32_t other) {
    return one == other ? one : add(g, (carry_grammar_node){.kind = CARRY_NODE_SPLIT, .next = one, .other = other});
}

uint32_t carry_grammar_call(carry_grammar *g, uint32_t rule, uint32_t next) {
    return add(g, (carry_grammar_node){.kind = CARRY_NODE_CALL, .next = next, .other = rule});
}

uint32_t carry_grammar_literal(carry_grammar *g, const char *bytes, size_t length, uint32_t next) {
    for (size_t i = length; i-- > 0;) {
        next = carry_grammar_bytes(g, (unsigned char)bytes[i], (unsigned char)bytes[i], next);
    }
    return next;
}

uint32_t carry_grammar_loop(carry_grammar *g, uint32_t next) {
    return add(g, (carry_grammar_node){.kind = CARRY_NODE_SPLIT, .next = next, .other = next});
}

void carry_grammar_close_loop(carry_grammar *g, uint32_t loop, uint32_t body) {
    if (g->status == CARRY_OK) {
        g->node[loop].other = body;
    }
}

uint32_t carry_grammar_rule(carry_grammar *g) {
    if (g->rules == CARRY_GRAMMAR_RULES) {
        fail(g, CARRY_ESIZE, "rules");
        return 0;
    }
    if (g->rules == g->rule_room) {
        const uint32_t room = g->rule_room > 0 ? 2 * g->rule_room : 64;
        uint32_t *grown = realloc(g->entry, room * sizeof *grown);
        if (grown == NULL) {
            fail(g, CARRY_EMEMORY, NULL);
            return 0;
        }
        g->entry = grown;
        g->rule_room = room;
    }
    g->entry[g->rules] = CARRY_GRAMMAR_END;
    return g->rules++;
}

void carry_grammar_define(carry_grammar *g, uint32_t rule, uint32_t entry) {
    if (g->status == CARRY_OK) {
        g->entry[rule] = entry;
    }
}

static unsigned deeper(unsigned need) {
    return need >= CARRY_GRAMMAR_DEPTH ? CARRY_GRAMMAR_NEVER : need + 1;
}

static unsigned need_of(const carry_grammar *g, const carry_grammar_node *n) {
    const unsigned next = g->node[n->next].need;
    unsigned other;
    switch ((carry_grammar_kind)n->kind) {
    case CARRY_NODE_BYTES:
        return n->low <= n->high ? next : CARRY_GRAMMAR_NEVER;
    case CARRY_NODE_SPLIT:
        other = g->node[n->other].need;
        return other < next ? other : next;
    case CARRY_NODE_CALL:
        other = g->node[g->entry[n->other]].need;
        other = n->next == CARRY_GRAMMAR_END ? other : deeper(other);
        return other > next ? other : next;
    case CARRY_NODE_END:
        break;
    }
    return 0;
}

/* Computes `need` of every node, starting from the largest value; each pass can only lower values. Calls point to later
   nodes and other edges mostly to earlier ones, so passes alternate their direction. */
static bool find_needs(carry_grammar *g) {
    bool changes = true;
    for (uint32_t i = 1; i < g->count; i++) {
        g->node[i].need = CARRY_GRAMMAR_NEVER;
    }
    g->node[CARRY_GRAMMAR_END].need = 0;
    for (int pass = 0; changes && pass < PASSES; pass++) {
        changes = false;
        for (uint32_t i = 1; i < g->count; i++) {
            carry_grammar_node *n = &g->node[pass % 2 == 0 ? i : g->count - i];
            const unsigned need = need_of(g, n);
            changes = changes || need < n->need;
            n->need = (uint8_t)need;
        }
    }
    return !changes;
}

carry_status carry_grammar_finish(carry_ctx *ctx, carry_grammar *g, const char *what) {
    if (g->status == CARRY_ESIZE) {
        return carry_fail(ctx, CARRY_ESIZE, "%s is too large: it needs more than %u %s", what,
                          (unsigned)(g->bound[0] == 'n' ? CARRY_GRAMMAR_NODES : CARRY_GRAMMAR_RULES), g->bound);
    }
    if (g->status != CARRY_OK) {
        return carry_fail(ctx, g->status, "out of memory: %s", what);
    }
    if (!find_needs(g)) {
        return carry_fail(ctx, CARRY_ESIZE, "%s is too large: its rules depend on one another in chains longer than %d",
                          what, PASSES);
    }
    return g->node[g->entry[0]].need == CARRY_GRAMMAR_NEVER
               ? carry_fail(ctx, CARRY_EARGUMENT, "%s: no text can match it", what)
               : CARRY_OK;
}
