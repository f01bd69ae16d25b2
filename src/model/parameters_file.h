/* Parts of loading: parameters_values.c has the values of a tensor, parameters_file.c one parameter, parameters_load.c
   all files. */
#ifndef CARRY_MODEL_PARAMETERS_FILE_H
#define CARRY_MODEL_PARAMETERS_FILE_H

#include "model/parameters.h"

/* The file that the first tensor of a parameter is in, or -1. */
int64_t carry_parameters_file_of(const carry_parameters *own, const carry_weights *weights, int64_t index);
/* Refused by name: a tensor that is missing, of another shape, or with values that are not those of weights. */
carry_status carry_parameters_load_one(carry_parameters *own, const carry_weights *weights, int64_t index,
                                       const char *folder);
/* Refused by name and element: values that are not finite, or too large for a weight. */
carry_status carry_parameters_check_values(const carry_parameters *own, const carry_tensor *from, const char *name,
                                           const char *folder);

#endif
