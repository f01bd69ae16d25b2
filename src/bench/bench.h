/* Times methods on a problem reliably.

   A method is compared with the float64 reference before it is timed. Runs rotate through sets of inputs that
   together have twice the size of the last-level cache (at most 512 MB and 64 sets; one set if hot). After one or more
   warm-up runs, runs are timed one by one until there are enough; the median and the spread (the interquartile range
   over the median) are reported. The methods of a problem take turns of about 0.03 seconds, so that a disturbance of
   the machine affects all of them.

   The ceilings (carry_ceilings) are measured in the same process; the one that limits a method is its binding ceiling.
   For problems of one rank on the CPU, the binding ceiling is measured again after every turn, for as long as the turn
   took (at most 0.1 seconds), and the method's share is the median over turns of its mean rate over the ceiling's. If
   the ceiling were measured only once, in a quiet moment, another program that runs later could halve a share.

   A problem for several ranks is timed by all of them together: they start at a barrier, and a run takes as long as
   its slowest rank. All ranks use these times and not their own clocks, so that all make the same number of runs. */
#ifndef CARRY_LAB_BENCH_H
#define CARRY_LAB_BENCH_H

#include "carry/tensor.h"
#include "bench/collective.h"

typedef struct carry_ceilings {
    double gemm_gflops;   /* rate of the best large product of a type, on all threads of the CPU or on a GPU */
    double copy_gbytes_s; /* a copy much larger than the caches; counts bytes read and written */
} carry_ceilings;

/* The ceilings of the CPU. ranks: number of ranks on this machine that measure at the same time. */
carry_status carry_ceilings_measure(carry_ctx *ctx, int ranks, carry_ceilings *ceilings);
carry_status carry_ceilings_measure_on(carry_ctx *ctx, int device, carry_dtype type, carry_ceilings *ceilings);

typedef struct carry_bench_result {
    char algorithm[24];
    double median, spread; /* seconds; interquartile range over the median */
    int repeats;
    carry_counts counts;
    double share;            /* of the binding ceiling; NaN for a problem of several ranks */
    carry_ceilings ceilings; /* of the device it ran on; on the CPU, the binding one is its median over the turns */
    int device;              /* the device it ran on */
    carry_dtype type;        /* type of the products in its ceiling */
    carry_deviation worst;   /* the tensor with the largest error relative to its bound */
    bool planned;            /* it is the planner's choice */
    int rank;                /* the rank that these figures are from (bench_ranks.h) */
    /* Ranks that solved it together, and cores of their machines; 0: not a problem of several ranks. */
    int ranks, cores;
    double exposed_low, exposed_high; /* quartiles of counts.exposed over the runs, with several ranks */
    char reason[256];                 /* why there is no time, else "" */
    const double *curve;              /* valid while `keep` is called: the family's curve, or NULL */
    int curve_count;
} carry_bench_result;

typedef struct carry_bench_options {
    int repeats;                /* minimum; 0: as many as `seconds` allow, 5 to 2000 */
    double seconds;             /* per method; 0: 0.3 */
    bool hot;                   /* use one set of inputs, in cache if it fits */
    bool unchecked;             /* skip the comparison, if the float64 reference would take too long */
    int warm_up;                /* number of runs before the first timed one; 0: one */
    const char *const *methods; /* the methods to time, in this order, with NULL at the end; NULL: all of the family */
    uint64_t seed;
    /* For problems of several ranks: the existing ranks, which all call with the same arguments. NULL or a single
       rank: threads are started (collective.h). Rank 0 gets the results. */
    carry_comm *comm;
    /* Called with each result when it is complete, and its samples in the order taken; with several ranks, on rank
       0. */
    void (*keep)(void *user, const carry_bench_result *result, const double *samples);
    void *keep_user;
    bool (*stop)(void); /* called between runs; NULL: never */
    void (*progress)(void *user, double share);
    void *progress_user;
} carry_bench_options;

#define CARRY_BENCH_METHODS 24

/* Gives one result per method, in the order of options->methods or else of the family's table; methods that do not
   apply have a reason and no median. CARRY_EINTERRUPTED when `stop` returned true: the results so far are valid. */
carry_status carry_bench_problem(carry_ctx *ctx, const char *problem, const carry_ceilings *ceilings,
                                 const carry_bench_options *options, carry_bench_result results[CARRY_BENCH_METHODS],
                                 int *count);

#endif
