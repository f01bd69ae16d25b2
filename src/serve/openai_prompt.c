/* Parses bodies of OpenAI's chat and text completions. */
#include <inttypes.h>
#include <stdlib.h>

#include "serve/openai.h"

#define TOKENS 16 /* default max_tokens of a text completion, as in OpenAI's interface */
#define TOP_CHAT 20
#define TOP_TEXT 5

bool carry_serve_openai_parse_chat(carry_ctx *ctx, carry_serve_request *r, carry_serve_refusal *refusal) {
    bool wants_logprobs = false;
    int64_t top = 0;
    if (!carry_serve_openai_parameters(r, refusal) || !carry_serve_openai_format(r, refusal) ||
        !carry_serve_read_bool(r->body, "logprobs", &wants_logprobs, refusal) ||
        !carry_serve_read_integer(r->body, "top_logprobs", &top, 0, TOP_CHAT, refusal)) {
        return false;
    }
    if (top > 0 && !wants_logprobs) {
        return carry_serve_refuse(refusal, 400, "top_logprobs", "top_logprobs is set without logprobs");
    }
    r->logprobs = wants_logprobs ? (int)top : -1;
    return carry_serve_openai_messages(ctx, r, refusal);
}

static bool read_ids(carry_serve_request *r, const carry_json *list, carry_serve_refusal *refusal) {
    const int64_t count = carry_json_count(list);
    r->ids = calloc((size_t)count + 1, sizeof *r->ids);
    if (r->ids == NULL) {
        return carry_serve_refuse(refusal, 500, "", "out of memory");
    }
    for (const carry_json *one = carry_json_first(list); one != NULL; one = one->next) {
        if (one->kind != CARRY_JSON_NUMBER || !one->whole) {
            return carry_serve_refuse(refusal, 400, "prompt", "prompt: expected a text or a list of token ids");
        }
        r->ids[r->id_count++] = one->as.number.integer;
    }
    return true;
}

static bool read_prompt(carry_serve_request *r, carry_serve_refusal *refusal) {
    const carry_json *prompt = carry_serve_member(r->body, "prompt");
    const carry_json *first = prompt != NULL && prompt->kind == CARRY_JSON_ARRAY ? carry_json_first(prompt) : NULL;
    if (first != NULL && first->kind != CARRY_JSON_NUMBER) {
        if (first->next != NULL) {
            return carry_serve_refuse(refusal, 400, "prompt",
                                      "prompt has %" PRId64 " prompts: expected one; send a request for each",
                                      carry_json_count(prompt));
        }
        prompt = first;
    }
    if (prompt != NULL && prompt->kind == CARRY_JSON_ARRAY && carry_json_count(prompt) > 0) {
        return read_ids(r, prompt, refusal);
    }
    if (prompt == NULL || prompt->kind != CARRY_JSON_STRING) {
        return carry_serve_refuse(refusal, 400, "prompt", "prompt: expected a text or a list of token ids");
    }
    r->text = prompt->as.text.bytes;
    r->text_length = prompt->as.text.length;
    return true;
}

bool carry_serve_openai_parse_text(carry_ctx *ctx, carry_serve_request *r, carry_serve_refusal *refusal) {
    (void)ctx;
    int64_t logprobs = -1;
    int64_t best = 1;
    r->max_tokens = TOKENS;
    if (!carry_serve_openai_parameters(r, refusal) || !carry_serve_openai_format(r, refusal) ||
        !read_prompt(r, refusal) || !carry_serve_read_integer(r->body, "logprobs", &logprobs, 0, TOP_TEXT, refusal) ||
        !carry_serve_read_integer(r->body, "best_of", &best, 1, 1, refusal) ||
        !carry_serve_read_bool(r->body, "echo", &r->echoes, refusal)) {
        return false;
    }
    if (carry_serve_member(r->body, "suffix") != NULL) {
        return carry_serve_refuse(refusal, 400, "suffix", "suffix is not supported");
    }
    if (r->echoes && (logprobs >= 0 || r->text == NULL)) {
        return carry_serve_refuse(refusal, 400, "echo", "echo needs a prompt that is a text, and no logprobs");
    }
    r->logprobs = (int)logprobs;
    return true;
}
