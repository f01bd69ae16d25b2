/* A problem measured several times (`runs` of a stage): every run opens it anew, with new threads, memory and plans,
   and a method's samples are then the medians of its runs. Times of ranks that are threads differ more between two runs
   than between two samples of one. */
#ifndef CARRY_LAB_EXPERIMENT_RUNS_H
#define CARRY_LAB_EXPERIMENT_RUNS_H

#include "bench/bench.h"

#define CARRY_EXPERIMENT_RUNS 25

typedef struct carry_runs carry_runs;

/* NULL: out of memory. */
carry_runs *carry_runs_new(void);
void carry_runs_free(carry_runs *runs);

/* carry_bench_options.keep for each run, with the carry_runs as its user. */
void carry_runs_add(void *given, const carry_bench_result *result, const double *samples);

/* Gives the combined result of every method to keep, in the order of the first run: median and spread are those of the
   runs' medians, the error is the largest. A method that some run could not time has that run's reason. Losses are not
   kept. */
void carry_runs_tell(const carry_runs *runs, void (*keep)(void *, const carry_bench_result *, const double *),
                     void *user);

#endif
