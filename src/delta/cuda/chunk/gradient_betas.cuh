/* Handles rows whose beta is too small to divide by (device.cuh) in the kernel `gradients`. */
#ifndef CARRY_DELTA_CHUNK_GRADIENT_BETAS_CUH
#define CARRY_DELTA_CHUNK_GRADIENT_BETAS_CUH

#include "delta/cuda/chunk/gradient_parts.cuh"

namespace DELTA_CHUNK {

/* Computes Y . v for rows whose beta is too small to divide by. 128 threads, 16 for each row. */
static __device__ __forceinline__ void small_betas(const gradient_args &a, const float *n, gradient_numbers &sums,
                                                   const chunk_place &at, int head, const char *y, int thread) {
    int lane = thread % 32, part = thread % 16;
    float beta = fminf(fabsf(n[BETA + lane]), fabsf(n[BETA + lane + 32]));
    if (!__any_sync(0xffffffffu, tiny(beta))) {
        return;
    }
#pragma unroll 1
    for (int row = thread / 16; row < C; row += 8) {
        float dot = 0.0f;
        if (row < at.length && part < 8 * a.in.s.bands) {
            uint4 yw = *(const uint4 *)(y + part / 8 * BAND + row * 128 + ((part % 8 ^ (row & 7)) << 4));
            uint4 vw = *(const uint4 *)((const __nv_bfloat16 *)a.v.data + at.batch * a.v.batch +
                                        (int64_t)(at.first + row) * a.v.token + head * a.v.head + part * 8);
            const uint32_t ys[4] = {yw.x, yw.y, yw.z, yw.w}, vs[4] = {vw.x, vw.y, vw.z, vw.w};
#pragma unroll
            for (int i = 0; i < 4; i++) {
                dot += low_half(ys[i]) * low_half(vs[i]) + high_half(ys[i]) * high_half(vs[i]);
            }
        }
#pragma unroll
        for (int step = 1; step < 16; step *= 2) {
            dot += __shfl_xor_sync(0xffffffffu, dot, step);
        }
        if (part == 0) {
            sums.y_value[row] = dot;
        }
    }
}

static __device__ __forceinline__ uint32_t pack_times(float by, uint32_t pair) {
    return pack(by * low_half(pair), by * high_half(pair));
}

/* Stores dv for rows that hold Y in its place. 128 threads, 16 for each row. */
static __device__ __forceinline__ void finish_values(const gradient_args &a, const float *n, const chunk_place &at,
                                                     int head, const char *y, int thread) {
    int lane = thread % 32, part = thread % 16;
    float least = fminf(fabsf(n[BETA + lane]), fabsf(n[BETA + lane + 32]));
    if (!__any_sync(0xffffffffu, tiny(least))) {
        return;
    }
    __nv_bfloat16 *to = (__nv_bfloat16 *)a.dv.data + at.batch * a.dv.batch + (int64_t)at.first * a.dv.token +
                        head * a.dv.head + part * 8;
#pragma unroll 1
    for (int row = thread / 16; row < at.length; row += 8) {
        float beta = n[BETA + row];
        if (tiny(beta) && part < 8 * a.in.s.bands) {
            uint4 w = *(const uint4 *)(y + part / 8 * BAND + row * 128 + ((part % 8 ^ (row & 7)) << 4));
            *(uint4 *)(to + row * a.dv.token) = {pack_times(beta, w.x), pack_times(beta, w.y), pack_times(beta, w.z),
                                                 pack_times(beta, w.w)};
        }
    }
}

} // namespace DELTA_CHUNK

#endif
