/* Merging: turns a piece of text into tokens. Pieces that were encoded recently are found in a cache; others are
   merged. Most pieces are words of a few bytes, for which looking at every pair again after each merge is fastest. Long
   pieces (a page of dashes, a text without spaces) go through a heap, so that the time is never quadratic in the
   length. */
#include <stdlib.h>
#include <string.h>

#include "core/memory.h"
#include "tokenizer/tokenizer_internal.h"
#include "tokenizer/utf8.h"

#define SHORT_PIECE 48 /* bytes; longer pieces use the heap. Measured on random letters */
#define CACHE_SLOTS 16384
#define CACHE_BYTES 25
#define CACHE_IDS 9
#define NEVER UINT32_MAX
#define KEPT ((size_t)1 << 20)    /* bytes of a piece whose workspace is kept */
#define CHECKED ((size_t)1 << 16) /* merges between two looks at the flag that cancels */

/* A cached piece and its token numbers, in one cache line. Pieces that do not fit are merged each time. */
typedef struct cached {
    unsigned char length, count; /* length 0: free */
    unsigned char bytes[CACHE_BYTES];
    uint32_t id[CACHE_IDS];
} cached;

typedef struct symbol {
    uint32_t id;
    int32_t before, after; /* -1: none */
    bool alive;
} symbol;

/* A merge that was possible when it was pushed onto the heap. */
typedef struct candidate {
    uint32_t rank, at, result;
} candidate;

struct carry_merger {
    const carry_tokenizer *tokenizer;
    cached *cache;
    symbol *symbols; /* workspace for long pieces */
    size_t symbol_room;
    candidate *heap;
    size_t heap_room, heap_count;
    const atomic_bool *cancelled; /* or NULL */
};

static bool goes_first(candidate a, candidate b) {
    return a.rank != b.rank ? a.rank < b.rank : a.at < b.at;
}

static void heap_push(carry_merger *e, candidate c) {
    size_t at = e->heap_count++;
    for (; at > 0 && goes_first(c, e->heap[(at - 1) / 2]); at = (at - 1) / 2) {
        e->heap[at] = e->heap[(at - 1) / 2];
    }
    e->heap[at] = c;
}

static candidate heap_pop(carry_merger *e) {
    candidate top = e->heap[0];
    candidate last = e->heap[--e->heap_count];
    size_t at = 0;
    for (size_t child; (child = 2 * at + 1) < e->heap_count; at = child) {
        if (child + 1 < e->heap_count && goes_first(e->heap[child + 1], e->heap[child])) {
            child++;
        }
        if (!goes_first(e->heap[child], last)) {
            break;
        }
        e->heap[at] = e->heap[child];
    }
    e->heap[at] = last;
    return top;
}

static void propose(carry_merger *e, int32_t at) {
    if (at < 0 || e->symbols[at].after < 0) {
        return;
    }
    const carry_pair_slot *pair =
        carry_tokenizer_pair(e->tokenizer, e->symbols[at].id, e->symbols[e->symbols[at].after].id);
    if (pair != NULL) {
        heap_push(e, (candidate){pair->rank, (uint32_t)at, pair->result});
    }
}

/* Writes the tokens that merging starts from: bytes, or characters where the tokenizer works by character. A character
   that is not a token is written as its bytes. Returns the number of tokens, at most length. */
static size_t start_tokens(const carry_tokenizer *t, uint32_t *id, const unsigned char *piece, size_t length) {
    size_t count = 0;
    for (size_t at = 0; at < length;) {
        int used = t->parts.by_character ? carry_utf8_at(piece + at, length - at) : 0;
        int64_t whole = used > 0 ? carry_tokenizer_named(t, (const char *)piece + at, (size_t)used) : -1;
        if (whole >= 0) {
            id[count++] = (uint32_t)whole;
            at += (size_t)used;
            continue;
        }
        for (int i = 0; i < (used > 0 ? used : 1); i++) {
            id[count++] = t->byte[piece[at++]];
        }
    }
    return count;
}

static void drop_workspace(carry_merger *e) {
    free(e->symbols);
    free(e->heap);
    e->symbols = NULL;
    e->heap = NULL;
    e->symbol_room = e->heap_room = e->heap_count = 0;
}

/* Merges a piece of any length. Each merge proposes at most two more, so the heap needs at most 3 candidates per
   byte. */
