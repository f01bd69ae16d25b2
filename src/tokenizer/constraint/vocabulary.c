/* Sorts tokens by their bytes and builds the tree. */
#include "tokenizer/constraint/vocabulary.h"

#include <stdlib.h>
#include <string.h>

#include "core/error.h"

typedef struct entry {
    const unsigned char *bytes;
    uint32_t length;
    int32_t id;
} entry;

static int by_bytes(const void *a, const void *b) {
    const entry *x = a;
    const entry *y = b;
    const size_t length = x->length < y->length ? x->length : y->length;
    const int order = memcmp(x->bytes, y->bytes, length);
    if (order != 0) {
        return order;
    }
    return x->length != y->length ? (x->length > y->length) - (x->length < y->length)
                                  : (x->id > y->id) - (x->id < y->id);
}

/* Lists the bytes that each token decodes to inside a text. */
static size_t list_tokens(const carry_tokenizer *tokenizer, entry *entries, unsigned char *bytes) {
    const int64_t size = carry_tokenizer_size(tokenizer);
    size_t count = 0;
    size_t used = 0;
    for (int64_t id = 0; id < size; id++) {
        size_t length;
        if (carry_tokenizer_token(tokenizer, id, &length) == NULL || carry_tokenizer_is_special(tokenizer, id)) {
            continue;
        }
        const size_t shown = carry_decode_token(tokenizer, id, false, (char *)bytes + used);
        if (shown > 0 && shown <= CARRY_VOCABULARY_DEPTH) {
            entries[count++] = (entry){.bytes = bytes + used, .length = (uint32_t)shown, .id = (int32_t)id};
            used += shown;
        }
    }
    return count;
}

static uint32_t shared_bytes(const entry *one, const entry *other) {
    uint32_t shared = 0;
    while (shared < one->length && shared < other->length && one->bytes[shared] == other->bytes[shared]) {
        shared++;
    }
    return shared;
}

/* Makes the nodes in the order of a depth-first walk. The field `after` of a node is set when the walk leaves its
   subtree. */
static void make_nodes(carry_vocabulary *v, const entry *entries, size_t count) {
    static const entry none = {0};
    uint32_t open[CARRY_VOCABULARY_DEPTH];
    uint32_t depth = 0;
    for (size_t i = 0; i < count; i++) {
        const uint32_t shared = shared_bytes(i > 0 ? &entries[i - 1] : &none, &entries[i]);
        while (depth > shared) {
            v->node[open[--depth]].after = v->count;
        }
        for (; depth < entries[i].length; depth++) {
            open[depth] = v->count;
            v->node[v->count++] = (carry_vocabulary_node){
                .tokens = v->token_count, .depth = (uint16_t)(depth + 1), .byte = entries[i].bytes[depth]};
        }
        v->token[v->token_count++] = entries[i].id;
    }
    while (depth > 0) {
        v->node[open[--depth]].after = v->count;
    }
    v->node[v->count].tokens = v->token_count;
}

carry_status carry_vocabulary_new(carry_ctx *ctx, carry_vocabulary *v, const carry_tokenizer *tokenizer) {
    const int64_t size = carry_tokenizer_size(tokenizer);
    size_t total = 0;
    *v = (carry_vocabulary){.size = size};
    for (int64_t id = 0; id < size; id++) {
        size_t length;
        total += carry_tokenizer_token(tokenizer, id, &length) != NULL ? length : 0;
    }
    entry *entries = malloc(((size_t)size + 1) * sizeof *entries);
    unsigned char *bytes = malloc(total + 1);
    v->node = malloc((total + 1) * sizeof *v->node);
    v->token = malloc(((size_t)size + 1) * sizeof *v->token);
    const bool is_whole = entries != NULL && bytes != NULL && v->node != NULL && v->token != NULL;
    if (is_whole) {
        const size_t count = list_tokens(tokenizer, entries, bytes);
        if (count > 1) {
            qsort(entries, count, sizeof *entries, by_bytes);
        }
        make_nodes(v, entries, count);
        carry_vocabulary_node *fitting = realloc(v->node, ((size_t)v->count + 1) * sizeof *fitting);
        v->node = fitting != NULL ? fitting : v->node;
    }
    free(entries);
    free(bytes);
    if (!is_whole) {
        carry_vocabulary_free(v);
        return carry_fail(ctx, CARRY_EMEMORY, "out of memory: the tokens of a vocabulary");
    }
    return CARRY_OK;
}

void carry_vocabulary_free(carry_vocabulary *v) {
    free(v->node);
    free(v->token);
    *v = (carry_vocabulary){0};
}
