/* Methods of strings: searching, padding and properties of characters. Indices count code points. */
#include <string.h>

#include "tokenizer/template/methods_text.h"
#include "tokenizer/template/unicode.h"

#define METHOD(name) static jinja_value name(jinja_run *run, jinja_value self, const jinja_value *given)

static jinja_value index_of(jinja_run *run, jinja_value self, const jinja_value *given, bool last, bool must) {
    jinja_value part = jinja_slice(run, self, given[1].kind == JINJA_MISSING ? jinja_none() : given[1],
                                   given[2].kind == JINJA_MISSING ? jinja_none() : given[2], jinja_none());
    const jinja_text *what = jinja_text_of(run, given[0]), *text = part.as.text;
    const char *found = last               ? jinja_find_last(text->at, text->length, what)
                        : what->length > 0 ? memmem(text->at, text->length, what->at, what->length)
                                           : text->at;
    jinja_spend(run, self.as.text->length / 16);
    if (found == NULL && must) {
        jinja_fail(run, "substring not found");
    }
    jinja_text before = {self.as.text->at, found != NULL ? (size_t)(found - self.as.text->at) : 0, -1};
    return jinja_integer(found != NULL ? jinja_points(&before) : -1);
}

METHOD(find) {
    return index_of(run, self, given, false, false);
}

METHOD(rfind) {
    return index_of(run, self, given, true, false);
}

METHOD(string_index) {
    return index_of(run, self, given, false, true);
}

METHOD(string_rindex) {
    return index_of(run, self, given, true, true);
}

METHOD(count) {
    jinja_value part = jinja_slice(run, self, given[1].kind == JINJA_MISSING ? jinja_none() : given[1],
                                   given[2].kind == JINJA_MISSING ? jinja_none() : given[2], jinja_none());
    const jinja_text *what = jinja_text_of(run, given[0]);
    const char *at = part.as.text->at, *end = at + part.as.text->length;
    jinja_spend(run, self.as.text->length / 16);
    if (what->length == 0) {
        return jinja_integer(jinja_points(part.as.text) + 1);
    }
    int64_t found = 0;
    while ((at = memmem(at, (size_t)(end - at), what->at, what->length)) != NULL) {
        found++;
        at += what->length;
    }
    return jinja_integer(found);
}

static jinja_value parts(jinja_run *run, jinja_value self, jinja_value by, bool last) {
    const jinja_text *what = jinja_text_of(run, by), *text = self.as.text;
    if (what->length == 0) {
        jinja_fail(run, "empty separator");
    }
    const char *found =
        last ? jinja_find_last(text->at, text->length, what) : memmem(text->at, text->length, what->at, what->length);
    size_t before = found != NULL ? (size_t)(found - text->at) : last ? 0 : text->length;
    size_t width = found != NULL ? what->length : 0;
    jinja_list *list = jinja_list_new(&run->arena, 3);
    jinja_list_add(&run->arena, list, jinja_sub(run, self, text->at, before));
    jinja_list_add(&run->arena, list, jinja_sub(run, self, text->at + before, width));
    jinja_list_add(&run->arena, list, jinja_sub(run, self, text->at + before + width, text->length - before - width));
    return jinja_listed(JINJA_TUPLE, list);
}

METHOD(partition) {
    return parts(run, self, given[0], false);
}

METHOD(rpartition) {
    return parts(run, self, given[0], true);
}

static jinja_value justify(jinja_run *run, jinja_value self, const jinja_value *given, int side) {
    int64_t width = jinja_whole_of(run, given[0], 0), missing = width - jinja_length(run, self);
    jinja_value fill = given[1].kind != JINJA_MISSING ? given[1] : jinja_string(&run->arena, " ", 1);
    if (jinja_points(jinja_text_of(run, fill)) != 1) {
        jinja_fail(run, "the fill character must be exactly one character long");
    }
    if (missing <= 0) {
        return self;
    }
    int64_t left = side < 0 ? 0 : side > 0 ? missing : missing / 2 + (missing & width & 1);
    size_t start = jinja_capture(run);
    for (int64_t i = 0; i < missing; i++) {
        if (i == left) {
            jinja_print(run, self);
        }
        jinja_print(run, fill);
    }
    if (left == missing) {
        jinja_print(run, self);
    }
    jinja_value made = jinja_captured(run, start);
    made.marked = self.marked;
    return made;
}

METHOD(ljust) {
    return justify(run, self, given, -1);
}

METHOD(rjust) {
    return justify(run, self, given, 1);
}

METHOD(center) {
    return justify(run, self, given, 0);
}

