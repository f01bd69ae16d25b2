/* The internal structure of a Unigram tokenizer, shared by unigram.c (encoding) and unigram_file.c (reading). */
#ifndef CARRY_UNIGRAM_INTERNAL_H
#define CARRY_UNIGRAM_INTERNAL_H

#include <stdbool.h>

#include "tokenizer/unigram.h"

/* The numbers that SentencePiece uses. */
typedef enum carry_piece_kind {
    CARRY_PIECE_NORMAL = 1,
    CARRY_PIECE_UNKNOWN = 2,
    CARRY_PIECE_CONTROL = 3,
    CARRY_PIECE_GIVEN = 4, /* a user-defined symbol */
    CARRY_PIECE_UNUSED = 5,
    CARRY_PIECE_BYTE = 6
} carry_piece_kind;

typedef struct carry_unigram_piece {
    size_t at; /* offset in text */
    uint32_t length;
    float score;
    carry_piece_kind kind;
} carry_unigram_piece;

struct carry_unigram {
    carry_ctx *ctx;
    carry_unigram_piece *piece;
    int64_t pieces, room;
    char *text; /* bytes of all pieces */
    size_t text_bytes, text_room;
    unsigned char *map; /* the character map: a double array of 4-byte units, then the replacement texts; or NULL */
    size_t map_bytes, units;
    int64_t unknown, end; /* <unk> and </s> */
    int64_t byte[256];    /* pieces of single bytes; all -1: no such pieces */
    bool has_bytes;
    /* Made by carry_unigram_finish. */
    int64_t *slot; /* a hash table of the pieces that can occur in a text; -1: free */
    size_t slots;  /* a power of two */
    size_t longest;
    float lowest, highest; /* scores of normal pieces */
};

carry_status carry_unigram_add(carry_unigram *u, const char *piece, size_t length, float score, carry_piece_kind kind);
carry_status carry_unigram_finish(carry_unigram *u, const char *path);
/* Copies the bytes of a character map. CARRY_EFORMAT: they are not a valid map. */
carry_status carry_unigram_set_map(carry_unigram *u, const void *bytes, size_t count, const char *path);

#endif
