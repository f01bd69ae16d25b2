/* Items, attributes, lengths and slices of values. */
#include <string.h>

#include "tokenizer/template/run.h"
#include "tokenizer/template/unicode.h"

#define RANGE_MOST 100000 /* limit of Jinja's sandbox */

bool jinja_is_iterable(jinja_value value) {
    return value.kind == JINJA_UNDEFINED || (value.kind >= JINJA_STRING && value.kind <= JINJA_ITERATOR) ||
           value.kind == JINJA_LOOP;
}

bool jinja_has_length(jinja_value value) {
    return value.kind == JINJA_UNDEFINED || (value.kind >= JINJA_STRING && value.kind <= JINJA_VIEW) ||
           value.kind == JINJA_LOOP;
}

int64_t jinja_length(jinja_run *run, jinja_value value) {
    switch (value.kind) {
    case JINJA_UNDEFINED:
        return 0;
    case JINJA_STRING:
        jinja_spend(run, value.as.text->points < 0 ? value.as.text->length / 64 : 0);
        return jinja_points(value.as.text);
    case JINJA_LIST:
    case JINJA_TUPLE:
        return (int64_t)value.as.list->count;
    case JINJA_DICT:
        return (int64_t)value.as.dict->count;
    case JINJA_VIEW:
        return (int64_t)value.as.view->dict->count;
    case JINJA_RANGE:
        return value.as.range->count;
    case JINJA_LOOP:
        return (int64_t)value.as.loop->items->count;
    default:
        jinja_fail(run, "object of type '%s' has no len()", jinja_kind_name(value));
    }
}

jinja_value jinja_sub(jinja_run *run, jinja_value string, const char *start, size_t length) {
    jinja_value part = string;
    part.as.text = jinja_text_over(&run->arena, start, length);
    return part;
}

static jinja_list *characters(jinja_run *run, jinja_value string) {
    const jinja_text *text = string.as.text;
    jinja_list *list = jinja_list_new(&run->arena, (size_t)jinja_length(run, string));
    for (size_t i = 0; i < text->length;) {
        int bytes;
        (void)jinja_code_at(text->at + i, &bytes);
        jinja_list_add(&run->arena, list,
                       jinja_sub(run, (jinja_value){.kind = JINJA_STRING}, text->at + i, (size_t)bytes));
        i += (size_t)bytes;
    }
    return list;
}

static jinja_list *dict_items(jinja_run *run, const jinja_dict *dict, jinja_part part) {
    jinja_list *list = jinja_list_new(&run->arena, dict->count);
    for (size_t i = 0; i < dict->count; i++) {
        const jinja_pair *pair = &dict->at[i];
        jinja_list_add(&run->arena, list,
                       part == JINJA_KEYS     ? pair->key
                       : part == JINJA_VALUES ? pair->value
                                              : jinja_pair_of(&run->arena, pair->key, pair->value));
    }
    return list;
}

/* Returns the remaining items of an iterator and moves it to its end. */
static jinja_list *rest(jinja_run *run, jinja_iterator *iterator) {
    if (iterator->items == NULL) {
        iterator->items = jinja_list_new(&run->arena, 0);
        iterator->fill(run, iterator);
    }
    jinja_list *list = jinja_new(&run->arena, 1, sizeof *list);
    list->at = iterator->items->at + iterator->next;
    list->count = list->room = iterator->items->count - iterator->next;
    iterator->next = iterator->items->count;
    return list;
}

jinja_list *jinja_items(jinja_run *run, jinja_value value) {
    jinja_spend(run, jinja_has_length(value) ? (size_t)jinja_length(run, value) : 1);
    switch (value.kind) {
    case JINJA_UNDEFINED:
        return jinja_list_new(&run->arena, 0);
    case JINJA_STRING:
        return characters(run, value);
    case JINJA_LIST:
    case JINJA_TUPLE:
        return value.as.list;
    case JINJA_DICT:
        return dict_items(run, value.as.dict, JINJA_KEYS);
    case JINJA_VIEW:
        return dict_items(run, value.as.view->dict, value.as.view->part);
    case JINJA_ITERATOR:
        return rest(run, value.as.iterator);
    case JINJA_RANGE: {
        jinja_list *list = jinja_list_new(&run->arena, (size_t)value.as.range->count);
        for (int64_t i = 0; i < value.as.range->count; i++) {
            jinja_list_add(&run->arena, list, jinja_integer(value.as.range->start + i * value.as.range->step));
        }
        return list;
    }
    default:
        jinja_fail(run, "'%s' object is not iterable", jinja_kind_name(value));
    }
}

