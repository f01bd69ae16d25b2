/* Text decoded token by token: whole characters, up to a stop text. */
#ifndef CARRY_ENGINE_DECODED_H
#define CARRY_ENGINE_DECODED_H

#include "tokenizer/tokenizer.h"

/* A stop text and how much of it the end of the text matches. */
typedef struct carry_stop_match {
    size_t length, matched;
    uint32_t *shorter; /* [length] shorter[i]: the longest proper prefix that also ends the first i + 1 bytes */
} carry_stop_match;

typedef struct carry_decoded {
    const carry_tokenizer *tokenizer; /* NULL: there is no text */
    const char *const *stops;         /* the text ends before the first of these; empty ones are ignored */
    int64_t stop_count;
    int64_t stop;  /* once stopped: the index of the stop text that was found */
    bool is_first; /* no token was decoded yet, and there is no text before */
    char *text;    /* UTF-8, with U+FFFD for invalid bytes; ends with 0 */
    size_t length, room;
    size_t settled; /* number of bytes that can no longer be part of a stop text */
    carry_unfold unfold;
    carry_stop_match *match; /* [stop_count], made with the first token */
    uint32_t *shorter;       /* memory of all matches */
} carry_decoded;

/* Appends a token. *is_stopped is set if a stop text was found; the text then ends before it. */
carry_status carry_decoded_add(carry_ctx *ctx, carry_decoded *text, int64_t token, bool *is_stopped);
/* Ends the text: the bytes of an incomplete character become U+FFFD, unless the text was stopped. */
void carry_decoded_end(carry_decoded *text, bool is_stopped);
void carry_decoded_free(carry_decoded *text);

#endif
