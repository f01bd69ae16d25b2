/* The scans on GPUs: one table entry for each method. Each entry uses two families of kernels, for diagonal and for
   dense transitions (cuda.h). */
#include "scan/cuda/cuda.h"

static const carry_cuda_family *family_of(const carry_scan_shape *shape) {
    return shape->kind == CARRY_SCAN_DENSE ? &carry_cuda_dense : &carry_cuda_diagonal;
}

static bool applies(const carry_scan_shape *shape, char *why, size_t why_size) {
    return family_of(shape)->applies(shape, (carry_cuda_method)shape->algorithm->method, why, why_size);
}

static double cost(const carry_scan_shape *shape, const carry_rates_table *rates, int threads) {
    (void)rates;
    (void)threads;
    return family_of(shape)->cost(shape, (carry_cuda_method)shape->algorithm->method);
}

static bool workspace(const carry_scan_shape *shape, int threads, size_t *bytes) {
    (void)threads;
    return family_of(shape)->workspace(shape, (carry_cuda_method)shape->algorithm->method, bytes);
}

static carry_status run(carry_scan_work *work) {
    return family_of(work)->run(work, (carry_cuda_method)work->algorithm->method);
}

#define ENTRY(title, summary, way, base)                                                                      \
    {                                                                                                         \
        .name = (title), .span = CARRY_SPAN_SITE("scan", "cuda " title), .about = (summary), .method = (way), \
        .radix = (base), .applies = applies, .cost = cost, .workspace = workspace, .run = run                 \
    }

const carry_scan_algorithm carry_scan_cuda_sequential =
    ENTRY("sequential", "one thread or block walks through time, loads ahead of it", CARRY_CUDA_SEQUENTIAL, 0);
const carry_scan_algorithm carry_scan_cuda_chunkwise =
    ENTRY("chunkwise", "chunks at once, their ends one after the other", CARRY_CUDA_CHUNKWISE, 0);
const carry_scan_algorithm carry_scan_cuda_hillis_steele =
    ENTRY("hillis_steele", "by doubling", CARRY_CUDA_HILLIS_STEELE, 0);
const carry_scan_algorithm carry_scan_cuda_blelloch =
    ENTRY("blelloch", "work-efficient tree: up, then down", CARRY_CUDA_BLELLOCH, 0);
const carry_scan_algorithm carry_scan_cuda_lookback =
    ENTRY("lookback", "one pass: tiles publish what they have, later ones look back", CARRY_CUDA_LOOKBACK, 0);
const carry_scan_algorithm carry_scan_cuda_cyclic =
    ENTRY("cyclic", "cyclic reduction: pairs up, even steps filled in down", CARRY_CUDA_CYCLIC, 0);
const carry_scan_algorithm carry_scan_cuda_matmul4 =
    ENTRY("matmul4", "triangles of 4 steps on the tensor cores", CARRY_CUDA_MATMUL, 4);
const carry_scan_algorithm carry_scan_cuda_matmul8 =
    ENTRY("matmul8", "triangles of 8 steps on the tensor cores", CARRY_CUDA_MATMUL, 8);
const carry_scan_algorithm carry_scan_cuda_matmul16 =
    ENTRY("matmul16", "triangles of 16 steps on the tensor cores", CARRY_CUDA_MATMUL, 16);
