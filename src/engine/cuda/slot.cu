/* Copies slots and pages. */
#include "engine/slot_device.h"

#include "device/cuda.h"

namespace {

constexpr int THREADS = 256, BLOCKS = 16, AT_ONCE = 8; /* blocks of a part */

/* Copies a part by the blocks of a row, or zeroes it if source is NULL. */
__device__ void copy_part(unsigned char *into, const unsigned char *source, uint64_t bytes) {
    const uint64_t first = (uint64_t)blockIdx.x * THREADS + threadIdx.x, step = (uint64_t)gridDim.x * THREADS;
    if ((bytes | (uintptr_t)into | (uintptr_t)source) % 16 != 0) {
        for (uint64_t at = first; at < bytes / 4; at += step) {
            ((uint32_t *)into)[at] = source != nullptr ? ((const uint32_t *)source)[at] : 0;
        }
        return;
    }
    const uint64_t count = bytes / 16;
    for (uint64_t at = first; at < count; at += AT_ONCE * step) {
        uint4 x[AT_ONCE];
#pragma unroll
        for (int j = 0; j < AT_ONCE; j++) {
            x[j] = source != nullptr && at + j * step < count ? __ldcs((const uint4 *)source + at + j * step)
                                                              : make_uint4(0, 0, 0, 0);
        }
#pragma unroll
        for (int j = 0; j < AT_ONCE; j++) {
            if (at + j * step < count) {
                ((uint4 *)into)[at + j * step] = x[j];
            }
        }
    }
}

/* There is a row of blocks for each part; the first block also copies the last token. */
__global__ void copy_parts(const carry_slot_part *parts, int32_t *last, int64_t to, int64_t from) {
    const carry_slot_part p = parts[blockIdx.y];
    if (last != nullptr && from >= 0 && blockIdx.x == 0 && blockIdx.y == 0 && threadIdx.x == 0) {
        last[to] = last[from];
    }
    copy_part(p.base + (uint64_t)to * p.bytes, from < 0 ? nullptr : p.base + (uint64_t)from * p.bytes, p.bytes);
}

__global__ void pack_parts(const carry_slot_part *parts, unsigned char *packed, int64_t row, bool is_write) {
    const carry_slot_part p = parts[blockIdx.y];
    unsigned char *there = p.base + (uint64_t)row * p.bytes;
    copy_part(is_write ? there : packed + p.offset, is_write ? packed + p.offset : there, p.bytes);
}

carry_status copy(carry_ctx *ctx, int ordinal, carry_stream *stream, const carry_slot_part *parts, int count,
                  int32_t *last, int64_t to, int64_t from) {
    copy_parts<<<dim3(BLOCKS, (unsigned)count), THREADS, 0, (cudaStream_t)stream>>>(parts, last, to, from);
    CARRY_CUDA_TRY(cudaGetLastError(), "a state could not be copied");
    return CARRY_OK;
}

carry_status pack(carry_ctx *ctx, int ordinal, carry_stream *stream, const carry_slot_part *parts, int count,
                  void *packed, int64_t row, bool is_write) {
    pack_parts<<<dim3(BLOCKS, (unsigned)count), THREADS, 0, (cudaStream_t)stream>>>(parts, (unsigned char *)packed, row,
                                                                                    is_write);
    CARRY_CUDA_TRY(cudaGetLastError(), "a state could not be moved");
    return CARRY_OK;
}

} // namespace

extern "C" const carry_slot_kernel carry_slot_cuda = {"cuda", copy, pack};
