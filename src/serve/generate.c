/* Parses, tokenizes and submits a request of a dialect: one request of the engine per choice. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "core/context.h"
#include "core/rng.h"
#include "serve/server_internal.h"

#define SEED_STEP 0x9E3779B97F4A7C15u /* difference between the seeds of two choices of a request */

void carry_serve_make_id(carry_lm_server *s, char id[40]) {
    const carry_words w = carry_philox(s->secret[0], s->secret[1], atomic_fetch_add(&s->next_id, 1));
    (void)snprintf(id, 40, "%08" PRIx32 "%08" PRIx32 "%08" PRIx32 "%08" PRIx32, w.word[0], w.word[1], w.word[2],
                   w.word[3]);
}

static bool check_model(const carry_lm_server *s, const carry_serve_request *r, carry_serve_refusal *refusal) {
    if (r->model != NULL && strcmp(r->model, s->model) != 0) {
        refusal->code = "model_not_found";
        return carry_serve_refuse(refusal, 404, "model", "there is no model '%.100s': this server has '%s'", r->model,
                                  s->model);
    }
    return true;
}

static bool check_prompt(const carry_lm_server *s, carry_serve_request *r, carry_serve_refusal *refusal) {
    const int64_t context = carry_engine_context(s->engine);
    const int64_t vocabulary = carry_engine_vocabulary(s->engine);
    const char *field = r->variables != NULL ? "messages" : "prompt";
    if (r->id_count < 1) {
        return carry_serve_refuse(refusal, 400, field, "the prompt is empty");
    }
    if (r->id_count >= context) {
        refusal->code = "context_length_exceeded";
        return carry_serve_refuse(refusal, 400, field,
                                  "the prompt has %" PRId64 " tokens, and the context of this server is %" PRId64
                                  " tokens",
                                  r->id_count, context);
    }
    for (int64_t i = 0; i < r->id_count; i++) {
        if (r->ids[i] < 0 || r->ids[i] >= vocabulary) {
            return carry_serve_refuse(refusal, 400, field, "token %" PRId64 ": this model has ids from 0 to %" PRId64,
                                      r->ids[i], vocabulary - 1);
        }
    }
    for (int64_t i = 0; i < r->bias_count; i++) {
        if (r->bias_tokens[i] >= vocabulary) {
            return carry_serve_refuse(refusal, 400, "logit_bias",
                                      "logit_bias has token %" PRId64 ": this model has ids from 0 to %" PRId64,
                                      r->bias_tokens[i], vocabulary - 1);
        }
    }
    if (r->choices > s->engine->queue) {
        return carry_serve_refuse(refusal, 400, "n",
                                  "n is %" PRId64 ": this server queues %" PRId64 " requests (--queue)", r->choices,
                                  s->engine->queue);
    }
    const int64_t most = context - r->id_count;
    r->max_tokens = r->max_tokens < 0 || r->max_tokens > most ? most : r->max_tokens;
    if (r->stop_count > 0 && s->engine->model.tokenizer == NULL) {
        return carry_serve_refuse(refusal, 400, "stop", "stop texts need a tokenizer, and this model has none");
    }
    return true;
}

/* Renders a chat with the request's variables, but with a tool and a message of its own: the text of a client could
   look like another form of calls. The caller frees the result; NULL: not possible. */
