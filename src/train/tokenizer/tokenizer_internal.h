/* The inside of a tokenizer, and how one is built: tokens first, each with its number; then merges; then it is closed,
   which checks that nothing is missing. */
#ifndef CARRY_TRAIN_TOKENIZER_INTERNAL_H
#define CARRY_TRAIN_TOKENIZER_INTERNAL_H

#include "core/error.h"
#include "train/tokenizer/pattern.h"
#include "train/tokenizer/tokenizer.h"

typedef struct carry_token {
    size_t start; /* of its bytes in text */
    uint32_t length;
    bool known;         /* has been given */
    bool literal;       /* its characters are no byte alphabet: written and read as they stand */
    bool in_vocabulary; /* of the model: merges may name it */
    bool added, special, normalized;
    size_t content; /* of an added token, as it stands in texts: its bytes are what it is decoded to */
    uint32_t content_length;
} carry_token;

typedef struct carry_merge {
    uint32_t left, right, result;
} carry_merge;

typedef struct carry_pair_slot {
    uint64_t pair; /* left and right; NO_PAIR: free */
    uint32_t rank, result;
} carry_pair_slot;
#define CARRY_NO_PAIR UINT64_MAX

/* Added tokens of one pass, by their first byte; longer ones first. */
typedef struct carry_added {
    uint32_t *id;
    int count;
    int first[257]; /* of those that start with byte b: first[b]..first[b+1]-1 */
    int only;       /* the byte that all start with, or -1 */
} carry_added;

struct carry_tokenizer {
    carry_token *token;
    int64_t count, room;
    char *text;
    size_t text_bytes, text_room;
    uint32_t *name; /* hash table from the bytes of a token to its number + 1 */
    size_t names;   /* its size, a power of two, and how many are in it */
    size_t named;
    uint32_t byte[256];
    carry_merge *merge; /* in the order of the list */
    int64_t merge_count, merge_room;
    carry_pair_slot *pair; /* hash table */
    size_t pairs;          /* its size */
    bool whole_pieces;     /* "ignore_merges": a piece that is a token is that token */
    carry_added added[2];  /* first pass: not normalized; second: normalized */
    size_t longest_added;
    int64_t end;
    carry_pattern *pattern;
};

/* The byte alphabet of GPT-2: printable bytes stand for themselves, the others for U+0100 and up. */
uint32_t carry_byte_to_code(unsigned char byte);
int carry_code_to_byte(uint32_t code); /* -1: none */

uint64_t carry_hash_bytes(const void *bytes, size_t length);
static inline uint64_t carry_hash_pair(uint64_t pair) {
    pair *= 0x9E3779B97F4A7C15u;
    return pair ^ pair >> 29;
}

carry_tokenizer *carry_tokenizer_new(void);
/* A token that is not known yet, with this number, below CARRY_TOKENS_MOST. */
carry_status carry_tokenizer_put(carry_ctx *ctx, carry_tokenizer *tokenizer, int64_t id, const char *bytes,
                                 size_t length, bool literal, bool in_vocabulary);
/* Makes a token an added one, which is put when it is not known yet. As in `tokenizers`, one whose characters are all
   in the byte alphabet is decoded through it, which for those beyond ASCII is not what it was. */
carry_status carry_tokenizer_add(carry_ctx *ctx, carry_tokenizer *tokenizer, int64_t id, const char *content,
                                 size_t length, bool special, bool normalized, bool in_vocabulary);
/* Special tokens numbered from first. */
carry_status carry_tokenizer_add_specials(carry_ctx *ctx, carry_tokenizer *tokenizer, int64_t first,
                                          const char *const *added, int count);
/* The bytes that these characters stand for; false, and the characters as they are, when one is not of the alphabet. to
   has room for length bytes. */
bool carry_alphabet_bytes(const char *characters, size_t length, char *to, size_t *bytes);
/* The number of a token of the model that is not literal; -1. */
int64_t carry_tokenizer_named(const carry_tokenizer *tokenizer, const char *bytes, size_t length);
carry_status carry_tokenizer_merge(carry_ctx *ctx, carry_tokenizer *tokenizer, uint32_t left, uint32_t right,
                                   uint32_t result);
/* Checks and completes; name is what messages call it. */
carry_status carry_tokenizer_close(carry_ctx *ctx, carry_tokenizer *tokenizer, const char *name);

/* The hash table of merges, made anew. A pair that is listed twice counts where it stands last, as in `tokenizers`. */
carry_status carry_tokenizer_index_merges(carry_ctx *ctx, carry_tokenizer *tokenizer);

/* NULL when the pair does not merge. */
static inline const carry_pair_slot *carry_tokenizer_pair(const carry_tokenizer *t, uint32_t left, uint32_t right) {
    uint64_t pair = (uint64_t)left << 32 | right;
    for (size_t at = carry_hash_pair(pair) & (t->pairs - 1);; at = (at + 1) & (t->pairs - 1)) {
        if (t->pair[at].pair == pair) {
            return &t->pair[at];
        }
        if (t->pair[at].pair == CARRY_NO_PAIR) {
            return NULL;
        }
    }
}

/* Room for `more` behind count, for lists that grow by doubling; false when there is no memory. */
bool carry_list_grow(void *list, size_t *room, size_t count, size_t more, size_t item);

#endif
