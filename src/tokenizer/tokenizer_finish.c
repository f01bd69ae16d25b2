/* Completes a tokenizer after reading: computes the text that each token decodes to, and the tables for finding added
   tokens. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tokenizer/tokenizer_internal.h"

static carry_status no_memory(carry_ctx *ctx) {
    return carry_fail(ctx, CARRY_EMEMORY, "out of memory: a tokenizer");
}

/* Appends to the shared buffer of token bytes. */
static bool keep(carry_tokenizer *t, const char *bytes, size_t length, size_t *start, uint32_t *kept) {
    if (length > UINT32_MAX || !carry_list_grow(&t->text, &t->text_room, t->text_bytes, length + 1, 1)) {
        return false;
    }
    memcpy(t->text + t->text_bytes, bytes, length);
    *start = t->text_bytes;
    *kept = (uint32_t)length;
    t->text_bytes += length;
    return true;
}

/* Finds the token of each byte: its character in the byte alphabet, or a name such as <0x0A> in models by character. */
static carry_status find_bytes(carry_ctx *ctx, carry_tokenizer *t, const char *name) {
    for (int byte = 0; byte < 256; byte++) {
        char one[8] = {(char)byte};
        if (t->parts.by_character) {
            (void)snprintf(one, sizeof one, "<0x%02X>", (unsigned)byte);
        }
        int64_t id = carry_tokenizer_named(t, one, t->parts.by_character ? strlen(one) : 1);
        if (id < 0) {
            return carry_fail(ctx, CARRY_EFORMAT,
                              "%s: there is no token for the byte 0x%02x, so not every text has one", name,
                              (unsigned)byte);
        }
        t->byte[byte] = (uint32_t)id;
    }
    return CARRY_OK;
}

/* True if a space, or its mark, follows another character in these bytes. */
static bool goes_past_space(const carry_tokenizer *t, const unsigned char *text, size_t length) {
    const carry_metaspace *m = &t->parts.metaspace;
    bool is_word = false;
    for (size_t at = 0; at < length; at++) {
        bool is_mark = m->length > 0 && length - at >= m->length && memcmp(text + at, m->mark, m->length) == 0;
        if (is_mark || text[at] == ' ') {
            if (is_word) {
                return true;
            }
            at += is_mark ? m->length - 1u : 0u;
        } else {
            is_word = true;
        }
    }
    return false;
}

/* Applies the normalizer to added tokens that are "normalized", since they are searched for in normalized text. */
static carry_status normalize_added(carry_ctx *ctx, carry_tokenizer *t) {
    carry_buffer buffer[2] = {{0}};
    bool done = true;
    for (int64_t id = 0; id < t->count && done; id++) {
        carry_token *token = &t->token[id];
        token->match = token->content;
        token->match_length = token->content_length;
        if (token->added && token->normalized && t->parts.normals > 0) {
            const unsigned char *to = NULL;
            size_t length = 0;
            done = carry_normalize(&t->parts, true, (const unsigned char *)t->text + token->content,
                                   token->content_length, buffer, &to, &length, NULL) &&
                   keep(t, (const char *)to, length, &token->match, &token->match_length);
            if (done && goes_past_space(t, to, length)) {
                t->parts.rule = CARRY_CUT_NOWHERE; /* the token may cross a space */
            }
        }
    }
    free(buffer[0].at);
    free(buffer[1].at);
    return done ? CARRY_OK : no_memory(ctx);
}

static carry_status decode_names(carry_ctx *ctx, carry_tokenizer *t) {
    carry_buffer buffer[2] = {{0}};
    bool done = true;
    for (int64_t id = 0; id < t->count && done; id++) {
        carry_token *token = &t->token[id];
        const char *shown = NULL;
        size_t length = 0;
        token->decoded = token->start;
        token->decoded_length = token->length;
        if (t->parts.by_character) {
            bool is_match = token->added && token->normalized; /* decoded to its normalized text by `tokenizers` 0.23 */
            done = carry_shown(&t->parts, t->text + (is_match ? token->match : token->start),
                               is_match ? token->match_length : token->length, buffer, &shown, &length);
            bool differs = done && (length != token->length || memcmp(shown, t->text + token->start, length) != 0);
            done = done && (!differs || keep(t, shown, length, &token->decoded, &token->decoded_length));
        }
    }
    free(buffer[0].at);
    free(buffer[1].at);
    return done ? CARRY_OK : no_memory(ctx);
}

