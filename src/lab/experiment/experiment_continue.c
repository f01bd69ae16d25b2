/* Experiments: continues a stored run, whose results count as measured. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "core/context.h"
#include "lab/experiment/experiment.h"

static void restore_outcome(carry_outcome *o, const carry_run_result *from) {
    const carry_stored_result *is = &from->is;
    (void)snprintf(o->reason, sizeof o->reason, "%s", is->reason);
    o->planned = is->planned;
    o->repeats = from->samples;
    o->products = is->products;
    o->median = is->median;
    o->spread = is->spread;
    o->flops = is->flops;
    o->bytes = is->bytes;
    o->workspace = is->workspace;
    o->tokens = is->tokens;
    o->share = is->share;
    o->error = is->error;
    o->error_absolute = is->error_absolute;
    o->bound = is->bound;
    o->received = o->waited = o->exposed = o->overlap = NAN;
}

static void restore_metric(carry_experiment *e, const carry_run_metric *m) {
    if (m->step < 0 || m->step >= e->outcomes) {
        return;
    }
    carry_outcome *o = &e->outcome[m->step];
    double ranks = 0.0;
    const struct {
        const char *name;
        double *to;
    } known[] = {{CARRY_RECEIVED, &o->received},
                 {CARRY_EXPOSED, &o->exposed},
                 {CARRY_PERPLEXITY, &o->perplexity},
                 {CARRY_BUSY, &o->busy},
                 {CARRY_TRAINING_COST, &o->cost},
                 {CARRY_OVERLAP, &o->overlap},
                 {CARRY_RANKS, &ranks},
                 {CARRY_SLOWER_STAGE, &o->slower_stage},
                 {CARRY_BLOCK_DENOISE, &o->denoise},
                 {CARRY_BLOCK_RECOMPUTE, &o->recompute},
                 {CARRY_BLOCK_CLEAN, &o->clean},
                 {CARRY_BLOCK_DECODE, &o->decode}};
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++) {
        if (strcmp(m->name, known[i].name) == 0) {
            *known[i].to = m->value;
        }
    }
    o->ranks = ranks > 0.0 ? (int)ranks : o->ranks;
}

/* True if all methods of a problem have a result, at least one was timed, and none was interrupted. */
static bool is_whole(const carry_experiment *e, const carry_point *point, int first, int methods, int stored) {
    const carry_stage *stage = &e->stage[point->stage];
    bool any = false;
    if (first + methods > stored) {
        return false;
    }
    for (int i = first; i < first + methods; i++) {
        const carry_outcome *o = &e->outcome[i];
        const bool timed = o->reason[0] == '\0';
        const int samples = stage->runs > 1 ? stage->runs : stage->repeats;
        if (strcmp(o->reason, "not reached") == 0 || (timed && o->repeats < samples)) {
            return false;
        }
        any = any || timed;
    }
    return any;
}

static void settle_points(carry_experiment *e, int stored) {
    int first = 0;
    for (int i = 0; i < e->points; i++) {
        carry_point *point = &e->point[i];
        int methods = 0;
        while (e->stage[point->stage].methods[methods] != NULL) {
            methods++;
        }
        point->is_done = is_whole(e, point, first, methods, stored);
        for (int o = first; o < first + methods; o++) {
            e->outcome[o].pending = !point->is_done;
            /* An incomplete problem is measured again, or counts as not measured. */
            if (!point->is_done && e->outcome[o].reason[0] == '\0') {
                (void)snprintf(e->outcome[o].reason, sizeof e->outcome[o].reason, "not reached");
            }
        }
        first += methods;
    }
}

static void restore_spent(carry_experiment *e, const carry_run *run) {
    for (int i = 0; i < run->metrics; i++) {
        const carry_run_metric *m = &run->metric[i];
        if (strcmp(m->name, CARRY_COST) == 0 && m->step >= 0 && m->step < e->outcomes && m->value > 0.0) {
            for (int p = 0; p < e->points; p++) {
                const bool of = e->point[p].problem == e->outcome[m->step].problem;
                e->stage[e->point[p].stage].spent += of ? m->value : 0.0;
            }
        }
    }
}

carry_status carry_experiment_restore(carry_experiment *e, const carry_run *run) {
    if (run->results > e->outcomes) {
        return carry_fail(e->ctx, CARRY_EFORMAT,
                          "run %lld has %d results and its experiment %d: it cannot be continued", (long long)run->id,
                          run->results, e->outcomes);
    }
    for (int i = 0; i < run->results; i++) {
        const carry_stored_result *is = &run->result[i].is;
        if (strcmp(is->problem, e->outcome[i].problem) != 0 || strcmp(is->method, e->outcome[i].method) != 0) {
            return carry_fail(e->ctx, CARRY_EFORMAT,
                              "result %d of run %lld is %.24s on %.80s where its experiment has %s on %s: it cannot be "
                              "continued",
                              i + 1, (long long)run->id, is->method, is->problem, e->outcome[i].method,
                              e->outcome[i].problem);
        }
        restore_outcome(&e->outcome[i], &run->result[i]);
    }
    for (int i = 0; i < run->metrics; i++) {
        restore_metric(e, &run->metric[i]);
    }
    settle_points(e, run->results);
    restore_spent(e, run);
    return CARRY_OK;
}
