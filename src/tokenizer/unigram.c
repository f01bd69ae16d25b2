/* Unigram tokenizers: normalization, and the search for the pieces with the highest total score. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/error.h"
#include "core/json.h"
#include "tokenizer/unigram_internal.h"

#define SPACE "\xE2\x96\x81" /* U+2581, which represents a space in pieces */
#define SPACE_BYTES 3
#define NO_CHARACTER "\xEF\xBF\xBD" /* U+FFFD */
#define UNKNOWN_BELOW 10.0f /* a character without a piece gets the lowest score minus this, as in SentencePiece */
#define TEXT_MOST ((size_t)1 << 24)

void carry_unigram_free(carry_unigram *u) {
    if (u != NULL) {
        free(u->piece);
        free(u->text);
        free(u->map);
        free(u->slot);
        free(u);
    }
}

int64_t carry_unigram_size(const carry_unigram *u) {
    return u->pieces;
}

static carry_status no_memory(const carry_unigram *u) {
    return carry_fail(u->ctx, CARRY_EMEMORY, "out of memory: a tokenizer of %lld pieces", (long long)u->pieces);
}

carry_status carry_unigram_add(carry_unigram *u, const char *piece, size_t length, float score, carry_piece_kind kind) {
    if (u->pieces == u->room) {
        u->room = u->room > 0 ? 2 * u->room : 1024;
        carry_unigram_piece *more = realloc(u->piece, (size_t)u->room * sizeof *more);
        if (more == NULL) {
            return no_memory(u);
        }
        u->piece = more;
    }
    if (u->text_bytes + length > u->text_room) {
        u->text_room = 2 * (u->text_bytes + length) + 4096;
        char *more = realloc(u->text, u->text_room);
        if (more == NULL) {
            return no_memory(u);
        }
        u->text = more;
    }
    if (length > 0) {
        memcpy(u->text + u->text_bytes, piece, length);
    }
    u->piece[u->pieces++] =
        (carry_unigram_piece){.at = u->text_bytes, .length = (uint32_t)length, .score = score, .kind = kind};
    u->text_bytes += length;
    return CARRY_OK;
}

static uint32_t unit_at(const carry_unigram *u, size_t index) {
    const unsigned char *at = u->map + 4 + 4 * index;
    return (uint32_t)at[0] | (uint32_t)at[1] << 8 | (uint32_t)at[2] << 16 | (uint32_t)at[3] << 24;
}

carry_status carry_unigram_set_map(carry_unigram *u, const void *bytes, size_t count, const char *path) {
    if (count == 0) {
        return CARRY_OK;
    }
    const unsigned char *b = bytes;
    const uint32_t size =
        count >= 4 ? (uint32_t)b[0] | (uint32_t)b[1] << 8 | (uint32_t)b[2] << 16 | (uint32_t)b[3] << 24 : 0;
    if (count < 8 || size < 4 || size % 4 != 0 || size > count - 4 || b[count - 1] != 0) {
        return carry_fail(u->ctx, CARRY_EFORMAT, "%s: its character map of %zu bytes is damaged", path, count);
    }
    u->map = malloc(count);
    if (u->map == NULL) {
        return no_memory(u);
    }
    memcpy(u->map, b, count);
    u->map_bytes = count;
    u->units = size / 4;
    return CARRY_OK;
}

/* Finds the longest prefix of a text that is in the character map. Returns its length, or 0, and its replacement
   in *becomes. The map is a double array (S. Yata's darts-clone): a unit has a label, the offset of its children, and a
   flag that tells whether one of them is a value. */
static size_t find_mapped(const carry_unigram *u, const char *text, size_t length, const char **becomes) {
    size_t found = 0;
    if (u->map == NULL) {
        return 0;
    }
    uint32_t unit = unit_at(u, 0);
    size_t at = (size_t)(unit >> 10) << ((unit & 512u) >> 6);
    for (size_t i = 0; i < length; i++) {
        at ^= (unsigned char)text[i];
        if (at >= u->units) {
            return found;
        }
        unit = unit_at(u, at);
        if ((unit & 0x800000FFu) != (unsigned char)text[i]) {
            return found;
        }
        at ^= (size_t)(unit >> 10) << ((unit & 512u) >> 6);
        if ((unit & 256u) != 0 && at < u->units) {
            const size_t value = unit_at(u, at) & 0x7FFFFFFFu;
            const size_t texts = 4 + 4 * u->units;
            if (value < u->map_bytes - texts) { /* each replacement ends with a NUL, the last one too */
                *becomes = (const char *)u->map + texts + value;
                found = i + 1;
            }
        }
    }
    return found;
}

