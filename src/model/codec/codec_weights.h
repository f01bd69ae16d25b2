/* The weights of a codec: found by name, checked by shape, packed for convolutions on its device.

   A codec's file of weights is read by one function that runs twice: first it checks everything and counts, then it
   fills memory. */
#ifndef CARRY_MODEL_CODEC_WEIGHTS_H
#define CARRY_MODEL_CODEC_WEIGHTS_H

#include <stdbool.h>

#include "core/memory.h"
#include "model/codec/codec_kind.h"
#include "file/weights.h"
#include "ops/conv2d.h"

#define CARRY_CODEC_WIDTH_LIMIT 8192 /* maximum number of channels: products of sizes cannot overflow */

typedef struct carry_codec_conv {
    carry_tensor w, bias; /* packed (ops/conv2d.h); bias may be absent */
    carry_conv2d_form form;
    int64_t in, out; /* in: the channels of all frames that it reads together */
} carry_codec_conv;

typedef struct carry_codec_loading {
    carry_ctx *ctx;
    const char *folder;
    const char *what; /* "a TAEHV" */
    int device;
    carry_dtype dtype; /* type of the packed weights; vectors are f32 */
    /* Gives another name that a file may have for a tensor; NULL: none. `user` is the argument of `read`. */
    bool (*other)(const void *user, const char *name, char *to, size_t size);
    void *user;
    carry_weights weights;
    carry_arena arena; /* of the packed weights */
    float *wide[2];    /* host memory: a tensor in f32, and space to reorder it */
    void *staged;      /* on the device: the tensor before it is packed */
    size_t widest;     /* numbers of the largest tensor */
    const carry_tensor **used;
    int64_t count;
} carry_codec_loading;

/* Opens the folder, calls read twice, fails for tensors that were not read, and closes the folder. *memory holds the
   weights on size->device (carry_codec_memory_free). The caller sets ctx, folder, what and other of l. */
carry_status carry_codec_load(carry_codec_loading *l, const carry_codec_size *size, void **memory,
                              carry_status (*read)(carry_codec_loading *l, void *user), void *user);
void carry_codec_memory_free(carry_ctx *ctx, int device, void *memory);

/* For read: true in the first pass, which checks and counts but fills nothing. */
bool carry_codec_is_counting(const carry_codec_loading *l);
/* Gets the number of output channels of a convolution (first index of NAME.weight), if the file determines it. */
carry_status carry_codec_width(carry_codec_loading *l, int64_t *width, const char *name, int rank);
/* Reads a tensor of this shape as f32 into l->wide[0]. */
carry_status carry_codec_tensor(carry_codec_loading *l, const char *name, int rank, const int64_t *shape);
/* Tensors on the device: uninitialised (take), copied from host memory (fill), or f32 from the file (vector). */
carry_tensor carry_codec_take(carry_codec_loading *l, carry_dtype dtype, int rank, const int64_t *shape);
carry_status carry_codec_fill(carry_codec_loading *l, carry_tensor to, const float *from);
carry_status carry_codec_vector(carry_codec_loading *l, carry_tensor *to, const char *name, int rank,
                                const int64_t *shape);
/* Packs a convolution; its form, in and out must be set. first: channels of x (ops/conv2d.h). from: [out, in, side,
   side] in host memory. */
carry_status carry_codec_pack(carry_codec_loading *l, carry_codec_conv *conv, const float *from, int64_t first);
/* Reads NAME.weight [out, in, side, side], and NAME.bias if has_bias. */
carry_status carry_codec_conv_read(carry_codec_loading *l, carry_codec_conv *conv, const char *name, int64_t first,
                                   bool has_bias);

#endif
