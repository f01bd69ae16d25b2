/* The parts of a tokenizer: tokens, their names, merges and added tokens. */
#include <stdlib.h>
#include <string.h>

#include "core/file.h"
#include "core/memory.h"
#include "tokenizer/constraint/constraint.h"
#include "tokenizer/tokenizer_internal.h"
#include "tokenizer/utf8.h"

#define FIRST_NAMES 1024
#define FIRST_TOKENS 512

static bool stands_for_itself(unsigned byte) {
    return (byte >= 33 && byte <= 126) || (byte >= 161 && byte <= 172) || byte >= 174;
}

uint32_t carry_byte_to_code(unsigned char byte) {
    if (stands_for_itself(byte)) {
        return byte;
    }
    /* The bytes that do not stand for themselves are 0..32, 127..160 and 173, numbered in this order. */
    return 256u + (byte <= 32 ? byte : byte <= 160 ? byte - 127u + 33u : 67u);
}

int carry_code_to_byte(uint32_t code) {
    if (code < 256) {
        return stands_for_itself(code) ? (int)code : -1;
    }
    uint32_t other = code - 256;
    return other <= 32 ? (int)other : other <= 66 ? (int)other - 33 + 127 : other == 67 ? 173 : -1;
}

uint64_t carry_hash_bytes(const void *bytes, size_t length) {
    const unsigned char *at = bytes;
    uint64_t hash = 0x9E3779B97F4A7C15u ^ length;
    uint64_t word = 0;
    for (; length >= 8; at += 8, length -= 8) {
        memcpy(&word, at, 8);
        hash = (hash ^ word) * 0xD6E8FEB86659FD93u;
        hash ^= hash >> 32;
    }
    word = 0;
    memcpy(&word, at, length);
    hash = (hash ^ word) * 0xD6E8FEB86659FD93u;
    return hash ^ hash >> 32;
}

bool carry_list_grow(void *list, size_t *room, size_t count, size_t more, size_t item) {
    size_t wanted;
    if (!carry_size_add(&wanted, count, more)) {
        return false;
    }
    if (wanted <= *room) {
        return true;
    }
    size_t grown = *room < 32 ? 64 : *room;
    while (grown < wanted) {
        if (!carry_size_mul(&grown, grown, 2)) {
            return false;
        }
    }
    size_t bytes;
    void *old;
    memcpy(&old, list, sizeof old);
    void *moved = carry_size_mul(&bytes, grown, item) ? realloc(old, bytes) : NULL;
    if (moved == NULL) {
        return false;
    }
    memcpy(list, &moved, sizeof moved);
    *room = grown;
    return true;
}

static carry_status no_memory(carry_ctx *ctx) {
    return carry_fail(ctx, CARRY_EMEMORY, "out of memory: a tokenizer");
}

carry_tokenizer *carry_tokenizer_new(void) {
    carry_tokenizer *made = calloc(1, sizeof *made);
    if (made == NULL) {
        return NULL;
    }
    made->end = -1;
    made->eos = -1;
    made->names = FIRST_NAMES;
    made->name = calloc(made->names, sizeof *made->name);
    made->token = calloc(FIRST_TOKENS, sizeof *made->token);
    made->room = FIRST_TOKENS;
    made->text = malloc(FIRST_TOKENS);
    made->text_room = FIRST_TOKENS;
    made->constraints = carry_constraint_cache_new();
    if (made->name == NULL || made->token == NULL || made->text == NULL || made->constraints == NULL) {
        carry_tokenizer_close(made);
        return NULL;
    }
    return made;
}

void carry_tokenizer_close(carry_tokenizer *tokenizer) {
    if (tokenizer == NULL) {
        return;
    }
    carry_parts_free(&tokenizer->parts);
    carry_constraint_cache_free(tokenizer->constraints);
    free(tokenizer->source);
    free(tokenizer->settings);
    free(tokenizer->chat);
    free(tokenizer->added[0].id);
    free(tokenizer->added[1].id);
    free(tokenizer->pair);
    free(tokenizer->merge);
    free(tokenizer->name);
    free(tokenizer->text);
    free(tokenizer->token);
    free(tokenizer);
}

/* Returns the slot of these bytes in the table of names, or the free slot where they would go. */
static size_t place_of_name(const carry_tokenizer *t, const char *bytes, size_t length) {
    size_t at = carry_hash_bytes(bytes, length) & (t->names - 1);
    for (; t->name[at] != 0; at = (at + 1) & (t->names - 1)) {
        const carry_token *token = &t->token[t->name[at] - 1];
        if (token->length == length && memcmp(t->text + token->start, bytes, length) == 0) {
            break;
        }
    }
    return at;
}

