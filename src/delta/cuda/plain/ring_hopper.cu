/* Steps with a ring on Hopper GPUs: the launches (ring_hopper.cuh). */
#include "delta/cuda/plain/ring_hopper.cuh"

/* A build may lack code for Hopper; in code for other architectures the kernel is empty and needs few registers. */
static bool works(int ordinal) {
    int major = 0;
    cudaFuncAttributes attributes;
    const bool is = cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, ordinal) == cudaSuccess &&
                    major >= 9 &&
                    cudaFuncGetAttributes(&attributes, ring_hopper::delta_step_ring_copies<false, 2>) == cudaSuccess &&
                    attributes.numRegs > 32;
    (void)cudaGetLastError();
    return is;
}

bool carry_delta_ring_copies_apply(const carry_delta_ring_job *r, int ordinal) {
    return r->job.key == ring_hopper::DIM && r->job.value == ring_hopper::DIM && works(ordinal);
}

cudaError_t carry_delta_ring_copies_launch(const carry_delta_ring_job *r, int multiprocessors, cudaStream_t stream) {
    return r->job.by_key ? ring_hopper::launch<true, 2>(*r, multiprocessors, stream)
                         : ring_hopper::launch<false, 2>(*r, multiprocessors, stream);
}
