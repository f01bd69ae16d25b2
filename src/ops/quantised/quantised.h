/* Quantised matrices: rows of blocks, each block with its own scale.

   A block holds `block` consecutive columns of one row in `bytes` bytes, scales included, so a row is a sequence of
   blocks and rows follow each other. A carry_tensor of type CARRY_QUANTISED on the CPU is such a matrix (on a GPU:
   tiles.h): shape [rows, columns], stride[0] is the number of bytes of a row, and stride[1] the index of its format in
   CARRY_QUANT_FORMATS. carry_slice takes rows of it. The last block of a row may extend past the last column; what it
   holds there is not used.

   CARRY_QUANT_FORMATS is the list of formats. decode is the specification of each. */
#ifndef CARRY_OPS_QUANTISED_H
#define CARRY_OPS_QUANTISED_H

#include <stdbool.h>

#include "carry/tensor.h"

typedef struct carry_quant_format {
    const char *name, *about;
    int64_t block; /* columns */
    size_t bytes;  /* of a block */
    void (*decode)(float *to, const void *blocks, int64_t count);
    /* Encodes count * block columns as `count` blocks; NULL: this format can only be read. */
    void (*encode)(void *blocks, const float *from, int64_t count);
    /* True if no scale of the blocks is infinite or NaN, no value is NaN, and zero points are at most 16. */
    bool (*is_finite)(const void *blocks, int64_t count);
} carry_quant_format;

#define CARRY_QUANT_FORMATS(X) \
    X(fp8_block) X(int8) X(int4_g32) X(int4_g64) X(int4_g128) X(q8_0) X(q4_0) X(q4_k) X(q5_k) X(q6_k)

#define X(name) extern const carry_quant_format carry_quant_##name;
CARRY_QUANT_FORMATS(X)
#undef X

const carry_quant_format *carry_quant_format_at(int index);           /* NULL past the end */
const carry_quant_format *carry_quant_format_named(const char *name); /* NULL: unknown */
bool carry_quant_is_gguf(const carry_quant_format *format);           /* true for the formats of GGUF files */
int carry_quant_format_index(const carry_quant_format *format);
/* "fp8_block, int8, ...", for messages. */
#define CARRY_QUANT_NAMES 160
const char *carry_quant_format_names(char text[CARRY_QUANT_NAMES]);

size_t carry_quant_row_bytes(const carry_quant_format *format, int64_t columns);
/* *bytes: the size of a matrix in bytes; returns false if it does not fit in a size_t. */
bool carry_quant_bytes(size_t *bytes, const carry_quant_format *format, int64_t rows, int64_t columns);
carry_tensor carry_quant_view(const void *data, const carry_quant_format *format, int64_t rows, int64_t columns);
/* The format of a tensor of type CARRY_QUANTISED; NULL if it is not in the table. */
const carry_quant_format *carry_quant_format_of(const carry_tensor *tensor);

/* True if the format is fp8_block and rows 128 i to 128 i + 127 have the same scales, as in files with a scale for
   128 x 128 elements. */
bool carry_quant_is_square(const carry_quant_format *format, const void *blocks, int64_t rows, int64_t columns);

/* Decodes columns first to first + count - 1 of row `row`; first is a multiple of the block. */
void carry_quant_decode(const carry_tensor *W, int64_t row, int64_t first, int64_t count, float *to);
/* Fails with a message that contains `name` and the first block for which is_finite is false. W is on the CPU. */
carry_status carry_quant_check(carry_ctx *ctx, const char *name, const carry_tensor *W);

/* f8 e4m3 as PyTorch's float8_e4m3fn: no infinities; 0x7f and 0xff are NaN. Encoding rounds to nearest, ties to even,
   and values beyond 448 become 448. */
float carry_f32_from_f8(uint8_t bits);
uint8_t carry_f8_from_f32(float value);

#endif
