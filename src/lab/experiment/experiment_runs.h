/* A problem measured several times (`runs` of a stage). Every run opens it anew, with new threads, memory and plans,
   and a method's samples are the medians of its runs. If ranks are threads, times differ more between two runs than
   between two samples of one run. */
#ifndef CARRY_LAB_EXPERIMENT_RUNS_H
#define CARRY_LAB_EXPERIMENT_RUNS_H

#include "bench/bench.h"

#define CARRY_EXPERIMENT_RUNS 25

typedef struct carry_runs carry_runs;

/* Returns NULL when out of memory. */
carry_runs *carry_runs_new(void);
void carry_runs_free(carry_runs *runs);

/* Use as carry_bench_options.keep for each run, with the carry_runs as its user. */
void carry_runs_add(void *given, const carry_bench_result *result, const double *samples);

/* Passes the combined result of every method to `keep`, in the order of the first run. Median and spread are those
   of the runs' medians, the error is the largest. If some run could not time a method, the result has that run's
   reason. Curves, such as the losses of a training, are not passed on. */
void carry_runs_tell(const carry_runs *runs, void (*keep)(void *, const carry_bench_result *, const double *),
                     void *user);

#endif
