/* The loop over steps. */
#include "train/steps.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "carry/ops.h"
#include "core/clock.h"
#include "core/error.h"
#include "core/span.h"
#include "model/host.h"
#include "train/steps_graph.h"
#include "train/steps_state.h"

/* A view of `count` of the sums of a step, from `first` on. */
static carry_tensor sums_of(const carry_steps *s, int64_t row, int64_t first, int64_t count) {
    return carry_slice(carry_reshape_1d(s->sums, (s->lag + 1) * CARRY_STEPS_SUMS), row * CARRY_STEPS_SUMS + first,
                       count);
}

/* Names the weight that is not finite, or the first gradient that was not. */
static carry_status name_culprit(carry_steps *s, char *text, size_t size) {
    const float *weights;
    float *copied;
    int64_t bad = -1;
    CARRY_TRY(carry_parameters_see(s->own, s->own->weights, &weights, &copied));
    for (int64_t i = 0; i < s->own->parameters && bad < 0; i++) {
        const carry_parameter *p = &s->own->parameter[i];
        for (int64_t j = 0; j < p->count && bad < 0; j++) {
            bad = isfinite(weights[p->offset + j]) ? -1 : i;
        }
    }
    free(copied);
    if (bad >= 0) {
        (void)snprintf(text, size, "the weight %s was not finite before it", s->own->parameter[bad].name);
        return CARRY_OK;
    }
    CARRY_TRY(carry_optimizer_bad(s->optimizer, &bad));
    if (bad >= 0) {
        (void)snprintf(text, size, "the first tensor that was not finite is the gradient of %s",
                       s->own->parameter[bad].name);
    } else {
        (void)snprintf(text, size, "weights and gradients are finite, their norm is not");
    }
    return CARRY_OK;
}

/* Ends the run; the weights are still those of the last good step. */
static carry_status refuse_step(carry_steps *s, double loss, double norm, const char *place) {
    char culprit[160];
    char others[96] = "";
    CARRY_TRY(name_culprit(s, culprit, sizeof culprit));
    s->step = s->first_bad.step;
    s->seen = s->first_bad.seen;
    s->position = s->first_bad.position;
    CARRY_TRY(carry_steps_save(s));
    if (s->bad_in_row > 1) {
        (void)snprintf(others, sizeof others, ", the first of %" PRId64 " in a row that are not finite,",
                       s->bad_in_row);
    }
    return carry_fail(s->ctx, CARRY_ERANGE,
                      "step %" PRId64 "%s has a loss of %g and gradients of norm %g%s: %s. The state before it is in "
                      "%s/step-%" PRId64 "; a lower --rate or --clip may help",
                      s->step + 1, others, loss, norm, place, culprit, s->out, s->step);
}

/* Counts and reports a step that is not finite; more than skip_limit in a row end the run. */
static carry_status skip(carry_steps *s, carry_steps_report *report, const carry_steps_place *at, double loss,
                         double norm) {
    char line[288];
    char found[80] = "";
    char place[96] = "";
    if (s->trainee->explain != NULL) {
        CARRY_TRY(s->trainee->explain(s->self, found, sizeof found));
        (void)snprintf(place, sizeof place, "%s%s", found[0] != '\0' ? "; " : "", found);
    }
    s->first_bad = s->bad_in_row == 0 ? *at : s->first_bad;
    s->bad_in_row++;
    if (s->bad_in_row > s->skip_limit) {
        return refuse_step(s, loss, norm, place);
    }
    s->skipped++;
    report->skipped++;
    (void)snprintf(line, sizeof line,
                   "step %" PRId64 " was skipped: its loss is %g and its gradients' norm %g%s (%" PRId64
                   " in a row, %" PRId64 " in all)",
                   at->step + 1, loss, norm, place, s->bad_in_row, s->skipped);
    if (s->speaks) {
        carry_sink_note(s->sink, at->step + 1, line);
    }
    return CARRY_OK;
}

/* Called if the next batch cannot be made. Saves the state if this run has done a step, but not with several ranks: the
   others may already be in the step and would not take part in saving. */
