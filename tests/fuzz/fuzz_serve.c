/* Any bytes as the body of a request of the language model server: refused with a status, a message and a field, or a
   request whose numbers are within their bounds. */
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "core/context.h"
#include "serve/openai.h"

static void check(const carry_serve_request *r) {
    const bool is_sound = r->choices >= 1 && r->choices <= CARRY_SERVE_CHOICES && r->max_tokens != 0 &&
                          isfinite(r->temperature) && r->temperature >= 0.0 && r->top_p > 0.0 && r->top_p <= 1.0 &&
                          r->min_p >= 0.0 && r->min_p <= 1.0 && r->top_k >= 0 && r->logprobs >= -1 &&
                          r->logprobs <= 20 && r->stop_count <= CARRY_SERVE_STOPS && isfinite(r->presence) &&
                          isfinite(r->frequency) && r->bias_count <= CARRY_SERVE_BIASES;
    if (!is_sound || (r->variables == NULL) + (r->text == NULL) + (r->ids == NULL) != 2) {
        abort();
    }
    for (int64_t i = 0; i < r->stop_count; i++) {
        if (r->stops[i][0] == '\0') {
            abort();
        }
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static bool (*const parsers[])(carry_ctx *, carry_serve_request *, carry_serve_refusal *) = {
        carry_serve_openai_parse_chat, carry_serve_openai_parse_text};
    static carry_ctx *ctx;
    if (ctx == NULL && carry_ctx_new(&ctx, &(carry_ctx_options){CARRY_INIT(carry_ctx_options), .threads = 1,
                                                                .log_level = CARRY_LOG_ERROR}) != CARRY_OK) {
        abort();
    }
    for (size_t i = 0; i < sizeof parsers / sizeof parsers[0]; i++) {
        carry_serve_request request;
        carry_serve_refusal refusal = {0};
        carry_serve_request_init(&request, NULL);
        if (carry_json_parse(ctx, &request.body, (const char *)data, size, "body") != CARRY_OK) {
            request.body = NULL;
            carry_serve_request_free(&request);
            return 0;
        }
        const bool is_parsed = parsers[i](ctx, &request, &refusal);
        if (is_parsed != (refusal.status == 0) || (!is_parsed && refusal.message[0] == '\0')) {
            abort();
        }
        if (is_parsed) {
            check(&request);
        }
        carry_serve_request_free(&request);
    }
    return 0;
}
