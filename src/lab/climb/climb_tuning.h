/* Shared by the climb over parameters (climb_tune.c) and its comparisons (climb_duel.c). */
#ifndef CARRY_LAB_CLIMB_TUNING_H
#define CARRY_LAB_CLIMB_TUNING_H

#include "core/context.h"
#include "lab/climb/climb_tune.h"
#include "bench/family/family.h"

#define TUNE_RUNS 1000
#define TUNE_TRIED 512
#define TUNE_HELD 32

/* A setting that can be run. It has its own context, which owns its threads. */
typedef struct contender {
    carry_tune_setting setting;
    carry_ctx *ctx;
    void *instance;
    double samples[TUNE_RUNS];
    int count;
    double spent;
} contender;

typedef struct tuning {
    carry_ctx *ctx;
    const carry_tune_options *options;
    carry_tune_result *result;
    const carry_family *family;
    char problem[CARRY_PROBLEM_TEXT];
    int64_t steps; /* number of steps of a scan, for its chunks; else 0 */
    int most_threads;
    bool on_gpu; /* true if there are no CPU threads to tune */
    carry_tune_setting tried[TUNE_TRIED];
    int tried_count;
    struct { /* the best setting for each number of threads, for the wisdom */
        carry_tune_setting setting;
        double seconds;
    } holdable[TUNE_HELD];
    int holdable_count;
} tuning;

/* Parses the problem's text, with this chunk unless it is 0. */
carry_status tune_parse(tuning *t, carry_problem *problem, int64_t chunk);
carry_status tune_context(tuning *t, carry_ctx **made, int threads);
/* Prepares a setting to run. CARRY_EUNSUPPORTED with the reason if it does not apply. */
carry_status tune_enter(tuning *t, contender **entered, const carry_tune_setting *setting);
void tune_leave(tuning *t, contender *c);
/* Compares with float64; if the result is wrong, `reason` says so. */
carry_status tune_check(tuning *t, contender *c, char reason[256]);
/* Times a single contender. */
carry_status tune_time(tuning *t, contender *c, double *seconds);
/* Times two settings in turns and fills in the step. */
carry_status tune_duel(tuning *t, contender *best, contender *c, carry_tune_step *step);

#endif
