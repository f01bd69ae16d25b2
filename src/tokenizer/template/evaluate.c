/* Evaluates expressions. */
#include "tokenizer/template/run.h"

static jinja_value find_variable(const jinja_run *run, uint32_t id) {
    for (const jinja_scope *scope = run->scope; scope->outer != NULL; scope = scope->outer) {
        for (const jinja_variable *one = scope->first; one != NULL; one = one->next) {
            if (one->id == id) {
                return one->value;
            }
        }
    }
    return run->global[id].kind != JINJA_MISSING ? run->global[id] : jinja_undefined(run->parsed->names[id]);
}

static jinja_value evaluate_list(jinja_run *run, const jinja_node *node) {
    jinja_list *list = jinja_list_new(&run->arena, 4);
    for (const jinja_node *one = node->list; one != NULL; one = one->next) {
        jinja_list_add(&run->arena, list, jinja_evaluate(run, one));
    }
    return jinja_listed(node->kind == NODE_TUPLE ? JINJA_TUPLE : JINJA_LIST, list);
}

static jinja_value evaluate_dict(jinja_run *run, const jinja_node *node) {
    jinja_dict *dict = jinja_dict_new(&run->arena, 4);
    for (const jinja_node *one = node->list; one != NULL; one = one->next->next) {
        jinja_value key = jinja_evaluate(run, one);
        jinja_value value = jinja_evaluate(run, one->next);
        jinja_dict_put(&run->arena, dict, key, jinja_hash(run, key), value);
    }
    return jinja_dict_of(run, dict);
}

static jinja_value evaluate_filter(jinja_run *run, const jinja_node *node) {
    jinja_value value = jinja_evaluate(run, node->a);
    const jinja_function *filter = jinja_find_filter(node->name);
    if (filter != NULL) {
        const jinja_arguments *arguments = jinja_evaluate_arguments(run, node->call, NULL);
        run->line = node->line;
        return jinja_call_function(run, filter, value, arguments);
    }
    jinja_fail(run, "no filter named '%.*s'", (int)node->name->length, node->name->at);
}

static jinja_value evaluate_test(jinja_run *run, const jinja_node *node) {
    jinja_value value = jinja_evaluate(run, node->a);
    const jinja_function *test = jinja_find_test(node->name);
    if (test != NULL) {
        return jinja_call_function(run, test, value, jinja_evaluate_arguments(run, node->call, NULL));
    }
    jinja_fail(run, "no test named '%.*s'", (int)node->name->length, node->name->at);
}

static bool holds(jinja_run *run, jinja_token_kind operator, jinja_value a, jinja_value b) {
    switch (operator) {
    case TOKEN_EQUAL:
        return jinja_equal(run, a, b);
    case TOKEN_UNEQUAL:
        return !jinja_equal(run, a, b);
    case TOKEN_IN:
        return jinja_contains(run, b, a);
    case TOKEN_NOT_IN:
        return !jinja_contains(run, b, a);
    default:
        break;
    }
    static const char *const names[] = {">", ">=", "<", "<="};
    int order = jinja_compare(run, a, b, names[operator- TOKEN_GREATER]);
    if (a.kind == JINJA_FLOAT || b.kind == JINJA_FLOAT) {
        double left = jinja_is_number(a) ? jinja_number(a) : 0, right = jinja_is_number(b) ? jinja_number(b) : 0;
        if (left != left || right != right) { /* NaN has no order */
            return false;
        }
    }
    return operator== TOKEN_GREATER       ? order > 0 :
           operator== TOKEN_GREATER_EQUAL ? order >= 0
           :
           operator== TOKEN_LESS ? order < 0
                                 : order <= 0;
}

static jinja_value evaluate_comparison(jinja_run *run, const jinja_node *node) {
    jinja_value left = jinja_evaluate(run, node->a);
    bool all = true;
    for (const jinja_node *one = node->list; one != NULL && all; one = one->next) {
        jinja_value right = jinja_evaluate(run, one->a);
        all = holds(run, one->operator, left, right);
        left = right;
    }
    return jinja_bool(all);
}

