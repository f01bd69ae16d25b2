/* Values of a GGUF file's keys. */
#include <string.h>

#include "file/gguf.h"

const carry_gguf_item *carry_gguf_find(const carry_gguf *file, const char *key) {
    const size_t length = strlen(key);
    for (int64_t i = 0; i < file->item_count; i++) {
        const carry_gguf_text *has = &file->items[i].key;
        if (has->length == length && memcmp(has->bytes, key, length) == 0) {
            return &file->items[i];
        }
    }
    return NULL;
}

static uint64_t bits_at(const unsigned char *at, int bytes) {
    uint64_t value = 0;
    for (int i = bytes - 1; i >= 0; i--) {
        value = value << 8 | at[i];
    }
    return value;
}

int64_t carry_gguf_integer_at(const carry_gguf_item *item, uint64_t index) {
    const unsigned char *at = item->at;
    switch (item->type) {
    case CARRY_GGUF_U8:
    case CARRY_GGUF_BOOL:
        return at[index];
    case CARRY_GGUF_I8:
        return (int8_t)at[index];
    case CARRY_GGUF_U16:
        return (int64_t)bits_at(at + 2 * index, 2);
    case CARRY_GGUF_I16:
        return (int16_t)bits_at(at + 2 * index, 2);
    case CARRY_GGUF_U32:
        return (int64_t)bits_at(at + 4 * index, 4);
    case CARRY_GGUF_I32:
        return (int32_t)bits_at(at + 4 * index, 4);
    case CARRY_GGUF_U64:
    case CARRY_GGUF_I64:
        return (int64_t)bits_at(at + 8 * index, 8);
    default:
        return 0;
    }
}

static bool is_integer(const carry_gguf_item *item) {
    return item->type != CARRY_GGUF_F32 && item->type != CARRY_GGUF_F64 && item->type != CARRY_GGUF_TEXT;
}

bool carry_gguf_integer(const carry_gguf *file, const char *key, int64_t *value) {
    const carry_gguf_item *item = carry_gguf_find(file, key);
    if (item == NULL || item->is_array || !is_integer(item) ||
        (item->type == CARRY_GGUF_U64 && bits_at(item->at, 8) > INT64_MAX)) {
        return false;
    }
    *value = carry_gguf_integer_at(item, 0);
    return true;
}

bool carry_gguf_number(const carry_gguf *file, const char *key, double *value) {
    const carry_gguf_item *item = carry_gguf_find(file, key);
    int64_t whole;
    if (item == NULL || item->is_array) {
        return false;
    }
    if (item->type == CARRY_GGUF_F32) {
        float single;
        memcpy(&single, item->at, sizeof single);
        *value = (double)single;
        return true;
    }
    if (item->type == CARRY_GGUF_F64) {
        memcpy(value, item->at, sizeof *value);
        return true;
    }
    if (!carry_gguf_integer(file, key, &whole)) {
        return false;
    }
    *value = (double)whole;
    return true;
}

carry_gguf_text carry_gguf_next_text(const unsigned char **at) {
    const carry_gguf_text text = {.bytes = (const char *)*at + 8, .length = (size_t)bits_at(*at, 8)};
    *at += 8 + text.length;
    return text;
}

bool carry_gguf_string(const carry_gguf *file, const char *key, carry_gguf_text *value) {
    const carry_gguf_item *item = carry_gguf_find(file, key);
    if (item == NULL || item->is_array || item->type != CARRY_GGUF_TEXT) {
        return false;
    }
    const unsigned char *at = item->at;
    *value = carry_gguf_next_text(&at);
    return true;
}
