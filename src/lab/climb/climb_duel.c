/* Times two settings of a plan in turns. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "carry/device.h"
#include "core/clock.h"
#include "lab/climb/climb_tuning.h"
#include "bench/sample.h"

#define SECONDS 0.25
#define THRESHOLD 1.0
#define LEAST_RUNS 9
#define TURN_SECONDS 0.01
#define HOPELESS 2.0 /* slower than the best by this factor: not worth a comparison */
#define SET_BYTES 256e6
#define MOST_COPIES 64

carry_status tune_parse(tuning *t, carry_problem *problem, int64_t chunk) {
    char text[CARRY_PROBLEM_TEXT];
    int length = chunk > 0 ? snprintf(text, sizeof text, "%s:chunk=%lld", t->problem, (long long)chunk)
                           : snprintf(text, sizeof text, "%s", t->problem);
    if (length >= (int)sizeof text) {
        return carry_fail(t->ctx, CARRY_ESIZE, "the problem is longer than %d characters", CARRY_PROBLEM_TEXT - 24);
    }
    return carry_problem_parse(t->ctx, problem, text);
}

carry_status tune_context(tuning *t, carry_ctx **made, int threads) {
    const carry_ctx *like = t->ctx;
    carry_status status = carry_ctx_new(made, &(carry_ctx_options){CARRY_INIT(carry_ctx_options), .threads = threads,
                                                                   .kernels = like->kernels, .wisdom = like->wisdom,
                                                                   .log_level = like->log_level, .log = like->log,
                                                                   .log_user = like->log_user});
    if (status != CARRY_OK) {
        carry_status failed = carry_fail(t->ctx, status, "no context with %d threads: %s", threads,
                                         *made != NULL ? carry_ctx_error(*made) : "out of memory");
        carry_ctx_free(*made);
        *made = NULL;
        return failed;
    }
    return CARRY_OK;
}

void tune_leave(tuning *t, contender *c) {
    if (c != NULL) {
        if (c->instance != NULL) {
            carry_family_close(t->family, c->instance);
        }
        carry_ctx_free(c->ctx);
        free(c);
    }
}

/* Copies the error message of a contender's own context to the tuning's context. */
static carry_status told(tuning *t, const contender *c, carry_status status) {
    return status == CARRY_OK ? status : carry_fail(t->ctx, status, "%s", carry_ctx_error(c->ctx));
}

static carry_status enter_parts(tuning *t, contender *c) {
    carry_problem problem;
    carry_device_properties cpu = {CARRY_INIT(carry_device_properties)};
    CARRY_TRY(tune_parse(t, &problem, c->setting.chunk));
    carry_problem again = problem;
    CARRY_TRY(tune_context(t, &c->ctx, c->setting.threads));
    CARRY_TRY(told(t, c, carry_family_open(t->family, c->ctx, &c->instance, &problem, t->options->seed, 1)));
    double wanted = carry_device_properties_of(c->ctx, &cpu, 0) == CARRY_OK ? 2.0 * (double)cpu.cache : 0.0;
    int copies = (int)fmin(ceil(fmin(wanted, SET_BYTES) / t->family->bytes(c->instance)), MOST_COPIES);
    if (copies > 1) { /* inputs come from memory rather than caches, as in a bench */
        carry_family_close(t->family, c->instance);
        c->instance = NULL;
        CARRY_TRY(told(t, c, carry_family_open(t->family, c->ctx, &c->instance, &again, t->options->seed, copies)));
    }
    CARRY_TRY(told(t, c, t->family->choose(c->instance, c->setting.algorithm)));
    return told(t, c, t->family->run(c->instance));
}

carry_status tune_enter(tuning *t, contender **entered, const carry_tune_setting *setting) {
    contender *c = calloc(1, sizeof *c);
    *entered = NULL;
    if (c == NULL) {
        return carry_fail(t->ctx, CARRY_EMEMORY, "out of memory: a candidate");
    }
    c->setting = *setting;
    carry_status status = enter_parts(t, c);
    if (status != CARRY_OK) {
        tune_leave(t, c);
        return status;
    }
    *entered = c;
    return CARRY_OK;
}

