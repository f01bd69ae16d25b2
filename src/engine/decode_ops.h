/* One decoding step of a whole model in one kernel, for few sequences on a Hopper GPU.

   The step of a model is a list of operations. One block per multiprocessor stays resident and executes its share of
   each. Results are passed between operations as words of 8 bytes: a value and a tag that identifies the operation and
   the step that wrote it. An operation loads its inputs until all have the expected tag, so operations need no barrier
   between them. Weights do not depend on results, so one warp of each block copies the block's share of them into a
   ring in shared memory ahead of time: memory is read while the other warps wait for inputs.

   A word is overwritten only by an operation that depends, directly or not, on all operations that read it.

   A product is divided into tiles of CARRY_DECODE_ROWS rows, and each tile is shared by `team` warps, a number that the
   host chooses. The order in which a product adds its terms depends only on the shape of the matrix and on `team`. */
#ifndef CARRY_ENGINE_DECODE_OPS_H
#define CARRY_ENGINE_DECODE_OPS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "carry/device.h"

#define CARRY_DECODE_SEQUENCES 16
#define CARRY_DECODE_FEW 8 /* up to this many sequences, a kernel for only 8 sequences is used */
#define CARRY_DECODE_SEGMENTS 6
#define CARRY_DECODE_ROWS 8       /* rows of a matrix in a tile */
#define CARRY_DECODE_COLUMNS 1024 /* columns of a tile in one slot of the ring */
#define CARRY_DECODE_SLICE 16     /* columns of a state that four warps process together */
#define CARRY_DECODE_GROUP 8      /* maximum number of query heads per key head */

typedef enum carry_decode_kind {
    CARRY_DECODE_EMBED,
    CARRY_DECODE_PRODUCT,
    CARRY_DECODE_DELTA,
    CARRY_DECODE_ATTEND,
    CARRY_DECODE_COMBINE,
} carry_decode_kind;

/* How the input of a product is computed from the results of earlier operations. */
typedef enum carry_decode_input {
    CARRY_DECODE_NORM,       /* x / rms(x), times w or 1 + w */
    CARRY_DECODE_GATED_NORM, /* the same for each head of 128 columns, times silu(gate) */
    CARRY_DECODE_GATED,      /* x sigmoid(gate) */
    CARRY_DECODE_PAIRS,      /* x without changes */
} carry_decode_input;

typedef enum carry_decode_output {
    CARRY_DECODE_STORE,
    CARRY_DECODE_ADD,    /* h += y, and y becomes h */
    CARRY_DECODE_SWIGLU, /* segment 0 is the gate, segment 1 the other factor; both have the same number of rows */
    CARRY_DECODE_LOGITS, /* floats without tags */
} carry_decode_output;

/* A result in transit: two neighbouring elements in bf16, and a tag. Residual sums and parts of attention use one float
   instead of two bf16. */
typedef struct carry_decode_word {
    uint32_t value, tag;
} carry_decode_word;

/* Some rows of a product: y[sequence, row] = sum over k of W[row, k] x[sequence, k]. W: bf16, packed. y: pairs of rows,
   or floats for logits; stride: words or floats per sequence. */
typedef struct carry_decode_segment {
    const void *W;
    carry_decode_word *y;
    int rows, stride;
} carry_decode_segment;

typedef struct carry_decode_product {
    carry_decode_segment segment[CARRY_DECODE_SEGMENTS];
    int segments, columns; /* columns: a multiple of 128 */
    int team;              /* warps that share a tile: 1, 2, 4 or 8. The order of sums depends on it */
    carry_decode_output output;
    carry_decode_input input;
    const carry_decode_word *x; /* [sequences, columns / 2] */
    const float *w;             /* weight of the norm */
    float plus, eps;
    const carry_decode_word *gate;          /* the gate of sequence b and head n is at gate + b gate_stride + n
                                               gate_head */
    int gate_stride, gate_head, head_shift; /* a head has 128 << head_shift columns */
    carry_decode_word *h;                   /* [sequences, rows], floats, of CARRY_DECODE_ADD */
    int x_from, gate_from, h_from;          /* indices of the operations that wrote x, the gate, and the previous h */
    int shift; /* index of the delta operation whose convolution inputs this product shifts by one token; -1: none */
} carry_decode_product;

