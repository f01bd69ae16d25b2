/* Benches on ranks that are threads of this process. */
#include "lab/bench_ranks.h"

#include <math.h>
#include <stdlib.h>

#include "comm/ranks.h"
#include "core/context.h"

typedef struct shared {
    carry_ctx *const *ctxs;
    const char *problem;
    const carry_ceilings *ceilings;
    const carry_bench_options *options;
    carry_ceilings *measured;    /* [ranks] */
    carry_bench_result *results; /* [ranks, CARRY_BENCH_METHODS] */
    int *counts;                 /* [ranks] */
    carry_status *statuses;      /* [ranks] */
} shared;

static carry_status measure(void *user, const carry_rank *self) {
    shared *s = user;
    CARRY_TRY(carry_rank_barrier(self));
    s->statuses[self->rank] = carry_ceilings_measure(s->ctxs[self->rank], &s->measured[self->rank]);
    return s->statuses[self->rank];
}

static carry_status bench(void *user, const carry_rank *self) {
    shared *s = user;
    carry_bench_options options = *s->options;
    options.keep = NULL;
    if (self->rank > 0) {
        options.progress = NULL;
    }
    CARRY_TRY(carry_rank_barrier(self));
    s->statuses[self->rank] =
        carry_bench_problem(s->ctxs[self->rank], s->problem, s->ceilings, &options,
                            s->results + (size_t)self->rank * CARRY_BENCH_METHODS, &s->counts[self->rank]);
    return s->statuses[self->rank];
}

/* The sentence of the rank that failed goes where the caller looks. */
static carry_status report(const shared *s, int ranks, carry_status status) {
    for (int r = 1; status != CARRY_OK && s->statuses[0] == CARRY_OK && r < ranks; r++) {
        if (s->statuses[r] == status) {
            return carry_fail(s->ctxs[0], status, "rank %d: %s", r, carry_ctx_error(s->ctxs[r]));
        }
    }
    return status;
}

/* A method that one rank could not time has no time. */
static bool is_worse(const carry_bench_result *a, const carry_bench_result *b) {
    if (a->reason[0] != '\0' || b->reason[0] != '\0') {
        return a->reason[0] != '\0' && b->reason[0] == '\0';
    }
    return a->median > b->median;
}

static void keep_slowest(const shared *s, int ranks, carry_bench_result *results, int *count) {
    *count = s->counts[0];
    for (int r = 1; r < ranks; r++) {
        *count = s->counts[r] < *count ? s->counts[r] : *count;
    }
    for (int i = 0; i < *count; i++) {
        results[i] = s->results[i];
        for (int r = 1; r < ranks; r++) {
            const carry_bench_result *other = &s->results[r * CARRY_BENCH_METHODS + i];
            if (is_worse(other, &results[i])) {
                results[i] = *other;
                results[i].rank = r;
            }
        }
    }
}

carry_status carry_ceilings_measure_ranks(carry_ctx *const *ctxs, int ranks, carry_ceilings *ceilings) {
    shared s = {.ctxs = ctxs};
    s.measured = calloc((size_t)ranks, sizeof *s.measured);
    s.statuses = calloc((size_t)ranks, sizeof *s.statuses);
    carry_status status = CARRY_OK;
    if (s.measured == NULL || s.statuses == NULL) {
        status = carry_fail(ctxs[0], CARRY_EMEMORY, "no memory for %d ranks", ranks);
    } else {
        status = report(&s, ranks, carry_ranks_run(ctxs[0], ranks, measure, &s));
    }
    *ceilings = (carry_ceilings){.gemm_gflops = INFINITY, .copy_gbytes_s = INFINITY};
    for (int r = 0; status == CARRY_OK && r < ranks; r++) {
        ceilings->gemm_gflops = fmin(ceilings->gemm_gflops, s.measured[r].gemm_gflops);
        ceilings->copy_gbytes_s = fmin(ceilings->copy_gbytes_s, s.measured[r].copy_gbytes_s);
    }
    free(s.measured);
    free(s.statuses);
    return status;
}

carry_status carry_bench_problem_ranks(carry_ctx *const *ctxs, int ranks, const char *problem,
                                       const carry_ceilings *ceilings, const carry_bench_options *options,
                                       carry_bench_result results[CARRY_BENCH_METHODS], int *count) {
    shared s = {.ctxs = ctxs, .problem = problem, .ceilings = ceilings, .options = options};
    s.results = calloc((size_t)ranks * CARRY_BENCH_METHODS, sizeof *s.results);
    s.counts = calloc((size_t)ranks, sizeof *s.counts);
    s.statuses = calloc((size_t)ranks, sizeof *s.statuses);
    *count = 0;
    carry_status status = CARRY_OK;
    if (s.results == NULL || s.counts == NULL || s.statuses == NULL) {
        status = carry_fail(ctxs[0], CARRY_EMEMORY, "no memory for %d ranks", ranks);
    } else {
        status = report(&s, ranks, carry_ranks_run(ctxs[0], ranks, bench, &s));
        keep_slowest(&s, ranks, results, count);
    }
    free(s.results);
    free(s.counts);
    free(s.statuses);
    return status;
}
