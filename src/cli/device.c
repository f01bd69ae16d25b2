/* --device. */
#include <string.h>

#include "cli/cli.h"

int cli_device(carry_ctx *ctx, const char *text, int *device) {
    carry_status status = CARRY_OK;
    if (text != NULL) {
        status = carry_device_named(ctx, device, text);
    } else if (carry_device_named(ctx, device, "cuda") != CARRY_OK) {
        *device = 0;
    }
    return status == CARRY_OK ? CLI_DONE : cli_refuse("--device: %s", carry_ctx_error(ctx));
}

const char *cli_device_name(char name[CLI_DEVICE], carry_ctx *ctx, int device) {
    carry_device_properties properties;
    if (device == 0 || carry_device_describe(ctx, device, &properties) != CARRY_OK) {
        (void)snprintf(name, CLI_DEVICE, "cpu");
    } else {
        (void)snprintf(name, CLI_DEVICE, "%s:%d, %s", properties.backend, device - 1, properties.name);
    }
    return name;
}
