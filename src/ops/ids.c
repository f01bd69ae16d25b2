/* Token ids and targets, validated once per batch in host memory. */
#include <inttypes.h>

#include "core/context.h"
#include "core/tensor.h"
#include "ops/nn.h"

#define LEFT_OUT (-100)

static carry_status expect_host(carry_ctx *ctx, const char *name, const carry_tensor *ids) {
    CARRY_TRY(carry_tensor_expect(ctx, name, ids, ids->rank, ids->shape));
    if (ids->dtype != CARRY_I64) {
        return carry_fail(ctx, CARRY_EDTYPE, "%s is %s and i64 is needed", name, carry_dtype_name(ids->dtype));
    }
    if (!carry_tensor_is_packed(ids, 0)) {
        return carry_fail(ctx, CARRY_ESTRIDE, "%s is not packed: its elements must follow each other", name);
    }
    if (ids->device != 0) {
        return carry_fail(ctx, CARRY_EDEVICE, "%s is on device %d: it is checked in host memory, before it is uploaded",
                          name, ids->device);
    }
    return CARRY_OK;
}

carry_status carry_check_ids(carry_ctx *ctx, carry_tensor ids, int64_t vocabulary) {
    CARRY_TRY(expect_host(ctx, "ids", &ids));
    const int64_t *id = ids.data;
    const int64_t count = carry_tensor_count(&ids);
    for (int64_t i = 0; i < count; i++) {
        if (id[i] < 0 || id[i] >= vocabulary) {
            return carry_fail(ctx, CARRY_ERANGE, "ids[%" PRId64 "] is %" PRId64 " and the vocabulary has %" PRId64, i,
                              id[i], vocabulary);
        }
    }
    return CARRY_OK;
}

carry_status carry_check_targets(carry_ctx *ctx, int64_t *counted, carry_tensor targets, int64_t vocabulary) {
    CARRY_TRY(expect_host(ctx, "targets", &targets));
    const int64_t *target = targets.data;
    const int64_t count = carry_tensor_count(&targets);
    int64_t left_out = 0;
    for (int64_t i = 0; i < count; i++) {
        left_out += target[i] == LEFT_OUT;
        if (target[i] != LEFT_OUT && (target[i] < 0 || target[i] >= vocabulary)) {
            return carry_fail(ctx, CARRY_ERANGE, "targets[%" PRId64 "] is %" PRId64 " and the vocabulary has %" PRId64,
                              i, target[i], vocabulary);
        }
    }
    if (counted != NULL) {
        *counted = count - left_out;
    }
    return CARRY_OK;
}
