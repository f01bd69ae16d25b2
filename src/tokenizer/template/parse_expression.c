/* Parses expressions by recursive descent, in Jinja's order of precedence: `if else`, or, and, not, comparisons, + and
   -, ~, * / // %, **, signs, postfix operators (attributes, items, calls), then filters and tests. */
#include <string.h>

#include "tokenizer/template/node.h"

static jinja_node *parse_or(jinja_parser *p);
static jinja_node *parse_unary(jinja_parser *p, bool with_filters);

static jinja_node *join(jinja_parser *p, jinja_node_kind kind, uint32_t line, jinja_node *a, jinja_node *b) {
    jinja_node *node = jinja_node_new(p, kind, line);
    node->a = a;
    node->b = b;
    return node;
}

/* Appends to a list of siblings. */
static void append(jinja_node **first, jinja_node **last, jinja_node *node) {
    if (*first == NULL) {
        *first = node;
    } else {
        (*last)->next = node;
    }
    *last = node;
}

/* Operators keep their operands in a, b and c rather than in a list, so that no node is linked by `next` twice. */
static jinja_node *parse_conditional(jinja_parser *p) {
    uint32_t line = jinja_peek(p)->line;
    jinja_enter(p, line);
    jinja_node *node = parse_or(p);
    while (jinja_skip_name(p, "if")) {
        jinja_node *made = jinja_node_new(p, NODE_IF_ELSE, line);
        made->a = node;
        made->b = parse_or(p);
        made->c = jinja_skip_name(p, "else") ? parse_conditional(p) : NULL;
        node = made;
    }
    p->depth--;
    return node;
}

jinja_node *jinja_parse_expression(jinja_parser *p) {
    return parse_conditional(p);
}

static jinja_node *parse_not(jinja_parser *p);

static jinja_node *parse_and(jinja_parser *p) {
    jinja_node *node = parse_not(p);
    while (jinja_is_name(jinja_peek(p), "and")) {
        uint32_t line = jinja_take(p)->line;
        node = join(p, NODE_AND, line, node, parse_not(p));
    }
    return node;
}

static jinja_node *parse_or(jinja_parser *p) {
    jinja_node *node = parse_and(p);
    while (jinja_is_name(jinja_peek(p), "or")) {
        uint32_t line = jinja_take(p)->line;
        node = join(p, NODE_OR, line, node, parse_and(p));
    }
    return node;
}

static jinja_node *parse_power(jinja_parser *p) {
    jinja_node *node = parse_unary(p, true);
    while (jinja_peek(p)->kind == TOKEN_POWER) {
        uint32_t line = jinja_take(p)->line;
        node = join(p, NODE_BINARY, line, node, parse_unary(p, true)); /* associates from the left, unlike in Python */
        node->operator= TOKEN_POWER;
    }
    return node;
}

static jinja_node *parse_product(jinja_parser *p) {
    jinja_node *node = parse_power(p);
    for (;;) {
        const jinja_token *token = jinja_peek(p);
        if (token->kind != TOKEN_MULTIPLY && token->kind != TOKEN_DIVIDE && token->kind != TOKEN_FLOOR_DIVIDE &&
            token->kind != TOKEN_MODULO) {
            return node;
        }
        (void)jinja_take(p);
        node = join(p, NODE_BINARY, token->line, node, parse_power(p));
        node->operator= token->kind;
    }
}

static jinja_node *parse_concat(jinja_parser *p) {
    jinja_node *node = parse_product(p);
    if (jinja_peek(p)->kind != TOKEN_TILDE) {
        return node;
    }
    jinja_node *made = jinja_node_new(p, NODE_CONCAT, jinja_peek(p)->line);
    jinja_node *last = NULL;
    append(&made->list, &last, node);
    while (jinja_skip(p, TOKEN_TILDE)) {
        append(&made->list, &last, parse_product(p));
    }
    return made;
}

static jinja_node *parse_sum(jinja_parser *p) {
    jinja_node *node = parse_concat(p);
    for (;;) {
        const jinja_token *token = jinja_peek(p);
        if (token->kind != TOKEN_ADD && token->kind != TOKEN_SUBTRACT) {
            return node;
        }
        (void)jinja_take(p);
        node = join(p, NODE_BINARY, token->line, node, parse_concat(p));
        node->operator= token->kind;
    }
}

