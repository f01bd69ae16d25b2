/* Writes answers in Anthropic's format: a list of content blocks. In a stream, each block has a start, deltas and an
   end. */
#include "serve/anthropic.h"

enum { NO_BLOCK, TEXT_BLOCK, THINKING_BLOCK, TOOL_BLOCK };

static const char *reason_of(const carry_serve_choice *choice) {
    if (choice->reason == CARRY_REASON_LENGTH || choice->reason == CARRY_REASON_CONTEXT) {
        return "max_tokens";
    }
    return choice->call_count > 0 ? "tool_use" : choice->reason == CARRY_REASON_STOP ? "stop_sequence" : "end_turn";
}

static void add_reason(const carry_serve_answer *answer, const carry_serve_choice *choice, carry_json_text *to) {
    const carry_serve_request *r = &answer->request;
    carry_json_add_text(to, "stop_reason", reason_of(choice));
    carry_json_add_text(to, "stop_sequence",
                        choice->reason == CARRY_REASON_STOP && choice->stop < r->stop_count ? r->stops[choice->stop]
                                                                                            : NULL);
}

static void add_usage(const carry_serve_answer *answer, carry_json_text *to) {
    const int64_t cached = carry_serve_cached_tokens(answer);
    carry_json_begin(to, "usage", '{');
    carry_json_add_integer(to, "input_tokens", answer->prompt_tokens - cached);
    carry_json_add_integer(to, "cache_creation_input_tokens", 0);
    carry_json_add_integer(to, "cache_read_input_tokens", cached);
    carry_json_add_integer(to, "output_tokens", carry_serve_completion_tokens(answer));
    carry_json_end(to, '}');
}

static void add_head(const carry_serve_answer *answer, carry_json_text *to) {
    carry_json_put_raw(to, "\"id\":\"msg_%s\"", answer->id);
    carry_json_add_text(to, "type", "message");
    carry_json_add_text(to, "role", "assistant");
    carry_json_add_text(to, "model", answer->model);
}

static void add_bytes(carry_json_text *to, const char *key, const carry_json_text *text) {
    carry_json_add_key(to, key);
    carry_json_put_bytes(to, text->bytes != NULL ? text->bytes : "", text->length);
}

static void write_whole(carry_serve_answer *answer, carry_json_text *to) {
    const carry_serve_choice *choice = &answer->runs[0].choice;
    carry_json_begin(to, NULL, '{');
    add_head(answer, to);
    carry_json_begin(to, "content", '[');
    if (choice->reasoning.length > 0) {
        carry_json_begin(to, NULL, '{');
        carry_json_add_text(to, "type", "thinking");
        add_bytes(to, "thinking", &choice->reasoning);
        carry_json_add_text(to, "signature", "");
        carry_json_end(to, '}');
    }
    if (choice->text.length > 0 || choice->call_count == 0) {
        carry_json_begin(to, NULL, '{');
        carry_json_add_text(to, "type", "text");
        add_bytes(to, "text", &choice->text);
        carry_json_end(to, '}');
    }
    for (int i = 0; i < choice->call_count; i++) {
        const carry_serve_call *call = &choice->calls[i];
        carry_json *input = NULL;
        carry_ctx *ctx = NULL;
        const bool is_json =
            call->arguments.bytes != NULL &&
            carry_ctx_new(&ctx, &(carry_ctx_options){CARRY_INIT(carry_ctx_options), .threads = 1}) == CARRY_OK &&
            carry_json_parse(ctx, &input, call->arguments.bytes, call->arguments.length, "input") == CARRY_OK;
        carry_json_begin(to, NULL, '{');
        carry_json_add_text(to, "type", "tool_use");
        carry_json_add_text(to, "id", call->id);
        carry_json_add_text(to, "name", call->name);
        if (is_json && input->kind == CARRY_JSON_OBJECT) {
            carry_json_add_node(to, "input", input);
        } else { /* cut off: the input must be an object */
            carry_json_begin(to, "input", '{');
            carry_json_end(to, '}');
        }
        carry_json_end(to, '}');
        carry_json_free(input);
        carry_ctx_free(ctx);
    }
    carry_json_end(to, ']');
    add_reason(answer, choice, to);
    add_usage(answer, to);
    carry_json_end(to, '}');
}

static void open_event(carry_json_text *to, const char *type) {
    carry_json_begin(to, NULL, '{');
    carry_json_add_text(to, "type", type);
}

static void send(carry_serve_answer *answer, const char *type, carry_json_text *text) {
    carry_json_end(text, '}');
    carry_serve_send(answer, type, text);
    carry_json_text_free(text);
}

static void begin(carry_serve_answer *answer) {
    carry_json_text text = {0};
    open_event(&text, "message_start");
    carry_json_begin(&text, "message", '{');
    add_head(answer, &text);
    carry_json_begin(&text, "content", '[');
    carry_json_end(&text, ']');
    carry_json_add_text(&text, "stop_reason", NULL);
    carry_json_add_text(&text, "stop_sequence", NULL);
    add_usage(answer, &text);
    carry_json_end(&text, '}');
    send(answer, "message_start", &text);
}

