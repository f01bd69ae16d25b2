/* Training a byte-level BPE. Pieces are counted once. Each merge then touches only the pieces that contain the pair,
   and changes the counts of the neighbouring pairs. A heap holds the pairs. A count in the heap may be out of date:
   this is noticed when the pair reaches the top, and the pair is then pushed again with its true count. The order of
   pairs with equal counts, and the list of words that each pair is queued with, follow `tokenizers`, so that the same
   text gives the same merges. */
#include <stdlib.h>
#include <string.h>

#include "core/memory.h"
#include "tokenizer/tokenizer_internal.h"

#define FIRST_SLOTS 4096
#define REPORT_EVERY 64

typedef struct word {
    size_t start; /* bytes in the trainer's text while counting; later symbols */
    uint32_t length;
    int64_t count;
} word;

/* Words in which a pair was found. */
typedef struct places {
    uint32_t *word;
    size_t count, room;
} places;

typedef struct pair_count {
    uint64_t pair; /* CARRY_NO_PAIR: free */
    int64_t count;
    int64_t pending; /* index of its list of words in this step; -1: no list */
} pair_count;

typedef struct queued {
    int64_t count;
    uint64_t pair; /* ordered like (left number, right number) */
    size_t places;
} queued;

struct carry_trainer {
    carry_trainer_options options;
    carry_pattern *pattern;
    carry_cutter *cutter;
    word *words;
    size_t word_count, word_room;
    uint32_t *table; /* hash table from a word's bytes to its index + 1 */
    size_t slots;
    unsigned char *text;
    size_t text_bytes, text_room;
    /* used while merging */
    uint32_t *symbols;
    pair_count *pairs;
    size_t pair_slots, pair_used;
    places *lists;
    size_t list_count, list_room;
    size_t *touched; /* slots of pairs that have a pending list */
    size_t touched_count, touched_room;
    queued *heap;
    size_t heap_count, heap_room;
    carry_tokenizer *made;
};

static carry_status no_memory(carry_ctx *ctx) {
    return carry_fail(ctx, CARRY_EMEMORY, "out of memory: training a tokenizer");
}

static size_t slot_of_word(const carry_trainer *t, const unsigned char *bytes, size_t length) {
    size_t at = carry_hash_bytes(bytes, length) & (t->slots - 1);
    for (; t->table[at] != 0; at = (at + 1) & (t->slots - 1)) {
        const word *w = &t->words[t->table[at] - 1];
        if (w->length == length && memcmp(t->text + w->start, bytes, length) == 0) {
            break;
        }
    }
    return at;
}

static bool grow_table(carry_trainer *t) {
    uint32_t *old = t->table;
    size_t olds = t->slots;
    uint32_t *grown = calloc(2 * olds, sizeof *grown);
    if (grown == NULL) {
        return false;
    }
    t->table = grown;
    t->slots = 2 * olds;
    for (size_t i = 0; i < olds; i++) {
        if (old[i] != 0) {
            const word *w = &t->words[old[i] - 1];
            grown[slot_of_word(t, t->text + w->start, w->length)] = old[i];
        }
    }
    free(old);
    return true;
}

static bool count_piece(carry_trainer *t, const unsigned char *piece, size_t length) {
    size_t at = slot_of_word(t, piece, length);
    if (t->table[at] != 0) {
        t->words[t->table[at] - 1].count++;
        return true;
    }
    if (length > UINT32_MAX || t->word_count >= UINT32_MAX - 1 ||
        !carry_list_grow(&t->words, &t->word_room, t->word_count, 1, sizeof *t->words) ||
        !carry_list_grow(&t->text, &t->text_room, t->text_bytes, length, 1)) {
        return false;
    }
    memcpy(t->text + t->text_bytes, piece, length);
    t->words[t->word_count] = (word){t->text_bytes, (uint32_t)length, 1};
    t->text_bytes += length;
    t->table[at] = (uint32_t)++t->word_count;
    return 2 * t->word_count < t->slots || grow_table(t);
}

carry_status carry_trainer_feed(carry_ctx *ctx, carry_trainer *trainer, const void *text, size_t length) {
    const unsigned char *at = text;
    const unsigned char *end = at + length;
    while (at < end) {
        const unsigned char *line = memchr(at, '\n', (size_t)(end - at));
        line = line == NULL ? end : line + 1;
        carry_cutter_start(trainer->cutter, at, (size_t)(line - at));
        const unsigned char *piece;
        for (size_t bytes; (bytes = carry_cutter_next(trainer->cutter, &piece)) > 0;) {
            if (!count_piece(trainer, piece, bytes)) {
                return no_memory(ctx);
            }
        }
        at = line;
    }
    return CARRY_OK;
}

