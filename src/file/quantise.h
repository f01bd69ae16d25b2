/* Writes a model folder with quantised matrices, in the layouts of quantised.h: fp8_block, int8 (rows), and int4_g32,
   int4_g64 and int4_g128 as GPTQ has them. Matrices of layers are quantised; embeddings, the head, norms, convolutions,
   routers, matrices with less than 64 rows or columns, and those whose width is no multiple of the group stay as they
   are. */
#ifndef CARRY_FILE_QUANTISE_H
#define CARRY_FILE_QUANTISE_H

#include "file/weights.h"

typedef struct carry_quantise_result {
    int64_t matrices, kept;      /* quantised, and tensors that were not */
    int64_t bytes_in, bytes_out; /* of all tensors */
} carry_quantise_result;

/* `from` is a folder, whose config.json, tokenizer and chat template are copied; `to` is made. Formats that cannot be
   written are refused with the names of those that can. */
carry_status carry_quantise(carry_ctx *ctx, const char *from, const char *to, const char *format,
                            carry_quantise_result *result);

/* Copies tokenizer, chat template and generation settings of a model's folder, those that exist. */
carry_status carry_copy_others(carry_ctx *ctx, const char *from, const char *to);

#endif
