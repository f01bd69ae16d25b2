/* Rows of a quantised weight in bf16, piece by piece. */
#include "ops/quantised/rows.h"

#include "ops/quantised/quantised.h"

#define CACHE_LINE 64

carry_quant_rows carry_quant_rows_of(const carry_kernels *kernels, const carry_matrix *weight, int64_t rows,
                                     int64_t columns) {
    const carry_quant_kernels *by = carry_quant_kernels_for(kernels->name);
    carry_tensor W = carry_view_2d((void *)(uintptr_t)weight->data, CARRY_QUANTISED, rows, columns); /* only read */
    W.stride[0] = weight->row;
    W.stride[1] = weight->format;
    const carry_quant_format *format = carry_quant_format_of(&W);
    return (carry_quant_rows){.kernels = kernels,
                              .W = W,
                              .block = format->block,
                              .bytes = (int64_t)format->bytes,
                              .function = by->bf16 != NULL ? by->bf16(format) : NULL};
}

static const unsigned char *block_at(const carry_quant_rows *rows, int64_t row, int64_t column) {
    return (const unsigned char *)rows->W.data + row * rows->W.stride[0] + column / rows->block * rows->bytes;
}

void carry_quant_rows_fetch(const carry_quant_rows *rows, int64_t row, int64_t first, int64_t count) {
    const unsigned char *at = block_at(rows, row, first);
    const int64_t bytes = (count + rows->block - 1) / rows->block * rows->bytes;
    for (int64_t i = 0; i < bytes; i += CACHE_LINE) {
        __builtin_prefetch(at + i, 0, 3);
    }
}

void carry_quant_rows_bf16(const carry_quant_rows *rows, int64_t row, int64_t first, int64_t count, uint16_t *to) {
    int64_t at = 0;
    if (rows->function != NULL) {
        rows->function(to, block_at(rows, row, first), count / rows->block);
        at = count / rows->block * rows->block;
    }
    for (; at < count; at += CARRY_QUANT_PAD) {
        float piece[CARRY_QUANT_PAD]; /* whole blocks of every format */
        const int64_t here = count - at < CARRY_QUANT_PAD ? count - at : CARRY_QUANT_PAD;
        carry_quant_decode(&rows->W, row, first + at, here, piece);
        rows->kernels->bf16_from_f32(to + at, piece, here);
    }
}