static bool goes_first(const queued *a, const queued *b) {
    return a->count != b->count ? a->count > b->count : a->pair < b->pair;
}

static bool heap_push(carry_trainer *t, queued q) {
    if (!carry_list_grow(&t->heap, &t->heap_room, t->heap_count, 1, sizeof *t->heap)) {
        return false;
    }
    size_t at = t->heap_count++;
    for (; at > 0 && goes_first(&q, &t->heap[(at - 1) / 2]); at = (at - 1) / 2) {
        t->heap[at] = t->heap[(at - 1) / 2];
    }
    t->heap[at] = q;
    return true;
}

static queued heap_pop(carry_trainer *t) {
    queued top = t->heap[0];
    queued last = t->heap[--t->heap_count];
    size_t at = 0;
    for (size_t child; (child = 2 * at + 1) < t->heap_count; at = child) {
        if (child + 1 < t->heap_count && goes_first(&t->heap[child + 1], &t->heap[child])) {
            child++;
        }
        if (!goes_first(&t->heap[child], &last)) {
            break;
        }
        t->heap[at] = t->heap[child];
    }
    t->heap[at] = last;
    return top;
}

static size_t slot_of_pair(const carry_trainer *t, uint64_t pair) {
    size_t at = carry_hash_pair(pair) & (t->pair_slots - 1);
    while (t->pairs[at].pair != pair && t->pairs[at].pair != CARRY_NO_PAIR) {
        at = (at + 1) & (t->pair_slots - 1);
    }
    return at;
}

/* Moves all pairs to a larger table, and updates the slots in `touched`. */
static bool grow_pairs(carry_trainer *t, size_t slots) {
    pair_count *old = t->pairs;
    size_t olds = t->pair_slots;
    pair_count *grown = malloc(slots * sizeof *grown);
    if (grown == NULL) {
        return false;
    }
    for (size_t i = 0; i < slots; i++) {
        grown[i] = (pair_count){CARRY_NO_PAIR, 0, -1};
    }
    t->pairs = grown;
    t->pair_slots = slots;
    for (size_t i = 0; i < olds; i++) {
        if (old[i].pair != CARRY_NO_PAIR) {
            grown[slot_of_pair(t, old[i].pair)] = old[i];
        }
    }
    for (size_t i = 0; i < t->touched_count; i++) {
        t->touched[i] = slot_of_pair(t, old[t->touched[i]].pair);
    }
    free(old);
    return true;
}

/* Adds `change` to the pair's count. If the count grows, the word is added to the pair's pending list, once. */
static bool change_pair(carry_trainer *t, uint32_t left, uint32_t right, int64_t change, uint32_t in_word) {
    if (2 * (t->pair_used + 1) > t->pair_slots && !grow_pairs(t, 2 * t->pair_slots)) {
        return false;
    }
    uint64_t pair = (uint64_t)left << 32 | right;
    size_t at = slot_of_pair(t, pair);
    pair_count *p = &t->pairs[at];
    if (p->pair == CARRY_NO_PAIR) {
        p->pair = pair;
        t->pair_used++;
    }
    p->count += change;
    if (change <= 0) {
        return true;
    }
    if (p->pending < 0) {
        if (!carry_list_grow(&t->lists, &t->list_room, t->list_count, 1, sizeof *t->lists) ||
            !carry_list_grow(&t->touched, &t->touched_room, t->touched_count, 1, sizeof *t->touched)) {
            return false;
        }
        t->lists[t->list_count] = (places){0};
        p->pending = (int64_t)t->list_count++;
        t->touched[t->touched_count++] = at;
    }
    places *list = &t->lists[p->pending];
    if (list->count > 0 && list->word[list->count - 1] == in_word) {
        return true; /* already listed: words are visited in order */
    }
    if (list->count == list->room) { /* most lists are short, so they start small */
        size_t room = list->room == 0 ? 2 : 2 * list->room;
        uint32_t *grown = realloc(list->word, room * sizeof *grown);
        if (grown == NULL) {
            return false;
        }
        list->word = grown;
        list->room = room;
    }
    list->word[list->count++] = in_word;
    return true;
}

