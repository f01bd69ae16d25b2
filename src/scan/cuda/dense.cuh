/* The dense scans on GPUs: kernel arguments, and the five kernels that take them.

   Algorithms of the table (scan/table.c) and their kernels: cyclic: cyclic; blelloch: tree; matmul: groups;
   hillis_steele: doubling; chunkwise and sequential: chunks. Each is one persistent kernel that combines elements in
   shared memory and has grid barriers between its levels (dense_levels.h), rounds or phases.

   Transitions stay in their storage type E; sums and values are f32. n is padded with zeros to SIZE = 16, 32, 64 or
   128, in shared memory only. Transposed transitions stay as stored and are multiplied in reverse order:
   (A2^T)(A1^T) = (A1 A2)^T. */
#ifndef CARRY_SCAN_DENSE_CUH
#define CARRY_SCAN_DENSE_CUH

#include "scan/dense_levels.h"

#include <stddef.h>

namespace dense {

constexpr int THREADS = 256;

/* The values of carry_dtype, repeated so that device code needs no C header. */
enum : int { F32 = 0, BF16 = 1, F16 = 2 };

struct array {
    void *data; /* NULL: zeros */
    int dtype;
    int64_t item, step; /* in elements */
};

/* Transitions of a level: element i of item j at data + j*item + i*step, in elements of E. */
struct matrices {
    void *data;
    int64_t item, step;
};

struct level_data {
    carry_dense_level at;
    matrices A;    /* transitions of its elements */
    matrices made; /* cyclic: the elements of the next level; tree: matrix (e-1)/2 is the node that ends at odd element
                      e; groups: products up to e */
    float *states; /* blelloch: the states that enter elements, [batch, count, n, w] */
};

struct params {
    int64_t batch, steps;
    int n, width;
    bool transposed;
    array A, b, h, h0;
    array values; /* f32, over steps: h itself or workspace */
    int levels;
    int folded; /* cyclic: number of levels whose way up another kernel has done, 0 or 1 (dense_hopper.cu) */
    level_data level[CARRY_DENSE_MAX_LEVELS];
    /* Shared memory holds `kept` matrices (tree: one more for the newest product), then a ring of `ring` matrices. */
    int kept, ring, slots;
    int tile;          /* elements whose values are in shared memory at a time */
    matrices spare[2]; /* doubling: the two buffers that rounds alternate between; chunks: the transitions of chunks */
    array turns[2];    /* doubling: the same for values; chunks: end states, and states that enter */
    int rounds;        /* doubling: the largest number of rounds in a pass */
    int64_t chunk, chunks;
    int columns; /* chunks: columns of the width in a task */

    CARRY_BOTH matrices A_matrices() const {
        return {A.data, A.item, A.step};
    }
};

typedef void (*kernel_of_params)(params p, size_t shared_bytes);

/* Returns the kernel for a type and a padded size (16, 32, 64 or 128), or NULL if it does not exist. */
kernel_of_params cyclic_kernel(int dtype, int size);
kernel_of_params tree_kernel(int dtype, int size);
kernel_of_params groups_kernel(int dtype, int size);
kernel_of_params chunks_kernel(int dtype, int size);
kernel_of_params doubling_kernel(int dtype, int size);

} // namespace dense

#endif
