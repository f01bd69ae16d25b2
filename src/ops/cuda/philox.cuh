/* Philox 4x32-10 on a GPU: gives the same words as core/rng.h. */
#ifndef CARRY_OPS_CUDA_PHILOX_CUH
#define CARRY_OPS_CUDA_PHILOX_CUH

#include <stdint.h>

static __device__ __forceinline__ void carry_philox_words(uint64_t seed, uint64_t stream, uint64_t block,
                                                          uint32_t c[4]) {
    uint32_t key_0 = (uint32_t)seed, key_1 = (uint32_t)(seed >> 32);
    c[0] = (uint32_t)block;
    c[1] = (uint32_t)(block >> 32);
    c[2] = (uint32_t)stream;
    c[3] = (uint32_t)(stream >> 32);
#pragma unroll
    for (int round = 0; round < 10; round++) {
        const uint64_t product_0 = (uint64_t)0xD2511F53u * c[0], product_1 = (uint64_t)0xCD9E8D57u * c[2];
        const uint32_t one = c[1], three = c[3];
        c[0] = (uint32_t)(product_1 >> 32) ^ one ^ key_0;
        c[1] = (uint32_t)product_1;
        c[2] = (uint32_t)(product_0 >> 32) ^ three ^ key_1;
        c[3] = (uint32_t)product_0;
        key_0 += 0x9E3779B9u;
        key_1 += 0xBB67AE85u;
    }
}

#endif
