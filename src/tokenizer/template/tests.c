/* Tests: `value is name`. */
#include <math.h>

#include "tokenizer/template/run.h"
#include "tokenizer/template/unicode.h"

#define TEST(name) static jinja_value name(jinja_run *run, jinja_value self, const jinja_value *given)

TEST(is_defined) {
    (void)run;
    (void)given;
    return jinja_bool(self.kind != JINJA_UNDEFINED);
}

TEST(is_undefined) {
    (void)run;
    (void)given;
    return jinja_bool(self.kind == JINJA_UNDEFINED);
}

TEST(is_none) {
    (void)run;
    (void)given;
    return jinja_bool(self.kind == JINJA_NONE);
}

TEST(is_boolean) {
    (void)run;
    (void)given;
    return jinja_bool(self.kind == JINJA_BOOL);
}

TEST(is_true) {
    (void)run;
    (void)given;
    return jinja_bool(self.kind == JINJA_BOOL && self.as.truth);
}

TEST(is_false) {
    (void)run;
    (void)given;
    return jinja_bool(self.kind == JINJA_BOOL && !self.as.truth);
}

TEST(is_integer) {
    (void)run;
    (void)given;
    return jinja_bool(self.kind == JINJA_INTEGER);
}

TEST(is_float) {
    (void)run;
    (void)given;
    return jinja_bool(self.kind == JINJA_FLOAT);
}

TEST(is_number) {
    (void)run;
    (void)given;
    return jinja_bool(jinja_is_number(self));
}

TEST(is_string) {
    (void)run;
    (void)given;
    return jinja_bool(self.kind == JINJA_STRING);
}

TEST(is_mapping) {
    (void)run;
    (void)given;
    return jinja_bool(self.kind == JINJA_DICT);
}

TEST(is_sequence) {
    (void)run;
    (void)given;
    return jinja_bool(self.kind == JINJA_UNDEFINED || (self.kind >= JINJA_STRING && self.kind <= JINJA_RANGE));
}

TEST(is_iterable) {
    (void)run;
    (void)given;
    return jinja_bool(jinja_is_iterable(self));
}

TEST(is_callable) {
    (void)run;
    (void)given;
    return jinja_bool(self.kind == JINJA_UNDEFINED || self.kind == JINJA_MACRO || self.kind == JINJA_FUNCTION ||
                      self.kind == JINJA_METHOD || self.kind == JINJA_LOOP || self.kind == JINJA_JOINER);
}

TEST(is_escaped) {
    (void)run;
    (void)given;
    return jinja_bool(self.kind == JINJA_STRING && self.marked);
}

/* True if there is a cased character, and all cased characters have this case. */
static bool has_case(jinja_run *run, jinja_value value, bool upper) {
    const jinja_text *text = jinja_str(run, value).as.text;
    bool found = false;
    for (size_t i = 0; i < text->length;) {
        int bytes;
        uint32_t code = jinja_code_at(text->at + i, &bytes);
        if (jinja_code_is_title(code) || (upper ? jinja_code_is_lower(code) : jinja_code_is_upper(code))) {
            return false;
        }
        found = found || (upper ? jinja_code_is_upper(code) : jinja_code_is_lower(code));
        i += (size_t)bytes;
    }
    return found;
}

TEST(is_lower) {
    (void)given;
    return jinja_bool(has_case(run, self, false));
}

TEST(is_upper) {
    (void)given;
    return jinja_bool(has_case(run, self, true));
}

TEST(is_divisible) {
    return jinja_bool(!jinja_truth(run, jinja_binary(run, TOKEN_MODULO, self, given[0])));
}

TEST(is_even) {
    (void)given;
    return jinja_bool(jinja_equal(run, jinja_binary(run, TOKEN_MODULO, self, jinja_integer(2)), jinja_integer(0)));
}

TEST(is_odd) {
    (void)given;
    return jinja_bool(jinja_equal(run, jinja_binary(run, TOKEN_MODULO, self, jinja_integer(2)), jinja_integer(1)));
}