/* Queues the pairs that this step has made or made more frequent. */
static bool queue_touched(carry_trainer *t) {
    for (size_t i = 0; i < t->touched_count; i++) {
        pair_count *p = &t->pairs[t->touched[i]];
        if (p->count > 0 && !heap_push(t, (queued){p->count, p->pair, (size_t)p->pending})) {
            return false;
        }
        p->pending = -1;
    }
    t->touched_count = 0;
    return true;
}

/* Merges the pair in one word, and updates the pairs with its neighbours. */
static bool merge_word(carry_trainer *t, uint32_t at, uint32_t left, uint32_t right, uint32_t result) {
    word *w = &t->words[at];
    uint32_t *symbol = t->symbols + w->start;
    uint32_t kept = 0;
    bool ok = true;
    for (uint32_t i = 0; i < w->length; kept++) {
        if (i + 1 >= w->length || symbol[i] != left || symbol[i + 1] != right) {
            symbol[kept] = symbol[i++];
            continue;
        }
        i += 2;
        if (kept > 0) {
            ok = ok && change_pair(t, symbol[kept - 1], left, -w->count, at) &&
                 change_pair(t, symbol[kept - 1], result, w->count, at);
        }
        if (i < w->length) {
            ok = ok && change_pair(t, right, symbol[i], -w->count, at) &&
                 change_pair(t, result, symbol[i], w->count, at);
        }
        symbol[kept] = result;
    }
    w->length = kept;
    return ok;
}

static carry_status start_merging(carry_ctx *ctx, carry_trainer *t) {
    size_t bytes;
    t->symbols = carry_size_mul(&bytes, t->text_bytes + 1, sizeof *t->symbols) ? malloc(bytes) : NULL;
    if (t->symbols == NULL || !grow_pairs(t, FIRST_SLOTS)) {
        return no_memory(ctx);
    }
    for (size_t i = 0; i < t->text_bytes; i++) {
        char byte = (char)t->text[i];
        t->symbols[i] = (uint32_t)carry_tokenizer_named(t->made, &byte, 1);
    }
    for (size_t i = 0; i < t->word_count; i++) {
        const uint32_t *symbol = t->symbols + t->words[i].start;
        for (uint32_t j = 0; j + 1 < t->words[i].length; j++) {
            if (!change_pair(t, symbol[j], symbol[j + 1], t->words[i].count, (uint32_t)i)) {
                return no_memory(ctx);
            }
        }
    }
    return queue_touched(t) ? CARRY_OK : no_memory(ctx);
}

/* Finds or makes the token that a pair merges into. The token may exist already, from another pair. */
static carry_status name_result(carry_ctx *ctx, carry_trainer *t, uint32_t left, uint32_t right, uint32_t *result) {
    const carry_token *a = &t->made->token[left];
    const carry_token *b = &t->made->token[right];
    size_t length = (size_t)a->length + b->length;
    char *bytes = malloc(length);
    if (bytes == NULL) {
        return no_memory(ctx);
    }
    memcpy(bytes, t->made->text + a->start, a->length);
    memcpy(bytes + a->length, t->made->text + b->start, b->length);
    int64_t id = carry_tokenizer_named(t->made, bytes, length);
    carry_status status = CARRY_OK;
    if (id < 0) {
        id = t->made->count;
        status = carry_tokenizer_put(ctx, t->made, id, bytes, length, false, true);
    }
    free(bytes);
    *result = (uint32_t)id;
    return status;
}

static carry_status merge_top(carry_ctx *ctx, carry_trainer *t, const queued *top) {
    uint32_t left = (uint32_t)(top->pair >> 32);
    uint32_t right = (uint32_t)top->pair;
    uint32_t result = 0;
    CARRY_TRY(name_result(ctx, t, left, right, &result));
    CARRY_TRY(carry_tokenizer_merge(ctx, t->made, left, right, result));
    places list = t->lists[top->places];
    t->lists[top->places] = (places){0};
    bool ok = true;
    for (size_t i = 0; i < list.count && ok; i++) {
        ok = merge_word(t, list.word[i], left, right, result);
    }
    free(list.word);
    return ok && queue_touched(t) ? CARRY_OK : no_memory(ctx);
}

