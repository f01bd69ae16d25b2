/* Requests: checked and copied in the thread that submits them, then passed to the engine's thread. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "core/error.h"
#include "core/memory.h"
#include "core/sized.h"
#include "engine/engine_inside.h"

void carry_engine_job_free(carry_engine_job *job) {
    if (job != NULL) {
        carry_decoded_free(&job->text);
        carry_text_rule_close(&job->rule);
        free(job->stop_bytes);
        free(job->stops);
        free(job);
    }
}

static carry_status copy_stops(carry_ctx *ctx, carry_engine_job *job, const carry_engine_request *r) {
    size_t bytes = 1;
    if (r->stop_count < 0 || (r->stop_count > 0 && r->stops == NULL)) {
        return carry_fail(ctx, CARRY_EARGUMENT, "stop_count is %" PRId64 " without stop texts", r->stop_count);
    }
    for (int64_t i = 0; i < r->stop_count; i++) {
        bytes += strlen(r->stops[i]) + 1;
    }
    job->stop_bytes = malloc(bytes);
    job->stops = calloc((size_t)r->stop_count + 1, sizeof *job->stops);
    if (job->stop_bytes == NULL || job->stops == NULL) {
        return carry_fail(ctx, CARRY_EMEMORY, "out of memory: a request");
    }
    char *to = job->stop_bytes;
    for (int64_t i = 0; i < r->stop_count; i++) {
        const size_t length = strlen(r->stops[i]) + 1;
        memcpy(to, r->stops[i], length);
        job->stops[i] = to;
        to += length;
    }
    job->text.stops = job->stops;
    job->text.stop_count = r->stop_count;
    return CARRY_OK;
}

/* Copies the prompt's tokens from ids. */
static carry_status copy_ids(carry_ctx *ctx, const carry_engine *e, const carry_engine_request *r, int32_t **ids) {
    size_t bytes;
    if (!carry_size_product(&bytes, &r->id_count, 1, sizeof **ids) ||
        (*ids = malloc(bytes + 1)) == NULL) { /* negative counts fail here too */
        return carry_fail(ctx, CARRY_EMEMORY, "out of memory: a prompt of %" PRId64 " tokens", r->id_count);
    }
    for (int64_t i = 0; i < r->id_count; i++) {
        if (r->ids[i] < 0 || r->ids[i] >= e->runner->sizes.vocabulary) {
            return carry_fail(ctx, CARRY_ERANGE,
                              "token %" PRId64 " of the prompt is %" PRId64 ": the model has ids from 0 to %" PRId64, i,
                              r->ids[i], e->runner->sizes.vocabulary - 1);
        }
        (*ids)[i] = (int32_t)r->ids[i];
    }
    return CARRY_OK;
}

static carry_status encode_into(carry_ctx *ctx, const carry_engine *e, const carry_engine_request *r,
                                carry_encoder *encoder, carry_ids *found) {
    const bool goes_on = r->state != 0;
    if (!r->is_rendered && !goes_on) {
        CARRY_TRY(carry_encode_start(ctx, e->model.tokenizer, found));
    }
    return carry_encode(ctx, encoder, found, r->text, r->text_bytes,
                        goes_on ? CARRY_TEXT_GOES_ON : CARRY_SPECIALS_FOUND);
}

