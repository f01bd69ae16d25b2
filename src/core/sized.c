#include "core/sized.h"

#include <string.h>

#include "core/error.h"

/* No struct is larger than this: a larger size means that the memory was not initialised. */
#define MAX_SIZE 65536

static carry_status check_size(carry_ctx *ctx, size_t size, const char *type) {
    return size >= sizeof size && size <= MAX_SIZE
               ? CARRY_OK
               : carry_fail(ctx, CARRY_EARGUMENT, "%s has size %zu: begin its initialiser with CARRY_INIT(%s)", type,
                            size, type);
}

carry_status carry_sized_read(carry_ctx *ctx, void *own, size_t own_size, const void *given, const char *type) {
    size_t size;
    memset(own, 0, own_size);
    memcpy(own, &own_size, sizeof own_size);
    if (given == NULL) {
        return CARRY_OK;
    }
    memcpy(&size, given, sizeof size);
    CARRY_TRY(check_size(ctx, size, type));
    for (size_t i = own_size; i < size; i++) {
        if (((const unsigned char *)given)[i] != 0) {
            return carry_fail(ctx, CARRY_EUNSUPPORTED,
                              "%s has size %zu and a field beyond %zu bytes is set: it was made for a newer library "
                              "than %s",
                              type, size, own_size, carry_version());
        }
    }
    const size_t known = size < own_size ? size : own_size;
    memcpy((char *)own + sizeof size, (const char *)given + sizeof size, known - sizeof size);
    return CARRY_OK;
}

carry_status carry_sized_write(carry_ctx *ctx, void *given, const void *own, size_t own_size, const char *type) {
    size_t size;
    memcpy(&size, given, sizeof size);
    CARRY_TRY(check_size(ctx, size, type));
    const size_t known = size < own_size ? size : own_size;
    memset((char *)given + sizeof size, 0, size - sizeof size);
    memcpy((char *)given + sizeof size, (const char *)own + sizeof size, known - sizeof size);
    return CARRY_OK;
}
