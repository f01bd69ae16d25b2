/* Encoding. A text is cut at its added tokens, then into pieces; a piece is looked up among those that were encoded
   lately, else merged. Most pieces are words of a few bytes, for which looking at every pair again after each merge is
   fastest; long ones (a page of dashes, a text without spaces) go through a heap, so that no piece is quadratic. */
#include <stdlib.h>
#include <string.h>

#include "core/memory.h"
#include "train/tokenizer/tokenizer_internal.h"

#define SHORT_PIECE 48 /* bytes: where the heap starts to win, measured on random letters */
#define CACHE_SLOTS 16384
#define CACHE_BYTES 25
#define CACHE_IDS 9
#define NEVER UINT32_MAX

/* One cache line: a piece and its numbers. Pieces that need more are merged each time. */
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

/* A merge that was possible when it was found. */
typedef struct candidate {
    uint32_t rank, at, result;
} candidate;

struct carry_encoder {
    const carry_tokenizer *tokenizer;
    carry_cutter *cutter;
    cached *cache;
    symbol *symbols; /* of long pieces */
    size_t symbol_room;
    candidate *heap;
    size_t heap_room, heap_count;
};

static bool goes_first(candidate a, candidate b) {
    return a.rank != b.rank ? a.rank < b.rank : a.at < b.at;
}

static void heap_push(carry_encoder *e, candidate c) {
    size_t at = e->heap_count++;
    for (; at > 0 && goes_first(c, e->heap[(at - 1) / 2]); at = (at - 1) / 2) {
        e->heap[at] = e->heap[(at - 1) / 2];
    }
    e->heap[at] = c;
}

