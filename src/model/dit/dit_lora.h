/* LoRA files for a video transformer: W' = W + scale (alpha / r) B A for the matrices that a file names.

   A file is a .safetensors with NAME.lora_A.weight [r, in] and NAME.lora_B.weight [out, r], or lora_down and lora_up in
   their place, and optionally NAME.alpha (r without it); NAME is a matrix of the model by any of its names
   (dit_names.h). The weights without a LoRA are kept in host memory, in the type in which the model has them, so that
   switching is exact: the weights of a file do not depend on those that were used before it. */
#ifndef CARRY_MODEL_DIT_LORA_H
#define CARRY_MODEL_DIT_LORA_H

#include "model/dit/dit.h"

#define CARRY_LORAS 8

typedef struct carry_lora_file {
    const char *path;
    double scale;
} carry_lora_file;

typedef struct carry_dit_loras carry_dit_loras;
/* Opens `count` files and checks them against the model, whose weights must have been loaded; none is applied yet. A
   tensor that is not part of a LoRA, names no matrix of the model, or does not fit its shape is an error that names
   it. */
carry_status carry_dit_loras_new(carry_dit *dit, carry_dit_loras **made, const carry_lora_file *files, int count);
void carry_dit_loras_free(carry_dit_loras *loras); /* the current weights stay; NULL is accepted */
/* Applies file `which`, counted from 1; 0 restores the original weights. Waits for earlier work on the device and for
   the copies. */
carry_status carry_dit_loras_use(carry_dit_loras *loras, int which);

#endif
