/* Tensors are borrowed views: Carry never owns or frees what a carry_tensor points to.

   In every header: a call is (context, plan or communicator; outputs; inputs; options), or takes a struct of arguments
   with the outputs first. A tensor that a call can do without is absent where its data is NULL, as in a struct that
   does not name it. The gradient of x is dx; that of o is d_o. Options may be NULL, which is the same as all zero.
   Workspaces, and what a forward pass keeps for its backward one, are aligned to 16 bytes, as malloc and
   carry_device_alloc give them (CARRY_EALIGN where one that is not cannot be used).

   Element i0, i1, ... is at data + (i0*stride[0] + i1*stride[1] + ...) elements. Strides count elements, not bytes. */
#ifndef CARRY_TENSOR_H
#define CARRY_TENSOR_H

#include <stddef.h>
#include <stdint.h>

#include "carry/context.h"

#ifdef __cplusplus
extern "C" {
#endif

/* X(name, text, bytes). bf16 is the upper half of an f32; f16 is IEEE binary16. i64 is for ids and positions, f64 for
   sums over many elements (carry/nn.h); no other operator takes them. */
#define CARRY_DTYPE_LIST(X) \
    X(F32, "f32", 4)        \
    X(BF16, "bf16", 2)      \
    X(F16, "f16", 2)        \
    X(I64, "i64", 8)        \
    X(F64, "f64", 8)

typedef enum carry_dtype {
#define X(name, text, bytes) CARRY_##name,
    CARRY_DTYPE_LIST(X)
#undef X
} carry_dtype;

CARRY_API const char *carry_dtype_name(carry_dtype dtype); /* "?" for a number that is no type */
CARRY_API size_t carry_dtype_size(carry_dtype dtype);      /* 0 for a number that is no type */
CARRY_API carry_status carry_dtype_parse(carry_dtype *dtype, const char *name);

#define CARRY_MAX_RANK 6

typedef struct carry_tensor {
    void *data;
    carry_dtype dtype;
    int device; /* an index of carry_device_describe; 0 is the CPU */
    int rank;
    int64_t shape[CARRY_MAX_RANK];
    int64_t stride[CARRY_MAX_RANK];
} carry_tensor;

/* Views of densely packed data on the CPU, last index fastest. */
CARRY_API carry_tensor carry_view(void *data, carry_dtype dtype, int rank, const int64_t *shape);
CARRY_API carry_tensor carry_view_1d(void *data, carry_dtype dtype, int64_t s0);
CARRY_API carry_tensor carry_view_2d(void *data, carry_dtype dtype, int64_t s0, int64_t s1);
CARRY_API carry_tensor carry_view_3d(void *data, carry_dtype dtype, int64_t s0, int64_t s1, int64_t s2);
CARRY_API carry_tensor carry_view_4d(void *data, carry_dtype dtype, int64_t s0, int64_t s1, int64_t s2, int64_t s3);

/* The same on another device. */
CARRY_API carry_tensor carry_view_on(int device, void *data, carry_dtype dtype, int rank, const int64_t *shape);

/* Views of a view, on the same device and of the same type. Neither is checked, as carry_view is not: a tensor that is
   made of them is checked by the operator that gets it. An absent tensor (data NULL) stays absent.
   reshape: the elements of a packed tensor in another shape of as many. slice: items first .. first + count - 1 along
   the first index, such as rows. */
CARRY_API carry_tensor carry_reshape(carry_tensor tensor, int rank, const int64_t *shape);
CARRY_API carry_tensor carry_reshape_1d(carry_tensor tensor, int64_t s0);
CARRY_API carry_tensor carry_reshape_2d(carry_tensor tensor, int64_t s0, int64_t s1);
CARRY_API carry_tensor carry_reshape_3d(carry_tensor tensor, int64_t s0, int64_t s1, int64_t s2);
CARRY_API carry_tensor carry_reshape_4d(carry_tensor tensor, int64_t s0, int64_t s1, int64_t s2, int64_t s3);
CARRY_API carry_tensor carry_slice(carry_tensor tensor, int64_t first, int64_t count);

/* Round to nearest, ties to even. NaN stays NaN (quiet, payload's upper bits kept), infinities and signed zeros stay,
   f16 subnormals are exact, and what exceeds the largest finite number becomes infinite. */
CARRY_API uint16_t carry_bf16_from_f32(float value);
CARRY_API float carry_f32_from_bf16(uint16_t bits);
CARRY_API uint16_t carry_f16_from_f32(float value);
CARRY_API float carry_f32_from_f16(uint16_t bits);

/* Random numbers by counter (Philox 4x32-10): element i of stream s under a seed is a function of (seed, s, i) alone,
   so values depend neither on thread count nor on the order in which tensors are filled. The tensor must be packed and
   on the CPU: f32, bf16 or f16. */
CARRY_API carry_status carry_random_uniform(carry_ctx *ctx, carry_tensor out, uint64_t seed, uint64_t stream, float low,
                                            float high);
CARRY_API carry_status carry_random_normal(carry_ctx *ctx, carry_tensor out, uint64_t seed, uint64_t stream, float mean,
                                           float deviation);

#ifdef __cplusplus
}
#endif
#endif
