/* Inputs of the cost models of a GPU: its properties, and rates that are measured once per context. */
#ifndef CARRY_DEVICE_GPU_H
#define CARRY_DEVICE_GPU_H

#include <stddef.h>

#include "carry/context.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct carry_gpu {
    int device;            /* as in carry/device.h */
    int ordinal;           /* CUDA's device number */
    int units;             /* multiprocessors */
    size_t shared_bytes;   /* shared memory that one block may use */
    size_t cache;          /* L2 */
    double copy_bytes_s;   /* read plus written, beyond the L2 */
    double cache_bytes_s;  /* read plus written, inside the L2 */
    double launch_s;       /* seconds of an empty kernel in a graph */
    double barrier_s;      /* seconds of a barrier of all blocks of a grid */
    double latency_s;      /* seconds of a load from device memory */
    double tensor_flops_s; /* flop/s of f16 products with f32 sums */
    double plain_flops_s;  /* flop/s of f32 multiply-adds outside the tensor cores */
} carry_gpu;

/* Measured at the first call for a device, which takes some tens of milliseconds and waits for the device. Rates
   that cannot be measured are estimated from clock and width. Valid as long as the context. CARRY_EUNSUPPORTED if
   the device is not a GPU. */
carry_status carry_gpu_of(carry_ctx *ctx, const carry_gpu **gpu, int device);

#ifdef __cplusplus
}
#endif
#endif
