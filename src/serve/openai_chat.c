/* POST /v1/chat/completions. */
#include "serve/openai.h"

#define PREFIX "chatcmpl-"
#define CHUNK "chat.completion.chunk"

static void add_token(const carry_serve_answer *answer, carry_json_text *to, int32_t id, float logprob) {
    carry_serve_put_token(answer, to, "token", id);
    carry_json_add_number(to, "logprob", (double)(logprob < -9999.0f ? -9999.0f : logprob));
    carry_serve_put_token_bytes(answer, to, "bytes", id);
}

/* Writes the log probabilities of tokens that were not reported yet; null if they were not requested. */
static void add_logprobs(const carry_serve_answer *answer, carry_serve_choice *choice, carry_json_text *to) {
    if (answer->request.logprobs < 0) {
        carry_json_add_text(to, "logprobs", NULL);
        return;
    }
    carry_json_begin(to, "logprobs", '{');
    carry_json_begin(to, "content", '[');
    const size_t count = carry_serve_ready_tokens(choice);
    for (size_t i = 0; i < count; i++) {
        const carry_serve_token *token = &choice->tokens[i];
        carry_json_begin(to, NULL, '{');
        add_token(answer, to, token->id, token->logprob);
        carry_json_begin(to, "top_logprobs", '[');
        for (int j = 0; j < token->top_count; j++) {
            carry_json_begin(to, NULL, '{');
            add_token(answer, to, token->top[j], token->top_logprob[j]);
            carry_json_end(to, '}');
        }
        carry_json_end(to, ']');
        carry_json_end(to, '}');
    }
    carry_json_end(to, ']');
    carry_json_add_text(to, "refusal", NULL);
    carry_json_end(to, '}');
    carry_serve_drop_tokens(choice, count);
}

static void add_calls(const carry_serve_choice *choice, carry_json_text *to) {
    carry_json_begin(to, "tool_calls", '[');
    for (int i = 0; i < choice->call_count; i++) {
        const carry_serve_call *call = &choice->calls[i];
        carry_json_begin(to, NULL, '{');
        carry_json_add_text(to, "id", call->id);
        carry_json_add_text(to, "type", "function");
        carry_json_begin(to, "function", '{');
        carry_json_add_text(to, "name", call->name);
        carry_json_add_key(to, "arguments");
        carry_json_put_bytes(to, call->arguments.bytes != NULL ? call->arguments.bytes : "", call->arguments.length);
        carry_json_end(to, '}');
        carry_json_end(to, '}');
    }
    carry_json_end(to, ']');
}

static void add_message(const carry_serve_choice *choice, carry_json_text *to) {
    carry_json_begin(to, "message", '{');
    carry_json_add_text(to, "role", "assistant");
    if (choice->text.length > 0 || choice->call_count == 0) {
        carry_json_add_key(to, "content");
        carry_json_put_bytes(to, choice->text.bytes != NULL ? choice->text.bytes : "", choice->text.length);
    } else {
        carry_json_add_text(to, "content", NULL);
    }
    carry_json_add_text(to, "refusal", NULL);
    if (choice->reasoning.length > 0) {
        carry_json_add_key(to, "reasoning_content");
        carry_json_put_bytes(to, choice->reasoning.bytes, choice->reasoning.length);
    }
    if (choice->call_count > 0) {
        add_calls(choice, to);
    }
    carry_json_end(to, '}');
}

static void write_whole(carry_serve_answer *answer, carry_json_text *to) {
    carry_serve_openai_head(answer, to, PREFIX, "chat.completion");
    carry_json_begin(to, "choices", '[');
    for (int64_t i = 0; i < answer->request.choices; i++) {
        carry_serve_choice *choice = &answer->runs[i].choice;
        carry_json_begin(to, NULL, '{');
        carry_json_add_integer(to, "index", i);
        add_message(choice, to);
        add_logprobs(answer, choice, to);
        carry_json_add_text(to, "finish_reason", carry_serve_openai_reason(choice));
        carry_json_end(to, '}');
    }
    carry_json_end(to, ']');
    carry_serve_openai_usage(answer, to);
    carry_json_end(to, '}');
}

