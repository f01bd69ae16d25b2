/* The tensor names of a video transformer in published files: those of Wan, those of diffusers
   (WanTransformer3DModel), and either with a prefix from training (Self-Forcing, CausVid). */
#ifndef CARRY_MODEL_DIT_NAMES_H
#define CARRY_MODEL_DIT_NAMES_H

#include <stdbool.h>
#include <stddef.h>

/* carry_parameters.other. */
bool carry_dit_other_name(const void *names, const char *name, int which, bool pieces, char *to, size_t size);
/* Writes Wan's own name of a tensor, given any of its names. */
void carry_dit_own_name(const char *name, char *to, size_t size);

#endif
