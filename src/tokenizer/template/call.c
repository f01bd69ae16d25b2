/* Calls: arguments, built-in functions, macros and loops. */
#include <stdio.h>
#include <string.h>

#include "tokenizer/template/run.h"

/* Returns the index of a parameter in a list of names separated by spaces, or -1. */
static int find_parameter(const char *parameters, const jinja_text *name) {
    int index = 0;
    for (const char *at = parameters; *at != '\0'; index++) {
        size_t length = strcspn(at, " ");
        if (length == name->length && memcmp(at, name->at, length) == 0) {
            return index;
        }
        at += length + (at[length] == ' ');
    }
    return -1;
}

static int count_parameters(const char *parameters) {
    int count = *parameters != '\0';
    for (const char *at = parameters; *at != '\0'; at++) {
        count += *at == ' ';
    }
    return count;
}

jinja_value jinja_call_function(jinja_run *run, const jinja_function *function, jinja_value self,
                                const jinja_arguments *arguments) {
    if (function->parameters == NULL) {
        return function->any(run, self, arguments);
    }
    const char *parameters = function->parameters;
    bool positional = *parameters == '/';
    parameters += positional;
    int most = count_parameters(parameters);
    jinja_value given[JINJA_PARAMETERS_MOST] = {{0}};
    if (arguments->count > (size_t)most) {
        jinja_fail(run, "%s takes at most %d arguments, and has %zu", function->name, most, arguments->count);
    }
    for (size_t i = 0; i < arguments->count; i++) {
        given[i] = arguments->at[i];
    }
    for (size_t i = 0; i < arguments->keywords; i++) {
        int index = positional ? -1 : find_parameter(parameters, arguments->keyword[i].name);
        if (index >= 0 && given[index].kind == JINJA_MISSING) {
            given[index] = arguments->keyword[i].value;
        } else {
            const jinja_text *name = arguments->keyword[i].name;
            jinja_fail(run, "%s: keyword argument '%.*s' is %s", function->name,
                       (int)(name->length < 40 ? name->length : 40), name->at, index < 0 ? "unknown" : "given twice");
        }
    }
    for (int i = 0; i < function->required; i++) {
        if (given[i].kind == JINJA_MISSING) {
            jinja_fail(run, "%s needs at least %d arguments", function->name, function->required);
        }
    }
    return function->bound(run, self, given);
}

const jinja_function *jinja_find_in(const jinja_function *table, size_t count, const jinja_text *name) {
    for (size_t i = 0; i < count; i++) {
        if (jinja_text_is(name, table[i].name)) {
            return &table[i];
        }
    }
    return NULL;
}

/* Evaluates the arguments of a call. first: a value to put before them, or NULL. */
const jinja_arguments *jinja_evaluate_arguments(jinja_run *run, const jinja_call *call, const jinja_value *first) {
    jinja_arguments *made = jinja_new(&run->arena, 1, sizeof *made);
    jinja_list *list = jinja_list_new(&run->arena, 4);
    if (first != NULL) {
        jinja_list_add(&run->arena, list, *first);
    }
    size_t keywords = 0, room = 0;
    for (const jinja_node *node = call != NULL ? call->first : NULL; node != NULL; node = node->next) {
        jinja_list_add(&run->arena, list, jinja_evaluate(run, node));
    }
    for (const jinja_keyword *one = call != NULL ? call->keywords : NULL; one != NULL; one = one->next) {
        room++;
    }
    jinja_value more = call != NULL && call->more != NULL ? jinja_evaluate(run, call->more) : (jinja_value){0};
    jinja_named *named = jinja_new(&run->arena, room, sizeof *named);
    for (const jinja_keyword *one = call != NULL ? call->keywords : NULL; one != NULL; one = one->next) {
        named[keywords++] = (jinja_named){one->name, jinja_evaluate(run, one->value)};
    }
    if (more.kind != JINJA_MISSING) {
        const jinja_list *items = jinja_items(run, more);
        for (size_t i = 0; i < items->count; i++) {
            jinja_list_add(&run->arena, list, items->at[i]);
        }
    }
    if (call != NULL && call->more_keywords != NULL) {
        jinja_value dict = jinja_evaluate(run, call->more_keywords);
        if (dict.kind != JINJA_DICT) {
            jinja_fail(run, "an argument after ** must be a mapping, not %s", jinja_kind_name(dict));
        }
        jinja_named *grown = jinja_new(&run->arena, keywords + dict.as.dict->count, sizeof *grown);
        memcpy(grown, named, keywords * sizeof *grown);
        named = grown;
        for (size_t i = 0; i < dict.as.dict->count; i++) {
            if (dict.as.dict->at[i].key.kind != JINJA_STRING) {
                jinja_fail(run, "keywords must be strings");
            }
            named[keywords++] = (jinja_named){dict.as.dict->at[i].key.as.text, dict.as.dict->at[i].value};
        }
    }
    for (size_t i = 0; i < keywords; i++) {
        for (size_t j = 0; j < i && keywords < 256; j++) {
            if (jinja_text_equal(named[i].name, named[j].name)) {
                jinja_fail(run, "a keyword argument is given twice");
            }
        }
    }
    *made = (jinja_arguments){list->at, list->count, named, keywords};
    return made;
}

