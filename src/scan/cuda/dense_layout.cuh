/* The layout of a dense scan on a GPU: levels, shared memory and workspace, computed from the shape alone. */
#ifndef CARRY_SCAN_DENSE_LAYOUT_CUH
#define CARRY_SCAN_DENSE_LAYOUT_CUH

extern "C" {
#include "scan/cuda/cuda.h"
}
#include "scan/cuda/dense.cuh"

namespace dense {

struct layout {
    params p; /* workspace pointers are set if the arena has memory */
    int size; /* n padded: 16, 32, 64 or 128 */
    size_t shared_bytes;
    int64_t blocks; /* number of blocks that have work */
    dense::kernel_of_params kernel;
    double product_s; /* estimated seconds for one n x n product by one block */
    int per_unit;     /* planned number of blocks on each multiprocessor */
};

/* Returns false, with the reason in `why`, if the kernels do not support the shape. Workspace is taken from the
   arena. */
bool lay_out(layout *made, const carry_scan_shape *shape, carry_cuda_method method, carry_arena *arena, char *why,
             size_t why_size);

/* The matrix products, and the applications of a matrix to values, for one sequence. */
struct work_count {
    double composed, applied;
};
work_count count_work(const layout *made, const carry_scan_shape *shape, carry_cuda_method method);

} // namespace dense

#endif
