/* Methods of strings: case, stripping, splitting, replacing, joining. A part of a string marked safe is marked too. */
#include <string.h>

#include "tokenizer/template/methods_text.h"
#include "tokenizer/template/unicode.h"

#define METHOD(name) static jinja_value name(jinja_run *run, jinja_value self, const jinja_value *given)

jinja_text *jinja_text_of(jinja_run *run, jinja_value value) {
    if (value.kind != JINJA_STRING) {
        jinja_fail(run, "expected a string, got %s", jinja_kind_name(value));
    }
    return value.as.text;
}

int64_t jinja_whole_of(jinja_run *run, jinja_value value, int64_t otherwise) {
    if (value.kind == JINJA_MISSING || value.kind == JINJA_NONE) {
        return otherwise;
    }
    if (!jinja_is_whole(value)) {
        jinja_fail(run, "expected an integer, got %s", jinja_kind_name(value));
    }
    return jinja_whole(value);
}

/* A sigma at the end of a word has a lower case of its own. */
static bool is_final_sigma(const jinja_text *text, size_t at, int bytes) {
    int width;
    bool after_letter = at > 0 && jinja_code_is_alpha(jinja_code_before(text->at, text->at + at, &width));
    size_t next = at + (size_t)bytes;
    return after_letter && !(next < text->length && jinja_code_is_alpha(jinja_code_at(text->at + next, &width)));
}

jinja_value jinja_text_case(jinja_run *run, jinja_value string, jinja_case to) {
    const jinja_text *text = string.as.text;
    size_t start = jinja_capture(run);
    for (size_t i = 0; i < text->length;) {
        int bytes;
        uint32_t cased[JINJA_CASED_MOST], code = jinja_code_at(text->at + i, &bytes);
        int count = jinja_code_case(code, to, cased);
        if (to == JINJA_LOWER && code == 0x3A3 && is_final_sigma(text, i, bytes)) {
            cased[0] = 0x3C2;
        }
        for (int k = 0; k < count; k++) {
            jinja_write_code(run, cased[k]);
        }
        i += (size_t)bytes;
    }
    jinja_value made = jinja_captured(run, start);
    made.marked = string.marked;
    return made;
}

METHOD(upper) {
    (void)given;
    return jinja_text_case(run, self, JINJA_UPPER);
}

METHOD(lower) {
    (void)given;
    return jinja_text_case(run, self, JINJA_LOWER);
}

METHOD(casefold) {
    (void)given;
    return jinja_text_case(run, self, JINJA_FOLD);
}

/* Converts the first character to title case and the rest to lower case. */
METHOD(capitalize) {
    (void)given;
    const jinja_text *text = self.as.text;
    if (text->length == 0) {
        return self;
    }
    int bytes;
    (void)jinja_code_at(text->at, &bytes);
    jinja_value first = jinja_text_case(run, jinja_sub(run, self, text->at, (size_t)bytes), JINJA_TITLE);
    jinja_value rest = jinja_sub(run, self, text->at + bytes, text->length - (size_t)bytes);
    return jinja_concat(run, first, jinja_text_case(run, rest, JINJA_LOWER));
}

bool jinja_is_cased(uint32_t code) {
    return jinja_code_is_lower(code) || jinja_code_is_upper(code) || jinja_code_is_title(code);
}

METHOD(title) {
    (void)given;
    const jinja_text *text = self.as.text;
    size_t start = jinja_capture(run);
    bool inside = false;
    for (size_t i = 0; i < text->length;) {
        int bytes;
        uint32_t cased[JINJA_CASED_MOST], code = jinja_code_at(text->at + i, &bytes);
        int count = jinja_code_case(code, inside ? JINJA_LOWER : JINJA_TITLE, cased);
        for (int k = 0; k < count; k++) {
            jinja_write_code(run, cased[k]);
        }
        inside = jinja_is_cased(code);
        i += (size_t)bytes;
    }
    jinja_value made = jinja_captured(run, start);
    made.marked = self.marked;
    return made;
}

