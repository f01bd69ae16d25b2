/* The state of one rendering, and the functions that its parts share. */
#ifndef CARRY_TEMPLATE_RUN_H
#define CARRY_TEMPLATE_RUN_H

#include "tokenizer/template/node.h"
#include "tokenizer/template/unicode.h"

typedef struct jinja_variable {
    uint32_t id;
    jinja_value value;
    struct jinja_variable *next;
} jinja_variable;

typedef struct jinja_scope {
    struct jinja_scope *outer; /* NULL: the outermost scope, whose variables are in run->global */
    jinja_variable *first;
} jinja_scope;

typedef struct jinja_run {
    carry_ctx *ctx;
    const struct carry_template *parsed;
    const carry_template_input *input;
    jinja_arena arena;
    jinja_value *global; /* by id of the name */
    jinja_scope root;
    jinja_scope *scope;
    int64_t steps, steps_most;
    int depth;
    uint32_t line; /* of the node that is being evaluated */
    char *out;     /* output; the end of it is removed again to capture a macro's result */
    size_t out_count, out_room, out_most;
    carry_status status;
} jinja_run;

typedef struct jinja_named {
    jinja_text *name;
    jinja_value value;
} jinja_named;

typedef struct jinja_arguments {
    const jinja_value *at;
    size_t count;
    const jinja_named *keyword;
    size_t keywords;
} jinja_arguments;

/* A filter, test, method or global function. `parameters` is a list of names separated by spaces. The first `required`
   must be given, and a leading '/' makes all of them positional only. `bound` gets their values, MISSING for those not
   given. If `parameters` is NULL, `any` gets the arguments unchanged. */
typedef struct jinja_function {
    const char *name;
    const char *parameters;
    int required;
    jinja_value (*bound)(jinja_run *run, jinja_value self, const jinja_value *given);
    jinja_value (*any)(jinja_run *run, jinja_value self, const jinja_arguments *arguments);
} jinja_function;
#define JINJA_PARAMETERS_MOST 6

typedef struct jinja_bound {
    jinja_value self;
    const jinja_function *function;
} jinja_bound;

typedef struct jinja_macro {
    const jinja_node *node;
    jinja_scope *scope; /* scope of its definition */
} jinja_macro;

typedef struct jinja_loop {
    jinja_list *items;
    size_t index; /* from 0 */
    int64_t depth;
    const jinja_node *node; /* the statement of a recursive loop; else NULL */
    jinja_scope *scope;     /* scope around the loop */
    jinja_value changed;    /* arguments of the last loop.changed() */
} jinja_loop;

/* Errors and limits */
_Noreturn void jinja_fail(jinja_run *run, const char *format, ...) CARRY_PRINTF(2, 3);
_Noreturn void jinja_raise(jinja_run *run, const jinja_text *text); /* raises the template's own exception */
_Noreturn void jinja_fail_undefined(jinja_run *run, jinja_value value);
void jinja_spend(jinja_run *run, size_t steps);
void jinja_deeper(jinja_run *run);              /* pairs with run->depth-- */
const char *jinja_kind_name(jinja_value value); /* Python's name of the type */

/* output.c: a growing text, and printing. A capture is the text written since its start. */
void jinja_write(jinja_run *run, const char *bytes, size_t length);
void jinja_write_string(jinja_run *run, const char *text);
void jinja_write_code(jinja_run *run, uint32_t code);
size_t jinja_capture(const jinja_run *run);
jinja_value jinja_captured(jinja_run *run, size_t start);
void jinja_print(jinja_run *run, jinja_value value);        /* str() */
void jinja_print_quoted(jinja_run *run, jinja_value value); /* repr() */
void jinja_print_float(jinja_run *run, double number);
jinja_value jinja_str(jinja_run *run, jinja_value value);  /* str(): a plain string */
jinja_value jinja_soft(jinja_run *run, jinja_value value); /* returns a string unchanged, and str() of anything else */
jinja_value jinja_escape(jinja_run *run, jinja_value value); /* escapes HTML; returns a marked string */
typedef struct jinja_json_options {
    bool ascii, sorted, indents;
    jinja_value indent;
    jinja_text *item_separator, *key_separator;
} jinja_json_options;
void jinja_write_json(jinja_run *run, jinja_value value, const jinja_json_options *options);

/* compare.c */
bool jinja_truth(jinja_run *run, jinja_value value);
bool jinja_equal(jinja_run *run, jinja_value a, jinja_value b);
int jinja_compare(jinja_run *run, jinja_value a, jinja_value b, const char *operator); /* fails if not ordered */
bool jinja_less(jinja_run *run, jinja_value a, jinja_value b);
bool jinja_contains(jinja_run *run, jinja_value in, jinja_value value);
uint64_t jinja_hash(jinja_run *run, jinja_value value); /* fails for a value that is not hashable */
bool jinja_is_hashable(jinja_value value);
/* Sorts keys stably and moves the items with them. */
void jinja_sort(jinja_run *run, jinja_value *items, jinja_value *keys, size_t count, bool reversed);

