/* The work of a step on a device: launched piece by piece, or recorded once and replayed as one CUDA graph. */
#ifndef CARRY_TRAIN_STEPS_GRAPH_H
#define CARRY_TRAIN_STEPS_GRAPH_H

#include "train/steps.h"

/* Makes a stream for the context, since the device's default stream cannot be recorded. Does nothing on the CPU. */
carry_status carry_steps_open_stream(carry_steps *s);
void carry_steps_close_stream(carry_steps *s);

/* Enqueues gradients, their norm and the optimizer, for one rank. The sums go to `now`; the rate must have been set. */
carry_status carry_steps_enqueue(carry_steps *s, carry_tensor now);

#endif
