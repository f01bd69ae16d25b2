/* Filters that are generators in Jinja (map, select, reject, selectattr, rejectattr, unique). The result is an iterator
   that is computed when it is first used, and is true even if it is empty. Also the table of all filters. */
#include <string.h>

#include "tokenizer/template/run.h"

/* Returns the arguments after the first `skipped`. */
static jinja_arguments rest_of(const jinja_arguments *arguments, size_t skipped) {
    jinja_arguments rest = *arguments;
    rest.at += skipped;
    rest.count -= skipped;
    return rest;
}

static jinja_value keyword(const jinja_arguments *arguments, const char *name) {
    for (size_t i = 0; i < arguments->keywords; i++) {
        if (jinja_text_is(arguments->keyword[i].name, name)) {
            return arguments->keyword[i].value;
        }
    }
    return (jinja_value){0};
}

static void fill_map(jinja_run *run, jinja_iterator *iterator) {
    const jinja_arguments *arguments = iterator->arguments;
    jinja_value path = keyword(arguments, "attribute"), missing = keyword(arguments, "default");
    if (!jinja_truth(run, iterator->source)) { /* none counts as an empty list */
        return;
    }
    const jinja_list *items = jinja_items(run, iterator->source);
    bool by_attribute = arguments->count == 0 && path.kind != JINJA_MISSING;
    size_t known = (size_t)(path.kind != JINJA_MISSING) + (missing.kind != JINJA_MISSING);
    if (by_attribute ? arguments->keywords != known : arguments->count == 0 || arguments->at[0].kind != JINJA_STRING) {
        jinja_fail(run, "map: expected the name of a filter, or attribute and default");
    }
    const jinja_function *filter = by_attribute ? NULL : jinja_find_filter(arguments->at[0].as.text);
    if (!by_attribute && filter == NULL) {
        jinja_fail(run, "no filter named '%.*s'", (int)arguments->at[0].as.text->length, arguments->at[0].as.text->at);
    }
    jinja_arguments rest = by_attribute ? *arguments : rest_of(arguments, 1);
    for (size_t i = 0; i < items->count; i++) {
        jinja_list_add(&run->arena, iterator->items,
                       by_attribute ? jinja_path(run, items->at[i], path, missing)
                                    : jinja_call_function(run, filter, items->at[i], &rest));
    }
}

static void fill_selected(jinja_run *run, jinja_iterator *iterator) {
    const char *name = iterator->filter->name;
    bool by_attribute = strstr(name, "attr") != NULL, rejects = name[0] == 'r';
    const jinja_arguments *arguments = iterator->arguments;
    if (!jinja_truth(run, iterator->source)) {
        return;
    }
    const jinja_list *items = jinja_items(run, iterator->source);
    if (by_attribute && arguments->count == 0) {
        jinja_fail(run, "%s: the name of an attribute is missing", name);
    }
    size_t skipped = by_attribute;
    const jinja_function *test = NULL;
    if (arguments->count > skipped) {
        jinja_value wanted = arguments->at[skipped];
        test = wanted.kind == JINJA_STRING ? jinja_find_test(wanted.as.text) : NULL;
        if (test == NULL) {
            jinja_fail(run, "%s: no such test", name);
        }
    }
    jinja_arguments rest = rest_of(arguments, test != NULL ? skipped + 1 : skipped);
    for (size_t i = 0; i < items->count; i++) {
        jinja_value item = items->at[i];
        jinja_value value = by_attribute ? jinja_path(run, item, arguments->at[0], (jinja_value){0}) : item;
        bool holds = jinja_truth(run, test != NULL ? jinja_call_function(run, test, value, &rest) : value);
        if (holds != rejects) {
            jinja_list_add(&run->arena, iterator->items, item);
        }
    }
}

