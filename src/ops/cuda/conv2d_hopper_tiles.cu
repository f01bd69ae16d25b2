/* Convolutions on Hopper GPUs: the kernel for CARRY_INSTANCE_SHAPE of conv2d_hopper.cuh, and its launch. */
#include "ops/cuda/conv2d_hopper.cuh"

namespace conv2d_hopper {

template <typename S> bool works(int ordinal) {
    int major = 0, minor = 0;
    cudaFuncAttributes attributes = {};
    bool is = cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, ordinal) == cudaSuccess &&
              cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, ordinal) == cudaSuccess && major == 9 &&
              minor == 0;
    /* A build may lack code for sm_90a; in code for other architectures the kernels are empty and need few
       registers. */
    is = is && cudaFuncGetAttributes(&attributes, conv2d_hopper_kernel<S>) == cudaSuccess && attributes.numRegs > 64;
    (void)cudaGetLastError();
    return is;
}

template <typename S> carry_status launch(carry_ctx *ctx, const conv2d_job &job, const place &at) {
    maps m = {};
    m.job = job;
    m.patches_x = (job.width + PATCH_WIDTH - 1) / PATCH_WIDTH;
    m.column_tiles = (job.out + S::COLUMNS - 1) / S::COLUMNS;
    for (int i = 0; i < job.inputs; i++) {
        const cuuint64_t c = (cuuint64_t)job.channels[i], width = (cuuint64_t)job.x_width;
        const cuuint64_t sizes[] = {S::BAND, width, (cuuint64_t)job.x_height, c / S::BAND};
        const cuuint64_t strides[] = {c * 2, width * c * 2, S::ROW};
        const cuuint32_t box[] = {S::BAND, PATCH_WIDTH, (cuuint32_t)(S::HEIGHT + job.window.side - 1), S::BANDS};
        CARRY_TRY(encode_map(ctx, &m.from[i], job.from[i], 4, sizes, strides, box, at.ordinal));
    }
    const cuuint64_t sizes[] = {S::BAND, (cuuint64_t)job.out * job.window.phases, (cuuint64_t)job.depth / S::BAND};
    const cuuint64_t strides[] = {(cuuint64_t)job.depth * 2, S::ROW};
    const cuuint32_t box[] = {S::BAND, S::COLUMNS, S::BANDS};
    CARRY_TRY(encode_map(ctx, &m.w, job.w, 3, sizes, strides, box, at.ordinal));
    auto kernel = conv2d_hopper_kernel<S>;
    const int ordinal = at.ordinal;
    CARRY_CUDA_TRY(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, S::SHARED),
                   "no shared memory for conv2d");
    const unsigned patches = (unsigned)(m.patches_x * ((job.height + S::HEIGHT - 1) / S::HEIGHT));
    kernel<<<dim3(patches * (unsigned)m.column_tiles, 1, (unsigned)job.window.phases), S::THREADS, S::SHARED,
             at.stream>>>(m);
    return launched(ctx, at, "conv2d cannot be launched");
}

template bool works<CARRY_INSTANCE_SHAPE>(int ordinal);
template carry_status launch<CARRY_INSTANCE_SHAPE>(carry_ctx *ctx, const conv2d_job &job, const place &at);

} // namespace conv2d_hopper
