/* Events: tokens become text, ends become results. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/context.h"
#include "core/sized.h"
#include "engine/engine_inside.h"

const char *carry_engine_reason_name(carry_engine_reason reason) {
    static const char *const names[] = {"none", "length", "end", "stop", "context", "cancelled", "failed"};
    return (unsigned)reason < sizeof names / sizeof names[0] ? names[reason] : "unknown";
}

static carry_engine_reason reason_of(carry_outcome outcome, bool is_stopped, bool is_complete) {
    static const carry_engine_reason reasons[] = {
        [CARRY_OUTCOME_NONE] = CARRY_REASON_NONE,           [CARRY_OUTCOME_LENGTH] = CARRY_REASON_LENGTH,
        [CARRY_OUTCOME_TOKEN] = CARRY_REASON_END,           [CARRY_OUTCOME_CONTEXT] = CARRY_REASON_CONTEXT,
        [CARRY_OUTCOME_CANCELLED] = CARRY_REASON_CANCELLED, [CARRY_OUTCOME_FAILED] = CARRY_REASON_FAILED,
    };
    return outcome == CARRY_OUTCOME_FAILED ? CARRY_REASON_FAILED
           : is_stopped                    ? CARRY_REASON_STOP
           : is_complete                   ? CARRY_REASON_END
                                           : reasons[outcome];
}

void carry_engine_free_events(carry_engine *e) {
    for (carry_engine_note *n = e->first, *next; n != NULL; n = next) {
        next = n->next;
        free(n);
    }
    free(e->shown);
    e->first = e->last = e->shown = NULL;
}

/* Copies an event into the queue. */
static void queue_event(carry_engine *e, const carry_engine_event *event) {
    carry_engine_note *n = malloc(sizeof *n + event->text_bytes + 1);
    if (n == NULL) {
        carry_log(e->ctx, CARRY_LOG_WARNING, "out of memory: an event of a request is lost");
        return;
    }
    *n = (carry_engine_note){.event = *event};
    memcpy(n->text, event->text, event->text_bytes);
    n->text[event->text_bytes] = '\0';
    if (event->top_count > 0) {
        memcpy(n->top_tokens, event->top_tokens, (size_t)event->top_count * sizeof *n->top_tokens);
        memcpy(n->top_logprobs, event->top_logprobs, (size_t)event->top_count * sizeof *n->top_logprobs);
    }
    (void)snprintf(n->message, sizeof n->message, "%s", event->message);
    n->event.text = n->text;
    n->event.message = n->message;
    n->event.top_tokens = n->top_tokens;
    n->event.top_logprobs = n->top_logprobs;
    *(e->last != NULL ? &e->last->next : &e->first) = n;
    e->last = n;
}

static void report(carry_engine *e, carry_engine_job *job, carry_engine_event *event) {
    event->size = sizeof *event;
    event->request = job->id;
    event->user = job->user;
    event->text = job->text.settled > job->told ? job->text.text + job->told : "";
    event->text_bytes = job->text.settled > job->told ? job->text.settled - job->told : 0;
    event->message = event->message != NULL ? event->message : "";
    job->told += event->text_bytes;
    if (e->is_closing) {
        return;
    }
    if (job->on_event == NULL) {
        queue_event(e, event);
    } else if (!job->on_event(job->user, event) && event->token >= 0) {
        (void)carry_scheduler_cancel(e->scheduler, job->id);
    }
}

static void report_token(carry_engine *e, carry_engine_job *job, const carry_sequence *q, const carry_run_result *r) {
    bool is_stopped = false;
    const int64_t before = (int64_t)job->text.length;
    if (carry_decoded_add(e->ctx, &job->text, r->token, &is_stopped) != CARRY_OK) {
        (void)carry_scheduler_cancel(e->scheduler, job->id);
        return;
    }
    carry_engine_event event = {.token = r->token,
                                .logprob = r->logprob,
                                .top_count = q->options.logprobs > 0 ? q->options.logprobs : 0,
                                .top_tokens = r->top,
                                .top_logprobs = r->top_logprob,
                                .text_before = before};
    job->is_stopped = is_stopped;
    job->is_complete = carry_text_rule_take(&job->rule, r->token);
    if (is_stopped || job->is_complete) {
        (void)carry_scheduler_cancel(e->scheduler, job->id);
    }
    report(e, job, &event);
}

static void report_end(carry_engine *e, carry_engine_job *job, const carry_sequence *q, uint64_t state) {
    carry_decoded_end(&job->text, job->is_stopped);
    carry_engine_event event = {.token = -1,
                                .reason = reason_of(q->outcome, job->is_stopped, job->is_complete),
                                .status = q->outcome == CARRY_OUTCOME_FAILED ? q->status : CARRY_OK,
                                .message = q->message,
                                .prompt_tokens = job->prompt_tokens,
                                .cached_tokens = q->cached,
                                .tokens = q->written,
                                .first_s = q->first > 0.0 ? q->first - q->submitted : 0.0,
                                .seconds = q->ended - q->submitted,
                                .state = state,
                                .drafted_tokens = q->drafted,
                                .accepted_tokens = q->accepted,
                                .stop = job->is_stopped ? job->text.stop : 0};
    report(e, job, &event);
    carry_engine_job_free(job);
    (void)pthread_mutex_lock(&e->lock);
    e->unfinished--;
    (void)pthread_mutex_unlock(&e->lock);
}

void carry_engine_on_event(void *user, const carry_sequence_event *event) {
    carry_engine_job *job = event->sequence->options.user;
    if (event->result != NULL) {
        report_token(user, job, event->sequence, event->result);
    } else {
        report_end(user, job, event->sequence, event->state);
    }
}

bool carry_engine_next(carry_engine *e, carry_engine_event *event) {
    carry_engine_note *n = e->first;
    free(e->shown);
    e->shown = NULL;
    if (n == NULL || CARRY_SIZED_WRITE(e->ctx, carry_engine_event, event, &n->event) != CARRY_OK) {
        return false;
    }
    e->first = n->next;
    e->last = e->first == NULL ? NULL : e->last;
    e->shown = n;
    return true;
}