METHOD(swapcase) {
    (void)given;
    const jinja_text *text = self.as.text;
    size_t start = jinja_capture(run);
    for (size_t i = 0; i < text->length;) {
        int bytes;
        uint32_t cased[JINJA_CASED_MOST], code = jinja_code_at(text->at + i, &bytes);
        int count = jinja_code_case(code, jinja_code_is_upper(code) ? JINJA_LOWER : JINJA_UPPER, cased);
        for (int k = 0; k < count; k++) {
            jinja_write_code(run, cased[k]);
        }
        i += (size_t)bytes;
    }
    jinja_value made = jinja_captured(run, start);
    made.marked = self.marked;
    return made;
}

/* True if the character at `at` is one of `characters`, or is white space if `characters` is NULL. */
static bool strips(const jinja_text *characters, const char *at, int bytes, uint32_t code) {
    if (characters == NULL) {
        return jinja_code_is_space(code);
    }
    for (size_t i = 0; i < characters->length;) {
        int width;
        (void)jinja_code_at(characters->at + i, &width);
        if (width == bytes && memcmp(characters->at + i, at, (size_t)bytes) == 0) {
            return true;
        }
        i += (size_t)width;
    }
    return false;
}

jinja_value jinja_strip(jinja_run *run, jinja_value string, jinja_value characters, bool left, bool right) {
    const jinja_text *set =
        characters.kind == JINJA_MISSING || characters.kind == JINJA_NONE ? NULL : jinja_text_of(run, characters);
    const char *at = string.as.text->at, *end = at + string.as.text->length;
    int bytes;
    for (uint32_t code; left && at < end && (code = jinja_code_at(at, &bytes), strips(set, at, bytes, code));) {
        at += bytes;
    }
    for (uint32_t code;
         right && at < end && (code = jinja_code_before(at, end, &bytes), strips(set, end - bytes, bytes, code));) {
        end -= bytes;
    }
    return jinja_sub(run, string, at, (size_t)(end - at));
}

METHOD(strip) {
    return jinja_strip(run, self, given[0], true, true);
}

METHOD(lstrip) {
    return jinja_strip(run, self, given[0], true, false);
}

METHOD(rstrip) {
    return jinja_strip(run, self, given[0], false, true);
}

/* Splits at white space. From the right, the parts come in reversed order. */
static void split_spaces(jinja_run *run, jinja_value self, jinja_list *list, int64_t most, bool from_right) {
    const char *at = self.as.text->at, *end = at + self.as.text->length;
    int bytes;
    for (;;) {
        jinja_value rest =
            jinja_strip(run, jinja_sub(run, self, at, (size_t)(end - at)), (jinja_value){0}, !from_right, from_right);
        at = rest.as.text->at;
        end = at + rest.as.text->length;
        if (at == end) {
            return;
        }
        if (most >= 0 && (int64_t)list->count == most) {
            jinja_list_add(&run->arena, list, rest);
            return;
        }
        const char *word = from_right ? end : at;
        while (from_right ? word > at && !jinja_code_is_space(jinja_code_before(at, word, &bytes))
                          : word < end && !jinja_code_is_space(jinja_code_at(word, &bytes))) {
            word += from_right ? -bytes : bytes;
        }
        jinja_list_add(&run->arena, list,
                       from_right ? jinja_sub(run, self, word, (size_t)(end - word))
                                  : jinja_sub(run, self, at, (size_t)(word - at)));
        end = from_right ? word : end;
        at = from_right ? at : word;
    }
}

const char *jinja_find_last(const char *at, size_t length, const jinja_text *what) {
    for (size_t i = length >= what->length ? length - what->length + 1 : 0; i > 0; i--) {
        if (memcmp(at + i - 1, what->at, what->length) == 0) {
            return at + i - 1;
        }
    }
    return NULL;
}

static void split_at(jinja_run *run, jinja_value self, jinja_list *list, const jinja_text *by, int64_t most,
                     bool from_right) {
    const char *at = self.as.text->at, *end = at + self.as.text->length;
    if (by->length == 0) {
        jinja_fail(run, "empty separator");
    }
    for (;;) {
        bool goes_on = most < 0 || (int64_t)list->count < most;
        const char *found = !goes_on     ? NULL
                            : from_right ? jinja_find_last(at, (size_t)(end - at), by)
                                         : memmem(at, (size_t)(end - at), by->at, by->length);
        if (found == NULL) {
            jinja_list_add(&run->arena, list, jinja_sub(run, self, at, (size_t)(end - at)));
            return;
        }
        const char *after = found + by->length;
        jinja_list_add(&run->arena, list,
                       from_right ? jinja_sub(run, self, after, (size_t)(end - after))
                                  : jinja_sub(run, self, at, (size_t)(found - at)));
        end = from_right ? found : end;
        at = from_right ? at : after;
    }
}

