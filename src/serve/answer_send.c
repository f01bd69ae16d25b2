/* Output of answers: events with a bounded backlog, counts, and the text of tokens. */
#include <stdlib.h>
#include <string.h>

#include "serve/server_internal.h"

#define BACKLOG ((size_t)8 << 20) /* bytes that may wait for the client, beyond the queue of its response */

int64_t carry_serve_completion_tokens(const carry_serve_answer *a) {
    int64_t sum = 0;
    for (int64_t i = 0; i < a->request.choices; i++) {
        sum += a->runs[i].choice.completion_tokens;
    }
    return sum;
}

/* Counts the first choice only: the others use the prompt that it has cached. */
int64_t carry_serve_cached_tokens(const carry_serve_answer *a) {
    return a->runs[0].choice.cached_tokens;
}

/* Appends to the backlog. Returns false if it is too long, or if out of memory. */
static bool keep(carry_serve_answer *a, const char *bytes, size_t length) {
    if (length > BACKLOG - a->backlog_length) {
        return false;
    }
    if (a->backlog_length + length > a->backlog_capacity) {
        const size_t capacity = 2 * (a->backlog_length + length);
        unsigned char *grown = realloc(a->backlog, capacity);
        if (grown == NULL) {
            return false;
        }
        a->backlog = grown;
        a->backlog_capacity = capacity;
    }
    memcpy(a->backlog + a->backlog_length, bytes, length);
    a->backlog_length += length;
    return true;
}

/* Appends an event to the backlog; its data must be one line. */
static bool keep_event(carry_serve_answer *a, const char *name, const char *data, size_t length) {
    return (name == NULL || (keep(a, "event: ", 7) && keep(a, name, strlen(name)) && keep(a, "\n", 1))) &&
           keep(a, "data: ", 6) && keep(a, data, length) && keep(a, "\n\n", 2);
}

static void send(carry_serve_answer *a, const char *name, const char *data, size_t length) {
    carry_http_sent sent = CARRY_HTTP_FULL;
    if (a->is_over) {
        return;
    }
    if (!a->is_blocked) {
        sent = carry_http_event(a->response, name, data, length);
        a->is_blocked = sent == CARRY_HTTP_FULL;
    }
    if (sent == CARRY_HTTP_GONE || (sent == CARRY_HTTP_FULL && !keep_event(a, name, data, length))) {
        a->is_over = true;
        atomic_store(&a->is_gone, true); /* ends choices at their next token */
    }
}

void carry_serve_send(carry_serve_answer *a, const char *name, const carry_json_text *data) {
    if (data->failed) {
        a->is_over = true;
        atomic_store(&a->is_gone, true);
        return;
    }
    send(a, name, data->bytes, data->length);
}

void carry_serve_send_raw(carry_serve_answer *a, const char *name, const char *data) {
    send(a, name, data, strlen(data));
}

/* Returns the bytes of a token that is decoded alone; NULL without a tokenizer. */
static char *token_bytes(const carry_serve_answer *a, int32_t id, size_t *length) {
    const carry_tokenizer *tokenizer = a->server->engine->model.tokenizer;
    *length = 0;
    const char *bytes = tokenizer != NULL ? carry_tokenizer_token(tokenizer, id, length) : NULL;
    char *copy = bytes != NULL ? malloc(*length + 1) : NULL;
    if (copy == NULL) {
        return NULL;
    }
    if (carry_tokenizer_is_special(tokenizer, id)) {
        memcpy(copy, bytes, *length);
    } else {
        *length = carry_decode_token(tokenizer, id, false, copy);
    }
    return copy;
}

void carry_serve_put_token(const carry_serve_answer *a, carry_json_text *to, const char *key, int32_t id) {
    size_t length;
    char *bytes = token_bytes(a, id, &length);
    carry_json_add_key(to, key);
    if (bytes != NULL) {
        carry_json_put_bytes(to, bytes, length);
    } else {
        carry_json_put_raw(to, "\"token_id:%d\"", (int)id);
    }
    free(bytes);
}

void carry_serve_put_token_bytes(const carry_serve_answer *a, carry_json_text *to, const char *key, int32_t id) {
    size_t length;
    char *bytes = token_bytes(a, id, &length);
    if (bytes == NULL) {
        carry_json_add_text(to, key, NULL);
        return;
    }
    carry_json_begin(to, key, '[');
    for (size_t i = 0; i < length; i++) {
        carry_json_add_integer(to, NULL, (unsigned char)bytes[i]);
    }
    carry_json_end(to, ']');
    free(bytes);
}

size_t carry_serve_ready_tokens(const carry_serve_choice *choice) {
    const bool is_all = choice->is_ended && choice->reason != CARRY_REASON_STOP;
    size_t count = 0;
    while (count < choice->token_count && (is_all || choice->tokens[count].at < choice->text_length)) {
        count++;
    }
    return count;
}

void carry_serve_drop_tokens(carry_serve_choice *choice, size_t count) {
    choice->token_count -= count;
    if (choice->token_count > 0) {
        memmove(choice->tokens, choice->tokens + count, choice->token_count * sizeof *choice->tokens);
    }
}