/* Takes a comparison operator and returns it, or TOKEN_END if the next token is not one. */
static jinja_token_kind take_comparison(jinja_parser *p) {
    jinja_token_kind kind = jinja_peek(p)->kind;
    if (kind >= TOKEN_EQUAL && kind <= TOKEN_LESS_EQUAL) {
        (void)jinja_take(p);
        return kind;
    }
    if (jinja_skip_name(p, "in")) {
        return TOKEN_IN;
    }
    if (jinja_is_name(jinja_peek(p), "not") && jinja_is_name(jinja_peek(p) + 1, "in")) {
        p->at += 2;
        return TOKEN_NOT_IN;
    }
    return TOKEN_END;
}

static jinja_node *parse_comparison(jinja_parser *p) {
    jinja_node *node = parse_sum(p);
    jinja_node *made = NULL, *last = NULL;
    uint32_t line = jinja_peek(p)->line;
    for (jinja_token_kind kind; (kind = take_comparison(p)) != TOKEN_END;) {
        made = made != NULL ? made : join(p, NODE_COMPARE, line, node, NULL);
        jinja_node *operand = join(p, NODE_COMPARE, line, parse_sum(p), NULL);
        operand->operator= kind;
        append(&made->list, &last, operand);
    }
    return made != NULL ? made : node;
}

static jinja_node *parse_not(jinja_parser *p) {
    if (!jinja_is_name(jinja_peek(p), "not")) {
        return parse_comparison(p);
    }
    uint32_t line = jinja_take(p)->line;
    jinja_enter(p, line);
    jinja_node *node = join(p, NODE_NOT, line, parse_not(p), NULL);
    p->depth--;
    return node;
}

static jinja_node *parse_display(jinja_parser *p, jinja_token_kind close, jinja_node_kind kind) {
    jinja_node *node = jinja_node_new(p, kind, jinja_take(p)->line);
    jinja_node *last = NULL;
    while (jinja_peek(p)->kind != close) {
        if (node->list != NULL) {
            (void)jinja_expect(p, TOKEN_COMMA, ",");
            if (jinja_peek(p)->kind == close) {
                break;
            }
        }
        append(&node->list, &last, jinja_parse_expression(p));
        if (kind == NODE_DICT) {
            (void)jinja_expect(p, TOKEN_COLON, ":");
            append(&node->list, &last, jinja_parse_expression(p));
        }
    }
    (void)jinja_take(p);
    return node;
}

static jinja_node *constant(jinja_parser *p, uint32_t line, jinja_value value) {
    jinja_node *node = jinja_node_new(p, NODE_CONSTANT, line);
    node->value = value;
    return node;
}

static jinja_node *parse_name(jinja_parser *p, bool with_namespace) {
    const jinja_token *token = jinja_take(p);
    if (jinja_is_name(token, "true") || jinja_is_name(token, "True")) {
        return constant(p, token->line, jinja_bool(true));
    }
    if (jinja_is_name(token, "false") || jinja_is_name(token, "False")) {
        return constant(p, token->line, jinja_bool(false));
    }
    if (jinja_is_name(token, "none") || jinja_is_name(token, "None")) {
        return constant(p, token->line, jinja_none());
    }
    jinja_node *node = jinja_node_new(p, NODE_NAME, token->line);
    node->name = token->text;
    node->id = jinja_intern(p, token->text);
    p->uses |= (unsigned char)(jinja_text_is(token->text, "caller")    ? JINJA_USES_CALLER
                               : jinja_text_is(token->text, "kwargs")  ? JINJA_USES_KWARGS
                               : jinja_text_is(token->text, "varargs") ? JINJA_USES_VARARGS
                                                                       : 0);
    if (with_namespace && jinja_skip(p, TOKEN_DOT)) {
        jinja_node *made = join(p, NODE_NAMESPACE_ATTRIBUTE, token->line, node, NULL);
        made->name = jinja_expect(p, TOKEN_NAME, "a name")->text;
        return made;
    }
    return node;
}

