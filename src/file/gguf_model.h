/* Presents a GGUF file as a model folder: its tensors have the names and values of Hugging Face's folders, and its
   metadata becomes the texts of config.json, tokenizer.json and tokenizer_config.json.

   Architectures: qwen35 (Qwen3.5). Its files store norms with 1 added, -exp(A_log) in place of A_log, and the value
   heads of the delta rule in the order of carry_head_order (quantised.h). Reading undoes these changes. */
#ifndef CARRY_FILE_GGUF_MODEL_H
#define CARRY_FILE_GGUF_MODEL_H

#include "core/json_write.h"
#include "file/gguf.h"
#include "file/weights.h"

/* Opens the weights of a file; *weights owns them. */
carry_status carry_gguf_weights(carry_ctx *ctx, carry_weights *weights, const char *path);

/* Writes the text of a file that a folder of this model would have: config.json, tokenizer.json or
   tokenizer_config.json. The caller frees *text. CARRY_ENOTFOUND for any other name. */
carry_status carry_gguf_text_of(carry_ctx *ctx, const char *path, const char *name, char **text, size_t *length);

/* Reads such a text of a model folder or a .gguf file; at most `limit` bytes of a folder's file. */
carry_status carry_model_text(carry_ctx *ctx, const char *model, const char *name, size_t limit, char **text,
                              size_t *length);
bool carry_model_has(carry_ctx *ctx, const char *model, const char *name);

/* For carry_gguf_text_of: the sizes of the architecture, and functions that write the texts. */
typedef struct carry_gguf_sizes {
    int64_t layers, hidden, key_heads, value_heads, key, value;
} carry_gguf_sizes;
carry_status carry_gguf_take_sizes(carry_ctx *ctx, const carry_gguf *file, carry_gguf_sizes *z);
carry_status carry_gguf_put_config(carry_ctx *ctx, const carry_gguf *file, carry_json_text *text);
carry_status carry_gguf_put_tokenizer(carry_ctx *ctx, const carry_gguf *file, carry_json_text *text);
carry_status carry_gguf_put_settings(carry_ctx *ctx, const carry_gguf *file, carry_json_text *text);

#endif
