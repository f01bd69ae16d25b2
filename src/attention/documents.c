/* The backward pass of attention over the documents of packed rows. */
#include <string.h>

#include "attention/attention.h"
#include "attention/device.h"
#include "carry/ops.h"
#include "core/context.h"
#include "core/tensor.h"

#define SUMS_LIMIT ((size_t)512 << 20) /* bytes for documents that share a launch */

const char *carry_attention_backward_method(const carry_attention_backward_args *args) {
    int ordinal;
    const int device = args->forward.q.device;
    const carry_attention_device *there = device != 0 ? carry_attention_device_of(device, &ordinal) : NULL;
    return there != NULL ? there->backward_method(args) : "blocks";
}

/* The call of `count` rows from `first` on. */
static carry_attention_backward_args document_of(const carry_attention_backward_args *args, int64_t first,
                                                 int64_t count) {
    carry_attention_backward_args one = *args;
    const int64_t heads = args->forward.q.shape[1];
    carry_tensor *const tensors[] = {&one.dq,        &one.dk,        &one.dv,        &one.d_o,
                                     &one.forward.q, &one.forward.k, &one.forward.v, &one.forward.o};
    for (size_t i = 0; i < sizeof tensors / sizeof tensors[0]; i++) {
        *tensors[i] = carry_slice(*tensors[i], first, count);
    }
    const carry_tensor lse = carry_reshape_1d(args->forward.lse, carry_tensor_count(&args->forward.lse));
    one.forward.lse = carry_reshape_2d(carry_slice(lse, first * heads, count * heads), heads, count);
    return one;
}

size_t carry_attention_backward_documents_workspace(const carry_attention_backward_args *args, int64_t longest) {
    carry_attention_backward_args one = *args;
    const int64_t rows = args->forward.q.shape[0];
    one.forward.q.shape[0] = one.forward.k.shape[0] = longest < rows ? longest : rows;
    const size_t least = carry_attention_backward_workspace(&one);
    if (args->forward.q.device == 0) {
        return least;
    }
    const size_t all = carry_attention_backward_workspace(args);
    const size_t most = all < SUMS_LIMIT ? all : SUMS_LIMIT;
    return most > least ? most : least;
}

carry_status carry_attention_backward_documents(carry_ctx *ctx, const carry_attention_backward_args *args,
                                                const carry_attention_documents *documents, void *workspace,
                                                size_t bytes) {
    int ordinal;
    int64_t longest = 0;
    const int device = args->forward.q.device;
    const carry_attention_device *there = device != 0 ? carry_attention_device_of(device, &ordinal) : NULL;
    for (int64_t i = 0; i < documents->count; i++) {
        const int64_t rows = documents->starts[i + 1] - documents->starts[i];
        longest = rows > longest ? rows : longest;
    }
    if (there != NULL && strcmp(there->backward_method(args), "plain") != 0) {
        carry_attention_backward_args one = document_of(args, 0, longest);
        CARRY_TRY(carry_attention_check_backward(ctx, args));
        CARRY_TRY(carry_attention_check_workspace(ctx, workspace, bytes, carry_attention_backward_workspace(&one)));
        CARRY_TRY(carry_device_check_pointer(ctx, "the workspace", workspace, device));
        carry_attention_align(&workspace, &bytes);
        return there->backward(ctx, args, documents, workspace, bytes);
    }
    CARRY_TRY(carry_zero(ctx, args->dk));
    CARRY_TRY(carry_zero(ctx, args->dv));
    for (int64_t i = 0; i < documents->count; i++) {
        const int64_t rows = documents->starts[i + 1] - documents->starts[i];
        const carry_attention_backward_args one = document_of(args, documents->starts[i], rows);
        if (rows > 0) {
            CARRY_TRY(carry_attention_backward(ctx, &one, workspace, bytes));
        }
    }
    return CARRY_OK;
}
