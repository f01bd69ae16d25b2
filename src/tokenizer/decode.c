/* Decoding of a whole text, and of tokens one by one. */
#include <stdlib.h>
#include <string.h>

#include "core/memory.h"
#include "tokenizer/tokenizer_internal.h"
#include "tokenizer/utf8.h"

/* Copies the name of a text's first token without its Metaspace marks. Returns the number of bytes. */
static size_t put_without_marks(const carry_metaspace *mark, const char *name, size_t length, char *to) {
    size_t written = 0;
    for (size_t at = 0; at < length;) {
        if (length - at >= mark->length && memcmp(name + at, mark->mark, mark->length) == 0) {
            at += mark->length;
        } else {
            to[written++] = name[at++];
        }
    }
    return written;
}

static size_t put_token(const carry_tokenizer *tokenizer, int64_t id, bool first, char *to) {
    const carry_token *token = &tokenizer->token[id];
    const carry_parts *parts = &tokenizer->parts;
    if (first && parts->unmark.used && parts->unmark.prepend != CARRY_PREPEND_NEVER) {
        return put_without_marks(&parts->unmark, tokenizer->text + token->start, token->length, to);
    }
    memcpy(to, tokenizer->text + token->decoded, token->decoded_length);
    return token->decoded_length;
}

/* Removes up to parts.strips spaces from the start of a text. Returns the remaining length. */
static size_t strip(const carry_tokenizer *tokenizer, char *text, size_t length) {
    size_t spaces = 0;
    while (spaces < (size_t)tokenizer->parts.strips && spaces < length && text[spaces] == ' ') {
        spaces++;
    }
    memmove(text, text + spaces, length - spaces);
    return length - spaces;
}

size_t carry_decode_token(const carry_tokenizer *tokenizer, int64_t id, bool first, char *to) {
    size_t length = put_token(tokenizer, id, first, to);
    return first ? strip(tokenizer, to, length) : length;
}

carry_status carry_decode(carry_ctx *ctx, const carry_tokenizer *tokenizer, char **text, size_t *length,
                          const uint32_t *ids, size_t count, bool without_specials) {
    *text = NULL;
    *length = 0;
    size_t total = 1;
    for (size_t i = 0; i < count; i++) {
        if (ids[i] >= tokenizer->count) {
            return carry_fail(ctx, CARRY_ERANGE, "token %zu is %u, and the tokenizer has %lld", i, ids[i],
                              (long long)tokenizer->count);
        }
        if (!carry_size_add(&total, total, tokenizer->token[ids[i]].decoded_length)) {
            return carry_fail(ctx, CARRY_ESIZE, "the text of %zu tokens has too many bytes", count);
        }
    }
    char *made = malloc(total);
    if (made == NULL) {
        return carry_fail(ctx, CARRY_EMEMORY, "out of memory: a text of %zu bytes", total);
    }
    size_t at = 0;
    bool begun = false;
    for (size_t i = 0; i < count; i++) {
        const carry_token *token = &tokenizer->token[ids[i]];
        if (!(without_specials && token->special)) {
            at += put_token(tokenizer, ids[i], !begun, made + at);
            begun = true;
        }
    }
    at = strip(tokenizer, made, at);
    made[at] = '\0';
    *text = made;
    *length = at;
    return CARRY_OK;
}

static size_t put_replacement(char *to) {
    static const unsigned char replacement[3] = {0xEF, 0xBF, 0xBD}; /* U+FFFD */
    memcpy(to, replacement, sizeof replacement);
    return sizeof replacement;
}

size_t carry_unfold_bytes(carry_unfold *unfold, char *to, const void *bytes, size_t length) {
    const unsigned char *from = bytes;
    size_t written = 0;
    for (size_t i = 0; i < length; i++) {
        if (unfold->count > 0 && !carry_utf8_continues(unfold->held[0], unfold->count, from[i])) {
            written += put_replacement(to + written);
            unfold->count = 0;
        }
        if (unfold->count == 0 && carry_utf8_length(from[i]) == 0) {
            written += put_replacement(to + written);
            continue;
        }
        unfold->held[unfold->count++] = from[i];
        if (unfold->count == carry_utf8_length(unfold->held[0])) {
            memcpy(to + written, unfold->held, (size_t)unfold->count);
            written += (size_t)unfold->count;
            unfold->count = 0;
        }
    }
    return written;
}

size_t carry_unfold_end(carry_unfold *unfold, char *to) {
    size_t written = unfold->count > 0 ? put_replacement(to) : 0;
    unfold->count = 0;
    return written;
}
