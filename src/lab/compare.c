/* Compares two runs.

   The interval of a ratio comes from the samples of both runs and does not include changes between the runs: other
   load, another clock, a different memory layout. So 5 % is allowed as noise between runs, plus the drift of the
   ceilings that each run measures (if both ran on the same machine), plus, for each problem, the share by which other
   processes lengthened its time. */
#include "lab/compare.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/error.h"
#include "lab/quiet.h"

#define SLACK 0.05
#define BOOTSTRAP_SEED 1
/* Up to this share of the pairs may differ by chance: a 95 % interval misses the true ratio one time in twenty, and
   pairs are correlated. A pair that differs by more than FAR times the noise does not differ by chance. */
#define CHANCE 0.1
#define FAR 4.0

static bool same_thing(const carry_run_result *a, const carry_run_result *b) {
    return strcmp(a->is.problem, b->is.problem) == 0 && strcmp(a->is.method, b->is.method) == 0;
}

/* Finds the result in `run` of the same problem and method as result `index` of `other`; NULL if it was not measured.
   If there are several, such as one per stage, they are matched in order. */
static const carry_run_result *find(const carry_run *run, const carry_run *other, int index) {
    int before = 0;
    for (int i = 0; i < index; i++) {
        before += same_thing(&other->result[i], &other->result[index]);
    }
    for (int i = 0; i < run->results; i++) {
        if (same_thing(&run->result[i], &other->result[index]) && before-- == 0) {
            return run->result[i].samples > 0 ? &run->result[i] : NULL;
        }
    }
    return NULL;
}

static const char *fact(const carry_run *run, const char *name) {
    for (int i = 0; i < run->facts; i++) {
        if (strcmp(run->fact[i].name, name) == 0) {
            return run->fact[i].value;
        }
    }
    return "";
}

static double drift_of(double a, double b) {
    return a > 0.0 && b > 0.0 ? fabs(log(a / b)) : 0.0;
}

/* Returns the share by which other processes lengthened a result's time, c / (1 - c) for the contention c stored in the
   run: a process that gets 1 - c of a core takes 1 / (1 - c) times as long. */
static double lengthening(carry_comparison *c, const carry_run *run, const carry_run_result *result) {
    int64_t at = result - run->result;
    int64_t nearest = -1;
    double share = 0.0;
    for (int i = 0; i < run->metrics; i++) {
        const carry_run_metric *m = &run->metric[i];
        if (strcmp(m->name, CARRY_CONTENTION) == 0 && m->step <= at && m->step > nearest && m->value >= 0.0) {
            nearest = m->step;
            share = fmin(m->value, 0.9);
        }
    }
    c->contention = fmax(c->contention, share);
    return share / (1.0 - share);
}

static void find_drift(carry_comparison *c, const carry_run *a, const carry_run *b) {
    c->same_machine = strcmp(fact(a, "cpu"), fact(b, "cpu")) == 0 && strcmp(fact(a, "cores"), fact(b, "cores")) == 0 &&
                      strcmp(fact(a, "gpu"), fact(b, "gpu")) == 0;
    for (int i = 0; i < c->pairs; i++) { /* over every device */
        const carry_stored_result *x = &c->pair[i].a->is;
        const carry_stored_result *y = &c->pair[i].b->is;
        c->drift = fmax(c->drift, drift_of(x->gemm_gflops, y->gemm_gflops));
        c->drift = fmax(c->drift, drift_of(x->copy_gbytes_s, y->copy_gbytes_s));
    }
    double given = c->slack;
    c->slack = 0.0;
    for (int i = 0; i < c->pairs; i++) {
        double disturbed = fmax(lengthening(c, a, c->pair[i].a), lengthening(c, b, c->pair[i].b));
        /* The ceilings of two different machines are expected to differ. */
        c->pair[i].slack = given + (c->same_machine ? c->drift : 0.0) + disturbed;
        c->slack += c->pair[i].slack / c->pairs;
    }
}

static bool holds_one(double low, double high, double slack) {
    return low / (1.0 + slack) <= 1.0 && high * (1.0 + slack) >= 1.0;
}

static void judge(carry_comparison *c) {
    bool far = false;
    double mean = 0.0;
    double low = 0.0;
    double high = 0.0;
    for (int i = 0; i < c->pairs; i++) {
        carry_pair *p = &c->pair[i];
        p->ratio = carry_ratio_of(p->a->sample, p->a->samples, p->b->sample, p->b->samples, p->slack, BOOTSTRAP_SEED);
        mean += log(p->ratio.ratio);
        low += log(p->ratio.low);
        high += log(p->ratio.high);
        c->within += p->ratio.within_noise;
        c->faster += !p->ratio.within_noise && p->ratio.ratio > 1.0;
        c->slower += !p->ratio.within_noise && p->ratio.ratio < 1.0;
        far = far || (!p->ratio.within_noise && !holds_one(p->ratio.low, p->ratio.high, FAR * p->slack));
    }
    c->mean = exp(mean / c->pairs);
    c->low = exp(low / c->pairs);
    c->high = exp(high / c->pairs);
    c->mean_within = holds_one(c->low, c->high, c->slack);
    c->within_noise = c->mean_within && !far && c->faster + c->slower <= (int)ceil(CHANCE * c->pairs);
}

carry_status carry_compare(carry_ctx *ctx, carry_comparison *comparison, const carry_run *a, const carry_run *b,
                           double slack) {
    *comparison = (carry_comparison){.slack = slack > 0.0 ? slack : SLACK};
    carry_comparison *c = comparison;
    c->pair = calloc((size_t)(a->results > 0 ? a->results : 1), sizeof *c->pair);
    if (c->pair == NULL) {
        return carry_fail(ctx, CARRY_EMEMORY, "out of memory: comparing runs");
    }
    int measured_b = 0;
    int pairs = 0;
    for (int i = 0; i < b->results; i++) {
        measured_b += b->result[i].samples > 0;
    }
    for (int i = 0; i < a->results; i++) {
        const carry_run_result *other = a->result[i].samples > 0 ? find(b, a, i) : NULL;
        if (other != NULL) {
            c->pair[pairs++] = (carry_pair){.a = &a->result[i], .b = other};
        } else {
            c->only_a += a->result[i].samples > 0;
        }
    }
    c->only_b = measured_b - pairs;
    if (pairs == 0) {
        carry_compare_free(c);
        return carry_fail(ctx, CARRY_EARGUMENT, "the runs %lld and %lld have measured nothing in common",
                          (long long)a->id, (long long)b->id);
    }
    c->pairs = pairs;
    find_drift(c, a, b);
    judge(c);
    return CARRY_OK;
}

void carry_compare_free(carry_comparison *comparison) {
    free(comparison->pair);
    comparison->pair = NULL;
}
