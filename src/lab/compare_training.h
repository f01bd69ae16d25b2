/* Compares two trainings: speed, loss at equal steps, memory. */
#ifndef CARRY_LAB_COMPARE_TRAINING_H
#define CARRY_LAB_COMPARE_TRAINING_H

#include "bench/sample.h"
#include "lab/store/store.h"

/* The losses of both runs at the steps that both recorded. */
typedef struct carry_loss_pair {
    int steps;    /* number of common steps; 0: the other fields are not set */
    int64_t last; /* the last of them */
    double a, b;  /* there */
    /* Number of last steps averaged: a tenth of them, at least ten if there are that many. */
    int averaged;
    double difference, low, high; /* mean of b - a over these steps, with a 95 % interval by a bootstrap over blocks */
    bool within_noise;            /* the interval contains 0 */
} carry_loss_pair;

typedef struct carry_training_pair {
    double a_tokens, b_tokens; /* tokens per second, medians over the steps; NaN: not recorded */
    carry_ratio speed;         /* b over a: above 1, b is faster */
    double a_memory, b_memory; /* maximum bytes; NaN: not recorded */
    carry_loss_pair loss, held_out;
    bool same_machine, same_options;
} carry_training_pair;

/* True if a run has the metrics of a training. */
bool carry_is_training(const carry_run *run);
/* slack as in carry_compare. CARRY_EARGUMENT if the runs have neither a step nor a speed in common. */
carry_status carry_compare_training(carry_ctx *ctx, carry_training_pair *pair, const carry_run *a, const carry_run *b,
                                    double slack);

#endif
