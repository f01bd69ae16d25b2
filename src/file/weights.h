/* The weights of a model folder: model.safetensors, or the files that model.safetensors.index.json lists; or, as in
   diffusers, the same with diffusion_pytorch_model instead of model. A path that ends in .safetensors is a single
   file with all weights, one that ends in .gguf a model (gguf_model.h). The tensors of a quantised matrix are one
   tensor here (quantised.h). */
#ifndef CARRY_WEIGHTS_H
#define CARRY_WEIGHTS_H

#include "file/quantised.h"
#include "file/safetensors.h"

typedef struct carry_weights {
    carry_safetensors *file;
    int64_t files;
    int64_t count;                 /* tensors of all files */
    carry_quant_source *quantised; /* that views of type CARRY_QUANTISED point to */
    float *made;                   /* values of a GGUF file that are other than in the file */
} carry_weights;

/* Names in the index stand for files of the same folder: a path is refused, and so is a tensor that is not in the file
   the index names, or in one it does not. */
bool carry_weights_is_file(const char *folder); /* does it end in .safetensors, and is it a file? */
carry_status carry_weights_open(carry_ctx *ctx, carry_weights *weights, const char *folder);
void carry_weights_close(carry_weights *weights);

const carry_tensor *carry_weights_find(const carry_weights *weights, const char *name); /* NULL: none */
/* The name of tensor `index` of all files, one after the other. */
const char *carry_weights_name(const carry_weights *weights, int64_t index);

/* Bytes of a file; the file that has an address, or -1; hints that a file will be read soon, and that it was read: its
   pages leave this process, and come again when they are read. */
size_t carry_weights_bytes(const carry_weights *weights, int64_t file);
int64_t carry_weights_file_of(const carry_weights *weights, const void *data);
void carry_weights_announce(const carry_weights *weights, int64_t file);
void carry_weights_release(const carry_weights *weights, int64_t file);

/* For carry_weights_open: replaces the tensors of quantised matrices by one each, by quantization_config of the
   folder's config.json. */
carry_status carry_weights_join(carry_ctx *ctx, carry_weights *weights, const char *folder);

#endif
