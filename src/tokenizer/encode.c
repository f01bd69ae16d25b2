/* Encoding. A text is split at its added tokens. The text between them is normalized, split at the added tokens that
   are searched for in normalized text, cut into pieces by each pattern in turn, and merged. */
#include <stdlib.h>
#include <string.h>

#include "tokenizer/tokenizer_internal.h"

struct carry_encoder {
    const carry_tokenizer *tokenizer;
    carry_merger *merger;
    carry_cutter *cutter[CARRY_STAGES];
    carry_buffer normal[2], marked;
    const atomic_bool *cancelled; /* or NULL */
};

/* Finds the first added token of a pass in text[*at..length). Returns its number and sets *at to its position; -1 if
   not found. */
static int64_t find_added(const carry_tokenizer *t, int pass, const unsigned char *text, size_t length, size_t *at,
                          carry_specials specials) {
    const carry_added *added = &t->added[pass];
    for (size_t i = *at; added->count > 0 && i < length; i++) {
        if (added->only >= 0) {
            const unsigned char *next = memchr(text + i, added->only, length - i);
            if (next == NULL) {
                return -1;
            }
            i = (size_t)(next - text);
        }
        for (int j = added->first[text[i]]; j < added->first[text[i] + 1]; j++) {
            const carry_token *token = &t->token[added->id[j]];
            if (token->match_length <= length - i &&
                memcmp(text + i, t->text + token->match, token->match_length) == 0 &&
                (specials == CARRY_SPECIALS_FOUND || !token->special)) {
                *at = i;
                return added->id[j];
            }
        }
    }
    return -1;
}

/* Cuts a text with one pattern after the other, and merges the pieces. */
static carry_status encode_stage(carry_encoder *e, carry_ids *ids, int stage, const unsigned char *text,
                                 size_t length) {
    if (stage >= CARRY_STAGES || stage == e->tokenizer->parts.stages) {
        return carry_merger_piece(e->merger, ids, text, length);
    }
    carry_cutter_start(e->cutter[stage], text, length);
    const unsigned char *piece;
    for (size_t bytes; (bytes = carry_cutter_next(e->cutter[stage], &piece)) > 0;) {
        CARRY_TRY(encode_stage(e, ids, stage + 1, piece, bytes));
    }
    return CARRY_OK;
}

/* Encodes a text without added tokens. first: it starts the whole text. */
static carry_status encode_plain(carry_encoder *e, carry_ids *ids, bool first, const unsigned char *text,
                                 size_t length) {
    const carry_parts *p = &e->tokenizer->parts;
    if (!p->by_character) {
        return encode_stage(e, ids, 0, text, length);
    }
    if (p->metaspace.used) {
        if (!carry_metaspace_put(&p->metaspace, first, text, length, &e->marked)) {
            return CARRY_EMEMORY;
        }
        text = (const unsigned char *)e->marked.at;
        length = e->marked.count;
    }
    if (p->stages > 0) {
        return encode_stage(e, ids, 0, text, length);
    }
    for (size_t bytes; length > 0; text += bytes, length -= bytes) {
        bytes = carry_metaspace_piece(p, text, length);
        CARRY_TRY(carry_merger_piece(e->merger, ids, text, bytes));
    }
    return CARRY_OK;
}

/* Options of one call: which special tokens to find, and whether this text continues another. */
typedef struct asked {
    carry_specials specials;
    bool continues;
} asked;

/* Encodes the text between the added tokens of earlier passes. first: it is the start of the whole text. */
static carry_status encode_between(carry_encoder *e, carry_ids *ids, int pass, bool first, const unsigned char *text,
                                   size_t length, const asked *how) {
    const carry_parts *p = &e->tokenizer->parts;
    if (pass == 1 && p->normals > 0 &&
        !carry_normalize(p, !(first && how->continues), text, length, e->normal, &text, &length, e->cancelled)) {
        return carry_is_cancelled(e->cancelled) ? CARRY_EINTERRUPTED : CARRY_EMEMORY;
    }
    if (pass == 2) {
        return encode_plain(e, ids, first && !how->continues, text, length);
    }
    for (size_t from = 0; from < length;) {
        size_t at = from;
        int64_t found = find_added(e->tokenizer, pass, text, length, &at, how->specials);
        size_t end = found < 0 ? length : at;
        if (end > from) {
            CARRY_TRY(encode_between(e, ids, pass + 1, first && from == 0, text + from, end - from, how));
        }
        if (found < 0) {
            break;
        }
        if (!carry_list_grow(&ids->id, &ids->room, ids->count, 1, sizeof *ids->id)) {
            return CARRY_EMEMORY;
        }
        ids->id[ids->count++] = (uint32_t)found;
        from = at + e->tokenizer->token[found].match_length;
    }
    return CARRY_OK;
}

carry_status carry_encode_text(carry_encoder *encoder, carry_ids *ids, const void *text, size_t length,
                               carry_specials specials) {
    const asked how = {(carry_specials)(specials & CARRY_SPECIALS_AS_TEXT), (specials & CARRY_TEXT_GOES_ON) != 0};
    return encode_between(encoder, ids, 0, true, text, length, &how);
}

