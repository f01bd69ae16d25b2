/* Preparing threads turn the bodies of HTTP requests into requests for the engine, so that long texts delay neither the
   HTTP thread nor the engine's steps. Long bodies have threads of their own: short requests do not wait for them. The
   work for a client that has gone is dropped. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "core/clock.h"
#include "core/context.h"
#include "core/thread.h"
#include "serve/server_internal.h"

#define QUEUE 256
#define QUEUE_BYTES ((size_t)256 << 20) /* in each lane */
#define LONG ((size_t)256 << 10)        /* bytes of a long body; it is tokenized in tens of milliseconds */
#define VALUES ((size_t)1 << 20) /* at most this many values in a body; each takes about a hundred bytes of memory */

void carry_serve_job_free(carry_serve_job *job) {
    free(job->rest);
    free(job->body);
    free(job);
}

static carry_serve_job *copy_job(carry_http_response *response, const carry_http_request *request) {
    carry_serve_job *job = calloc(1, sizeof *job);
    if (job == NULL) {
        return NULL;
    }
    job->response = response;
    job->rest = strdup(request->rest);
    job->body = malloc(request->body_length + 1);
    job->length = request->body_length;
    job->received = carry_seconds();
    if (job->rest == NULL || job->body == NULL) {
        carry_serve_job_free(job);
        return NULL;
    }
    memcpy(job->body, request->body, job->length);
    job->body[job->length] = '\0';
    return job;
}

/* Returns false if the queue is full. */
static bool enqueue(carry_lm_server *s, carry_serve_job *job) {
    const int64_t most = s->options.queue > 0 ? s->options.queue : QUEUE;
    const int number = job->length > LONG;
    carry_serve_lane *lane = &s->lanes[number];
    (void)pthread_mutex_lock(&s->lock);
    const bool fits = lane->count < most && lane->bytes + job->length <= QUEUE_BYTES;
    if (fits) {
        *(lane->last != NULL ? &lane->last->next : &lane->first) = job;
        lane->last = job;
        lane->count++;
        lane->bytes += job->length;
        (void)atomic_fetch_add(&s->answers, 1);
        (void)pthread_cond_signal(&s->has_job[number]);
    }
    (void)pthread_mutex_unlock(&s->lock);
    return fits;
}

void carry_serve_queue(carry_lm_server *s, carry_http_response *response, const carry_http_request *request,
                       void (*work)(carry_serve_preparer *preparer, carry_serve_job *job),
                       const carry_serve_dialect *dialect) {
    carry_serve_refusal refusal = {0};
    const int phase = atomic_load(&s->phase);
    carry_serve_job *job = phase == CARRY_SERVE_READY ? copy_job(response, request) : NULL;
    if (phase != CARRY_SERVE_READY) {
        (void)carry_serve_refuse(&refusal, 503, "", "%s",
                                 phase == CARRY_SERVE_LOADING ? "the model is being loaded; try again"
                                                              : "the server is shutting down");
    } else if (job == NULL) {
        (void)carry_serve_refuse(&refusal, 500, "", "out of memory");
    } else {
        job->work = work;
        job->dialect = dialect;
        if (enqueue(s, job)) {
            return;
        }
        carry_serve_job_free(job);
        (void)carry_serve_refuse(&refusal, 429, "", "too many requests wait; try again");
    }
    (void)atomic_fetch_add(&s->answers, 1); /* counted like a queued request, since the reply decrements it */
    carry_serve_reply_refusal(s, response, dialect, &refusal);
}

/* Returns a lower bound of the number of values in a JSON text. */
static size_t count_values(const char *text, size_t length) {
    size_t count = 1;
    bool is_inside = false; /* inside a string */
    for (size_t i = 0; i < length; i++) {
        if (is_inside && text[i] == '\\') {
            i++;
        } else if (text[i] == '"') {
            is_inside = !is_inside;
        } else if (!is_inside) {
            count += text[i] == ',' || text[i] == '[' || text[i] == '{';
        }
    }
    return count;
}

carry_json *carry_serve_parse_body(carry_serve_preparer *p, const carry_serve_job *job, carry_serve_refusal *refusal) {
    carry_json *body = NULL;
    if (count_values(job->body, job->length) > VALUES) {
        (void)carry_serve_refuse(refusal, 413, "", "the body has more than %zu values", VALUES);
    } else if (carry_json_parse(p->ctx, &body, job->body, job->length, "the body") != CARRY_OK) {
        (void)carry_serve_refuse(refusal, 400, "", "%s", carry_ctx_error(p->ctx));
        body = NULL;
    }
    return body;
}

carry_status carry_serve_encoder(carry_serve_preparer *p) {
    const carry_tokenizer *tokenizer = p->server->engine->model.tokenizer;
    if (tokenizer == NULL) {
        return carry_fail(p->ctx, CARRY_EUNSUPPORTED, "this model has no tokenizer: prompts are lists of token ids");
    }
    if (p->encoder == NULL) {
        CARRY_TRY(carry_encoder_new(p->ctx, &p->encoder, tokenizer));
        carry_encoder_set_cancel(p->encoder, &p->is_gone);
    }
    return CARRY_OK;
}

