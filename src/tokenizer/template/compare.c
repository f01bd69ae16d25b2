/* Truth, equality, order, membership, hashes and sorting, with Python's rules. */
#include <math.h>
#include <string.h>

#include "core/hash.h"
#include "tokenizer/template/run.h"

bool jinja_truth(jinja_run *run, jinja_value value) {
    switch (value.kind) {
    case JINJA_MISSING:
    case JINJA_UNDEFINED:
    case JINJA_NONE:
        return false;
    case JINJA_BOOL:
        return value.as.truth;
    case JINJA_INTEGER:
        return value.as.integer != 0;
    case JINJA_FLOAT:
        return value.as.number != 0;
    default:
        return !jinja_has_length(value) || jinja_length(run, value) != 0;
    }
}

static bool lists_equal(jinja_run *run, const jinja_list *a, const jinja_list *b) {
    bool equal = a->count == b->count;
    for (size_t i = 0; equal && i < a->count; i++) {
        equal = jinja_equal(run, a->at[i], b->at[i]);
    }
    return equal;
}

static bool dicts_equal(jinja_run *run, const jinja_dict *a, const jinja_dict *b) {
    bool equal = a->count == b->count;
    for (size_t i = 0; equal && i < a->count; i++) {
        const jinja_value *other = jinja_dict_find(b, a->at[i].key, a->at[i].hash);
        equal = other != NULL && jinja_equal(run, a->at[i].value, *other);
    }
    return equal;
}

static bool ranges_equal(const jinja_range *a, const jinja_range *b) {
    return a->count == b->count && (a->count == 0 || (a->start == b->start && (a->count == 1 || a->step == b->step)));
}

bool jinja_equal(jinja_run *run, jinja_value a, jinja_value b) {
    jinja_spend(run, 1);
    if ((jinja_is_number(a) && jinja_is_number(b)) || a.kind != b.kind) {
        return jinja_keys_equal(a, b);
    }
    bool equal;
    jinja_deeper(run);
    switch (a.kind) {
    case JINJA_LIST:
    case JINJA_TUPLE:
        equal = lists_equal(run, a.as.list, b.as.list);
        break;
    case JINJA_DICT:
        equal = dicts_equal(run, a.as.dict, b.as.dict);
        break;
    case JINJA_RANGE:
        equal = ranges_equal(a.as.range, b.as.range);
        break;
    case JINJA_STRING:
        jinja_spend(run, a.as.text->length / 64);
        equal = jinja_text_equal(a.as.text, b.as.text);
        break;
    default:
        equal = jinja_keys_equal(a, b);
    }
    run->depth--;
    return equal;
}

static int compare_texts(const jinja_text *a, const jinja_text *b) { /* byte order of UTF-8 equals code point order */
    size_t least = a->length < b->length ? a->length : b->length;
    int order = memcmp(a->at, b->at, least);
    return order != 0 ? order : a->length < b->length ? -1 : a->length > b->length;
}

int jinja_compare(jinja_run *run, jinja_value a, jinja_value b, const char *operator) {
    jinja_spend(run, 1);
    if (jinja_is_whole(a) && jinja_is_whole(b)) {
        return jinja_whole(a) < jinja_whole(b) ? -1 : jinja_whole(a) > jinja_whole(b);
    }
    if (jinja_is_number(a) && jinja_is_number(b)) {
        double left = jinja_number(a), right = jinja_number(b);
        return isnan(left) || isnan(right) ? 2 : left < right ? -1 : left > right; /* 2 means not ordered */
    }
    if (a.kind == JINJA_STRING && b.kind == JINJA_STRING) {
        jinja_spend(run, a.as.text->length / 64);
        return compare_texts(a.as.text, b.as.text);
    }
    if (a.kind == b.kind && (a.kind == JINJA_LIST || a.kind == JINJA_TUPLE)) {
        const jinja_list *left = a.as.list, *right = b.as.list;
        jinja_deeper(run);
        int order = left->count < right->count ? -1 : left->count > right->count;
        for (size_t i = 0; i < left->count && i < right->count; i++) {
            if (!jinja_equal(run, left->at[i], right->at[i])) {
                order = jinja_compare(run, left->at[i], right->at[i], operator);
                break;
            }
        }
        run->depth--;
        return order;
    }
    if (a.kind == JINJA_UNDEFINED || b.kind == JINJA_UNDEFINED) {
        jinja_fail_undefined(run, a.kind == JINJA_UNDEFINED ? a : b);
    }
    jinja_fail(run, "'%s' not supported between instances of '%s' and '%s'", operator, jinja_kind_name(a),
               jinja_kind_name(b));
}

bool jinja_less(jinja_run *run, jinja_value a, jinja_value b) {
    return jinja_compare(run, a, b, "<") < 0;
}

