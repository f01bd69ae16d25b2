/* The parameters of a model: a flat f32 buffer and a list of what lies where in it, so that optimizers, reductions and
   files see arrays. */
#ifndef CARRY_MODEL_PARAMETERS_H
#define CARRY_MODEL_PARAMETERS_H

#include <stdbool.h>

#include "carry/tensor.h"

typedef struct carry_parameter {
    char name[64];
    int rank;
    int64_t shape[5];
    int64_t offset, count; /* elements in the flat buffers; offsets are multiples of 16, the gaps are zero for good */
    bool decays;           /* does weight decay reach it? */
    int start;             /* how it starts: the model's own */
} carry_parameter;

typedef struct carry_parameters {
    int64_t parameters;
    carry_parameter *parameter;
    int64_t count;   /* elements of each flat buffer */
    int64_t trained; /* of those, without the gaps: the number of parameters */
    float *weights;
    float *gradients; /* NULL until wanted */
} carry_parameters;

#endif
