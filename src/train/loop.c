/* The loop over steps. */
#include "train/loop.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "carry/ops.h"
#include "core/clock.h"
#include "core/error.h"
#include "core/memory.h"
#include "core/span.h"
#include "model/host.h"
#include "train/training.h"

double carry_train_flops(const carry_lm *lm) {
    const carry_lm_config *c = &lm->config;
    double products = 0.0;
    for (int64_t i = 0; i < lm->own.parameters; i++) {
        const carry_lm_parameter *p = &lm->own.parameter[i];
        const bool is_table = i == lm->embeddings && lm->head != lm->embeddings; /* rows of it are copied */
        products += p->rank == 2 && !is_table ? (double)p->count : 0.0;
    }
    /* A head and token: k^T S, the outer product into S, q^T S. */
    const double recurrence = 3.0 * (double)(c->num_hidden_layers * c->value_heads) * (double)(c->key * c->value);
    return 3.0 * 2.0 * (products + recurrence);
}

carry_status carry_training_pass(carry_training *t, const carry_batch *batch, int64_t part, carry_lm_args *args) {
    const int64_t from = part * t->rows * batch->length;
    args->ids = carry_view_2d(batch->input + from, CARRY_I64, t->rows, batch->length);
    args->labels = carry_view_2d(batch->label + from, CARRY_I64, t->rows, batch->length);
    return carry_lm_run(t->pass, args, t->memory, t->bytes);
}

/* Where a step's sums go: the loss and the number of labels, and the squares of gradients. */
static carry_tensor sums_of(const carry_training *t, int64_t row, int64_t first, int64_t count) {
    return carry_slice(carry_reshape_1d(t->sums, t->lag * CARRY_TRAIN_SUMS), row * CARRY_TRAIN_SUMS + first, count);
}

/* Forward and backward over this rank's rows; the loss, summed over its labels, goes to total. */
static carry_status run_parts(carry_training *t, const carry_batch *batch, carry_tensor total) {
    const double scale = 1.0 / (double)(batch->labels_whole > 0 ? batch->labels_whole : 1);
    CARRY_TRY(carry_zero(t->ctx, total));
    CARRY_TRY(carry_parameters_zero_gradients(&t->lm->own));
    for (int64_t part = 0; part < t->options.accumulate; part++) {
        carry_lm_args args = {.backward = true, .scale = (float)scale, .total = total};
        if (part + 1 == t->options.accumulate && carry_comm_size(t->comm) > 1) {
            args.ready = carry_optimizer_ready;
            args.user = t->optimizer;
        }
        CARRY_TRY(carry_training_pass(t, batch, part, &args));
    }
    return CARRY_OK;
}

/* The weight that is not finite, or the gradient that was it first. */
static carry_status name_culprit(carry_training *t, char *text, size_t size) {
    const carry_parameters *own = &t->lm->own;
    const float *weights;
    float *copied;
    CARRY_TRY(carry_parameters_see(own, own->weights, &weights, &copied));
    for (int64_t i = 0; i < own->parameters; i++) {
        const carry_parameter *p = &own->parameter[i];
        for (int64_t j = 0; j < p->count; j++) {
            if (!isfinite(weights[p->offset + j])) {
                (void)snprintf(text, size, "the weight %s was not finite before it", p->name);
                free(copied);
                return CARRY_OK;
            }
        }
    }
    free(copied);
    int64_t bad;
    CARRY_TRY(carry_optimizer_bad(t->optimizer, &bad));
    if (bad >= 0) {
        (void)snprintf(text, size, "the first tensor that was not finite is the gradient of %s",
                       own->parameter[bad].name);
    } else {
        (void)snprintf(text, size, "weights and gradients are finite now");
    }
    return CARRY_OK;
}

/* The weights are still those of the last good step. */
static carry_status refuse_step(carry_training *t, double loss, double norm) {
    char culprit[160];
    CARRY_TRY(name_culprit(t, culprit, sizeof culprit));
    CARRY_TRY(carry_training_save(t));
    return carry_fail(t->ctx, CARRY_ERANGE,
                      "step %" PRId64 " has a loss of %g and gradients of norm %g: %s. The state before it is in "
                      "%s/step-%" PRId64 "; a lower --rate or --clip may help",
                      t->step + 1, loss, norm, culprit, t->options.out, t->step);
}