METHOD(zfill) {
    bool has_sign = self.as.text->length > 0 && (self.as.text->at[0] == '-' || self.as.text->at[0] == '+');
    int64_t missing = jinja_whole_of(run, given[0], 0) - jinja_length(run, self);
    size_t start = jinja_capture(run);
    jinja_write(run, self.as.text->at, has_sign);
    for (int64_t i = 0; i < missing; i++) {
        jinja_write_string(run, "0");
    }
    jinja_write(run, self.as.text->at + has_sign, self.as.text->length - has_sign);
    return jinja_captured(run, start);
}

METHOD(expandtabs) {
    int64_t width = jinja_whole_of(run, given[0], 8), column = 0;
    size_t start = jinja_capture(run);
    for (size_t i = 0; i < self.as.text->length; i++) {
        char one = self.as.text->at[i];
        if (one == '\t') {
            for (int64_t stop = width > 0 ? width - column % width : 0; stop > 0; stop--, column++) {
                jinja_write_string(run, " ");
            }
            continue;
        }
        jinja_write(run, &one, 1);
        column = one == '\n' || one == '\r' ? 0 : column + (((unsigned char)one & 0xC0) != 0x80);
    }
    return jinja_captured(run, start);
}

/* True if the string is not empty and all its characters have the property. */
static jinja_value all_are(jinja_value self, bool (*is)(uint32_t)) {
    const jinja_text *text = self.as.text;
    bool all = text->length > 0;
    for (size_t i = 0; i < text->length && all;) {
        int bytes;
        all = is(jinja_code_at(text->at + i, &bytes));
        i += (size_t)bytes;
    }
    return jinja_bool(all);
}

#define PROPERTY(name, is)        \
    METHOD(name) {                \
        (void)run;                \
        (void)given;              \
        return all_are(self, is); \
    }
PROPERTY(isalpha_, jinja_code_is_alpha)
PROPERTY(isalnum_, jinja_code_is_alnum)
PROPERTY(isdigit_, jinja_code_is_digit)
PROPERTY(isdecimal, jinja_code_is_decimal)
PROPERTY(isnumeric, jinja_code_is_numeric)
PROPERTY(isspace_, jinja_code_is_space)

METHOD(isascii_) {
    (void)run;
    (void)given;
    bool all = true;
    for (size_t i = 0; i < self.as.text->length; i++) {
        all = all && (unsigned char)self.as.text->at[i] < 0x80;
    }
    return jinja_bool(all);
}

static jinja_value by_test(jinja_run *run, jinja_value self, const char *name) {
    jinja_text text = {name, strlen(name), -1};
    return jinja_find_test(&text)->bound(run, self, NULL);
}

METHOD(islower_) {
    (void)given;
    return by_test(run, self, "lower");
}

METHOD(isupper_) {
    (void)given;
    return by_test(run, self, "upper");
}

METHOD(istitle) {
    (void)run;
    (void)given;
    bool inside = false, found = false;
    for (size_t i = 0; i < self.as.text->length;) {
        int bytes;
        uint32_t code = jinja_code_at(self.as.text->at + i, &bytes);
        bool is_up = jinja_code_is_upper(code) || jinja_code_is_title(code);
        if (is_up ? inside : jinja_code_is_lower(code) && !inside) {
            return jinja_bool(false);
        }
        inside = jinja_is_cased(code);
        found = found || inside;
        i += (size_t)bytes;
    }
    return jinja_bool(found);
}

const jinja_function jinja_search_methods[] = {
    {"find", "/sub start end", 1, find, NULL},
    {"rfind", "/sub start end", 1, rfind, NULL},
    {"index", "/sub start end", 1, string_index, NULL},
    {"rindex", "/sub start end", 1, string_rindex, NULL},
    {"count", "/sub start end", 1, count, NULL},
    {"partition", "/sep", 1, partition, NULL},
    {"rpartition", "/sep", 1, rpartition, NULL},
    {"ljust", "/width fillchar", 1, ljust, NULL},
    {"rjust", "/width fillchar", 1, rjust, NULL},
    {"center", "/width fillchar", 1, center, NULL},
    {"zfill", "/width", 1, zfill, NULL},
    {"expandtabs", "tabsize", 0, expandtabs, NULL},
    {"isalpha", "", 0, isalpha_, NULL},
    {"isalnum", "", 0, isalnum_, NULL},
    {"isdigit", "", 0, isdigit_, NULL},
    {"isdecimal", "", 0, isdecimal, NULL},
    {"isnumeric", "", 0, isnumeric, NULL},
    {"isspace", "", 0, isspace_, NULL},
    {"isascii", "", 0, isascii_, NULL},
    {"islower", "", 0, islower_, NULL},
    {"isupper", "", 0, isupper_, NULL},
    {"istitle", "", 0, istitle, NULL},
};
const size_t jinja_search_method_count = sizeof jinja_search_methods / sizeof jinja_search_methods[0];
