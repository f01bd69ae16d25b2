/* The checkpoints of the loop over steps. */
#ifndef CARRY_TRAIN_STEPS_STATE_H
#define CARRY_TRAIN_STEPS_STATE_H

#include "train/steps.h"

/* A collective; nothing is done when this step is saved. */
carry_status carry_steps_save(carry_steps *s);

#endif