static jinja_value split_by(jinja_run *run, jinja_value self, const jinja_value *given, bool from_right) {
    jinja_list *list = jinja_list_new(&run->arena, 8);
    int64_t most = jinja_whole_of(run, given[1], -1);
    jinja_spend(run, self.as.text->length / 16);
    if (given[0].kind == JINJA_MISSING || given[0].kind == JINJA_NONE) {
        split_spaces(run, self, list, most, from_right);
    } else {
        split_at(run, self, list, jinja_text_of(run, given[0]), most, from_right);
    }
    for (size_t i = 0; from_right && i < list->count / 2; i++) {
        jinja_value one = list->at[i];
        list->at[i] = list->at[list->count - 1 - i];
        list->at[list->count - 1 - i] = one;
    }
    return jinja_listed(JINJA_LIST, list);
}

METHOD(split) {
    return split_by(run, self, given, false);
}

METHOD(rsplit) {
    return split_by(run, self, given, true);
}

static bool ends_line(uint32_t code) {
    return (code >= 0x0A && code <= 0x0D) || (code >= 0x1C && code <= 0x1E) || code == 0x85 || code == 0x2028 ||
           code == 0x2029;
}

jinja_list *jinja_lines(jinja_run *run, const jinja_text *text, bool keeps_ends, bool marked) {
    jinja_list *list = jinja_list_new(&run->arena, 8);
    jinja_value like = {.kind = JINJA_STRING, .marked = marked};
    size_t start = 0;
    jinja_spend(run, text->length / 16);
    for (size_t i = 0; i < text->length;) {
        int bytes;
        uint32_t code = jinja_code_at(text->at + i, &bytes);
        size_t after = i + (size_t)bytes;
        if (ends_line(code)) {
            after += code == '\r' && after < text->length && text->at[after] == '\n';
            jinja_list_add(&run->arena, list, jinja_sub(run, like, text->at + start, (keeps_ends ? after : i) - start));
            start = after;
        }
        i = after;
    }
    if (start < text->length) {
        jinja_list_add(&run->arena, list, jinja_sub(run, like, text->at + start, text->length - start));
    }
    return list;
}

METHOD(splitlines) {
    return jinja_listed(JINJA_LIST, jinja_lines(run, self.as.text, jinja_truth(run, given[0]), self.marked));
}

/* True if the string, or its part between two indices, starts (or ends) with a text, or with one of a tuple. */
static jinja_value starts_or_ends(jinja_run *run, jinja_value self, const jinja_value *given, bool at_end) {
    if (given[1].kind != JINJA_MISSING || given[2].kind != JINJA_MISSING) {
        self = jinja_slice(run, self, given[1].kind == JINJA_MISSING ? jinja_none() : given[1],
                           given[2].kind == JINJA_MISSING ? jinja_none() : given[2], jinja_none());
    }
    jinja_list one = {.at = (jinja_value[]){given[0]}, .count = 1};
    const jinja_list *all = given[0].kind == JINJA_TUPLE ? given[0].as.list : &one;
    bool found = false;
    for (size_t i = 0; i < all->count && !found; i++) {
        const jinja_text *what = jinja_text_of(run, all->at[i]), *text = self.as.text;
        found = what->length <= text->length &&
                memcmp(text->at + (at_end ? text->length - what->length : 0), what->at, what->length) == 0;
    }
    return jinja_bool(found);
}

METHOD(startswith) {
    return starts_or_ends(run, self, given, false);
}

METHOD(endswith) {
    return starts_or_ends(run, self, given, true);
}

