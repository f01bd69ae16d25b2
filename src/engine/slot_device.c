/* The list of devices that can copy slots in one launch. */
#include "engine/slot_device.h"

#include <stddef.h>
#include <string.h>

#include "device/backend.h"

#if defined(CARRY_HAVE_CUDA)
extern const carry_slot_kernel carry_slot_cuda;
#endif

static const carry_slot_kernel *const kernels[] = {
#if defined(CARRY_HAVE_CUDA)
    &carry_slot_cuda,
#endif
    NULL,
};

const carry_slot_kernel *carry_slot_kernel_of(int device, int *ordinal) {
    const carry_backend *backend = carry_backend_of(device, ordinal);
    for (int i = 0; backend != NULL && kernels[i] != NULL; i++) {
        if (strcmp(kernels[i]->backend, backend->name) == 0) {
            return kernels[i];
        }
    }
    return NULL;
}
