/* Rates of GPUs, measured once per context and device. */
#include "device/gpu.h"

#include <stdlib.h>

#include "core/context.h"
#include "device/backend.h"

carry_status carry_gpu_of(carry_ctx *ctx, const carry_gpu **gpu, int device) {
    int ordinal;
    const carry_backend *backend = carry_backend_of(device, &ordinal);
    *gpu = NULL;
    if (backend == NULL || backend->measure == NULL || device >= CARRY_MAX_DEVICES) {
        return carry_fail(ctx, CARRY_EUNSUPPORTED, "device %d is not a GPU that can be used (see carry list devices)",
                          device);
    }
    carry_gpu *all = ctx->slots[CARRY_SLOT_GPU].data;
    if (all == NULL) {
        all = calloc(CARRY_MAX_DEVICES, sizeof *all);
        if (all == NULL) {
            return carry_fail(ctx, CARRY_EMEMORY, "out of memory: the rates of GPUs");
        }
        ctx->slots[CARRY_SLOT_GPU].data = all;
        ctx->slots[CARRY_SLOT_GPU].free = free;
    }
    if (all[device].units == 0) { /* not measured yet */
        carry_gpu measured = {.device = device, .ordinal = ordinal};
        CARRY_TRY(backend->measure(ctx, ordinal, &measured));
        all[device] = measured;
    }
    *gpu = &all[device];
    return CARRY_OK;
}