static char *render_example(carry_ctx *ctx, const carry_lm_server *s, const carry_serve_request *r) {
    carry_json_text text = {0};
    carry_json *variables = NULL;
    char *example = NULL;
    size_t length;
    carry_json_begin(&text, NULL, '{');
    for (const carry_json *one = carry_json_first(r->variables); one != NULL; one = one->next) {
        if (strcmp(one->key, "messages") != 0 && strcmp(one->key, "tools") != 0) {
            carry_json_add_node(&text, one->key, one);
        }
    }
    carry_json_put_raw(&text, "%s\"messages\":[{\"role\":\"user\",\"content\":\"a\"}],", text.length > 1 ? "," : "");
    carry_json_put_raw(&text, "\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"a\",\"description\":\"a\","
                              "\"parameters\":{\"type\":\"object\",\"properties\":{}}}}]}");
    if (!text.failed && carry_json_parse(ctx, &variables, text.bytes, text.length, "an example") == CARRY_OK) {
        const carry_chat_request request = {.variables = variables};
        if (carry_chat_render(ctx, &s->chat, &request, &example, &length) != CARRY_OK) {
            example = NULL;
        }
    }
    carry_json_free(variables);
    carry_json_text_free(&text);
    return example;
}

static bool open_runs(carry_ctx *ctx, carry_serve_answer *answer, carry_serve_refusal *refusal) {
    const carry_lm_server *s = answer->server;
    carry_serve_request *r = &answer->request;
    const bool is_chat = r->variables != NULL;
    char *example = is_chat && carry_serve_needs_call(r) ? render_example(ctx, s, r) : NULL;
    const carry_serve_text text = {.tokenizer = s->engine->model.tokenizer,
                                   .vocabulary = carry_engine_vocabulary(s->engine),
                                   .ends = s->ends,
                                   .end_count = is_chat ? s->chat_end_count : s->end_count,
                                   .prompt = answer->prompt,
                                   .prompt_length = answer->prompt_length,
                                   .example = example};
    bool is_open = true;
    for (int64_t i = 0; i < r->choices && is_open; i++) {
        carry_serve_run *run = &answer->runs[i];
        run->parser = carry_serve_parser_open(r, answer->prompt, answer->prompt_length);
        is_open = run->parser != NULL ? carry_serve_constrain(ctx, &run->constraint, r, &text, refusal)
                                      : carry_serve_refuse(refusal, 500, "", "out of memory");
    }
    free(example);
    return is_open;
}

static bool prepare(carry_serve_preparer *p, carry_serve_job *job, carry_serve_request *r, carry_serve_answer **answer,
                    carry_serve_refusal *refusal) {
    carry_lm_server *s = p->server;
    char *prompt = NULL;
    size_t length = 0;
    r->body = carry_serve_parse_body(p, job, refusal);
    if (r->body == NULL || !r->dialect->parse(p->ctx, r, refusal) || !check_model(s, r, refusal)) {
        return false;
    }
    if (!carry_serve_tokenize(p, r, &prompt, &length, refusal) || !check_prompt(s, r, refusal)) {
        free(prompt);
        return false;
    }
    if (!r->has_seed && getrandom(&r->seed, sizeof r->seed, 0) != (ssize_t)sizeof r->seed) {
        r->seed = atomic_fetch_add(&s->next_id, 1);
    }
    *answer = carry_serve_answer_new(s, job->response, r);
    if (*answer == NULL) {
        free(prompt);
        return carry_serve_refuse(refusal, 500, "", "out of memory");
    }
    (*answer)->prompt = prompt;
    (*answer)->prompt_length = length;
    (*answer)->prompt_tokens = (*answer)->request.id_count;
    (*answer)->started = job->received;
    return open_runs(p->ctx, *answer, refusal);
}

