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

/* On a GPU an operator works on the context's stream there (carry_ctx_set_stream) and returns when its work is in it;
   all its tensors are on that device, and pointers into host memory are refused with CARRY_EDEVICE. */

/* c[i] = a[i] b[i] for every i of a batch.
   c: [batch, m, n], a: [batch, m, k], b: [batch, k, n]; the last index of each has stride 1; c overlaps neither a nor
   b. A batch stride of 0 repeats one matrix; elements of c do not overlap (CARRY_ESTRIDE). k = 0 gives zeros. options
   may be NULL. On the CPU: f32, by Carry's own kernels, packed where that pays; through OpenBLAS from the size on
   where the wisdom file remembers that it was faster by a tenth (carry list rates). On a GPU: a and b are both f32,
   bf16 or f16, c is f32 or of their type, sums are f32. Small matrices go through tensor cores; f32 is split into two
   parts of 11 bits there, which keeps a product to 2^-21 of its magnitude, and infinities become NaN. Sides over 64 and
   sums over 256 go through cuBLASLt, in f32 proper; where that is not installed, a warning says so once and Carry's
   kernels do those too. */
CARRY_API carry_status carry_matmul(carry_ctx *ctx, carry_tensor c, carry_tensor a, carry_tensor b,
                                    const carry_matmul_options *options);

/* to = from, bit by bit: packed, of equal shape and type, each on any device. The copy is enqueued on this context's
   stream of the GPU concerned (of two, the one written to). Host memory that is not pinned (carry_host_alloc) may be
   used again on return; pinned memory, and every copy to the host, after carry_stream_wait, unless the stream is NULL:
   a copy to the host on it has happened on return. */
CARRY_API carry_status carry_copy(carry_ctx *ctx, carry_tensor to, carry_tensor from);
/* Every element becomes 0, or value in the tensor's type. Packed tensors of any type. */
CARRY_API carry_status carry_zero(carry_ctx *ctx, carry_tensor to);
CARRY_API carry_status carry_fill(carry_ctx *ctx, carry_tensor to, double value);

/* to[i] = from[i] in another type: f32, bf16, f16, each packed, of equal shape; to may be from when sizes are equal.
   The same bits on every device. */
CARRY_API carry_status carry_convert(carry_ctx *ctx, carry_tensor to, carry_tensor from);

typedef enum carry_elementwise_op { CARRY_ADD, CARRY_SUBTRACT, CARRY_MULTIPLY } carry_elementwise_op;

/* to[i] = x[i] op y[i], in f32 and then rounded to to's type: f32, bf16 or f16 each, packed, of equal shape. to may be
   x or y when its elements are of equal size. */
CARRY_API carry_status carry_elementwise(carry_ctx *ctx, carry_tensor to, carry_tensor x, carry_tensor y,
                                         carry_elementwise_op op);

#ifdef __cplusplus
}
#endif
#endif
