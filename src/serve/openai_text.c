/* POST /v1/completions. */
#include "serve/openai.h"

#define PREFIX "cmpl-"
#define OBJECT "text_completion"

typedef enum column { COLUMN_TOKENS, COLUMN_LOGPROBS, COLUMN_TOP, COLUMN_OFFSETS } column;

static void add_column(const carry_serve_answer *answer, const carry_serve_choice *choice, carry_json_text *to,
                       const char *key, column which, size_t count) {
    carry_json_begin(to, key, '[');
    for (size_t i = 0; i < count; i++) {
        const carry_serve_token *token = &choice->tokens[i];
        if (which == COLUMN_TOKENS) {
            carry_serve_put_token(answer, to, NULL, token->id);
        } else if (which == COLUMN_LOGPROBS) {
            carry_json_add_number(to, NULL, (double)token->logprob);
        } else if (which == COLUMN_OFFSETS) {
            carry_json_add_integer(to, NULL, token->at);
        } else {
            carry_json_begin(to, NULL, '{');
            for (int j = 0; j < token->top_count; j++) {
                carry_serve_put_token(answer, to, NULL, token->top[j]);
                carry_json_put_raw(to, ":%.6f", (double)token->top_logprob[j]);
            }
            carry_json_end(to, '}');
        }
    }
    carry_json_end(to, ']');
}

static void add_logprobs(const carry_serve_answer *answer, carry_serve_choice *choice, carry_json_text *to) {
    if (answer->request.logprobs < 0) {
        carry_json_add_text(to, "logprobs", NULL);
        return;
    }
    const size_t count = carry_serve_ready_tokens(choice);
    carry_json_begin(to, "logprobs", '{');
    add_column(answer, choice, to, "tokens", COLUMN_TOKENS, count);
    add_column(answer, choice, to, "token_logprobs", COLUMN_LOGPROBS, count);
    add_column(answer, choice, to, "top_logprobs", COLUMN_TOP, count);
    add_column(answer, choice, to, "text_offset", COLUMN_OFFSETS, count);
    carry_json_end(to, '}');
    carry_serve_drop_tokens(choice, count);
}

static void write_whole(carry_serve_answer *answer, carry_json_text *to) {
    const carry_serve_request *r = &answer->request;
    carry_serve_openai_head(answer, to, PREFIX, OBJECT);
    carry_json_begin(to, "choices", '[');
    for (int64_t i = 0; i < r->choices; i++) {
        carry_serve_choice *choice = &answer->runs[i].choice;
        carry_json_text text = {0};
        if (r->echoes) {
            carry_json_text_append(&text, r->text, r->text_length);
        }
        if (choice->text.length > 0) {
            carry_json_text_append(&text, choice->text.bytes, choice->text.length);
        }
        carry_json_begin(to, NULL, '{');
        carry_json_add_integer(to, "index", i);
        carry_json_add_key(to, "text");
        carry_json_put_bytes(to, text.bytes != NULL ? text.bytes : "", text.length);
        add_logprobs(answer, choice, to);
        carry_json_add_text(to, "finish_reason", carry_serve_openai_reason(choice));
        carry_json_end(to, '}');
        to->failed = to->failed || text.failed;
        carry_json_text_free(&text);
    }
    carry_json_end(to, ']');
    carry_serve_openai_usage(answer, to);
    carry_json_end(to, '}');
}

static void send_text(carry_serve_answer *answer, carry_serve_choice *choice, const char *bytes, size_t length,
                      const char *reason) {
    carry_json_text text = {0};
    carry_serve_openai_head(answer, &text, PREFIX, OBJECT);
    carry_json_begin(&text, "choices", '[');
    carry_json_begin(&text, NULL, '{');
    carry_json_add_integer(&text, "index", choice->index);
    carry_json_add_key(&text, "text");
    carry_json_put_bytes(&text, bytes, length);
    add_logprobs(answer, choice, &text);
    carry_json_add_text(&text, "finish_reason", reason);
    carry_json_end(&text, '}');
    carry_json_end(&text, ']');
    if (answer->request.includes_usage) {
        carry_json_add_text(&text, "usage", NULL);
    }
    carry_json_end(&text, '}');
    carry_serve_send(answer, NULL, &text);
    carry_json_text_free(&text);
}

static void begin(carry_serve_answer *answer) {
    for (int64_t i = 0; answer->request.echoes && i < answer->request.choices; i++) {
        send_text(answer, &answer->runs[i].choice, answer->request.text, answer->request.text_length, NULL);
    }
}

static void send_part(carry_serve_answer *answer, carry_serve_choice *choice, const carry_serve_part *part) {
    if (part->kind == CARRY_PART_TEXT) {
        send_text(answer, choice, part->text, part->length, NULL);
    }
}

static void end_choice(carry_serve_answer *answer, carry_serve_choice *choice) {
    send_text(answer, choice, "", 0, carry_serve_openai_reason(choice));
}

static void end(carry_serve_answer *answer) {
    carry_serve_openai_end(answer, PREFIX, OBJECT);
}

const carry_serve_dialect carry_serve_openai_text = {
    .name = "completions",
    .parse = carry_serve_openai_parse_text,
    .write = write_whole,
    .begin = begin,
    .part = send_part,
    .end_choice = end_choice,
    .end = end,
    .fail = carry_serve_openai_fail,
    .write_error = carry_serve_openai_error,
};