/* Convolution, gates and the delta rule of one layer. q, k, v, a and b are columns of `in`, the output of products. */
typedef struct carry_decode_delta {
    const carry_decode_word *in;
    int from;                  /* the operation that wrote it */
    int in_stride;             /* words per sequence; the next five fields are column indices */
    int q, k, v, a, b;         /* a, b: -1 if absent */
    int heads, value_heads;    /* heads have 128 keys and 128 values */
    int taps;                  /* taps of the convolution, at most 4 */
    const float *wq, *wk, *wv; /* [channels, taps] */
    float *tail[3];            /* [slots, taps - 1, channels]: the previous inputs of q, k and v */
    float *state;              /* [slots, value heads, 128, 128] */
    const float *A_log, *dt_bias;
    float beta_factor, scale;
    carry_decode_word *o; /* [sequences, value heads, 64] */
} carry_decode_delta;

/* Arguments of two operations. CARRY_DECODE_ATTEND normalises and rotates q and k, stores k and v in the cache, and
   computes attention over each split of the tokens, with partial results in `part`. CARRY_DECODE_COMBINE combines these
   partial results. */
typedef struct carry_decode_attend {
    const carry_decode_word *in;
    int from;                     /* index of the operation that wrote `in`; for the second operation: the index of the
                                     first */
    int in_stride;                /* words per sequence; the next four fields are column indices */
    int q, q_head, k, v;          /* q_head: distance from one head of q to the next */
    int heads, key_heads, width;  /* width of a head: 128 or 256 */
    int rotary;                   /* number of elements of a head that get rotary positions */
    const float *rates;           /* [rotary / 2]: radians a position */
    const float *q_norm, *k_norm; /* NULL: none */
    float plus, eps, scale;       /* norms multiply by plus + w */
    void *keys, *values;          /* bf16 [pages, page tokens, key heads, width] */
    int splits;
    carry_decode_word *part; /* [sequences, heads, splits, width + 2], floats: sums, maximum, sum of exponentials */
    carry_decode_word *o;    /* [sequences, heads, width / 2] */
} carry_decode_attend;

typedef struct carry_decode_embed {
    const void *table;          /* bf16 [vocabulary, width] */
    carry_decode_word *h, *low; /* floats, and pairs */
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

/* A page that a sequence got since the step before. */
typedef struct carry_decode_page {
    int32_t slot, index, page;
} carry_decode_page;

/* The arguments that differ from step to step; copied to the device before each step. */
typedef struct carry_decode_turn {
    int32_t slot[CARRY_DECODE_SEQUENCES];
    int32_t id[CARRY_DECODE_SEQUENCES];     /* -1 means last[slot] */
    int64_t length[CARRY_DECODE_SEQUENCES]; /* tokens before this one */
    int32_t page_count;
    carry_decode_page page[]; /* for the table */
} carry_decode_turn;

typedef struct carry_decode_call {
    const carry_decode_op *ops; /* in device memory, as the next three */
    const carry_decode_turn *turn;
    const int32_t *last; /* [slots]: the token that was sampled last; may be NULL */
    int32_t *table;      /* [slots, pages_each]: the pages of the sequence in a slot */
    int pages_each;
    int count;
    int sequences;
    uint32_t tag; /* tag of the first operation; later operations have the following numbers. Larger than all tags in
                     the words of earlier steps */
} carry_decode_call;

#ifdef __cplusplus
extern "C" {
#endif

/* The kernel on one kind of device; decode_table.c is the only list. */
typedef struct carry_decode_device {
    const char *backend;
    /* The number of resident blocks; 0 if the device cannot run the kernel. */
    int (*blocks)(int ordinal);
    /* The number of slots of a block's ring; less than 2 if this many sequences and columns do not fit. */
    int (*slots)(int sequences, int columns);
    /* The number of warps that share a tile of a product: the smallest that keeps all warps busy with `tiles` tiles on
       `blocks` blocks, and for which a ring of `slots` slots is large enough. */
    int (*team)(const carry_decode_product *product, int tiles, int blocks, int slots);
    /* Enqueues one step. columns: those of the widest product; new_pages: call->turn->page_count. */
    carry_status (*launch)(carry_ctx *ctx, int ordinal, carry_stream *stream, const carry_decode_call *call,
                           int columns, int new_pages);
} carry_decode_device;

/* NULL if the device does not exist or has no kernel. */
const carry_decode_device *carry_decode_device_of(int device, int *ordinal);

#ifdef __cplusplus
}
#endif
#endif
