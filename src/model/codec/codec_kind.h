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
#define CARRY_LATENT_BLOCK 8 /* pixels of a latent's side */

/* Where decoded frames go: planes of f32, or bytes [n, height, width, 3]. Codecs that only run on the CPU see planes.
 */
typedef struct carry_codec_output {
    carry_tensor frames; /* absent: bytes are wanted */
    unsigned char *bytes;
    int64_t height, width;
} carry_codec_output;

typedef struct carry_codec_kind {
    const char *name, *about;
    const char *class_name; /* of config.json: "_class_name" */
    int64_t ratio;          /* frames of a latent frame, at most */
    int64_t first;          /* frames of a stream's first latent frame when it is decoded */
    int64_t encode_first;   /* frames that a stream's first latent frame is encoded from */
    bool on_gpus;           /* else size.device is 0 for it */
    /* folder may be NULL: then only a kind without weights is asked. */
    carry_status (*open)(carry_ctx *ctx, void **opened, const char *folder, const carry_codec_size *size);
    void (*close)(void *opened);
    void (*reset)(void *opened);
    carry_status (*decode)(void *opened, const carry_codec_output *to, carry_tensor latents);
    /* Frames of the last call of a stream may not fill its last latent frame. */
    carry_status (*encode)(void *opened, carry_tensor latents, carry_tensor frames);
} carry_codec_kind;

/* For kinds. Frame number `index` of a call's output, clamped to 0..1. */
carry_status carry_codec_put(carry_ctx *ctx, const carry_codec_output *to, int64_t index, carry_tensor picture,
                             carry_picture_map map);
/* Planes of one of a call's latents or frames. */
carry_tensor carry_latent_frame(carry_tensor latents, int64_t index);
carry_tensor carry_codec_frame(carry_tensor frames, int64_t index);
/* Memory of zeros for a stream's pictures; on the CPU, memory that is never used is never touched. */
carry_status carry_codec_pictures(carry_ctx *ctx, void **memory, int device, size_t bytes, int64_t height,
                                  int64_t width);

const carry_codec_kind *carry_codec_kind_at(int index); /* NULL past the end */

#endif
