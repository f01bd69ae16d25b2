/* NFC: canonical decomposition, canonical order, composition. utf8proc has the tables and composes. Its own ordering
   exchanges neighbours, which takes time quadratic in the length of a run of combining marks, so runs are sorted here.
   Texts are normalized in parts of about PART bytes: a character below U+0300 neither composes with the character
   before it nor changes its place, so a part may begin there. */
#include <stdlib.h>
#include <string.h>

#include "tokenizer/tokenizer_internal.h"
#include "tokenizer/utf8.h"

#ifdef CARRY_HAVE_UTF8PROC
#include <utf8proc.h>
#endif

#define PART ((size_t)1 << 16)
#define CHECKED ((size_t)1 << 16) /* characters between two looks at the flag that cancels */

/* Every character below U+0300 starts with a byte below this one. */
#define FIRST_LEAD 0xCC

bool carry_normal_has_nfc(void) {
#ifdef CARRY_HAVE_UTF8PROC
    return true;
#else
    return false;
#endif
}

bool carry_nfc_may_change(const unsigned char *text, size_t length) {
    for (size_t i = 0; i < length; i++) {
        if (text[i] >= FIRST_LEAD) {
            return true;
        }
    }
    return false;
}

#ifdef CARRY_HAVE_UTF8PROC

#define OPTIONS ((utf8proc_option_t)(UTF8PROC_STABLE | UTF8PROC_COMPOSE))
#define CLASSES 256 /* combining classes; 0: a starter */
#define FEW 16      /* marks that are sorted by insertion */

typedef struct characters {
    int32_t *at;
    size_t count, room; /* one more is allocated, for utf8proc's 0 */
} characters;

static unsigned class_of(int32_t character) {
    return (unsigned)utf8proc_get_property(character)->combining_class % CLASSES;
}

/* Sorts a run of marks by their classes; marks of one class keep their order. `other` has room for the run. */
static void sort_run(int32_t *run, size_t count, int32_t *other) {
    size_t start[CLASSES + 1] = {0};
    for (size_t i = 0; i < count; i++) {
        start[class_of(run[i]) + 1]++;
    }
    for (size_t i = 1; i <= CLASSES; i++) {
        start[i] += start[i - 1];
    }
    for (size_t i = 0; i < count; i++) {
        other[start[class_of(run[i])]++] = run[i];
    }
    memcpy(run, other, count * sizeof *run);
}

static void insert_run(int32_t *run, size_t count) {
    for (size_t i = 1; i < count; i++) {
        const int32_t one = run[i];
        const unsigned class = class_of(one);
        size_t at = i;
        for (; at > 0 && class_of(run[at - 1]) > class; at--) {
            run[at] = run[at - 1];
        }
        run[at] = one;
    }
}

static bool order(characters *c) {
    int32_t *other = NULL;
    for (size_t at = 0; at < c->count;) {
        size_t end = at;
        while (end < c->count && class_of(c->at[end]) != 0) {
            end++;
        }
        if (end - at > FEW && other == NULL && (other = malloc(c->count * sizeof *other)) == NULL) {
            return false;
        }
        if (end - at > FEW) {
            sort_run(c->at + at, end - at, other);
        } else {
            insert_run(c->at + at, end - at);
        }
        at = end + 1;
    }
    free(other);
    return true;
}

static bool decompose_one(characters *c, int32_t character) {
    for (int attempt = 0; attempt < 2; attempt++) {
        int boundary = 0;
        const utf8proc_ssize_t made = utf8proc_decompose_char(
            character, c->at + c->count, (utf8proc_ssize_t)(c->room - c->count), OPTIONS, &boundary);
        if (made < 0) {
            return false;
        }
        if ((size_t)made <= c->room - c->count) {
            c->count += (size_t)made;
            return true;
        }
        const size_t room = 2 * (c->room + (size_t)made);
        int32_t *grown = realloc(c->at, (room + 1) * sizeof *grown);
        if (grown == NULL) {
            return false;
        }
        c->at = grown;
        c->room = room;
    }
    return false;
}

static bool decompose(characters *c, const unsigned char *text, size_t length, const atomic_bool *cancelled) {
    size_t until_check = CHECKED;
    c->room = length + 16;
    c->at = malloc((c->room + 1) * sizeof *c->at);
    while (c->at != NULL && length > 0) {
        int32_t character;
        const utf8proc_ssize_t used = utf8proc_iterate(text, (utf8proc_ssize_t)length, &character);
        if (used <= 0 || !decompose_one(c, character)) {
            return false;
        }
        if (--until_check == 0) {
            until_check = CHECKED;
            if (carry_is_cancelled(cancelled)) {
                return false;
            }
        }
        text += used;
        length -= (size_t)used;
    }
    return c->at != NULL;
}

static bool compose(const unsigned char *text, size_t length, carry_buffer *to, const atomic_bool *cancelled) {
    characters c = {0};
    bool is_done = decompose(&c, text, length, cancelled) && order(&c);
    if (is_done) {
        const utf8proc_ssize_t bytes = utf8proc_reencode(c.at, (utf8proc_ssize_t)c.count, OPTIONS);
        is_done = bytes >= 0 && carry_buffer_add(to, c.at, (size_t)bytes);
    }
    free(c.at);
    return is_done;
}
#else
static bool compose(const unsigned char *text, size_t length, carry_buffer *to, const atomic_bool *cancelled) {
    (void)cancelled;
    return carry_buffer_add(to, text, length); /* tokenizers that need NFC are refused in this build */
}
#endif

/* Returns the end of a part of valid UTF-8 that begins at the start of the text; 0: the first byte is not valid. */
static size_t end_of_part(const unsigned char *text, size_t length) {
    size_t end = 0;
    for (int used; end < length && (used = carry_utf8_at(text + end, length - end)) > 0; end += (size_t)used) {
        if (end >= PART && text[end] < FIRST_LEAD) {
            break;
        }
    }
    return end;
}

bool carry_nfc_put(carry_buffer *to, const unsigned char *text, size_t length, const atomic_bool *cancelled) {
    for (size_t at = 0; at < length;) {
        size_t end = at + end_of_part(text + at, length - at);
        const bool is_plain = !carry_nfc_may_change(text + at, end - at);
        if (carry_is_cancelled(cancelled) || (is_plain && !carry_buffer_add(to, text + at, end - at)) ||
            (!is_plain && !compose(text + at, end - at, to, cancelled))) {
            return false;
        }
        at = end;
        while (end < length && carry_utf8_at(text + end, length - end) == 0) {
            end++;
        }
        if (!carry_buffer_add(to, text + at, end - at)) {
            return false;
        }
        at = end;
    }
    return true;
}
