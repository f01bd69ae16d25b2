/* Operators on tensors. The plain C version of each is its specification; versions for an instruction set or a device
   override it and are compared with it by the tests. */
#ifndef CARRY_OPS_H
#define CARRY_OPS_H

#include <stdbool.h>

#include "carry/tensor.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The sets of kernels this build has ("plain", "neon", "avx2", "avx512"), slowest first; NULL past the end. */
CARRY_API const char *carry_kernels_name(int index);
CARRY_API const char *carry_kernels_about(int index);
CARRY_API bool carry_kernels_usable(int index); /* does this processor have what they need? */
/* The set that ctx uses. */
CARRY_API const char *carry_ctx_kernels(carry_ctx *ctx);

typedef struct carry_matmul_options {
    bool a_transposed; /* a is [batch, k, m] */
    bool b_transposed; /* b is [batch, n, k] */
    bool accumulate;   /* c += a b instead of c = a b */
} carry_matmul_options;

/* c[i] = a[i] b[i] for every i of a batch.
   c: [batch, m, n], a: [batch, m, k], b: [batch, k, n], f32 on the CPU; the last index of each has stride 1; c overlaps
   neither a nor b. A batch stride of 0 repeats one matrix (not for c). k = 0 gives zeros.
   Small matrices go through Carry's own kernels; those from the size on where OpenBLAS measures faster go through it.
   options may be NULL. */
CARRY_API carry_status carry_matmul(carry_ctx *ctx, carry_tensor c, carry_tensor a, carry_tensor b,
                                    const carry_matmul_options *options);

/* to[i] = from[i] in another type: f32, bf16, f16, each packed, of equal shape; to may be from when sizes are equal. */
CARRY_API carry_status carry_convert(carry_ctx *ctx, carry_tensor to, carry_tensor from);

#ifdef __cplusplus
}
#endif
#endif
