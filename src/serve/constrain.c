/* Formats of answers. */
#include "serve/constrain.h"

bool carry_serve_constrain(carry_serve_constraint **made, const carry_serve_request *request,
                           const carry_tokenizer *tokenizer, const int64_t *ends, int64_t end_count,
                           carry_serve_refusal *refusal) {
    (void)tokenizer;
    (void)ends;
    (void)end_count;
    *made = NULL;
    return request->format.kind == CARRY_FORMAT_TEXT ||
           carry_serve_refuse(refusal, 400, "response_format", "only the format text is supported");
}

void carry_serve_constraint_free(carry_serve_constraint *constraint) {
    (void)constraint;
}

bool carry_serve_constraint_allow(void *user, int64_t last, uint32_t *allowed) {
    (void)user;
    (void)last;
    (void)allowed;
    return true;
}