/* True if no merge makes a token in which a space mark follows another character. Words can then be merged one by one,
   with the same result. */
static bool are_words_apart(const carry_tokenizer *t) {
    const carry_metaspace *m = &t->parts.metaspace;
    if (!t->parts.by_character || m->length == 0 || t->whole_pieces) {
        return false;
    }
    for (int64_t i = 0; i < t->merge_count; i++) {
        const carry_token *token = &t->token[t->merge[i].result];
        const char *text = t->text + token->start;
        size_t at = 0;
        while (token->length - at >= m->length && memcmp(text + at, m->mark, m->length) == 0) {
            at += m->length;
        }
        if (at < token->length && memmem(text + at, token->length - at, m->mark, m->length) != NULL) {
            return false;
        }
    }
    return true;
}

static bool is_of_pass(const carry_token *token, int pass) {
    return token->added && token->match_length > 0 && token->normalized == (pass == 1);
}

/* Orders by first byte, then longer tokens first. */
static bool goes_before(const carry_tokenizer *t, uint32_t a, uint32_t b) {
    const carry_token *x = &t->token[a];
    const carry_token *y = &t->token[b];
    unsigned char first_x = (unsigned char)t->text[x->match];
    unsigned char first_y = (unsigned char)t->text[y->match];
    return first_x != first_y ? first_x < first_y : x->match_length > y->match_length;
}

static carry_status index_added(carry_ctx *ctx, carry_tokenizer *t, int pass) {
    carry_added *added = &t->added[pass];
    added->only = -1;
    for (int64_t id = 0; id < t->count; id++) {
        added->count += is_of_pass(&t->token[id], pass);
    }
    added->id = calloc((size_t)added->count + 1, sizeof *added->id);
    if (added->id == NULL) {
        return no_memory(ctx);
    }
    int count = 0;
    for (int64_t id = 0; id < t->count; id++) {
        if (is_of_pass(&t->token[id], pass)) {
            int at = count++;
            for (; at > 0 && goes_before(t, (uint32_t)id, added->id[at - 1]); at--) {
                added->id[at] = added->id[at - 1];
            }
            added->id[at] = (uint32_t)id;
            size_t length = t->token[id].match_length;
            t->longest_added = length > t->longest_added ? length : t->longest_added;
        }
    }
    int at = 0;
    for (int byte = 0; byte < 256; byte++) {
        added->first[byte] = at;
        while (at < count && (unsigned char)t->text[t->token[added->id[at]].match] == byte) {
            at++;
        }
        if (count > 0 && added->first[byte] == 0 && at == count) {
            added->only = byte;
        }
    }
    added->first[256] = at;
    return CARRY_OK;
}

carry_status carry_tokenizer_finish(carry_ctx *ctx, carry_tokenizer *tokenizer, const char *name) {
    carry_tokenizer *t = tokenizer;
    if (!t->parts.was_read) { /* not from a file: like GPT-2 */
        t->parts.was_read = true;
        t->parts.rule = CARRY_CUT_BLANKS_AND_LINES;
        CARRY_TRY(carry_pattern_new(ctx, &t->parts.stage[t->parts.stages]));
        t->parts.stages++;
    }
    for (int64_t id = 0; id < t->count; id++) {
        if (!t->token[id].known) {
            return carry_fail(ctx, CARRY_EFORMAT, "%s: no token has the number %lld, and there are %lld", name,
                              (long long)id, (long long)t->count);
        }
    }
    CARRY_TRY(find_bytes(ctx, t, name));
    CARRY_TRY(normalize_added(ctx, t));
    CARRY_TRY(decode_names(ctx, t));
    t->parts.words_are_apart = are_words_apart(t);
    if (t->parts.by_character && !t->parts.words_are_apart) {
        t->parts.rule = CARRY_CUT_NOWHERE;
    }
    CARRY_TRY(carry_tokenizer_index_merges(ctx, t));
    CARRY_TRY(index_added(ctx, t, 0));
    CARRY_TRY(index_added(ctx, t, 1));
    static const char *const ends[] = {CARRY_END_OF_TEXT, "</s>", "<eos>", "<|end_of_text|>"};
    for (size_t i = 0; i < sizeof ends / sizeof ends[0] && t->end < 0; i++) {
        t->end = carry_tokenizer_find(t, ends[i]);
    }
    return CARRY_OK;
}
