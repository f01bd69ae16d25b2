/* Executes statements, which write to the output and set variables. `for`, macros, `with` and captured blocks open a
   scope; `if` does not. */
#include <string.h>

#include "tokenizer/template/run.h"

void jinja_define(jinja_run *run, uint32_t id, jinja_value value) {
    if (run->scope->outer == NULL) {
        run->global[id] = value;
        return;
    }
    for (jinja_variable *one = run->scope->first; one != NULL; one = one->next) {
        if (one->id == id) {
            one->value = value;
            return;
        }
    }
    jinja_variable *made = jinja_new(&run->arena, 1, sizeof *made);
    *made = (jinja_variable){id, value, run->scope->first};
    run->scope->first = made;
}

static jinja_scope *open_scope(jinja_run *run, jinja_scope *outer) {
    jinja_scope *scope = jinja_new(&run->arena, 1, sizeof *scope);
    scope->outer = outer;
    run->scope = scope;
    return scope;
}

static void check_attribute(jinja_run *run, const jinja_text *name) {
    if (name->length > 0 && name->at[0] == '_') {
        jinja_fail(run, "a namespace cannot have the attribute '%.*s', which begins with '_'", (int)name->length,
                   name->at);
    }
}

static void assign(jinja_run *run, const jinja_node *target, jinja_value value) {
    if (target->kind == NODE_NAME) {
        jinja_define(run, target->id, value);
        return;
    }
    if (target->kind == NODE_NAMESPACE_ATTRIBUTE) {
        jinja_value space = jinja_evaluate(run, target->a);
        if (space.kind != JINJA_NAMESPACE) {
            jinja_fail(run, "cannot assign attribute on non-namespace object");
        }
        check_attribute(run, target->name);
        jinja_dict_put_text(&run->arena, space.as.dict, target->name, value);
        return;
    }
    const jinja_list *items = jinja_items(run, value);
    size_t at = 0, count = 0;
    for (const jinja_node *one = target->list; one != NULL; one = one->next) {
        count++;
    }
    if (count != items->count) {
        jinja_fail(run, "cannot unpack %zu values into %zu", items->count, count);
    }
    for (const jinja_node *one = target->list; one != NULL; one = one->next) {
        assign(run, one, items->at[at++]);
    }
}

/* Applies the filters of a tag to its captured body. */
static jinja_value apply_filters(jinja_run *run, const jinja_node *filter, jinja_value value) {
    if (filter == NULL) {
        return value;
    }
    value = apply_filters(run, filter->a, value);
    const jinja_function *found = jinja_find_filter(filter->name);
    if (found == NULL) {
        jinja_fail(run, "no filter named '%.*s'", (int)filter->name->length, filter->name->at);
    }
    return jinja_call_function(run, found, value, jinja_evaluate_arguments(run, filter->call, NULL));
}

/* Runs a body in a new scope and returns its output. */
static jinja_value capture_body(jinja_run *run, const jinja_node *body) {
    jinja_scope *before = run->scope;
    (void)open_scope(run, before);
    size_t start = jinja_capture(run);
    (void)jinja_execute(run, body);
    run->scope = before;
    return jinja_captured(run, start);
}

/* Returns the items of a loop that pass its condition. */
static jinja_list *loop_items(jinja_run *run, const jinja_node *node, jinja_value source, jinja_scope *outer) {
    jinja_list *items = jinja_items(run, source);
    if (node->c == NULL) {
        return items;
    }
    jinja_scope *before = run->scope;
    jinja_list *passed = jinja_list_new(&run->arena, items->count);
    for (size_t i = 0; i < items->count; i++) {
        (void)open_scope(run, outer);
        assign(run, node->a, items->at[i]);
        if (jinja_truth(run, jinja_evaluate(run, node->c))) {
            jinja_list_add(&run->arena, passed, items->at[i]);
        }
    }
    run->scope = before;
    return passed;
}

static void run_for(jinja_run *run, const jinja_node *node, jinja_scope *outer, jinja_value source, int64_t depth) {
    jinja_scope *before = run->scope;
    jinja_loop *loop = jinja_new(&run->arena, 1, sizeof *loop);
    *loop = (jinja_loop){.items = loop_items(run, node, source, outer),
                         .depth = depth,
                         .node = node->flag ? node : NULL,
                         .scope = outer};
    bool is_done = false; /* an iteration ended without break or continue; if none did, `else` runs, as in Jinja */
    for (size_t count = loop->items->count; loop->index < count; loop->index++) {
        (void)open_scope(run, outer);
        jinja_define(run, run->parsed->loop_id, (jinja_value){.kind = JINJA_LOOP, .as.loop = loop});
        assign(run, node->a, loop->items->at[loop->index]);
        jinja_jump jump = jinja_execute(run, node->body);
        is_done = is_done || jump == JINJA_GOES_ON;
        if (jump == JINJA_BREAKS) {
            break;
        }
    }
    if (!is_done && node->otherwise != NULL) {
        (void)open_scope(run, outer);
        (void)jinja_execute(run, node->otherwise);
    }
    run->scope = before;
}

