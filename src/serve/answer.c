/* Answers: turns events of the engine into parts, and parts into the response. Runs on the output thread. */
#include "serve/answer.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "serve/server_internal.h"

static void free_choice(carry_serve_choice *choice) {
    carry_json_text_free(&choice->text);
    carry_json_text_free(&choice->reasoning);
    for (int i = 0; i < choice->call_count; i++) {
        free(choice->calls[i].id);
        free(choice->calls[i].name);
        carry_json_text_free(&choice->calls[i].arguments);
    }
    free(choice->calls);
    free(choice->tokens);
}

void carry_serve_answer_free(carry_serve_answer *a) {
    for (int64_t i = 0; i < a->request.choices && a->runs != NULL; i++) {
        carry_serve_run *run = &a->runs[i];
        free_choice(&run->choice);
        carry_serve_parser_close(run->parser);
        carry_serve_constraint_free(run->constraint);
        free(run->last);
    }
    free(a->runs);
    free(a->prompt);
    free(a->backlog);
    free(a->drained);
    carry_serve_request_free(&a->request);
    free(a);
}

/* Takes ownership of the contents of the request. */
carry_serve_answer *carry_serve_answer_new(carry_lm_server *s, carry_http_response *response,
                                           carry_serve_request *request) {
    carry_serve_answer *a = calloc(1, sizeof *a);
    if (a == NULL) {
        return NULL;
    }
    a->server = s;
    a->response = response;
    a->request = *request;
    *request = (carry_serve_request){0};
    a->model = s->model;
    a->created = (int64_t)time(NULL);
    a->unfinished = a->request.choices + 1;
    carry_serve_make_id(s, a->id);
    a->runs = calloc((size_t)a->request.choices, sizeof *a->runs);
    a->drained = calloc(1, sizeof *a->drained);
    bool is_whole = a->runs != NULL && a->drained != NULL;
    for (int64_t i = 0; is_whole && i < a->request.choices; i++) {
        a->runs[i].answer = a;
        a->runs[i].choice.index = i;
        a->runs[i].last = calloc(1, sizeof *a->runs[i].last);
        is_whole = a->runs[i].last != NULL;
    }
    if (!is_whole) {
        carry_serve_answer_free(a);
        return NULL;
    }
    *a->drained = (carry_serve_message){.kind = CARRY_MESSAGE_DRAINED, .answer = a};
    return a;
}

/* Parts of the text. */

static carry_serve_call *add_call(carry_serve_choice *choice, const carry_serve_part *part) {
    carry_serve_call *grown = realloc(choice->calls, (size_t)(choice->call_count + 1) * sizeof *grown);
    if (grown == NULL) {
        return NULL;
    }
    choice->calls = grown;
    carry_serve_call *call = &grown[choice->call_count++];
    *call = (carry_serve_call){.id = strdup(part->id), .name = strdup(part->name)};
    return call->id != NULL && call->name != NULL ? call : NULL;
}

/* False: out of memory. */
static bool collect(carry_serve_choice *choice, const carry_serve_part *part, bool is_streamed) {
    if (part->kind == CARRY_PART_CALL) {
        return add_call(choice, part) != NULL;
    }
    if (is_streamed || part->length == 0) {
        return true;
    }
    if (part->kind == CARRY_PART_ARGUMENTS && part->call >= choice->call_count) {
        return true;
    }
    carry_json_text *to = part->kind == CARRY_PART_TEXT        ? &choice->text
                          : part->kind == CARRY_PART_REASONING ? &choice->reasoning
                                                               : &choice->calls[part->call].arguments;
    carry_json_text_append(to, part->text, part->length);
    return !to->failed;
}

static void begin_stream(carry_serve_answer *a) {
    if (!a->has_begun && !a->is_over) {
        a->has_begun = true;
        carry_serve_count(a->server, 200);
        if (carry_http_begin(a->response, 200, "text/event-stream") == CARRY_HTTP_GONE) {
            a->is_over = true;
        } else {
            a->request.dialect->begin(a);
        }
    }
}

/* Cancels all choices; the response ends when they have ended. */
static void give_up(carry_serve_answer *a) {
    a->is_over = true;
    for (int64_t i = 0; i < a->request.choices; i++) {
        const uint64_t id = atomic_load(&a->runs[i].id);
        if (id != 0) {
            carry_engine_cancel(a->server->engine, id);
        }
    }
}

static void fail(carry_serve_answer *a, int status, const char *message) {
    if (!a->is_over) {
        (void)carry_serve_refuse(&a->refusal, status, "", "%s", message);
        if (a->has_begun) {
            a->request.dialect->fail(a, &a->refusal);
        }
        give_up(a);
    }
}

static void on_part(void *user, const carry_serve_part *part) {
    carry_serve_run *run = user;
    carry_serve_answer *a = run->answer;
    if (a->is_over) {
        return;
    }
    if (!collect(&run->choice, part, a->request.is_streamed)) {
        fail(a, 500, "out of memory");
    } else if (a->request.is_streamed) {
        begin_stream(a);
        if (!a->is_over) {
            a->request.dialect->part(a, &run->choice, part);
        }
    }
}

