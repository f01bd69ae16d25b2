/* Internals of the chain of kernels: the struct, shared by the files that list and run them. */
#ifndef CARRY_ENGINE_CHAIN_INSIDE_H
#define CARRY_ENGINE_CHAIN_INSIDE_H

#include "engine/chain.h"

#define CARRY_CHAIN_OPS_OF_LAYER 12 /* maximum: each of six maps may need its own product */

struct carry_chain {
    carry_lm *lm;
    carry_lm_state *pool;
    const carry_chain_device *device;
    int ordinal;
    carry_chain_lists lists;
    bool same_bits;
    carry_chain_op *ops;
    int count;
    bool head;           /* the last operation computes the logits */
    bool has_tiles;      /* matrices are quantised */
    bool next_is_second; /* of the products with them */
    void *memory;        /* on the device: all arrays below, for CARRY_CHAIN_SEQUENCES sequences */
    float *h, *part, *rates, *weights;
    int32_t *numbers;
    carry_tensor low, maps, mixed, activated, x; /* [CARRY_CHAIN_SEQUENCES, width], bf16 */
};

/* chain_list.c: lists the kernels of a step in c->ops; false if a matrix is absent or is stored in a form that they do
   not support. */
bool carry_chain_list(carry_chain *c);

#endif
