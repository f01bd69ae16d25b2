/* The only list of operators on devices, and the checks before they are called. */
#include "ops/device.h"

#include <string.h>

#include "core/context.h"
#include "core/tensor.h"
#include "device/backend.h"

#if defined(CARRY_HAVE_CUDA)
extern const carry_device_ops carry_device_ops_cuda;
#endif

static const carry_device_ops *const table[] = {
#if defined(CARRY_HAVE_CUDA)
    &carry_device_ops_cuda,
#endif
    NULL,
};

carry_status carry_device_ops_of(carry_ctx *ctx, const carry_device_ops **ops, int device, int *ordinal) {
    const carry_backend *backend = carry_backend_of(device, ordinal);
    *ops = NULL;
    for (int i = 0; backend != NULL && table[i] != NULL; i++) {
        if (strcmp(table[i]->backend, backend->name) == 0) {
            *ops = table[i];
            return CARRY_OK;
        }
    }
    return carry_fail(ctx, CARRY_EUNSUPPORTED,
                      "device %d is not here or has no operators (carry list devices shows what there is)", device);
}

const char *carry_device_way(int index) {
    for (int i = 0; index >= 0 && table[i] != NULL; i++) {
        for (int j = 0; table[i]->ways[j] != NULL; j++) {
            if (index-- == 0) {
                return table[i]->ways[j];
            }
        }
    }
    return NULL;
}

carry_status carry_device_expect(carry_ctx *ctx, const char *name, const carry_tensor *tensor, int device) {
    if (tensor->device != device) {
        return carry_fail(ctx, CARRY_EDEVICE, "%s is on device %d and the result is wanted on device %d", name,
                          tensor->device, device);
    }
    /* On the CPU the question is not asked: it would start the driver of a GPU that nobody wants. */
    /* An empty tensor may point past the end of what was allocated, which is nobody's memory. */
    bool asks = device != 0 && carry_tensor_count(tensor) > 0;
    return asks ? carry_device_check_pointer(ctx, name, tensor->data, device) : CARRY_OK;
}
