/* Filters on sequences, on dicts and on any value. */
#include <string.h>

#include "tokenizer/template/run.h"

#define FILTER(name) static jinja_value name(jinja_run *run, jinja_value self, const jinja_value *given)

FILTER(length) {
    (void)given;
    return jinja_integer(jinja_length(run, self));
}

FILTER(otherwise) {
    bool replaces = self.kind == JINJA_UNDEFINED || (jinja_truth(run, given[1]) && !jinja_truth(run, self));
    return !replaces ? self : given[0].kind != JINJA_MISSING ? given[0] : jinja_string(&run->arena, "", 0);
}

FILTER(list) {
    (void)given;
    const jinja_list *items = jinja_items(run, self);
    jinja_list *copy = jinja_list_new(&run->arena, items->count);
    if (items->count > 0) {
        memcpy(copy->at, items->at, items->count * sizeof *copy->at);
    }
    copy->count = items->count;
    return jinja_listed(JINJA_LIST, copy);
}

FILTER(first) {
    (void)given;
    if (self.kind == JINJA_ITERATOR) { /* consumes one item; the rest of an iterator stays */
        jinja_iterator *iterator = self.as.iterator;
        size_t before = iterator->next;
        const jinja_list *left = jinja_items(run, self);
        iterator->next = left->count > 0 ? before + 1 : before;
        return left->count > 0 ? left->at[0] : jinja_undefined(NULL);
    }
    const jinja_list *items = jinja_items(run, self);
    return items->count > 0 ? items->at[0] : jinja_undefined(NULL);
}

FILTER(last) {
    (void)given;
    if (self.kind == JINJA_ITERATOR || self.kind == JINJA_UNDEFINED) {
        jinja_fail(run, "'%s' object is not reversible", jinja_kind_name(self));
    }
    const jinja_list *items = jinja_items(run, self);
    return items->count > 0 ? items->at[items->count - 1] : jinja_undefined(NULL);
}

FILTER(join) {
    const jinja_list *items = jinja_items(run, self);
    jinja_value by = given[0].kind != JINJA_MISSING ? jinja_str(run, given[0]) : jinja_string(&run->arena, "", 0);
    size_t start = jinja_capture(run);
    for (size_t i = 0; i < items->count; i++) {
        jinja_print(run, i > 0 ? by : jinja_undefined(NULL));
        jinja_print(run, jinja_path(run, items->at[i], given[1], (jinja_value){0}));
    }
    return jinja_captured(run, start);
}

FILTER(reverse) {
    (void)given;
    if (self.kind == JINJA_STRING) {
        return jinja_slice(run, self, jinja_none(), jinja_none(), jinja_integer(-1));
    }
    const jinja_list *items = jinja_items(run, self);
    jinja_list *made = jinja_list_new(&run->arena, items->count);
    for (size_t i = items->count; i > 0; i--) {
        jinja_list_add(&run->arena, made, items->at[i - 1]);
    }
    /* As in Python, reversed() of a sequence is an iterator; anything else becomes a list. */
    bool is_list = self.kind == JINJA_ITERATOR || self.kind == JINJA_UNDEFINED;
    return is_list ? jinja_listed(JINJA_LIST, made) : jinja_iterator_over(run, made);
}

static jinja_value folded(jinja_run *run, jinja_value key, bool case_sensitive) {
    return !case_sensitive && key.kind == JINJA_STRING ? jinja_text_case(run, key, JINJA_LOWER) : key;
}

/* Returns the sort key of an item: a list of the values at the attribute paths, which are separated by commas; in lower
   case unless case_sensitive. */
static jinja_value sort_key(jinja_run *run, jinja_value item, jinja_value attribute, bool case_sensitive) {
    jinja_list *keys = jinja_list_new(&run->arena, 1);
    if (attribute.kind != JINJA_STRING) {
        jinja_value key = jinja_path(run, item, attribute, (jinja_value){0});
        jinja_list_add(&run->arena, keys, folded(run, key, case_sensitive));
        return jinja_listed(JINJA_LIST, keys);
    }
    const char *at = attribute.as.text->at, *end = at + attribute.as.text->length;
    for (bool is_last = false; !is_last;) {
        const char *comma = memchr(at, ',', (size_t)(end - at));
        is_last = comma == NULL;
        comma = is_last ? end : comma;
        jinja_value path = jinja_sub(run, attribute, at, (size_t)(comma - at));
        jinja_list_add(&run->arena, keys, folded(run, jinja_path(run, item, path, (jinja_value){0}), case_sensitive));
        at = is_last ? end : comma + 1;
    }
    return jinja_listed(JINJA_LIST, keys);
}

