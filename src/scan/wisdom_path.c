/* The location of the wisdom file: one file for each machine, so that several machines can share a home folder. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "carry/device.h"

static uint32_t machine_number(void) {
    carry_ctx *ctx = NULL;
    carry_device_properties cpu = {CARRY_INIT(carry_device_properties), .name = ""};
    if (carry_ctx_new(&ctx, &(carry_ctx_options){CARRY_INIT(carry_ctx_options), .threads = 1}) == CARRY_OK) {
        (void)carry_device_properties_of(ctx, &cpu, 0);
    }
    carry_ctx_free(ctx);
    uint32_t number = 2166136261u; /* FNV-1a */
    for (const char *at = cpu.name; *at != '\0'; at++) {
        number = (number ^ (unsigned char)*at) * 16777619u;
    }
    return (number ^ (uint32_t)sysconf(_SC_NPROCESSORS_CONF)) * 16777619u;
}

const char *carry_wisdom_path(char *path, size_t size) {
    const char *asked = getenv("CARRY_WISDOM");
    const char *cache = getenv("XDG_CACHE_HOME");
    const char *home = getenv("HOME");
    int length = 0;
    if (asked != NULL && *asked != '\0') {
        length = strcmp(asked, "none") != 0 ? snprintf(path, size, "%s", asked) : 0;
    } else if (cache != NULL && cache[0] == '/') {
        length = snprintf(path, size, "%s/carry/wisdom-%08x", cache, machine_number());
    } else if (home != NULL && home[0] == '/') {
        length = snprintf(path, size, "%s/.cache/carry/wisdom-%08x", home, machine_number());
    }
    return length > 0 && (size_t)length < size ? path : NULL;
}