static bool render(carry_serve_preparer *p, const carry_serve_request *r, char **prompt, size_t *length,
                   carry_serve_refusal *refusal) {
    const carry_lm_server *s = p->server;
    if (!s->has_chat) {
        return carry_serve_refuse(refusal, 400, "messages", "%s", s->no_chat);
    }
    const carry_chat_request request = {.variables = r->variables};
    if (carry_chat_render(p->ctx, &s->chat, &request, prompt, length) != CARRY_OK) {
        *prompt = NULL;
        return carry_serve_refuse(refusal, 400, "messages", "%s", carry_ctx_error(p->ctx));
    }
    return true;
}

/* Copies the found ids into the request. */
static bool keep_ids(carry_serve_preparer *p, carry_serve_request *r, const carry_ids *found,
                     carry_serve_refusal *refusal) {
    const carry_model *model = &p->server->engine->model;
    r->ids = malloc((found->count + 1) * sizeof *r->ids);
    if (r->ids == NULL) {
        return carry_serve_refuse(refusal, 500, "", "out of memory");
    }
    for (size_t i = 0; i < found->count; i++) {
        r->ids[i] = found->id[i];
    }
    r->id_count = (int64_t)found->count;
    if (r->id_count == 0 && model->start >= 0) { /* the prompt of an empty text is the model's start token */
        r->ids[r->id_count++] = model->start;
    }
    return true;
}

static int status_of(carry_status status) {
    return status == CARRY_EINTERRUPTED ? CARRY_SERVE_GONE : status == CARRY_EMEMORY ? 500 : 400;
}

bool carry_serve_tokenize(carry_serve_preparer *p, carry_serve_request *r, char **prompt, size_t *length,
                          carry_serve_refusal *refusal) {
    *prompt = NULL;
    *length = 0;
    if (r->ids != NULL) {
        return true;
    }
    if (r->variables != NULL && !render(p, r, prompt, length, refusal)) {
        return false;
    }
    const char *text = *prompt != NULL ? *prompt : r->text;
    const size_t bytes = *prompt != NULL ? *length : r->text_length;
    carry_ids found = {0};
    carry_status status = carry_serve_encoder(p);
    if (status == CARRY_OK && *prompt == NULL) {
        status = carry_encode_start(p->ctx, p->server->engine->model.tokenizer, &found);
    }
    status = status == CARRY_OK ? carry_encode(p->ctx, p->encoder, &found, text, bytes, CARRY_SPECIALS_FOUND) : status;
    const bool is_done = status == CARRY_OK
                             ? keep_ids(p, r, &found, refusal)
                             : carry_serve_refuse(refusal, status_of(status), "prompt", "%s", carry_ctx_error(p->ctx));
    carry_ids_free(&found);
    return is_done;
}

static carry_serve_job *next_job(carry_lm_server *s, int number) {
    carry_serve_lane *lane = &s->lanes[number];
    (void)pthread_mutex_lock(&s->lock);
    while (lane->first == NULL && !s->is_stopping) {
        (void)pthread_cond_wait(&s->has_job[number], &s->lock);
    }
    carry_serve_job *job = s->is_stopping ? NULL : lane->first;
    if (job != NULL) {
        lane->first = job->next;
        lane->last = lane->first == NULL ? NULL : lane->last;
        lane->count--;
        lane->bytes -= job->length;
    }
    (void)pthread_mutex_unlock(&s->lock);
    return job;
}

/* On the HTTP thread. */
static void on_gone(void *user) {
    carry_serve_preparer *p = user;
    atomic_store(&p->is_gone, true);
}

void carry_serve_unwatch(carry_serve_job *job) {
    (void)carry_http_watch_client(job->response, &(carry_http_watch){0});
}

static void *prepare(void *user) {
    carry_serve_preparer *p = user;
    for (carry_serve_job *job; (job = next_job(p->server, p->lane)) != NULL;) {
        if (carry_http_watch_client(job->response, &(carry_http_watch){.gone = on_gone, .user = p})) {
            job->work(p, job);
        } else {
            carry_serve_reply_refusal(p->server, job->response, NULL,
                                      &(carry_serve_refusal){.status = CARRY_SERVE_GONE});
        }
        atomic_store(&p->is_gone, false);
        carry_serve_job_free(job);
    }
    return NULL;
}

bool carry_serve_start_preparers(carry_lm_server *s) {
    bool are_started = true;
    for (int i = 0; i < CARRY_SERVE_PREPARERS && are_started; i++) {
        carry_serve_preparer *p = &s->preparers[i];
        p->server = s;
        p->lane = i % CARRY_SERVE_LANES;
        are_started =
            carry_ctx_new(&p->ctx, &(carry_ctx_options){CARRY_INIT(carry_ctx_options), .threads = 1}) == CARRY_OK &&
            carry_thread_start(&p->thread, prepare, p) == 0;
        p->is_started = are_started;
    }
    return are_started;
}

void carry_serve_stop_preparers(carry_lm_server *s) {
    for (int i = 0; i < CARRY_SERVE_PREPARERS; i++) {
        atomic_store(&s->preparers[i].is_gone, true);
    }
    for (int i = 0; i < CARRY_SERVE_PREPARERS; i++) {
        carry_serve_preparer *p = &s->preparers[i];
        if (p->is_started) {
            (void)pthread_join(p->thread, NULL);
        }
        carry_encoder_free(p->encoder);
        carry_ctx_free(p->ctx);
    }
    for (int i = 0; i < CARRY_SERVE_LANES; i++) {
        for (carry_serve_job *job = s->lanes[i].first, *next; job != NULL; job = next) {
            next = job->next;
            carry_http_abort(job->response);
            carry_serve_job_free(job);
        }
        s->lanes[i] = (carry_serve_lane){0};
    }
}