/* Adjacent strings are joined into one. */
static jinja_node *parse_string(jinja_parser *p) {
    uint32_t line = jinja_peek(p)->line;
    size_t length = 0;
    for (const jinja_token *token = jinja_peek(p); token->kind == TOKEN_STRING; token++) {
        length += token->text->length;
    }
    char *bytes = jinja_new(p->arena, length + 1, 1);
    size_t at = 0;
    while (jinja_peek(p)->kind == TOKEN_STRING) {
        const jinja_text *text = jinja_take(p)->text;
        memcpy(bytes + at, text->at, text->length);
        at += text->length;
    }
    jinja_text *text = jinja_text_over(p->arena, bytes, length);
    (void)jinja_points(text); /* computed now, since threads share constants */
    return constant(p, line, (jinja_value){.kind = JINJA_STRING, .as.text = text});
}

static jinja_node *parse_items(jinja_parser *p, bool simple, bool conditional, bool with_namespace, const char *end,
                               bool in_parentheses);

static jinja_node *parse_primary(jinja_parser *p, bool with_namespace) {
    const jinja_token *token = jinja_peek(p);
    switch (token->kind) {
    case TOKEN_NAME:
        return parse_name(p, with_namespace);
    case TOKEN_STRING:
        return parse_string(p);
    case TOKEN_INTEGER:
    case TOKEN_FLOAT:
        return constant(p, token->line, jinja_take(p)->value);
    case TOKEN_OPEN_PARENTHESIS: {
        (void)jinja_take(p);
        jinja_node *node = parse_items(p, false, true, false, NULL, true);
        (void)jinja_expect(p, TOKEN_CLOSE_PARENTHESIS, ")");
        return node;
    }
    case TOKEN_OPEN_BRACKET:
        return parse_display(p, TOKEN_CLOSE_BRACKET, NODE_LIST);
    case TOKEN_OPEN_BRACE:
        return parse_display(p, TOKEN_CLOSE_BRACE, NODE_DICT);
    default:
        jinja_syntax(p, token->line, "unexpected '%.*s' in an expression", (int)token->text->length, token->text->at);
    }
}

/* Parses one expression, or a tuple separated by commas. simple: only primaries, as in assignment targets. */
static jinja_node *parse_items(jinja_parser *p, bool simple, bool conditional, bool with_namespace, const char *end,
                               bool in_parentheses) {
    uint32_t line = jinja_peek(p)->line;
    jinja_node *first = NULL, *last = NULL;
    bool is_tuple = false;
    jinja_enter(p, line);
    for (;;) {
        if (first != NULL) {
            (void)jinja_expect(p, TOKEN_COMMA, ",");
        }
        const jinja_token *token = jinja_peek(p);
        if (token->kind == TOKEN_CLOSE_OUTPUT || token->kind == TOKEN_CLOSE_TAG ||
            token->kind == TOKEN_CLOSE_PARENTHESIS || (end != NULL && jinja_is_name(token, end))) {
            break;
        }
        append(&first, &last,
               simple        ? parse_primary(p, with_namespace)
               : conditional ? parse_conditional(p)
                             : parse_or(p));
        if (jinja_peek(p)->kind != TOKEN_COMMA) {
            break;
        }
        is_tuple = true;
    }
    p->depth--;
    if (!is_tuple && first != NULL) {
        return first;
    }
    if (!is_tuple && !in_parentheses) {
        jinja_syntax(p, line, "expected an expression");
    }
    jinja_node *node = jinja_node_new(p, NODE_TUPLE, line);
    node->list = first;
    return node;
}

jinja_node *jinja_parse_tuple(jinja_parser *p, bool conditional, const char *end) {
    return parse_items(p, false, conditional, false, end, false);
}

static bool can_assign(const jinja_node *node) {
    bool can = node->kind == NODE_NAME || node->kind == NODE_NAMESPACE_ATTRIBUTE || node->kind == NODE_TUPLE;
    for (const jinja_node *one = node->kind == NODE_TUPLE ? node->list : NULL; one != NULL && can; one = one->next) {
        can = can_assign(one);
    }
    return can;
}

