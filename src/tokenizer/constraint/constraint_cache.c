/* Builds constraints, and caches the most recently used ones. */
#include <stdlib.h>
#include <string.h>

#include "core/error.h"
#include "tokenizer/constraint/calls.h"
#include "tokenizer/constraint/constraint_inside.h"
#include "tokenizer/constraint/regex.h"
#include "tokenizer/constraint/schema.h"
#include "tokenizer/tokenizer_internal.h"

#define MASKS 4096 /* slots of the table; at most half are used */

struct carry_constraint_cache {
    pthread_mutex_t lock;
    bool has_vocabulary;
    carry_vocabulary vocabulary;
    carry_constraint *kept[CARRY_CONSTRAINTS];
    uint64_t clock;
};

static void free_constraint(carry_constraint *c) {
    for (uint32_t i = 0; i < c->masks && c->mask != NULL; i++) {
        free(c->mask[i].bits);
    }
    carry_automaton_free(c->automaton);
    (void)pthread_mutex_destroy(&c->lock);
    free(c->mask);
    free(c->reached);
    free(c->text);
    free(c);
}

carry_constraint_cache *carry_constraint_cache_new(void) {
    carry_constraint_cache *cache = calloc(1, sizeof *cache);
    if (cache != NULL && pthread_mutex_init(&cache->lock, NULL) != 0) {
        free(cache);
        return NULL;
    }
    return cache;
}

void carry_constraint_cache_free(carry_constraint_cache *cache) {
    if (cache == NULL) {
        return;
    }
    for (int i = 0; i < CARRY_CONSTRAINTS; i++) {
        if (cache->kept[i] != NULL) {
            free_constraint(cache->kept[i]);
        }
    }
    carry_vocabulary_free(&cache->vocabulary);
    (void)pthread_mutex_destroy(&cache->lock);
    free(cache);
}

static carry_status build_grammar(carry_ctx *ctx, carry_grammar *g, carry_constraint_kind kind, const char *text,
                                  size_t length) {
    const carry_regex_target whole = {0};
    uint32_t entry;
    if (kind == CARRY_CONSTRAINT_SCHEMA) {
        CARRY_TRY(carry_schema_build(ctx, g, text, length));
        return carry_grammar_finish(ctx, g, "the JSON schema");
    }
    if (kind == CARRY_CONSTRAINT_CALLS) {
        CARRY_TRY(carry_calls_build(ctx, g, text, length));
        return carry_grammar_finish(ctx, g, "a call of the tools");
    }
    CARRY_TRY(carry_regex_build(ctx, g, text, length, "the regular expression", &whole, CARRY_GRAMMAR_END, &entry));
    carry_grammar_define(g, 0, entry);
    return carry_grammar_finish(ctx, g, "the regular expression");
}

static carry_status fill(carry_ctx *ctx, carry_constraint *c, const char *text, size_t length) {
    carry_grammar g;
    CARRY_TRY(carry_grammar_new(ctx, &g));
    const carry_status status = build_grammar(ctx, &g, c->kind, text, length);
    if (status != CARRY_OK) {
        carry_grammar_free(&g);
        return status;
    }
    CARRY_TRY(carry_automaton_new(ctx, &c->automaton, &g));
    c->masks = MASKS;
    c->mask = calloc(c->masks, sizeof *c->mask);
    c->reached = calloc(CARRY_VOCABULARY_DEPTH + 1, sizeof *c->reached);
    c->text = malloc(length + 1);
    c->length = length;
    if (c->mask == NULL || c->reached == NULL || c->text == NULL) {
        return carry_fail(ctx, CARRY_EMEMORY, "out of memory: a constraint");
    }
    memcpy(c->text, text, length);
    return CARRY_OK;
}

static carry_status make(carry_ctx *ctx, carry_constraint **made, carry_constraint_kind kind, const char *text,
                         size_t length) {
    carry_constraint *c = calloc(1, sizeof *c);
    if (c == NULL || pthread_mutex_init(&c->lock, NULL) != 0) {
        free(c);
        return carry_fail(ctx, CARRY_EMEMORY, "out of memory: a constraint");
    }
    c->kind = kind;
    const carry_status status = fill(ctx, c, text, length);
    if (status != CARRY_OK) {
        free_constraint(c);
        return status;
    }
    *made = c;
    return CARRY_OK;
}

/* The caller holds the cache's lock. */

static carry_constraint *find(carry_constraint_cache *cache, carry_constraint_kind kind, const char *text,
                              size_t length) {
    for (int i = 0; i < CARRY_CONSTRAINTS; i++) {
        carry_constraint *c = cache->kept[i];
        if (c != NULL && c->kind == kind && c->length == length && memcmp(c->text, text, length) == 0) {
            c->users++;
            c->used_at = ++cache->clock;
            return c;
        }
    }
    return NULL;
}

/* Replaces the least recently used constraint. */
static void keep(carry_constraint_cache *cache, carry_constraint *c) {
    int oldest = 0;
    for (int i = 1; i < CARRY_CONSTRAINTS && cache->kept[oldest] != NULL; i++) {
        if (cache->kept[i] == NULL || cache->kept[i]->used_at < cache->kept[oldest]->used_at) {
            oldest = i;
        }
    }
    carry_constraint *before = cache->kept[oldest];
    if (before != NULL && --before->users == 0) {
        free_constraint(before);
    }
    cache->kept[oldest] = c;
    c->vocabulary = &cache->vocabulary;
    c->users = 2; /* the cache, and the cursor that asked for it */
    c->used_at = ++cache->clock;
}

carry_status carry_constraint_get(carry_ctx *ctx, carry_constraint **found, const carry_tokenizer *tokenizer,
                                  carry_constraint_kind kind, const char *text, size_t length) {
    carry_constraint_cache *cache = tokenizer->constraints;
    carry_constraint *made = NULL;
    (void)pthread_mutex_lock(&cache->lock);
    *found = find(cache, kind, text, length);
    (void)pthread_mutex_unlock(&cache->lock);
    if (*found != NULL) {
        return CARRY_OK;
    }
    CARRY_TRY(make(ctx, &made, kind, text, length));
    carry_status status = CARRY_OK;
    (void)pthread_mutex_lock(&cache->lock);
    if (!cache->has_vocabulary) {
        status = carry_vocabulary_new(ctx, &cache->vocabulary, tokenizer);
        cache->has_vocabulary = status == CARRY_OK;
    }
    *found = status == CARRY_OK ? find(cache, kind, text, length) : NULL; /* another thread may have made it */
    if (status == CARRY_OK && *found == NULL) {
        keep(cache, made);
        *found = made;
        made = NULL;
    }
    (void)pthread_mutex_unlock(&cache->lock);
    if (made != NULL) {
        free_constraint(made);
    }
    return status;
}

void carry_constraint_release(const carry_tokenizer *tokenizer, carry_constraint *c) {
    (void)pthread_mutex_lock(&tokenizer->constraints->lock);
    const bool is_last = --c->users == 0;
    (void)pthread_mutex_unlock(&tokenizer->constraints->lock);
    if (is_last) {
        free_constraint(c);
    }
}
