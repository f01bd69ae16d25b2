/* Codecs: conversion between frames of pictures and latent frames, as a stream.

   A codec turns pixels [frames, 3, height, width], f32 in [0, 1], into latents [16, latent frames, height/8, width/8]
   and back, chunk after chunk. The codec keeps the state between chunks (the memory of a TAE's blocks), so that a video
   in chunks gives the same frames as the whole video. codec_table.c is the only list of kinds:

   "tae"  a tiny video autoencoder of TAEHV's shape (model/codec/tae.h), from a folder with config.json and
          model.safetensors. A stream's first latent frame decodes to 1 frame, later ones to 4 each; encoding takes
          frames in multiples of 4 (the last call of a stream may have fewer: it is filled up with its last frame).
   "wan"  the autoencoder of Wan 2.1 (model/codec/wan_vae.h), from a folder in the format of diffusers, with the tensor
          names of diffusers or Wan. Latents are normalised by latents_mean and latents_std of config.json, as video
          transformers expect them. A stream's first latent frame is 1 frame in both directions, later ones 4 each.
   "dct"  no weights: the lowest coefficients of the cosine transform of 8 x 8 blocks, 10 of luma and 3 of each chroma,
          scaled so that latents of drawn pictures have a variance near 1. One frame each way per latent frame.

   On a GPU a codec works on its context's stream there (carry_ctx_set_stream). Tensors may be on the GPU: a call then
   returns when its work is enqueued. If they are in host memory, a call waits for its work.

   Encoding and decoding have separate states. A codec must be used by one thread at a time. */
#ifndef CARRY_MODEL_CODEC_H
#define CARRY_MODEL_CODEC_H

#include "carry/tensor.h"

typedef struct carry_codec carry_codec;

/* Options for opening a codec: the size of pictures in pixels, multiples of 8; the maximum number of latent frames in a
   call; the device; and the type: f32, or bf16 on a GPU. A kind without code for GPUs (dct) always works on the CPU in
   f32 (carry_codec_device). */
typedef struct carry_codec_size {
    int64_t height, width, most;
    int device;
    carry_dtype dtype;
} carry_codec_size;

/* folder: a model folder whose config.json has "_class_name": "TAEHV", "AutoencoderKLWan" or "DCT"; NULL: dct. Memory
   is allocated here, with three exceptions: staging memory for tensors on another device, and the pictures of wan, at
   the first call that needs them; and for dct a buffer in every call of carry_codec_decode_bytes. */
carry_status carry_codec_open(carry_ctx *ctx, carry_codec **codec, const char *folder, const carry_codec_size *size);
void carry_codec_free(carry_codec *codec);
const char *carry_codec_name(const carry_codec *codec);
const char *carry_codec_kind_name(int index, const char **about); /* NULL past the end */

int carry_codec_device(const carry_codec *codec);

/* A hard cut: the next call starts a new stream. */
void carry_codec_reset(carry_codec *codec);

/* carry_codec_frames: the number of frames that the next decode of `latent_frames` latent frames gives.
   carry_codec_ratio: the maximum number of frames per latent frame. */
int64_t carry_codec_frames(const carry_codec *codec, int64_t latent_frames);
int64_t carry_codec_ratio(const carry_codec *codec);

/* The number of latent frames that the next encode of `frames` frames gives. */
int64_t carry_codec_latent_frames(const carry_codec *codec, int64_t frames);

/* frames: [carry_codec_frames, 3, height, width] f32; latents: [16, F, height/8, width/8], f32, or on a GPU also bf16
   or f16. */
carry_status carry_codec_decode(carry_codec *codec, carry_tensor frames, carry_tensor latents);
/* The same with 8 bits per channel, rounded: `bytes` has carry_codec_frames * height * width * 3 elements, channels
   last, on the codec's device. */
carry_status carry_codec_decode_bytes(carry_codec *codec, unsigned char *bytes, carry_tensor latents);
/* latents: [16, carry_codec_latent_frames, height/8, width/8] f32. In the last call of a stream the frames need not
   fill the last latent frame. */
carry_status carry_codec_encode(carry_codec *codec, carry_tensor latents, carry_tensor frames);

#endif
