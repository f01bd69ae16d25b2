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
/* The same for experts that a file has in pieces, on a GPU: true if a piece can be a part of the parameter's tiles.
 *format: NULL for the first piece, which sets it; later pieces must have the same. */
bool carry_parameters_piece_fits(const carry_parameter *p, const carry_tensor *piece,
                                 const carry_quant_format **format);
carry_status carry_parameters_map_pieces(carry_parameters *own, int64_t index, const carry_quant_format *format);
/* Stores a piece as rows first, first + 1, ... of all rows of the experts. beside: device memory for the blocks of one
   matrix. */
carry_status carry_parameters_load_piece(carry_parameters *own, int64_t index, int64_t first, const carry_tensor *from,
                                         const char *name, const char *folder, void *beside);
/* For loading: checks the parameter if it is mapped, else decodes and stores its values. */
carry_status carry_parameters_load_quantised(carry_parameters *own, int64_t index, const carry_tensor *from,
                                             const char *folder);
/* Decodes the first `count` elements to f32. */
carry_status carry_parameters_sample_quantised(const carry_parameters *own, float *to, int64_t index, int64_t count);

#endif
