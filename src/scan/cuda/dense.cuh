/* The dense scans on GPUs: kernel arguments, and the five kernels that take them.

   cyclic: cyclic. tree: blelloch. groups: matmul. doubling: hillis_steele. chunks: chunkwise and sequential. Each is
   one persistent kernel: levels inside a visit in shared memory, a barrier of the grid between levels.

   Transitions stay in their storage type E, sums and values are f32. n is padded to SIZE = 16, 32, 64 or 128 with zeros
   in shared memory only. Transitions that stand transposed are kept so and multiplied the other way round:
   (A2^T)(A1^T) = (A1 A2)^T. */
#ifndef CARRY_SCAN_DENSE_CUH
#define CARRY_SCAN_DENSE_CUH

#include "scan/dense_levels.h"

#include <stddef.h>

namespace dense {

constexpr int THREADS = 256;

/* As carry_dtype counts them; here so that device code needs no header of C. */
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
    matrices A;    /* of its elements */
    matrices made; /* cyclic: the elements of the next level; tree: the node that ends at odd element e is matrix
                      (e-1)/2; groups: products up to e */
    float *states; /* blelloch: what enters element e, [batch, count, n, w] */
};

struct params {
    int64_t batch, steps;
    int n, width;
    bool transposed;
    array A, b, h, h0;
    array values; /* f32, over steps: h itself or workspace */
    int levels;
    int folded; /* cyclic: levels whose way up another kernel has done, 0 or 1 (dense_hopper.cu) */
    level_data level[CARRY_DENSE_MAX_LEVELS];
    /* Shared memory: `kept` matrices (tree: and one more for what was just made), then a ring of `ring` of them. */
    int kept, ring, slots;
    int tile;          /* values in shared memory: elements at a time */
    matrices spare[2]; /* doubling: what the rounds write in turn; chunks: the transitions of chunks */
    array turns[2];    /* doubling: values in turn; chunks: end states, states that enter */
    int rounds;        /* doubling: most rounds in a pass */
    int64_t chunk, chunks;
    int columns; /* chunks: of the width, per task */

    CARRY_BOTH matrices A_matrices() const {
        return {A.data, A.item, A.step};
    }
};

typedef void (*kernel_of_params)(params p, size_t shared_bytes);

/* The kernel for a type and a padded size; NULL if it does not exist. size is 16, 32, 64 or 128. */
kernel_of_params cyclic_kernel(int dtype, int size);
kernel_of_params tree_kernel(int dtype, int size);
kernel_of_params groups_kernel(int dtype, int size);
kernel_of_params chunks_kernel(int dtype, int size);
kernel_of_params doubling_kernel(int dtype, int size);

} // namespace dense

#endif