TEST(is_same) {
    bool plain = self.kind == given[0].kind && (self.kind <= JINJA_STRING || self.as.list == given[0].as.list);
    return jinja_bool(plain && jinja_equal(run, self, given[0]));
}

TEST(is_in) {
    return jinja_bool(jinja_contains(run, given[0], self));
}

TEST(is_equal) {
    return jinja_bool(jinja_equal(run, self, given[0]));
}

TEST(is_unequal) {
    return jinja_bool(!jinja_equal(run, self, given[0]));
}

static bool is_ordered(jinja_value a, jinja_value b) {
    return !(a.kind == JINJA_FLOAT && isnan(a.as.number)) && !(b.kind == JINJA_FLOAT && isnan(b.as.number));
}

TEST(is_greater) {
    return jinja_bool(jinja_compare(run, self, given[0], ">") > 0 && is_ordered(self, given[0]));
}

TEST(is_greater_equal) {
    return jinja_bool(jinja_compare(run, self, given[0], ">=") >= 0 && is_ordered(self, given[0]));
}

TEST(is_less) {
    return jinja_bool(jinja_compare(run, self, given[0], "<") < 0);
}

TEST(is_less_equal) {
    return jinja_bool(jinja_compare(run, self, given[0], "<=") <= 0);
}

TEST(is_filter) {
    (void)run;
    (void)given;
    return jinja_bool(self.kind == JINJA_STRING &&
                      (jinja_find_filter(self.as.text) != NULL || jinja_refused_filter(self.as.text) != NULL));
}

TEST(is_test) {
    (void)run;
    (void)given;
    return jinja_bool(self.kind == JINJA_STRING && jinja_find_test(self.as.text) != NULL);
}

static const jinja_function tests[] = {
    {"defined", "", 0, is_defined, NULL},
    {"undefined", "", 0, is_undefined, NULL},
    {"none", "", 0, is_none, NULL},
    {"boolean", "", 0, is_boolean, NULL},
    {"true", "", 0, is_true, NULL},
    {"false", "", 0, is_false, NULL},
    {"integer", "", 0, is_integer, NULL},
    {"float", "", 0, is_float, NULL},
    {"number", "", 0, is_number, NULL},
    {"string", "", 0, is_string, NULL},
    {"mapping", "", 0, is_mapping, NULL},
    {"sequence", "", 0, is_sequence, NULL},
    {"iterable", "", 0, is_iterable, NULL},
    {"callable", "", 0, is_callable, NULL},
    {"escaped", "", 0, is_escaped, NULL},
    {"lower", "", 0, is_lower, NULL},
    {"upper", "", 0, is_upper, NULL},
    {"divisibleby", "num", 1, is_divisible, NULL},
    {"even", "", 0, is_even, NULL},
    {"odd", "", 0, is_odd, NULL},
    {"sameas", "other", 1, is_same, NULL},
    {"in", "seq", 1, is_in, NULL},
    {"filter", "", 0, is_filter, NULL},
    {"test", "", 0, is_test, NULL},
    {"==", "/other", 1, is_equal, NULL},
    {"eq", "/other", 1, is_equal, NULL},
    {"equalto", "/other", 1, is_equal, NULL},
    {"!=", "/other", 1, is_unequal, NULL},
    {"ne", "/other", 1, is_unequal, NULL},
    {">", "/other", 1, is_greater, NULL},
    {"gt", "/other", 1, is_greater, NULL},
    {"greaterthan", "/other", 1, is_greater, NULL},
    {">=", "/other", 1, is_greater_equal, NULL},
    {"ge", "/other", 1, is_greater_equal, NULL},
    {"<", "/other", 1, is_less, NULL},
    {"lt", "/other", 1, is_less, NULL},
    {"lessthan", "/other", 1, is_less, NULL},
    {"<=", "/other", 1, is_less_equal, NULL},
    {"le", "/other", 1, is_less_equal, NULL},
};

const jinja_function *jinja_find_test(const jinja_text *name) {
    return jinja_find_in(tests, sizeof tests / sizeof tests[0], name);
}
