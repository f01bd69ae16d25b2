/* The learning rate of a step. With warm-up w, last step n and steps counted from 1:

       t <= w:  rate t / w
       t > w:   rate (final + (1 - final) f((t - w) / (n - w))),   f(x) = 1, 1 - x, or (1 + cos(pi x)) / 2

   so the last step has rate * final (rate if constant), and so has any later step. */
#ifndef CARRY_TRAIN_SCHEDULE_H
#define CARRY_TRAIN_SCHEDULE_H

#include <stdint.h>

#include "carry/context.h"

typedef enum carry_schedule_kind {
    CARRY_SCHEDULE_CONSTANT,
    CARRY_SCHEDULE_LINEAR,
    CARRY_SCHEDULE_COSINE
} carry_schedule_kind;

typedef struct carry_schedule {
    carry_schedule_kind kind;
    double rate, final; /* final: a fraction of rate, 0 to 1; a constant schedule ignores it */
    int64_t warmup, steps;
} carry_schedule;

carry_status carry_schedule_parse(carry_ctx *ctx, carry_schedule_kind *kind, const char *name);
double carry_schedule_rate(const carry_schedule *schedule, int64_t step);

#endif
