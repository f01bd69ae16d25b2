/* Other names of tensors in files (lm_names.c). */
#ifndef CARRY_MODEL_LM_NAMES_H
#define CARRY_MODEL_LM_NAMES_H

#include <stdbool.h>
#include <stddef.h>

/* carry_parameters.other of models from transformers. */
bool carry_lm_other_name(const char *name, int which, bool pieces, char *to, size_t size);
/* The way back: the parameter that a name of a file stands for. */
void carry_lm_own_name(const char *name, char *to, size_t size);
/* What a tensor that is not used belongs to, or NULL. */
const char *carry_lm_passed_over(const char *name);

#endif
