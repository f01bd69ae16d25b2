/* Reads Unigram tokenizers from files: tokenizer.json of the library `tokenizers`, and spiece.model, a Protocol Buffers
   message (sentencepiece_model.proto), of which only the pieces and the normalizer's map are read. */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/error.h"
#include "core/file.h"
#include "core/json.h"
#include "tokenizer/unigram_internal.h"

#define FILE_LIMIT ((size_t)128 << 20)
#define PIECE_LIMIT 4096 /* bytes */

/* A field of a message: its number, and its value or its bytes. */
typedef struct field {
    uint64_t number, value;
    int kind; /* wire type: 0 a number, 1 eight bytes, 2 length and bytes, 5 four bytes */
    const unsigned char *bytes;
    size_t count;
} field;

static bool take_number(const unsigned char **at, const unsigned char *end, uint64_t *value) {
    *value = 0;
    for (int shift = 0; shift < 64 && *at < end; shift += 7) {
        const unsigned char byte = *(*at)++;
        *value |= (uint64_t)(byte & 0x7Fu) << shift;
        if (byte < 0x80) {
            return true;
        }
    }
    return false;
}

/* Reads the next field. Returns false at the end of the message, or if it is damaged (*at is then before the end). */
static bool take_field(const unsigned char **at, const unsigned char *end, field *f) {
    const unsigned char *from = *at;
    uint64_t key;
    if (from >= end || !take_number(&from, end, &key)) {
        return false;
    }
    *f = (field){.number = key >> 3, .kind = (int)(key & 7)};
    uint64_t count = f->kind == 1 ? 8 : 4;
    if (f->kind == 0) {
        if (!take_number(&from, end, &f->value)) {
            return false;
        }
        count = 0;
    } else if (f->kind == 2) {
        if (!take_number(&from, end, &count)) {
            return false;
        }
    } else if (f->kind != 1 && f->kind != 5) {
        return false;
    }
    if (count > (uint64_t)(end - from)) {
        return false;
    }
    f->bytes = from;
    f->count = (size_t)count;
    *at = from + count;
    return true;
}

static carry_status damaged(const carry_unigram *u, const char *path) {
    return carry_fail(u->ctx, CARRY_EFORMAT, "%s is damaged: not a model of SentencePiece", path);
}

static carry_status take_piece(carry_unigram *u, const field *message, const char *path) {
    const unsigned char *at = message->bytes;
    const unsigned char *end = at + message->count;
    const unsigned char *text = (const unsigned char *)"";
    size_t length = 0;
    float score = 0.0f;
    uint64_t kind = CARRY_PIECE_NORMAL;
    field f;
    while (take_field(&at, end, &f)) {
        if (f.number == 1 && f.kind == 2) {
            text = f.bytes;
            length = f.count;
        } else if (f.number == 2 && f.kind == 5) {
            memcpy(&score, f.bytes, sizeof score); /* both are little-endian */
        } else if (f.number == 3 && f.kind == 0) {
            kind = f.value;
        }
    }
    if (at != end || kind < CARRY_PIECE_NORMAL || kind > CARRY_PIECE_BYTE || length > PIECE_LIMIT || !isfinite(score)) {
        return damaged(u, path);
    }
    if (kind == CARRY_PIECE_UNKNOWN) {
        u->unknown = u->pieces;
    }
    return carry_unigram_add(u, (const char *)text, length, score, (carry_piece_kind)kind);
}

static carry_status take_normalizer(carry_unigram *u, const field *message, const char *path) {
    const unsigned char *at = message->bytes;
    const unsigned char *end = at + message->count;
    field f;
    while (take_field(&at, end, &f)) {
        if (f.number == 2 && f.kind == 2 && u->map == NULL) {
            CARRY_TRY(carry_unigram_set_map(u, f.bytes, f.count, path));
        }
    }
    return at == end ? CARRY_OK : damaged(u, path);
}

static carry_status check_trainer(const carry_unigram *u, const field *message, const char *path) {
    const unsigned char *at = message->bytes;
    field f;
    while (take_field(&at, message->bytes + message->count, &f)) {
        if (f.number == 3 && f.kind == 0 && f.value != 1) { /* model_type */
            return carry_fail(u->ctx, CARRY_EUNSUPPORTED, "%s: its type is %llu: Unigram, which is 1, is supported",
                              path, (unsigned long long)f.value);
        }
    }
    return CARRY_OK;
}

static carry_status read_model(carry_unigram *u, const char *path) {
    char *text;
    size_t length;
    CARRY_TRY(carry_file_read(u->ctx, &text, &length, path, FILE_LIMIT));
    const unsigned char *at = (const unsigned char *)text;
    const unsigned char *end = at + length;
    carry_status status = CARRY_OK;
    field f;
    while (status == CARRY_OK && take_field(&at, end, &f)) {
        if (f.kind == 2 && f.number >= 1 && f.number <= 3) {
            status = f.number == 1   ? take_piece(u, &f, path)
                     : f.number == 2 ? check_trainer(u, &f, path)
                                     : take_normalizer(u, &f, path);
        }
    }
    if (status == CARRY_OK && at != end) {
        status = damaged(u, path);
    }
    free(text);
    return status;
}

static int digit_of(char c) {
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    const char *found = c != '\0' ? strchr(digits, c) : NULL;
    return found != NULL ? (int)(found - digits) : -1;
}

