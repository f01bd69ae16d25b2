/* Steps of loading: parameters_values.c checks the values of a tensor, parameters_file.c loads one parameter,
   parameters_load.c loads all files. */
#ifndef CARRY_MODEL_PARAMETERS_FILE_H
#define CARRY_MODEL_PARAMETERS_FILE_H

#include "model/parameters.h"

/* The index of the file that has the first tensor of a parameter, or -1. */
int64_t carry_parameters_file_of(const carry_parameters *own, const carry_weights *weights, int64_t index);
/* Loads one parameter. A tensor that is missing, has another shape, or has values that no weight can have is an error
   that names it. */
carry_status carry_parameters_load_one(carry_parameters *own, const carry_weights *weights, int64_t index,
                                       const char *folder);
/* Fails if a value is not finite or is too large for a weight; the error names the tensor and the element. */
carry_status carry_parameters_check_values(const carry_parameters *own, const carry_tensor *from, const char *name,
                                           const char *folder);

#endif
