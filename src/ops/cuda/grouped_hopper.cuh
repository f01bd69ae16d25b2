/* Shared by the kernels of grouped products on Hopper GPUs, which are compiled for each 16-bit type: elements, copies
   of boxes, barriers of stages, and maps for the tensor copy engine. */
#ifndef CARRY_OPS_GROUPED_HOPPER_CUH
#define CARRY_OPS_GROUPED_HOPPER_CUH

#ifdef CARRY_INSTANCE_F16
#define HOPPER_ELEMENT "f16"
#endif

#include <cuda_bf16.h>

#include "device/hopper.cuh"
#include "device/tensor_map.cuh"
#include "ops/cuda/grouped_modes.cuh"

namespace {

using namespace hopper;

constexpr int PANEL = 64;
constexpr int BAND = PANEL * 128; /* bytes of 64 rows of 64 elements */

#ifdef CARRY_INSTANCE_F16
__device__ __forceinline__ unsigned pack(float low, float high) {
    return (unsigned)__half_as_ushort(__float2half_rn(low)) | (unsigned)__half_as_ushort(__float2half_rn(high)) << 16;
}
#else
__device__ __forceinline__ unsigned pack(float low, float high) {
    unsigned both;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(high), "f"(low));
    return both;
}
#endif

/* A box of [expert, rows, 64 columns]. */
__device__ __forceinline__ void copy_box(uint32_t to, const CUtensorMap *map, int64_t column, int64_t row,
                                         int64_t expert, uint32_t barrier) {
    asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
                 "[%0], [%1, {%2, %3, %4}], [%5];" ::"r"(to),
                 "l"(map), "r"((int)column), "r"((int)row), "r"((int)expert), "r"(barrier)
                 : "memory");
}

#ifdef CARRY_INSTANCE_F16
typedef type_f16 element;
#else
typedef type_bf16 element;
#endif

struct barriers {
    uint32_t base;
    __device__ __forceinline__ uint32_t full(int stage) const {
        return base + 16 * stage;
    }
    __device__ __forceinline__ uint32_t empty(int stage) const {
        return base + 16 * stage + 8;
    }
};

carry_status encode(carry_ctx *ctx, CUtensorMap *map, const void *data, int64_t columns, int64_t rows, int64_t matrices,
                    int64_t row, int64_t next, int box_rows, int ordinal) {
    carry_map_encoder encoder = NULL;
    CARRY_TRY(carry_map_find_encoder(ctx, &encoder, ordinal));
    const cuuint64_t sizes[] = {(cuuint64_t)columns, (cuuint64_t)rows, (cuuint64_t)matrices};
    const cuuint64_t strides[] = {(cuuint64_t)row * 2, (cuuint64_t)next * 2};
    const cuuint32_t box[] = {PANEL, (cuuint32_t)box_rows, 1}, every[] = {1, 1, 1};
#ifdef CARRY_INSTANCE_F16
    const CUtensorMapDataType type = CU_TENSOR_MAP_DATA_TYPE_FLOAT16;
#else
    const CUtensorMapDataType type = CU_TENSOR_MAP_DATA_TYPE_BFLOAT16;
#endif
    const CUresult result =
        encoder(map, type, 3, (void *)data, sizes, strides, box, every, CU_TENSOR_MAP_INTERLEAVE_NONE,
                CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    return result == CUDA_SUCCESS
               ? CARRY_OK
               : carry_fail(ctx, CARRY_EDEVICE, "CUDA device %d: no tensor map of experts (the driver's error %d)",
                            ordinal, (int)result);
}

} // namespace

#endif
