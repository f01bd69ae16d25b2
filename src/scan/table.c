/* The only list of scan algorithms. */
#include "scan/algorithm.h"
#include "scan/cuda/cuda.h"

extern const carry_scan_algorithm carry_scan_sequential, carry_scan_hillis_steele, carry_scan_blelloch,
    carry_scan_cyclic, carry_scan_matmul4, carry_scan_matmul8, carry_scan_matmul16, carry_scan_matmul_log,
    carry_scan_chunkwise;

static const carry_scan_algorithm *const table[] = {
    &carry_scan_sequential, &carry_scan_chunkwise, &carry_scan_hillis_steele,
    &carry_scan_blelloch,   &carry_scan_cyclic,    &carry_scan_matmul4,
    &carry_scan_matmul8,    &carry_scan_matmul16,  &carry_scan_matmul_log,
};

#if defined(CARRY_HAVE_CUDA)
extern const carry_scan_algorithm carry_scan_cuda_sequential, carry_scan_cuda_chunkwise, carry_scan_cuda_hillis_steele,
    carry_scan_cuda_blelloch, carry_scan_cuda_lookback, carry_scan_cuda_cyclic, carry_scan_cuda_matmul4,
    carry_scan_cuda_matmul8, carry_scan_cuda_matmul16;

static const carry_scan_algorithm *const gpu_table[] = {
    &carry_scan_cuda_sequential, &carry_scan_cuda_chunkwise, &carry_scan_cuda_hillis_steele,
    &carry_scan_cuda_blelloch,   &carry_scan_cuda_lookback,  &carry_scan_cuda_cyclic,
    &carry_scan_cuda_matmul4,    &carry_scan_cuda_matmul8,   &carry_scan_cuda_matmul16,
};
#define GPU_ALGORITHMS ((int)(sizeof gpu_table / sizeof gpu_table[0]))

static const carry_scan_gpu_steps gpu_steps = {carry_cuda_copy_steps, carry_cuda_scan_gradients};

const carry_scan_gpu_steps *carry_scan_gpu(void) {
    return &gpu_steps;
}
#else
static const carry_scan_algorithm *const gpu_table[] = {NULL};
#define GPU_ALGORITHMS 0

const carry_scan_gpu_steps *carry_scan_gpu(void) {
    return NULL;
}
#endif

const carry_scan_algorithm *carry_scan_at(bool on_gpu, int index) {
    int count = on_gpu ? GPU_ALGORITHMS : (int)(sizeof table / sizeof table[0]);
    return index < 0 || index >= count ? NULL : on_gpu ? gpu_table[index] : table[index];
}

bool carry_scan_always(const carry_scan_shape *shape, char *why, size_t why_size) {
    (void)shape;
    (void)why;
    (void)why_size;
    return true;
}

const char *carry_scan_name(int device, int index) {
    const carry_scan_algorithm *algorithm = carry_scan_at(device != 0, index);
    return algorithm != NULL ? algorithm->name : NULL;
}

const char *carry_scan_about(int device, int index) {
    const carry_scan_algorithm *algorithm = carry_scan_at(device != 0, index);
    return algorithm != NULL ? algorithm->about : NULL;
}