static bool keep_token(carry_serve_choice *choice, const carry_serve_token *token) {
    if (choice->token_count == choice->token_capacity) {
        const size_t capacity = choice->token_capacity > 0 ? 2 * choice->token_capacity : 16;
        carry_serve_token *grown = realloc(choice->tokens, capacity * sizeof *grown);
        if (grown == NULL) {
            return false;
        }
        choice->tokens = grown;
        choice->token_capacity = capacity;
    }
    choice->tokens[choice->token_count++] = *token;
    return true;
}

/* The end of the response. */

/* Frees the answer once no message about it is left. The response has ended, so no callback posts another message. */
static void release(carry_serve_answer *a) {
    a->drained->kind = CARRY_MESSAGE_FREE;
    if (!atomic_exchange(&a->is_draining, true)) { /* otherwise the message is in the queue already */
        carry_serve_post_one(a->server, a->drained);
    }
}

static void end_response(carry_serve_answer *a) {
    carry_lm_server *s = a->server;
    if (a->is_blocked && a->backlog_length > 0 && !atomic_load(&a->is_gone)) {
        a->is_ending = true; /* the response ends when the client has read the output before it */
        return;
    }
    if (a->refusal.status != 0 && !a->has_begun) {
        carry_serve_reply_refusal(s, a->response, a->request.dialect, &a->refusal);
    } else {
        const bool is_cut = a->is_over && a->refusal.status == 0;
        (void)atomic_fetch_add(&s->counters.disconnected, is_cut);
        (is_cut ? carry_http_abort : carry_http_end)(a->response);
        (void)atomic_fetch_sub(&s->answers, 1);
    }
    release(a);
}

static void finish(carry_serve_answer *a) {
    if (!a->is_over && !a->request.is_streamed) {
        carry_json_text body = {0};
        a->request.dialect->write(a, &body);
        carry_serve_reply_json(a->server, a->response, 200, &body);
        release(a);
        return;
    }
    if (!a->is_over) {
        begin_stream(a);
    }
    if (!a->is_over) {
        a->request.dialect->end(a);
    }
    end_response(a);
}

/* Messages. */

static void end_choice(carry_serve_answer *a, carry_serve_run *run, const carry_serve_message *m) {
    carry_lm_server *s = a->server;
    carry_serve_choice *choice = &run->choice;
    carry_serve_parser_end(run->parser, on_part, run);
    choice->is_ended = true;
    choice->reason = m->reason;
    choice->stop = m->stop;
    choice->completion_tokens = m->tokens;
    choice->cached_tokens = m->cached_tokens;
    if (atomic_load(&a->is_gone)) {
        a->is_over = true;
    } else if (m->reason == CARRY_REASON_FAILED) {
        fail(a, m->status == CARRY_ESIZE ? 400 : 500, m->failure);
    } else if (m->reason == CARRY_REASON_CANCELLED) {
        fail(a, 503, "the request was cancelled");
    }
    if (m->tokens > 0) {
        carry_serve_observe(&s->counters.first, m->first_s);
        carry_serve_observe(&s->counters.whole, m->seconds);
    }
    if (m->tokens > 1) {
        carry_serve_observe(&s->counters.between, (m->seconds - m->first_s) / (double)(m->tokens - 1));
    }
    if (!a->is_over && a->request.is_streamed) {
        begin_stream(a);
        if (!a->is_over) {
            a->request.dialect->end_choice(a, choice);
        }
    }
    a->unfinished--;
}

static void take_event(carry_serve_answer *a, const carry_serve_message *m) {
    carry_serve_run *run = m->run;
    if (m->has_token && !a->is_over && !keep_token(&run->choice, &m->token)) {
        fail(a, 500, "out of memory");
    }
    run->choice.text_length += (int64_t)m->length;
    if (m->length > 0) {
        carry_serve_parser_put(run->parser, m->text, m->length, on_part, run);
    }
    if (m->is_end) {
        end_choice(a, run, m);
    }
}

int carry_serve_status_of(carry_status status, const char *message) {
    const bool is_full = status == CARRY_ESIZE && strstr(message, "the queue is full") != NULL;
    return is_full ? 429 : status == CARRY_EMEMORY ? 500 : 400;
}

static void take_submitted(carry_serve_answer *a, const carry_serve_message *m) {
    a->unfinished -= 1 + a->request.choices - m->tokens; /* the extra one, and choices that were not accepted */
    if (m->status != CARRY_OK && !a->is_over) {
        fail(a, carry_serve_status_of(m->status, m->failure), m->failure);
    } else if (atomic_load(&a->is_gone)) {
        a->is_over = true;
    }
}

static void take_drained(carry_serve_answer *a) {
    atomic_store(&a->is_draining, false);
    a->is_blocked = false;
    if (a->backlog_length > 0) {
        (void)carry_http_write(a->response, a->backlog, a->backlog_length); /* accepted whole: the queue is empty */
        a->backlog_length = 0;
    }
    if (a->is_ending) {
        end_response(a);
    }
}

void carry_serve_answer_take(carry_serve_answer *a, carry_serve_message *m) {
    switch (m->kind) {
    case CARRY_MESSAGE_FREE:
        carry_serve_answer_free(a); /* frees the message too */
        return;
    case CARRY_MESSAGE_DRAINED:
        take_drained(a);
        return;
    case CARRY_MESSAGE_SUBMITTED:
        take_submitted(a, m);
        break;
    case CARRY_MESSAGE_EVENT:
        take_event(a, m);
        break;
    }
    free(m);
    if (a->unfinished == 0) {
        finish(a);
    }
}
