/* Matrix products as backends see them, and on which device a tensor must be. Callers have checked shapes, types and
   devices. */
#ifndef CARRY_OPS_DEVICE_H
#define CARRY_OPS_DEVICE_H

#include <stdbool.h>
#include <stdint.h>

#include "carry/device.h"
#include "carry/ops.h"

#ifdef __cplusplus
extern "C" {
#endif

/* c[i] = a[i] b[i], or added to c[i], for i < count. Item i of x starts at x + i*x_next elements, its rows are x_row
   apart. a and b are of `type`; c is f32 or of the same type; sums are f32. With a bias, and then gelu if asked, each
   row of c[i] is f(row + bias) (the old c added before or after, so not with gelu): for large products alone, of one
   16-bit type. */
typedef struct carry_device_product {
    int64_t m, n, k, count;
    const void *a, *b;
    void *c;
    const void *base; /* what is added where `accumulate` says so: c (or NULL), or, of one packed c, another like it */
    int64_t a_row, b_row, c_row, a_next, b_next, c_next;
    carry_dtype type, c_type;
    bool a_transposed, b_transposed, accumulate;
    const void *bias; /* [n], of c's type; NULL: none */
    bool gelu;        /* by tanh */
    int ordinal;      /* of the device in its backend */
    carry_stream *stream;
} carry_device_product;

/* Fails, calling the tensor by its name, unless it is on `device`, and its pointer too. */
carry_status carry_device_expect(carry_ctx *ctx, const char *name, const carry_tensor *tensor, int device);

#ifdef __cplusplus
}
#endif
#endif