/* Writes a chunk up to its delta, which stays open. */
static void open_chunk(const carry_serve_answer *answer, const carry_serve_choice *choice, carry_json_text *to) {
    carry_serve_openai_head(answer, to, PREFIX, CHUNK);
    carry_json_begin(to, "choices", '[');
    carry_json_begin(to, NULL, '{');
    carry_json_add_integer(to, "index", choice->index);
    carry_json_begin(to, "delta", '{');
}

static void send_chunk(carry_serve_answer *answer, carry_serve_choice *choice, carry_json_text *text,
                       const char *reason) {
    carry_json_end(text, '}');
    add_logprobs(answer, choice, text);
    carry_json_add_text(text, "finish_reason", reason);
    carry_json_end(text, '}');
    carry_json_end(text, ']');
    if (answer->request.includes_usage) {
        carry_json_add_text(text, "usage", NULL);
    }
    carry_json_end(text, '}');
    carry_serve_send(answer, NULL, text);
    carry_json_text_free(text);
}

static void begin(carry_serve_answer *answer) {
    for (int64_t i = 0; i < answer->request.choices; i++) {
        carry_serve_choice *choice = &answer->runs[i].choice;
        carry_json_text text = {0};
        const size_t tokens = choice->token_count;
        choice->token_count = 0; /* the tokens belong to the next part */
        open_chunk(answer, choice, &text);
        carry_json_add_text(&text, "role", "assistant");
        carry_json_add_text(&text, "content", "");
        send_chunk(answer, choice, &text, NULL);
        choice->token_count = tokens;
    }
}

static void add_call_part(const carry_serve_part *part, carry_json_text *to) {
    carry_json_begin(to, "tool_calls", '[');
    carry_json_begin(to, NULL, '{');
    carry_json_add_integer(to, "index", part->call);
    if (part->kind == CARRY_PART_CALL) {
        carry_json_add_text(to, "id", part->id);
        carry_json_add_text(to, "type", "function");
    }
    carry_json_begin(to, "function", '{');
    if (part->kind == CARRY_PART_CALL) {
        carry_json_add_text(to, "name", part->name);
    }
    carry_json_add_key(to, "arguments");
    carry_json_put_bytes(to, part->kind == CARRY_PART_CALL ? "" : part->text,
                         part->kind == CARRY_PART_CALL ? 0 : part->length);
    carry_json_end(to, '}');
    carry_json_end(to, '}');
    carry_json_end(to, ']');
}

static void send_part(carry_serve_answer *answer, carry_serve_choice *choice, const carry_serve_part *part) {
    carry_json_text text = {0};
    open_chunk(answer, choice, &text);
    if (part->kind == CARRY_PART_CALL || part->kind == CARRY_PART_ARGUMENTS) {
        add_call_part(part, &text);
    } else {
        carry_json_add_key(&text, part->kind == CARRY_PART_TEXT ? "content" : "reasoning_content");
        carry_json_put_bytes(&text, part->text, part->length);
    }
    send_chunk(answer, choice, &text, NULL);
}

static void end_choice(carry_serve_answer *answer, carry_serve_choice *choice) {
    carry_json_text text = {0};
    open_chunk(answer, choice, &text);
    send_chunk(answer, choice, &text, carry_serve_openai_reason(choice));
}

static void end(carry_serve_answer *answer) {
    carry_serve_openai_end(answer, PREFIX, CHUNK);
}

const carry_serve_dialect carry_serve_openai_chat = {
    .name = "chat",
    .parse = carry_serve_openai_parse_chat,
    .write = write_whole,
    .begin = begin,
    .part = send_part,
    .end_choice = end_choice,
    .end = end,
    .fail = carry_serve_openai_fail,
    .write_error = carry_serve_openai_error,
};
