/* Determines what frames show, only from their pixels, so that the model that generated them need not be trusted. */
#ifndef CARRY_TRAIN_SHAPES_JUDGE_H
#define CARRY_TRAIN_SHAPES_JUDGE_H

#include "train/dit/shapes.h"

typedef struct carry_shapes_verdict {
    int colour;           /* the colour nearest to the mean of the bright pixels; -1: hardly any pixel is bright */
    int direction;        /* direction of the mean step; -1: neither one of the four nor still */
    double right, down;   /* mean step of the centre, in pixels per frame */
    double distance;      /* distance of the mean colour from the colour that was found */
    double area;          /* mean number of bright pixels per frame */
    int64_t frames_shown; /* frames that show something */
} carry_shapes_verdict;

/* frames: [count, 3, side, side], 0 to 1. speed: the expected speed of a moving shape, in pixels per frame. */
carry_shapes_verdict carry_shapes_judge(const float *frames, int64_t count, int64_t side, double speed);

#endif