jinja_value jinja_iterator_over(jinja_run *run, jinja_list *items) {
    jinja_iterator *iterator = jinja_new(&run->arena, 1, sizeof *iterator);
    iterator->items = items;
    return (jinja_value){.kind = JINJA_ITERATOR, .as.iterator = iterator};
}

jinja_value jinja_dict_of(jinja_run *run, jinja_dict *dict) {
    (void)run;
    return (jinja_value){.kind = JINJA_DICT, .as.dict = dict};
}

jinja_value jinja_range_new(jinja_run *run, int64_t start, int64_t stop, int64_t step) {
    if (step == 0) {
        jinja_fail(run, "range() arg 3 must not be zero");
    }
    int64_t count = 0;
    if (step > 0 ? start < stop : start > stop) {
        uint64_t span = step > 0 ? (uint64_t)stop - (uint64_t)start : (uint64_t)start - (uint64_t)stop;
        uint64_t width = step > 1 ? (uint64_t)step : step < -1 ? 0 - (uint64_t)step : 1;
        uint64_t counted = (span - 1) / width + 1;
        count = counted > INT64_MAX ? INT64_MAX : (int64_t)counted;
    }
    if (count > RANGE_MOST) {
        jinja_fail(run, "range too big: more than %d items", RANGE_MOST);
    }
    jinja_range *range = jinja_new(&run->arena, 1, sizeof *range);
    *range = (jinja_range){start, stop, step, count};
    return (jinja_value){.kind = JINJA_RANGE, .as.range = range};
}

/* Returns loop.name, or MISSING. */
static jinja_value loop_attribute(jinja_run *run, const jinja_loop *loop, const jinja_text *name) {
    int64_t index = (int64_t)loop->index, count = (int64_t)loop->items->count;
    const struct {
        const char *name;
        jinja_value value;
    } attributes[] = {
        {"index", jinja_integer(index + 1)},
        {"index0", jinja_integer(index)},
        {"revindex", jinja_integer(count - index)},
        {"revindex0", jinja_integer(count - index - 1)},
        {"first", jinja_bool(index == 0)},
        {"last", jinja_bool(index + 1 == count)},
        {"length", jinja_integer(count)},
        {"depth", jinja_integer(loop->depth + 1)},
        {"depth0", jinja_integer(loop->depth)},
        {"previtem", index > 0 ? loop->items->at[index - 1] : jinja_undefined(NULL)},
        {"nextitem", index + 1 < count ? loop->items->at[index + 1] : jinja_undefined(NULL)},
    };
    (void)run;
    for (size_t i = 0; i < sizeof attributes / sizeof attributes[0]; i++) {
        if (jinja_text_is(name, attributes[i].name)) {
            return attributes[i].value;
        }
    }
    return (jinja_value){0};
}

static jinja_value macro_attribute(jinja_run *run, const jinja_macro *macro, const jinja_text *name) {
    const jinja_node *node = macro->node;
    if (jinja_text_is(name, "name")) {
        return (jinja_value){.kind = JINJA_STRING, .as.text = node->name};
    }
    if (jinja_text_is(name, "arguments")) {
        jinja_list *list = jinja_list_new(&run->arena, 4);
        for (const jinja_node *one = node->list; one != NULL; one = one->next) {
            jinja_list_add(&run->arena, list, (jinja_value){.kind = JINJA_STRING, .as.text = one->name});
        }
        return jinja_listed(JINJA_TUPLE, list);
    }
    const int bit = jinja_text_is(name, "caller")          ? JINJA_USES_CALLER
                    : jinja_text_is(name, "catch_kwargs")  ? JINJA_USES_KWARGS
                    : jinja_text_is(name, "catch_varargs") ? JINJA_USES_VARARGS
                                                           : 0;
    return bit != 0 ? jinja_bool((node->uses & bit) != 0) : (jinja_value){0};
}