typedef struct growing {
    char *bytes;
    size_t length, room;
    bool failed;
} growing;

static void append(growing *g, const char *bytes, size_t count) {
    if (!g->failed && g->length + count + 1 > g->room) {
        const size_t room = 2 * (g->length + count) + 64;
        char *more = realloc(g->bytes, room);
        if (more == NULL) {
            g->failed = true;
            return;
        }
        g->bytes = more;
        g->room = room;
    }
    if (!g->failed) {
        memcpy(g->bytes + g->length, bytes, count);
        g->length += count;
    }
}

/* Applies the character map, and writes one U+2581 before each word in place of spaces. */
static void normalize(const carry_unigram *u, growing *to, const char *text, size_t length) {
    bool space = true; /* a U+2581 is due before the next character */
    for (size_t i = 0; i < length;) {
        const char *becomes = NULL;
        const int bytes = carry_json_utf8_length(text + i, text + length);
        size_t used = find_mapped(u, text + i, length - i, &becomes);
        size_t count = used > 0 ? strlen(becomes) : 0;
        if (used == 0) {
            used = bytes > 0 ? (size_t)bytes : 1;
            becomes = bytes > 0 ? text + i : NO_CHARACTER;
            count = bytes > 0 ? used : strlen(NO_CHARACTER);
        }
        for (size_t j = 0; j < count; j++) {
            if (becomes[j] == ' ') {
                space = true;
                continue;
            }
            if (space) {
                append(to, SPACE, SPACE_BYTES);
                space = false;
            }
            append(to, becomes + j, 1);
        }
        i += used;
    }
}

static uint64_t hash_on(uint64_t hash, char byte) {
    return (hash ^ (unsigned char)byte) * 1099511628211u;
}

#define HASH_START 14695981039346656037u

static int64_t find_piece(const carry_unigram *u, const char *text, size_t length, uint64_t hash) {
    for (size_t at = (size_t)(hash ^ hash >> 32) & (u->slots - 1);; at = (at + 1) & (u->slots - 1)) {
        const int64_t found = u->slot[at];
        if (found < 0 ||
            (u->piece[found].length == length && memcmp(u->text + u->piece[found].at, text, length) == 0)) {
            return found;
        }
    }
}

static void keep(carry_unigram *u, int64_t index) {
    const carry_unigram_piece *p = &u->piece[index];
    uint64_t hash = HASH_START;
    for (size_t i = 0; i < p->length; i++) {
        hash = hash_on(hash, u->text[p->at + i]);
    }
    size_t at = (size_t)(hash ^ hash >> 32) & (u->slots - 1);
    while (u->slot[at] >= 0) {
        const carry_unigram_piece *other = &u->piece[u->slot[at]];
        if (other->length == p->length && memcmp(u->text + other->at, u->text + p->at, p->length) == 0) {
            return; /* of two equal pieces, the first is used */
        }
        at = (at + 1) & (u->slots - 1);
    }
    u->slot[at] = index;
    u->longest = p->length > u->longest ? p->length : u->longest;
}

carry_status carry_unigram_finish(carry_unigram *u, const char *path) {
    u->slots = 64;
    while (u->slots < 3 * (size_t)u->pieces) {
        u->slots *= 2;
    }
    u->slot = malloc(u->slots * sizeof *u->slot);
    if (u->slot == NULL) {
        return no_memory(u);
    }
    memset(u->slot, 0xFF, u->slots * sizeof *u->slot);
    u->lowest = INFINITY;
    u->highest = -INFINITY;
    u->end = -1;
    memset(u->byte, 0xFF, sizeof u->byte);
    for (int64_t i = 0; i < u->pieces; i++) {
        const carry_unigram_piece *p = &u->piece[i];
        const char *text = u->text + p->at;
        unsigned int value = 0;
        char shown[8] = "";
        (void)snprintf(shown, sizeof shown, "%.*s", p->length < 7 ? (int)p->length : 0, text);
        if (p->kind == CARRY_PIECE_BYTE && sscanf(shown, "<0x%2X>", &value) == 1 && value < 256) {
            u->byte[value] = i;
        } else if (strcmp(shown, "</s>") == 0) {
            u->end = i;
        }
        if (p->length > 0 && (p->kind == CARRY_PIECE_NORMAL || p->kind == CARRY_PIECE_GIVEN)) {
            keep(u, i);
            u->lowest = p->score < u->lowest ? p->score : u->lowest;
            u->highest = p->score > u->highest ? p->score : u->highest;
        }
    }
    u->has_bytes = true;
    for (int i = 0; i < 256; i++) {
        u->has_bytes = u->has_bytes && u->byte[i] >= 0;
    }
    if (u->end < 0 || u->unknown < 0 || u->unknown >= u->pieces || u->longest == 0) {
        return carry_fail(u->ctx, CARRY_EFORMAT, "%s: a tokenizer of %lld pieces without %s", path,
                          (long long)u->pieces,
                          u->longest == 0 ? "text"
                          : u->end < 0    ? "</s>"
                                          : "<unk>");
    }
    return CARRY_OK;
}

