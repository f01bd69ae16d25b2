/* Writes parts of OpenAI's answers. */
#include <string.h>

#include "serve/openai.h"

const char *carry_serve_openai_reason(const carry_serve_choice *choice) {
    if (choice->call_count > 0 && choice->reason != CARRY_REASON_LENGTH && choice->reason != CARRY_REASON_CONTEXT) {
        return "tool_calls";
    }
    return choice->reason == CARRY_REASON_LENGTH || choice->reason == CARRY_REASON_CONTEXT ? "length" : "stop";
}

void carry_serve_openai_usage(const carry_serve_answer *answer, carry_json_text *to) {
    const int64_t written = carry_serve_completion_tokens(answer);
    carry_json_begin(to, "usage", '{');
    carry_json_add_integer(to, "prompt_tokens", answer->prompt_tokens);
    carry_json_add_integer(to, "completion_tokens", written);
    carry_json_add_integer(to, "total_tokens", answer->prompt_tokens + written);
    carry_json_begin(to, "prompt_tokens_details", '{');
    carry_json_add_integer(to, "cached_tokens", carry_serve_cached_tokens(answer));
    carry_json_end(to, '}');
    carry_json_end(to, '}');
}

void carry_serve_openai_head(const carry_serve_answer *answer, carry_json_text *to, const char *prefix,
                             const char *object) {
    carry_json_begin(to, NULL, '{');
    carry_json_put_raw(to, "\"id\":\"%s%s\"", prefix, answer->id);
    carry_json_add_text(to, "object", object);
    carry_json_add_integer(to, "created", answer->created);
    carry_json_add_text(to, "model", answer->model);
}

void carry_serve_openai_end(carry_serve_answer *answer, const char *prefix, const char *object) {
    if (answer->request.includes_usage) {
        carry_json_text text = {0};
        carry_serve_openai_head(answer, &text, prefix, object);
        carry_json_begin(&text, "choices", '[');
        carry_json_end(&text, ']');
        carry_serve_openai_usage(answer, &text);
        carry_json_end(&text, '}');
        carry_serve_send(answer, NULL, &text);
        carry_json_text_free(&text);
    }
    carry_serve_send_raw(answer, NULL, "[DONE]");
}

void carry_serve_openai_fail(carry_serve_answer *answer, const carry_serve_refusal *refusal) {
    carry_json_text text = {0};
    carry_serve_openai_error(refusal, &text);
    carry_serve_send(answer, NULL, &text);
    carry_serve_send_raw(answer, NULL, "[DONE]");
    carry_json_text_free(&text);
}

static const char *type_of(int status) {
    switch (status) {
    case 401:
        return "authentication_error";
    case 403:
        return "permission_error";
    case 404:
        return "not_found_error";
    case 429:
        return "rate_limit_error";
    default:
        return status >= 500 ? "server_error" : "invalid_request_error";
    }
}

void carry_serve_openai_error(const carry_serve_refusal *refusal, carry_json_text *body) {
    carry_json_begin(body, NULL, '{');
    carry_json_begin(body, "error", '{');
    carry_json_add_text(body, "message", refusal->message);
    carry_json_add_text(body, "type", refusal->type != NULL ? refusal->type : type_of(refusal->status));
    carry_json_add_text(body, "param", refusal->field[0] != '\0' ? refusal->field : NULL);
    carry_json_add_text(body, "code", refusal->code);
    carry_json_end(body, '}');
    carry_json_end(body, '}');
}