/* Returns an attribute as Python's getattr finds it, or MISSING. */
static jinja_value own_attribute(jinja_run *run, jinja_value of, jinja_text *name) {
    jinja_value hidden = {.kind = JINJA_UNDEFINED, .marked = true, .as.text = name};
    jinja_value found = {0};
    if (of.kind == JINJA_NAMESPACE) {
        const jinja_value *value = jinja_dict_find_text(of.as.dict, name);
        found = value != NULL ? *value : found;
    } else if (of.kind == JINJA_LOOP) {
        found = loop_attribute(run, of.as.loop, name);
    } else if (of.kind == JINJA_MACRO) {
        found = macro_attribute(run, of.as.macro, name);
    } else if (of.kind == JINJA_TUPLE && of.as.list->is_group &&
               (jinja_text_is(name, "grouper") || jinja_text_is(name, "list"))) {
        found = of.as.list->at[jinja_text_is(name, "list") ? 1 : 0];
    } else if (of.kind == JINJA_CYCLER && jinja_text_is(name, "current")) {
        found = of.as.cycler->items->at[of.as.cycler->position];
    } else if (of.kind == JINJA_JOINER && jinja_text_is(name, "sep")) {
        found = of.as.cycler->items->at[0];
    }
    if (found.kind != JINJA_MISSING) {
        return name->at[0] == '_' ? hidden : found;
    }
    const jinja_function *method = jinja_find_method(of, name);
    if (method != NULL) {
        jinja_bound *bound = jinja_new(&run->arena, 1, sizeof *bound);
        *bound = (jinja_bound){of, method};
        return (jinja_value){.kind = JINJA_METHOD, .as.method = bound};
    }
    if (jinja_is_other_attribute(of, name)) {
        jinja_fail(run, "the attribute '%.*s' of '%s' is not supported", (int)name->length, name->at,
                   jinja_kind_name(of));
    }
    return jinja_is_hidden_method(of, name) ? hidden : (jinja_value){0};
}

/* Returns of[key] as Python does, or MISSING where Python raises an error. */
static jinja_value own_item(jinja_run *run, jinja_value of, jinja_value key) {
    if (of.kind == JINJA_DICT) {
        const jinja_value *value =
            jinja_is_hashable(key) ? jinja_dict_find(of.as.dict, key, jinja_hash(run, key)) : NULL;
        return value != NULL ? *value : (jinja_value){0};
    }
    bool is_sequence =
        of.kind == JINJA_LIST || of.kind == JINJA_TUPLE || of.kind == JINJA_RANGE || of.kind == JINJA_STRING;
    if (!is_sequence || !jinja_is_whole(key)) {
        return (jinja_value){0};
    }
    int64_t count = jinja_length(run, of), index = jinja_whole(key);
    index += index < 0 ? count : 0;
    if (index < 0 || index >= count) {
        return (jinja_value){0};
    }
    if (of.kind == JINJA_STRING) {
        return jinja_slice(run, of, jinja_integer(index), jinja_integer(index + 1), jinja_none());
    }
    return of.kind == JINJA_RANGE ? jinja_integer(of.as.range->start + index * of.as.range->step)
                                  : of.as.list->at[index];
}

jinja_value jinja_attribute(jinja_run *run, jinja_value of, jinja_text *name) {
    if (of.kind == JINJA_UNDEFINED) {
        jinja_fail_undefined(run, of);
    }
    jinja_value found = own_attribute(run, of, name);
    if (found.kind == JINJA_MISSING) {
        found = own_item(run, of, (jinja_value){.kind = JINJA_STRING, .as.text = name});
    }
    return found.kind != JINJA_MISSING ? found : jinja_undefined(name);
}

jinja_value jinja_item(jinja_run *run, jinja_value of, jinja_value key) {
    if (of.kind == JINJA_UNDEFINED) {
        jinja_fail_undefined(run, of);
    }
    jinja_value found = own_item(run, of, key);
    if (found.kind == JINJA_MISSING && key.kind == JINJA_STRING && key.as.text->length > 0) {
        found = own_attribute(run, of, key.as.text);
    }
    return found.kind != JINJA_MISSING ? found : jinja_undefined(key.kind == JINJA_STRING ? key.as.text : NULL);
}

static int64_t slice_index(jinja_run *run, jinja_value index, int64_t count, int64_t otherwise, bool is_back) {
    if (index.kind == JINJA_NONE) {
        return otherwise;
    }
    if (!jinja_is_whole(index)) {
        jinja_fail(run, "slice indices must be integers or none");
    }
    int64_t at = jinja_whole(index);
    at = at >= 0 ? at : at < -count ? -1 : at + count;
    if (at < 0) {
        return is_back ? -1 : 0;
    }
    return at >= count ? (is_back ? count - 1 : count) : at;
}

