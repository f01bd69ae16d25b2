/* Devices by name. */
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "core/context.h"
#include "device/backend.h"

/* Reports why the GPU `name` does not exist; `found` is the number of GPUs. */
static carry_status refuse(carry_ctx *ctx, const char *name, int found) {
#if defined(CARRY_HAVE_CUDA)
    if (found > 0) {
        return carry_fail(ctx, CARRY_EUNSUPPORTED,
                          "there is no device %.20s here: cuda:0 to cuda:%d (carry list devices)", name, found - 1);
    }
    char reason[192];
    const char *absence = carry_device_absence(ctx, 0);
    size_t length = absence != NULL ? strlen(absence) : 0;
    length = length < sizeof reason ? length : sizeof reason - 1;
    memcpy(reason, absence != NULL ? absence : "", length); /* absence points into the context */
    reason[length] = '\0';
    return carry_fail(ctx, CARRY_EUNSUPPORTED, "there is no device %.20s here: %s", name,
                      length > 0 ? reason : "no GPU was found");
#else
    (void)found;
    return carry_fail(ctx, CARRY_EUNSUPPORTED, "there is no device %.20s: built without CUDA: cmake --preset cuda",
                      name);
#endif
}

carry_status carry_device_named(carry_ctx *ctx, int *device, const char *name) {
    *device = 0;
    if (strcmp(name, "cpu") == 0) {
        return CARRY_OK;
    }
    char *end = NULL;
    const bool is_numbered = strncmp(name, "cuda:", 5) == 0 && name[5] >= '0' && name[5] <= '9';
    const long wanted = is_numbered ? strtol(name + 5, &end, 10) : 0;
    if (strcmp(name, "cuda") != 0 && (!is_numbered || *end != '\0')) {
        return carry_fail(ctx, CARRY_EARGUMENT, "there is no device '%.40s': cpu, cuda or cuda:N is accepted", name);
    }
    int found = 0;
    for (int i = 0; i < carry_device_count(); i++) {
        carry_device_properties properties = {CARRY_INIT(carry_device_properties)};
        if (carry_device_properties_of(ctx, &properties, i) == CARRY_OK && strcmp(properties.backend, "cuda") == 0) {
            if (found == wanted) {
                *device = i;
                return CARRY_OK;
            }
            found++;
        }
    }
    return refuse(ctx, name, found);
}