static carry_status keep_learned(carry_steps *s, carry_status status) {
    char why[512];
    (void)snprintf(why, sizeof why, "%s", carry_ctx_error(s->ctx));
    if (carry_comm_size(s->comm) > 1 || s->done == 0) {
        return status;
    }
    CARRY_TRY(carry_steps_save(s));
    return carry_fail(s->ctx, status, "%s. The state before that is in %s/step-%" PRId64, why, s->out, s->step);
}

/* Reads the sums of the steps since the last time. */
static carry_status take_sums(carry_steps *s, carry_steps_report *report) {
    double sums[CARRY_STEPS_LAG * CARRY_STEPS_SUMS];
    const int64_t count = s->unread * CARRY_STEPS_SUMS;
    CARRY_TRY(carry_read(s->ctx, carry_view_1d(sums, CARRY_F64, count), sums_of(s, 0, 0, count)));
    for (int64_t i = 0; i < s->unread; i++) {
        const double *row = sums + i * CARRY_STEPS_SUMS;
        const double loss = row[0] / (row[1] > 0.0 ? row[1] : 1.0);
        const double norm = sqrt(row[2]);
        if (!isfinite(loss) || !isfinite(norm)) {
            CARRY_TRY(skip(s, report, &s->before[i], loss, norm));
            continue;
        }
        s->bad_in_row = 0;
        report->loss = s->loss = loss;
        report->norm = s->norm = norm;
        report->mean += loss;
    }
    s->unread = 0;
    return CARRY_OK;
}

/* True if the sums must be read now that another step is done. */
static bool is_wanted(const carry_steps *s, bool stop) {
    return s->done == 0 || stop || s->step == s->schedule.steps || s->unread == s->lag || s->step % s->log_every == 0 ||
           (s->save_every > 0 && s->step % s->save_every == 0) || (s->eval_every > 0 && s->step % s->eval_every == 0);
}

/* On a GPU: enqueues the whole step in its stream. */
static carry_status enqueue(carry_steps *s) {
    const carry_tensor now = sums_of(s, s->lag, 0, CARRY_STEPS_SUMS);
    CARRY_TRY(carry_optimizer_set(s->optimizer, s->step + 1, s->rate));
    CARRY_TRY(carry_steps_enqueue(s, now));
    CARRY_TRY(carry_copy(s->ctx, sums_of(s, s->unread, 0, CARRY_STEPS_SUMS), now));
    s->unread++;
    if (s->trainee->ahead != NULL) {
        s->trainee->ahead(s->self);
    }
    return CARRY_OK;
}

/* Adds the sums over ranks once per step, in one message; sums on a GPU are copied to the host and back. */
static carry_status add_sums(carry_steps *s, double *stops) {
    double all[CARRY_STEPS_SUMS + 1] = {0};
    const carry_tensor sums = sums_of(s, 0, 0, CARRY_STEPS_SUMS);
    CARRY_TRY(carry_read(s->ctx, carry_view_1d(all, CARRY_F64, CARRY_STEPS_SUMS), sums));
    all[CARRY_STEPS_SUMS] = *stops;
    CARRY_TRY(carry_all_reduce(s->comm, all, CARRY_STEPS_SUMS + 1, CARRY_F64, CARRY_REDUCE_SUM));
    *stops = all[CARRY_STEPS_SUMS];
    return carry_copy(s->ctx, sums, carry_view_1d(all, CARRY_F64, CARRY_STEPS_SUMS));
}

/* Runs a step on the CPU, or with several ranks, which add their sums. *stops is 1 on ranks that want to stop, and
   becomes the number of such ranks. */
static carry_status compute(carry_steps *s, carry_steps_report *report, double *stops) {
    const bool alone = carry_comm_size(s->comm) == 1;
    const carry_tensor total = sums_of(s, s->unread, 0, 2);
    const carry_tensor squares = sums_of(s, s->unread, 2, 1);
    CARRY_TRY(carry_zero(s->ctx, total));
    CARRY_TRY(carry_parameters_zero_gradients(s->own));
    CARRY_TRY(s->trainee->gradients(s->self, total, alone ? NULL : carry_optimizer_ready, s->optimizer));
    CARRY_TRY(carry_optimizer_collect(s->optimizer, squares));
    s->unread++;
    if (s->lag == 1) {
        CARRY_TRY(add_sums(s, stops));
        CARRY_TRY(take_sums(s, report));
        if (s->bad_in_row > 0) { /* on all ranks */
            return CARRY_OK;
        }
    }
    CARRY_TRY(carry_optimizer_set(s->optimizer, s->step + 1, s->rate));
    return carry_optimizer_step(s->optimizer, squares);
}