jinja_node *jinja_parse_target(jinja_parser *p, bool with_namespace, const char *end) {
    jinja_node *node = parse_items(p, true, false, with_namespace, end, false);
    if (!can_assign(node)) {
        jinja_syntax(p, node->line, "this cannot be assigned to");
    }
    return node;
}

static jinja_call *parse_call(jinja_parser *p) {
    jinja_call *call = jinja_new(p->arena, 1, sizeof *call);
    jinja_node *last = NULL;
    jinja_keyword **keyword = &call->keywords;
    uint32_t line = jinja_expect(p, TOKEN_OPEN_PARENTHESIS, "(")->line;
    bool ok = true;
    for (bool first = true; jinja_peek(p)->kind != TOKEN_CLOSE_PARENTHESIS; first = false) {
        if (!first) {
            (void)jinja_expect(p, TOKEN_COMMA, ",");
            if (jinja_peek(p)->kind == TOKEN_CLOSE_PARENTHESIS) {
                break;
            }
        }
        if (jinja_skip(p, TOKEN_MULTIPLY)) {
            ok = ok && call->more == NULL && call->more_keywords == NULL;
            call->more = jinja_parse_expression(p);
        } else if (jinja_skip(p, TOKEN_POWER)) {
            ok = ok && call->more_keywords == NULL;
            call->more_keywords = jinja_parse_expression(p);
        } else if (jinja_peek(p)->kind == TOKEN_NAME && jinja_peek(p)[1].kind == TOKEN_ASSIGN) {
            ok = ok && call->more_keywords == NULL;
            *keyword = jinja_new(p->arena, 1, sizeof **keyword);
            (*keyword)->name = jinja_take(p)->text;
            (void)jinja_take(p);
            (*keyword)->value = jinja_parse_expression(p);
            keyword = &(*keyword)->next;
        } else {
            ok = ok && call->more == NULL && call->more_keywords == NULL && call->keywords == NULL;
            append(&call->first, &last, jinja_parse_expression(p));
        }
        if (!ok) {
            jinja_syntax(p, line, "arguments of a call are in the wrong order");
        }
    }
    (void)jinja_take(p);
    return call;
}

/* Parses an index, or a slice, whose parts go into b, c and d. */
static jinja_node *parse_subscript(jinja_parser *p, jinja_node *of) {
    uint32_t line = jinja_take(p)->line;
    jinja_node *node = join(p, NODE_ITEM, line, of, NULL);
    jinja_node **part[] = {&node->b, &node->c, &node->d};
    int at = 0;
    while (jinja_peek(p)->kind != TOKEN_CLOSE_BRACKET) {
        if (jinja_peek(p)->kind == TOKEN_COLON) {
            (void)jinja_take(p);
            node->kind = NODE_SLICE;
            if (++at > 2) {
                jinja_syntax(p, line, "a slice has more than three parts");
            }
        } else if (*part[at] == NULL && jinja_peek(p)->kind != TOKEN_COMMA) {
            *part[at] = jinja_parse_expression(p);
        } else {
            jinja_unsupported(p, line, "several subscripts between brackets");
        }
    }
    (void)jinja_take(p);
    if (node->kind == NODE_ITEM && node->b == NULL) {
        node->b = jinja_node_new(p, NODE_TUPLE, line);
    }
    return node;
}

static jinja_node *parse_attribute(jinja_parser *p, jinja_node *of) {
    uint32_t line = jinja_take(p)->line;
    const jinja_token *token = jinja_take(p);
    if (token->kind == TOKEN_INTEGER) {
        return join(p, NODE_ITEM, line, of, constant(p, line, token->value));
    }
    if (token->kind != TOKEN_NAME) {
        jinja_syntax(p, line, "expected a name or a number after '.'");
    }
    jinja_node *node = join(p, NODE_ATTRIBUTE, line, of, NULL);
    node->name = token->text;
    return node;
}

static jinja_node *parse_called(jinja_parser *p, jinja_node *of) {
    jinja_node *node = join(p, NODE_CALL, jinja_peek(p)->line, of, NULL);
    node->call = parse_call(p);
    return node;
}

