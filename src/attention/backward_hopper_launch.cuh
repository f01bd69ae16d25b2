/* Launches of backward_hopper.cuh for one element type. */
#ifndef CARRY_ATTENTION_BACKWARD_HOPPER_LAUNCH_CUH
#define CARRY_ATTENTION_BACKWARD_HOPPER_LAUNCH_CUH

#include "device/cuda.h"

extern "C" {
#include "attention/attention.h"
}

#include "attention/backward.cuh"
#include "attention/backward_hopper.cuh"
#include "attention/hopper_map.cuh"

template <typename Shape>
static carry_status backward_make_maps(carry_ctx *ctx, backward_hopper_job *given, int ordinal) {
    const backward_job *job = &given->job;
    carry_map_encoder encode = NULL;
    CARRY_TRY(carry_map_find_encoder(ctx, &encode, ordinal));
    auto make = [&](CUtensorMap *map, const char *name, const backward_rows &of, int rows, int heads, int box) {
        return attention_make_map(ctx, encode, map, name, of.data, of.row, of.head, rows, heads, Shape::D, box,
                                  ordinal);
    };
    CARRY_TRY(make(&given->q, "q", job->q_rows, job->queries, job->heads, Shape::M));
    CARRY_TRY(make(&given->d_o, "d_o", job->d_o_rows, job->queries, job->heads, Shape::M));
    CARRY_TRY(make(&given->k, "k", job->k_rows, job->keys, job->key_heads, Shape::KEYS));
    return make(&given->v, "v", job->v_rows, job->keys, job->key_heads, Shape::KEYS);
}

template <typename T, typename Shape>
static carry_status backward_launch(carry_ctx *ctx, backward_job *job, int, int ordinal, cudaStream_t stream) {
    auto *kernel = attention_backward_hopper<T, Shape>;
    backward_hopper_job given = {};
    given.job = *job;
    CARRY_TRY(backward_make_maps<Shape>(ctx, &given, ordinal));
    CARRY_CUDA_TRY(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, Shape::SHARED),
                   "no shared memory for the backward pass of attention");
    attention_backward_prepare<T, Shape::D>
        <<<(unsigned)(job->tiles * (Shape::M / BACKWARD_PREPARE_ROWS)), 256, 0, stream>>>(*job, Shape::M);
    kernel<<<(unsigned)job->items, Shape::THREADS, Shape::SHARED, stream>>>(given);
    CARRY_CUDA_TRY(cudaGetLastError(), "the backward pass of attention could not be launched");
    return CARRY_OK;
}

/* The kernels are empty except in code for sm_90a, which a build may not have. An empty kernel has no barriers and so
   no static shared memory. */
template <typename T, typename Shape> static bool backward_works(int, int ordinal) {
    int major = 0, minor = 0;
    cudaFuncAttributes attributes;
    const bool works = cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, ordinal) == cudaSuccess &&
                       cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, ordinal) == cudaSuccess &&
                       major == 9 && minor == 0 &&
                       cudaFuncGetAttributes(&attributes, attention_backward_hopper<T, Shape>) == cudaSuccess &&
                       attributes.sharedSizeBytes > 0;
    (void)cudaGetLastError();
    return works;
}

template <typename T, typename Shape> static constexpr backward_way backward_way_of() {
    return {"wgmma", Shape::M, Shape::KEYS, true, backward_works<T, Shape>, backward_launch<T, Shape>};
}

template <typename T> static const backward_way *backward_ways(int D) {
    static constexpr backward_way wide = backward_way_of<T, backward_shape<128, 64>>();
    static constexpr backward_way narrow = backward_way_of<T, backward_shape<64, 128>>();
    return D == 128 ? &wide : D == 64 ? &narrow : NULL;
}

#endif
