/* The internal structure of a tokenizer, and how one is built: first tokens with their numbers, then merges; then
   carry_tokenizer_finish checks that nothing is missing. */
#ifndef CARRY_TOKENIZER_INTERNAL_H
#define CARRY_TOKENIZER_INTERNAL_H

#include "core/error.h"
#include "tokenizer/pattern.h"
#include "tokenizer/tokenizer.h"

typedef struct carry_token {
    size_t start; /* offset of its bytes in text */
    uint32_t length;
    bool known;         /* its number is in use */
    bool literal;       /* not written in the byte alphabet: its characters are read and written unchanged */
    bool in_vocabulary; /* part of the model, so merges may name it */
    bool added, special, normalized;
    size_t content; /* text of an added token */
    uint32_t content_length;
    size_t match; /* the text that is searched for in its pass */
    uint32_t match_length;
    size_t decoded; /* offset of its decoded text */
    uint32_t decoded_length;
} carry_token;

typedef struct carry_merge {
    uint32_t left, right, result;
} carry_merge;

typedef struct carry_pair_slot {
    uint64_t pair; /* left and right; NO_PAIR: free */
    uint32_t rank, result;
} carry_pair_slot;
#define CARRY_NO_PAIR UINT64_MAX

/* Added tokens of one pass, sorted by their first byte; longer ones first. */
typedef struct carry_added {
    uint32_t *id;
    int count;
    int first[257]; /* tokens that start with byte b are id[first[b]] to id[first[b + 1] - 1] */
    int only;       /* the byte that all of them start with, or -1 */
} carry_added;

/* Steps that change a text before it is cut, in the order of the list. */
#define CARRY_NORMALS 8
typedef enum carry_normal_kind { CARRY_NORMAL_NFC, CARRY_NORMAL_PREPEND, CARRY_NORMAL_REPLACE } carry_normal_kind;
#define CARRY_NORMAL_BYTES 16
typedef struct carry_normal {
    carry_normal_kind kind;
    unsigned char from_length, to_length;
    char from[CARRY_NORMAL_BYTES], to[CARRY_NORMAL_BYTES]; /* replace: from, to; prepend: to */
} carry_normal;

/* Metaspace replaces spaces by a mark, which may also be put before a text and may start pieces. */
typedef enum carry_prepend { CARRY_PREPEND_NEVER, CARRY_PREPEND_FIRST, CARRY_PREPEND_ALWAYS } carry_prepend;
typedef struct carry_metaspace {
    bool used, splits;
    carry_prepend prepend;
    unsigned char length;
    char mark[5];
} carry_metaspace;

#define CARRY_STAGES 4    /* at most this many patterns; each one cuts the pieces of the one before */
#define CARRY_TEMPLATE 16 /* at most this many tokens before a text, and as many after it */

/* The parts of tokenizer.json other than its model. */
typedef struct carry_parts {
    bool was_read; /* from a file; if false, carry_tokenizer_finish sets the parts of GPT-2 */
    carry_normal normal[CARRY_NORMALS];
    int normals;
    carry_pattern *stage[CARRY_STAGES];
    int stages;
    carry_metaspace metaspace;
    bool by_character;    /* merging starts from characters, or from bytes such as <0x00> for characters that are not
                             tokens; if false, from bytes */
    bool words_are_apart; /* by character: no merge crosses the start of a run of space marks */
    carry_normal shown[CARRY_NORMALS]; /* by character: replacements that decoding makes in each token */
    int shows;
    bool shows_bytes;       /* a token such as <0x00> decodes to a byte */
    int strips;             /* at most this many spaces are removed from the start of a decoded text */
    carry_metaspace unmark; /* the decoder Metaspace, if used */
    uint32_t before[CARRY_TEMPLATE], after[CARRY_TEMPLATE];
    int befores, afters;
    carry_cut_rule rule;
} carry_parts;