/* The best segmentation that ends at a position of the text. */
typedef struct step {
    float score;
    int32_t from;  /* -1: not reached yet */
    int64_t piece; /* -1: a character without a piece */
} step;

static void offer(step *to, float score, size_t from, int64_t piece) {
    if (to->from < 0 || score > to->score) {
        *to = (step){.score = score, .from = (int32_t)from, .piece = piece};
    }
}

static void walk(const carry_unigram *u, step *steps, const char *text, size_t length) {
    for (size_t i = 1; i <= length; i++) {
        steps[i].from = -1;
    }
    steps[0] = (step){0};
    for (size_t i = 0; i < length;) {
        const int bytes = carry_json_utf8_length(text + i, text + length);
        const size_t next = i + (size_t)(bytes > 0 ? bytes : 1);
        uint64_t hash = HASH_START;
        bool has_one = false; /* one piece equals this character */
        for (size_t end = i; end < length && end - i < u->longest;) {
            hash = hash_on(hash, text[end++]);
            if (end < length && ((unsigned char)text[end] & 0xC0) == 0x80) {
                continue;
            }
            const int64_t found = find_piece(u, text + i, end - i, hash);
            if (found >= 0) {
                const carry_unigram_piece *p = &u->piece[found];
                const float score = p->kind == CARRY_PIECE_GIVEN ? (float)(end - i) * u->highest - 0.1f : p->score;
                offer(&steps[end], steps[i].score + score, i, found);
                has_one = has_one || end == next;
            }
        }
        if (!has_one) {
            offer(&steps[next], steps[i].score + u->lowest - UNKNOWN_BELOW, i, -1);
        }
        i = next;
    }
}

typedef struct writing {
    int64_t *ids;
    int64_t most, count, left_out;
} writing;

static void put(writing *w, int64_t id) {
    if (w->count < w->most) {
        w->ids[w->count++] = id;
    } else {
        w->left_out++;
    }
}

/* Writes the ids. The steps are linked backwards, so the links are reversed first: `from` then becomes the end of the
   next piece (0 after the last piece), and steps[0].from the end of the first piece. */
static void write_ids(const carry_unigram *u, writing *w, step *steps, const char *text, size_t length) {
    size_t after = 0;
    for (size_t end = length; end > 0;) {
        const size_t before = (size_t)steps[end].from;
        steps[end].from = (int32_t)after;
        after = end;
        end = before;
    }
    steps[0].from = (int32_t)after;
    bool was_unknown = false;
    size_t begin = 0;
    for (size_t end = (size_t)steps[0].from; end > 0; end = (size_t)steps[end].from) {
        const int64_t piece = steps[end].piece;
        if (piece >= 0) {
            put(w, piece);
        } else if (u->has_bytes) {
            for (size_t i = begin; i < end; i++) {
                put(w, u->byte[(unsigned char)text[i]]);
            }
        } else if (!was_unknown) { /* adjacent unknown characters become one <unk> */
            put(w, u->unknown);
        }
        was_unknown = piece < 0 && !u->has_bytes;
        begin = end;
    }
}

carry_status carry_unigram_encode(carry_unigram *u, int64_t *ids, int64_t most, int64_t *count, int64_t *left_out,
                                  const char *text, size_t length) {
    growing normal = {0};
    if (length > TEXT_MOST || most < 1) {
        return carry_fail(u->ctx, CARRY_ESIZE, "a text of %zu bytes for %lld tokens: up to %zu bytes, and 1 token",
                          length, (long long)most, TEXT_MOST);
    }
    normalize(u, &normal, text, length);
    step *steps = normal.failed ? NULL : malloc((normal.length + 1) * sizeof *steps);
    if (steps == NULL) {
        free(normal.bytes);
        return carry_fail(u->ctx, CARRY_EMEMORY, "out of memory: a text of %zu bytes", length);
    }
    writing w = {.ids = ids, .most = most - 1};
    walk(u, steps, normal.bytes, normal.length);
    write_ids(u, &w, steps, normal.bytes, normal.length);
    ids[w.count] = u->end;
    *count = w.count + 1;
    if (left_out != NULL) {
        *left_out = w.left_out;
    }
    free(steps);
    free(normal.bytes);
    return CARRY_OK;
}
