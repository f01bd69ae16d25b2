/* The encoder of UMT5, which turns prompts into the conditioning of a video transformer. It reads folders in the layout
   of transformers (config.json with model_type umt5, model.safetensors or its shards; a decoder's weights are ignored).

       x = embed(ids);  per layer  x += o attention(norm x),  x += wo (gelu(wi_0 norm x) * wi_1 norm x);  norm x

   o, wi_0, wi_1 and wo are matrices, named as in the files. Norms divide by the root mean square. Scores are not
   scaled. A learned bias is added to the score of query t and key j; each layer has one for every head and every bucket
   of the distance j - t. */
#ifndef CARRY_MODEL_TEXT_UMT5_H
#define CARRY_MODEL_TEXT_UMT5_H

#include "model/parameters.h"

#define CARRY_UMT5_TOKENS 4096 /* maximum tokens of a prompt: scores take num_heads times its square */

typedef struct carry_umt5_config {
    int64_t vocab_size, d_model, d_ff, d_kv, num_heads, num_layers;
    int64_t buckets, distance; /* of relative positions */
    double eps;
} carry_umt5_config;

carry_status carry_umt5_config_read(carry_ctx *ctx, carry_umt5_config *config, const char *folder);

typedef struct carry_umt5 carry_umt5;

/* Opens a folder on a device, for prompts of up to `most` tokens. dtype is the type of activations, and on a GPU also
   of the weights of products. */
carry_status carry_umt5_open(carry_ctx *ctx, carry_umt5 **made, const char *folder, int device, carry_dtype dtype,
                             int64_t most);
void carry_umt5_free(carry_umt5 *model);
const carry_umt5_config *carry_umt5_config_of(const carry_umt5 *model);

/* hidden [T, d_model], f32, in host memory, gets the last hidden state of T tokens. The first `tokens` of them are the
   prompt; the others are padding, which is masked. ids [T], i64, in host memory. */
carry_status carry_umt5_encode(carry_umt5 *model, carry_tensor hidden, carry_tensor ids, int64_t tokens);

/* The bucket of a key `distance` rows after a query (negative: before). */
int64_t carry_umt5_bucket(int64_t distance, int64_t buckets, int64_t farthest);

#endif
