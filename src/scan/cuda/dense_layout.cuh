/* How a dense scan is laid out on a GPU: levels, shared memory and workspace, from the shape alone. */
#ifndef CARRY_SCAN_DENSE_LAYOUT_CUH
#define CARRY_SCAN_DENSE_LAYOUT_CUH

extern "C" {
#include "scan/cuda/cuda.h"
}
#include "scan/cuda/dense.cuh"

namespace dense {

struct layout {
    params p; /* workspace pointers are set when the arena has a block */
    int size; /* n padded: 16, 32, 64 or 128 */
    size_t shared_bytes;
    int64_t blocks; /* that have work */
    dense::kernel_of_params kernel;
    double product_s; /* one product of n x n by one block, roughly */
    int per_unit;     /* blocks that share a multiprocessor, as planned */
};

/* False, with the reason in why, when the kernels cannot take the shape. Workspace is taken from the arena. */
bool lay_out(layout *made, const carry_scan_shape *shape, carry_cuda_method method, carry_arena *arena, char *why,
             size_t why_size);

/* Matrix products, and applications of a matrix to values, of one sequence. */
struct work_count {
    double composed, applied;
};
work_count count_work(const layout *made, const carry_scan_shape *shape, carry_cuda_method method);

} // namespace dense

#endif
