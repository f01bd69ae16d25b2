/* A bench on several ranks at once: the same problem, each rank on a context of its own. A method's figures are those
   of the rank that was slowest at it, since whoever waits for all ranks waits for that one. */
#ifndef CARRY_LAB_BENCH_RANKS_H
#define CARRY_LAB_BENCH_RANKS_H

#include "lab/bench.h"

/* Measured by all ranks at the same time: what the least of them gets. */
carry_status carry_ceilings_measure_ranks(carry_ctx *const *ctxs, int ranks, carry_ceilings *ceilings);

/* As carry_bench_problem. Progress is rank 0's, nothing is given to options->keep, and the sentence of a failure is in
   ctxs[0], with its rank. */
carry_status carry_bench_problem_ranks(carry_ctx *const *ctxs, int ranks, const char *problem,
                                       const carry_ceilings *ceilings, const carry_bench_options *options,
                                       carry_bench_result results[CARRY_BENCH_METHODS], int *count);

#endif