/* sequence.c */
bool jinja_is_iterable(jinja_value value);
jinja_list *jinja_items(jinja_run *run, jinja_value value); /* all items, read-only; consumes an iterator */
bool jinja_has_length(jinja_value value);
int64_t jinja_length(jinja_run *run, jinja_value value);
jinja_value jinja_iterator_over(jinja_run *run, jinja_list *items);
jinja_value jinja_attribute(jinja_run *run, jinja_value of, jinja_text *name); /* of.name */
jinja_value jinja_item(jinja_run *run, jinja_value of, jinja_value key);       /* of[key] */
jinja_value jinja_slice(jinja_run *run, jinja_value of, jinja_value start, jinja_value stop, jinja_value step);
jinja_value jinja_range_new(jinja_run *run, int64_t start, int64_t stop, int64_t step);
/* Returns the attribute `a.b.0` of an item, as filters name attributes. missing: the value to return instead of
   undefined, or MISSING. */
jinja_value jinja_path(jinja_run *run, jinja_value item, jinja_value path, jinja_value missing);
jinja_value jinja_dict_of(jinja_run *run, jinja_dict *dict);
jinja_dict *jinja_make_dict(jinja_run *run, const jinja_arguments *arguments); /* dict(...) */

/* arithmetic.c */
jinja_value jinja_binary(jinja_run *run, jinja_token_kind operator, jinja_value a, jinja_value b);
jinja_value jinja_negate(jinja_run *run, jinja_value value);
jinja_value jinja_concat(jinja_run *run, jinja_value a, jinja_value b); /* joins two strings, like + */
bool jinja_parse_integer(jinja_run *run, const jinja_text *text, int base, int64_t *integer);
bool jinja_parse_float(const jinja_text *text, double *number);

/* format.c */
jinja_value jinja_format_percent(jinja_run *run, jinja_value format, jinja_value arguments);
jinja_value jinja_format_braces(jinja_run *run, jinja_value format, const jinja_arguments *arguments);

/* call.c */
jinja_value jinja_call_function(jinja_run *run, const jinja_function *function, jinja_value self,
                                const jinja_arguments *arguments);
jinja_value jinja_call_value(jinja_run *run, jinja_value called, const jinja_arguments *arguments);

/* Tables; NULL if not found. */
const jinja_function *jinja_find_in(const jinja_function *table, size_t count, const jinja_text *name);
const jinja_function *jinja_find_filter(const jinja_text *name);
const char *jinja_refused_filter(const jinja_text *name); /* an unsupported filter of Jinja, or NULL */
const jinja_function *jinja_find_test(const jinja_text *name);
const jinja_function *jinja_find_global(const jinja_text *name);
const jinja_function *jinja_find_method(jinja_value of, const jinja_text *name);
bool jinja_is_hidden_method(jinja_value of, const jinja_text *name);   /* the method exists, but the sandbox hides it */
bool jinja_is_other_attribute(jinja_value of, const jinja_text *name); /* exists in Python but not here */
const jinja_function *jinja_find_text_method(const jinja_text *name);
extern const jinja_function jinja_text_filters[];
extern const size_t jinja_text_filter_count;
extern const jinja_function jinja_list_filters[];
extern const size_t jinja_list_filter_count;
extern const jinja_function jinja_select_filters[];
extern const size_t jinja_select_filter_count;

/* methods_text.c: used by filters, too */
jinja_value jinja_text_case(jinja_run *run, jinja_value string, jinja_case to);
jinja_value jinja_strip(jinja_run *run, jinja_value string, jinja_value characters, bool left, bool right);
jinja_value jinja_replace(jinja_run *run, const jinja_text *in, const jinja_text *old, const jinja_text *new_text,
                          int64_t most);
jinja_list *jinja_lines(jinja_run *run, const jinja_text *text, bool keeps_ends, bool marked);
jinja_value jinja_sub(jinja_run *run, jinja_value string, const char *start, size_t length); /* a substring */

/* execute.c */
typedef enum jinja_jump { JINJA_GOES_ON, JINJA_BREAKS, JINJA_CONTINUES } jinja_jump;
jinja_value jinja_evaluate(jinja_run *run, const jinja_node *node);
jinja_jump jinja_execute(jinja_run *run, const jinja_node *body);
jinja_value jinja_run_macro(jinja_run *run, const jinja_macro *macro, const jinja_arguments *arguments);
jinja_value jinja_run_loop(jinja_run *run, const jinja_node *node, jinja_scope *scope, jinja_value source,
                           int64_t depth); /* output of a recursive loop */
void jinja_define(jinja_run *run, uint32_t id, jinja_value value);
const jinja_arguments *jinja_evaluate_arguments(jinja_run *run, const jinja_call *call, const jinja_value *first);

#endif
