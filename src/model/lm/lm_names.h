/* Other names of tensors in files (families/family.h: carry_lm_file_names). */
#ifndef CARRY_MODEL_LM_NAMES_H
#define CARRY_MODEL_LM_NAMES_H

#include "model/lm/families/family.h"

/* carry_parameters.other; names is a carry_lm_file_names. */
bool carry_lm_other_name(const void *names, const char *name, int which, bool pieces, char *to, size_t size);
/* The inverse: writes to `to` the name of the parameter that a tensor of a file belongs to. Returns the number of the
   expert in the file's name, or -1. */
int64_t carry_lm_own_name(const carry_lm_file_names *names, const char *name, char *to, size_t size);
/* The part of the model that an ignored tensor belongs to, or NULL. */
const char *carry_lm_ignored(const carry_lm_file_names *names, const char *name);

#endif
