/* Quantised matrices of a language model, for lm.c. */
#ifndef CARRY_MODEL_LM_QUANTISED_H
#define CARRY_MODEL_LM_QUANTISED_H

#include "model/lm/lm.h"

/* Marks the matrices that only linear maps, grouped products of experts and the embeddings use; the kernels of
   convolutions have too few columns. */
void carry_lm_mark_tiled(carry_lm *lm);
/* Updates the offsets of the maps' padding after quantised parameters have left the flat buffers. */
void carry_lm_move_rest(carry_lm *lm);
/* Fills a quantised parameter with up to 64 random rows, which repeat. */
carry_status carry_lm_start_quantised(carry_lm *lm, int64_t index, uint64_t seed, uint64_t stream);

#endif