/* Sets the character map from base64, as JSON stores it. */
static carry_status set_map_text(carry_unigram *u, const char *text, const char *path) {
    const size_t length = strlen(text);
    unsigned char *bytes = malloc(length + 1);
    size_t count = 0;
    uint32_t bits = 0;
    int held = 0;
    if (bytes == NULL) {
        return carry_fail(u->ctx, CARRY_EMEMORY, "out of memory: a character map of %zu bytes", length);
    }
    for (size_t i = 0; i < length && digit_of(text[i]) >= 0; i++) {
        bits = bits << 6 | (uint32_t)digit_of(text[i]);
        held += 6;
        if (held >= 8) {
            held -= 8;
            bytes[count++] = (unsigned char)(bits >> held);
        }
    }
    const carry_status status = carry_unigram_set_map(u, bytes, count, path);
    free(bytes);
    return status;
}

/* Reads the map of a normalizer, alone or in a sequence. The other normalizers in T5's files concern spaces, which
   encoding handles itself. */
static carry_status take_normalizers(carry_unigram *u, const carry_json *node, const char *path) {
    const char *map = carry_json_string(carry_json_find(node, "precompiled_charsmap"));
    if (map != NULL && u->map == NULL) {
        return set_map_text(u, map, path);
    }
    for (const carry_json *at = carry_json_first(carry_json_find(node, "normalizers")); at != NULL; at = at->next) {
        CARRY_TRY(take_normalizers(u, at, path));
    }
    return CARRY_OK;
}

/* Marks special tokens, so that they are never found in a text. */
static void take_special(carry_unigram *u, const carry_json *added) {
    for (const carry_json *at = carry_json_first(added); at != NULL; at = at->next) {
        const carry_json *special = carry_json_find(at, "special");
        const double id = carry_json_number(carry_json_find(at, "id"));
        if (special != NULL && special->kind == CARRY_JSON_BOOL && special->truth && id >= 0.0 &&
            id < (double)u->pieces && (int64_t)id != u->unknown) {
            u->piece[(int64_t)id].kind = CARRY_PIECE_CONTROL;
        }
    }
}

static bool is_byte(const char *piece, size_t length) {
    return length == 6 && memcmp(piece, "<0x", 3) == 0 && piece[5] == '>';
}

static carry_status take_json(carry_unigram *u, const carry_json *root, const char *path) {
    const carry_json *model = carry_json_find(root, "model");
    const carry_json *fallback = carry_json_find(model, "byte_fallback");
    const bool has_bytes = fallback != NULL && fallback->kind == CARRY_JSON_BOOL && fallback->truth;
    char shown[CARRY_JSON_SHOWN];
    if (!carry_json_is_text(carry_json_find(model, "type"), "Unigram")) {
        const carry_json *type = carry_json_find(model, "type");
        return carry_fail(u->ctx, CARRY_EUNSUPPORTED, "%s: the type of its model is %s: \"Unigram\" is supported", path,
                          type != NULL ? carry_json_show(shown, type) : "missing");
    }
    const double unknown = carry_json_number(carry_json_find(model, "unk_id"));
    u->unknown = unknown >= 0.0 && unknown < 1e9 ? (int64_t)unknown : -1;
    for (const carry_json *at = carry_json_first(carry_json_find(model, "vocab")); at != NULL; at = at->next) {
        const carry_json *piece = carry_json_first(at);
        const double score = piece != NULL ? carry_json_number(piece->next) : NAN;
        if (piece == NULL || piece->kind != CARRY_JSON_STRING || !isfinite(score) ||
            piece->as.text.length > PIECE_LIMIT) {
            return carry_fail(u->ctx, CARRY_EFORMAT, "%s: piece %lld is not a text and its score", path,
                              (long long)u->pieces);
        }
        const bool byte = has_bytes && is_byte(piece->as.text.bytes, piece->as.text.length);
        CARRY_TRY(carry_unigram_add(u, piece->as.text.bytes, piece->as.text.length, (float)score,
                                    byte                      ? CARRY_PIECE_BYTE
                                    : u->pieces == u->unknown ? CARRY_PIECE_UNKNOWN
                                                              : CARRY_PIECE_NORMAL));
    }
    take_special(u, carry_json_find(root, "added_tokens"));
    return take_normalizers(u, carry_json_find(root, "normalizer"), path);
}

static carry_status read_json(carry_unigram *u, const char *path) {
    carry_json *root;
    CARRY_TRY(carry_json_read(u->ctx, &root, path, FILE_LIMIT));
    const carry_status status = take_json(u, root, path);
    carry_json_free(root);
    return status;
}

carry_status carry_unigram_open(carry_ctx *ctx, carry_unigram **made, const char *folder) {
    static const struct {
        const char *name;
        carry_status (*read)(carry_unigram *u, const char *path);
    } files[] = {{"tokenizer.json", read_json}, {"spiece.model", read_model}};
    char path[CARRY_FILE_PATH];
    *made = NULL;
    for (size_t i = 0; i < sizeof files / sizeof files[0]; i++) {
        CARRY_TRY(carry_file_in(ctx, path, folder, files[i].name));
        if (access(path, F_OK) != 0) {
            continue;
        }
        carry_unigram *u = calloc(1, sizeof *u);
        if (u == NULL) {
            return carry_fail(ctx, CARRY_EMEMORY, "out of memory: a tokenizer");
        }
        u->ctx = ctx;
        u->unknown = -1;
        carry_status status = files[i].read(u, path);
        status = status == CARRY_OK ? carry_unigram_finish(u, path) : status;
        if (status != CARRY_OK) {
            carry_unigram_free(u);
            return status;
        }
        *made = u;
        return CARRY_OK;
    }
    return carry_fail(ctx, CARRY_ENOTFOUND, "%s has neither tokenizer.json nor spiece.model", folder);
}
