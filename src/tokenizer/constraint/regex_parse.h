/* The tree of a regular expression. The parts of a sequence are listed from last to first, since grammars are built
   from their ends. */
#ifndef CARRY_TOKENIZER_CONSTRAINT_REGEX_PARSE_H
#define CARRY_TOKENIZER_CONSTRAINT_REGEX_PARSE_H

#include "tokenizer/constraint/regex.h"

typedef enum carry_regex_kind {
    CARRY_REGEX_SET,
    CARRY_REGEX_SEQUENCE,
    CARRY_REGEX_CHOICE,
    CARRY_REGEX_REPEAT,
    CARRY_REGEX_START, /* ^ */
    CARRY_REGEX_STOP,  /* $ */
} carry_regex_kind;

typedef struct carry_regex_part {
    carry_regex_kind kind;
    int32_t inside, before; /* index of the last part inside, and of the part before this one; -1: none */
    int32_t least, most;    /* bounds of a repetition; most below 0: no limit */
    size_t first, count;    /* ranges of a set */
    uint32_t at;            /* its position, in characters from 1 */
} carry_regex_part;

typedef struct carry_regex {
    carry_ctx *ctx;
    const char *what;
    const char *text;
    size_t length, at;
    int depth;
    bool is_complement; /* the parser is inside [^...] */
    carry_regex_part *part;
    int32_t count, room;
    carry_characters sets;
} carry_regex;

/* *root: the index of a choice of sequences. The caller frees the regex, after failures too. */
carry_status carry_regex_parse(carry_regex *regex, int32_t *root);
void carry_regex_free(carry_regex *regex);

/* regex_class.c. After a backslash: adds the escaped character or class to `set`. *is_class: it is a class such as
   \d. */
carry_status carry_regex_escape(carry_regex *regex, carry_characters *set, bool in_class, bool *is_class);
carry_status carry_regex_class(carry_regex *regex, carry_characters *set); /* after "[" */
void carry_regex_dot(carry_characters *set, bool *is_whole);
uint32_t carry_regex_character(carry_regex *regex); /* reads the next character, which must exist */
carry_status carry_regex_refuse(carry_regex *regex, carry_status status, size_t at, const char *why);

#endif