jinja_value jinja_run_loop(jinja_run *run, const jinja_node *node, jinja_scope *scope, jinja_value source,
                           int64_t depth) {
    size_t start = jinja_capture(run);
    jinja_deeper(run);
    run_for(run, node, scope, source, depth);
    run->depth--;
    return jinja_captured(run, start);
}

static jinja_value macro_of(jinja_run *run, const jinja_node *node) {
    jinja_macro *macro = jinja_new(&run->arena, 1, sizeof *macro);
    *macro = (jinja_macro){node, run->scope};
    return (jinja_value){.kind = JINJA_MACRO, .as.macro = macro};
}

/* {% call f() %}: passes the body to f as the macro `caller`. */
static void run_call_block(jinja_run *run, const jinja_node *node) {
    jinja_value called = jinja_evaluate(run, node->a->a);
    jinja_arguments arguments = *jinja_evaluate_arguments(run, node->a->call, NULL);
    jinja_named *named = jinja_new(&run->arena, arguments.keywords + 1, sizeof *named);
    if (arguments.keywords > 0) {
        memcpy(named, arguments.keyword, arguments.keywords * sizeof *named);
    }
    named[arguments.keywords++] = (jinja_named){node->name, macro_of(run, node)};
    arguments.keyword = named;
    jinja_print(run, jinja_call_value(run, called, &arguments));
}

static jinja_jump run_if(jinja_run *run, const jinja_node *node) {
    for (;;) {
        if (jinja_truth(run, jinja_evaluate(run, node->a))) {
            return jinja_execute(run, node->body);
        }
        if (node->otherwise == NULL || node->otherwise->kind != NODE_IF || node->otherwise->next != NULL) {
            return jinja_execute(run, node->otherwise);
        }
        node = node->otherwise;
    }
}

static void run_with(jinja_run *run, const jinja_node *node) {
    jinja_scope *before = run->scope;
    jinja_scope *scope = open_scope(run, before);
    for (const jinja_node *one = node->list; one != NULL; one = one->next) {
        run->scope = before;
        jinja_value value = jinja_evaluate(run, one->b);
        run->scope = scope;
        assign(run, one->a, value);
    }
    (void)jinja_execute(run, node->body);
    run->scope = before;
}

static jinja_jump execute(jinja_run *run, const jinja_node *node) {
    switch (node->kind) {
    case NODE_DATA:
        jinja_print(run, node->value);
        break;
    case NODE_OUTPUT:
        for (const jinja_node *one = node->list; one != NULL; one = one->next) {
            jinja_print(run, jinja_evaluate(run, one));
        }
        break;
    case NODE_IF:
        return run_if(run, node);
    case NODE_FOR:
        run_for(run, node, run->scope, jinja_evaluate(run, node->b), 0);
        break;
    case NODE_SET:
        assign(run, node->a, jinja_evaluate(run, node->b));
        break;
    case NODE_SET_BLOCK:
        assign(run, node->a, apply_filters(run, node->b, capture_body(run, node->body)));
        break;
    case NODE_WITH:
        run_with(run, node);
        break;
    case NODE_MACRO:
        jinja_define(run, node->id, macro_of(run, node));
        break;
    case NODE_CALL_BLOCK:
        run_call_block(run, node);
        break;
    case NODE_FILTER_BLOCK:
        jinja_print(run, apply_filters(run, node->a, capture_body(run, node->body)));
        break;
    case NODE_GENERATION:
        jinja_print(run, capture_body(run, node->body));
        break;
    default:
        return node->kind == NODE_BREAK ? JINJA_BREAKS : JINJA_CONTINUES;
    }
    return JINJA_GOES_ON;
}

jinja_jump jinja_execute(jinja_run *run, const jinja_node *body) {
    jinja_jump jump = JINJA_GOES_ON;
    jinja_deeper(run);
    for (const jinja_node *node = body; node != NULL && jump == JINJA_GOES_ON; node = node->next) {
        jinja_spend(run, 1);
        run->line = node->line;
        jump = execute(run, node);
    }
    run->depth--;
    return jump;
}
