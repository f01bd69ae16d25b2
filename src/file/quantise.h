/* Writes a model folder with quantised matrices, in the layouts of quantised.h: fp8_block, int8 (one scale per row),
   int4_g32, int4_g64 and int4_g128 in GPTQ's layout, and the block formats of GGUF. Only matrices of layers are
   quantised. Embeddings, the head, norms, convolutions, routers, matrices with fewer than 64 rows or columns, matrices
   whose rows are not whole blocks of a GGUF format or whole groups of int4, and for int4 those whose number of rows is
   not a multiple of 8 are copied unchanged. */
#ifndef CARRY_FILE_QUANTISE_H
#define CARRY_FILE_QUANTISE_H

#include "file/weights.h"

typedef struct carry_quantise_result {
    int64_t matrices, kept;      /* the number of quantised matrices, and of tensors copied unchanged */
    int64_t bytes_in, bytes_out; /* bytes of all tensors */
} carry_quantise_result;

/* `from` is a folder. Its tokenizer and chat template are copied, and its config.json with a new quantization_config,
   to `to`, which is created. The error for an unsupported format lists the supported ones. */
carry_status carry_quantise(carry_ctx *ctx, const char *from, const char *to, const char *format,
                            carry_quantise_result *result);

/* Copies the tokenizer, chat template and generation settings of a model's folder, if they exist. */
carry_status carry_copy_others(carry_ctx *ctx, const char *from, const char *to);

#endif