/* No more rows can be had: what was learned is kept. Of several ranks the others may be in the step already, and would
   not come to a save. */
static carry_status keep_learned(carry_training *t, carry_status status) {
    char why[512];
    (void)snprintf(why, sizeof why, "%s", carry_ctx_error(t->ctx));
    if (carry_comm_size(t->comm) > 1 || t->done == 0) {
        return status;
    }
    CARRY_TRY(carry_training_save(t));
    return carry_fail(t->ctx, status, "%s. The state before that is in %s/step-%" PRId64, why, t->options.out, t->step);
}

/* Reads the sums of the steps since the last time; the report is of the newest. The first that is not finite ends the
   run: the weights, and with them the count of steps, are those before it. */
static carry_status take_sums(carry_training *t, carry_train_report *report) {
    double sums[CARRY_TRAIN_LAG * CARRY_TRAIN_SUMS];
    const int64_t count = t->unread * CARRY_TRAIN_SUMS;
    CARRY_TRY(carry_read(t->ctx, carry_view_1d(sums, CARRY_F64, count), sums_of(t, 0, 0, count)));
    for (int64_t i = 0; i < t->unread; i++) {
        const carry_train_place *at = &t->before[i];
        report->loss = sums[i * CARRY_TRAIN_SUMS] / (double)(at->labels > 0 ? at->labels : 1);
        report->norm = sqrt(sums[i * CARRY_TRAIN_SUMS + 2]);
        if (!isfinite(report->loss) || !isfinite(report->norm)) {
            t->step = at->step;
            t->seen = at->seen;
            t->position = at->position;
            return refuse_step(t, report->loss, report->norm);
        }
    }
    t->unread = 0;
    return CARRY_OK;
}

/* Are the sums wanted after the step that is now done, the n-th since the start? */
static bool is_wanted(const carry_training *t, int64_t n, bool stop) {
    const carry_train_options *o = &t->options;
    return n == 1 || stop || t->step % o->log_every == 0 || t->step == t->schedule.steps ||
           t->step % o->save_every == 0 || (o->eval_every > 0 && t->step % o->eval_every == 0) || t->unread == t->lag;
}

/* On the CPU the sums are read before the weights change, and ranks add them up: one message for all of it. On a GPU
   nobody waits: a step with gradients that are not finite changes nothing, and is found when sums are wanted. */
static carry_status do_step(carry_training *t, carry_train_report *report, bool *stop) {
    CARRY_SPAN(t->ctx, "train", "step");
    const carry_batch *batch;
    double stops = t->hooks->stop != NULL && t->hooks->stop() ? 1.0 : 0.0;
    const carry_status rows = carry_batches_next(t->ctx, t->batches, &batch);
    if (rows != CARRY_OK) {
        return keep_learned(t, rows);
    }
    t->before[t->unread] =
        (carry_train_place){.step = t->step, .seen = t->seen, .position = t->position, .labels = batch->labels_whole};
    const carry_tensor squares = sums_of(t, t->unread, 2, 1);
    CARRY_TRY(run_parts(t, batch, sums_of(t, t->unread, 0, 2)));
    CARRY_TRY(carry_optimizer_collect(t->optimizer, squares));
    t->unread++;
    if (t->lag == 1) {
        double *sums = t->sums.data;
        double all[] = {sums[0], sums[2], stops};
        CARRY_TRY(carry_all_reduce(t->comm, all, 3, CARRY_REDUCE_F64, CARRY_REDUCE_SUM));
        sums[0] = all[0];
        sums[2] = all[1];
        stops = all[2];
        CARRY_TRY(take_sums(t, report));
    }
    report->rate = carry_schedule_rate(&t->schedule, t->step + 1);
    *stop = stops > 0.0;
    CARRY_TRY(carry_optimizer_step(t->optimizer, t->step + 1, report->rate, squares));
    carry_span_work(t->ctx, t->flops * (double)(batch->rows * batch->length), (double)(batch->rows * batch->length));
    t->step++;
    t->seen += t->options.batch * t->options.length;
    t->position = carry_batches_position(t->batches);
    return t->unread > 0 && is_wanted(t, t->done + 1, *stop) ? take_sums(t, report) : CARRY_OK;
}