static bool grow_names(carry_tokenizer *t) {
    if (2 * (t->named + 1) <= t->names) {
        return true;
    }
    uint32_t *old = t->name;
    size_t olds = t->names;
    uint32_t *grown = calloc(2 * olds, sizeof *grown);
    if (grown == NULL) {
        return false;
    }
    t->name = grown;
    t->names = 2 * olds;
    for (size_t i = 0; i < olds; i++) {
        if (old[i] != 0) {
            const carry_token *token = &t->token[old[i] - 1];
            grown[place_of_name(t, t->text + token->start, token->length)] = old[i];
        }
    }
    free(old);
    return true;
}

carry_status carry_tokenizer_put(carry_ctx *ctx, carry_tokenizer *tokenizer, int64_t id, const char *bytes,
                                 size_t length, bool literal, bool in_vocabulary) {
    carry_tokenizer *t = tokenizer;
    size_t room = (size_t)t->room;
    size_t more = id >= t->count ? (size_t)(id + 1 - t->count) : 0;
    if (!carry_list_grow(&t->token, &room, (size_t)t->count, more, sizeof *t->token)) {
        return no_memory(ctx);
    }
    t->room = (int64_t)room;
    for (; t->count <= id; t->count++) {
        t->token[t->count] = (carry_token){0};
    }
    if (length > UINT32_MAX || !carry_list_grow(&t->text, &t->text_room, t->text_bytes, length + 1, 1) ||
        !grow_names(t)) {
        return no_memory(ctx);
    }
    t->token[id] = (carry_token){.start = t->text_bytes,
                                 .length = (uint32_t)length,
                                 .known = true,
                                 .literal = literal,
                                 .in_vocabulary = in_vocabulary};
    if (in_vocabulary && !literal) {
        t->name[place_of_name(t, bytes, length)] = (uint32_t)id + 1;
        t->named++;
    }
    memcpy(t->text + t->text_bytes, bytes, length);
    t->text_bytes += length;
    return CARRY_OK;
}

int64_t carry_tokenizer_named(const carry_tokenizer *tokenizer, const char *bytes, size_t length) {
    return (int64_t)tokenizer->name[place_of_name(tokenizer, bytes, length)] - 1;
}

bool carry_alphabet_bytes(const char *characters, size_t length, char *to, size_t *bytes) {
    *bytes = 0;
    for (size_t at = 0; at < length;) {
        int used = carry_utf8_at((const unsigned char *)characters + at, length - at);
        int byte = used > 0 ? carry_code_to_byte(carry_utf8_code((const unsigned char *)characters + at, used)) : -1;
        if (byte < 0) {
            memcpy(to, characters, length);
            *bytes = length;
            return false;
        }
        to[(*bytes)++] = (char)byte;
        at += (size_t)used;
    }
    return true;
}

carry_status carry_tokenizer_add(carry_ctx *ctx, carry_tokenizer *tokenizer, int64_t id, const char *content,
                                 size_t length, bool special, bool normalized, bool in_vocabulary) {
    carry_tokenizer *t = tokenizer;
    if (id >= t->count || !t->token[id].known) {
        char *bytes = malloc(length + 1);
        if (bytes == NULL) {
            return no_memory(ctx);
        }
        size_t decoded = 0;
        bool literal = t->parts.by_character || !carry_alphabet_bytes(content, length, bytes, &decoded);
        if (t->parts.by_character) {
            memcpy(bytes, content, length);
            decoded = length;
        }
        carry_status status = carry_tokenizer_put(ctx, t, id, bytes, decoded, literal, in_vocabulary);
        free(bytes);
        CARRY_TRY(status);
    }
    if (!carry_list_grow(&t->text, &t->text_room, t->text_bytes, length + 1, 1)) {
        return no_memory(ctx);
    }
    carry_token *token = &t->token[id];
    token->content = t->text_bytes;
    token->content_length = (uint32_t)length;
    token->added = true;
    token->special = special;
    token->normalized = normalized;
    memcpy(t->text + t->text_bytes, content, length);
    t->text_bytes += length;
    return CARRY_OK;
}

carry_status carry_tokenizer_merge(carry_ctx *ctx, carry_tokenizer *tokenizer, uint32_t left, uint32_t right,
                                   uint32_t result) {
    size_t room = (size_t)tokenizer->merge_room;
    if (tokenizer->merge_count >= UINT32_MAX - 1 ||
        !carry_list_grow(&tokenizer->merge, &room, (size_t)tokenizer->merge_count, 1, sizeof *tokenizer->merge)) {
        return no_memory(ctx);
    }
    tokenizer->merge_room = (int64_t)room;
    tokenizer->merge[tokenizer->merge_count++] = (carry_merge){left, right, result};
    return CARRY_OK;
}

