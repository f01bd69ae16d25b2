/* Anthropic's interface: POST /v1/messages. A body is rewritten as an OpenAI chat completion, which is then parsed. */
#ifndef CARRY_SERVE_ANTHROPIC_H
#define CARRY_SERVE_ANTHROPIC_H

#include "serve/openai.h"

bool carry_serve_anthropic_parse(carry_ctx *ctx, carry_serve_request *request, carry_serve_refusal *refusal);
extern const carry_serve_dialect carry_serve_anthropic;

#endif