/* Encodes the prompt's text; an empty one becomes the model's start token. */
static carry_status encode(carry_ctx *ctx, const carry_engine *e, const carry_engine_request *r, int32_t **ids,
                           int64_t *count) {
    carry_encoder *encoder = NULL;
    carry_ids found = {0};
    if (e->model.tokenizer == NULL) {
        return carry_fail(ctx, CARRY_EARGUMENT, "%s has no tokenizer: give the prompt as ids", e->model.folder);
    }
    CARRY_TRY(carry_encoder_new(ctx, &encoder, e->model.tokenizer));
    carry_status status = encode_into(ctx, e, r, encoder, &found);
    carry_encoder_free(encoder);
    *ids = status == CARRY_OK ? malloc((found.count + 1) * sizeof **ids) : NULL;
    if (status == CARRY_OK && *ids == NULL) {
        status = carry_fail(ctx, CARRY_EMEMORY, "out of memory: a prompt of %zu tokens", found.count);
    }
    for (size_t i = 0; status == CARRY_OK && i < found.count; i++) {
        (*ids)[i] = (int32_t)found.id[i];
    }
    *count = (int64_t)found.count;
    if (status == CARRY_OK && found.count == 0 && r->state == 0 && e->model.start >= 0) {
        (*ids)[0] = (int32_t)e->model.start;
        *count = 1;
    }
    carry_ids_free(&found);
    return status;
}

static carry_status copy_ends(carry_ctx *ctx, const carry_engine *e, const carry_engine_request *r, int32_t **ends) {
    if (r->end_count < 0 || (r->end_count > 0 && r->ends == NULL)) {
        return carry_fail(ctx, CARRY_EARGUMENT, "end_count is %" PRId64 " without end tokens", r->end_count);
    }
    *ends = malloc(((size_t)(r->end_count > 0 ? r->end_count : 0) + 1) * sizeof **ends);
    if (*ends == NULL) {
        return carry_fail(ctx, CARRY_EMEMORY, "out of memory: a request");
    }
    for (int64_t i = 0; i < r->end_count; i++) {
        if (r->ends[i] < 0 || r->ends[i] >= e->runner->sizes.vocabulary) {
            return carry_fail(ctx, CARRY_ERANGE, "end token %" PRId64 ": the model has ids from 0 to %" PRId64,
                              r->ends[i], e->runner->sizes.vocabulary - 1);
        }
        (*ends)[i] = (int32_t)r->ends[i];
    }
    return CARRY_OK;
}

static carry_status make_sequence(carry_ctx *ctx, const carry_engine *e, const carry_engine_request *r,
                                  carry_engine_job *job, const int32_t *ids, int64_t count, const int32_t *ends) {
    const bool has_ends = r->ends != NULL || r->ignore_ends;
    const bool has_rule = job->rule.cursor != NULL;
    const carry_sequence_options options = {.ids = ids,
                                            .count = count,
                                            .tokens = r->tokens,
                                            .sampling = {.temperature = r->temperature,
                                                         .top_k = r->top_k,
                                                         .top_p = r->top_p == 0.0 ? 1.0 : r->top_p,
                                                         .min_p = r->min_p,
                                                         .repetition = r->repetition == 0.0 ? 1.0 : r->repetition,
                                                         .seed = r->seed},
                                            .allowed = e->allowed,
                                            .ends = has_ends ? ends : e->ends,
                                            .end_count = r->ignore_ends    ? 0
                                                         : r->ends != NULL ? r->end_count
                                                                           : e->end_count,
                                            .logprobs = r->logprobs < 0 ? -1 : r->logprobs,
                                            .state = r->state,
                                            .shares = r->same_prompt,
                                            .keeps = r->keep_state,
                                            .is_uncached = r->no_cache,
                                            .user = job,
                                            .frequency = r->frequency,
                                            .presence = r->presence,
                                            .bias_ids = r->bias_ids,
                                            .biases = r->biases,
                                            .bias_count = r->bias_count,
                                            .constrain = has_rule ? carry_text_rule_allow : r->constrain,
                                            .constraint = has_rule ? &job->rule : r->constraint};
    if (has_rule) {
        CARRY_TRY(carry_text_rule_set_ends(ctx, &job->rule, options.ends, options.end_count));
    }
    job->prompt_tokens = count;
    job->text.tokenizer = e->model.tokenizer;
    job->text.is_first = r->text != NULL && r->text_bytes == 0 && r->state == 0 && !has_rule;
    return carry_sequence_new(ctx, &job->sequence, &e->runner->sizes, &options);
}

