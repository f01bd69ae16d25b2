/* Names of the tensors of Wan's autoencoder. */
#ifndef CARRY_MODEL_WAN_NAMES_H
#define CARRY_MODEL_WAN_NAMES_H

#include <stdbool.h>
#include <stddef.h>

/* Writes the name in Wan's own file of a tensor that diffusers calls `name`; false if it is unknown. blocks:
   num_res_blocks. */
bool carry_wan_other_name(int blocks, const char *name, char *to, size_t size);

#endif