struct carry_tokenizer {
    carry_token *token;
    int64_t count, room;
    char *text;
    size_t text_bytes, text_room;
    uint32_t *name; /* hash table from the bytes of a token to its number + 1 */
    size_t names;   /* size of the table, a power of two, and the number of entries */
    size_t named;
    uint32_t byte[256];
    carry_merge *merge; /* in the order of the merges list */
    int64_t merge_count, merge_room;
    carry_pair_slot *pair; /* hash table of merges */
    size_t pairs;          /* size of the hash table */
    bool whole_pieces;     /* "ignore_merges": a piece that equals a token becomes that token */
    carry_added added[2];  /* [0]: searched before normalization; [1]: after it */
    size_t longest_added;
    int64_t end;
    carry_parts parts;
    char *source; /* the original tokenizer.json if it has more than this code would write; else NULL */
    size_t source_length;
    char *settings; /* the tokenizer_config.json of the same folder, or NULL */
    size_t settings_length;
    int64_t eos; /* its eos_token; -1: none */
    char *chat;  /* the chat template, from chat_template.jinja or tokenizer_config.json; or NULL */
    size_t chat_length;
    bool has_chat_file;
    struct carry_constraint_cache *constraints; /* does its own locking (constraint/constraint.h) */
};

/* Reads normalizer, pre_tokenizer, post_processor and decoder into made->parts. *is_plain: they equal those that
   carry_tokenizer_write writes. Templates are read later, when tokens have their numbers. */
struct carry_json;
carry_status carry_parts_read(carry_ctx *ctx, carry_tokenizer *made, const struct carry_json *root, const char *name,
                              bool *is_plain);
carry_status carry_parts_read_template(carry_ctx *ctx, carry_tokenizer *made, const struct carry_json *root,
                                       const char *name);
/* Reads the decoder of a model by character; called by carry_parts_read. */
carry_status carry_parts_read_decoder(carry_ctx *ctx, carry_parts *parts, const struct carry_json *decoder,
                                      const char *name);
/* Reads a Replace step, which normalizers and decoders share. */
carry_status carry_parts_read_replace(carry_ctx *ctx, carry_normal *normal, const struct carry_json *node,
                                      const char *name);
/* Fails with "NAME, line N: WHAT is VALUE, which is not supported"; VALUE is the node's type if it has one. */
carry_status carry_parts_refuse(carry_ctx *ctx, const struct carry_json *node, const char *what, const char *name);
void carry_parts_free(carry_parts *parts);
/* Reads tokenizer_config.json and chat_template.jinja of a folder, if they exist. */
carry_status carry_tokenizer_read_beside(carry_ctx *ctx, carry_tokenizer *tokenizer, const char *folder);

/* A growing buffer of bytes; all zero is an empty buffer. */
typedef struct carry_buffer {
    char *at;
    size_t count, room;
} carry_buffer;
bool carry_buffer_add(carry_buffer *buffer, const void *bytes, size_t length); /* false: out of memory */

/* True if the flag, which may be NULL, is set. */
static inline bool carry_is_cancelled(const atomic_bool *flag) {
    return flag != NULL && atomic_load_explicit(flag, memory_order_relaxed);
}

/* True if this build has NFC. */
bool carry_normal_has_nfc(void);
bool carry_nfc_may_change(const unsigned char *text, size_t length);
/* Appends the text in NFC, in time linear in its length; bytes that are not UTF-8 are kept. Returns false if out of
   memory, or cancelled. */
bool carry_nfc_put(carry_buffer *to, const unsigned char *text, size_t length, const atomic_bool *cancelled);
/* Applies the steps to a text. *to is the text itself if no step applies, else it points into one of the two buffers.
   first: this is the start of a text, where Prepend adds its content. Returns false if out of memory, or cancelled. */
bool carry_normalize(const carry_parts *parts, bool first, const unsigned char *text, size_t length,
                     carry_buffer buffer[2], const unsigned char **to, size_t *to_length, const atomic_bool *cancelled);
