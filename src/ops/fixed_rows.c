/* Linear maps in blocks of a fixed number of rows, one after the other; the last block is padded with zeros in a
   buffer. */
#include <string.h>

#include "core/context.h"
#include "core/tensor.h"
#include "ops/linear.h"

size_t carry_fixed_rows_bytes(int64_t in, int64_t out) {
    return (size_t)(CARRY_FIXED_ROWS * (in + out)) * sizeof(float);
}

void carry_fixed_rows_set(carry_ctx *ctx, void *memory, size_t bytes) {
    ctx->fixed_rows = memory;
    ctx->fixed_rows_bytes = bytes;
}

static void copy_rows(const carry_tensor *to, const carry_tensor *from, int64_t rows) {
    memcpy(to->data, from->data, (size_t)(rows * from->shape[1]) * carry_dtype_size(from->dtype));
}

carry_status carry_fixed_rows_map(carry_ctx *ctx, carry_tensor y, carry_tensor x, carry_tensor W, bool accumulate) {
    unsigned char *memory = ctx->fixed_rows;
    const size_t bytes = ctx->fixed_rows_bytes;
    bool x_packed = false;
    carry_status status = CARRY_OK;
    if (bytes < carry_fixed_rows_bytes(x.shape[1], y.shape[1])) {
        return carry_fail(ctx, CARRY_EWORKSPACE,
                          "a product in blocks of %d rows has %zu bytes beside it: %zu are needed", CARRY_FIXED_ROWS,
                          bytes, carry_fixed_rows_bytes(x.shape[1], y.shape[1]));
    }
    ctx->fixed_rows = NULL;
    for (int64_t at = 0; status == CARRY_OK && at < x.shape[0]; at += CARRY_FIXED_ROWS) {
        const int64_t rows = x.shape[0] - at < CARRY_FIXED_ROWS ? x.shape[0] - at : CARRY_FIXED_ROWS;
        const carry_tensor from = carry_slice(x, at, rows);
        const carry_tensor to = carry_slice(y, at, rows);
        if (rows == CARRY_FIXED_ROWS) {
            status = carry_linear_map(ctx, to, from, W, accumulate, &x_packed);
            x_packed = false;
            continue;
        }
        memset(memory, 0, (size_t)(CARRY_FIXED_ROWS * x.shape[1]) * sizeof(float));
        const carry_tensor x_whole = carry_view_2d(memory, x.dtype, CARRY_FIXED_ROWS, x.shape[1]);
        const carry_tensor y_whole = carry_view_2d(memory + (size_t)(CARRY_FIXED_ROWS * x.shape[1]) * sizeof(float),
                                                   y.dtype, CARRY_FIXED_ROWS, y.shape[1]);
        copy_rows(&x_whole, &from, rows);
        if (accumulate) {
            memset(y_whole.data, 0, (size_t)(CARRY_FIXED_ROWS * y.shape[1]) * sizeof(float));
            copy_rows(&y_whole, &to, rows);
        }
        status = carry_linear_map(ctx, y_whole, x_whole, W, accumulate, &x_packed);
        x_packed = false;
        copy_rows(&to, &y_whole, rows);
    }
    ctx->fixed_rows = memory;
    return status;
}
