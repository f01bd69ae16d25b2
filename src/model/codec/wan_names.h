/* Names of the tensors of Wan's autoencoder. */
#ifndef CARRY_MODEL_WAN_NAMES_H
#define CARRY_MODEL_WAN_NAMES_H

#include <stdbool.h>
#include <stddef.h>

/* Writes the name that Wan's own file gives to the tensor that diffusers calls `name`; returns false if `name` is
   unknown. blocks: num_res_blocks. */
bool carry_wan_other_name(int blocks, const char *name, char *to, size_t size);

#endif