static void end_block(carry_serve_answer *answer, carry_serve_choice *choice) {
    if (choice->block_kind != NO_BLOCK) {
        carry_json_text text = {0};
        open_event(&text, "content_block_stop");
        carry_json_add_integer(&text, "index", choice->block++);
        send(answer, "content_block_stop", &text);
        choice->block_kind = NO_BLOCK;
    }
}

static void begin_block(carry_serve_answer *answer, carry_serve_choice *choice, int kind,
                        const carry_serve_part *part) {
    carry_json_text text = {0};
    end_block(answer, choice);
    choice->block_kind = kind;
    open_event(&text, "content_block_start");
    carry_json_add_integer(&text, "index", choice->block);
    carry_json_begin(&text, "content_block", '{');
    if (kind == TOOL_BLOCK) {
        carry_json_add_text(&text, "type", "tool_use");
        carry_json_add_text(&text, "id", part->id);
        carry_json_add_text(&text, "name", part->name);
        carry_json_begin(&text, "input", '{');
        carry_json_end(&text, '}');
    } else {
        carry_json_add_text(&text, "type", kind == TEXT_BLOCK ? "text" : "thinking");
        carry_json_add_text(&text, kind == TEXT_BLOCK ? "text" : "thinking", "");
        if (kind == THINKING_BLOCK) {
            carry_json_add_text(&text, "signature", "");
        }
    }
    carry_json_end(&text, '}');
    send(answer, "content_block_start", &text);
}

static void send_part(carry_serve_answer *answer, carry_serve_choice *choice, const carry_serve_part *part) {
    static const struct {
        int block;
        const char *delta, *key;
    } forms[] = {
        [CARRY_PART_TEXT] = {TEXT_BLOCK, "text_delta", "text"},
        [CARRY_PART_REASONING] = {THINKING_BLOCK, "thinking_delta", "thinking"},
        [CARRY_PART_CALL] = {TOOL_BLOCK, NULL, NULL},
        [CARRY_PART_ARGUMENTS] = {TOOL_BLOCK, "input_json_delta", "partial_json"},
    };
    carry_json_text text = {0};
    if (part->kind == CARRY_PART_CALL || choice->block_kind != forms[part->kind].block) {
        begin_block(answer, choice, forms[part->kind].block, part);
    }
    if (part->kind == CARRY_PART_CALL) {
        return;
    }
    open_event(&text, "content_block_delta");
    carry_json_add_integer(&text, "index", choice->block);
    carry_json_begin(&text, "delta", '{');
    carry_json_add_text(&text, "type", forms[part->kind].delta);
    carry_json_add_key(&text, forms[part->kind].key);
    carry_json_put_bytes(&text, part->text, part->length);
    carry_json_end(&text, '}');
    send(answer, "content_block_delta", &text);
}

static void end_choice(carry_serve_answer *answer, carry_serve_choice *choice) {
    carry_json_text text = {0};
    end_block(answer, choice);
    open_event(&text, "message_delta");
    carry_json_begin(&text, "delta", '{');
    add_reason(answer, choice, &text);
    carry_json_end(&text, '}');
    add_usage(answer, &text);
    send(answer, "message_delta", &text);
}

static void end(carry_serve_answer *answer) {
    carry_json_text text = {0};
    open_event(&text, "message_stop");
    send(answer, "message_stop", &text);
}

static const char *type_of(int status) {
    switch (status) {
    case 401:
        return "authentication_error";
    case 403:
        return "permission_error";
    case 404:
        return "not_found_error";
    case 413:
        return "request_too_large";
    case 429:
        return "rate_limit_error";
    case 503:
        return "overloaded_error";
    default:
        return status >= 500 ? "api_error" : "invalid_request_error";
    }
}

static void write_error(const carry_serve_refusal *refusal, carry_json_text *body) {
    carry_json_begin(body, NULL, '{');
    carry_json_add_text(body, "type", "error");
    carry_json_begin(body, "error", '{');
    carry_json_add_text(body, "type", type_of(refusal->status));
    carry_json_add_text(body, "message", refusal->message);
    carry_json_end(body, '}');
    carry_json_end(body, '}');
}

static void fail(carry_serve_answer *answer, const carry_serve_refusal *refusal) {
    carry_json_text text = {0};
    write_error(refusal, &text);
    carry_serve_send(answer, "error", &text);
    carry_json_text_free(&text);
}

const carry_serve_dialect carry_serve_anthropic = {
    .name = "messages",
    .parse = carry_serve_anthropic_parse,
    .write = write_whole,
    .begin = begin,
    .part = send_part,
    .end_choice = end_choice,
    .end = end,
    .fail = fail,
    .write_error = write_error,
};
