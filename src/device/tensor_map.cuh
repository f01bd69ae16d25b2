/* The driver's encoder of tensor maps, which describe the layout of a tensor to the copy engine of Hopper GPUs. It
   is looked up at run time, so that a machine without a driver can load the library. */
#ifndef CARRY_DEVICE_TENSOR_MAP_CUH
#define CARRY_DEVICE_TENSOR_MAP_CUH

#include <cuda.h>

#include "device/cuda.h"

typedef decltype(&cuTensorMapEncodeTiled) carry_map_encoder;

static inline carry_map_encoder carry_map_ask_driver() {
    void *found = NULL;
    cudaDriverEntryPointQueryResult result;
    if (cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &found, 12000, cudaEnableDefault, &result) !=
            cudaSuccess ||
        result != cudaDriverEntryPointSuccess) {
        (void)cudaGetLastError();
        return NULL;
    }
    return (carry_map_encoder)found;
}

static inline carry_status carry_map_find_encoder(carry_ctx *ctx, carry_map_encoder *encode, int ordinal) {
    static const carry_map_encoder known = carry_map_ask_driver();
    if (known == NULL) {
        return carry_fail(ctx, CARRY_EUNSUPPORTED, "CUDA device %d: the driver has no tensor maps", ordinal);
    }
    *encode = known;
    return CARRY_OK;
}

#endif