/* Removes a keyword argument from the remaining ones and returns its value. */
static jinja_value take_keyword(jinja_named *named, size_t *count, const jinja_text *name) {
    for (size_t i = 0; i < *count; i++) {
        if (jinja_text_equal(named[i].name, name)) {
            jinja_value value = named[i].value;
            memmove(named + i, named + i + 1, (*count - i - 1) * sizeof *named);
            (*count)--;
            return value;
        }
    }
    return (jinja_value){0};
}

/* Defines the special names of a macro's body: caller, kwargs, varargs. */
static void define_specials(jinja_run *run, const jinja_node *node, const jinja_arguments *arguments, jinja_named *left,
                            size_t lefts, size_t parameters, bool has_caller) {
    jinja_text caller = {"caller", 6, 6};
    if ((node->uses & JINJA_USES_CALLER) != 0 && !has_caller) {
        jinja_value value = take_keyword(left, &lefts, &caller);
        jinja_define(run, run->parsed->caller_id,
                     value.kind > JINJA_NONE ? value : jinja_undefined(run->parsed->names[run->parsed->caller_id]));
    }
    if ((node->uses & JINJA_USES_KWARGS) != 0) {
        jinja_dict *dict = jinja_dict_new(&run->arena, lefts);
        for (size_t i = 0; i < lefts; i++) {
            jinja_dict_put_text(&run->arena, dict, left[i].name, left[i].value);
        }
        jinja_define(run, run->parsed->kwargs_id, jinja_dict_of(run, dict));
    } else if (lefts > 0) {
        jinja_fail(run, "macro '%.*s' takes no keyword argument '%.*s'", (int)node->name->length, node->name->at,
                   (int)left[0].name->length, left[0].name->at);
    }
    if ((node->uses & JINJA_USES_VARARGS) != 0) {
        jinja_list *list = jinja_list_new(&run->arena, 1);
        for (size_t i = parameters; i < arguments->count; i++) {
            jinja_list_add(&run->arena, list, arguments->at[i]);
        }
        jinja_define(run, run->parsed->varargs_id, jinja_listed(JINJA_TUPLE, list));
    } else if (arguments->count > parameters) {
        jinja_fail(run, "macro '%.*s' takes not more than %zu argument(s)", (int)node->name->length, node->name->at,
                   parameters);
    }
}

jinja_value jinja_run_macro(jinja_run *run, const jinja_macro *macro, const jinja_arguments *arguments) {
    const jinja_node *node = macro->node;
    jinja_scope *before = run->scope;
    jinja_scope *scope = jinja_new(&run->arena, 1, sizeof *scope);
    jinja_named *left = jinja_new(&run->arena, arguments->keywords, sizeof *left);
    size_t lefts = arguments->keywords, index = 0;
    bool has_caller = false;
    if (lefts > 0) {
        memcpy(left, arguments->keyword, lefts * sizeof *left);
    }
    scope->outer = macro->scope;
    jinja_deeper(run);
    for (const jinja_node *parameter = node->list; parameter != NULL; parameter = parameter->next, index++) {
        jinja_value value =
            index < arguments->count ? arguments->at[index] : take_keyword(left, &lefts, parameter->name);
        has_caller = has_caller || jinja_text_is(parameter->name, "caller");
        run->scope = scope;
        if (value.kind == JINJA_MISSING) {
            value = parameter->a != NULL ? jinja_evaluate(run, parameter->a) : jinja_undefined(parameter->name);
        }
        jinja_define(run, parameter->id, value);
    }
    run->scope = scope;
    define_specials(run, node, arguments, left, lefts, index, has_caller);
    size_t start = jinja_capture(run);
    (void)jinja_execute(run, node->body);
    run->depth--;
    run->scope = before;
    return jinja_captured(run, start);
}

jinja_value jinja_call_value(jinja_run *run, jinja_value called, const jinja_arguments *arguments) {
    jinja_spend(run, 4);
    switch (called.kind) {
    case JINJA_UNDEFINED:
        jinja_fail_undefined(run, called);
    case JINJA_MACRO:
        return jinja_run_macro(run, called.as.macro, arguments);
    case JINJA_FUNCTION:
        return jinja_call_function(run, called.as.function, called, arguments);
    case JINJA_METHOD:
        return jinja_call_function(run, called.as.method->function, called.as.method->self, arguments);
    case JINJA_LOOP:
        if (called.as.loop->node == NULL || arguments->count != 1 || arguments->keywords > 0) {
            jinja_fail(run, "loop(...) needs a recursive loop and one argument");
        }
        return jinja_run_loop(run, called.as.loop->node, called.as.loop->scope, arguments->at[0],
                              called.as.loop->depth + 1);
    case JINJA_JOINER:
        if (called.as.cycler->position++ == 0) {
            return jinja_string(&run->arena, "", 0);
        }
        return called.as.cycler->items->at[0];
    default:
        jinja_fail(run, "'%s' object is not callable", jinja_kind_name(called));
    }
}
