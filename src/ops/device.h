/* Operators of the table (ops/table.h) that no public function calls: what models on GPUs ask for themselves. Callers
   have checked shapes, types and where the data is. */
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
    int64_t a_row, b_row, c_row, a_next, b_next, c_next;
    carry_dtype type, c_type;
    bool a_transposed, b_transposed, accumulate;
    const void *bias; /* [n], of c's type; NULL: none */
    bool gelu;        /* by tanh */
    int ordinal;      /* of the device in its backend */
    carry_stream *stream;
} carry_device_product;

/* What stands between the products of a transformer, a pass over rows of n elements of bf16 each. n is a multiple of 8,
   up to 16384, rows start at multiples of 16 bytes; vectors are f32.

   add_layer_norm: where y is, x[t] += gate * y[t] (gate NULL: 1) is written; where h is,
   h[t] = (x[t] - mean) / sqrt(variance + eps) * (w + plus) + b, w and b NULL: a factor of 1, nothing. */
typedef struct carry_device_norm {
    int64_t rows, n;
    void *x, *h;
    const void *y;
    int64_t x_row, h_row, y_row;
    const float *gate, *w, *b;
    float plus, eps;
    int ordinal;
    carry_stream *stream;
} carry_device_norm;

/* qk_norm_rotary: to[t] = from[t] / sqrt(mean square + eps) * w (w NULL: only copied), then, where there is a table
   [rows, head/2, 2], rotary positions of heads of `head` elements (carry/nn.h). For each part; to may be from. */
typedef struct carry_device_qk_norm_rotary {
    int64_t rows, n, head;
    struct {
        void *to;
        const void *from;
        int64_t to_row, from_row;
        const float *w, *table;
    } part[3];
    int parts;
    float eps;
    int ordinal;
    carry_stream *stream;
} carry_device_qk_norm_rotary;

/* Fails, calling the tensor by its name, unless it is on `device`, and its pointer too. */
carry_status carry_device_expect(carry_ctx *ctx, const char *name, const carry_tensor *tensor, int device);

#ifdef __cplusplus
}
#endif
#endif