static void fill_unique(jinja_run *run, jinja_iterator *iterator) {
    const jinja_list *items = jinja_items(run, iterator->source);
    const jinja_value *given = iterator->arguments->at;
    jinja_dict *seen = jinja_dict_new(&run->arena, items->count);
    for (size_t i = 0; i < items->count; i++) {
        jinja_value key = jinja_path(run, items->at[i], given[1], (jinja_value){0});
        if (key.kind == JINJA_STRING && !jinja_truth(run, given[0])) {
            key = jinja_text_case(run, key, JINJA_LOWER);
        }
        uint64_t hash = jinja_hash(run, key);
        if (jinja_dict_find(seen, key, hash) == NULL) {
            jinja_dict_put(&run->arena, seen, key, hash, jinja_none());
            jinja_list_add(&run->arena, iterator->items, items->at[i]);
        }
    }
}

static jinja_value later(jinja_run *run, jinja_value source, const jinja_arguments *arguments,
                         const jinja_function *filter, void (*fill)(jinja_run *, jinja_iterator *)) {
    jinja_iterator *iterator = jinja_new(&run->arena, 1, sizeof *iterator);
    *iterator = (jinja_iterator){.fill = fill, .filter = filter, .source = source, .arguments = arguments};
    return (jinja_value){.kind = JINJA_ITERATOR, .as.iterator = iterator};
}

static jinja_arguments *kept(jinja_run *run, const jinja_arguments *arguments) {
    jinja_arguments *copy = jinja_new(&run->arena, 1, sizeof *copy);
    *copy = *arguments;
    return copy;
}

static jinja_value map(jinja_run *run, jinja_value self, const jinja_arguments *arguments) {
    return later(run, self, kept(run, arguments), NULL, fill_map);
}

static jinja_value select_(jinja_run *run, jinja_value self, const jinja_arguments *arguments) {
    return later(run, self, kept(run, arguments), &jinja_select_filters[1], fill_selected);
}

static jinja_value reject(jinja_run *run, jinja_value self, const jinja_arguments *arguments) {
    return later(run, self, kept(run, arguments), &jinja_select_filters[2], fill_selected);
}

static jinja_value selectattr(jinja_run *run, jinja_value self, const jinja_arguments *arguments) {
    return later(run, self, kept(run, arguments), &jinja_select_filters[3], fill_selected);
}

static jinja_value rejectattr(jinja_run *run, jinja_value self, const jinja_arguments *arguments) {
    return later(run, self, kept(run, arguments), &jinja_select_filters[4], fill_selected);
}

static jinja_value unique(jinja_run *run, jinja_value self, const jinja_value *given) {
    jinja_arguments *arguments = jinja_new(&run->arena, 1, sizeof *arguments);
    jinja_value *values = jinja_new(&run->arena, 2, sizeof *values);
    memcpy(values, given, 2 * sizeof *values);
    *arguments = (jinja_arguments){.at = values, .count = 2};
    return later(run, self, arguments, NULL, fill_unique);
}

const jinja_function jinja_select_filters[] = {
    {"map", NULL, 0, NULL, map},
    {"select", NULL, 0, NULL, select_},
    {"reject", NULL, 0, NULL, reject},
    {"selectattr", NULL, 0, NULL, selectattr},
    {"rejectattr", NULL, 0, NULL, rejectattr},
    {"unique", "case_sensitive attribute", 0, unique, NULL},
};
const size_t jinja_select_filter_count = sizeof jinja_select_filters / sizeof jinja_select_filters[0];

const jinja_function *jinja_find_filter(const jinja_text *name) {
    const jinja_function *found = jinja_find_in(jinja_text_filters, jinja_text_filter_count, name);
    found = found != NULL ? found : jinja_find_in(jinja_list_filters, jinja_list_filter_count, name);
    return found != NULL ? found : jinja_find_in(jinja_select_filters, jinja_select_filter_count, name);
}

const char *jinja_refused_filter(const jinja_text *name) {
    static const struct {
        const char *name, *feature;
    } refused[] = {
        {"pprint", "the filter pprint"},     {"random", "the filter random"},   {"urlize", "the filter urlize"},
        {"wordwrap", "the filter wordwrap"}, {"xmlattr", "the filter xmlattr"},
    };
    for (size_t i = 0; i < sizeof refused / sizeof refused[0]; i++) {
        if (jinja_text_is(name, refused[i].name)) {
            return refused[i].feature;
        }
    }
    return NULL;
}
