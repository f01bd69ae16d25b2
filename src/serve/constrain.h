/* Constrained sampling: decides which tokens may follow, from the request's format and tools. An answer that begins
   inside <think> may have any text up to </think>, but may not end before it; then the constraint applies. With
   tool_choice "required", or the name of a function, the answer is a call of a tool, or with "required" several, with
   arguments by the tool's schema, in the form that the prompt uses for calls (JSON or Qwen's XML). This takes
   precedence over the format. */
#ifndef CARRY_SERVE_CONSTRAIN_H
#define CARRY_SERVE_CONSTRAIN_H

#include "serve/request.h"
#include "tokenizer/tokenizer.h"

typedef struct carry_serve_constraint carry_serve_constraint;

/* A model's tokens, and the rendered chat (NULL for a text completion). ends: the tokens that end a text; a constraint
   allows them where the text may end. */
typedef struct carry_serve_text {
    const carry_tokenizer *tokenizer; /* may be NULL */
    int64_t vocabulary;               /* size of the model's vocabulary */
    const int64_t *ends;
    int64_t end_count;
    const char *prompt;
    size_t prompt_length;
    const char *example; /* a rendered chat with a tool and no text of the client, which shows the form of calls; if
                            NULL, the prompt is used */
} carry_serve_text;

bool carry_serve_needs_call(const carry_serve_request *request); /* a tool must be called */

/* *made is NULL if the request has no constraint. Called once per choice on a preparing thread. Returns false with a
   refusal: 400 with the field if the request cannot be constrained (an invalid, unsupported or too large schema or
   pattern; a tool call, which the chat template does not support; a constraint with ignore_eos), 500 if out of memory.
 */
bool carry_serve_constrain(carry_ctx *ctx, carry_serve_constraint **made, const carry_serve_request *request,
                           const carry_serve_text *text, carry_serve_refusal *refusal);
void carry_serve_constraint_free(carry_serve_constraint *constraint);
/* Implements `constrain` of carry_engine_request (carry/engine.h), on the engine's thread; user is the constraint. */
bool carry_serve_constraint_allow(void *user, int64_t last, uint32_t *allowed);

#endif