carry_status carry_encode(carry_ctx *ctx, carry_encoder *encoder, carry_ids *ids, const void *text, size_t length,
                          carry_specials specials) {
    const carry_status status = carry_encode_text(encoder, ids, text, length, specials);
    if (status == CARRY_EINTERRUPTED) {
        return carry_fail(ctx, status, "the encoding of a text of %zu bytes was cancelled", length);
    }
    if (status != CARRY_OK) {
        return carry_fail(ctx, CARRY_EMEMORY, "out of memory: encoding a text of %zu bytes", length);
    }
    return CARRY_OK;
}

void carry_encoder_set_cancel(carry_encoder *encoder, const atomic_bool *flag) {
    encoder->cancelled = flag;
    carry_merger_set_cancel(encoder->merger, flag);
}

static carry_status append(carry_ctx *ctx, carry_ids *ids, const uint32_t *id, int count) {
    if (!carry_list_grow(&ids->id, &ids->room, ids->count, (size_t)count, sizeof *ids->id)) {
        return carry_fail(ctx, CARRY_EMEMORY, "out of memory: %d tokens", count);
    }
    if (count > 0) {
        memcpy(ids->id + ids->count, id, (size_t)count * sizeof *id);
    }
    ids->count += (size_t)count;
    return CARRY_OK;
}

carry_status carry_encode_start(carry_ctx *ctx, const carry_tokenizer *tokenizer, carry_ids *ids) {
    return append(ctx, ids, tokenizer->parts.before, tokenizer->parts.befores);
}

carry_status carry_encode_end(carry_ctx *ctx, const carry_tokenizer *tokenizer, carry_ids *ids) {
    return append(ctx, ids, tokenizer->parts.after, tokenizer->parts.afters);
}

/* True if the tokenizer may put a prefix before every text between added tokens. A text must then not be cut directly
   after an added token: that would add or lose a prefix. */
static bool has_prefix(const carry_tokenizer *t) {
    return t->parts.by_character;
}

/* True if an added token that starts at `at` may extend past `place`. A token that is cut off by the end of the text
   counts. */
static bool reaches_across(const carry_tokenizer *t, const unsigned char *text, size_t length, size_t at,
                           size_t place) {
    for (int pass = 0; pass < 2; pass++) {
        const carry_added *added = &t->added[pass];
        for (int j = added->first[text[at]]; j < added->first[text[at] + 1]; j++) {
            const carry_token *token = &t->token[added->id[j]];
            size_t known = token->content_length < length - at ? token->content_length : length - at;
            size_t end = at + token->content_length;
            if ((end > place || (end == place && has_prefix(t))) &&
                memcmp(text + at, t->text + token->content, known) == 0) {
                return true;
            }
        }
    }
    return false;
}

static bool is_inside_added(const carry_tokenizer *t, const unsigned char *text, size_t length, size_t place) {
    for (size_t at = place > t->longest_added ? place - t->longest_added : 0; at < place; at++) {
        if (reaches_across(t, text, length, at, place)) {
            return true;
        }
    }
    return false;
}

/* True if a space mark in the text itself precedes `place`: it belongs to the same run of spaces. */
static bool follows_mark(const carry_tokenizer *t, const unsigned char *text, size_t place) {
    const carry_metaspace *m = &t->parts.metaspace;
    return m->length > 0 && place >= m->length && memcmp(text + place - m->length, m->mark, m->length) == 0;
}

size_t carry_tokenizer_last_cut(const carry_tokenizer *tokenizer, const void *text, size_t length) {
    carry_cut_rule rule = tokenizer->parts.rule;
    size_t cut = carry_cut_last(rule, text, length);
    while (cut > 0 && (is_inside_added(tokenizer, text, length, cut) || follows_mark(tokenizer, text, cut))) {
        cut = carry_cut_last(rule, text, cut);
    }
    return cut;
}

carry_status carry_encoder_new(carry_ctx *ctx, carry_encoder **encoder, const carry_tokenizer *tokenizer) {
    *encoder = NULL;
    carry_encoder *made = calloc(1, sizeof *made);
    bool done = made != NULL;
    if (done) {
        made->tokenizer = tokenizer;
        made->merger = carry_merger_new(tokenizer);
        done = made->merger != NULL;
    }
    for (int i = 0; done && i < tokenizer->parts.stages; i++) {
        made->cutter[i] = carry_cutter_new(tokenizer->parts.stage[i]);
        done = made->cutter[i] != NULL;
    }
    if (!done) {
        carry_encoder_free(made);
        return carry_fail(ctx, CARRY_EMEMORY, "out of memory: an encoder");
    }
    *encoder = made;
    return CARRY_OK;
}

void carry_encoder_free(carry_encoder *encoder) {
    if (encoder == NULL) {
        return;
    }
    for (int i = 0; i < CARRY_STAGES; i++) {
        carry_cutter_free(encoder->cutter[i]);
    }
    carry_merger_free(encoder->merger);
    free(encoder->normal[0].at);
    free(encoder->normal[1].at);
    free(encoder->marked.at);
    free(encoder);
}

void carry_ids_free(carry_ids *ids) {
    free(ids->id);
    *ids = (carry_ids){0};
}