jinja_value jinja_replace(jinja_run *run, const jinja_text *in, const jinja_text *old, const jinja_text *new_text,
                          int64_t most) {
    size_t start = jinja_capture(run);
    const char *at = in->at, *end = at + in->length;
    jinja_spend(run, in->length / 16);
    while (most != 0) {
        const char *found = old->length > 0 ? memmem(at, (size_t)(end - at), old->at, old->length) : at;
        if (found == NULL) {
            break;
        }
        jinja_write(run, at, (size_t)(found - at));
        jinja_write(run, new_text->at, new_text->length);
        at = found + old->length;
        most -= most > 0;
        if (old->length == 0) { /* inserts between all characters */
            int bytes = 0;
            if (at == end) {
                break;
            }
            (void)jinja_code_at(at, &bytes);
            jinja_write(run, at, (size_t)bytes);
            at += bytes;
        }
    }
    jinja_write(run, at, (size_t)(end - at));
    return jinja_captured(run, start);
}

METHOD(replace) {
    jinja_value with = self.marked ? jinja_escape(run, given[1]) : given[1];
    jinja_value made = jinja_replace(run, self.as.text, jinja_text_of(run, given[0]), jinja_text_of(run, with),
                                     jinja_whole_of(run, given[2], -1));
    made.marked = self.marked;
    return made;
}

METHOD(removeprefix) {
    const jinja_text *what = jinja_text_of(run, given[0]), *text = self.as.text;
    bool has = what->length <= text->length && memcmp(text->at, what->at, what->length) == 0;
    return has ? jinja_sub(run, self, text->at + what->length, text->length - what->length) : self;
}

METHOD(removesuffix) {
    const jinja_text *what = jinja_text_of(run, given[0]), *text = self.as.text;
    bool has =
        what->length <= text->length && memcmp(text->at + text->length - what->length, what->at, what->length) == 0;
    return has ? jinja_sub(run, self, text->at, text->length - what->length) : self;
}

METHOD(join) {
    const jinja_list *items = jinja_items(run, given[0]);
    size_t start = jinja_capture(run);
    for (size_t i = 0; i < items->count; i++) {
        if (items->at[i].kind != JINJA_STRING && !self.marked) {
            size_t written = jinja_capture(run) - start;
            run->out_count -= written;
            jinja_fail(run, "sequence item %zu: expected str instance, %s found", i, jinja_kind_name(items->at[i]));
        }
        jinja_print(run, i > 0 ? self : (jinja_value){.kind = JINJA_UNDEFINED});
        jinja_print(run, self.marked ? jinja_escape(run, items->at[i]) : items->at[i]);
    }
    jinja_value made = jinja_captured(run, start);
    made.marked = self.marked;
    return made;
}

static jinja_value format(jinja_run *run, jinja_value self, const jinja_arguments *arguments) {
    return jinja_format_braces(run, self, arguments);
}

static const jinja_function text_methods[] = {
    {"upper", "", 0, upper, NULL},
    {"lower", "", 0, lower, NULL},
    {"casefold", "", 0, casefold, NULL},
    {"capitalize", "", 0, capitalize, NULL},
    {"title", "", 0, title, NULL},
    {"swapcase", "", 0, swapcase, NULL},
    {"strip", "/chars", 0, strip, NULL},
    {"lstrip", "/chars", 0, lstrip, NULL},
    {"rstrip", "/chars", 0, rstrip, NULL},
    {"split", "sep maxsplit", 0, split, NULL},
    {"rsplit", "sep maxsplit", 0, rsplit, NULL},
    {"splitlines", "keepends", 0, splitlines, NULL},
    {"startswith", "/prefix start end", 1, startswith, NULL},
    {"endswith", "/suffix start end", 1, endswith, NULL},
    {"replace", "/old new count", 2, replace, NULL},
    {"removeprefix", "/prefix", 1, removeprefix, NULL},
    {"removesuffix", "/suffix", 1, removesuffix, NULL},
    {"join", "/iterable", 1, join, NULL},
    {"format", NULL, 0, NULL, format},
};

const jinja_function *jinja_find_text_method(const jinja_text *name) {
    const jinja_function *found = jinja_find_in(text_methods, sizeof text_methods / sizeof text_methods[0], name);
    return found != NULL ? found : jinja_find_in(jinja_search_methods, jinja_search_method_count, name);
}
