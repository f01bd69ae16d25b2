/* The tree of a template: tokens of the lexer, and nodes of the parser. */
#ifndef CARRY_TEMPLATE_NODE_H
#define CARRY_TEMPLATE_NODE_H

#include "tokenizer/template/template.h"
#include "tokenizer/template/value.h"

typedef enum jinja_token_kind {
    TOKEN_END,
    TOKEN_DATA, /* text outside of tags */
    TOKEN_OPEN_OUTPUT,
    TOKEN_CLOSE_OUTPUT,
    TOKEN_OPEN_TAG,
    TOKEN_CLOSE_TAG,
    TOKEN_NAME,
    TOKEN_STRING,
    TOKEN_INTEGER,
    TOKEN_FLOAT,
    TOKEN_ADD,
    TOKEN_SUBTRACT,
    TOKEN_DIVIDE,
    TOKEN_FLOOR_DIVIDE,
    TOKEN_MULTIPLY,
    TOKEN_MODULO,
    TOKEN_POWER,
    TOKEN_TILDE,
    TOKEN_OPEN_BRACKET,
    TOKEN_CLOSE_BRACKET,
    TOKEN_OPEN_PARENTHESIS,
    TOKEN_CLOSE_PARENTHESIS,
    TOKEN_OPEN_BRACE,
    TOKEN_CLOSE_BRACE,
    TOKEN_EQUAL,
    TOKEN_UNEQUAL,
    TOKEN_GREATER,
    TOKEN_GREATER_EQUAL,
    TOKEN_LESS,
    TOKEN_LESS_EQUAL,
    TOKEN_ASSIGN,
    TOKEN_DOT,
    TOKEN_COLON,
    TOKEN_PIPE,
    TOKEN_COMMA,
    TOKEN_SEMICOLON,
    TOKEN_IN, /* only made by the parser as comparison operators; the lexer returns names */
    TOKEN_NOT_IN
} jinja_token_kind;

typedef struct jinja_token {
    jinja_token_kind kind;
    uint32_t line;
    jinja_text *text;  /* content of data, names and strings; other tokens as written */
    jinja_value value; /* of an integer or float token */
} jinja_token;

typedef enum jinja_node_kind {
    /* expressions; the comments say which of a, b, c and list they use */
    NODE_CONSTANT,  /* value */
    NODE_NAME,      /* name */
    NODE_TUPLE,     /* list */
    NODE_LIST,      /* list */
    NODE_DICT,      /* list: key, value, key, value, ... */
    NODE_ATTRIBUTE, /* a.name */
    NODE_ITEM,      /* a[b] */
    NODE_SLICE,     /* a[b:c:d] */
    NODE_CALL,      /* a(call) */
    NODE_FILTER,    /* a | name(call); if a is NULL, the filter applies to the body of the enclosing tag */
    NODE_TEST,      /* a is name(call) */
    NODE_NOT,       /* a */
    NODE_AND,       /* a, b */
    NODE_OR,
    NODE_IF_ELSE,             /* a if b else c */
    NODE_COMPARE,             /* a is the first operand; list: the others, each with its operator */
    NODE_CONCAT,              /* list */
    NODE_BINARY,              /* a operator b */
    NODE_NEGATE,              /* a */
    NODE_POSITIVE,            /* a */
    NODE_NAMESPACE_ATTRIBUTE, /* an assignment target: the name (NODE_NAME) is in a, the attribute in name */
    /* statements */
    NODE_DATA,         /* value: text */
    NODE_OUTPUT,       /* list */
    NODE_IF,           /* a: condition, body, otherwise */
    NODE_FOR,          /* a: target, b: source, c: condition or NULL, body, otherwise */
    NODE_SET,          /* a: target, b: value */
    NODE_SET_BLOCK,    /* a: target, b: filter or NULL, body */
    NODE_WITH,         /* list: target, value, ...; body */
    NODE_MACRO,        /* name, list: parameters (NODE_NAME with its default in a), body */
    NODE_CALL_BLOCK,   /* a: call, list: parameters, body */
    NODE_FILTER_BLOCK, /* a: filter, body */
    NODE_GENERATION,   /* body */
    NODE_BREAK,
    NODE_CONTINUE
} jinja_node_kind;

