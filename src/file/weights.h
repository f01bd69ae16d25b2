/* The weights of a model folder: model.safetensors, or the files that model.safetensors.index.json lists; or, as in
   diffusers, the same with diffusion_pytorch_model instead of model. A path that ends in .safetensors is a single file
   with all weights; one that ends in .gguf is a model (gguf_model.h). The tensors of a quantised matrix appear as one
   tensor (quantised.h). */
#ifndef CARRY_WEIGHTS_H
#define CARRY_WEIGHTS_H

#include "file/quantised.h"
#include "file/safetensors.h"

typedef struct carry_weights {
    carry_safetensors *file;
    int64_t files;
    int64_t count;                 /* tensors of all files */
    carry_quant_source *quantised; /* the sources that views of type CARRY_QUANTISED point to */
    float *made;                   /* values that differ from those stored in a GGUF file */
} carry_weights;

/* carry_weights_open: the index may name only files of the same folder, without a path. Every tensor of the index must
   be in the file that the index gives for it, and every tensor of the files must be in the index. */
bool carry_weights_is_file(const char *folder); /* the path ends in .safetensors and is a file */
carry_status carry_weights_open(carry_ctx *ctx, carry_weights *weights, const char *folder);
void carry_weights_close(carry_weights *weights);

const carry_tensor *carry_weights_find(const carry_weights *weights, const char *name); /* NULL if not found */
/* Returns the name of tensor `index`, counted through all files in order. */
const char *carry_weights_name(const carry_weights *weights, int64_t index);

/* carry_weights_bytes: size of a file in bytes. carry_weights_file_of: the file that contains an address, or -1.
   carry_weights_announce: a hint that a file will be read soon. carry_weights_release: a hint that it has been read;
   its pages are dropped from this process, and are loaded again if they are read. */
size_t carry_weights_bytes(const carry_weights *weights, int64_t file);
int64_t carry_weights_file_of(const carry_weights *weights, const void *data);
void carry_weights_announce(const carry_weights *weights, int64_t file);
void carry_weights_release(const carry_weights *weights, int64_t file);

/* For carry_weights_open: replaces the tensors of each quantised matrix by one tensor, as quantization_config in the
   folder's config.json describes. */
carry_status carry_weights_join(carry_ctx *ctx, carry_weights *weights, const char *folder);

#endif
