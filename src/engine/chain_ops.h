/* One decoding step of a model as a chain of kernels: five a layer with the delta rule, six with attention.

       norm + maps | convolution, gates, delta rule, gated norm | out + residual | norm + gate, up, SwiGLU | down +
   residual norm + maps | attention over a split of the tokens | its parts and gate | and so on

   With experts, norm + router | norm + gate, up, SwiGLU of the chosen experts | down + residual.

   Each kernel begins while the one before it still runs (programmatic dependent launch): it loads its weights, or its
   state, and then waits for that one's results. Weights and states of a step depend on no other kernel of the step.
   Matrices are read once, by tensor cores whose tiles have 16 sequences.

   The sums of a product have one order, which depends on the shape of the matrix alone: a sequence has the same bits
   beside any others. */
#ifndef CARRY_ENGINE_CHAIN_OPS_H
#define CARRY_ENGINE_CHAIN_OPS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "carry/device.h"
#include "ops/quantised/tile_product.h"

#define CARRY_CHAIN_SEQUENCES 64 /* of a step, at most */
#define CARRY_CHAIN_TILE 16      /* sequences of a tile; rows of activations are a multiple of it */
#define CARRY_CHAIN_GROUP 8      /* query heads of a key head, at most */
#define CARRY_CHAIN_KEY 128      /* keys and values of a head of the delta rule */
#define CARRY_CHAIN_SPLITS 8     /* of the tokens of a sequence in attention */
#define CARRY_CHAIN_COLUMNS 32   /* columns of a matrix are a multiple of it */
#define CARRY_CHAIN_EXPERTS_MOST 512
#define CARRY_CHAIN_CHOSEN_MOST 16 /* experts of a token */

typedef enum carry_chain_output {
    CARRY_CHAIN_STORE,  /* y = W x */
    CARRY_CHAIN_ADD,    /* h += W x, and y = h */
    CARRY_CHAIN_SWIGLU, /* y = silu(W x) * (up x) */
} carry_chain_output;

/* Activations are bf16 [sequences, stride]; matrices bf16 [rows, columns]; h, norms and states f32. */
typedef struct carry_chain_product {
    const void *W, *up, *x;
    const float *norm; /* [columns]: of x / rms(x), which is multiplied by plus + norm. NULL: x as it is */
    float plus, eps;
    void *y;
    float *h; /* [sequences, rows] */
    int rows, columns, x_stride, y_stride;
    carry_chain_output output;
} carry_chain_product;

/* q, k, v, z (the gate of the norm), a and b are columns of `in`. */
typedef struct carry_chain_delta {
    const void *in;
    int in_stride, q, k, v, z, a, b;
    int heads, value_heads;
    int taps; /* of the convolution: 2 to 4 */
    const float *wq, *wk, *wv;
    float *tail[3]; /* [slots, taps - 1, channels]: the last inputs of q, k and v */
    float *state;   /* [slots, value heads, 128, 128] */
    const float *A_log, *dt_bias, *norm;
    float beta_factor, scale, eps;
    void *y; /* [sequences, value heads * 128] */
} carry_chain_delta;

typedef struct carry_chain_attend {
    const void *in;
    int in_stride, q, q_head, k, v, gate; /* columns; q_head: from one head of q to the next; gate: -1: none */
    int heads, key_heads, width;          /* width: 128 or 256 */
    int rotary;
    const float *rates;           /* [rotary / 2]: radians a position */
    const float *q_norm, *k_norm; /* NULL: none */
    float plus, eps, scale;
    void *keys, *values; /* bf16 [pages, page tokens, key heads, width] */
    float *part;         /* [sequences, heads, splits, width + 2]: sums, maximum, sum of exponentials */
    void *y;             /* [sequences, heads * width] */
} carry_chain_attend;

typedef struct carry_chain_embed {
    const void *table; /* bf16 [vocabulary, width], or tiles of the layout */
    bool is_quantised;
    carry_quant_tiles layout;
    float *h;
    void *low; /* h in bf16 */
    int width;
} carry_chain_embed;

/* x = h / rms(h) * (plus + norm). */
typedef struct carry_chain_norm {
    const float *h, *norm;
    float plus, eps;
    void *x;
    int width;
} carry_chain_norm;

/* h += the sum over the chosen experts, and the shared one, of their weights times down(silu(gate x) * up x), and low =
   h; x is the norm of h. Experts are chosen by softmax of the logits. */
typedef struct carry_chain_experts {
    const void *logits;                     /* bf16 [sequences, logits_stride], of the router */
    const void *up, *down;                  /* [experts, 2 width, columns]: gate, then up; [experts, columns, width] */
    const void *shared_gate, *shared_up;    /* [shared_width, columns] */
    const void *shared_down, *shared_scale; /* [columns, shared_width]; [columns], NULL: 1 */
    const float *norm;                      /* [columns] */
    float plus, eps, scale;
    float *h; /* [sequences, columns] */
    void *low;
    void *activated;  /* bf16 [sequences, activated_stride]: a part for each expert, then the shared one */
    int32_t *numbers; /* [sequences, CARRY_CHAIN_CHOSEN_MOST] */
    float *weights;   /* [sequences, CARRY_CHAIN_CHOSEN_MOST + 1]; the last one: of the shared expert */
    int experts, chosen, width, shared_width, columns;
    int logits_stride, activated_stride;
    bool normalise; /* the weights of the chosen experts have the sum `scale` */
} carry_chain_experts;

/* The sequences of a step, on the device, at addresses that stay. */
typedef struct carry_chain_lists {
    const int32_t *slots, *offsets, *pages; /* the pages of sequence i begin at pages + offsets[i] */
    const int64_t *lengths, *ids;           /* ids: -1: last[slot] */
    const int32_t *last;
    int sequences;
} carry_chain_lists;

typedef enum carry_chain_kind {
    CARRY_CHAIN_EMBED,
    CARRY_CHAIN_PRODUCT,
    CARRY_CHAIN_TILES, /* a product with quantised matrices */
    CARRY_CHAIN_DELTA,
    CARRY_CHAIN_ATTEND,
    CARRY_CHAIN_COMBINE,
    CARRY_CHAIN_NORM,
    CARRY_CHAIN_EXPERTS_UP,
    CARRY_CHAIN_EXPERTS_DOWN,
} carry_chain_kind;

typedef struct carry_chain_op {
    carry_chain_kind kind;
    int layer; /* of an operation on states */
    union {
        carry_chain_product product;
        carry_tile_product tiles;
        carry_chain_delta delta;
        carry_chain_attend attend;
        carry_chain_embed embed;
        carry_chain_norm norm;
        carry_chain_experts experts;
    } as;
} carry_chain_op;

#ifdef __cplusplus
extern "C" {
#endif

/* The kernels on one kind of device; chain_table.c is the only list. */
typedef struct carry_chain_device {
    const char *backend;
    bool (*works)(int ordinal);
    /* Puts one operation into the stream. Only an operation that follows another one of the same step may overlap with
       it. */
    carry_status (*launch)(carry_ctx *ctx, int ordinal, carry_stream *stream, const carry_chain_op *op,
                           const carry_chain_lists *lists, bool overlaps);
} carry_chain_device;

/* NULL if the device does not exist or has no kernels. */
const carry_chain_device *carry_chain_device_of(int device, int *ordinal);

#ifdef __cplusplus
}
#endif
#endif
