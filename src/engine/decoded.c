/* Decodes token by token and searches for stop texts. */
#include "engine/decoded.h"

#include <stdlib.h>
#include <string.h>

#include "core/error.h"

/* Reserves memory for `length` more bytes and a 0. */
static carry_status make_room(carry_ctx *ctx, carry_decoded *t, size_t length) {
    const size_t needed = t->length + CARRY_UNFOLD_GROWTH * (length + 4) + 1;
    if (needed <= t->room) {
        return CARRY_OK;
    }
    const size_t room = needed < 256 ? 256 : 2 * needed;
    char *grown = realloc(t->text, room);
    if (grown == NULL) {
        return carry_fail(ctx, CARRY_EMEMORY, "out of memory: a text of %zu bytes", room);
    }
    t->text = grown;
    t->room = room;
    return CARRY_OK;
}

/* Searches for the stop texts, in matches that end after byte `before`. The text is cut where the earliest match
   begins. t->settled becomes the number of bytes that can no longer be part of a stop text. */
static bool find_stop(carry_decoded *t, size_t before) {
    size_t end = t->length;
    size_t held = 0;
    for (int64_t i = 0; i < t->stop_count; i++) {
        const char *stop = t->stops[i];
        const size_t length = strlen(stop);
        const size_t from = before >= length ? before - length + 1 : 0;
        const char *found =
            length > 0 && from < t->length ? memmem(t->text + from, t->length - from, stop, length) : NULL;
        if (found != NULL && (size_t)(found - t->text) < end) {
            end = (size_t)(found - t->text);
            t->stop = i;
        }
        size_t some = length > t->length ? t->length : length > 0 ? length - 1 : 0;
        while (some > held && memcmp(t->text + t->length - some, stop, some) != 0) {
            some--;
        }
        held = some > held ? some : held;
    }
    const bool is_found = end < t->length;
    t->length = end;
    t->settled = is_found ? end : t->length - held;
    return is_found;
}

/* Appends the bytes of a token. */
static carry_status decode(carry_ctx *ctx, carry_decoded *t, int64_t token) {
    size_t length;
    if (t->tokenizer == NULL || carry_tokenizer_token(t->tokenizer, token, &length) == NULL ||
        carry_tokenizer_is_special(t->tokenizer, token)) {
        return CARRY_OK;
    }
    char few[64];
    char *bytes = length <= sizeof few ? few : malloc(length);
    if (bytes == NULL) {
        return carry_fail(ctx, CARRY_EMEMORY, "out of memory: a token of %zu bytes", length);
    }
    const size_t shown = carry_decode_token(t->tokenizer, token, t->is_first, bytes);
    t->is_first = false;
    const carry_status status = make_room(ctx, t, shown);
    if (status == CARRY_OK) {
        t->length += carry_unfold_bytes(&t->unfold, t->text + t->length, bytes, shown);
    }
    if (bytes != few) {
        free(bytes);
    }
    return status;
}

carry_status carry_decoded_add(carry_ctx *ctx, carry_decoded *t, int64_t token, bool *is_stopped) {
    const size_t before = t->length;
    *is_stopped = false;
    CARRY_TRY(decode(ctx, t, token));
    *is_stopped = find_stop(t, before);
    return CARRY_OK;
}

void carry_decoded_end(carry_decoded *t, bool is_stopped) {
    if (!is_stopped && t->text != NULL) {
        t->length += carry_unfold_end(&t->unfold, t->text + t->length);
    }
    if (t->text != NULL) {
        t->text[t->length] = '\0';
    }
    t->settled = t->length;
}

void carry_decoded_free(carry_decoded *t) {
    free(t->text);
    *t = (carry_decoded){0};
}