static carry_status make_job(carry_ctx *ctx, const carry_engine *e, const carry_engine_request *r,
                             carry_engine_job *job) {
    int32_t *ids = NULL;
    int32_t *ends = NULL;
    int64_t count = r->id_count;
    if ((r->ids != NULL) == (r->text != NULL)) {
        return carry_fail(ctx, CARRY_EARGUMENT, "a request needs ids or text, and not both");
    }
    if (r->stop_count > 0 && e->model.tokenizer == NULL) {
        return carry_fail(ctx, CARRY_EARGUMENT, "stop texts need a tokenizer, but %s does not have one",
                          e->model.folder);
    }
    if (r->constrain != NULL && (r->regex != NULL || r->json_schema != NULL)) {
        return carry_fail(ctx, CARRY_EARGUMENT, "a request has either `constrain` or a regex or JSON schema");
    }
    CARRY_TRY(carry_text_rule_open(ctx, &job->rule, e->model.tokenizer, r->regex, r->json_schema,
                                   e->runner->sizes.vocabulary));
    carry_status status = r->text != NULL ? encode(ctx, e, r, &ids, &count) : copy_ids(ctx, e, r, &ids);
    status = status == CARRY_OK ? copy_ends(ctx, e, r, &ends) : status;
    status = status == CARRY_OK ? copy_stops(ctx, job, r) : status;
    status = status == CARRY_OK ? make_sequence(ctx, e, r, job, ids, count, ends) : status;
    free(ids);
    free(ends);
    return status;
}

/* Puts the job into the inbox, unless the queue is full. */
static carry_status hand_over(carry_ctx *ctx, carry_engine *e, carry_engine_job *job, uint64_t *id) {
    (void)pthread_mutex_lock(&e->lock);
    const int64_t waiting = e->unfinished - e->texts;
    const bool is_full = waiting >= e->queue;
    if (!is_full) {
        *id = job->id = ++e->next_id;
        *(e->inbox_last != NULL ? &e->inbox_last->next : &e->inbox) = job;
        e->inbox_last = job;
        e->unfinished++;
        (void)pthread_cond_signal(&e->changed);
    }
    (void)pthread_mutex_unlock(&e->lock);
    return is_full
               ? carry_fail(ctx, CARRY_ESIZE, "the queue is full: %" PRId64 " requests wait; try again later", waiting)
               : CARRY_OK;
}

carry_status carry_engine_submit(carry_ctx *ctx, carry_engine *e, const carry_engine_request *request, uint64_t *id) {
    carry_engine_request r;
    *id = 0;
    if (request == NULL) {
        return carry_fail(ctx, CARRY_EARGUMENT, "the request is NULL");
    }
    CARRY_TRY(CARRY_SIZED_READ(ctx, carry_engine_request, &r, request));
    carry_engine_job *job = calloc(1, sizeof *job);
    if (job == NULL) {
        return carry_fail(ctx, CARRY_EMEMORY, "out of memory: a request");
    }
    job->on_event = r.on_event;
    job->user = r.user;
    carry_status status = make_job(ctx, e, &r, job);
    status = status == CARRY_OK ? hand_over(ctx, e, job, id) : status;
    if (status != CARRY_OK) {
        carry_sequence_free(job->sequence);
        carry_engine_job_free(job);
    }
    return status;
}

void carry_engine_cancel(carry_engine *e, uint64_t id) {
    (void)pthread_mutex_lock(&e->lock);
    if (e->cancelled_count == e->cancelled_room) {
        const size_t room = e->cancelled_room > 0 ? 2 * e->cancelled_room : 64;
        uint64_t *grown = realloc(e->cancelled, room * sizeof *grown);
        if (grown != NULL) {
            e->cancelled = grown;
            e->cancelled_room = room;
        }
    }
    if (e->cancelled_count < e->cancelled_room) {
        e->cancelled[e->cancelled_count++] = id;
        (void)pthread_cond_signal(&e->changed);
    }
    (void)pthread_mutex_unlock(&e->lock);
}
