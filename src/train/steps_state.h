/* The checkpoints of the loop over steps. */
#ifndef CARRY_TRAIN_STEPS_STATE_H
#define CARRY_TRAIN_STEPS_STATE_H

#include "train/steps.h"

/* Saves a checkpoint. A collective; does nothing if this step is already saved. */
carry_status carry_steps_save(carry_steps *s);

#endif
