/* Shared by the implementations of the root-mean-square norm on NVIDIA GPUs: their arguments. */
#ifndef CARRY_OPS_NORM_CUH
#define CARRY_OPS_NORM_CUH

#include "ops/cuda/nn.cuh"

template <typename T> struct norm_args {
    row_of<T> y, x, z;    /* forward */
    row_of<T> dx, dz, dy; /* backward */
    mixed w;
    float *sums;            /* [rows]: sums of squares, input or output */
    float *partial;         /* [blocks, n] or NULL */
    int64_t rows, n, block; /* block: tokens of a block, backward */
    /* z_heads consecutive rows of z and dz are contiguous; z_row, dz_row: elements from one such group to the next. */
    unsigned z_heads;
    int64_t z_row, dz_row;
    int64_t x_row;        /* for sums only: elements from a row of x to the next; 0: n */
    unsigned char *codes; /* y in e4m3, for bf16 without a gate and norm_wide only (fp8.cuh); NULL: not wanted */
    float *code_scale;
    float over, eps; /* over: the length by which squares are divided */
    bool accumulate;
};

/* The offset of row `row` of z or dz. */
template <typename T> static __device__ __forceinline__ int64_t z_at(const norm_args<T> &a, int64_t row, int64_t step) {
    return a.z_heads <= 1 ? row * step
                          : (int64_t)((unsigned)row / a.z_heads) * step + (unsigned)row % a.z_heads * (unsigned)a.n;
}

template <typename T> static void gate_of(norm_args<T> &a, const carry_tensor &z, const carry_tensor &dz) {
    a.z = row<T>(z);
    a.dz = row<T>(dz);
    a.z_heads = z.rank == 3 ? (unsigned)z.shape[1] : 1;
    a.z_row = z.rank == 3 ? z.stride[0] : a.n;
    a.dz_row = dz.rank == 3 ? dz.stride[0] : a.n;
}

/* For rows of whole vectors, aligned to 16 bytes. norm_wide.cu: up to WARP_ROW elements. norm_block.cu: more, up to
   4096 elements, without a gate. All return false, and do nothing, for other rows and if `sums` is present;
   norm_wide_backward also returns false for a gate with accumulate. *blocks: on entry the number of rows of the
   workspace that may be written, on return the number that were. */
template <typename T> bool norm_wide(const norm_args<T> &a, cudaStream_t stream);
template <typename T> bool norm_wide_backward(const norm_args<T> &a, int64_t *blocks, cudaStream_t stream);
template <typename T> bool norm_block(const norm_args<T> &a, cudaStream_t stream);
template <typename T> bool norm_block_backward(const norm_args<T> &a, int64_t *blocks, cudaStream_t stream);

#endif
