/* Texts without markup: all of it is content. */
#include "serve/parser.h"

#include <stdlib.h>

struct carry_serve_parser {
    const carry_serve_request *request;
};

carry_serve_parser *carry_serve_parser_open(const carry_serve_request *request, const char *prompt, size_t length) {
    (void)prompt;
    (void)length;
    carry_serve_parser *parser = calloc(1, sizeof *parser);
    if (parser != NULL) {
        parser->request = request;
    }
    return parser;
}

void carry_serve_parser_close(carry_serve_parser *parser) {
    free(parser);
}

void carry_serve_parser_put(carry_serve_parser *parser, const char *text, size_t length, carry_serve_emit emit,
                            void *user) {
    (void)parser;
    emit(user, &(carry_serve_part){.kind = CARRY_PART_TEXT, .text = text, .length = length});
}

void carry_serve_parser_end(carry_serve_parser *parser, carry_serve_emit emit, void *user) {
    (void)parser;
    (void)emit;
    (void)user;
}
