/* The built-in proposer: a hill-climb over a plan's parameters.

   It starts at the planner's choice and changes one parameter at a time: the algorithm (and with it the radix, since
   matmul4, matmul8 and matmul16 are three algorithms), the chunk of a chunkwise scan, the number of threads. Each
   neighbour is compared with float64, then timed in turns with the best so far. It becomes the best when it is
   faster by more than the threshold and its 95 % interval excludes 1. When no neighbour is better, the climb ends.
   For scans on the CPU, the algorithm, its chunk and its number of threads are then saved in the wisdom. */
#ifndef CARRY_LAB_CLIMB_TUNE_H
#define CARRY_LAB_CLIMB_TUNE_H

#include <stdbool.h>
#include <stdint.h>

#include "carry/context.h"

typedef struct carry_tune_setting {
    char algorithm[24];
    int64_t chunk; /* 0: the algorithm's own */
    int threads;
} carry_tune_setting;

typedef struct carry_tune_step {
    int number; /* 0 is the planner's choice */
    carry_tune_setting setting;
    double seconds, best_seconds;
    double ratio, low, high; /* the best's time over this one's, with its interval */
    bool kept;
    char reason[256]; /* why it was not kept, or "" */
} carry_tune_step;

typedef struct carry_tune_options {
    double seconds;   /* for each side of a comparison; 0: 0.25 */
    double threshold; /* percent; 0: 1 */
    int most_threads; /* 0: every core that this process may run on */
    bool unchecked;
    uint64_t seed;
    bool (*stop)(void);
    void (*told)(void *user, const carry_tune_step *step);
    void *user;
} carry_tune_options;

typedef struct carry_tune_result {
    carry_tune_setting start, best;
    double start_seconds, best_seconds;
    double gain; /* of the best over the start: the product of the kept steps' ratios */
    int steps, kept;
    int saved; /* plans saved in the wisdom */
    char saved_as[512];
    char not_saved[512]; /* what was not saved and what to write instead, or the reason; "": everything was saved */
} carry_tune_result;

carry_status carry_tune(carry_ctx *ctx, carry_tune_result *result, const char *problem,
                        const carry_tune_options *options);

/* Formats a setting: "chunkwise, chunk 256, 2 threads". */
const char *carry_tune_text(char text[96], const carry_tune_setting *setting);

#endif
