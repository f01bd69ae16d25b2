/* Writes a model folder with quantised matrices, in the layouts of quantised.h: fp8_block, int8 (one scale per row),
   and int4_g32, int4_g64 and int4_g128 in GPTQ's layout. The matrices of layers are quantised. Embeddings, the head,
   norms, convolutions, routers, matrices with fewer than 64 rows or columns, and matrices whose width is not a multiple
   of the group are copied unchanged. */
#ifndef CARRY_FILE_QUANTISE_H
#define CARRY_FILE_QUANTISE_H

#include "file/weights.h"

typedef struct carry_quantise_result {
    int64_t matrices, kept;      /* the number of quantised matrices, and of tensors copied unchanged */
    int64_t bytes_in, bytes_out; /* bytes of all tensors */
} carry_quantise_result;

/* `from` is a folder, whose config.json, tokenizer and chat template are copied; `to` is created. The error for an
   unsupported format lists the supported ones. */
carry_status carry_quantise(carry_ctx *ctx, const char *from, const char *to, const char *format,
                            carry_quantise_result *result);

/* Copies the tokenizer, chat template and generation settings of a model's folder, if they exist. */
carry_status carry_copy_others(carry_ctx *ctx, const char *from, const char *to);

#endif
