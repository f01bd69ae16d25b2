/* Quantised weights of a model's files (file/quantised.h, file/gguf.h): for parameters_file.c. */
#ifndef CARRY_MODEL_PARAMETERS_QUANTISED_H
#define CARRY_MODEL_PARAMETERS_QUANTISED_H

#include "model/parameters.h"

/* Decodes a tensor to f32 in host memory; a scale that is not finite is an error. */
carry_status carry_parameters_decode(const carry_parameters *own, const carry_tensor *from, const char *name,
                                     const char *folder, float *to);
/* For carry_parameters_map: carry_parameters_map_quantised keeps a parameter quantised where possible. On a GPU,
   carry_parameters_move then takes those parameters out of the flat buffers. */
void carry_parameters_move(carry_parameters *own);
carry_status carry_parameters_map_quantised(carry_parameters *own, int64_t index, const carry_tensor *from);
/* For loading: checks the parameter if it is mapped, else decodes and stores its values. */
carry_status carry_parameters_load_quantised(carry_parameters *own, int64_t index, const carry_tensor *from,
                                             const char *folder);
/* Decodes the first `count` elements to f32. */
carry_status carry_parameters_sample_quantised(const carry_parameters *own, float *to, int64_t index, int64_t count);

#endif