static jinja_node *parse_postfix(jinja_parser *p, jinja_node *node) {
    for (;;) {
        switch (jinja_peek(p)->kind) {
        case TOKEN_DOT:
            node = parse_attribute(p, node);
            break;
        case TOKEN_OPEN_BRACKET:
            node = parse_subscript(p, node);
            break;
        case TOKEN_OPEN_PARENTHESIS:
            node = parse_called(p, node);
            break;
        default:
            return node;
        }
    }
}

/* Parses `name` or `package.name` of a filter or test. */
static jinja_text *parse_dotted(jinja_parser *p) {
    jinja_text *name = jinja_expect(p, TOKEN_NAME, "a name")->text;
    while (jinja_skip(p, TOKEN_DOT)) {
        const jinja_text *more = jinja_expect(p, TOKEN_NAME, "a name")->text;
        char *bytes = jinja_new(p->arena, name->length + 1 + more->length, 1);
        memcpy(bytes, name->at, name->length);
        bytes[name->length] = '.';
        memcpy(bytes + name->length + 1, more->at, more->length);
        name = jinja_text_over(p->arena, bytes, name->length + 1 + more->length);
    }
    return name;
}

jinja_node *jinja_parse_filters(jinja_parser *p, jinja_node *node, bool starts_inside) {
    while (starts_inside || jinja_skip(p, TOKEN_PIPE)) {
        starts_inside = false;
        node = join(p, NODE_FILTER, jinja_peek(p)->line, node, NULL);
        node->name = parse_dotted(p);
        if (jinja_peek(p)->kind == TOKEN_OPEN_PARENTHESIS) {
            node->call = parse_call(p);
        }
    }
    return node;
}

static jinja_node *parse_test(jinja_parser *p, jinja_node *of) {
    uint32_t line = jinja_take(p)->line;
    bool is_not = jinja_skip_name(p, "not");
    jinja_node *node = join(p, NODE_TEST, line, of, NULL);
    node->name = parse_dotted(p);
    const jinja_token *token = jinja_peek(p);
    if (token->kind == TOKEN_OPEN_PARENTHESIS) {
        node->call = parse_call(p);
    } else if ((token->kind >= TOKEN_NAME && token->kind <= TOKEN_FLOAT && !jinja_is_name(token, "else") &&
                !jinja_is_name(token, "or") && !jinja_is_name(token, "and")) ||
               token->kind == TOKEN_OPEN_BRACKET || token->kind == TOKEN_OPEN_BRACE) {
        if (jinja_is_name(token, "is")) {
            jinja_syntax(p, line, "several tests in a row");
        }
        node->call = jinja_new(p->arena, 1, sizeof *node->call);
        node->call->first = parse_postfix(p, parse_primary(p, false));
    }
    return is_not ? join(p, NODE_NOT, line, node, NULL) : node;
}

static jinja_node *parse_filter_expression(jinja_parser *p, jinja_node *node) {
    for (;;) {
        const jinja_token *token = jinja_peek(p);
        if (token->kind == TOKEN_PIPE) {
            node = jinja_parse_filters(p, node, false);
        } else if (jinja_is_name(token, "is")) {
            node = parse_test(p, node);
        } else if (token->kind == TOKEN_OPEN_PARENTHESIS) {
            node = parse_called(p, node);
        } else {
            return node;
        }
    }
}

static jinja_node *parse_unary(jinja_parser *p, bool with_filters) {
    const jinja_token *token = jinja_peek(p);
    jinja_node *node;
    jinja_enter(p, token->line);
    if (token->kind == TOKEN_SUBTRACT || token->kind == TOKEN_ADD) {
        (void)jinja_take(p);
        node =
            join(p, token->kind == TOKEN_ADD ? NODE_POSITIVE : NODE_NEGATE, token->line, parse_unary(p, false), NULL);
    } else {
        node = parse_primary(p, false);
    }
    node = parse_postfix(p, node);
    node = with_filters ? parse_filter_expression(p, node) : node;
    p->depth--;
    return node;
}
