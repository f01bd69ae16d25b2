/* Helpers of the warpgroup that holds the state: the addresses of a state in f32, and operands with NaN or infinity. */
#ifndef CARRY_DELTA_CHUNK_WORKER_PARTS_CUH
#define CARRY_DELTA_CHUNK_WORKER_PARTS_CUH

#include "delta/cuda/chunk/scan_parts.cuh"

namespace DELTA_CHUNK {

/* The addresses of a thread's elements of a state in f32. They are 16 groups, 8 keys apart, of 2 values (8 apart) by 2
   adjacent keys. */
struct state_place {
    float *first;
    int by_value, by_key;
    __device__ __forceinline__ float *at(int i) const {
        return first + i % 4 / 2 * 8 * by_value + (i / 4 * 8 + i % 2) * by_key;
    }
};

/* For a warp's left operand [16 values, 64 tokens]. first_bad: the first token with a NaN or infinity. cut: sets tokens
   from `first` on to zero. */
static __device__ __forceinline__ int first_bad(const uint32_t (&r)[16], int lane) {
    int first = C;
#pragma unroll
    for (int i = 7; i >= 0; i--) {
        int token = 8 * i + lane % 4 * 2;
        float low = low_half(r[2 * i]) * 0.0f + low_half(r[2 * i + 1]) * 0.0f;
        float high = high_half(r[2 * i]) * 0.0f + high_half(r[2 * i + 1]) * 0.0f;
        first = low != 0.0f ? token : high != 0.0f ? token + 1 : first;
    }
    return __reduce_min_sync(0xffffffffu, first);
}
static __device__ __forceinline__ void cut(uint32_t (&r)[16], int first, int lane) {
#pragma unroll
    for (int i = 0; i < 16; i++) {
        int token = i / 2 * 8 + lane % 4 * 2;
        r[i] = token >= first ? 0 : token + 1 >= first ? r[i] & 0xffffu : r[i];
    }
}

} // namespace DELTA_CHUNK

#endif
