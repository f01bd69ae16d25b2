/* Parses statements: text, {{ output }} and {% tags %}. */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "tokenizer/template/node.h"

#define DEPTH_MOST 200 /* limit of nested statements and expressions */

void jinja_syntax(jinja_parser *parser, uint32_t line, const char *format, ...) {
    char text[256];
    va_list arguments;
    va_start(arguments, format);
    (void)vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    parser->status = carry_fail(parser->ctx, CARRY_EFORMAT, "%s, line %u: %s", parser->title, line, text);
    longjmp(*parser->arena->leave, 1);
}

void jinja_unsupported(jinja_parser *parser, uint32_t line, const char *feature) {
    parser->status =
        carry_fail(parser->ctx, CARRY_EUNSUPPORTED, "%s, line %u: %s is not supported", parser->title, line, feature);
    longjmp(*parser->arena->leave, 1);
}

jinja_node *jinja_node_new(jinja_parser *parser, jinja_node_kind kind, uint32_t line) {
    jinja_node *node = jinja_new(parser->arena, 1, sizeof *node);
    node->kind = kind;
    node->line = line;
    return node;
}

const jinja_token *jinja_peek(const jinja_parser *parser) {
    return &parser->token[parser->at];
}

const jinja_token *jinja_take(jinja_parser *parser) {
    const jinja_token *token = &parser->token[parser->at];
    parser->at += token->kind != TOKEN_END;
    return token;
}

bool jinja_is_name(const jinja_token *token, const char *name) {
    return token->kind == TOKEN_NAME && jinja_text_is(token->text, name);
}

bool jinja_skip(jinja_parser *parser, jinja_token_kind kind) {
    bool is_here = jinja_peek(parser)->kind == kind;
    parser->at += is_here;
    return is_here;
}

bool jinja_skip_name(jinja_parser *parser, const char *name) {
    bool is_here = jinja_is_name(jinja_peek(parser), name);
    parser->at += is_here;
    return is_here;
}

const jinja_token *jinja_expect(jinja_parser *parser, jinja_token_kind kind, const char *expected) {
    const jinja_token *token = jinja_take(parser);
    if (token->kind != kind) {
        jinja_syntax(parser, token->line, "expected %s, found '%.*s'", expected,
                     (int)(token->text->length < 40 ? token->text->length : 40), token->text->at);
    }
    return token;
}

uint32_t jinja_intern(jinja_parser *parser, jinja_text *name) {
    struct carry_template *made = parser->made;
    for (uint32_t i = 0; i < made->name_count; i++) {
        if (jinja_text_equal(made->names[i], name)) {
            return i;
        }
    }
    if (made->name_count == made->name_room) {
        uint32_t room = made->name_room > 0 ? 2 * made->name_room : 64;
        if (room > 1U << 14) {
            jinja_syntax(parser, 1, "more than %u names", 1U << 14);
        }
        jinja_text **grown = jinja_new(parser->arena, room, sizeof(void *));
        if (made->name_count > 0) {
            for (uint32_t i = 0; i < made->name_count; i++) {
                grown[i] = made->names[i];
            }
        }
        made->names = grown;
        made->name_room = room;
    }
    made->names[made->name_count] = name;
    return made->name_count++;
}

void jinja_enter(jinja_parser *parser, uint32_t line) {
    if (++parser->depth > DEPTH_MOST) {
        jinja_syntax(parser, line, "nested deeper than %d levels", DEPTH_MOST);
    }
}

static jinja_node *parse_body(jinja_parser *p, const char *const *ends);

/* Parses the rest of a tag, and statements up to a tag named in `ends`. Takes that name and returns its index. */
static int parse_until(jinja_parser *p, jinja_node **body, const char *const *ends) {
    uint32_t line = jinja_peek(p)->line;
    (void)jinja_skip(p, TOKEN_COLON);
    (void)jinja_expect(p, TOKEN_CLOSE_TAG, "the end of the tag");
    *body = parse_body(p, ends);
    if (jinja_peek(p)->kind == TOKEN_END) {
        jinja_syntax(p, line, "a tag without its {%% %s %%}", ends[0]);
    }
    const jinja_token *token = jinja_take(p);
    for (int i = 0;; i++) {
        if (jinja_is_name(token, ends[i])) {
            return i;
        }
    }
}

static jinja_node *parse_if(jinja_parser *p, uint32_t line) {
    static const char *const ends[] = {"endif", "elif", "else", NULL};
    static const char *const last[] = {"endif", NULL};
    jinja_node *first = jinja_node_new(p, NODE_IF, line);
    jinja_node *node = first;
    node->a = jinja_parse_tuple(p, false, NULL);
    for (int end; (end = parse_until(p, &node->body, ends)) != 0;) {
        if (end == 2) {
            (void)parse_until(p, &node->otherwise, last);
            break;
        }
        node->otherwise = jinja_node_new(p, NODE_IF, jinja_peek(p)->line);
        node = node->otherwise;
        node->a = jinja_parse_tuple(p, false, NULL);
    }
    return first;
}

