/* Matrix products in the form that backends receive, and the check of a tensor's device. Callers have checked
   shapes, types and devices. */
#ifndef CARRY_OPS_DEVICE_H
#define CARRY_OPS_DEVICE_H

#include <stdbool.h>
#include <stdint.h>

#include "carry/device.h"
#include "carry/ops.h"

#ifdef __cplusplus
extern "C" {
#endif

/* c[i] = a[i] b[i], or added to c[i], for i < count. Item i of x starts at x + i*x_next elements, and its rows are
   x_row apart. a and b have type `type`; c is f32 or of that type; sums are f32. Each row of c[i] is f(row + bias),
   where f is gelu if `gelu` is set, else the identity. A bias or gelu needs cuBLASLt; with a bias, c has the type of a
   and b; gelu does not support accumulate. */
typedef struct carry_device_product {
    int64_t m, n, k, count;
    const void *a, *b;
    void *c;
    /* With accumulate, the matrix that is added. NULL: c. If count is 1 and c is packed, it may be another matrix of
       the size of c. */
    const void *base;
    int64_t a_row, b_row, c_row, a_next, b_next, c_next;
    carry_dtype type, c_type;
    bool a_transposed, b_transposed, accumulate;
    const void *bias; /* [n], of c's type; NULL: none */
    bool gelu;        /* by tanh */
    /* Not NULL: elements of a and of transposed b are 8-bit floats (e4m3), and each 128 elements of a row have a scale
       in f32: [k / 128, m] for a, [k / 128, n] for b. k is a multiple of 128. Only carry_cuda_blaslt supports them. */
    const float *a_scales, *b_scales;
    /* With one_scale a_scales and b_scales are one scale each, for all elements, k is a multiple of 16, and elements
       may be e5m2, but not of both. */
    bool one_scale, a_is_e5m2, b_is_e5m2;
    bool row_scales;  /* each row of a and of transposed b has one scale, [m] and [n]; k is a multiple of 16 */
    bool b_is_square; /* 128 rows of b have one scale: b_scales is [(n + 127) / 128, k / 128 rounded up to 4] */
    int ordinal;      /* the device's number in its backend */
    carry_stream *stream;
} carry_device_product;

/* Fails with a message that contains `name` unless the tensor and its pointer are on `device`. */
carry_status carry_device_expect(carry_ctx *ctx, const char *name, const carry_tensor *tensor, int device);

#ifdef __cplusplus
}
#endif
#endif
