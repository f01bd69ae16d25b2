/* A bench on all ranks of a communicator at once: the same problem, each rank with its own context. The figures of a
   method are those of its slowest rank, since a program that waits for all ranks waits for that one.

   Both functions are collective: all ranks call them with the same arguments and get the same figures. A rank that
   fails does not end the communicator: it gets its own status, and the others get CARRY_EPEER with its message. */
#ifndef CARRY_LAB_BENCH_RANKS_H
#define CARRY_LAB_BENCH_RANKS_H

#include "carry/comm.h"
#include "bench/bench.h"

/* Measures on all ranks at the same time, and gives the lowest figures over the ranks. */
carry_status carry_ceilings_measure_ranks(carry_comm *comm, carry_ceilings *ceilings);

/* As carry_bench_problem. A problem of several ranks (collective.h) is solved by the ranks together, and options->keep
   is called on rank 0. On several ranks, a problem of one rank is run by each of them; only rank 0 reports progress,
   and keep is not called. */
carry_status carry_bench_problem_ranks(carry_comm *comm, const char *problem, const carry_ceilings *ceilings,
                                       const carry_bench_options *options,
                                       carry_bench_result results[CARRY_BENCH_METHODS], int *count);

#endif
