/* Tensors are borrowed views: Carry never owns or frees the memory that a carry_tensor points to.

   Conventions in every header: parameters are the context, plan or communicator, then outputs, inputs and options; or a
   struct of arguments with the outputs first. An optional tensor is absent if its data is NULL, as it is in a struct
   initialiser that does not mention it. The gradient of x is dx; that of o is d_o. Options may be NULL, which means all
   zero. Structs of options and counts begin with CARRY_INIT (carry/status.h). Problems and structs of arguments have no
   size: initialise all their fields, with zero for those not used. Before version 1.0 a minor version may add fields at
   their end; the soname of the library then changes. A carry_tensor keeps its layout.

   A function that needs a workspace has another one, named after it with _workspace, which returns the bytes it needs
   for a plan, for arguments or for sizes. Workspaces, and memory kept from a forward pass for its backward pass, must
   be aligned to 16 bytes, as memory from malloc and carry_device_alloc is; otherwise CARRY_EALIGN may be returned.

   Element i0, i1, ... is at data + (i0*stride[0] + i1*stride[1] + ...) elements. Strides count elements, not bytes. */
#ifndef CARRY_TENSOR_H
#define CARRY_TENSOR_H

#include <stddef.h>
#include <stdint.h>

#include "carry/context.h"

#ifdef __cplusplus
extern "C" {
#endif

/* X(name, text, bytes). bf16 is the upper half of an f32; f16 is IEEE binary16. Few operators accept i64 and f64: i64
   is for ids and positions, f64 for sums over many elements (carry/nn.h). The last four are types of files, which no
   public function accepts: 8-bit floats, integers of 8 and 32 bits, and rows of quantised blocks. */
#define CARRY_DTYPE_LIST(X) \
    X(F32, "f32", 4)        \
    X(BF16, "bf16", 2)      \
    X(F16, "f16", 2)        \
    X(I64, "i64", 8)        \
    X(F64, "f64", 8)        \
    X(F8, "f8_e4m3", 1)     \
    X(I8, "i8", 1)          \
    X(I32, "i32", 4)        \
    X(QUANTISED, "quantised", 1)

typedef enum carry_dtype {
#define X(name, text, bytes) CARRY_##name,
    CARRY_DTYPE_LIST(X)
#undef X
} carry_dtype;

CARRY_API const char *carry_dtype_name(carry_dtype dtype); /* "?" for a number that is not a type */
CARRY_API size_t carry_dtype_size(carry_dtype dtype);      /* 0 for a number that is not a type */
CARRY_API carry_status carry_dtype_parse(carry_dtype *dtype, const char *name);

#define CARRY_MAX_RANK 6

typedef struct carry_tensor {
    void *data;
    carry_dtype dtype;
    int device; /* numbered as in carry/device.h; 0 is the CPU */
    int rank;
    int64_t shape[CARRY_MAX_RANK];
    int64_t stride[CARRY_MAX_RANK];
} carry_tensor;

/* Views of packed data on the CPU, last index fastest. */
CARRY_API carry_tensor carry_view(void *data, carry_dtype dtype, int rank, const int64_t *shape);
CARRY_API carry_tensor carry_view_1d(void *data, carry_dtype dtype, int64_t s0);
CARRY_API carry_tensor carry_view_2d(void *data, carry_dtype dtype, int64_t s0, int64_t s1);
CARRY_API carry_tensor carry_view_3d(void *data, carry_dtype dtype, int64_t s0, int64_t s1, int64_t s2);
CARRY_API carry_tensor carry_view_4d(void *data, carry_dtype dtype, int64_t s0, int64_t s1, int64_t s2, int64_t s3);

/* The same on another device. */
CARRY_API carry_tensor carry_view_on(int device, void *data, carry_dtype dtype, int rank, const int64_t *shape);

/* Views of a view, on the same device and of the same type. Like carry_view, they check nothing; operators check the
   tensors they are given. An absent tensor (data NULL) stays absent.
   reshape: the elements of a packed tensor in another shape with as many elements. slice: items first to
   first + count - 1 along the first index, such as rows. */
CARRY_API carry_tensor carry_reshape(carry_tensor tensor, int rank, const int64_t *shape);
CARRY_API carry_tensor carry_reshape_1d(carry_tensor tensor, int64_t s0);
CARRY_API carry_tensor carry_reshape_2d(carry_tensor tensor, int64_t s0, int64_t s1);
CARRY_API carry_tensor carry_reshape_3d(carry_tensor tensor, int64_t s0, int64_t s1, int64_t s2);
CARRY_API carry_tensor carry_reshape_4d(carry_tensor tensor, int64_t s0, int64_t s1, int64_t s2, int64_t s3);
CARRY_API carry_tensor carry_slice(carry_tensor tensor, int64_t first, int64_t count);

/* Round to nearest, ties to even. NaN stays NaN (quiet, with the upper bits of the payload), infinities and signed
   zeros are kept, f16 subnormals are exact, and values beyond the largest finite number become infinite. */
CARRY_API uint16_t carry_bf16_from_f32(float value);
CARRY_API float carry_f32_from_bf16(uint16_t bits);
CARRY_API uint16_t carry_f16_from_f32(float value);
CARRY_API float carry_f32_from_f16(uint16_t bits);

/* Counter-based random numbers (Philox 4x32-10): element i of stream s is a function of (seed, s, i) only, so values
   depend neither on the number of threads nor on the order in which tensors are filled. The tensor is packed f32, bf16
   or f16 on the CPU. */
CARRY_API carry_status carry_random_uniform(carry_ctx *ctx, carry_tensor out, uint64_t seed, uint64_t stream, float low,
                                            float high);
CARRY_API carry_status carry_random_normal(carry_ctx *ctx, carry_tensor out, uint64_t seed, uint64_t stream, float mean,
                                           float deviation);

#ifdef __cplusplus
}
#endif
#endif
