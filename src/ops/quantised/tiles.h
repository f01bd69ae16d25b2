/* Quantised matrices as GPUs read them: tiles of 16 rows, which are divided into units of 128 columns.

   A unit has the codes of its columns, then their scales; a kernel can copy it as one piece. A lane of a warp loads 16
   bytes, which are its part of two or four tensor core multiplications. Lane 4 g + t has rows g and g + 8 of the tile
   and, in each 32 columns, columns 8 t to 8 t + 7:

       8 bits  512 bytes for 32 columns; words 0, 2: row g, columns 0..3, 4..7; words 1, 3: row g + 8
       4 bits  512 bytes for 64 columns; words 0, 2: row g, first and second 32 columns; words 1, 3: row g + 8.
               Nibble i of a word is column 2 i of the lane's 8 for i < 4, and column 2 (i - 4) + 1 for i >= 4

   A value is scale * code - minimum. Codes are signed integers, stored with 8 added (4 bits) or 128 added (8 bits);
   8-bit floats are stored unchanged. The scales of a unit, for each group of columns and g of 0..7:

       f32, groups of 128             scale[g], scale[g + 8]
       f16, groups of 64 and 128      scale[g], scale[g + 8], minimum[g], minimum[g + 8]
       f16, groups of 32              per 64 columns: scale[g], scale[g + 8] of both groups, each followed by the
                                      group's minima, if any, in the same order
       f16, groups of 16              per 64 columns: scale[g], scale[g + 8] of groups 0, 2, 1, 3

   Scales and minima in f16 are relative to a factor of the row, a power of two, so that all are within the type's
   range. A tile has its units, then its 16 factors in f32; tiles follow each other, each padded to 128 bytes. Rows are
   padded to 16, columns to 128.

   A carry_tensor of type CARRY_QUANTISED on a GPU is such a matrix: stride[0] is the number of bytes of a tile divided
   by 16, so that carry_slice takes rows whose first is a multiple of 16; stride[1] is the format's number; stride[2] is
   CARRY_QUANT_SQUARE if each 128 rows from the first on have the same scales, else 0.

   A tensor of rank 3 on a GPU is a stack of such matrices, one for each expert, whose rows are a multiple of 16:
   stride[0] is the number of bytes from matrix to matrix, and stride[1] to stride[3] are those of a matrix. */
#ifndef CARRY_OPS_QUANTISED_TILES_H
#define CARRY_OPS_QUANTISED_TILES_H

#include "ops/quantised/quantised.h"

#define CARRY_QUANT_TILE_ROWS 16
#define CARRY_QUANT_TILE_COLUMNS 64 /* multiplied at once by a warp */
#define CARRY_QUANT_UNIT_COLUMNS 128
#define CARRY_QUANT_SQUARE 1
#define CARRY_QUANT_SQUARE_ROWS 128

/* The formats' numbers in the table. */
enum {
#define X(name) CARRY_QUANT_IS_##name,
    CARRY_QUANT_FORMATS(X)
#undef X
};

typedef struct carry_quant_tiles {
    int format;
    int bits;  /* bits of a code: 4 or 8 */
    int group; /* columns that share a scale */
    bool has_minimum, has_wide_scales;
    int64_t rows, columns;
    int64_t tiles, units;          /* tiles of 16 rows; units of 128 columns */
    size_t code_bytes, unit_bytes; /* bytes of a unit's codes, and of the unit */
    size_t factors_at, tile_bytes; /* offset from the start of a tile; bytes of a tile */
    size_t all_bytes;
} carry_quant_tiles;

#ifdef __cplusplus
extern "C" {
#endif

/* Returns false if the sizes overflow, or the format is not in the table. */
bool carry_quant_tiles_of(carry_quant_tiles *layout, int64_t format, int64_t rows, int64_t columns);
carry_tensor carry_quant_tiles_view(int device, void *data, const carry_quant_tiles *layout);
/* Sets the layout of a quantised tensor on a GPU; returns false if its strides do not match a layout. */
bool carry_quant_tiles_of_tensor(carry_quant_tiles *layout, const carry_tensor *tensor);

/* A packed stack of matrices [matrices, rows, columns]; rows is a multiple of CARRY_QUANT_TILE_ROWS. */
carry_tensor carry_quant_stack_view(int device, void *data, const carry_quant_format *format, int64_t matrices,
                                    int64_t rows, int64_t columns);
/* Sets the layout of one matrix of a stack; returns false if the tensor is not a stack. */
bool carry_quant_tiles_of_stack(carry_quant_tiles *layout, const carry_tensor *stack);
/* Matrix `index` of a stack. */
carry_tensor carry_quant_matrix_of(const carry_tensor *stack, int64_t index);

/* A quantised matrix in the layout that the operators of a device read: rows of blocks on the CPU, tiles elsewhere.
   carry_quant_bytes_on returns false if the size does not fit in a size_t. */
carry_tensor carry_quant_view_on(int device, const void *data, const carry_quant_format *format, int64_t rows,
                                 int64_t columns);
bool carry_quant_bytes_on(size_t *bytes, int device, const carry_quant_format *format, int64_t rows, int64_t columns);
/* True if steps of a few tokens on this device read quantised matrices without decoding them first. */
bool carry_quant_is_read_on(carry_ctx *ctx, int device);
/* Fills W from rows of blocks, which are on the device of W. */
carry_status carry_quant_pack(carry_ctx *ctx, carry_tensor W, const void *blocks);

#ifdef __cplusplus
}
#endif
#endif
