/* One decoding step of a model as a chain of kernels: usually five for a layer with the delta rule and six for one with
   attention, and one more with experts.

       delta rule: norm + maps | convolution, gates, delta rule, gated norm | out + residual
       attention:  norm + maps | attention over splits of the tokens | sum of the splits, gate | out + residual
       then:       norm + gate, up, SwiGLU | down + residual

   With experts the last line is: norm + router | norm + gate, up, SwiGLU of the chosen experts | down + residual.
   "maps" are the products with the matrices of q, k, v and, where a layer has them, of gates; "out" is the product with
   the output matrix.

   A kernel starts while the one before it still runs (programmatic dependent launch): it may load its weights or its
   state, which depend on no other kernel of the step, and then waits for the results of the one before. Matrices in
   bf16, except those of experts, are read once; tensor cores multiply them with tiles of 16 sequences.

   The order in which a product adds its terms does not depend on the number of sequences, unless the matrix is
   quantised. So without quantised matrices the results of a sequence have the same bits whichever other sequences are
   in the step (logits: see same_bits in chain.h). */
#ifndef CARRY_ENGINE_CHAIN_OPS_H
#define CARRY_ENGINE_CHAIN_OPS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "carry/device.h"
#include "ops/quantised/tile_product.h"

#define CARRY_CHAIN_SEQUENCES 64 /* maximum number of a step */
#define CARRY_CHAIN_TILE 16      /* sequences of a tile; rows of activations are a multiple of it */
#define CARRY_CHAIN_GROUP 8      /* maximum number of query heads per key head */
#define CARRY_CHAIN_KEY 128      /* width of keys and values of a head of the delta rule */
#define CARRY_CHAIN_SPLITS 32    /* attention splits the tokens of a sequence into at most this many parts */
#define CARRY_CHAIN_COLUMNS 32   /* the columns of a matrix are a multiple of this */
#define CARRY_CHAIN_EXPERTS_MOST 512
#define CARRY_CHAIN_CHOSEN_MOST 16 /* maximum number of experts per token */

typedef enum carry_chain_output {
    CARRY_CHAIN_STORE,  /* y = W x */
    CARRY_CHAIN_ADD,    /* h += W x, and y = h */
    CARRY_CHAIN_SWIGLU, /* y = silu(W x) * (up x) */
} carry_chain_output;

/* Activations are bf16 [sequences, stride]; matrices bf16 [rows, columns]; h, norms and states f32. */
typedef struct carry_chain_product {
    const void *W, *up, *x;
    const float *norm; /* [columns]: the input is x / rms(x) times (plus + norm). NULL: the input is x */
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
    int taps; /* taps of the convolution: 2 to 4 */
    const float *wq, *wk, *wv;
    float *tail[3]; /* [slots, taps - 1, channels]: the previous inputs of q, k and v */
    void *state;    /* [slots, value heads, 128, 128], f32 or bf16 */
    bool is_bf16;
    const float *A_log, *dt_bias, *norm;
    float beta_factor, scale, eps;
    void *y; /* [sequences, value heads * 128] */
} carry_chain_delta;

typedef struct carry_chain_attend {
    const void *in;
    int in_stride, q, q_head, k, v, gate; /* columns; q_head: distance between heads of q; gate -1: no gate */
    int heads, key_heads, width;          /* width: 128 or 256 */
    int rotary;
    const float *rates;           /* [rotary / 2]: radians a position */
    const float *q_norm, *k_norm; /* NULL: none */
    float plus, eps, scale;
    void *keys, *values; /* [pages, page tokens, key heads, width], bf16 or with scales 8-bit floats (ops/f8.h) */
    uint8_t *key_scales, *value_scales; /* [pages, page tokens, key heads]; NULL: none */
    float *part; /* [sequences, heads, splits, width + 2]: weighted sums, maximum, sum of exponentials */
    void *y;     /* [sequences, heads * width] */
} carry_chain_attend;

typedef struct carry_chain_embed {
    const void *table; /* bf16 [vocabulary, width], or quantised tiles of this layout */
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

/* h += the sum, over the chosen experts and the shared one, of weight * down(silu(gate x) * up x). x is `low` after the
   norm; on entry `low` is h in bf16, and it receives the new h in bf16. Experts are chosen by the softmax of the
   logits. */
typedef struct carry_chain_experts {
    const void *logits;                     /* bf16 [sequences, logits_stride]: output of the router */
    const void *up, *down;                  /* up: [experts, 2 width, columns], gate then up; down: [experts, columns,
                                               width] */
    const void *shared_gate, *shared_up;    /* [shared_width, columns] */
    const void *shared_down, *shared_scale; /* [columns, shared_width]; [columns], NULL: 1 */
    const float *norm;                      /* [columns] */
    float plus, eps, scale;
    float *h; /* [sequences, columns] */
    void *low;
    void *activated;  /* bf16 [sequences, activated_stride]: a part for each chosen expert, then one for the shared
                         expert */
    int32_t *numbers; /* [sequences, CARRY_CHAIN_CHOSEN_MOST] */
    float *weights;   /* [sequences, CARRY_CHAIN_CHOSEN_MOST + 1]; the last is the weight of the shared expert */
    int experts, chosen, width, shared_width, columns;
    int logits_stride, activated_stride;
    /* All matrices but shared_scale are quantised, in tiles: those of up and of the shared gate and up in one format,
       and those of down and shared_down. Matrices of experts follow each other. */
    bool is_quantised;
    carry_quant_tiles up_tiles, down_tiles, shared_tiles; /* of an expert, and of shared_down */
    bool normalise; /* scale the weights of the chosen experts so that their sum is `scale` */
} carry_chain_experts;

/* The sequences of a step, on the device, at addresses that do not change. */
typedef struct carry_chain_lists {
    const int32_t *slots, *offsets, *pages; /* the pages of sequence i start at pages + offsets[i] */
    const int64_t *lengths, *ids;           /* ids: -1 means last[slot] */
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
    int layer; /* layer of an operation on states */
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
    /* Enqueues one operation. It may overlap with the operation before it only if both belong to the same step. */
    carry_status (*launch)(carry_ctx *ctx, int ordinal, carry_stream *stream, const carry_chain_op *op,
                           const carry_chain_lists *lists, bool overlaps);
} carry_chain_device;

/* NULL if the device does not exist or has no kernels. */
const carry_chain_device *carry_chain_device_of(int device, int *ordinal);

#ifdef __cplusplus
}
#endif
#endif
