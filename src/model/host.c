/* Reading from a device. */
#include "model/host.h"

#include "carry/device.h"
#include "carry/ops.h"
#include "core/error.h"

carry_status carry_read(carry_ctx *ctx, carry_tensor to, carry_tensor from) {
    CARRY_TRY(carry_copy(ctx, to, from));
    return carry_stream_wait(ctx, from.device, carry_ctx_stream(ctx, from.device));
}
