/* Timing methods on a problem reliably.

   A method is compared with the float64 reference before it is timed. Inputs are rotated through enough sets to
   exceed the last-level cache (or one set, if hot). After one warm-up run, runs are timed one by one until there are
   enough; the median and the spread (the interquartile range over the median) are reported. The methods of a problem
   take turns run by run, so that a disturbance of the machine affects all of them. Ceilings are measured in the same
   process. On the CPU the one that binds is measured again after every turn, for as long as the turn took; the share
   is the median over the turns of one mean rate over the other. The best of many products in a quiet moment would be
   compared with the median of runs in all moments otherwise, and one program beside them would halve a share.

   A problem for several ranks is timed by all of them together: they start at a barrier, and a run takes as long as
   its slowest rank. All ranks use these times and not their own clocks, so that all make the same number of runs. */
#ifndef CARRY_LAB_BENCH_H
#define CARRY_LAB_BENCH_H

#include "carry/tensor.h"
#include "bench/collective.h"

typedef struct carry_ceilings {
    double gemm_gflops;   /* the best large product of a type, on all threads of the CPU or on a GPU */
    double copy_gbytes_s; /* a copy far beyond the caches, bytes read and written */
} carry_ceilings;

/* Of the CPU; ranks: of this machine, that measure at the same time. */
carry_status carry_ceilings_measure(carry_ctx *ctx, int ranks, carry_ceilings *ceilings);
carry_status carry_ceilings_measure_on(carry_ctx *ctx, int device, carry_dtype type, carry_ceilings *ceilings);

typedef struct carry_bench_result {
    char algorithm[24];
    double median, spread; /* seconds; share of the median */
    int repeats;
    carry_counts counts;
    double share;            /* of the ceiling that binds; NaN for a problem of several ranks */
    carry_ceilings ceilings; /* of the device it ran on; on the CPU the one that binds is its median in turns */
    int device;              /* that device */
    carry_dtype type;        /* that its ceiling of products is of */
    carry_deviation worst;   /* the tensor nearest to or farthest beyond its bound */
    bool planned;            /* the planner's choice */
    int rank;                /* that these figures are of (bench_ranks.h) */
    int ranks, cores;        /* that worked on it together, and of their machines; 0: it is no problem of several */
    double exposed_low, exposed_high; /* quartiles of counts.exposed over the runs, of several ranks */
    char reason[256];                 /* why there is no time, else "" */
    const double *curve;              /* for keep, while it is called: the family's, or NULL */
    int curve_count;
} carry_bench_result;

typedef struct carry_bench_options {
    int repeats;                /* at least; 0: as many as `seconds` allow, 5 to 2000 */
    double seconds;             /* per method; 0: 0.3 */
    bool hot;                   /* one set of inputs, in cache where it fits */
    bool unchecked;             /* for sizes whose float64 reference would take too long */
    int warm_up;                /* runs before the first timed one; 0: one */
    const char *const *methods; /* to be timed, in this order; NULL at the end; NULL: all of the family */
    uint64_t seed;
    /* For problems of several ranks: those that there are, all of which call with the same arguments. NULL or one:
       threads are started (collective.h). Rank 0 gets the results. */
    carry_comm *comm;
    /* Given each result once it is whole, with its samples in the order taken. Of several ranks, rank 0 is. */
    void (*keep)(void *user, const carry_bench_result *result, const double *samples);
    void *keep_user;
    bool (*stop)(void); /* asked between runs; NULL: never */
    void (*progress)(void *user, double share);
    void *progress_user;
} carry_bench_options;

#define CARRY_BENCH_METHODS 24

/* One result per method, in the table's order; those that do not apply have a reason and no median.
   CARRY_EINTERRUPTED when stop returned true: the results so far stand. */
carry_status carry_bench_problem(carry_ctx *ctx, const char *problem, const carry_ceilings *ceilings,
                                 const carry_bench_options *options, carry_bench_result results[CARRY_BENCH_METHODS],
                                 int *count);

#endif