typedef struct jinja_node {
    jinja_node_kind kind;
    uint32_t line;
    jinja_token_kind operator; /* of a binary node, and of an operand of a comparison */
    bool flag;                 /* for: is recursive; macro: uses varargs, kwargs or caller, see uses */
    unsigned char uses;        /* macro: JINJA_USES_ bits */
    uint32_t id;               /* id of a name */
    jinja_text *name;
    jinja_value value;
    struct jinja_node *a, *b, *c, *d;
    struct jinja_node *list, *body, *otherwise;
    struct jinja_call *call;
    struct jinja_node *next; /* next in the list or body that contains it */
} jinja_node;

#define JINJA_USES_CALLER 1
#define JINJA_USES_KWARGS 2
#define JINJA_USES_VARARGS 4

typedef struct jinja_keyword {
    jinja_text *name;
    jinja_node *value;
    struct jinja_keyword *next;
} jinja_keyword;

typedef struct jinja_call { /* arguments in the source */
    jinja_node *first;      /* positional arguments */
    jinja_keyword *keywords;
    jinja_node *more, *more_keywords; /* *more, **more_keywords */
} jinja_call;

struct carry_template {
    jinja_arena arena;
    jinja_node *body;
    jinja_text **names; /* names of variables, by id */
    uint32_t name_count, name_room;
    uint32_t loop_id, caller_id, varargs_id, kwargs_id;
    char *title; /* for messages */
};

/* Shared by the parser and the lexer. Errors jump to arena.leave, with the message in the context. */
typedef struct jinja_parser {
    carry_ctx *ctx;
    struct carry_template *made;
    jinja_arena *arena;
    const char *title;
    jinja_token *token; /* the last one is TOKEN_END */
    size_t count, room, at;
    int depth, loops;
    unsigned char uses; /* JINJA_USES_ bits of the macro that is being parsed */
    carry_status status;
} jinja_parser;

_Noreturn void jinja_syntax(jinja_parser *parser, uint32_t line, const char *format, ...) CARRY_PRINTF(3, 4);
_Noreturn void jinja_unsupported(jinja_parser *parser, uint32_t line, const char *feature);
void jinja_read_tokens(jinja_parser *parser, const char *text, size_t length);
jinja_node *jinja_node_new(jinja_parser *parser, jinja_node_kind kind, uint32_t line);

const jinja_token *jinja_peek(const jinja_parser *parser);
const jinja_token *jinja_take(jinja_parser *parser);
bool jinja_is_name(const jinja_token *token, const char *name);
bool jinja_skip(jinja_parser *parser, jinja_token_kind kind);
bool jinja_skip_name(jinja_parser *parser, const char *name);
const jinja_token *jinja_expect(jinja_parser *parser, jinja_token_kind kind, const char *expected);
uint32_t jinja_intern(jinja_parser *parser, jinja_text *name);
void jinja_enter(jinja_parser *parser, uint32_t line); /* enters a nesting level; the caller leaves it by depth-- */

/* parse_statement.c: parses all tokens */
jinja_node *jinja_parse_body(jinja_parser *parser);
/* parse_expression.c */
jinja_node *jinja_parse_expression(jinja_parser *parser);
/* Parses `a, b` without parentheses. conditional: `a if b else c` is allowed. end: a name that ends the tuple, or
   NULL. */
jinja_node *jinja_parse_tuple(jinja_parser *parser, bool conditional, const char *end);
jinja_node *jinja_parse_target(jinja_parser *parser, bool with_namespace, const char *end);
jinja_node *jinja_parse_filters(jinja_parser *parser, jinja_node *node, bool starts_inside);
/* check.c: filters and tests outside of conditions must have known names, as in Jinja's compiler. */
void jinja_check_names(jinja_parser *parser, const jinja_node *body);

#endif