static carry_status submit(carry_serve_preparer *p, carry_serve_run *run) {
    carry_lm_server *s = p->server;
    const carry_serve_request *r = &run->answer->request;
    const bool is_chat = r->variables != NULL;
    uint64_t id = 0;
    const carry_engine_request request = {CARRY_INIT(carry_engine_request),
                                          .ids = r->ids,
                                          .id_count = r->id_count,
                                          .tokens = r->max_tokens,
                                          .temperature = r->temperature,
                                          .top_k = r->top_k,
                                          .top_p = r->top_p,
                                          .min_p = r->min_p,
                                          .repetition = r->repetition,
                                          .seed = r->seed + SEED_STEP * (uint64_t)run->choice.index,
                                          .logprobs = r->logprobs,
                                          .ends = s->ends,
                                          .end_count = is_chat ? s->chat_end_count : s->end_count,
                                          .ignore_ends = r->ignores_ends,
                                          .stops = r->stops,
                                          .stop_count = r->stop_count,
                                          .on_event = carry_serve_on_event,
                                          .user = run,
                                          .frequency = r->frequency,
                                          .presence = r->presence,
                                          .bias_ids = r->bias_tokens,
                                          .biases = r->biases,
                                          .bias_count = r->bias_count,
                                          .constrain = run->constraint != NULL ? carry_serve_constraint_allow : NULL,
                                          .constraint = run->constraint,
                                          .same_prompt = atomic_load(&run->answer->runs[0].id)};
    const carry_status status = carry_engine_submit(p->ctx, s->engine, &request, &id);
    atomic_store(&run->id, id);
    if (status == CARRY_OK && atomic_load(&run->answer->is_gone)) {
        carry_engine_cancel(s->engine, id);
    }
    return status;
}

static void on_drained(void *user) {
    carry_serve_answer *answer = user;
    if (!atomic_exchange(&answer->is_draining, true)) {
        carry_serve_post_one(answer->server, answer->drained);
    }
}

/* The client has gone: cancels its choices at their next step. Runs on the HTTP thread. */
static void on_gone(void *user) {
    carry_serve_answer *answer = user;
    atomic_store(&answer->is_gone, true);
    for (int64_t i = 0; i < answer->request.choices; i++) {
        const uint64_t id = atomic_load(&answer->runs[i].id);
        if (id != 0) {
            carry_engine_cancel(answer->server->engine, id);
        }
    }
    on_drained(user); /* no output waits for the client any more */
}

/* Submits all choices. The message at the end tells the output thread how many were accepted. */
static void submit_all(carry_serve_preparer *p, carry_serve_answer *answer, carry_serve_message *submitted) {
    carry_lm_server *s = p->server;
    if (!carry_http_watch_client(answer->response,
                                 &(carry_http_watch){.gone = on_gone, .drained = on_drained, .user = answer})) {
        atomic_store(&answer->is_gone, true);
    }
    carry_status status = CARRY_OK;
    int64_t count = 0;
    while (status == CARRY_OK && count < answer->request.choices && !atomic_load(&answer->is_gone)) {
        status = submit(p, &answer->runs[count]);
        count += status == CARRY_OK;
    }
    submitted->tokens = count;
    submitted->status = status;
    (void)snprintf(submitted->failure, sizeof submitted->failure, "%s",
                   status != CARRY_OK ? carry_ctx_error(p->ctx) : "");
    for (int64_t i = 0; status != CARRY_OK && i < count; i++) {
        carry_engine_cancel(s->engine, atomic_load(&answer->runs[i].id));
    }
    carry_serve_post_one(s, submitted);
}

void carry_serve_generate(carry_serve_preparer *p, carry_serve_job *job) {
    carry_serve_refusal refusal = {0};
    carry_serve_answer *answer = NULL;
    carry_serve_request request;
    carry_serve_request_init(&request, job->dialect);
    carry_serve_use_defaults(p->server, &request);
    const bool is_ready = prepare(p, job, &request, &answer, &refusal);
    carry_serve_message *submitted = is_ready ? calloc(1, sizeof *submitted) : NULL;
    if (is_ready && submitted == NULL) {
        (void)carry_serve_refuse(&refusal, 500, "", "out of memory");
    }
    if (submitted != NULL) {
        submitted->kind = CARRY_MESSAGE_SUBMITTED;
        submitted->answer = answer;
        submit_all(p, answer, submitted);
        return;
    }
    carry_serve_request_free(&request); /* empty if an answer has taken its contents */
    if (answer != NULL) {
        carry_serve_answer_free(answer);
    }
    carry_serve_reply_refusal(p->server, job->response, job->dialect, &refusal);
}
