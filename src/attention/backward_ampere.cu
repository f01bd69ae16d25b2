/* Launches of the backward pass of attention on tensor cores since Ampere (backward_ampere.cuh). */
#include "device/cuda.h"

extern "C" {
#include "attention/attention.h"
}

#include "attention/backward.cuh"
#include "attention/backward_ampere.cuh"

namespace {

/* Two stages of tiles in shared memory if they fit, otherwise one, without copying ahead; 0 if not even one fits. */
template <int D> int stages_on(int ordinal) {
    int major = 0, shared = 0;
    (void)cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, ordinal);
    (void)cudaDeviceGetAttribute(&shared, cudaDevAttrMaxSharedMemoryPerBlockOptin, ordinal);
    return major < 8 ? 0 : shared >= ampere::shared_bytes<D>(2) ? 2 : shared >= ampere::shared_bytes<D>(1) ? 1 : 0;
}

template <int D> bool works(int, int ordinal) {
    return stages_on<D>(ordinal) > 0;
}

template <typename T, int D>
carry_status launch(carry_ctx *ctx, backward_job *job, int, int ordinal, cudaStream_t stream) {
    auto *keys = attention_backward_ampere<T, D, true>, *queries = attention_backward_ampere<T, D, false>;
    const int stages = stages_on<D>(ordinal), bytes = ampere::shared_bytes<D>(stages);
    CARRY_CUDA_TRY(cudaFuncSetAttribute(keys, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes),
                   "no shared memory for the backward pass of attention");
    CARRY_CUDA_TRY(cudaFuncSetAttribute(queries, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes),
                   "no shared memory for the backward pass of attention");
    attention_backward_prepare<T, D>
        <<<(unsigned)(job->tiles * (ampere::ROWS / BACKWARD_PREPARE_ROWS)), 256, 0, stream>>>(*job, ampere::ROWS);
    keys<<<(unsigned)job->items, ampere::THREADS, (size_t)bytes, stream>>>(*job, stages);
    queries<<<(unsigned)(job->tiles * job->heads), ampere::THREADS, (size_t)bytes, stream>>>(*job, stages);
    CARRY_CUDA_TRY(cudaGetLastError(), "the backward pass of attention could not be launched");
    return CARRY_OK;
}

template <typename T, int D>
constexpr backward_way way = {"mma", ampere::ROWS, ampere::ROWS, false, works<D>, launch<T, D>};

template <typename T> const backward_way *ways(int D) {
    return D == 256 ? &way<T, 256> : D == 128 ? &way<T, 128> : D == 64 ? &way<T, 64> : NULL;
}

} // namespace

const backward_way *attention_backward_mma(bool is_bf16, int D) {
    return is_bf16 ? ways<backward_bf16>(D) : ways<backward_f16>(D);
}
