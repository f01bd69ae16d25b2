/* Operators on tensors. The plain C version of an operator is its specification; the tests compare the versions for
   instruction sets and devices with it. */
#ifndef CARRY_OPS_H
#define CARRY_OPS_H

#include <stdbool.h>

#include "carry/tensor.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The kernel sets in this build ("plain", "neon", "avx2", "avx512"), slowest first; NULL past the end. */
CARRY_API const char *carry_kernels_name(int index);
CARRY_API const char *carry_kernels_about(int index);
CARRY_API bool carry_kernels_usable(int index); /* on this processor */
/* The set that ctx uses. */
CARRY_API const char *carry_ctx_kernels(carry_ctx *ctx);

typedef struct carry_matmul_options {
    size_t size;       /* CARRY_INIT */
    bool a_transposed; /* a is [batch, k, m] */
    bool b_transposed; /* b is [batch, n, k] */
    bool accumulate;   /* c += a b instead of c = a b */
} carry_matmul_options;

/* On a GPU an operator enqueues its work on the context's stream (carry_ctx_set_stream) and returns. All its tensors
   must be on that device; pointers to host memory are refused with CARRY_EDEVICE. */

/* c[i] = a[i] b[i] for every i of a batch.
   c: [batch, m, n], a: [batch, m, k], b: [batch, k, n]; the last index of each has stride 1; c overlaps neither a nor
   b. A batch stride of 0 repeats one matrix; elements of c must not overlap (CARRY_ESTRIDE). k = 0 gives zeros. options
   may be NULL. On the CPU: f32, with Carry's kernels, or with OpenBLAS from the size at which the wisdom file recorded
   that it was faster by a tenth (carry list rates). On a GPU: a and b are both f32, bf16 or f16; c is f32 or of their
   type; sums are f32. Small matrices use tensor cores, where f32 is split into two parts of 11 bits: a product is
   accurate to 2^-21 of its magnitude, and infinities become NaN. If m or n exceeds 64 or k exceeds 256, cuBLASLt is
   used, with true f32; without cuBLASLt, Carry's kernels are used after one warning. */
CARRY_API carry_status carry_matmul(carry_ctx *ctx, carry_tensor c, carry_tensor a, carry_tensor b,
                                    const carry_matmul_options *options);

/* to = from, bit by bit: both packed, of equal shape and type, each on any device. The copy is enqueued on the
   context's stream of the GPU involved (of two, the destination). A source in host memory may be reused on return,
   unless it is pinned (carry_host_alloc): then only after carry_stream_wait. A copy to the host is complete after
   carry_stream_wait, or on return if the stream is NULL. */
CARRY_API carry_status carry_copy(carry_ctx *ctx, carry_tensor to, carry_tensor from);
/* Set every element to 0, or to value rounded to the tensor's type. Packed tensors of any type. */
CARRY_API carry_status carry_zero(carry_ctx *ctx, carry_tensor to);
CARRY_API carry_status carry_fill(carry_ctx *ctx, carry_tensor to, double value);

/* to[i] = from[i], converted: each f32, bf16 or f16, packed, of equal shape; to may be from if their element sizes are
   equal. The same bits on every device: a tensor of the same type is copied bit by bit, NaN included; otherwise a NaN
   stays a NaN of the same sign, which is quiet unless it is a bf16 that becomes f32, whose bits are kept. */
CARRY_API carry_status carry_convert(carry_ctx *ctx, carry_tensor to, carry_tensor from);

typedef enum carry_elementwise_op { CARRY_ADD, CARRY_SUBTRACT, CARRY_MULTIPLY } carry_elementwise_op;

/* to[i] = x[i] op y[i], computed in f32 and rounded to the type of to: each f32, bf16 or f16, packed, of equal shape.
   to may be x or y if their element sizes are equal. */
CARRY_API carry_status carry_elementwise(carry_ctx *ctx, carry_tensor to, carry_tensor x, carry_tensor y,
                                         carry_elementwise_op op);

#ifdef __cplusplus
}
#endif
#endif
