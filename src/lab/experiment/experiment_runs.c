/* A problem measured several times: collects and combines the runs' results. */
#include "lab/experiment/experiment_runs.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench/sample.h"

typedef struct method_runs {
    carry_bench_result first; /* of the first run, with the largest error and the last reason of all runs */
    int count;
    double medians[CARRY_EXPERIMENT_RUNS], waited[CARRY_EXPERIMENT_RUNS], exposed[CARRY_EXPERIMENT_RUNS],
        shares[CARRY_EXPERIMENT_RUNS];
} method_runs;

struct carry_runs {
    int methods;
    method_runs of[CARRY_BENCH_METHODS];
};

carry_runs *carry_runs_new(void) {
    return calloc(1, sizeof(carry_runs));
}

void carry_runs_free(carry_runs *runs) {
    free(runs);
}

static method_runs *runs_of(carry_runs *runs, const carry_bench_result *result) {
    for (int i = 0; i < runs->methods; i++) {
        if (strcmp(runs->of[i].first.algorithm, result->algorithm) == 0) {
            return &runs->of[i];
        }
    }
    if (runs->methods == CARRY_BENCH_METHODS) {
        return NULL;
    }
    method_runs *m = &runs->of[runs->methods++];
    m->first = *result;
    m->first.curve = NULL; /* owned by the bench, and gone after the call */
    m->first.curve_count = 0;
    return m;
}

static bool is_worse(const carry_deviation *a, const carry_deviation *b) {
    return isnan(a->error) || a->error / a->bound > b->error / b->bound;
}

void carry_runs_add(void *given, const carry_bench_result *result, const double *samples) {
    (void)samples;
    method_runs *m = runs_of(given, result);
    if (m == NULL || m->count == CARRY_EXPERIMENT_RUNS) {
        return;
    }
    if (result->reason[0] != '\0') {
        (void)snprintf(m->first.reason, sizeof m->first.reason, "%s", result->reason);
        return;
    }
    if (m->count > 0 && !isnan(m->first.worst.error) && is_worse(&result->worst, &m->first.worst)) {
        m->first.worst = result->worst;
    }
    m->medians[m->count] = result->median;
    m->waited[m->count] = result->counts.waited;
    m->exposed[m->count] = result->counts.exposed;
    m->shares[m->count++] = result->share;
}

static carry_summary summary_of(const double *values, int count) {
    double sorted[CARRY_EXPERIMENT_RUNS];
    memcpy(sorted, values, (size_t)count * sizeof *sorted);
    return carry_summarise(sorted, count);
}

void carry_runs_tell(const carry_runs *runs, void (*keep)(void *, const carry_bench_result *, const double *),
                     void *user) {
    for (int i = 0; i < runs->methods; i++) {
        const method_runs *m = &runs->of[i];
        carry_bench_result result = m->first;
        if (result.reason[0] == '\0') {
            const carry_summary times = summary_of(m->medians, m->count);
            result.repeats = m->count;
            result.median = times.median;
            result.spread = times.spread;
            result.counts.waited = summary_of(m->waited, m->count).median;
            result.counts.exposed = summary_of(m->exposed, m->count).median;
            result.share = isnan(result.share) ? result.share : summary_of(m->shares, m->count).median;
        }
        keep(user, &result, m->medians);
    }
}
