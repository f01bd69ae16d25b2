/* Tensor maps of heads of 64, 128 or 256 elements of 16 bits, for the kernels on Hopper GPUs. */
#ifndef CARRY_ATTENTION_HOPPER_MAP_CUH
#define CARRY_ATTENTION_HOPPER_MAP_CUH

#include "device/tensor_map.cuh"

/* Makes a tensor map of shape [heads, D / 64, rows, 64]. A tile is `box` rows of one head, with all bands. `row` and
   `head` are strides in elements. The stride of a dimension of size 1 is not used, but must be valid. */
static inline carry_status attention_make_map(carry_ctx *ctx, carry_map_encoder encode, CUtensorMap *map,
                                              const char *name, const void *data, int64_t row, int64_t head, int rows,
                                              int heads, int D, int box, int ordinal) {
    const cuuint64_t shape[] = {64, (cuuint64_t)rows, (cuuint64_t)D / 64, (cuuint64_t)heads};
    const cuuint64_t strides[] = {rows > 1 ? (cuuint64_t)row * 2 : 256, 128, heads > 1 ? (cuuint64_t)head * 2 : 256};
    const cuuint32_t tile[] = {64, (cuuint32_t)box, (cuuint32_t)D / 64, 1};
    const cuuint32_t every[] = {1, 1, 1, 1};
    CUresult result = encode(map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 4, (void *)data, shape, strides, tile, every,
                             CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                             CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    if (result != CUDA_SUCCESS) {
        return carry_fail(ctx, CARRY_EDEVICE,
                          "CUDA device %d: no tensor map of %s, %d rows of %d heads (the driver's error %d)", ordinal,
                          name, rows, heads, (int)result);
    }
    return CARRY_OK;
}

#endif
