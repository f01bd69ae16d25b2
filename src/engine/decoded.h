/* The text of tokens as they come: whole characters, up to a stop text. */
#ifndef CARRY_ENGINE_DECODED_H
#define CARRY_ENGINE_DECODED_H

#include "tokenizer/tokenizer.h"

typedef struct carry_decoded {
    const carry_tokenizer *tokenizer; /* NULL: there is no text */
    const char *const *stops;         /* the text ends before any of these; empty ones are ignored */
    int64_t stop_count;
    bool is_first; /* no token was decoded yet, and nothing is before the text */
    char *text;    /* UTF-8, with U+FFFD for other bytes; ends with 0 */
    size_t length, room;
    size_t settled; /* of it, bytes that cannot turn out to be part of a stop text */
    carry_unfold unfold;
} carry_decoded;

/* Appends a token. *is_stopped: a stop text was found, and the text ends before it. */
carry_status carry_decoded_add(carry_ctx *ctx, carry_decoded *text, int64_t token, bool *is_stopped);
/* No more tokens: bytes of an incomplete character become U+FFFD, unless the text was stopped. */
void carry_decoded_end(carry_decoded *text, bool is_stopped);
void carry_decoded_free(carry_decoded *text);

#endif
