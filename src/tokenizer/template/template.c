/* Entry points: parsing a template, and rendering it with variables from JSON. */
#include "tokenizer/template/template.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tokenizer/template/run.h"

#define STEPS_MOST ((int64_t)50000000)
#define MEMORY_MOST ((size_t)512 << 20)
#define OUTPUT_MOST ((size_t)64 << 20)
#define DEPTH_MOST 2000

void jinja_fail(jinja_run *run, const char *format, ...) {
    char text[512];
    va_list arguments;
    va_start(arguments, format);
    (void)vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    run->status =
        carry_fail(run->ctx, CARRY_EFORMAT, "%s, line %u: %s", run->parsed->title, run->line > 0 ? run->line : 1, text);
    longjmp(*run->arena.leave, 1);
}

void jinja_raise(jinja_run *run, const jinja_text *text) {
    if (run->input->raised != NULL) {
        *run->input->raised = strndup(text->at, text->length);
    }
    run->status = carry_fail(run->ctx, CARRY_EARGUMENT, "%.*s", (int)text->length, text->at);
    longjmp(*run->arena.leave, 1);
}

void jinja_fail_undefined(jinja_run *run, jinja_value value) {
    if (value.as.text == NULL) {
        jinja_fail(run, "a value is undefined");
    }
    const jinja_text *name = value.as.text;
    jinja_fail(run, value.marked ? "access to attribute '%.*s' is unsafe" : "'%.*s' is undefined",
               (int)(name->length < 80 ? name->length : 80), name->at);
}

void jinja_spend(jinja_run *run, size_t steps) {
    run->steps += (int64_t)steps;
    if (run->steps > run->steps_most) {
        jinja_fail(run, "rendering takes more than %lld steps", (long long)run->steps_most);
    }
}

void jinja_deeper(jinja_run *run) {
    if (++run->depth > DEPTH_MOST) {
        jinja_fail(run, "calls and values are nested deeper than %d levels", DEPTH_MOST);
    }
}

const char *jinja_kind_name(jinja_value value) {
    static const char *const names[] = {
        "missing",   "Undefined", "NoneType",
        "bool",      "int",       "float",
        "str",       "list",      "tuple",
        "dict",      "range",     "dict view",
        "generator", "Namespace", "LoopContext",
        "Macro",     "function",  "builtin_function_or_method",
        "Cycler",    "Joiner",    "TemplateReference",
    };
    return names[value.kind];
}

static void read_tree(jinja_parser *parser, const char *text, size_t length) {
    struct carry_template *made = parser->made;
    static const char *const special[] = {"loop", "caller", "varargs", "kwargs"};
    uint32_t *ids[] = {&made->loop_id, &made->caller_id, &made->varargs_id, &made->kwargs_id};
    for (int i = 0; i < 4; i++) {
        *ids[i] = jinja_intern(parser, jinja_text_new(parser->arena, special[i], strlen(special[i])));
    }
    jinja_read_tokens(parser, text, length);
    made->body = jinja_parse_body(parser);
    jinja_check_names(parser, made->body);
    for (uint32_t i = 0; i < made->name_count; i++) {
        (void)jinja_points(made->names[i]);
    }
}

carry_status carry_template_parse(carry_ctx *ctx, carry_template **parsed, const char *text, size_t length,
                                  const char *name) {
    *parsed = NULL;
    if (length > CARRY_TEMPLATE_BYTES) {
        return carry_fail(ctx, CARRY_EUNSUPPORTED, "%s has %zu bytes: expected at most %zu", name, length,
                          CARRY_TEMPLATE_BYTES);
    }
    struct carry_template *made = calloc(1, sizeof *made);
    jinja_parser *parser = calloc(1, sizeof *parser);
    char *title = strdup(name);
    if (made == NULL || parser == NULL || title == NULL) {
        free(made);
        free(parser);
        free(title);
        return carry_fail(ctx, CARRY_EMEMORY, "out of memory: %s", name);
    }
    jmp_buf leave;
    made->title = title;
    made->arena = (jinja_arena){.limit = MEMORY_MOST, .leave = &leave};
    *parser = (jinja_parser){.ctx = ctx, .made = made, .arena = &made->arena, .title = title};
    if (setjmp(leave) == 0) {
        read_tree(parser, text, length);
    } else if (made->arena.failure != NULL) {
        parser->status =
            carry_fail(ctx, CARRY_EMEMORY, "%s: parsing exceeds the limit of %s", title, made->arena.failure);
    }
    made->arena.leave = NULL;
    carry_status status = parser->status;
    free(parser);
    if (status == CARRY_OK) {
        *parsed = made;
    } else {
        carry_template_free(made);
    }
    return status;
}

