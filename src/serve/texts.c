/* POST /tokenize and /detokenize. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "core/context.h"
#include "serve/openai.h"
#include "serve/server_internal.h"

static void add_ids(carry_json_text *to, const int64_t *ids, int64_t count) {
    carry_json_begin(to, "tokens", '[');
    for (int64_t i = 0; i < count; i++) {
        carry_json_add_integer(to, NULL, ids[i]);
    }
    carry_json_end(to, ']');
}

/* Reads {"prompt": TEXT} or {"content": TEXT} as a text, or {"messages": [...]} as a chat. */
static bool read_texts(carry_serve_preparer *p, carry_serve_job *job, carry_serve_request *r,
                       carry_serve_refusal *refusal) {
    char *prompt = NULL;
    size_t length;
    r->body = carry_serve_parse_body(p, job, refusal);
    if (r->body == NULL) {
        return false;
    }
    const carry_json *text = carry_serve_member(r->body, "prompt");
    text = text != NULL ? text : carry_serve_member(r->body, "content");
    if (carry_serve_member(r->body, "messages") != NULL) {
        if (!carry_serve_openai_format(r, refusal) || !carry_serve_openai_messages(p->ctx, r, refusal)) {
            return false;
        }
    } else if (text == NULL || text->kind != CARRY_JSON_STRING) {
        return carry_serve_refuse(refusal, 400, "prompt", "expected a text as prompt, or messages");
    } else {
        r->text = text->as.text.bytes;
        r->text_length = text->as.text.length;
    }
    const bool is_done = carry_serve_tokenize(p, r, &prompt, &length, refusal);
    free(prompt);
    return is_done;
}

void carry_serve_tokenize_text(carry_serve_preparer *p, carry_serve_job *job) {
    carry_lm_server *s = p->server;
    carry_serve_request r;
    carry_serve_refusal refusal = {0};
    carry_json_text text = {0};
    carry_serve_request_init(&r, NULL);
    if (read_texts(p, job, &r, &refusal)) {
        carry_json_begin(&text, NULL, '{');
        carry_json_add_integer(&text, "count", r.id_count);
        carry_json_add_integer(&text, "max_model_len", carry_engine_context(s->engine));
        add_ids(&text, r.ids, r.id_count);
        carry_json_end(&text, '}');
        carry_serve_reply_json(s, job->response, 200, &text);
    } else {
        carry_serve_reply_refusal(s, job->response, NULL, &refusal);
    }
    carry_serve_request_free(&r);
}

/* Reads a list of token ids. Returns NULL with a refusal. */
static uint32_t *read_ids(const carry_json *list, int64_t size, carry_serve_refusal *refusal) {
    const int64_t count = carry_json_count(list);
    uint32_t *ids = list != NULL && list->kind == CARRY_JSON_ARRAY ? calloc((size_t)count + 1, sizeof *ids) : NULL;
    int64_t at = 0;
    if (ids == NULL) {
        (void)carry_serve_refuse(refusal, 400, "tokens", "tokens: expected a list of token ids");
        return NULL;
    }
    for (const carry_json *one = carry_json_first(list); one != NULL; one = one->next) {
        if (one->kind != CARRY_JSON_NUMBER || !one->whole || one->as.number.integer < 0 ||
            one->as.number.integer >= size) {
            (void)carry_serve_refuse(refusal, 400, "tokens", "tokens[%" PRId64 "]: expected an id from 0 to %" PRId64,
                                     at, size - 1);
            free(ids);
            return NULL;
        }
        ids[at++] = (uint32_t)one->as.number.integer;
    }
    return ids;
}

/* Decodes tokens to UTF-8; the caller frees the result. NULL: out of memory. */
static char *decode(carry_ctx *ctx, const carry_tokenizer *tokenizer, const uint32_t *ids, size_t count,
                    size_t *length) {
    char *bytes;
    size_t raw;
    carry_unfold unfold = {0};
    if (carry_decode(ctx, tokenizer, &bytes, &raw, ids, count, false) != CARRY_OK) {
        return NULL;
    }
    char *text = malloc(CARRY_UNFOLD_GROWTH * (raw + 4));
    if (text != NULL) {
        *length = carry_unfold_bytes(&unfold, text, bytes, raw);
        *length += carry_unfold_end(&unfold, text + *length);
    }
    free(bytes);
    return text;
}

void carry_serve_detokenize(carry_serve_preparer *p, carry_serve_job *job) {
    carry_lm_server *s = p->server;
    const carry_tokenizer *tokenizer = s->engine->model.tokenizer;
    carry_serve_refusal refusal = {0};
    carry_json *body = carry_serve_parse_body(p, job, &refusal);
    uint32_t *ids = NULL;
    char *text = NULL;
    size_t length = 0;
    if (body != NULL && tokenizer == NULL) {
        (void)carry_serve_refuse(&refusal, 400, "tokens", "this model has no tokenizer");
    } else if (body != NULL) {
        ids = read_ids(carry_serve_member(body, "tokens"), carry_tokenizer_size(tokenizer), &refusal);
    }
    if (ids != NULL) {
        text = decode(p->ctx, tokenizer, ids, (size_t)carry_json_count(carry_json_find(body, "tokens")), &length);
    }
    if (text != NULL) {
        carry_json_text reply = {0};
        carry_json_begin(&reply, NULL, '{');
        carry_json_add_key(&reply, "prompt");
        carry_json_put_bytes(&reply, text, length);
        carry_json_end(&reply, '}');
        carry_serve_reply_json(s, job->response, 200, &reply);
    } else {
        (void)carry_serve_refuse(&refusal, 500, "", "out of memory");
        carry_serve_reply_refusal(s, job->response, NULL, &refusal);
    }
    free(text);
    free(ids);
    carry_json_free(body);
}
