/* The tensors of an attention problem, on the CPU or a GPU, and the arguments made from them. */
#ifndef CARRY_LAB_ATTENTION_SET_H
#define CARRY_LAB_ATTENTION_SET_H

#include <stdbool.h>

#include "carry/attention.h"

#define CARRY_ATTENTION_BIASED_RUNS 3

typedef struct carry_attention_problem {
    carry_dtype dtype;
    int64_t heads, key_heads, queries, keys, dim;
    bool biased, backward, causal;
    int device;
    carry_key_run run[CARRY_ATTENTION_BIASED_RUNS]; /* runs of keys, if biased */
} carry_attention_problem;

/* The last four exist only for the backward pass. */
enum { SET_Q, SET_K, SET_V, SET_O, SET_LSE, SET_D_O, SET_DQ, SET_DK, SET_DV, SET_TENSORS };

/* The shape of a tensor: packed, without data. */
carry_tensor carry_attention_set_shape(const carry_attention_problem *p, int tensor);
size_t carry_attention_set_bytes(const carry_tensor *tensor);
/* Bytes moved: inputs and outputs once; dk and dv, which are accumulated, twice. */
double carry_attention_set_moved(const carry_attention_problem *p);

/* Makes a set of normal random numbers on the problem's device. `here`, unless it is NULL, gets the copy on the CPU,
   which is the set itself if the device is the CPU. carry_attention_set_free frees the tensors, also after a failure
   here. */
carry_status carry_attention_set_new(carry_ctx *ctx, carry_tensor set[SET_TENSORS], carry_tensor *here,
                                     const carry_attention_problem *p, uint64_t seed);
void carry_attention_set_free(carry_ctx *ctx, carry_tensor set[SET_TENSORS], int device);

/* Arguments of the backward pass, which include those of the forward pass. */
carry_attention_backward_args carry_attention_set_args(const carry_attention_problem *p,
                                                       const carry_tensor set[SET_TENSORS]);
/* Workspace bytes for either pass, computed from shapes only. */
size_t carry_attention_set_workspace(const carry_attention_problem *p);

#endif
