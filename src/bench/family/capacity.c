/* Checks the memory of a problem. */
#include "bench/family/capacity.h"

#include "core/context.h"
#include "core/memory.h"

carry_status carry_check_capacity(carry_ctx *ctx, double bytes, const char *sizes) {
    const double available = carry_available_bytes();
    if (available < 0.0 || bytes <= available) {
        return CARRY_OK;
    }
    return carry_fail(ctx, CARRY_EMEMORY, "needs %.3g GB of memory, and %.3g GB are available: reduce %s", 1e-9 * bytes,
                      1e-9 * available, sizes);
}
