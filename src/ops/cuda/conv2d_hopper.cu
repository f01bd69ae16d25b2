/* Convolutions of bf16 pictures by the instructions of Hopper GPUs: which shape of tiles a job gets. */
#include "ops/cuda/conv2d_hopper.cuh"

#include "device/tensor_map.cuh"

namespace conv2d_hopper {

carry_status encode_map(carry_ctx *ctx, CUtensorMap *map, const void *data, int rank, const cuuint64_t *sizes,
                        const cuuint64_t *strides, const cuuint32_t *box, int ordinal) {
    carry_map_encoder encode = NULL;
    CARRY_TRY(carry_map_find_encoder(ctx, &encode, ordinal));
    const cuuint32_t every[] = {1, 1, 1, 1};
    const CUresult result =
        encode(map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, (cuuint32_t)rank, (void *)data, sizes, strides, box, every,
               CU_TENSOR_MAP_INTERLEAVE_NONE, sizes[0] == 64 ? CU_TENSOR_MAP_SWIZZLE_128B : CU_TENSOR_MAP_SWIZZLE_64B,
               CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    if (result != CUDA_SUCCESS) {
        return carry_fail(ctx, CARRY_EDEVICE, "CUDA device %d: no tensor map of a picture (the driver's error %d)",
                          ordinal, (int)result);
    }
    return CARRY_OK;
}

/* Returns 0 if the GPU does not have the kernels. */
static int units_of(int ordinal) {
    int found = 0;
    (void)cudaDeviceGetAttribute(&found, cudaDevAttrMultiProcessorCount, ordinal);
    return works<flat_192>(ordinal) ? found : 0;
}

} // namespace conv2d_hopper

using namespace conv2d_hopper;

carry_status carry_conv2d_hopper(carry_ctx *ctx, const conv2d_job &job, const place &at, bool *done) {
    static const int units = units_of(at.ordinal); /* assumes that all GPUs of a process are alike */
    bool by_64 = true, by_96 = true, by_32 = true;
    for (int i = 0; i < job.inputs; i++) {
        by_64 = by_64 && job.channels[i] % 64 == 0 && (uintptr_t)job.from[i] % 16 == 0;
        by_96 = by_96 && job.channels[i] % 96 == 0 && (uintptr_t)job.from[i] % 16 == 0;
        by_32 = by_32 && job.channels[i] % 32 == 0 && (uintptr_t)job.from[i] % 16 == 0;
    }
    const bool aligned = job.depth % 8 == 0 && (uintptr_t)job.w % 16 == 0 && (uintptr_t)job.y % 4 == 0 &&
                         (uintptr_t)job.add % 4 == 0 && (uintptr_t)job.bias % 8 == 0;
    *done = units > 0 && job.window.step == 1 && aligned && (by_64 || by_32);
    if (!*done) {
        return CARRY_OK;
    }
    if (job.out <= 8) {
        return by_64   ? launch<wide_8>(ctx, job, at)
               : by_96 ? launch<flat_8_of_96>(ctx, job, at)
                       : launch<wide_8_of_32>(ctx, job, at);
    }
    if (!by_64) {
        return by_96 ? launch<wide_96_of_96>(ctx, job, at) : launch<flat_64_of_32>(ctx, job, at);
    }
    if (job.out <= 64) {
        return launch<flat_64>(ctx, job, at);
    }
    if (job.out <= 96) {
        return launch<wide_96>(ctx, job, at);
    }
    const bool wide = cost<flat_192>(job, units, 1.0) <= cost<flat_128>(job, units, 0.85);
    return wide ? launch<flat_192>(ctx, job, at) : launch<flat_128>(ctx, job, at);
}