static void tell(carry_training *t, carry_train_report *report, double seconds, int64_t steps) {
    const carry_train_hooks *h = t->hooks;
    if (!t->speaks) {
        return;
    }
    report->step = t->step;
    report->steps = t->schedule.steps;
    report->seen = t->seen;
    report->tokens_per_s = (double)(steps * t->options.batch * t->options.length) / seconds;
    report->mfu = h->peak > 0.0 ? report->tokens_per_s * t->flops / h->peak : NAN;
    const double held = carry_resident_bytes();
    t->most = held > t->most ? held : t->most;
    report->memory = t->most > 0.0 ? t->most : NAN;
    report->left = t->spent / (double)t->done * (double)(t->schedule.steps - t->step);
    carry_sink_metric(&h->sink, t->step, "loss", report->loss);
    carry_sink_metric(&h->sink, t->step, "rate", report->rate);
    carry_sink_metric(&h->sink, t->step, "norm", report->norm);
    carry_sink_metric(&h->sink, t->step, "tokens_per_s", report->tokens_per_s);
    if (isfinite(report->mfu)) {
        carry_sink_metric(&h->sink, t->step, "mfu", report->mfu);
    }
    carry_sink_metric(&h->sink, t->step, "memory", report->memory);
    if (h->report != NULL) {
        h->report(h->user, report);
    }
}

static carry_status run_steps(carry_training *t) {
    const carry_train_options *o = &t->options;
    double seconds = 0.0;
    int64_t untold = 0;
    bool stop = false;
    while (t->step < t->schedule.steps && !stop) {
        carry_train_report report = {0};
        const double start = carry_seconds();
        CARRY_TRY(do_step(t, &report, &stop));
        const double spent = carry_seconds() - start;
        const bool is_last = t->step == t->schedule.steps || stop;
        seconds += spent;
        t->spent += spent;
        t->done++;
        untold++;
        if (t->done == 1 || t->step % o->log_every == 0 || is_last) {
            tell(t, &report, seconds, untold);
            seconds = 0.0;
            untold = 0;
        }
        if (o->eval_every > 0 && !stop && (t->step % o->eval_every == 0 || is_last)) {
            CARRY_TRY(carry_training_examine(t));
        }
        if (t->step % o->save_every == 0 || is_last) {
            CARRY_TRY(carry_training_save(t));
        }
    }
    if (stop && t->step < t->schedule.steps) {
        return carry_fail(t->ctx, CARRY_EINTERRUPTED,
                          "interrupted: step %" PRId64 " of %" PRId64
                          " is done and saved; to go on: carry train --resume %s",
                          t->step, t->schedule.steps, t->options.out);
    }
    return CARRY_OK;
}

carry_status carry_train_run(carry_comm *comm, const carry_train_options *options, const carry_train_hooks *hooks) {
    carry_training *t = calloc(1, sizeof *t);
    if (t == NULL) {
        return carry_fail(carry_comm_ctx(comm), CARRY_EMEMORY, "no memory for a training run");
    }
    t->ctx = carry_comm_ctx(comm);
    t->comm = comm;
    t->options = *options;
    t->hooks = hooks;
    carry_status status = carry_training_open(t);
    if (status == CARRY_OK && t->step >= t->schedule.steps && t->speaks) {
        char line[160];
        (void)snprintf(line, sizeof line, "all %" PRId64 " steps are done: --steps with a larger number goes on",
                       t->schedule.steps);
        carry_sink_note(&hooks->sink, t->step, line);
    }
    status = status == CARRY_OK ? run_steps(t) : status;
    carry_training_close(t);
    free(t);
    return status;
}