carry_status carry_tokenizer_index_merges(carry_ctx *ctx, carry_tokenizer *tokenizer) {
    carry_tokenizer *t = tokenizer;
    free(t->pair);
    t->pairs = 64;
    while (t->pairs < 2 * (size_t)t->merge_count) {
        t->pairs *= 2;
    }
    t->pair = malloc(t->pairs * sizeof *t->pair);
    if (t->pair == NULL) {
        return no_memory(ctx);
    }
    for (size_t i = 0; i < t->pairs; i++) {
        t->pair[i] = (carry_pair_slot){.pair = CARRY_NO_PAIR};
    }
    for (int64_t i = 0; i < t->merge_count; i++) {
        uint64_t pair = (uint64_t)t->merge[i].left << 32 | t->merge[i].right;
        size_t at = carry_hash_pair(pair) & (t->pairs - 1);
        while (t->pair[at].pair != CARRY_NO_PAIR && t->pair[at].pair != pair) {
            at = (at + 1) & (t->pairs - 1);
        }
        t->pair[at] = (carry_pair_slot){.pair = pair, .rank = (uint32_t)i, .result = t->merge[i].result};
    }
    return CARRY_OK;
}

carry_status carry_tokenizer_add_specials(carry_ctx *ctx, carry_tokenizer *tokenizer, int64_t first,
                                          const char *const *added, int count) {
    if (count > CARRY_ADDED_MOST) {
        return carry_fail(ctx, CARRY_ESIZE, "%d added tokens are more than %d", count, CARRY_ADDED_MOST);
    }
    for (int i = 0; i < count; i++) {
        size_t length = strlen(added[i]);
        bool twice = length < 2 || length > CARRY_ADDED_BYTES;
        for (int j = 0; j < i && !twice; j++) {
            twice = strcmp(added[i], added[j]) == 0;
        }
        if (twice) {
            return carry_fail(ctx, CARRY_EARGUMENT,
                              "an added token has 2 to %d bytes and is given once: '%.60s' does not fit",
                              CARRY_ADDED_BYTES, added[i]);
        }
        CARRY_TRY(carry_tokenizer_add(ctx, tokenizer, first + i, added[i], length, true, false, true));
    }
    return CARRY_OK;
}

carry_status carry_tokenizer_bytes(carry_ctx *ctx, carry_tokenizer **tokenizer, const char *const *added, int count) {
    *tokenizer = NULL;
    carry_tokenizer *made = carry_tokenizer_new();
    if (made == NULL) {
        return no_memory(ctx);
    }
    carry_status status = CARRY_OK;
    for (int id = 0; id < 256 && status == CARRY_OK; id++) {
        char one = (char)id;
        status = carry_tokenizer_put(ctx, made, id, &one, 1, false, true);
    }
    if (status == CARRY_OK) {
        status = carry_tokenizer_add_specials(ctx, made, 256, added, count);
    }
    if (status == CARRY_OK) {
        status = carry_tokenizer_finish(ctx, made, "the byte tokenizer");
    }
    if (status != CARRY_OK) {
        carry_tokenizer_close(made);
        return status;
    }
    *tokenizer = made;
    return CARRY_OK;
}

int64_t carry_tokenizer_size(const carry_tokenizer *tokenizer) {
    return tokenizer->count;
}

int64_t carry_tokenizer_merges(const carry_tokenizer *tokenizer) {
    return tokenizer->merge_count;
}

int64_t carry_tokenizer_find(const carry_tokenizer *tokenizer, const char *content) {
    size_t length = strlen(content);
    for (int pass = 0; pass < 2; pass++) {
        for (int i = 0; i < tokenizer->added[pass].count; i++) {
            const carry_token *token = &tokenizer->token[tokenizer->added[pass].id[i]];
            if (token->content_length == length && memcmp(tokenizer->text + token->content, content, length) == 0) {
                return tokenizer->added[pass].id[i];
            }
        }
    }
    return -1;
}

int64_t carry_tokenizer_end(const carry_tokenizer *tokenizer) {
    return tokenizer->end;
}

const char *carry_tokenizer_token(const carry_tokenizer *tokenizer, int64_t id, size_t *length) {
    if (id < 0 || id >= tokenizer->count) {
        *length = 0;
        return NULL;
    }
    *length = tokenizer->token[id].decoded_length;
    return tokenizer->text + tokenizer->token[id].decoded;
}

bool carry_tokenizer_is_special(const carry_tokenizer *tokenizer, int64_t id) {
    return id >= 0 && id < tokenizer->count && tokenizer->token[id].special;
}

uint32_t carry_tokenizer_crc(const carry_tokenizer *tokenizer) {
    uint32_t crc = 0;
    for (int64_t id = 0; id < tokenizer->count; id++) {
        const carry_token *token = &tokenizer->token[id];
        uint32_t about[] = {token->length, token->added, token->special, token->normalized};
        crc = carry_crc32c(crc, about, sizeof about);
        crc = carry_crc32c(crc, tokenizer->text + token->start, token->length);
    }
    crc = carry_crc32c(crc, tokenizer->merge, (size_t)tokenizer->merge_count * sizeof *tokenizer->merge);
    return carry_crc32c(crc, tokenizer->source != NULL ? tokenizer->source : "", tokenizer->source_length);
}
