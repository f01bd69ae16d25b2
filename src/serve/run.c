/* The engine's thread: runs steps and commands, and sends events to the output thread, one batch per step. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "core/clock.h"
#include "core/context.h"
#include "serve/server_internal.h"

#define IDLE 0.1   /* seconds between calls of should_drain */
#define LINGER 2.0 /* seconds in which the last responses may still reach their clients */

void carry_serve_command_post(carry_lm_server *s, carry_serve_command *command) {
    command->next = NULL;
    (void)pthread_mutex_lock(&s->lock);
    *(s->last_command != NULL ? &s->last_command->next : &s->commands) = command;
    s->last_command = command;
    (void)pthread_mutex_unlock(&s->lock);
    carry_engine_cancel(s->engine, 0); /* wakes the engine's thread; no request has id 0 */
}

static void run_commands(carry_lm_server *s) {
    (void)pthread_mutex_lock(&s->lock);
    carry_serve_command *command = s->commands;
    s->commands = s->last_command = NULL;
    (void)pthread_mutex_unlock(&s->lock);
    for (carry_serve_command *next; command != NULL; command = next) {
        next = command->next;
        command->run(s, command);
    }
}

/* Returns the text of an event. Without a tokenizer, it is the token id. */
static size_t text_of(const carry_serve_answer *answer, const carry_engine_event *event, const char **text,
                      char digits[24]) {
    *text = event->text;
    if (answer->server->engine->model.tokenizer != NULL || event->token < 0) {
        return event->text_bytes;
    }
    *text = digits;
    return (size_t)snprintf(digits, 24, "%lld ", (long long)event->token);
}

bool carry_serve_on_event(void *user, const carry_engine_event *event) {
    carry_serve_run *run = user;
    carry_serve_answer *answer = run->answer;
    const bool is_end = event->token < 0;
    const bool is_gone = atomic_load(&answer->is_gone);
    const bool has_token = !is_end && answer->request.logprobs >= 0;
    char digits[24];
    const char *text;
    size_t length = text_of(answer, event, &text, digits);
    if (!is_end && (is_gone || (length == 0 && !has_token))) {
        return !is_gone;
    }
    carry_serve_message *m = malloc(sizeof *m + length);
    if (m == NULL && !is_end) {
        return false;
    }
    if (m == NULL) { /* the end of a choice must not be lost */
        m = run->last;
        run->last = NULL;
        length = 0;
    }
    *m = (carry_serve_message){.kind = CARRY_MESSAGE_EVENT,
                               .answer = answer,
                               .run = run,
                               .is_end = is_end,
                               .reason = event->reason,
                               .stop = event->stop,
                               .status = event->status,
                               .prompt_tokens = event->prompt_tokens,
                               .cached_tokens = event->cached_tokens,
                               .tokens = event->tokens,
                               .first_s = event->first_s,
                               .seconds = event->seconds,
                               .has_token = has_token,
                               .length = length};
    if (m->length > 0) {
        memcpy(m->text, text, m->length);
    }
    if (is_end) {
        (void)snprintf(m->failure, sizeof m->failure, "%s", event->message);
    }
    if (has_token) {
        m->token = (carry_serve_token){.id = (int32_t)event->token,
                                       .logprob = (float)event->logprob,
                                       .top_count = event->top_count,
                                       .at = event->text_before};
        for (int i = 0; i < event->top_count; i++) {
            m->token.top[i] = event->top_tokens[i];
            m->token.top_logprob[i] = event->top_logprobs[i];
        }
    }
    carry_serve_append(&answer->server->batch, m);
    return true;
}

/* Finds the tokens that end texts, and those that end answers in chats. */
static void find_ends(carry_lm_server *s) {
    const carry_engine *e = s->engine;
    bool has_end = false;
    for (int64_t i = 0; i < e->end_count; i++) {
        s->ends[s->end_count++] = e->ends[i];
        has_end = has_end || (s->has_chat && e->ends[i] == s->chat.end);
    }
    s->chat_end_count = s->end_count;
    if (s->has_chat && s->chat.end >= 0 && !has_end) {
        s->ends[s->chat_end_count++] = s->chat.end;
    }
}

static void open_chat(carry_lm_server *s) {
    carry_ctx *ctx = s->engine->ctx;
    if (s->engine->model.tokenizer == NULL) {
        (void)snprintf(s->no_chat, sizeof s->no_chat,
                       "this model has no tokenizer: use /v1/completions with token ids");
        return;
    }
    s->has_chat = carry_chat_open(ctx, &s->chat, s->engine->model.tokenizer) == CARRY_OK;
    if (!s->has_chat) {
        (void)snprintf(s->no_chat, sizeof s->no_chat, "chats are not possible: %.200s", carry_ctx_error(ctx));
        carry_log(ctx, CARRY_LOG_WARNING, "%s; /v1/completions works", s->no_chat);
    }
}

static void keep_statistics(carry_lm_server *s) {
    carry_engine_stats stats = {CARRY_INIT(carry_engine_stats)};
    carry_engine_statistics(s->engine, &stats);
    (void)pthread_mutex_lock(&s->lock);
    s->stats = stats;
    (void)pthread_mutex_unlock(&s->lock);
}

/* Waits for responses that have ended but may not have been sent. */
static void linger(carry_lm_server *s) {
    const double until = carry_seconds() + LINGER;
    do {
        carry_http_wake(s->http);
        (void)nanosleep(&(struct timespec){.tv_nsec = 20000000}, NULL);
    } while (atomic_load(&s->connections) > 0 && carry_seconds() < until);
}

carry_status carry_lm_server_run(carry_lm_server *s, carry_engine *engine, bool (*should_drain)(void)) {
    carry_status status = CARRY_OK;
    s->engine = engine;
    open_chat(s);
    find_ends(s);
    carry_serve_read_defaults(s);
    keep_statistics(s);
    atomic_store(&s->phase, CARRY_SERVE_READY);
    if (s->options.on_ready != NULL) {
        s->options.on_ready(s->options.user);
    }
    for (bool is_busy = false; status == CARRY_OK;) {
        if (should_drain() && atomic_load(&s->phase) == CARRY_SERVE_READY) {
            atomic_store(&s->phase, CARRY_SERVE_DRAINING);
        }
        if (!is_busy && atomic_load(&s->phase) == CARRY_SERVE_DRAINING && atomic_load(&s->answers) == 0) {
            linger(s);
            break;
        }
        run_commands(s);
        status = carry_engine_step(engine, &is_busy);
        carry_serve_post(s, &s->batch);
        keep_statistics(s);
        if (status == CARRY_OK && !is_busy) {
            (void)carry_engine_wait(engine, IDLE);
        }
    }
    atomic_store(&s->phase, CARRY_SERVE_DRAINING);
    return status;
}
