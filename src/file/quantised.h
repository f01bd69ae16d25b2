/* Quantised matrices of Hugging Face folders, whose values, scales and zero points are separate tensors.

   A weight M.weight [out, in] is stored by quant_method of quantization_config (config.json) as

       fp8         M.weight F8_E4M3 [out, in], M.weight_scale_inv [ceil(out / 128), ceil(in / 128)]
       int8        M.weight I8 [out, in], M.weight_scale [out] (written by `carry quantise`)
       blocks      M.weight I8 [out, bytes of a row]: rows of blocks of one GGUF format, which the key "format" names
                   (written by `carry quantise`)
       awq         M.qweight I32 [in, out / 8], M.qzeros I32 [in / group, out / 8], M.scales [in / group, out];
                   nibble i of a number is output 0, 2, 4, 6, 1, 3, 5, 7 of its eight; w = (q - z) s
       gptq        M.qweight I32 [in / 8, out], M.qzeros I32 [in / group, out / 8], M.scales [in / group, out], M.g_idx
                   [in]; nibbles in order; w = (q - (z + 1)) s, or (q - z) s with checkpoint_format gptq_v2
       auto-round  either of the last two, by packing_format

   A module without such tensors is not quantised, whatever modules_to_not_convert says. Opening a folder's weights
   (weights.h) replaces the tensors of a module by one tensor M.weight of type CARRY_QUANTISED. For `blocks` its data is
   that of the file. For the other methods its data is a carry_quant_source and its stride[0] is 0; carry_quant_convert
   makes the rows of blocks of ops/quantised/quantised.h from it. */
#ifndef CARRY_FILE_QUANTISED_H
#define CARRY_FILE_QUANTISED_H

#include "core/json.h"
#include "file/safetensors.h"
#include "ops/quantised/quantised.h"

typedef enum carry_quant_layout {
    CARRY_QUANT_FP8,
    CARRY_QUANT_INT8,
    CARRY_QUANT_AWQ,
    CARRY_QUANT_GPTQ,
    CARRY_QUANT_BLOCKS,
    CARRY_QUANT_ORDERED, /* blocks, with heads in a different order (gguf_model.h) */
} carry_quant_layout;

/* The order of heads. Rows or columns from `first` on are heads of `size` rows or columns each. In memory they form
   `groups` groups of `each` heads. The file stores the first head of every group, then the second of every group, and
   so on. */
typedef struct carry_head_order {
    int64_t first, groups, each, size;
    bool of_columns;
} carry_head_order;

/* Returns the index in the file of row or column `at`. */
int64_t carry_head_place(const carry_head_order *order, int64_t at);

/* quantization_config. */
typedef struct carry_quant_config {
    carry_quant_layout layout;
    const carry_quant_format *format; /* for CARRY_QUANT_BLOCKS */
    int64_t group;                    /* group size of AWQ and GPTQ; -1: all inputs form one group */
    int zero_plus;                    /* added to the zero points in the file */
} carry_quant_config;

typedef struct carry_quant_source {
    carry_quant_layout layout;
    const carry_quant_format *format; /* format of the blocks that it is converted to */
    int64_t rows, columns, group;
    int zero_plus;
    carry_tensor values, scales, zeros; /* zeros: only for AWQ and GPTQ */
    carry_head_order order;
} carry_quant_source;

/* Reads the object quantization_config; `name` is for messages. The error for an unsupported method, number of bits or
   group lists the supported ones. */
carry_status carry_quant_config_parse(carry_ctx *ctx, carry_quant_config *config, const carry_json *node,
                                      const char *name);

/* Checks shapes and types of the tensors of module `name`; `find` returns a tensor of the folder by name, or NULL. */
typedef const carry_tensor *(*carry_quant_find)(const void *user, const char *name);
carry_status carry_quant_source_make(carry_ctx *ctx, carry_quant_source *source, const carry_quant_config *config,
                                     const char *name, carry_quant_find find, const void *user);
/* Makes a source for a quantised matrix whose heads are in a different order. Columns whose blocks span several heads
   are encoded again, in Q8_0. */
carry_quant_source carry_quant_source_ordered(const carry_tensor *values, const carry_head_order *order);
/* A view of the source, or of the file's own blocks if it needs no conversion. */
carry_tensor carry_quant_source_view(const carry_quant_source *source);
/* Returns NULL if the data of the tensor is not a carry_quant_source. */
const carry_quant_source *carry_quant_source_of(const carry_tensor *view);

/* Converts all rows to blocks, carry_quant_bytes of memory, on all threads. */
carry_status carry_quant_convert(carry_ctx *ctx, const carry_quant_source *source, void *blocks);

#endif
