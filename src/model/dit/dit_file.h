/* Parts of whole tensors, inside the video transformer's own files. */
#ifndef CARRY_MODEL_DIT_FILE_H
#define CARRY_MODEL_DIT_FILE_H

#include "model/dit/dit.h"

/* The index that a mesh cuts a parameter at: 0, 1, or -1 for one that every rank has whole. */
int carry_dit_cut(const carry_parameter *parameter);
/* This rank's part of parameter `index` out of the whole tensor. */
carry_status carry_dit_take(carry_dit *dit, int64_t index, const void *whole, carry_dtype dtype);

#endif