static jinja_value slice_text(jinja_run *run, jinja_value of, int64_t start, int64_t step, int64_t count) {
    const jinja_text *text = of.as.text;
    bool is_ascii = (int64_t)text->length == text->points;
    jinja_spend(run, text->length / 64);
    if (step == 1) {
        size_t from = (size_t)start, to = (size_t)(start + count);
        for (size_t i = 0, point = 0; !is_ascii && i <= text->length; i++) {
            if (i == text->length || ((unsigned char)text->at[i] & 0xC0) != 0x80) {
                from = point == (size_t)start ? i : from;
                to = point == (size_t)(start + count) ? i : to;
                point++;
            }
        }
        return jinja_sub(run, of, text->at + from, to - from);
    }
    const jinja_list *points = characters(run, of);
    size_t mark = jinja_capture(run);
    for (int64_t i = 0; i < count; i++) {
        jinja_print(run, points->at[start + i * step]);
    }
    jinja_value made = jinja_captured(run, mark);
    made.marked = of.marked;
    return made;
}

jinja_value jinja_slice(jinja_run *run, jinja_value of, jinja_value start, jinja_value stop, jinja_value step) {
    if (of.kind == JINJA_UNDEFINED) {
        jinja_fail_undefined(run, of);
    }
    if (of.kind != JINJA_STRING && of.kind != JINJA_LIST && of.kind != JINJA_TUPLE && of.kind != JINJA_RANGE) {
        jinja_fail(run, "'%s' object cannot be sliced", jinja_kind_name(of));
    }
    int64_t length = jinja_length(run, of), by = 1;
    if (step.kind != JINJA_NONE) {
        by = jinja_is_whole(step) ? jinja_whole(step) : 0;
        if (by == 0) {
            jinja_fail(run, "a slice step must be an integer other than 0");
        }
    }
    bool is_back = by < 0;
    int64_t from = slice_index(run, start, length, is_back ? length - 1 : 0, is_back);
    int64_t to = slice_index(run, stop, length, is_back ? -1 : length, is_back);
    uint64_t span = is_back ? (from > to ? (uint64_t)(from - to) : 0) : (to > from ? (uint64_t)(to - from) : 0);
    uint64_t width = is_back ? 0 - (uint64_t)by : (uint64_t)by;
    int64_t count = span > 0 ? (int64_t)((span - 1) / width + 1) : 0;
    by = count > 1 ? by : 1; /* with a single item, a large step must not overflow below */
    if (of.kind == JINJA_STRING) {
        return slice_text(run, of, from, by, count);
    }
    if (of.kind == JINJA_RANGE) {
        const jinja_range *range = of.as.range;
        int64_t first = range->start + from * range->step;
        return jinja_range_new(run, first, first + count * by * range->step, by * range->step);
    }
    jinja_spend(run, (size_t)count);
    jinja_list *list = jinja_list_new(&run->arena, (size_t)count);
    for (int64_t i = 0; i < count; i++) {
        jinja_list_add(&run->arena, list, of.as.list->at[from + i * by]);
    }
    return jinja_listed(of.kind, list);
}

jinja_value jinja_path(jinja_run *run, jinja_value item, jinja_value path, jinja_value missing) {
    if (path.kind == JINJA_MISSING || path.kind == JINJA_NONE) {
        return item;
    }
    if (path.kind != JINJA_STRING) {
        item = jinja_item(run, item, path);
        return item.kind == JINJA_UNDEFINED && missing.kind > JINJA_NONE ? missing : item;
    }
    const char *at = path.as.text->at, *end = at + path.as.text->length;
    for (bool last = false; !last;) {
        const char *dot = memchr(at, '.', (size_t)(end - at));
        last = dot == NULL;
        dot = last ? end : dot;
        jinja_value part = jinja_sub(run, (jinja_value){.kind = JINJA_STRING}, at, (size_t)(dot - at));
        int64_t index;
        bool is_index = dot > at && strspn(at, "0123456789") >= (size_t)(dot - at) &&
                        jinja_parse_integer(run, part.as.text, 10, &index);
        item = jinja_item(run, item, is_index ? jinja_integer(index) : part);
        if (item.kind == JINJA_UNDEFINED && missing.kind > JINJA_NONE) {
            item = missing;
        }
        at = last ? end : dot + 1;
    }
    return item;
}