static carry_status do_step(carry_steps *s, carry_steps_report *report, bool *stop) {
    CARRY_SPAN(s->ctx, "train", "step");
    carry_position after;
    double stops = s->stop != NULL && s->stop() ? 1.0 : 0.0;
    s->before[s->unread] = (carry_steps_place){.step = s->step, .seen = s->seen, .position = s->position};
    const carry_status data = s->trainee->next(s->self, &after);
    if (data != CARRY_OK) {
        return keep_learned(s, data);
    }
    s->rate = carry_schedule_rate(&s->schedule, s->step + 1);
    const bool alone = carry_comm_size(s->comm) == 1;
    CARRY_TRY(s->own->device != 0 && alone ? enqueue(s) : compute(s, report, &stops));
    *stop = stops > 0.0;
    if (s->items_each > 0.0) {
        carry_span_work(s->ctx, s->flops, s->items_each);
    }
    s->step++;
    s->seen += s->seen_each;
    s->position = after;
    if (s->trainee->stepped != NULL) {
        CARRY_TRY(s->trainee->stepped(s->self));
    }
    return s->unread > 0 && is_wanted(s, *stop) ? take_sums(s, report) : CARRY_OK;
}

static void tell(carry_steps *s, carry_steps_report *report) {
    report->step = s->step;
    report->steps = s->schedule.steps;
    report->seen = s->seen;
    report->rate = s->rate;
    const int64_t good = report->since - report->skipped;
    report->mean = good > 0 ? report->mean / (double)good : s->loss;
    report->loss = s->loss;
    report->norm = s->norm;
    report->skipped_all = s->skipped;
    report->left = s->spent / (double)s->done * (double)(s->schedule.steps - s->step);
    if (s->speaks) {
        carry_sink_metric(s->sink, s->step, "rate", report->rate);
        if (isfinite(report->norm)) { /* no step was finite yet: there is nothing to plot */
            carry_sink_metric(s->sink, s->step, "norm", report->norm);
        }
        s->trainee->report(s->self, report);
    }
    *report = (carry_steps_report){0};
}

carry_status carry_steps_run(carry_steps *s) {
    carry_steps_report report = {0};
    bool stop = false;
    while (s->step < s->schedule.steps && !stop) {
        if (s->trainee->before != NULL) {
            s->trainee->before(s->self, false);
        }
        const double start = carry_seconds();
        CARRY_TRY(do_step(s, &report, &stop));
        const double spent = carry_seconds() - start;
        const bool is_last = s->step == s->schedule.steps || stop;
        report.seconds += spent;
        report.since++;
        s->spent += spent;
        s->done++;
        if (s->done == 1 || s->step % s->log_every == 0 || is_last) {
            tell(s, &report);
        }
        if (is_last && s->trainee->before != NULL) {
            s->trainee->before(s->self, true);
        }
        const bool is_time = s->eval_every > 0 && (s->step % s->eval_every == 0 || is_last);
        if (!stop && (is_time || (is_last && s->trainee->evaluates_at_end))) {
            CARRY_TRY(s->trainee->evaluate(s->self));
            stop = s->was_stopped;
        }
        if (stop || (s->save_every > 0 && (s->step % s->save_every == 0 || is_last))) {
            CARRY_TRY(carry_steps_save(s));
        }
    }
    if (stop && s->step < s->schedule.steps) {
        return carry_fail(s->ctx, CARRY_EINTERRUPTED,
                          "interrupted: step %" PRId64 " of %" PRId64 " is done and saved; to go on: %s %s", s->step,
                          s->schedule.steps, s->trainee->resume, s->out);
    }
    return CARRY_OK;
}