static carry_status time_run(const tuning *t, contender *c, double *seconds) {
    if (t->family->time != NULL) {
        return t->family->time(c->instance, seconds);
    }
    double before = carry_seconds();
    CARRY_TRY(t->family->run(c->instance));
    *seconds = carry_seconds() - before;
    return CARRY_OK;
}

/* Runs a contender a few times in a row, so that threads are awake and caches are as in real use. */
static carry_status take_turn(tuning *t, contender *c) {
    double started = carry_seconds();
    CARRY_TRY(told(t, c, t->family->run(c->instance)));
    for (bool first = true; c->count < TUNE_RUNS && (first || carry_seconds() - started < TURN_SECONDS);
         first = false) {
        double seconds;
        CARRY_TRY(told(t, c, time_run(t, c, &seconds)));
        c->samples[c->count++] = seconds;
        c->spent += seconds;
        if (t->options->stop != NULL && t->options->stop()) {
            return carry_fail(t->ctx, CARRY_EINTERRUPTED, "interrupted");
        }
    }
    return CARRY_OK;
}

static bool wants_more(const tuning *t, const contender *c) {
    double seconds = t->options->seconds > 0.0 ? t->options->seconds : SECONDS;
    return c->count < LEAST_RUNS || (c->spent < seconds && c->count < TUNE_RUNS);
}

static double median_of(const contender *c) {
    double copy[TUNE_RUNS];
    memcpy(copy, c->samples, (size_t)c->count * sizeof *copy);
    return carry_summarise(copy, c->count).median;
}

carry_status tune_check(tuning *t, contender *c, char reason[256]) {
    carry_deviation deviations[CARRY_DEVIATIONS];
    int count = 0;
    if (t->options->unchecked) {
        return CARRY_OK;
    }
    CARRY_TRY(told(t, c, t->family->compare(c->instance, deviations, &count)));
    for (int i = 0; i < count; i++) {
        if (!(deviations[i].error <= deviations[i].bound)) {
            (void)snprintf(reason, 256, "wrong: %s has error %.2e, bound %.2e", deviations[i].tensor,
                           deviations[i].error, deviations[i].bound);
        }
    }
    return CARRY_OK;
}

carry_status tune_duel(tuning *t, contender *best, contender *c, carry_tune_step *step) {
    double threshold = t->options->threshold > 0.0 ? t->options->threshold : THRESHOLD;
    best->count = c->count = 0;
    best->spent = c->spent = 0.0;
    bool hopeless = true;
    for (int look = 0; look < 2 && hopeless; look++) { /* twice, since the machine may have been busy */
        CARRY_TRY(take_turn(t, best));
        CARRY_TRY(take_turn(t, c));
        step->seconds = median_of(c);
        step->best_seconds = median_of(best);
        hopeless = step->seconds > HOPELESS * step->best_seconds;
    }
    if (hopeless) {
        step->ratio = step->best_seconds / step->seconds;
        (void)snprintf(step->reason, sizeof step->reason, "far slower");
        return CARRY_OK;
    }
    CARRY_TRY(tune_check(t, c, step->reason));
    if (step->reason[0] != '\0') {
        return CARRY_OK;
    }
    while (wants_more(t, best) || wants_more(t, c)) {
        CARRY_TRY(wants_more(t, best) ? take_turn(t, best) : CARRY_OK);
        CARRY_TRY(wants_more(t, c) ? take_turn(t, c) : CARRY_OK);
    }
    carry_ratio r = carry_ratio_of(best->samples, best->count, c->samples, c->count, 0.0, 1);
    step->seconds = median_of(c);
    step->best_seconds = median_of(best);
    step->ratio = r.ratio;
    step->low = r.low;
    step->high = r.high;
    step->kept = !r.within_noise && 100.0 * (r.ratio - 1.0) > threshold;
    if (!step->kept) {
        (void)snprintf(step->reason, sizeof step->reason, "%s",
                       r.within_noise  ? "within noise"
                       : r.ratio > 1.0 ? "below the threshold"
                                       : "slower");
    }
    return CARRY_OK;
}

carry_status tune_time(tuning *t, contender *c, double *seconds) {
    while (wants_more(t, c)) {
        CARRY_TRY(take_turn(t, c));
    }
    *seconds = median_of(c);
    return CARRY_OK;
}
