/* Products in 8-bit floats for training (carry train --fp8): matrices of codes with one scale for all of them.

   An element is code * scale. e4m3 has 3 bits of fraction and reaches 448, e5m2 has 2 bits and reaches 57344. Numbers
   beyond that become the largest code; infinities and NaN become NaN. The scale of a step follows from the largest
   element of the step before, which rounding records, so that it takes no pass over the matrix: rounding measures
   `largest`, and carry_fp8_scales, once a step, makes the next scale from it. In the first step, carry_fp8_measure
   reads the matrix before it is rounded. Largest elements do not depend on the order of threads, so results have the
   same bits in every run. */
#ifndef CARRY_OPS_FP8_H
#define CARRY_OPS_FP8_H

#include <stdbool.h>

#include "carry/nn.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef enum carry_fp8_kind { CARRY_E4M3, CARRY_E5M2 } carry_fp8_kind;

/* The numbers of a scale: the value of code 1, its inverse, the largest magnitude recorded since carry_fp8_scales, and
   the code that the largest element of the step before gets. f32, on the device of the codes. */
enum { CARRY_FP8_SCALE, CARRY_FP8_INVERSE, CARRY_FP8_LARGEST, CARRY_FP8_TOP, CARRY_FP8_NUMBERS };

/* Codes of the largest element: elements may become 2 times as large (e4m3) or 16 times (e5m2, which has a wide range)
   from one step to the next before they saturate. */
#define CARRY_FP8_TOP_E4M3 224.0f
#define CARRY_FP8_TOP_E5M2 3584.0f

/* A matrix of codes, [rows, columns], packed and aligned to 16 bytes. rows and columns are multiples of 16. */
typedef struct carry_fp8 {
    unsigned char *codes;
    int64_t rows, columns;
    carry_fp8_kind kind;
    int device;
    float *scale; /* CARRY_FP8_NUMBERS numbers on the device */
} carry_fp8;

/* Rows and columns that operators of this file accept. */
bool carry_fp8_fits(int64_t rows, int64_t columns);

/* to = x, rounded to nearest, ties to even: x [rows, columns], bf16; on a GPU its rows may have a larger stride.
   Records the largest magnitude of x; not if `transposed`: to is then [columns, rows]. */
carry_status carry_fp8_round(carry_ctx *ctx, carry_fp8 to, carry_tensor x, bool transposed);
/* Records the largest magnitude of x, bf16 like above, in `scale`, [CARRY_FP8_NUMBERS]. */
carry_status carry_fp8_measure(carry_ctx *ctx, carry_tensor scale, carry_tensor x);
/* Makes scales [n, CARRY_FP8_NUMBERS] from what was recorded, and clears it. A scale for which nothing was recorded, or
   something that is not finite, stays as it is. */
carry_status carry_fp8_scales(carry_ctx *ctx, carry_tensor scales);
/* c = a b^T, or base + a b^T: a [m, k], b [n, k], c [m, n], bf16 or f16; sums in f32, rounded once. On a GPU rows of c
   may have a larger stride, unless there is a base, which is packed and of c's type, and may be c. At most one of a and
   b is e5m2. */
carry_status carry_fp8_product(carry_ctx *ctx, carry_tensor c, carry_fp8 a, carry_fp8 b, carry_tensor base);
/* Cross entropy of logits [T, vocabulary] in f16, which are overwritten by their gradient in bf16. `codes`, unless its
   codes are NULL, gets the gradient in e5m2 and its scale, which follows from `scale`: no gradient exceeds it. The
   vocabulary is at most CARRY_FP8_WORDS. */
#define CARRY_FP8_WORDS 32768
carry_status carry_fp8_loss(carry_ctx *ctx, carry_tensor losses, carry_tensor logits, carry_tensor targets,
                            carry_fp8 codes, float scale);

/* carry_rms_norm without a gate, carry_swiglu and carry_swiglu_backward in bf16, followed by carry_fp8_round of y, or
   of [dgate, dup] as columns of one matrix; on a GPU in one pass over memory. */
carry_status carry_fp8_rms_norm(carry_ctx *ctx, carry_tensor y, carry_fp8 codes, carry_tensor x, carry_tensor w,
                                float eps);
carry_status carry_fp8_swiglu(carry_ctx *ctx, carry_tensor y, carry_fp8 codes, carry_tensor gate, carry_tensor up);
carry_status carry_fp8_swiglu_backward(carry_ctx *ctx, carry_tensor dgate, carry_tensor dup, carry_fp8 codes,
                                       carry_tensor dy, carry_tensor gate, carry_tensor up);

/* True if the device multiplies 8-bit floats: a GPU of compute capability 8.9 or newer with cuBLASLt; by_rows, with a
   scale for each row (ops/fp8_rows.h): of compute capability 9.0. Otherwise *why is the reason. The operators work on
   every device, but slowly. */
bool carry_fp8_is_fast(carry_ctx *ctx, int device, bool by_rows, const char **why);

#ifdef __cplusplus
}
#endif
#endif
