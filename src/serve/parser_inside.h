/* Shared by the files that parse answers. */
#ifndef CARRY_SERVE_PARSER_INSIDE_H
#define CARRY_SERVE_PARSER_INSIDE_H

#include "serve/parser.h"

#define CARRY_PARSER_NAME 256               /* bytes of a function's or parameter's name, including the NUL */
#define CARRY_PARSER_HELD ((size_t)1 << 20) /* at most this many bytes are held back; then they are emitted as text */

typedef enum carry_parser_mode {
    CARRY_PARSE_TEXT,
    CARRY_PARSE_REASONING,
    CARRY_PARSE_CALL,   /* after <tool_call>: the kind of call is not known yet */
    CARRY_PARSE_JSON,   /* {"name": ..., "arguments": ...}, up to the arguments */
    CARRY_PARSE_VALUE,  /* the arguments, emitted as they come */
    CARRY_PARSE_XML,    /* after <function=...>: between parameters */
    CARRY_PARSE_STRING, /* a parameter that is text, emitted as it comes */
    CARRY_PARSE_OTHER,  /* a parameter of another type, held until its end */
    CARRY_PARSE_AFTER,  /* after a call, up to </tool_call> */
    CARRY_PARSE_RAW,    /* a call that could not be parsed: text up to </tool_call> */
} carry_parser_mode;

struct carry_serve_parser {
    const carry_serve_request *request;
    carry_parser_mode mode;
    bool has_tools;
    bool is_first;    /* no text was emitted yet: <think> may follow */
    bool skips_space; /* drops spaces at the start of a text or of reasoning */
    bool is_lost;     /* out of memory */
    char *held;       /* text that was not emitted yet */
    size_t at, length, room;
    carry_serve_emit emit;
    void *user;
    int calls;
    bool is_dropped; /* the current call is dropped: parallel calls are not allowed */
    char name[CARRY_PARSER_NAME], parameter[CARRY_PARSER_NAME];
    bool has_parameter; /* the current call has a parameter */
    /* State within the current arguments. */
    int depth;
    bool in_string, is_escaped;
};

static inline const char *carry_parser_rest(const carry_serve_parser *p, size_t *length) {
    *length = p->length - p->at;
    return p->held + p->at;
}

void carry_parser_emit(carry_serve_parser *p, carry_serve_part_kind kind, const char *text, size_t length);
void carry_parser_begin_call(carry_serve_parser *p, const char *name);
void carry_parser_arguments(carry_serve_parser *p, const char *text, size_t length);
/* Returns the number of bytes at the end of the text that may be the start of the tag. */
size_t carry_parser_partial(const char *text, size_t length, const char *tag);
bool carry_parser_starts(const char *text, size_t length, const char *tag);

/* Each reads as much of the held text as its mode can take. Returns true if reading can continue, in
   p->mode (which may have changed), and false if more text is needed. is_end: no more text comes. */
bool carry_parser_json(carry_serve_parser *p, bool is_end);
bool carry_parser_value(carry_serve_parser *p, bool is_end);
bool carry_parser_xml(carry_serve_parser *p, bool is_end);
bool carry_parser_string(carry_serve_parser *p, bool is_end);
bool carry_parser_other(carry_serve_parser *p, bool is_end);

#endif
