/* Methods of lists, tuples, dicts, loops and cyclers, and names of methods that templates may not call. */
#include <string.h>

#include "tokenizer/template/run.h"

#define METHOD(name) static jinja_value name(jinja_run *run, jinja_value self, const jinja_value *given)

METHOD(list_count) {
    int64_t found = 0;
    for (size_t i = 0; i < self.as.list->count; i++) {
        found += jinja_equal(run, self.as.list->at[i], given[0]);
    }
    return jinja_integer(found);
}

METHOD(list_index) {
    for (size_t i = 0; i < self.as.list->count; i++) {
        if (jinja_equal(run, self.as.list->at[i], given[0])) {
            return jinja_integer((int64_t)i);
        }
    }
    jinja_fail(run, "a value is not in the list");
}

METHOD(copy) { /* lists and dicts cannot be changed, so the value itself serves as a copy */
    (void)run;
    (void)given;
    return self;
}

static jinja_value view_of(jinja_run *run, jinja_value self, jinja_part part) {
    jinja_view *view = jinja_new(&run->arena, 1, sizeof *view);
    *view = (jinja_view){self.as.dict, part};
    return (jinja_value){.kind = JINJA_VIEW, .as.view = view};
}

METHOD(keys) {
    (void)given;
    return view_of(run, self, JINJA_KEYS);
}

METHOD(values) {
    (void)given;
    return view_of(run, self, JINJA_VALUES);
}

METHOD(items) {
    (void)given;
    return view_of(run, self, JINJA_ITEMS);
}

METHOD(get) {
    const jinja_value *found = jinja_dict_find(self.as.dict, given[0], jinja_hash(run, given[0]));
    return found != NULL ? *found : given[1].kind != JINJA_MISSING ? given[1] : jinja_none();
}

static jinja_value loop_cycle(jinja_run *run, jinja_value self, const jinja_arguments *arguments) {
    if (arguments->count > 0 && arguments->keywords == 0) {
        return arguments->at[self.as.loop->index % arguments->count];
    }
    jinja_fail(run, "no items for cycling given");
}

static jinja_value loop_changed(jinja_run *run, jinja_value self, const jinja_arguments *arguments) {
    jinja_list *list = jinja_list_new(&run->arena, arguments->count);
    for (size_t i = 0; i < arguments->count; i++) {
        jinja_list_add(&run->arena, list, arguments->at[i]);
    }
    jinja_value now = jinja_listed(JINJA_TUPLE, list);
    bool changed = self.as.loop->changed.kind == JINJA_MISSING || !jinja_equal(run, self.as.loop->changed, now);
    self.as.loop->changed = now;
    return jinja_bool(changed);
}

METHOD(cycler_next) {
    (void)run;
    (void)given;
    jinja_cycler *cycler = self.as.cycler;
    jinja_value now = cycler->items->at[cycler->position];
    cycler->position = (cycler->position + 1) % cycler->items->count;
    return now;
}

METHOD(cycler_reset) {
    (void)run;
    (void)given;
    self.as.cycler->position = 0;
    return jinja_none();
}

static const jinja_function list_methods[] = {
    {"count", "/value", 1, list_count, NULL},
    {"index", "/value", 1, list_index, NULL},
    {"copy", "", 0, copy, NULL}, /* a tuple does not have it */
};

static const jinja_function dict_methods[] = {
    {"get", "/key default", 1, get, NULL}, {"items", "", 0, items, NULL}, {"keys", "", 0, keys, NULL},
    {"values", "", 0, values, NULL},       {"copy", "", 0, copy, NULL},
};

static const jinja_function loop_methods[] = {
    {"cycle", NULL, 0, NULL, loop_cycle},
    {"changed", NULL, 0, NULL, loop_changed},
};

static const jinja_function cycler_methods[] = {
    {"next", "", 0, cycler_next, NULL},
    {"reset", "", 0, cycler_reset, NULL},
};

#define COUNT(table) (sizeof(table) / sizeof(table)[0])

const jinja_function *jinja_find_method(jinja_value of, const jinja_text *name) {
    switch (of.kind) {
    case JINJA_STRING:
        return jinja_find_text_method(name);
    case JINJA_LIST:
        return jinja_find_in(list_methods, COUNT(list_methods), name);
    case JINJA_TUPLE:
        return jinja_find_in(list_methods, COUNT(list_methods) - 1, name);
    case JINJA_DICT:
        return jinja_find_in(dict_methods, COUNT(dict_methods), name);
    case JINJA_LOOP:
        return jinja_find_in(loop_methods, COUNT(loop_methods), name);
    case JINJA_CYCLER:
        return jinja_find_in(cycler_methods, COUNT(cycler_methods), name);
    default:
        return NULL;
    }
}

static bool is_one_of(const jinja_text *name, const char *const *names) {
    bool is = false;
    for (int i = 0; names[i] != NULL && !is; i++) {
        is = jinja_text_is(name, names[i]);
    }
    return is;
}

bool jinja_is_hidden_method(jinja_value of, const jinja_text *name) {
    static const char *const of_list[] = {"append", "clear",   "extend", "insert", "pop",
                                          "remove", "reverse", "sort",   NULL};
    static const char *const of_dict[] = {"clear", "pop", "popitem", "setdefault", "update", NULL};
    static const char *const of_all[] = {"__class__", "__doc__",  "__dict__",    "__init__",     "__module__",
                                         "__len__",   "__iter__", "__getitem__", "__contains__", "__str__",
                                         "__repr__",  "__eq__",   "__hash__",    "__new__",      NULL};
    return is_one_of(name, of_all) || (of.kind == JINJA_LIST && is_one_of(name, of_list)) ||
           (of.kind == JINJA_DICT && is_one_of(name, of_dict));
}

bool jinja_is_other_attribute(jinja_value of, const jinja_text *name) {
    static const char *const of_text[] = {"encode",       "translate",   "maketrans", "format_map",
                                          "isidentifier", "isprintable", NULL};
    static const char *const of_dict[] = {"fromkeys", NULL};
    static const char *const of_number[] = {"real",       "imag",      "conjugate", "numerator",  "denominator",
                                            "bit_length", "bit_count", "to_bytes",  "from_bytes", "as_integer_ratio",
                                            "is_integer", "hex",       "fromhex",   NULL};
    return (of.kind == JINJA_STRING && is_one_of(name, of_text)) ||
           (of.kind == JINJA_DICT && is_one_of(name, of_dict)) || (jinja_is_number(of) && is_one_of(name, of_number));
}
