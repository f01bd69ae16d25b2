/* The only list of kernels for decoding steps. */
#include <string.h>

#include "device/backend.h"
#include "engine/chain_ops.h"

#if defined(CARRY_HAVE_CUDA)
extern const carry_chain_device carry_chain_cuda;
#endif

static const carry_chain_device *const table[] = {
#if defined(CARRY_HAVE_CUDA)
    &carry_chain_cuda,
#endif
    NULL,
};

const carry_chain_device *carry_chain_device_of(int device, int *ordinal) {
    const carry_backend *backend = carry_backend_of(device, ordinal);
    for (int i = 0; backend != NULL && table[i] != NULL; i++) {
        if (strcmp(table[i]->backend, backend->name) == 0 && table[i]->works(*ordinal)) {
            return table[i];
        }
    }
    return NULL;
}