static jinja_value evaluate_concat(jinja_run *run, const jinja_node *node) {
    jinja_list *parts = jinja_list_new(&run->arena, 4);
    for (const jinja_node *one = node->list; one != NULL; one = one->next) {
        jinja_list_add(&run->arena, parts, jinja_evaluate(run, one));
    }
    size_t start = jinja_capture(run);
    for (size_t i = 0; i < parts->count; i++) {
        jinja_print(run, parts->at[i]);
    }
    return jinja_captured(run, start);
}

static jinja_value optional(jinja_run *run, const jinja_node *node) {
    return node != NULL ? jinja_evaluate(run, node) : jinja_none();
}

static jinja_value evaluate_call(jinja_run *run, const jinja_node *node) {
    jinja_value called = jinja_evaluate(run, node->a);
    const jinja_arguments *arguments = jinja_evaluate_arguments(run, node->call, NULL);
    run->line = node->line;
    return jinja_call_value(run, called, arguments);
}

static jinja_value evaluate_slice(jinja_run *run, const jinja_node *node) {
    jinja_value of = jinja_evaluate(run, node->a);
    jinja_value start = optional(run, node->b), stop = optional(run, node->c), step = optional(run, node->d);
    return jinja_slice(run, of, start, stop, step);
}

static jinja_value evaluate_choice(jinja_run *run, const jinja_node *node) {
    if (jinja_truth(run, jinja_evaluate(run, node->b))) {
        return jinja_evaluate(run, node->a);
    }
    return node->c != NULL ? jinja_evaluate(run, node->c) : jinja_undefined(NULL);
}

static jinja_value evaluate_sign(jinja_run *run, const jinja_node *node) {
    jinja_value value = jinja_evaluate(run, node->a);
    if (node->kind == NODE_NEGATE) {
        return jinja_negate(run, value);
    }
    if (!jinja_is_number(value)) {
        jinja_fail(run, "bad operand type for unary +: '%s'", jinja_kind_name(value));
    }
    return value.kind == JINJA_BOOL ? jinja_integer(value.as.truth) : value;
}

static jinja_value evaluate(jinja_run *run, const jinja_node *node) {
    jinja_value left;
    switch (node->kind) {
    case NODE_CONSTANT:
        return node->value;
    case NODE_NAME:
        return find_variable(run, node->id);
    case NODE_TUPLE:
    case NODE_LIST:
        return evaluate_list(run, node);
    case NODE_DICT:
        return evaluate_dict(run, node);
    case NODE_ATTRIBUTE:
        return jinja_attribute(run, jinja_evaluate(run, node->a), node->name);
    case NODE_ITEM:
        left = jinja_evaluate(run, node->a);
        return jinja_item(run, left, jinja_evaluate(run, node->b));
    case NODE_SLICE:
        return evaluate_slice(run, node);
    case NODE_CALL:
        return evaluate_call(run, node);
    case NODE_FILTER:
        return evaluate_filter(run, node);
    case NODE_TEST:
        return evaluate_test(run, node);
    case NODE_NOT:
        return jinja_bool(!jinja_truth(run, jinja_evaluate(run, node->a)));
    case NODE_AND:
    case NODE_OR:
        left = jinja_evaluate(run, node->a);
        return jinja_truth(run, left) == (node->kind == NODE_AND) ? jinja_evaluate(run, node->b) : left;
    case NODE_IF_ELSE:
        return evaluate_choice(run, node);
    case NODE_COMPARE:
        return evaluate_comparison(run, node);
    case NODE_CONCAT:
        return evaluate_concat(run, node);
    case NODE_BINARY:
        left = jinja_evaluate(run, node->a);
        return jinja_binary(run, node->operator, left, jinja_evaluate(run, node->b));
    default:
        return evaluate_sign(run, node);
    }
}

jinja_value jinja_evaluate(jinja_run *run, const jinja_node *node) {
    jinja_deeper(run);
    jinja_spend(run, 1);
    run->line = node->line;
    jinja_value value = evaluate(run, node);
    run->depth--;
    return value;
}
