/* The factors of AdamW, the same for every backend. */
#ifndef CARRY_OPS_OPTIMIZER_H
#define CARRY_OPS_OPTIMIZER_H

#include "carry/nn.h"
#include "ops/kernels/rows.h"

carry_adam_factors carry_adam_factors_of(const carry_adamw *options, double clip);

#endif
