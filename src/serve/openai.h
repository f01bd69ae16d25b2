/* OpenAI's interface: parameters and parts of answers that chat and text completions share. */
#ifndef CARRY_SERVE_OPENAI_H
#define CARRY_SERVE_OPENAI_H

#include "serve/answer.h"
#include "serve/request.h"

/* Reads sampling parameters, n, stop, seed, logit_bias, stream, ... Unknown parameters are ignored, as by OpenAI. */
bool carry_serve_openai_parameters(carry_serve_request *request, carry_serve_refusal *refusal);
/* Writes messages, tools and other variables of the chat template to request->variables. The parts of a content are
   joined to one text, and tool-call arguments given as the text of a JSON object become an object, as templates
   expect. */
bool carry_serve_openai_messages(carry_ctx *ctx, carry_serve_request *request, carry_serve_refusal *refusal);
/* Reads response_format, regex, tools, tool_choice and parallel_tool_calls. */
bool carry_serve_openai_format(carry_serve_request *request, carry_serve_refusal *refusal);

/* Parse chat and text completions. */
bool carry_serve_openai_parse_chat(carry_ctx *ctx, carry_serve_request *request, carry_serve_refusal *refusal);
bool carry_serve_openai_parse_text(carry_ctx *ctx, carry_serve_request *request, carry_serve_refusal *refusal);

const char *carry_serve_openai_reason(const carry_serve_choice *choice); /* finish_reason */
/* Writes {"prompt_tokens": ..., ...}. */
void carry_serve_openai_usage(const carry_serve_answer *answer, carry_json_text *to);
/* Writes the first members of an object: id, object, created, model. The object stays open. */
void carry_serve_openai_head(const carry_serve_answer *answer, carry_json_text *to, const char *prefix,
                             const char *object);
void carry_serve_openai_fail(carry_serve_answer *answer, const carry_serve_refusal *refusal);
/* Sends the last events: usage if requested, and [DONE]. */
void carry_serve_openai_end(carry_serve_answer *answer, const char *prefix, const char *object);
/* Writes the body of an error. */
void carry_serve_openai_error(const carry_serve_refusal *refusal, carry_json_text *body);

extern const carry_serve_dialect carry_serve_openai_chat, carry_serve_openai_text;

#endif
