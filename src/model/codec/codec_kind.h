/* A kind of codec: a const struct in its own file; codec_table.c is the only list.

   codec.c has checked every tensor before it calls an entry: latents [16, F, height/8, width/8] and frames
   [n, 3, height, width] are packed and on the codec's device, F from 1 to size.most and n the number of frames for it;
   both are f32, except that a codec on a GPU may decode latents in bf16 or f16. */
#ifndef CARRY_MODEL_CODEC_KIND_H
#define CARRY_MODEL_CODEC_KIND_H

#include <stdbool.h>

#include "model/codec/codec.h"
#include "ops/picture.h"

#define CARRY_LATENT_CHANNELS 16
#define CARRY_LATENT_BLOCK 8 /* pixels per latent element, in each direction */

/* Destination of decoded frames: planes of f32, or bytes [n, height, width, 3]. Kinds that only run on the CPU get
   planes. */
typedef struct carry_codec_output {
    carry_tensor frames; /* absent: bytes are wanted */
    unsigned char *bytes;
    int64_t height, width;
} carry_codec_output;

typedef struct carry_codec_kind {
    const char *name, *about;
    const char *class_name; /* of config.json: "_class_name" */
    int64_t ratio;          /* maximum number of frames per latent frame */
    int64_t first;          /* number of frames that a stream's first latent frame decodes to */
    int64_t encode_first;   /* number of frames from which a stream's first latent frame is encoded */
    bool on_gpus;           /* false: size.device is always 0 */
    /* folder may be NULL, but only for a kind without weights. */
    carry_status (*open)(carry_ctx *ctx, void **opened, const char *folder, const carry_codec_size *size);
    void (*close)(void *opened);
    void (*reset)(void *opened);
    carry_status (*decode)(void *opened, const carry_codec_output *to, carry_tensor latents);
    /* In the last call of a stream the frames need not fill the last latent frame. */
    carry_status (*encode)(void *opened, carry_tensor latents, carry_tensor frames);
} carry_codec_kind;

/* For kinds: writes frame `index` of a call's output, clamped to 0..1. */
carry_status carry_codec_put(carry_ctx *ctx, const carry_codec_output *to, int64_t index, carry_tensor picture,
                             carry_picture_map map);
/* The planes of one latent frame, or of one frame, of a call. */
carry_tensor carry_latent_frame(carry_tensor latents, int64_t index);
carry_tensor carry_codec_frame(carry_tensor frames, int64_t index);
/* Allocates zeroed memory for a stream's pictures; on the CPU, pages that are never used are never touched. */
carry_status carry_codec_pictures(carry_ctx *ctx, void **memory, int device, size_t bytes, int64_t height,
                                  int64_t width);

const carry_codec_kind *carry_codec_kind_at(int index); /* NULL past the end */

#endif
