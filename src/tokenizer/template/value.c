/* The arena, texts, lists and dicts. */
#include "tokenizer/template/value.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/hash.h"
#include "core/memory.h"

#define BLOCK_BYTES ((size_t)1 << 16)
#define ALIGNED ((sizeof(jinja_block) + 15) & ~(size_t)15)
#define SMALL_DICT 8 /* up to this many pairs are searched linearly */

static _Noreturn void leave(jinja_arena *arena, const char *failure) {
    arena->failure = failure;
    longjmp(*arena->leave, 1);
}

void *jinja_new(jinja_arena *arena, size_t count, size_t item) {
    size_t bytes;
    if (!carry_size_mul(&bytes, count > 0 ? count : 1, item) || bytes > arena->limit) {
        leave(arena, "memory");
    }
    bytes = (bytes + 15) & ~(size_t)15;
    jinja_block *block = arena->last;
    if (block == NULL || block->size - block->used < bytes) {
        size_t size = bytes > BLOCK_BYTES ? bytes : BLOCK_BYTES;
        if (size > arena->limit - arena->total) {
            leave(arena, "memory");
        }
        block = malloc(ALIGNED + size);
        if (block == NULL) {
            leave(arena, "memory of the machine");
        }
        *block = (jinja_block){.before = arena->last, .size = size};
        arena->last = block;
        arena->total += size;
    }
    void *made = (char *)block + ALIGNED + block->used;
    block->used += bytes;
    return memset(made, 0, bytes);
}

void jinja_arena_free(jinja_arena *arena) {
    while (arena->last != NULL) {
        jinja_block *before = arena->last->before;
        free(arena->last);
        arena->last = before;
    }
    arena->total = 0;
}

jinja_text *jinja_text_over(jinja_arena *arena, const char *bytes, size_t length) {
    jinja_text *text = jinja_new(arena, 1, sizeof *text);
    *text = (jinja_text){bytes, length, -1};
    return text;
}

jinja_text *jinja_text_new(jinja_arena *arena, const char *bytes, size_t length) {
    char *copy = jinja_new(arena, length + 1, 1);
    if (length > 0) {
        memcpy(copy, bytes, length);
    }
    return jinja_text_over(arena, copy, length);
}

jinja_value jinja_string(jinja_arena *arena, const char *bytes, size_t length) {
    return (jinja_value){.kind = JINJA_STRING, .as.text = jinja_text_new(arena, bytes, length)};
}

bool jinja_text_is(const jinja_text *text, const char *expected) {
    return text->length == strlen(expected) && memcmp(text->at, expected, text->length) == 0;
}

bool jinja_text_equal(const jinja_text *a, const jinja_text *b) {
    return a->length == b->length && memcmp(a->at, b->at, a->length) == 0;
}

int64_t jinja_points(jinja_text *text) {
    if (text->points < 0) {
        int64_t points = 0;
        for (size_t i = 0; i < text->length; i++) {
            points += ((unsigned char)text->at[i] & 0xC0) != 0x80;
        }
        text->points = points;
    }
    return text->points;
}

jinja_list *jinja_list_new(jinja_arena *arena, size_t room) {
    jinja_list *list = jinja_new(arena, 1, sizeof *list);
    list->at = jinja_new(arena, room, sizeof *list->at);
    list->room = room > 0 ? room : 1;
    return list;
}

void jinja_list_add(jinja_arena *arena, jinja_list *list, jinja_value value) {
    if (list->count == list->room) {
        jinja_value *grown = jinja_new(arena, 2 * list->room, sizeof *grown);
        memcpy(grown, list->at, list->count * sizeof *grown);
        list->at = grown;
        list->room *= 2;
    }
    list->at[list->count++] = value;
}

jinja_value jinja_pair_of(jinja_arena *arena, jinja_value first, jinja_value second) {
    jinja_list *list = jinja_list_new(arena, 2);
    jinja_list_add(arena, list, first);
    jinja_list_add(arena, list, second);
    return jinja_listed(JINJA_TUPLE, list);
}

uint64_t jinja_hash_text(const jinja_text *text) {
    return carry_hash(1, text->at, text->length);
}

