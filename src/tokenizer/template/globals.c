/* Global functions of Jinja and of transformers' environment. */
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "tokenizer/template/run.h"

#define TIME_MOST 512 /* maximum bytes of a date's format and of the formatted date */

static int64_t whole_of(jinja_run *run, jinja_value value) {
    if (!jinja_is_whole(value)) {
        jinja_fail(run, "range: '%s' object cannot be interpreted as an integer", jinja_kind_name(value));
    }
    return jinja_whole(value);
}

static jinja_value range(jinja_run *run, jinja_value self, const jinja_value *given) {
    (void)self;
    int64_t first = whole_of(run, given[0]);
    bool is_one = given[1].kind == JINJA_MISSING;
    return jinja_range_new(run, is_one ? 0 : first, is_one ? first : whole_of(run, given[1]),
                           given[2].kind == JINJA_MISSING ? 1 : whole_of(run, given[2]));
}

jinja_dict *jinja_make_dict(jinja_run *run, const jinja_arguments *arguments) {
    jinja_dict *dict = jinja_dict_new(&run->arena, arguments->keywords);
    if (arguments->count > 1) {
        jinja_fail(run, "dict expected at most 1 argument, got %zu", arguments->count);
    }
    if (arguments->count == 1 && arguments->at[0].kind == JINJA_DICT) {
        const jinja_dict *from = arguments->at[0].as.dict;
        for (size_t i = 0; i < from->count; i++) {
            jinja_dict_put(&run->arena, dict, from->at[i].key, from->at[i].hash, from->at[i].value);
        }
    } else if (arguments->count == 1) {
        const jinja_list *pairs = jinja_items(run, arguments->at[0]);
        for (size_t i = 0; i < pairs->count; i++) {
            const jinja_list *pair = jinja_items(run, pairs->at[i]);
            if (pair->count != 2) {
                jinja_fail(run, "dictionary update sequence element #%zu has length %zu; 2 is required", i,
                           pair->count);
            }
            jinja_dict_put(&run->arena, dict, pair->at[0], jinja_hash(run, pair->at[0]), pair->at[1]);
        }
    }
    for (size_t i = 0; i < arguments->keywords; i++) {
        jinja_dict_put_text(&run->arena, dict, arguments->keyword[i].name, arguments->keyword[i].value);
    }
    return dict;
}

static jinja_value dict(jinja_run *run, jinja_value self, const jinja_arguments *arguments) {
    (void)self;
    return jinja_dict_of(run, jinja_make_dict(run, arguments));
}

static jinja_value namespace_(jinja_run *run, jinja_value self, const jinja_arguments *arguments) {
    (void)self;
    jinja_dict *made = jinja_make_dict(run, arguments);
    for (size_t i = 0; i < made->count; i++) {
        jinja_value key = made->at[i].key;
        if (key.kind == JINJA_STRING && key.as.text->length > 0 && key.as.text->at[0] == '_') {
            jinja_fail(run, "a namespace cannot have the attribute '%.*s', which begins with '_'",
                       (int)key.as.text->length, key.as.text->at);
        }
    }
    return (jinja_value){.kind = JINJA_NAMESPACE, .as.dict = made};
}

static jinja_value raise_exception(jinja_run *run, jinja_value self, const jinja_value *given) {
    (void)self;
    jinja_raise(run, jinja_str(run, given[0]).as.text);
}

static jinja_value strftime_now(jinja_run *run, jinja_value self, const jinja_value *given) {
    (void)self;
    if (given[0].kind != JINJA_STRING || given[0].as.text->length >= TIME_MOST) {
        jinja_fail(run, "strftime_now: expected a format of at most %d bytes", TIME_MOST - 1);
    }
    struct tm now;
    long microseconds = 0;
    if (run->input->now != NULL) {
        now = *run->input->now;
    } else {
        struct timespec clock;
        (void)clock_gettime(CLOCK_REALTIME, &clock);
        (void)localtime_r(&clock.tv_sec, &now);
        microseconds = clock.tv_nsec / 1000;
    }
    char format[TIME_MOST * 4] = "", text[TIME_MOST * 8];
    const jinja_text *given_format = given[0].as.text;
    size_t at = 0;
    for (size_t i = 0; i < given_format->length; i++) {
        bool is_directive = given_format->at[i] == '%' && i + 1 < given_format->length;
        if (is_directive && given_format->at[i + 1] == 'f') { /* microseconds, in Python only */
            at += (size_t)snprintf(format + at, sizeof format - at, "%06ld", microseconds);
            i++;
            continue;
        }
        format[at++] = given_format->at[i];
        if (is_directive) {
            format[at++] = given_format->at[++i];
        }
    }
    format[at++] = '.'; /* strftime returns 0 for an empty result as for an error: this makes the result non-empty */
    format[at] = '\0';
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
    size_t length = strftime(text, sizeof text, format, &now);
#pragma GCC diagnostic pop
    if (length == 0) {
        jinja_fail(run, "strftime_now: the date has more than %zu bytes", sizeof text - 1);
    }
    return jinja_string(&run->arena, text, length - 1);
}

static jinja_value cycler(jinja_run *run, jinja_value self, const jinja_arguments *arguments) {
    (void)self;
    if (arguments->count == 0 || arguments->keywords > 0) {
        jinja_fail(run, "cycler: at least one item has to be provided");
    }
    jinja_cycler *made = jinja_new(&run->arena, 1, sizeof *made);
    made->items = jinja_list_new(&run->arena, arguments->count);
    for (size_t i = 0; i < arguments->count; i++) {
        jinja_list_add(&run->arena, made->items, arguments->at[i]);
    }
    return (jinja_value){.kind = JINJA_CYCLER, .as.cycler = made};
}

static jinja_value joiner(jinja_run *run, jinja_value self, const jinja_value *given) {
    (void)self;
    jinja_cycler *made = jinja_new(&run->arena, 1, sizeof *made);
    made->items = jinja_list_new(&run->arena, 1);
    jinja_list_add(&run->arena, made->items,
                   given[0].kind != JINJA_MISSING ? given[0] : jinja_string(&run->arena, ", ", 2));
    return (jinja_value){.kind = JINJA_JOINER, .as.cycler = made};
}

static jinja_value lipsum(jinja_run *run, jinja_value self, const jinja_arguments *arguments) {
    (void)self;
    (void)arguments;
    jinja_fail(run, "the function lipsum is not supported");
}

static const jinja_function globals[] = {
    {"range", "/start stop step", 1, range, NULL},
    {"dict", NULL, 0, NULL, dict},
    {"namespace", NULL, 0, NULL, namespace_},
    {"raise_exception", "message", 1, raise_exception, NULL},
    {"strftime_now", "format", 1, strftime_now, NULL},
    {"cycler", NULL, 0, NULL, cycler},
    {"joiner", "sep", 0, joiner, NULL},
    {"lipsum", NULL, 0, NULL, lipsum},
};

const jinja_function *jinja_find_global(const jinja_text *name) {
    return jinja_find_in(globals, sizeof globals / sizeof globals[0], name);
}
