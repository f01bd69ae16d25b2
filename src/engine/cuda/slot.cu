/* Copies of slots and pages. */
#include "engine/slot_device.h"

#include "device/cuda.h"

namespace {

constexpr int THREADS = 256, BLOCKS = 1024;

/* All blocks go over all parts: parts differ in size by a factor of a hundred. */
__global__ void copy_parts(const carry_slot_part *parts, int count, int64_t to, int64_t from) {
    const uint64_t first = (uint64_t)blockIdx.x * THREADS + threadIdx.x, step = (uint64_t)gridDim.x * THREADS;
    for (int i = 0; i < count; i++) {
        const carry_slot_part p = parts[i];
        unsigned char *into = p.base + (uint64_t)to * p.bytes;
        const unsigned char *source = p.base + (uint64_t)(from < 0 ? 0 : from) * p.bytes;
        if (p.bytes % 16 == 0 && (uintptr_t)p.base % 16 == 0) {
            for (uint64_t at = first; at < p.bytes / 16; at += step) {
                ((uint4 *)into)[at] = from < 0 ? make_uint4(0, 0, 0, 0) : ((const uint4 *)source)[at];
            }
        } else {
            for (uint64_t at = first; at < p.bytes / 4; at += step) {
                ((uint32_t *)into)[at] = from < 0 ? 0 : ((const uint32_t *)source)[at];
            }
        }
    }
}

carry_status copy(carry_ctx *ctx, int ordinal, carry_stream *stream, const carry_slot_part *parts, int count,
                  int64_t to, int64_t from) {
    copy_parts<<<BLOCKS, THREADS, 0, (cudaStream_t)stream>>>(parts, count, to, from);
    CARRY_CUDA_TRY(cudaGetLastError(), "a state could not be copied");
    return CARRY_OK;
}

} // namespace

extern "C" const carry_slot_kernel carry_slot_cuda = {"cuda", copy};
