/* Normalizers and Metaspace, which change a text before it is cut, and the replacements that decoding makes in a token.
   NFC changes nothing below U+0300, so a text without higher characters is passed on without a copy. */
#include <stdlib.h>
#include <string.h>

#include "tokenizer/tokenizer_internal.h"

bool carry_buffer_add(carry_buffer *buffer, const void *bytes, size_t length) {
    if (!carry_list_grow(&buffer->at, &buffer->room, buffer->count, length + 1, 1)) {
        return false;
    }
    if (length > 0) {
        memcpy(buffer->at + buffer->count, bytes, length);
    }
    buffer->count += length;
    return true;
}

static bool replace(const char *from, size_t from_length, const char *to, size_t to_length, const unsigned char *text,
                    size_t length, carry_buffer *made) {
    while (length > 0) {
        const unsigned char *found = memmem(text, length, from, from_length);
        size_t before = found != NULL ? (size_t)(found - text) : length;
        if (!carry_buffer_add(made, text, before) || (found != NULL && !carry_buffer_add(made, to, to_length))) {
            return false;
        }
        text += before;
        length -= before;
        if (found != NULL) {
            text += from_length;
            length -= from_length;
        }
    }
    return true;
}

static bool apply(const carry_normal *step, bool first, const unsigned char *text, size_t length, carry_buffer *to,
                  const atomic_bool *cancelled) {
    switch (step->kind) {
    case CARRY_NORMAL_NFC:
        return carry_nfc_put(to, text, length, cancelled);
    case CARRY_NORMAL_PREPEND:
        return (!first || length == 0 || carry_buffer_add(to, step->to, step->to_length)) &&
               carry_buffer_add(to, text, length);
    case CARRY_NORMAL_REPLACE:
        return replace(step->from, step->from_length, step->to, step->to_length, text, length, to);
    }
    return false;
}

static bool apply_all(const carry_normal *steps, int count, bool first, const unsigned char *text, size_t length,
                      carry_buffer buffer[2], const unsigned char **to, size_t *to_length,
                      const atomic_bool *cancelled) {
    int turn = 0;
    for (int i = 0; i < count; i++) {
        if (steps[i].kind == CARRY_NORMAL_NFC && !carry_nfc_may_change(text, length)) {
            continue;
        }
        carry_buffer *into = &buffer[turn];
        turn = 1 - turn;
        into->count = 0;
        if (!apply(&steps[i], first, text, length, into, cancelled) || !carry_buffer_add(into, "", 0)) {
            return false;
        }
        text = (const unsigned char *)into->at;
        length = into->count;
    }
    *to = text;
    *to_length = length;
    return true;
}

bool carry_normalize(const carry_parts *parts, bool first, const unsigned char *text, size_t length,
                     carry_buffer buffer[2], const unsigned char **to, size_t *to_length,
                     const atomic_bool *cancelled) {
    return apply_all(parts->normal, parts->normals, first, text, length, buffer, to, to_length, cancelled);
}

bool carry_metaspace_put(const carry_metaspace *metaspace, bool first, const unsigned char *text, size_t length,
                         carry_buffer *buffer) {
    buffer->count = 0;
    bool is_marked =
        length > 0 &&
        (text[0] == ' ' || (length >= metaspace->length && memcmp(text, metaspace->mark, metaspace->length) == 0));
    bool wanted = metaspace->prepend == CARRY_PREPEND_ALWAYS || (metaspace->prepend == CARRY_PREPEND_FIRST && first);
    if (length > 0 && wanted && !is_marked && !carry_buffer_add(buffer, metaspace->mark, metaspace->length)) {
        return false;
    }
    return replace(" ", 1, metaspace->mark, metaspace->length, text, length, buffer) && carry_buffer_add(buffer, "", 0);
}

static bool is_mark(const carry_metaspace *m, const unsigned char *text, size_t length) {
    return length >= m->length && memcmp(text, m->mark, m->length) == 0;
}

size_t carry_metaspace_piece(const carry_parts *parts, const unsigned char *text, size_t length) {
    const carry_metaspace *m = &parts->metaspace;
    if (!(m->used && m->splits) && !parts->words_are_apart) {
        return length;
    }
    size_t at = 0;
    while (is_mark(m, text + at, length - at)) { /* skips the marks that start this piece: one, or the whole run */
        at += m->length;
        if (m->used && m->splits) {
            break;
        }
    }
    const unsigned char *next = at < length ? memmem(text + at, length - at, m->mark, m->length) : NULL;
    return next != NULL ? (size_t)(next - text) : length;
}

/* Returns the byte of a name such as <0xE2>, as `tokenizers` parses it; -1 for other names. */
static int byte_of(const char *name, size_t length) {
    if (length != 6 || memcmp(name, "<0x", 3) != 0 || name[5] != '>') {
        return -1;
    }
    int byte = 0;
    for (int i = 3; i < 5; i++) {
        const char *digits = "0123456789abcdef";
        char lower = (char)(name[i] >= 'A' && name[i] <= 'F' ? name[i] + 32 : name[i]);
        const char *digit = lower != '\0' ? strchr(digits, lower) : NULL;
        if (digit == NULL) {
            return -1;
        }
        byte = 16 * byte + (int)(digit - digits);
    }
    return byte;
}

bool carry_shown(const carry_parts *parts, const char *name, size_t length, carry_buffer buffer[2], const char **to,
                 size_t *to_length) {
    const unsigned char *made;
    if (!apply_all(parts->shown, parts->shows, true, (const unsigned char *)name, length, buffer, &made, to_length,
                   NULL)) {
        return false;
    }
    *to = (const char *)made;
    int byte = parts->shows_bytes ? byte_of(*to, *to_length) : -1;
    if (byte >= 0) {
        buffer[0].count = 0;
        unsigned char one = (unsigned char)byte;
        if (!carry_buffer_add(&buffer[0], &one, 1)) {
            return false;
        }
        *to = buffer[0].at;
        *to_length = 1;
    }
    return true;
}
