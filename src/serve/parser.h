/* Splits the text of a choice into content, reasoning and tool calls. One parser is opened per choice, from the request
   and the rendered prompt, whose end tells, for example, whether the answer begins inside <think>. Text comes in pieces
   that are cut between any two characters; a parser holds back text that may become a tag. The result must not depend
   on where the text was cut. */
#ifndef CARRY_SERVE_PARSER_H
#define CARRY_SERVE_PARSER_H

#include "serve/request.h"

typedef struct carry_serve_parser carry_serve_parser;

/* prompt: the rendered chat, or NULL for a text completion, whose text is not parsed. Returns NULL if out of memory. */
carry_serve_parser *carry_serve_parser_open(const carry_serve_request *request, const char *prompt, size_t length);
void carry_serve_parser_close(carry_serve_parser *parser);
void carry_serve_parser_put(carry_serve_parser *parser, const char *text, size_t length, carry_serve_emit emit,
                            void *user);
/* Ends the text: emits the text that was held back. */
void carry_serve_parser_end(carry_serve_parser *parser, carry_serve_emit emit, void *user);

#endif