FILTER(sort) {
    jinja_list *items = list(run, self, NULL).as.list;
    jinja_value *keys = jinja_new(&run->arena, items->count, sizeof *keys);
    for (size_t i = 0; i < items->count; i++) {
        keys[i] = sort_key(run, items->at[i], given[2], jinja_truth(run, given[1]));
    }
    jinja_sort(run, items->at, keys, items->count, jinja_truth(run, given[0]));
    return jinja_listed(JINJA_LIST, items);
}

FILTER(dictsort) {
    bool by_value = given[1].kind == JINJA_STRING && jinja_text_is(given[1].as.text, "value");
    bool by_key =
        given[1].kind == JINJA_MISSING || (given[1].kind == JINJA_STRING && jinja_text_is(given[1].as.text, "key"));
    if (self.kind != JINJA_DICT || (!by_value && !by_key)) {
        jinja_fail(run, "dictsort: expected a mapping, and by 'key' or 'value'");
    }
    const jinja_dict *dict = self.as.dict;
    jinja_list *items = jinja_list_new(&run->arena, dict->count);
    jinja_value *keys = jinja_new(&run->arena, dict->count, sizeof *keys);
    for (size_t i = 0; i < dict->count; i++) {
        jinja_list_add(&run->arena, items, jinja_pair_of(&run->arena, dict->at[i].key, dict->at[i].value));
        keys[i] = folded(run, by_value ? dict->at[i].value : dict->at[i].key, jinja_truth(run, given[0]));
    }
    jinja_sort(run, items->at, keys, items->count, jinja_truth(run, given[2]));
    return jinja_listed(JINJA_LIST, items);
}

static jinja_value least(jinja_run *run, jinja_value self, const jinja_value *given, bool is_most) {
    const jinja_list *items = jinja_items(run, self);
    bool case_sensitive = jinja_truth(run, given[0]);
    size_t best = 0;
    jinja_value best_key = {0};
    for (size_t i = 0; i < items->count; i++) {
        jinja_value key = folded(run, jinja_path(run, items->at[i], given[1], (jinja_value){0}), case_sensitive);
        if (i == 0 || (is_most ? jinja_less(run, best_key, key) : jinja_less(run, key, best_key))) {
            best = i;
            best_key = key;
        }
    }
    return items->count > 0 ? items->at[best] : jinja_undefined(NULL);
}

FILTER(min) {
    return least(run, self, given, false);
}

FILTER(max) {
    return least(run, self, given, true);
}

FILTER(sum) {
    const jinja_list *items = jinja_items(run, self);
    jinja_value total = given[1].kind != JINJA_MISSING ? given[1] : jinja_integer(0);
    if (total.kind == JINJA_STRING) {
        jinja_fail(run, "sum() can't sum strings");
    }
    for (size_t i = 0; i < items->count; i++) {
        total = jinja_binary(run, TOKEN_ADD, total, jinja_path(run, items->at[i], given[0], (jinja_value){0}));
    }
    return total;
}

FILTER(groupby) {
    jinja_list *items = list(run, self, NULL).as.list;
    bool case_sensitive = jinja_truth(run, given[2]);
    jinja_value *keys = jinja_new(&run->arena, items->count, sizeof *keys);
    for (size_t i = 0; i < items->count; i++) {
        keys[i] = folded(run, jinja_path(run, items->at[i], given[0], given[1]), case_sensitive);
    }
    jinja_sort(run, items->at, keys, items->count, false);
    jinja_list *groups = jinja_list_new(&run->arena, 8);
    for (size_t i = 0; i < items->count;) {
        jinja_list *group = jinja_list_new(&run->arena, 4);
        size_t start = i;
        for (; i < items->count && (i == start || jinja_equal(run, keys[start], keys[i])); i++) {
            jinja_list_add(&run->arena, group, items->at[i]);
        }
        jinja_value key = case_sensitive ? keys[start] : jinja_path(run, group->at[0], given[0], given[1]);
        jinja_value pair = jinja_pair_of(&run->arena, key, jinja_listed(JINJA_LIST, group));
        pair.as.list->is_group = true;
        jinja_list_add(&run->arena, groups, pair);
    }
    return jinja_listed(JINJA_LIST, groups);
}

