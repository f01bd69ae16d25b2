/* Quantised weights of a model's files (file/quantised.h, file/gguf.h): for parameters_file.c. */
#ifndef CARRY_MODEL_PARAMETERS_QUANTISED_H
#define CARRY_MODEL_PARAMETERS_QUANTISED_H

#include "model/parameters.h"

/* The tensor in f32, to host memory; scales that are not finite are refused. */
carry_status carry_parameters_decode(const carry_parameters *own, const carry_tensor *from, const char *name,
                                     const char *folder, float *to);
/* For carry_parameters_map: the parameter stays quantised, where that is possible. On a GPU carry_parameters_move then
   takes those parameters out of the flat buffers. */
void carry_parameters_move(carry_parameters *own);
carry_status carry_parameters_map_quantised(carry_parameters *own, int64_t index, const carry_tensor *from);
/* For loading: checks a mapped parameter, else stores the decoded values. */
carry_status carry_parameters_load_quantised(carry_parameters *own, int64_t index, const carry_tensor *from,
                                             const char *folder);
/* The first `count` elements in f32. */
carry_status carry_parameters_sample_quantised(const carry_parameters *own, float *to, int64_t index, int64_t count);

#endif
