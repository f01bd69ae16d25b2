#include "device/share.h"

#include "core/error.h"
#include "device/backend.h"

carry_status carry_stream_new_share(carry_ctx *ctx, carry_stream **stream, int device, int multiprocessors, bool rest) {
    int ordinal;
    const carry_backend *backend = carry_backend_of(device, &ordinal);
    *stream = NULL;
    if (backend == NULL || backend->stream_new_share == NULL) {
        return carry_fail(ctx, CARRY_EUNSUPPORTED,
                          "device %d has no multiprocessors that can be divided (see carry list devices)", device);
    }
    return backend->stream_new_share(ctx, stream, ordinal, multiprocessors, rest);
}
