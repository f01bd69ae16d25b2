/* Sets of characters, and their encoding as bytes in a grammar. */
#ifndef CARRY_TOKENIZER_CONSTRAINT_CHARACTERS_H
#define CARRY_TOKENIZER_CONSTRAINT_CHARACTERS_H

#include "tokenizer/constraint/grammar.h"

#define CARRY_LAST_CHARACTER 0x10FFFFu

typedef struct carry_range {
    uint32_t low, high;
} carry_range;

typedef struct carry_characters {
    carry_range *range;
    size_t count, room;
} carry_characters;

bool carry_characters_add(carry_characters *set, uint32_t low, uint32_t high); /* false: out of memory */
void carry_characters_free(carry_characters *set);
void carry_characters_sort(carry_characters *set); /* sorts ranges and joins adjacent ones */
bool carry_characters_negate(carry_characters *set);

/* Reads the UTF-8 encoding of one character of the set, whose ranges are sorted. Surrogates are left out. */
uint32_t carry_characters_utf8(carry_grammar *g, const carry_range *range, size_t count, uint32_t next);
/* Reads one character of the set inside a JSON string: unescaped where JSON allows it, else as an escape. */
uint32_t carry_characters_json(carry_grammar *g, const carry_range *range, size_t count, uint32_t next);

#endif