static size_t count_of(jinja_run *run, jinja_value value) {
    if (!jinja_is_whole(value) || jinja_whole(value) < 1) {
        jinja_fail(run, "expected a positive integer");
    }
    return (size_t)jinja_whole(value);
}

FILTER(batch) {
    const jinja_list *items = jinja_items(run, self);
    size_t size = count_of(run, given[0]);
    jinja_list *made = jinja_list_new(&run->arena, 8), *now = NULL;
    for (size_t i = 0; i < items->count; i++) {
        if (i % size == 0) {
            now = jinja_list_new(&run->arena, 4);
            jinja_list_add(&run->arena, made, jinja_listed(JINJA_LIST, now));
        }
        jinja_list_add(&run->arena, now, items->at[i]);
    }
    while (now != NULL && given[1].kind > JINJA_NONE && now->count < size) {
        jinja_spend(run, 1);
        jinja_list_add(&run->arena, now, given[1]);
    }
    return jinja_iterator_over(run, made);
}

FILTER(slices) {
    const jinja_list *items = jinja_items(run, self);
    size_t count = count_of(run, given[0]), each = items->count / count, extra = items->count % count, at = 0;
    jinja_list *made = jinja_list_new(&run->arena, 8);
    for (size_t i = 0; i < count; i++) {
        jinja_list *part = jinja_list_new(&run->arena, each + 1);
        jinja_spend(run, 1);
        for (size_t k = 0; k < each + (i < extra); k++) {
            jinja_list_add(&run->arena, part, items->at[at++]);
        }
        if (given[1].kind > JINJA_NONE && i >= extra) {
            jinja_list_add(&run->arena, part, given[1]);
        }
        jinja_list_add(&run->arena, made, jinja_listed(JINJA_LIST, part));
    }
    return jinja_iterator_over(run, made);
}

static void fill_items(jinja_run *run, jinja_iterator *iterator) {
    jinja_value source = iterator->source;
    if (source.kind != JINJA_DICT && source.kind != JINJA_UNDEFINED) {
        jinja_fail(run, "can only get item pairs from a mapping");
    }
    jinja_view view = {source.as.dict, JINJA_ITEMS};
    if (source.kind == JINJA_DICT) {
        iterator->items = jinja_items(run, (jinja_value){.kind = JINJA_VIEW, .as.view = &view});
    }
}

FILTER(items) {
    (void)given;
    jinja_iterator *iterator = jinja_new(&run->arena, 1, sizeof *iterator);
    *iterator = (jinja_iterator){.fill = fill_items, .source = self};
    return (jinja_value){.kind = JINJA_ITERATOR, .as.iterator = iterator};
}

FILTER(attribute) {
    if (given[0].kind != JINJA_STRING) {
        jinja_fail(run, "attr: expected the name of an attribute");
    }
    if (self.kind == JINJA_DICT) { /* attributes only, no keys */
        jinja_value nothing = jinja_dict_of(run, jinja_dict_new(&run->arena, 0));
        jinja_value found = jinja_attribute(run, nothing, given[0].as.text);
        return found.kind == JINJA_UNDEFINED ? found : jinja_attribute(run, self, given[0].as.text);
    }
    return jinja_attribute(run, self, given[0].as.text);
}

const jinja_function jinja_list_filters[] = {
    {"length", "", 0, length, NULL},
    {"count", "", 0, length, NULL},
    {"default", "default_value boolean", 0, otherwise, NULL},
    {"d", "default_value boolean", 0, otherwise, NULL},
    {"list", "", 0, list, NULL},
    {"first", "", 0, first, NULL},
    {"last", "", 0, last, NULL},
    {"join", "d attribute", 0, join, NULL},
    {"reverse", "", 0, reverse, NULL},
    {"sort", "reverse case_sensitive attribute", 0, sort, NULL},
    {"dictsort", "case_sensitive by reverse", 0, dictsort, NULL},
    {"min", "case_sensitive attribute", 0, min, NULL},
    {"max", "case_sensitive attribute", 0, max, NULL},
    {"sum", "attribute start", 0, sum, NULL},
    {"groupby", "attribute default case_sensitive", 1, groupby, NULL},
    {"batch", "linecount fill_with", 1, batch, NULL},
    {"slice", "slices fill_with", 1, slices, NULL},
    {"items", "", 0, items, NULL},
    {"attr", "name", 1, attribute, NULL},
};
const size_t jinja_list_filter_count = sizeof jinja_list_filters / sizeof jinja_list_filters[0];
