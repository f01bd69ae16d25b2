/* Experiments: a hypothesis, a grid of problems, methods, and criteria that decide. See docs/experiments.md for the
   file format.

       carry_experiment_load     reads the file, and refuses errors before anything runs
       carry_experiment_measure  times every problem that can run here; stores the reason for the others
       carry_experiment_judge    gives a verdict per criterion, and a decision over all */
#ifndef CARRY_LAB_EXPERIMENT_H
#define CARRY_LAB_EXPERIMENT_H

#include "bench/bench.h"
#include "lab/experiment/criteria.h"
#include "lab/store/store.h"
#include "lab/yaml.h"

#define CARRY_EXPERIMENT_POINTS 512
#define CARRY_EXPERIMENT_CRITERIA 128
#define CARRY_EXPERIMENT_STAGES 16
#define CARRY_EXPERIMENT_STOPS 8
#define CARRY_EXPERIMENT_BINDINGS 8
#define CARRY_EXPERIMENT_WORD 40
#define CARRY_EXPERIMENT_SPREAD 0.5 /* default of `spread` */

/* Names of additional metrics of problems on several ranks, trainings and streams. The step of such a metric is the
   index of its result in the run. */
#define CARRY_RECEIVED "received"
#define CARRY_EXPOSED "exposed"
#define CARRY_PERPLEXITY "perplexity"
#define CARRY_BUSY "busy"
#define CARRY_TRAINING_COST "cost"
#define CARRY_OVERLAP "overlap"
#define CARRY_SLOWER_STAGE "slower_stage"
#define CARRY_BLOCK_DENOISE "denoise"
#define CARRY_BLOCK_RECOMPUTE "recompute"
#define CARRY_BLOCK_CLEAN "clean"
#define CARRY_BLOCK_DECODE "decode"
#define CARRY_RANKS "ranks"
/* Number of the invocation that measured the result; 0, that of the first, is not stored. */
#define CARRY_INVOCATION "invocation"
#define CARRY_COST "device_seconds" /* of a problem with all its methods, stored at the index of its first result */

/* Curves are metrics too, named WHAT:WHICH; curves with the same WHAT are drawn in one plot. */
#define CARRY_LOSS "loss"

/* One problem of the grid, with the values that were substituted in its template. */
typedef struct carry_point {
    char problem[CARRY_PROBLEM_TEXT];
    int stage;
    char missing[160]; /* the feature that this build or machine lacks, or "" */
    bool is_done;      /* measured by an earlier invocation (carry_experiment_restore) */
} carry_point;

typedef struct carry_stage {
    char name[CARRY_EXPERIMENT_WORD];
    const char *methods[CARRY_BENCH_METHODS + 1];
    int repeats, warm_up;
    int runs; /* number of runs of a problem, each opened anew (experiment_runs.h) */
    double seconds;
    double spread; /* times with a larger interquartile range over the median count as not measured */
    bool hot, unchecked;
    int priority;
    double budget; /* seconds for all entries of this name; 0: no limit */
    double spent;  /* seconds that were */
} carry_stage;

typedef struct carry_experiment_criterion {
    bool is_failure;
    char text[CARRY_CRITERION_TEXT];
    int line;
    carry_criterion *parsed;
    carry_verdict verdict; /* after carry_experiment_judge */
} carry_experiment_criterion;

typedef struct carry_experiment {
    carry_ctx *ctx;
    const char *path; /* for messages */
    char *text;       /* the file */
    carry_yaml *yaml;
    const char *name, *hypothesis;
    int stages, points, criteria, outcomes, outcome_room;
    carry_stage stage[CARRY_EXPERIMENT_STAGES];
    carry_point point[CARRY_EXPERIMENT_POINTS];
    carry_experiment_criterion criterion[CARRY_EXPERIMENT_CRITERIA];
    carry_outcome *outcome; /* one per problem and method */
    double budget;          /* seconds for all stages; 0: no limit */
    double price;           /* of a GPU hour; 0: not stated */
    double contention;      /* largest share of its processor time that a problem lost to other processes */
    int stops;
    carry_experiment_criterion stop[CARRY_EXPERIMENT_STOPS]; /* stop_when: measuring ends once one is met */
    bool stop_decided;                                       /* stop_when: decided */
} carry_experiment;

typedef enum carry_decision { CARRY_PROCEED, CARRY_STOP, CARRY_INCOMPLETE } carry_decision;
const char *carry_decision_name(carry_decision decision);

carry_status carry_experiment_load(carry_ctx *ctx, carry_experiment **experiment, const char *path);
/* Loads an experiment from the text stored in a run. Messages call it `path`, which must outlive the experiment. */
carry_status carry_experiment_load_text(carry_ctx *ctx, carry_experiment **experiment, const char *text,
                                        const char *path);
void carry_experiment_free(carry_experiment *experiment);

typedef struct carry_experiment_options {
    const char *stage; /* measure only this stage; NULL: all */
    uint64_t seed;
    carry_store *store; /* NULL: nothing is stored */
    int64_t run;
    int continues; /* for a run that already has results: the number of this invocation (carry_store_resume), else 0 */
    carry_comm
        /* All of its ranks measure; NULL: a single process. On several ranks, problems of one rank are left out. */
        *comm;
    bool (*stop)(void);
    void (*began)(void *user, int point, const char *problem);
    void (*measured)(void *user, const carry_outcome *outcome);
    void *user;
} carry_experiment_options;

/* Lists the files experiments/NAME.yaml of this folder or the nearest parent that has experiments/, else those of the
   installation, by name, with the first sentence of the hypothesis or the error in the file. CARRY_ENOTFOUND if there
   is no such folder. */
typedef void (*carry_experiment_row)(void *user, const char *name, const char *about, const char *path);
carry_status carry_experiment_list(carry_ctx *ctx, carry_experiment_row tell, void *user);

/* Refuses a stage that the experiment does not have. NULL: all stages. */
carry_status carry_experiment_stage(const carry_experiment *experiment, const char *stage);
/* Loads the results of a stored run of this experiment, so that those problems are not measured again. Call it on rank
   0 only: rank 0 decides for all ranks which problems to measure. CARRY_EFORMAT if the results are not in the
   experiment's order. */
carry_status carry_experiment_restore(carry_experiment *experiment, const carry_run *run);
/* Measures the grid. Each outcome is stored as soon as its problem is done. CARRY_EINTERRUPTED when `stop` returned
   true. A collective on several ranks; only rank 0 has outcomes and a store, and calls `measured`. */
carry_status carry_experiment_measure(carry_experiment *experiment, const carry_ceilings *ceilings,
                                      const carry_experiment_options *options);
/* Fills in every verdict, and stores them if there is a store. The decision is "stop" if a criterion of success is not
   met or one of failure is met; else "incomplete" if a criterion or any problem of the grid was not measured, even a
   problem that no criterion uses; else "proceed". */
carry_status carry_experiment_judge(carry_experiment *experiment, carry_decision *decision,
                                    const carry_experiment_options *options);

#endif
