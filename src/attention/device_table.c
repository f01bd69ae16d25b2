/* The only list of the devices that attention supports. */
#include "attention/device.h"

#include <string.h>

#include "device/backend.h"

#if defined(CARRY_HAVE_CUDA)
extern const carry_attention_device carry_attention_cuda;
#endif

static const carry_attention_device *const table[] = {
#if defined(CARRY_HAVE_CUDA)
    &carry_attention_cuda,
#endif
    NULL,
};

const carry_attention_device *carry_attention_device_of(int device, int *ordinal) {
    const carry_backend *backend = carry_backend_of(device, ordinal);
    for (int i = 0; backend != NULL && table[i] != NULL; i++) {
        if (strcmp(table[i]->backend, backend->name) == 0) {
            return table[i];
        }
    }
    return NULL;
}
