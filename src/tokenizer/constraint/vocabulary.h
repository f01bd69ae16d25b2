/* The tokens of a tokenizer as a tree of bytes, stored in depth-first order. */
#ifndef CARRY_TOKENIZER_CONSTRAINT_VOCABULARY_H
#define CARRY_TOKENIZER_CONSTRAINT_VOCABULARY_H

#include "tokenizer/tokenizer.h"

#define CARRY_VOCABULARY_DEPTH 512 /* longest token in bytes; longer ones are left out */

typedef struct carry_vocabulary_node {
    uint32_t after;  /* the first node that is not a descendant of this one */
    uint32_t tokens; /* index of its first token; its last is before the first of the next node */
    uint16_t depth;  /* bytes on the path to it, from 1 */
    unsigned char byte;
} carry_vocabulary_node;

typedef struct carry_vocabulary {
    carry_vocabulary_node *node; /* with one more at the end, which ends the last list of tokens */
    uint32_t count;
    int32_t *token;
    uint32_t token_count;
    int64_t size; /* tokens of the tokenizer */
} carry_vocabulary;

/* Special tokens and tokens without bytes are left out. */
carry_status carry_vocabulary_new(carry_ctx *ctx, carry_vocabulary *vocabulary, const carry_tokenizer *tokenizer);
void carry_vocabulary_free(carry_vocabulary *vocabulary);

#endif