static candidate heap_pop(carry_encoder *e) {
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

static void propose(carry_encoder *e, int32_t at) {
    if (at < 0 || e->symbols[at].after < 0) {
        return;
    }
    const carry_pair_slot *pair =
        carry_tokenizer_pair(e->tokenizer, e->symbols[at].id, e->symbols[e->symbols[at].after].id);
    if (pair != NULL) {
        heap_push(e, (candidate){pair->rank, (uint32_t)at, pair->result});
    }
}

/* A piece of any length. Each merge proposes at most two more, so 3 per byte is room enough. */
static carry_status merge_long(carry_encoder *e, carry_ids *ids, const unsigned char *piece, size_t length) {
    size_t most;
    if (length > INT32_MAX / 4 || !carry_size_mul(&most, length, 3) ||
        !carry_list_grow(&e->symbols, &e->symbol_room, 0, length, sizeof *e->symbols) ||
        !carry_list_grow(&e->heap, &e->heap_room, 0, most, sizeof *e->heap)) {
        return CARRY_EMEMORY;
    }
    int32_t count = (int32_t)length;
    for (int32_t i = 0; i < count; i++) {
        e->symbols[i] = (symbol){e->tokenizer->byte[piece[i]], i - 1, i + 1 < count ? i + 1 : -1, true};
    }
    e->heap_count = 0;
    for (int32_t i = 0; i < count; i++) {
        propose(e, i);
    }
    while (e->heap_count > 0) {
        candidate c = heap_pop(e);
        symbol *left = &e->symbols[c.at];
        if (!left->alive || left->after < 0) {
            continue;
        }
        symbol *right = &e->symbols[left->after];
        const carry_pair_slot *pair = carry_tokenizer_pair(e->tokenizer, left->id, right->id);
        if (pair == NULL || pair->result != c.result || pair->rank != c.rank) {
            continue; /* it was possible, but one of the two has become another since */
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

/* Writes at most length numbers to id; how many. */
static size_t merge_short(const carry_tokenizer *t, uint32_t *id, const unsigned char *piece, size_t length) {
    uint32_t rank[SHORT_PIECE]; /* of the pair that starts here */
    for (size_t i = 0; i < length; i++) {
        id[i] = t->byte[piece[i]];
    }
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

static carry_status encode_piece(carry_encoder *e, carry_ids *ids, const unsigned char *piece, size_t length) {
    const carry_tokenizer *t = e->tokenizer;
    if (!carry_list_grow(&ids->id, &ids->room, ids->count, length, sizeof *ids->id)) {
        return CARRY_EMEMORY;
    }
    if (length == 1) {
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
        return merge_long(e, ids, piece, length);
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

/* The first added token of a pass in text[at..length): its number and place; -1 when there is none. */
static int64_t find_added(const carry_tokenizer *t, int pass, const unsigned char *text, size_t length, size_t *at,
                          carry_specials specials) {
    const carry_added *added = &t->added[pass];
    for (size_t i = *at; added->count > 0 && i < length; i++) {
        if (added->only >= 0) {
            const unsigned char *next = memchr(text + i, added->only, length - i);
            if (next == NULL) {
                return -1;
            }
            i = (size_t)(next - text);
        }
        for (int j = added->first[text[i]]; j < added->first[text[i] + 1]; j++) {
            const carry_token *token = &t->token[added->id[j]];
            if (token->content_length <= length - i &&
                memcmp(text + i, t->text + token->content, token->content_length) == 0 &&
                (specials == CARRY_SPECIALS_FOUND || !token->special)) {
                *at = i;
                return added->id[j];
            }
        }
    }
    return -1;
}

/* What is between the added tokens of passes before this one. */
static carry_status encode_between(carry_encoder *e, carry_ids *ids, int pass, const unsigned char *text, size_t length,
                                   carry_specials specials) {
    if (pass == 2) {
        carry_cutter_start(e->cutter, text, length);
        const unsigned char *piece;
        for (size_t bytes; (bytes = carry_cutter_next(e->cutter, &piece)) > 0;) {
            CARRY_TRY(encode_piece(e, ids, piece, bytes));
        }
        return CARRY_OK;
    }
    for (size_t from = 0; from < length;) {
        size_t at = from;
        int64_t found = find_added(e->tokenizer, pass, text, length, &at, specials);
        size_t end = found < 0 ? length : at;
        if (end > from) {
            CARRY_TRY(encode_between(e, ids, pass + 1, text + from, end - from, specials));
        }
        if (found < 0) {
            break;
        }
        if (!carry_list_grow(&ids->id, &ids->room, ids->count, 1, sizeof *ids->id)) {
            return CARRY_EMEMORY;
        }
        ids->id[ids->count++] = (uint32_t)found;
        from = at + e->tokenizer->token[found].content_length;
    }
    return CARRY_OK;
}

carry_status carry_encode_text(carry_encoder *encoder, carry_ids *ids, const void *text, size_t length,
                               carry_specials specials) {
    return encode_between(encoder, ids, 0, text, length, specials);
}

carry_status carry_encode(carry_ctx *ctx, carry_encoder *encoder, carry_ids *ids, const void *text, size_t length,
                          carry_specials specials) {
    if (carry_encode_text(encoder, ids, text, length, specials) != CARRY_OK) {
        return carry_fail(ctx, CARRY_EMEMORY, "no memory to encode a text of %zu bytes", length);
    }
    return CARRY_OK;
}

/* May an added token that starts at `at` reach across place? One that the text's end cuts off may go on after it. */
static bool reaches_across(const carry_tokenizer *t, const unsigned char *text, size_t length, size_t at,
                           size_t place) {
    for (int pass = 0; pass < 2; pass++) {
        const carry_added *added = &t->added[pass];
        for (int j = added->first[text[at]]; j < added->first[text[at] + 1]; j++) {
            const carry_token *token = &t->token[added->id[j]];
            size_t known = token->content_length < length - at ? token->content_length : length - at;
            if (at + token->content_length > place && memcmp(text + at, t->text + token->content, known) == 0) {
                return true;
            }
        }
    }
    return false;
}

static bool is_inside_added(const carry_tokenizer *t, const unsigned char *text, size_t length, size_t place) {
    for (size_t at = place > t->longest_added ? place - t->longest_added : 0; at < place; at++) {
        if (reaches_across(t, text, length, at, place)) {
            return true;
        }
    }
    return false;
}

size_t carry_tokenizer_last_cut(const carry_tokenizer *tokenizer, const void *text, size_t length) {
    size_t cut = carry_pattern_last_cut(text, length);
    while (cut > 0 && is_inside_added(tokenizer, text, length, cut)) {
        cut = carry_pattern_last_cut(text, cut);
    }
    return cut;
}

carry_status carry_encoder_new(carry_ctx *ctx, carry_encoder **encoder, const carry_tokenizer *tokenizer) {
    *encoder = NULL;
    carry_encoder *made = calloc(1, sizeof *made);
    if (made != NULL) {
        made->tokenizer = tokenizer;
        made->cutter = carry_cutter_new(tokenizer->pattern);
        made->cache = calloc(CACHE_SLOTS, sizeof *made->cache);
    }
    if (made == NULL || made->cutter == NULL || made->cache == NULL) {
        carry_encoder_free(made);
        return carry_fail(ctx, CARRY_EMEMORY, "no memory for an encoder");
    }
    *encoder = made;
    return CARRY_OK;
}

void carry_encoder_free(carry_encoder *encoder) {
    if (encoder != NULL) {
        carry_cutter_free(encoder->cutter);
        free(encoder->cache);
        free(encoder->symbols);
        free(encoder->heap);
        free(encoder);
    }
}

void carry_ids_free(carry_ids *ids) {
    free(ids->id);
    *ids = (carry_ids){0};
}