static jinja_node *parse_for(jinja_parser *p, uint32_t line) {
    static const char *const ends[] = {"endfor", "else", NULL};
    static const char *const last[] = {"endfor", NULL};
    jinja_node *node = jinja_node_new(p, NODE_FOR, line);
    node->a = jinja_parse_target(p, false, "in");
    if (!jinja_skip_name(p, "in")) {
        jinja_syntax(p, line, "for without in");
    }
    node->b = jinja_parse_tuple(p, false, "recursive");
    node->c = jinja_skip_name(p, "if") ? jinja_parse_expression(p) : NULL;
    node->flag = jinja_skip_name(p, "recursive");
    p->loops++;
    int end = parse_until(p, &node->body, ends);
    p->loops--;
    if (end == 1) {
        (void)parse_until(p, &node->otherwise, last);
    }
    return node;
}

static jinja_node *parse_set(jinja_parser *p, uint32_t line) {
    static const char *const ends[] = {"endset", NULL};
    jinja_node *node = jinja_node_new(p, NODE_SET, line);
    node->a = jinja_parse_target(p, true, NULL);
    if (jinja_skip(p, TOKEN_ASSIGN)) {
        node->b = jinja_parse_tuple(p, true, NULL);
        return node;
    }
    node->kind = NODE_SET_BLOCK;
    node->b = jinja_parse_filters(p, NULL, false);
    (void)parse_until(p, &node->body, ends);
    return node;
}

static jinja_node *parse_with(jinja_parser *p, uint32_t line) {
    static const char *const ends[] = {"endwith", NULL};
    jinja_node *node = jinja_node_new(p, NODE_WITH, line);
    jinja_node **last = &node->list;
    while (jinja_peek(p)->kind != TOKEN_CLOSE_TAG) {
        if (node->list != NULL) {
            (void)jinja_expect(p, TOKEN_COMMA, ",");
        }
        *last = jinja_node_new(p, NODE_SET, line);
        (*last)->a = jinja_parse_target(p, false, NULL);
        (void)jinja_expect(p, TOKEN_ASSIGN, "=");
        (*last)->b = jinja_parse_expression(p);
        last = &(*last)->next;
    }
    (void)parse_until(p, &node->body, ends);
    return node;
}

static void parse_parameters(jinja_parser *p, jinja_node *macro) {
    jinja_node **last = &macro->list;
    bool has_default = false;
    (void)jinja_expect(p, TOKEN_OPEN_PARENTHESIS, "(");
    while (jinja_peek(p)->kind != TOKEN_CLOSE_PARENTHESIS) {
        if (macro->list != NULL) {
            (void)jinja_expect(p, TOKEN_COMMA, ",");
        }
        const jinja_token *token = jinja_expect(p, TOKEN_NAME, "a name");
        *last = jinja_node_new(p, NODE_NAME, token->line);
        (*last)->name = token->text;
        (*last)->id = jinja_intern(p, token->text);
        if (jinja_skip(p, TOKEN_ASSIGN)) {
            (*last)->a = jinja_parse_expression(p);
            has_default = true;
        } else if (has_default) {
            jinja_syntax(p, token->line, "a parameter without a default follows one with a default");
        }
        last = &(*last)->next;
    }
    (void)jinja_take(p);
}

/* Parses the body of a macro, which is outside of any loop. */
static void parse_macro_body(jinja_parser *p, jinja_node *macro, const char *const *ends) {
    int loops = p->loops;
    unsigned char uses = p->uses;
    p->loops = 0;
    p->uses = 0;
    (void)parse_until(p, &macro->body, ends);
    macro->uses = p->uses;
    p->uses = uses;
    p->loops = loops;
}

static jinja_node *parse_macro(jinja_parser *p, uint32_t line) {
    static const char *const ends[] = {"endmacro", NULL};
    jinja_node *node = jinja_node_new(p, NODE_MACRO, line);
    node->name = jinja_expect(p, TOKEN_NAME, "a name")->text;
    node->id = jinja_intern(p, node->name);
    parse_parameters(p, node);
    parse_macro_body(p, node, ends);
    return node;
}

static jinja_node *parse_call_block(jinja_parser *p, uint32_t line) {
    static const char *const ends[] = {"endcall", NULL};
    jinja_node *node = jinja_node_new(p, NODE_CALL_BLOCK, line);
    node->name = jinja_text_over(p->arena, "caller", strlen("caller"));
    if (jinja_peek(p)->kind == TOKEN_OPEN_PARENTHESIS) {
        parse_parameters(p, node);
    }
    node->a = jinja_parse_expression(p);
    if (node->a->kind != NODE_CALL) {
        jinja_syntax(p, line, "{%% call %%} needs the call of a macro");
    }
    parse_macro_body(p, node, ends);
    return node;
}

