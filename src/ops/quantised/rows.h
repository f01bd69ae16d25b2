/* Rows of a quantised weight in bf16, piece by piece. */
#ifndef CARRY_OPS_QUANTISED_ROWS_H
#define CARRY_OPS_QUANTISED_ROWS_H

#include "ops/kernels/quant.h"
#include "ops/linear.h"

typedef struct carry_quant_rows {
    const carry_kernels *kernels;
    carry_tensor W;
    int64_t block, bytes;               /* columns and bytes of a block */
    carry_quant_bf16_function function; /* of whole blocks; NULL: they are decoded to f32 and rounded */
} carry_quant_rows;

/* weight: operand b of a product, of type CARRY_QUANTISED. */
carry_quant_rows carry_quant_rows_of(const carry_kernels *kernels, const carry_matrix *weight, int64_t rows,
                                     int64_t columns);
/* Decodes columns first to first + count - 1 of a row; first is a multiple of CARRY_QUANT_PAD. */
void carry_quant_rows_bf16(const carry_quant_rows *rows, int64_t row, int64_t first, int64_t count, uint16_t *to);
/* Prefetches the bytes of these columns. */
void carry_quant_rows_fetch(const carry_quant_rows *rows, int64_t row, int64_t first, int64_t count);

#endif
