/* Rings of the delta rule's states in a pool (carry_delta_step_ring): steps of many sequences write their states once
   in CARRY_LM_RING tokens and keep the tokens since then. Every slot has a ring in each layer with the delta rule. A
   call uses them for its steps if places->rings is set; before anything else reads or writes the states of a slot whose
   ring has tokens, fold them in. */
#ifndef CARRY_MODEL_LM_RINGS_H
#define CARRY_MODEL_LM_RINGS_H

#include "model/lm/lm_pass.h"

/* The sizes of a model's rings, in layers whose states are in f32. bytes: of the rings of one slot. pays: they make
   steps of many sequences on a GPU faster. That was measured for heads of 128 keys and values alone. */
typedef struct carry_lm_ring_sizes {
    size_t bytes;
    bool pays;
} carry_lm_ring_sizes;
carry_lm_ring_sizes carry_lm_rings_measure(const carry_lm *lm);

/* Gives every slot of the pool empty rings. *made is false if no layer of the model has rings. */
carry_status carry_lm_rings_open(const carry_lm_pass *pass, carry_lm_state *pool, bool *made);
/* Adds the tokens of a slot's rings to its states; slot -1: of all slots. Empties the rings. */
carry_status carry_lm_rings_fold(const carry_lm_pass *pass, const carry_lm_state *pool, int64_t slot);
void carry_lm_rings_close(carry_lm_state *pool);

#endif