uint64_t jinja_hash_number(jinja_value value) {
    double number = jinja_number(value);
    int64_t whole = jinja_is_whole(value)                              ? jinja_whole(value)
                    : fabs(number) < 0x1p62 && number == floor(number) ? (int64_t)number
                                                                       : 0;
    bool is_whole = jinja_is_whole(value) || (fabs(number) < 0x1p62 && number == floor(number));
    return is_whole ? carry_hash(2, &whole, sizeof whole) : carry_hash(3, &number, sizeof number);
}

bool jinja_keys_equal(jinja_value a, jinja_value b) {
    if (jinja_is_number(a) && jinja_is_number(b)) {
        return jinja_is_whole(a) && jinja_is_whole(b) ? jinja_whole(a) == jinja_whole(b)
                                                      : jinja_number(a) == jinja_number(b);
    }
    if (a.kind != b.kind) {
        return false;
    }
    if (a.kind == JINJA_STRING) {
        return jinja_text_equal(a.as.text, b.as.text);
    }
    if (a.kind == JINJA_TUPLE) {
        bool equal = a.as.list->count == b.as.list->count;
        for (size_t i = 0; equal && i < a.as.list->count; i++) {
            equal = jinja_keys_equal(a.as.list->at[i], b.as.list->at[i]);
        }
        return equal;
    }
    return a.kind == JINJA_NONE || a.kind == JINJA_UNDEFINED || a.as.list == b.as.list;
}

jinja_dict *jinja_dict_new(jinja_arena *arena, size_t room) {
    jinja_dict *dict = jinja_new(arena, 1, sizeof *dict);
    dict->at = jinja_new(arena, room, sizeof *dict->at);
    dict->room = room > 0 ? room : 1;
    return dict;
}

jinja_value *jinja_dict_find(const jinja_dict *dict, jinja_value key, uint64_t hash) {
    if (dict->slots == 0) {
        for (size_t i = 0; i < dict->count; i++) {
            if (dict->at[i].hash == hash && jinja_keys_equal(dict->at[i].key, key)) {
                return &dict->at[i].value;
            }
        }
        return NULL;
    }
    for (size_t at = hash & (dict->slots - 1); dict->slot[at] != 0; at = (at + 1) & (dict->slots - 1)) {
        jinja_pair *pair = &dict->at[dict->slot[at] - 1];
        if (pair->hash == hash && jinja_keys_equal(pair->key, key)) {
            return &pair->value;
        }
    }
    return NULL;
}

jinja_value *jinja_dict_find_text(const jinja_dict *dict, const jinja_text *key) {
    jinja_value value = {.kind = JINJA_STRING, .as.text = (jinja_text *)(uintptr_t)key};
    return jinja_dict_find(dict, value, jinja_hash_text(key));
}

static void place(jinja_dict *dict, size_t index) {
    size_t at = dict->at[index].hash & (dict->slots - 1);
    while (dict->slot[at] != 0) {
        at = (at + 1) & (dict->slots - 1);
    }
    dict->slot[at] = (uint32_t)index + 1;
}

static void grow(jinja_arena *arena, jinja_dict *dict) {
    if (dict->count > UINT32_MAX / 8) {
        leave(arena, "size of a dict");
    }
    jinja_pair *grown = jinja_new(arena, 2 * dict->room, sizeof *grown);
    memcpy(grown, dict->at, dict->count * sizeof *grown);
    dict->at = grown;
    dict->room *= 2;
}

void jinja_dict_put(jinja_arena *arena, jinja_dict *dict, jinja_value key, uint64_t hash, jinja_value value) {
    jinja_value *old = jinja_dict_find(dict, key, hash);
    if (old != NULL) {
        *old = value;
        return;
    }
    if (dict->count == dict->room) {
        grow(arena, dict);
    }
    dict->at[dict->count++] = (jinja_pair){key, value, hash};
    if (dict->count > SMALL_DICT && 2 * dict->count > dict->slots) {
        dict->slots = dict->slots > 0 ? 2 * dict->slots : (size_t)4 * SMALL_DICT;
        dict->slot = jinja_new(arena, dict->slots, sizeof *dict->slot);
        for (size_t i = 0; i < dict->count; i++) {
            place(dict, i);
        }
    } else if (dict->slots > 0) {
        place(dict, dict->count - 1);
    }
}

void jinja_dict_put_text(jinja_arena *arena, jinja_dict *dict, jinja_text *key, jinja_value value) {
    jinja_dict_put(arena, dict, (jinja_value){.kind = JINJA_STRING, .as.text = key}, jinja_hash_text(key), value);
}
