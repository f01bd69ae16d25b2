/* The only list of operator tables, and the checks before they are called. */
#include "ops/table.h"

#include <string.h>

#include "core/context.h"
#include "core/launching.h"
#include "core/tensor.h"
#include "device/backend.h"

extern const carry_operators carry_operators_cpu;
#if defined(CARRY_HAVE_CUDA)
extern const carry_operators carry_operators_cuda;
#endif

static const carry_operators *const table[] = {
    &carry_operators_cpu,
#if defined(CARRY_HAVE_CUDA)
    &carry_operators_cuda,
#endif
    NULL,
};

/* The offset of an operator in the struct of a backend. */
static const struct {
    const char *name, *types;
    size_t entry;
} operator_list[] = {
#define X(name, types, parameters) {#name, types, offsetof(carry_operators, name)},
    CARRY_OPERATOR_LIST(X)
#undef X
};

#define OPERATORS (int)(sizeof operator_list / sizeof operator_list[0])

carry_status carry_operators_at(carry_ctx *ctx, const carry_operators **operators, const char *name, const char *place,
                                int device, int *ordinal) {
    int number = 0;
    if (ordinal == NULL) {
        ordinal = &number;
    }
    *operators = &carry_operators_cpu;
    *ordinal = 0;
    if (device == 0) { /* no query here: it would start the driver of a GPU that is not used */
        return CARRY_OK;
    }
    carry_launching_at(name, place);
    const carry_backend *backend = carry_backend_of(device, ordinal);
    for (int i = 0; backend != NULL && table[i] != NULL; i++) {
        if (strcmp(table[i]->backend, backend->name) == 0) {
            *operators = table[i];
            return CARRY_OK;
        }
    }
    return carry_fail(ctx, CARRY_EUNSUPPORTED,
                      "%s: device %d does not exist or has no operators (carry list devices shows the devices)", name,
                      device);
}

carry_status carry_operator_missing(carry_ctx *ctx, const carry_operators *operators, const char *name) {
    return carry_fail(ctx, CARRY_EUNSUPPORTED, "%s has no entry for %s devices (carry list ops shows which have one)",
                      name, operators->backend);
}

const char *carry_operator_name(int index) {
    return index >= 0 && index < OPERATORS ? operator_list[index].name : NULL;
}

const char *carry_operator_types(int index, int backend, const char **name) {
    if (index < 0 || index >= OPERATORS || backend < 0 || backend >= (int)(sizeof table / sizeof table[0]) - 1) {
        return NULL;
    }
    /* Function pointers of all types have one size, and NULL is all zeros. */
    void (*entry)(void);
    const carry_operators *of = table[backend];
    memcpy(&entry, (const char *)of + operator_list[index].entry, sizeof entry);
    *name = of->backend;
    const char *types = operator_list[index].types != NULL ? operator_list[index].types : of->matmul_types;
    return entry != NULL ? types : "";
}

const char *carry_device_way(int index) {
    for (int i = 0; index >= 0 && table[i] != NULL; i++) {
        for (int j = 0; table[i]->ways != NULL && table[i]->ways[j] != NULL; j++) {
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
    /* Not on the CPU: the query would start the driver of a GPU that is not used. Not for an empty tensor, which may
       point past the end of an allocation. */
    bool asks = device != 0 && carry_tensor_count(tensor) > 0;
    return asks ? carry_device_check_pointer(ctx, name, tensor->data, device) : CARRY_OK;
}
