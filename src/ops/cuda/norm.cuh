/* What the two ways of the root-mean-square norm on NVIDIA GPUs share: their arguments. */
#ifndef CARRY_OPS_NORM_CUH
#define CARRY_OPS_NORM_CUH

#include "ops/cuda/nn.cuh"

template <typename T> struct norm_args {
    row_of<T> y, x, z;    /* forward */
    row_of<T> dx, dz, dy; /* backward */
    mixed w;
    float *sums;            /* [rows]: squares that are given, or wanted */
    float *partial;         /* [blocks, n] or NULL */
    int64_t rows, n, block; /* block: tokens of a block, backward */
    float over, eps;        /* over: the length that squares are divided by */
    bool accumulate;
};

/* norm_wide.cu: rows of whole vectors, up to WARP_ROW elements; false: not these, and nothing happened. *blocks: the
   rows of the workspace that may be written, and were. */
template <typename T> bool norm_wide(const norm_args<T> &a, cudaStream_t stream);
template <typename T> bool norm_wide_backward(const norm_args<T> &a, int64_t *blocks, cudaStream_t stream);

#endif
