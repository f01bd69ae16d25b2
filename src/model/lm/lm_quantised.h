/* Quantised matrices of a language model, for lm.c. */
#ifndef CARRY_MODEL_LM_QUANTISED_H
#define CARRY_MODEL_LM_QUANTISED_H

#include "model/lm/lm.h"

/* Marks the matrices that are in linear maps or the embeddings alone; kernels of convolutions have fewer columns. */
void carry_lm_mark_tiled(carry_lm *lm);
/* The padding of maps moves with the parameters when quantised ones leave the buffers. */
void carry_lm_move_rest(carry_lm *lm);
/* Random values of a quantised parameter: up to 256 rows, which repeat. */
carry_status carry_lm_start_quantised(carry_lm *lm, int64_t index, uint64_t seed, uint64_t stream);

#endif
