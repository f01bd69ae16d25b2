/* The only list of decoding kernels. */
#include <string.h>

#include "device/backend.h"
#include "engine/decode_ops.h"

#if defined(CARRY_HAVE_CUDA)
extern const carry_decode_device carry_decode_cuda;
#endif

static const carry_decode_device *const table[] = {
#if defined(CARRY_HAVE_CUDA)
    &carry_decode_cuda,
#endif
    NULL,
};

const carry_decode_device *carry_decode_device_of(int device, int *ordinal) {
    const carry_backend *backend = carry_backend_of(device, ordinal);
    for (int i = 0; backend != NULL && table[i] != NULL; i++) {
        if (strcmp(table[i]->backend, backend->name) == 0 && table[i]->blocks(*ordinal) > 0) {
            return table[i];
        }
    }
    return NULL;
}
