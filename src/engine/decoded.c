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

/* Prepares the search of Knuth, Morris and Pratt, which looks at each byte of the text once per stop text, however the
   stop texts repeat themselves. */
static carry_status open_matches(carry_ctx *ctx, carry_decoded *t) {
    size_t total = 1;
    for (int64_t i = 0; i < t->stop_count; i++) {
        total += strlen(t->stops[i]);
    }
    t->match = calloc((size_t)t->stop_count, sizeof *t->match);
    t->shorter = total < UINT32_MAX ? calloc(total, sizeof *t->shorter) : NULL;
    if (t->match == NULL || t->shorter == NULL) {
        return carry_fail(ctx, CARRY_EMEMORY, "out of memory: %zu bytes of stop texts", total);
    }
    uint32_t *shorter = t->shorter;
    for (int64_t i = 0; i < t->stop_count; i++) {
        const char *stop = t->stops[i];
        const size_t length = strlen(stop);
        t->match[i] = (carry_stop_match){.length = length, .shorter = shorter};
        uint32_t matched = 0;
        for (size_t k = 1; k < length; k++) {
            while (matched > 0 && stop[k] != stop[matched]) {
                matched = shorter[matched - 1];
            }
            matched += stop[k] == stop[matched];
            shorter[k] = matched;
        }
        shorter += length;
    }
    return CARRY_OK;
}

/* Searches for the stop texts in the bytes from `before` on. The text is cut where the earliest match begins.
   t->settled becomes the number of bytes that can no longer be part of a stop text. */
static bool find_stop(carry_decoded *t, size_t before) {
    size_t end = t->length;
    size_t held = 0;
    for (int64_t i = 0; i < t->stop_count; i++) {
        const char *stop = t->stops[i];
        carry_stop_match *m = &t->match[i];
        for (size_t at = before; at < t->length && m->length > 0 && m->matched < m->length; at++) {
            while (m->matched > 0 && t->text[at] != stop[m->matched]) {
                m->matched = m->shorter[m->matched - 1];
            }
            m->matched += t->text[at] == stop[m->matched];
            if (m->matched == m->length && at + 1 - m->length < end) {
                end = at + 1 - m->length;
                t->stop = i;
            }
        }
        held = m->matched > held ? m->matched : held;
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
    if (t->stop_count > 0 && t->match == NULL) {
        CARRY_TRY(open_matches(ctx, t));
    }
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
    free(t->match);
    free(t->shorter);
    *t = (carry_decoded){0};
}