static carry_status merge_long(carry_merger *e, carry_ids *ids, const unsigned char *piece, size_t length) {
    size_t most;
    if (length > INT32_MAX / 4 || !carry_size_mul(&most, length, 3) ||
        !carry_list_grow(&e->symbols, &e->symbol_room, 0, length, sizeof *e->symbols) ||
        !carry_list_grow(&e->heap, &e->heap_room, 0, most, sizeof *e->heap)) {
        return CARRY_EMEMORY;
    }
    uint32_t *first = ids->id + ids->count; /* the caller has reserved length entries; the result overwrites these */
    int32_t count = (int32_t)start_tokens(e->tokenizer, first, piece, length);
    for (int32_t i = 0; i < count; i++) {
        e->symbols[i] = (symbol){first[i], i - 1, i + 1 < count ? i + 1 : -1, true};
    }
    e->heap_count = 0;
    for (int32_t i = 0; i < count; i++) {
        propose(e, i);
    }
    for (size_t merges = 1; e->heap_count > 0; merges++) {
        if (merges % CHECKED == 0 && carry_is_cancelled(e->cancelled)) {
            return CARRY_EINTERRUPTED;
        }
        candidate c = heap_pop(e);
        symbol *left = &e->symbols[c.at];
        if (!left->alive || left->after < 0) {
            continue;
        }
        symbol *right = &e->symbols[left->after];
        const carry_pair_slot *pair = carry_tokenizer_pair(e->tokenizer, left->id, right->id);
        if (pair == NULL || pair->result != c.result || pair->rank != c.rank) {
            continue; /* stale: one of the two symbols has been merged since */
        }
        left->id = c.result;
        left->after = right->after;
        right->alive = false;
        if (left->after >= 0) {
            e->symbols[left->after].before = (int32_t)c.at;
        }
        propose(e, left->before);
        propose(e, (int32_t)c.at);
    }
    for (int32_t at = 0; at >= 0; at = e->symbols[at].after) {
        ids->id[ids->count++] = e->symbols[at].id;
    }
    return CARRY_OK;
}

static uint32_t rank_of(const carry_tokenizer *t, uint32_t left, uint32_t right) {
    const carry_pair_slot *pair = carry_tokenizer_pair(t, left, right);
    return pair != NULL ? pair->rank : NEVER;
}

/* Writes at most length token numbers to id; returns their count. */
static size_t merge_short(const carry_tokenizer *t, uint32_t *id, const unsigned char *piece, size_t length) {
    uint32_t rank[SHORT_PIECE]; /* rank[i]: of the pair (id[i], id[i + 1]) */
    length = start_tokens(t, id, piece, length);
    for (size_t i = 0; i + 1 < length; i++) {
        rank[i] = rank_of(t, id[i], id[i + 1]);
    }
    while (length > 1) {
        size_t best = 0;
        for (size_t i = 1; i + 1 < length; i++) {
            best = rank[i] < rank[best] ? i : best;
        }
        if (rank[best] == NEVER) {
            break;
        }
        id[best] = t->merge[rank[best]].result;
        length--;
        for (size_t i = best + 1; i < length; i++) {
            id[i] = id[i + 1];
        }
        for (size_t i = best + 1; i + 1 < length; i++) {
            rank[i] = rank[i + 1];
        }
        if (best > 0) {
            rank[best - 1] = rank_of(t, id[best - 1], id[best]);
        }
        if (best + 1 < length) {
            rank[best] = rank_of(t, id[best], id[best + 1]);
        }
    }
    return length;
}

carry_status carry_merger_piece(carry_merger *merger, carry_ids *ids, const unsigned char *piece, size_t length) {
    carry_merger *e = merger;
    const carry_tokenizer *t = e->tokenizer;
    if (carry_is_cancelled(e->cancelled)) {
        return CARRY_EINTERRUPTED;
    }
    if (!carry_list_grow(&ids->id, &ids->room, ids->count, length, sizeof *ids->id)) {
        return CARRY_EMEMORY;
    }
    if (length == 1 && !t->parts.by_character) {
        ids->id[ids->count++] = t->byte[piece[0]];
        return CARRY_OK;
    }
    cached *slot = NULL;
    if (length <= CACHE_BYTES) {
        slot = &e->cache[carry_hash_bytes(piece, length) % CACHE_SLOTS];
        if (slot->length == length && memcmp(slot->bytes, piece, length) == 0) {
            memcpy(ids->id + ids->count, slot->id, slot->count * sizeof *slot->id);
            ids->count += slot->count;
            return CARRY_OK;
        }
    }
    size_t before = ids->count;
    int64_t whole = t->whole_pieces ? carry_tokenizer_named(t, (const char *)piece, length) : -1;
    if (whole >= 0) {
        ids->id[ids->count++] = (uint32_t)whole;
    } else if (length <= SHORT_PIECE) {
        ids->count += merge_short(t, ids->id + ids->count, piece, length);
    } else {
        const carry_status status = merge_long(e, ids, piece, length);
        if (length > KEPT) {
            drop_workspace(e);
        }
        return status;
    }
    size_t count = ids->count - before;
    if (slot != NULL && count <= CACHE_IDS) {
        slot->length = (unsigned char)length;
        slot->count = (unsigned char)count;
        memcpy(slot->bytes, piece, length);
        memcpy(slot->id, ids->id + before, count * sizeof *slot->id);
    }
    return CARRY_OK;
}

carry_merger *carry_merger_new(const carry_tokenizer *tokenizer) {
    carry_merger *made = calloc(1, sizeof *made);
    if (made != NULL) {
        made->tokenizer = tokenizer;
        made->cache = calloc(CACHE_SLOTS, sizeof *made->cache);
    }
    if (made == NULL || made->cache == NULL) {
        carry_merger_free(made);
        return NULL;
    }
    return made;
}

void carry_merger_set_cancel(carry_merger *merger, const atomic_bool *flag) {
    merger->cancelled = flag;
}

void carry_merger_free(carry_merger *merger) {
    if (merger != NULL) {
        free(merger->cache);
        free(merger->symbols);
        free(merger->heap);
        free(merger);
    }
}
