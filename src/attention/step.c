/* A step of generation on a device: one token of every sequence, appended to the keys and values in its cache. */
#include "attention/attention.h"
#include "attention/device.h"
#include "core/context.h"

bool carry_attention_steps(const carry_attention_step_args *args) {
    int ordinal;
    const carry_attention_device *there =
        args->q.device != 0 ? carry_attention_device_of(args->q.device, &ordinal) : NULL;
    return there != NULL && there->steps(args, ordinal);
}

size_t carry_attention_step_workspace(const carry_attention_step_args *args) {
    int ordinal;
    const carry_attention_device *there = carry_attention_device_of(args->q.device, &ordinal);
    return there != NULL ? carry_attention_with_spare(there->step_workspace(args, ordinal)) : 0;
}

carry_status carry_attention_step(carry_ctx *ctx, const carry_attention_step_args *args, void *workspace,
                                  size_t bytes) {
    int ordinal;
    const carry_attention_device *there = carry_attention_device_of(args->q.device, &ordinal);
    if (!carry_attention_steps(args)) {
        return carry_fail(ctx, CARRY_EUNSUPPORTED, "device %d has no steps of attention for this type and width",
                          args->q.device);
    }
    CARRY_TRY(carry_attention_check_workspace(ctx, workspace, bytes, carry_attention_step_workspace(args)));
    carry_attention_align(&workspace, &bytes);
    return there->step(ctx, args, ordinal, carry_ctx_stream(ctx, args->q.device), workspace);
}
