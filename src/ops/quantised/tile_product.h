/* Products of up to 32 rows of activations with quantised matrices in tiles (ops/quantised/tiles.h) on a GPU. */
#ifndef CARRY_OPS_QUANTISED_TILE_PRODUCT_H
#define CARRY_OPS_QUANTISED_TILE_PRODUCT_H

#include "carry/device.h"
#include "ops/quantised/tiles.h"

#define CARRY_TILE_PRODUCT_ROWS 32 /* of x */
#define CARRY_TILE_PRODUCT_MAPS 8

typedef enum carry_tile_output {
    CARRY_TILE_STORE,  /* y = W x */
    CARRY_TILE_ADD,    /* y = base + W x; with h: h += W x and y = h */
    CARRY_TILE_SWIGLU, /* y = silu(W x) * (up x) */
} carry_tile_output;

/* One matrix; its results start at column y_at of y. */
typedef struct carry_tile_map {
    const unsigned char *tiles;
    int rows, first_tile, y_at;
} carry_tile_map;

/* Matrices of one format with the same number of columns. x: [sequences, columns] in bf16 or f32; y: bf16 or f32. */
typedef struct carry_tile_product {
    carry_tile_map maps[CARRY_TILE_PRODUCT_MAPS]; /* for SwiGLU: the gate and the other factor */
    int count, tiles; /* number of matrices; number of tiles of all of them, or of the gate */
    int format, columns, units;
    uint32_t unit_bytes, factors_at, tile_bytes; /* sizes and an offset in a tile, in bytes */
    const void *x, *base;
    /* [columns]: x is replaced by x / rms(x) times (plus + norm). NULL: x is used unchanged. */
    const float *norm;
    float plus, eps;
    void *y;
    /* [sequences, y_stride]: with CARRY_TILE_ADD, both h and y become h + W x. NULL: base is used. */
    float *h;
    int64_t x_stride, y_stride;
    bool x_is_wide, y_is_wide; /* f32 */
    bool x_is_aligned;         /* to 16 bytes, each row */
    carry_tile_output output;
    /* Products that follow each other alternate, so that blocks of both fit on a multiprocessor. */
    bool is_second;
} carry_tile_product;

#ifdef __cplusplus
extern "C" {
#endif

/* Sets the fields that can be computed from the other fields and from `layout`, the layout of any of the matrices:
   their layouts differ only in the number of rows. */
void carry_tile_product_finish(carry_tile_product *product, const carry_quant_tiles *layout);

/* True if the GPU supports the kernels and this build has them. */
bool carry_cuda_tile_product_works(int ordinal);
/* The fewest registers of a thread in the kernels for products with is_second, two blocks of which must not fit on a
   multiprocessor: more than 80 are expected. 0 if the kernels are not compiled for compute capability 9.0 itself. */
int carry_cuda_tile_product_registers(void);
/* Enqueues a product for 1 to CARRY_TILE_PRODUCT_ROWS sequences. overlaps: its kernel may start before the previous
   kernel in the stream has ended, if that kernel allows this, and waits for the end before it reads x. */
carry_status carry_cuda_tile_product(carry_ctx *ctx, int ordinal, carry_stream *stream,
                                     const carry_tile_product *product, int sequences, bool overlaps);

#ifdef __cplusplus
}
#endif
#endif
