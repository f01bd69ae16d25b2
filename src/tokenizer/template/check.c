/* Checks the names of filters and tests as Jinja's compiler does: an unknown name is an error before rendering, except
   directly inside `if` or a conditional expression, where it is an error only when evaluated. */
#include "tokenizer/template/node.h"
#include "tokenizer/template/run.h"

#define DEPTH_MOST 1500 /* maximum depth of the tree; a chain of operators is as deep as it is long */

typedef struct checking {
    jinja_parser *parser;
    int depth;
} checking;

static void check_list(checking *c, const jinja_node *first, bool is_soft);

static void check_call(checking *c, const jinja_call *call, bool is_soft);

static void check_known(checking *c, const jinja_node *node, bool is_soft) {
    bool is_filter = node->kind == NODE_FILTER;
    bool known = is_filter ? jinja_find_filter(node->name) != NULL : jinja_find_test(node->name) != NULL;
    const char *refused = is_filter ? jinja_refused_filter(node->name) : NULL;
    if (refused != NULL) {
        jinja_unsupported(c->parser, node->line, refused);
    }
    if (!known && !is_soft) {
        jinja_syntax(c->parser, node->line, "no %s named '%.*s'", is_filter ? "filter" : "test",
                     (int)(node->name->length < 40 ? node->name->length : 40), node->name->at);
    }
}

static void check(checking *c, const jinja_node *node, bool is_soft) {
    if (node == NULL) {
        return;
    }
    if (++c->depth > DEPTH_MOST) {
        jinja_syntax(c->parser, node->line, "an expression is nested deeper than %d levels", DEPTH_MOST);
    }
    switch (node->kind) {
    case NODE_FILTER:
    case NODE_TEST:
        check_known(c, node, is_soft);
        break;
    case NODE_IF:
    case NODE_IF_ELSE:
        is_soft = true;
        break;
    default:
        break;
    }
    bool opens = node->kind == NODE_FOR || node->kind == NODE_MACRO || node->kind == NODE_SET_BLOCK ||
                 node->kind == NODE_FILTER_BLOCK || node->kind == NODE_WITH || node->kind == NODE_CALL_BLOCK ||
                 node->kind == NODE_GENERATION;
    check(c, node->a, is_soft && node->kind != NODE_FILTER_BLOCK);
    check(c, node->b, is_soft && node->kind != NODE_SET_BLOCK);
    check(c, node->c, is_soft && node->kind != NODE_FOR);
    check(c, node->d, is_soft);
    check_call(c, node->call, is_soft);
    check_list(c, node->list, is_soft && node->kind != NODE_MACRO && node->kind != NODE_CALL_BLOCK);
    check_list(c, node->body, is_soft && !opens);
    check_list(c, node->otherwise, is_soft && !opens);
    c->depth--;
}

static void check_list(checking *c, const jinja_node *first, bool is_soft) {
    for (const jinja_node *node = first; node != NULL; node = node->next) {
        check(c, node, is_soft);
    }
}

static void check_call(checking *c, const jinja_call *call, bool is_soft) {
    if (call == NULL) {
        return;
    }
    check_list(c, call->first, is_soft);
    for (const jinja_keyword *keyword = call->keywords; keyword != NULL; keyword = keyword->next) {
        check(c, keyword->value, is_soft);
    }
    check(c, call->more, is_soft);
    check(c, call->more_keywords, is_soft);
}

void jinja_check_names(jinja_parser *parser, const jinja_node *body) {
    checking c = {.parser = parser};
    check_list(&c, body, false);
}
