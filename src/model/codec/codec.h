/* Codecs: between frames of pictures and latent frames, as a stream.

   A codec turns pixels [frames, 3, height, width], f32 in [0, 1], into latents [16, latent frames, height/8, width/8]
   and back, chunk after chunk: what a chunk leaves behind (the memory of a TAE's blocks) is carried in the codec, so
   that a video in chunks gives the same frames as the video whole. codec_table.c is the only list of kinds:

   "tae"  a tiny video autoencoder of TAEHV's shape (model/tae.h), from a folder with config.json and
          model.safetensors. A stream's first latent frame decodes to 1 frame, later ones to 4 each; encoding takes
          frames in multiples of 4 (the last call of a stream may have fewer: it is filled up with its last frame).
   "dct"  no weights: the lowest coefficients of the cosine transform of 8 x 8 blocks, 10 of luma and 3 of each chroma,
          scaled so that latents of drawn pictures have a variance near 1. One frame each way per latent frame.

   Encoding and decoding have separate states. A codec is used by one thread at a time. */
#ifndef CARRY_MODEL_CODEC_H
#define CARRY_MODEL_CODEC_H

#include "carry/tensor.h"

typedef struct carry_codec carry_codec;

/* Sizes that a codec is opened for: of pictures, in pixels, multiples of 8; the most latent frames of one call. */
typedef struct carry_codec_size {
    int64_t height, width, most;
} carry_codec_size;

/* folder: a model folder whose config.json has "_class_name": "TAEHV" or "DCT"; NULL: dct. Everything that a call needs
   is allocated here. */
carry_status carry_codec_open(carry_ctx *ctx, carry_codec **codec, const char *folder, const carry_codec_size *size);
void carry_codec_free(carry_codec *codec);
const char *carry_codec_name(const carry_codec *codec);
const char *carry_codec_kind_name(int index, const char **about); /* NULL past the end */

/* A hard cut: the next call starts a stream. */
void carry_codec_reset(carry_codec *codec);

/* How many frames the next decode of this many latent frames gives; how many frames a latent frame is, at most. */
int64_t carry_codec_frames(const carry_codec *codec, int64_t latent_frames);
int64_t carry_codec_ratio(const carry_codec *codec);

/* frames: [carry_codec_frames, 3, height, width] f32; latents: [16, F, height/8, width/8] f32. */
carry_status carry_codec_decode(carry_codec *codec, carry_tensor frames, carry_tensor latents);
/* latents: [16, (frames + ratio - 1) / ratio, height/8, width/8]. */
carry_status carry_codec_encode(carry_codec *codec, carry_tensor latents, carry_tensor frames);

#endif
