/* What a kind of codec is: a const struct in a file of its own; codec_table.c is the only list.

   codec.c has checked every tensor before it calls an entry: latents [16, F, height/8, width/8], frames
   [n, 3, height, width], packed f32 on the CPU, F from 1 to size.most and n what belongs to it. */
#ifndef CARRY_MODEL_CODEC_KIND_H
#define CARRY_MODEL_CODEC_KIND_H

#include "model/codec/codec.h"

#define CARRY_LATENT_CHANNELS 16
#define CARRY_LATENT_BLOCK 8 /* pixels of a latent's side */

typedef struct carry_codec_kind {
    const char *name, *about;
    const char *class_name; /* of config.json: "_class_name" */
    int64_t ratio;          /* frames of a latent frame, at most */
    int64_t first;          /* frames of a stream's first latent frame when it is decoded */
    /* folder may be NULL: then only a kind without weights is asked. */
    carry_status (*open)(carry_ctx *ctx, void **opened, const char *folder, const carry_codec_size *size);
    void (*close)(void *opened);
    void (*reset)(void *opened);
    carry_status (*decode)(void *opened, carry_tensor frames, carry_tensor latents);
    /* Frames of the last call of a stream may be no multiple of ratio. */
    carry_status (*encode)(void *opened, carry_tensor latents, carry_tensor frames);
} carry_codec_kind;

const carry_codec_kind *carry_codec_kind_at(int index); /* NULL past the end */

#endif