static carry_status merge_all(carry_ctx *ctx, carry_trainer *t) {
    int64_t first = t->made->count;
    int64_t least = t->options.least > 0 ? t->options.least : 2;
    while (t->made->count < t->options.size && t->heap_count > 0) {
        queued top = heap_pop(t);
        int64_t now = t->pairs[slot_of_pair(t, top.pair)].count;
        if (top.count != now) {
            top.count = now;
            if (!heap_push(t, top)) { /* cannot fail: an entry was just popped */
                return no_memory(ctx);
            }
            continue;
        }
        if (top.count < 1 || top.count < least) {
            break;
        }
        CARRY_TRY(merge_top(ctx, t, &top));
        int64_t done = t->made->count - first;
        if (t->options.progress != NULL && t->made->merge_count % REPORT_EVERY == 0 &&
            !t->options.progress(t->options.user, done, t->options.size - first)) {
            return carry_fail(ctx, CARRY_EINTERRUPTED, "training a tokenizer was interrupted after %lld merges",
                              (long long)t->made->merge_count);
        }
    }
    return CARRY_OK;
}

/* A pair may be merged twice, if its token was also made from another pair in between. Only its last merge is kept. */
static void drop_repeated(carry_tokenizer *made) {
    int64_t kept = 0;
    for (int64_t i = 0; i < made->merge_count; i++) {
        const carry_pair_slot *slot = carry_tokenizer_pair(made, made->merge[i].left, made->merge[i].right);
        if (slot->rank == (uint32_t)i) {
            made->merge[kept++] = made->merge[i];
        }
    }
    made->merge_count = kept;
}

carry_status carry_trainer_finish(carry_ctx *ctx, carry_trainer *trainer, carry_tokenizer **tokenizer) {
    carry_trainer *t = trainer;
    *tokenizer = NULL;
    t->made = carry_tokenizer_new();
    if (t->made == NULL) {
        return no_memory(ctx);
    }
    CARRY_TRY(carry_tokenizer_add_specials(ctx, t->made, 0, t->options.added, t->options.added_count));
    for (uint32_t code = 0; code < 512; code++) { /* the bytes, in the order of their characters in the byte alphabet */
        int byte = carry_code_to_byte(code);
        char one = (char)byte;
        if (byte >= 0) {
            CARRY_TRY(carry_tokenizer_put(ctx, t->made, t->made->count, &one, 1, false, true));
        }
    }
    CARRY_TRY(start_merging(ctx, t));
    CARRY_TRY(merge_all(ctx, t));
    CARRY_TRY(carry_tokenizer_finish(ctx, t->made, "the new tokenizer"));
    int64_t listed = t->made->merge_count;
    drop_repeated(t->made);
    if (t->made->merge_count != listed) {
        CARRY_TRY(carry_tokenizer_index_merges(ctx, t->made));
    }
    *tokenizer = t->made;
    t->made = NULL;
    return CARRY_OK;
}

carry_status carry_trainer_new(carry_ctx *ctx, carry_trainer **trainer, const carry_trainer_options *options) {
    *trainer = NULL;
    int64_t least = 256 + options->added_count;
    if (options->size < least || options->size > CARRY_TOKENS_MOST) {
        return carry_fail(
            ctx, CARRY_EARGUMENT, "a vocabulary of %lld is not between %lld (the bytes and %d added tokens) and %lld",
            (long long)options->size, (long long)least, options->added_count, (long long)CARRY_TOKENS_MOST);
    }
    carry_trainer *made = calloc(1, sizeof *made);
    if (made == NULL) {
        return no_memory(ctx);
    }
    made->options = *options;
    carry_status status = carry_pattern_new(ctx, &made->pattern);
    if (status == CARRY_OK) {
        made->cutter = carry_cutter_new(made->pattern);
        made->slots = FIRST_SLOTS;
        made->table = calloc(made->slots, sizeof *made->table);
        status = made->cutter == NULL || made->table == NULL ? no_memory(ctx) : CARRY_OK;
    }
    if (status != CARRY_OK) {
        carry_trainer_free(made);
        return status;
    }
    *trainer = made;
    return CARRY_OK;
}

void carry_trainer_free(carry_trainer *trainer) {
    if (trainer == NULL) {
        return;
    }
    for (size_t i = 0; i < trainer->list_count; i++) {
        free(trainer->lists[i].word);
    }
    carry_tokenizer_close(trainer->made);
    carry_cutter_free(trainer->cutter);
    carry_pattern_free(trainer->pattern);
    free(trainer->lists);
    free(trainer->touched);
    free(trainer->heap);
    free(trainer->pairs);
    free(trainer->symbols);
    free(trainer->table);
    free(trainer->words);
    free(trainer->text);
    free(trainer);
}