static jinja_node *parse_filter_block(jinja_parser *p, uint32_t line) {
    static const char *const ends[] = {"endfilter", NULL};
    jinja_node *node = jinja_node_new(p, NODE_FILTER_BLOCK, line);
    node->a = jinja_parse_filters(p, NULL, true);
    (void)parse_until(p, &node->body, ends);
    return node;
}

static jinja_node *parse_generation(jinja_parser *p, uint32_t line) {
    static const char *const ends[] = {"endgeneration", NULL};
    jinja_node *node = jinja_node_new(p, NODE_GENERATION, line);
    parse_macro_body(p, node, ends);
    return node;
}

static jinja_node *parse_print(jinja_parser *p, uint32_t line) {
    jinja_node *node = jinja_node_new(p, NODE_OUTPUT, line);
    jinja_node *last = NULL;
    while (jinja_peek(p)->kind != TOKEN_CLOSE_TAG) {
        if (last != NULL) {
            (void)jinja_expect(p, TOKEN_COMMA, ",");
        }
        jinja_node *item = jinja_parse_expression(p);
        *(last != NULL ? &last->next : &node->list) = item;
        last = item;
    }
    return node;
}

static jinja_node *parse_jump(jinja_parser *p, jinja_node_kind kind, uint32_t line) {
    if (p->loops == 0) {
        jinja_syntax(p, line, "{%% %s %%} outside of a loop", kind == NODE_BREAK ? "break" : "continue");
    }
    return jinja_node_new(p, kind, line);
}

static jinja_node *parse_break(jinja_parser *p, uint32_t line) {
    return parse_jump(p, NODE_BREAK, line);
}

static jinja_node *parse_continue(jinja_parser *p, uint32_t line) {
    return parse_jump(p, NODE_CONTINUE, line);
}

static jinja_node *parse_tag(jinja_parser *p) {
    static const struct {
        const char *name;
        jinja_node *(*parse)(jinja_parser *, uint32_t);
    } tags[] = {
        {"if", parse_if},
        {"for", parse_for},
        {"set", parse_set},
        {"macro", parse_macro},
        {"call", parse_call_block},
        {"filter", parse_filter_block},
        {"with", parse_with},
        {"print", parse_print},
        {"break", parse_break},
        {"continue", parse_continue},
        {"generation", parse_generation},
    };
    static const char *const others[] = {"block", "extends", "include", "import", "from", "autoescape", NULL};
    const jinja_token *token = jinja_expect(p, TOKEN_NAME, "the name of a tag");
    for (size_t i = 0; i < sizeof tags / sizeof tags[0]; i++) {
        if (jinja_text_is(token->text, tags[i].name)) {
            return tags[i].parse(p, token->line);
        }
    }
    for (int i = 0; others[i] != NULL; i++) {
        if (jinja_text_is(token->text, others[i])) {
            char feature[64];
            (void)snprintf(feature, sizeof feature, "the tag '%s'", others[i]);
            jinja_unsupported(p, token->line, feature);
        }
    }
    jinja_syntax(p, token->line, "unknown tag '%.*s'", (int)(token->text->length < 40 ? token->text->length : 40),
                 token->text->at);
}

static bool ends_here(const jinja_parser *p, const char *const *ends) {
    for (int i = 0; ends != NULL && ends[i] != NULL; i++) {
        if (jinja_is_name(jinja_peek(p), ends[i])) {
            return true;
        }
    }
    return false;
}

/* Parses up to a tag with a name in `ends`; that name is the next token. NULL: up to the end of the template. */
static jinja_node *parse_body(jinja_parser *p, const char *const *ends) {
    jinja_node *first = NULL;
    jinja_node **last = &first;
    jinja_enter(p, jinja_peek(p)->line);
    while (jinja_peek(p)->kind != TOKEN_END) {
        const jinja_token *token = jinja_take(p);
        if (token->kind == TOKEN_DATA) {
            *last = jinja_node_new(p, NODE_DATA, token->line);
            (*last)->value = (jinja_value){.kind = JINJA_STRING, .as.text = token->text};
        } else if (token->kind == TOKEN_OPEN_OUTPUT) {
            *last = jinja_node_new(p, NODE_OUTPUT, token->line);
            (*last)->list = jinja_parse_tuple(p, true, NULL);
            (void)jinja_expect(p, TOKEN_CLOSE_OUTPUT, "}}");
        } else {
            if (ends_here(p, ends)) {
                break;
            }
            *last = parse_tag(p);
            (void)jinja_expect(p, TOKEN_CLOSE_TAG, "the end of the tag");
        }
        last = &(*last)->next;
    }
    p->depth--;
    return first;
}

jinja_node *jinja_parse_body(jinja_parser *p) {
    return parse_body(p, NULL);
}