static bool is_in_items(jinja_run *run, const jinja_list *items, jinja_value value) {
    bool found = false;
    for (size_t i = 0; i < items->count && !found; i++) {
        found = jinja_equal(run, items->at[i], value);
    }
    return found;
}

static bool is_in_range(const jinja_range *range, jinja_value value) {
    if (!jinja_is_number(value) || (value.kind == JINJA_FLOAT && value.as.number != floor(value.as.number))) {
        return false;
    }
    double number = jinja_number(value);
    for (int64_t i = 0; i < range->count; i++) {
        if ((double)(range->start + i * range->step) == number) {
            return true;
        }
    }
    return false;
}

bool jinja_contains(jinja_run *run, jinja_value in, jinja_value value) {
    switch (in.kind) {
    case JINJA_STRING:
        if (value.kind != JINJA_STRING) {
            jinja_fail(run, "'in <string>' requires string as left operand, not %s", jinja_kind_name(value));
        }
        jinja_spend(run, in.as.text->length / 16);
        return value.as.text->length == 0 ||
               memmem(in.as.text->at, in.as.text->length, value.as.text->at, value.as.text->length) != NULL;
    case JINJA_DICT:
        return jinja_dict_find(in.as.dict, value, jinja_hash(run, value)) != NULL;
    case JINJA_RANGE:
        jinja_spend(run, (size_t)in.as.range->count / 16);
        return is_in_range(in.as.range, value);
    case JINJA_UNDEFINED:
        return false;
    default:
        return is_in_items(run, jinja_items(run, in), value);
    }
}

bool jinja_is_hashable(jinja_value value) {
    bool is = value.kind != JINJA_LIST && value.kind != JINJA_DICT && value.kind != JINJA_VIEW;
    for (size_t i = 0; value.kind == JINJA_TUPLE && is && i < value.as.list->count; i++) {
        is = jinja_is_hashable(value.as.list->at[i]);
    }
    return is;
}

uint64_t jinja_hash(jinja_run *run, jinja_value value) {
    if (jinja_is_number(value)) {
        return jinja_hash_number(value);
    }
    switch (value.kind) {
    case JINJA_STRING:
        jinja_spend(run, value.as.text->length / 64);
        return jinja_hash_text(value.as.text);
    case JINJA_NONE:
    case JINJA_UNDEFINED:
        return (uint64_t)value.kind;
    case JINJA_TUPLE: {
        uint64_t hash = 5;
        jinja_deeper(run);
        for (size_t i = 0; i < value.as.list->count; i++) {
            uint64_t one = jinja_hash(run, value.as.list->at[i]);
            hash = carry_hash(hash, &one, sizeof one);
        }
        run->depth--;
        return hash;
    }
    case JINJA_LIST:
    case JINJA_DICT:
    case JINJA_VIEW:
        jinja_fail(run, "unhashable type: '%s'", jinja_kind_name(value));
    default:
        break;
    }
    const uintptr_t address = (uintptr_t)value.as.list;
    return carry_hash(6, &address, sizeof address);
}

/* Merges two sorted runs. An item of the right run goes first only if its key is less, so the sort is stable. */
static void merge(jinja_run *run, jinja_value *items, jinja_value *keys, size_t half, size_t count,
                  jinja_value *spare) {
    size_t left = 0, right = half;
    for (size_t to = 0; to < count; to++) {
        bool takes_right = left == half || (right < count && jinja_less(run, keys[right], keys[left]));
        size_t from = takes_right ? right++ : left++;
        spare[2 * to] = items[from];
        spare[2 * to + 1] = keys[from];
    }
    for (size_t i = 0; i < count; i++) {
        items[i] = spare[2 * i];
        keys[i] = spare[2 * i + 1];
    }
}

static void sort_part(jinja_run *run, jinja_value *items, jinja_value *keys, size_t count, jinja_value *spare) {
    if (count < 2) {
        return;
    }
    sort_part(run, items, keys, count / 2, spare);
    sort_part(run, items + count / 2, keys + count / 2, count - count / 2, spare);
    merge(run, items, keys, count / 2, count, spare);
}

static void reverse(jinja_value *items, jinja_value *keys, size_t count) {
    for (size_t i = 0; i < count / 2; i++) {
        jinja_value item = items[i], key = keys[i];
        items[i] = items[count - 1 - i];
        keys[i] = keys[count - 1 - i];
        items[count - 1 - i] = item;
        keys[count - 1 - i] = key;
    }
}

void jinja_sort(jinja_run *run, jinja_value *items, jinja_value *keys, size_t count, bool reversed) {
    jinja_value *spare = jinja_new(&run->arena, 2 * count, sizeof *spare);
    if (reversed) { /* equal items keep their order */
        reverse(items, keys, count);
    }
    sort_part(run, items, keys, count, spare);
    if (reversed) {
        reverse(items, keys, count);
    }
}
