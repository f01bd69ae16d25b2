/* What do frames show? Judged only from pixels, so that the model that drew them need not be trusted. */
#ifndef CARRY_TRAIN_SHAPES_JUDGE_H
#define CARRY_TRAIN_SHAPES_JUDGE_H

#include "train/dit/shapes.h"

typedef struct carry_shapes_verdict {
    int colour;           /* the nearest to the mean of the bright pixels; -1: hardly any are bright */
    int direction;        /* of the mean step; -1: neither one of the four nor still */
    double right, down;   /* the mean step of the centre, pixels a frame */
    double distance;      /* of the mean colour from the one that was found */
    double area;          /* bright pixels of a frame, in the mean */
    int64_t frames_shown; /* frames that show something */
} carry_shapes_verdict;

/* frames: [count, 3, side, side], 0 to 1. speed: pixels a frame that a moving shape should go. */
carry_shapes_verdict carry_shapes_judge(const float *frames, int64_t count, int64_t side, double speed);

#endif
