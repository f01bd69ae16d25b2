/* The backward pass of attention on GPUs (backward.cu), and the sets of kernels that it chooses from. */
#ifndef CARRY_ATTENTION_BACKWARD_CUH
#define CARRY_ATTENTION_BACKWARD_CUH

#include <cuda_runtime.h>

extern "C" {
#include "attention/attention.h"
}

/* Entries in the table of devices (device.h). */
size_t attention_backward_workspace(const carry_attention_backward_args *args);
carry_status attention_backward(carry_ctx *ctx, const carry_attention_backward_args *args,
                                const carry_attention_documents *documents, void *workspace, size_t bytes);
const char *attention_backward_method(const carry_attention_backward_args *args);

struct backward_job;

/* A set of kernels for one element type and D. */
struct backward_way {
    const char *name;
    int rows, keys;  /* of a tile of queries, of a block of keys */
    bool keeps_sums; /* the workspace holds sums of dQ */
    bool (*works)(int D, int ordinal);
    carry_status (*launch)(carry_ctx *ctx, backward_job *job, int D, int ordinal, cudaStream_t stream);
};

/* Return NULL if there are no kernels of this kind for the type and D. */
const backward_way *attention_backward_wgmma(bool is_bf16, int D);
const backward_way *attention_backward_mma(bool is_bf16, int D);

#endif
