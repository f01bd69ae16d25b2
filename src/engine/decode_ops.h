/* One decoding step of a whole model in one kernel, for few sequences on a Hopper GPU.

   The step of a model is a list of operations. One block per multiprocessor stays resident and executes the list; a
   counter in global memory separates dependent operations. Weights depend on nothing, so one warp of each block copies
   the block's share of them into a ring in shared memory without regard to the counters: memory is read at its full
   rate while the other warps wait for one another. A layer at one token is 5 operations and about 10 MB; separate
   kernels would leave memory idle for 1 to 2 microseconds between them.

   The sums of a product have a fixed order, which does not depend on the number of sequences. */
#ifndef CARRY_ENGINE_DECODE_OPS_H
#define CARRY_ENGINE_DECODE_OPS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "carry/device.h"

#define CARRY_DECODE_SEQUENCES 8
#define CARRY_DECODE_SEGMENTS 6
#define CARRY_DECODE_ROWS 8       /* rows of a matrix that one block takes at a time */
#define CARRY_DECODE_COLUMNS 1024 /* columns of them in one slot of the ring */
#define CARRY_DECODE_SLICE 16     /* columns of a state that one block takes at a time */
#define CARRY_DECODE_GROUP 8      /* query heads of a key head, at most */

typedef enum carry_decode_kind {
    CARRY_DECODE_EMBED,
    CARRY_DECODE_PRODUCT,
    CARRY_DECODE_DELTA,
    CARRY_DECODE_ATTEND,
    CARRY_DECODE_COMBINE,
} carry_decode_kind;

/* How the input of a product is made from what earlier operations left. */
typedef enum carry_decode_input {
    CARRY_DECODE_NORM,       /* x / rms(x) times w or 1 + w */
    CARRY_DECODE_GATED_NORM, /* the same for each head of 128 columns, times silu(gate) */
    CARRY_DECODE_GATED,      /* x sigmoid(gate), or x without a gate */
} carry_decode_input;

typedef enum carry_decode_output {
    CARRY_DECODE_STORE,
    CARRY_DECODE_ADD,    /* y += */
    CARRY_DECODE_SWIGLU, /* segment 0 is the gate and segment 1 the other factor, both of the same number of rows */
} carry_decode_output;

/* Rows of a product: y[sequence * stride + row] = sum over k of W[row, k] x[sequence, k]. W: bf16, packed. */
typedef struct carry_decode_segment {
    const void *W;
    float *y;
    int rows, stride;
} carry_decode_segment;

typedef struct carry_decode_product {
    carry_decode_segment segment[CARRY_DECODE_SEGMENTS];
    int segments, columns; /* columns: a multiple of 128 */
    int team; /* warps that share a tile: 1, 2, 4 or 8. The order of sums depends on it, not on the sequences */
    carry_decode_output output;
    carry_decode_input input;
    const float *x; /* [sequences, columns] */
    const float *w; /* of the norm */
    float plus, eps;
    const float *gate; /* of sequence b and head h: gate + b gate_stride + h gate_head; NULL: none */
    int gate_stride, gate_head, head_shift; /* a head has 128 << head_shift columns */
    int shift; /* the delta operation whose convolution inputs move up by one token after this product; -1: none */
} carry_decode_product;

/* Convolution, gates and the delta rule of one layer. q, k, v, a and b are columns of `in`, as products left them. */
typedef struct carry_decode_delta {
    const float *in;
    int in_stride, q, k, v, a, b; /* a, b: -1: none */
    int heads, value_heads;       /* of 128 keys and 128 values */
    int taps;                     /* of the convolution, at most 4 */
    const float *wq, *wk, *wv;    /* [channels, taps] */
    float *tail[3];               /* [sequences, taps - 1, channels]: the last inputs of q, k and v */
    float *state;                 /* [sequences, value heads, 128, 128] */
    const float *A_log, *dt_bias;
    float beta_factor, scale;
    float *o; /* [sequences, value heads, 128] */
} carry_decode_delta;

/* Norms and positions of q and k, the cache, and attention. Partial results of a split of the tokens go to `part`. */
typedef struct carry_decode_attend {
    const float *in;
    int in_stride, q, q_head, k, v; /* q_head: columns from one head of q to the next */
    int heads, key_heads, width;    /* width: of a head, a multiple of 64 up to 256 */
    int rotary;                     /* elements of a head that are turned by the position */
    const float *rates;             /* [rotary / 2]: radians a position */
    const float *q_norm, *k_norm;   /* NULL: none */
    float plus, eps, scale;         /* norms multiply by plus + w */
    void *keys, *values;            /* bf16 [sequences, capacity, key heads, width] */
    int64_t capacity;               /* tokens */
    int splits;
    float *part; /* [sequences, heads, splits, width + 2]: sums, maximum, sum of exponentials */
    float *o;    /* [sequences, heads, width] */
} carry_decode_attend;

typedef struct carry_decode_embed {
    const void *table; /* bf16 [vocabulary, width] */
    float *h;
    int width;
} carry_decode_embed;

typedef struct carry_decode_op {
    carry_decode_kind kind;
    int tiles; /* independent pieces of work, given to the blocks in turn, beginning with block `first` */
    int first;
    union {
        carry_decode_product product;
        carry_decode_delta delta;
        carry_decode_attend attend;
        carry_decode_embed embed;
    } as;
} carry_decode_op;

typedef struct carry_decode_call {
    const carry_decode_op *ops; /* in device memory */
    int count;
    int sequences;
    const int64_t *ids;     /* [sequences], on the device */
    const int64_t *lengths; /* [sequences], on the device: tokens before this one; NULL without attention */
    unsigned *done;         /* [count], zero before the first call */
    unsigned epoch;         /* 1 for the first call with `done`, 2 for the next, ... */
} carry_decode_call;

#ifdef __cplusplus
extern "C" {
#endif

/* The kernel on one kind of device; decode_table.c is the only list. */
typedef struct carry_decode_device {
    const char *backend;
    /* Blocks that stay resident; 0 where the device cannot run the kernel. */
    int (*blocks)(int ordinal);
    /* Slots of a block's ring; less than 2: this many sequences and columns do not fit. */
    int (*slots)(int sequences, int columns);
    /* Warps that share a tile of a product: as few as keep all of them busy with `tiles` over `blocks`. */
    int (*team)(const carry_decode_product *product, int tiles, int blocks, int slots);
    /* Puts one step into the stream. columns: of the widest product. */
    carry_status (*launch)(carry_ctx *ctx, int ordinal, carry_stream *stream, const carry_decode_call *call,
                           int columns);
} carry_decode_device;

/* NULL when there is no such device or it has no kernel. */
const carry_decode_device *carry_decode_device_of(int device, int *ordinal);

#ifdef __cplusplus
}
#endif
#endif
