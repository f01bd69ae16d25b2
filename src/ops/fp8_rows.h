/* Products in 8-bit floats for inference (carry stream --fp8): matrices of e4m3 codes with a scale for each row.

   An element is code * scale of its row, and the largest element of a row gets the largest code, 448. A row's scale
   depends on that row alone, so that rounding takes one pass over memory, and results do not depend on what was
   computed before or on other rows. A row with an infinite element or NaN has the scale 1 and NaN in their place. */
#ifndef CARRY_OPS_FP8_ROWS_H
#define CARRY_OPS_FP8_ROWS_H

#include <stdbool.h>

#include "carry/nn.h"

#ifdef __cplusplus
extern "C" {
#endif

#define CARRY_FP8_ROWS_MOST 448.0f
/* Scales are at least this over 448: the inverse of a smaller one could be infinite. */
#define CARRY_FP8_ROWS_LEAST 1e-30f

/* codes [rows, columns], packed and aligned to 16 bytes; scale [rows], f32. columns is a multiple of 16. */
typedef struct carry_fp8_rows {
    unsigned char *codes;
    float *scale;
    int64_t rows, columns;
    int device;
} carry_fp8_rows;

/* to = x, rounded to nearest, ties to even: x [rows, columns], bf16; on a GPU its rows may have a larger stride. */
carry_status carry_fp8_rows_round(carry_ctx *ctx, carry_fp8_rows to, carry_tensor x);
/* y = f(x W^T + b), or y += x W^T + b: as carry_affine, with x [T, in] and W [out, in] in 8-bit floats. y and b are
   bf16, b may be absent, sums are f32, and a result is rounded once on the CPU (on a GPU up to three times, if cuBLASLt
   cannot add the bias and apply the activation itself). out is a multiple of 16. The activation is
   CARRY_NO_ACTIVATION or CARRY_GELU. */
carry_status carry_fp8_rows_affine(carry_ctx *ctx, carry_tensor y, carry_fp8_rows x, carry_fp8_rows W, carry_tensor b,
                                   carry_activation activation, bool accumulate);

#ifdef __cplusplus
}
#endif
#endif