void carry_template_free(carry_template *parsed) {
    if (parsed != NULL) {
        jinja_arena_free(&parsed->arena);
        free(parsed->title);
        free(parsed);
    }
}

bool carry_template_names(const carry_template *parsed, const char *name) {
    bool found = false;
    for (uint32_t i = 0; i < parsed->name_count && !found; i++) {
        found = jinja_text_is(parsed->names[i], name);
    }
    return found;
}

static jinja_value from_json(jinja_run *run, const carry_json *node) {
    jinja_spend(run, 1);
    switch (node->kind) {
    case CARRY_JSON_BOOL:
        return jinja_bool(node->truth);
    case CARRY_JSON_NUMBER:
        return node->whole ? jinja_integer(node->as.number.integer) : jinja_float(node->as.number.value);
    case CARRY_JSON_STRING:
        return (jinja_value){.kind = JINJA_STRING,
                             .as.text = jinja_text_over(&run->arena, node->as.text.bytes, node->as.text.length)};
    case CARRY_JSON_ARRAY: {
        jinja_list *list = jinja_list_new(&run->arena, (size_t)node->as.inside.count);
        for (const carry_json *one = node->as.inside.first; one != NULL; one = one->next) {
            jinja_list_add(&run->arena, list, from_json(run, one));
        }
        return jinja_listed(JINJA_LIST, list);
    }
    case CARRY_JSON_OBJECT: {
        jinja_dict *dict = jinja_dict_new(&run->arena, (size_t)node->as.inside.count);
        for (const carry_json *one = node->as.inside.first; one != NULL; one = one->next) {
            jinja_dict_put_text(&run->arena, dict, jinja_text_over(&run->arena, one->key, one->key_length),
                                from_json(run, one));
        }
        return jinja_dict_of(run, dict);
    }
    default:
        return jinja_none();
    }
}

/* Sets the variables that the template uses: from the input, else a global function. */
static void load_variables(jinja_run *run) {
    run->global = jinja_new(&run->arena, run->parsed->name_count, sizeof *run->global);
    for (uint32_t id = 0; id < run->parsed->name_count; id++) {
        const jinja_text *name = run->parsed->names[id];
        const carry_json *found = NULL;
        for (int i = 0; i < run->input->count; i++) {
            const carry_json *object = run->input->objects[i];
            for (const carry_json *one = carry_json_first(object); one != NULL && one->key != NULL; one = one->next) {
                bool same = one->key_length == name->length && memcmp(one->key, name->at, name->length) == 0;
                found = same ? one : found;
            }
        }
        const jinja_function *function = jinja_find_global(name);
        if (found != NULL) {
            run->global[id] = from_json(run, found);
        } else if (function != NULL) {
            run->global[id] = (jinja_value){.kind = JINJA_FUNCTION, .as.function = function};
        } else if (jinja_text_is(name, "self")) {
            run->global[id] = (jinja_value){.kind = JINJA_SELF};
        }
    }
}

carry_status carry_template_render(carry_ctx *ctx, const carry_template *parsed, const carry_template_input *input,
                                   char **text, size_t *length) {
    *text = NULL;
    *length = 0;
    if (input->raised != NULL) {
        *input->raised = NULL;
    }
    const carry_template_limits *limits = &input->limits;
    jinja_run *run = calloc(1, sizeof *run);
    if (run == NULL) {
        return carry_fail(ctx, CARRY_EMEMORY, "out of memory: %s", parsed->title);
    }
    jmp_buf leave;
    *run = (jinja_run){
        .ctx = ctx,
        .parsed = parsed,
        .input = input,
        .arena = {.limit = limits->memory > 0 ? limits->memory : MEMORY_MOST, .leave = &leave},
        .steps_most = limits->steps > 0 ? limits->steps : STEPS_MOST,
        .out_most = limits->output > 0 ? limits->output : OUTPUT_MOST,
    };
    run->scope = &run->root;
    if (setjmp(leave) == 0) {
        load_variables(run);
        (void)jinja_execute(run, parsed->body);
        jinja_write(run, "", 1); /* the terminating NUL */
    } else if (run->arena.failure != NULL) {
        run->status = carry_fail(ctx, CARRY_EMEMORY, "%s, line %u: rendering exceeds the limit of %s", parsed->title,
                                 run->line, run->arena.failure);
    }
    carry_status status = run->status;
    if (status == CARRY_OK) {
        *text = run->out;
        *length = run->out_count - 1;
    } else {
        free(run->out);
    }
    jinja_arena_free(&run->arena);
    free(run);
    return status;
}