/* Replaces spaces by Metaspace marks, into one buffer. Returns false if out of memory. */
bool carry_metaspace_put(const carry_metaspace *metaspace, bool first, const unsigned char *text, size_t length,
                         carry_buffer *buffer);
/* Returns the length of the first piece of a text in models by character: it ends before the next mark. */
size_t carry_metaspace_piece(const carry_parts *parts, const unsigned char *text, size_t length);
/* Returns the decoded text of a token's name in *to; false if out of memory. */
bool carry_shown(const carry_parts *parts, const char *name, size_t length, carry_buffer buffer[2], const char **to,
                 size_t *to_length);

/* The byte alphabet of GPT-2: printable bytes stand for themselves, the others for U+0100 and up. */
uint32_t carry_byte_to_code(unsigned char byte);
int carry_code_to_byte(uint32_t code); /* -1: not in the alphabet */

uint64_t carry_hash_bytes(const void *bytes, size_t length);
static inline uint64_t carry_hash_pair(uint64_t pair) {
    pair *= 0x9E3779B97F4A7C15u;
    return pair ^ pair >> 29;
}

carry_tokenizer *carry_tokenizer_new(void);
/* Adds a token with this number, which must be unused and below CARRY_TOKENS_MOST. */
carry_status carry_tokenizer_put(carry_ctx *ctx, carry_tokenizer *tokenizer, int64_t id, const char *bytes,
                                 size_t length, bool literal, bool in_vocabulary);
/* Marks a token as added; creates the token before that if the number is unused. As in `tokenizers`, a token whose
   characters are all in the byte alphabet decodes to the bytes that these characters stand for; beyond ASCII, this
   differs from the token's own text. */
carry_status carry_tokenizer_add(carry_ctx *ctx, carry_tokenizer *tokenizer, int64_t id, const char *content,
                                 size_t length, bool special, bool normalized, bool in_vocabulary);
/* Adds special tokens, numbered from first. */
carry_status carry_tokenizer_add_specials(carry_ctx *ctx, carry_tokenizer *tokenizer, int64_t first,
                                          const char *const *added, int count);
/* Converts characters of the byte alphabet to their bytes. Returns false, and copies the characters unchanged, if one
   is not in the alphabet. `to` must have room for length bytes. */
bool carry_alphabet_bytes(const char *characters, size_t length, char *to, size_t *bytes);
/* Returns the number of a token of the model that is not literal, or -1. */
int64_t carry_tokenizer_named(const carry_tokenizer *tokenizer, const char *bytes, size_t length);
carry_status carry_tokenizer_merge(carry_ctx *ctx, carry_tokenizer *tokenizer, uint32_t left, uint32_t right,
                                   uint32_t result);
/* Checks and completes the tokenizer; name is used in messages. */
carry_status carry_tokenizer_finish(carry_ctx *ctx, carry_tokenizer *tokenizer, const char *name);

/* Rebuilds the hash table of merges. If a pair is listed twice, its last position counts, as in `tokenizers`. */
carry_status carry_tokenizer_index_merges(carry_ctx *ctx, carry_tokenizer *tokenizer);

/* Returns NULL if the pair does not merge. */
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

/* Turns pieces into tokens; use one per thread. carry_merger_new returns NULL when out of memory. */
typedef struct carry_merger carry_merger;
carry_merger *carry_merger_new(const carry_tokenizer *tokenizer);
void carry_merger_free(carry_merger *merger);
void carry_merger_set_cancel(carry_merger *merger, const atomic_bool *flag);
/* CARRY_EMEMORY, or CARRY_EINTERRUPTED if cancelled. */
carry_status carry_merger_piece(carry_merger *merger, carry_ids *ids, const unsigned char *piece, size_t length);

/* Makes room for `more` items after count, doubling the list as needed; false if out of memory. */
bool carry_list_grow(void *list, size_t *room, size_t count, size_t more, size_t item);

#endif
