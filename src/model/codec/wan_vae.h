/* The autoencoder of Wan 2.1: its weights, and streams of frames through them.

   Convolutions read the frame and the two before it (zeros before a stream's first). A stream carries only these last
   inputs of each convolution from frame to frame, so frames are processed one at a time and the result does not depend
   on how a video is split into calls.

   Residual block: x' = conv2(silu(norm2(conv1(silu(norm1(x)))))) + x, or + shortcut(x) where widths differ. The norm of
   a pixel is x sqrt(channels) / |x| gamma.
   Decoder: post_quant 1 x 1; conv_in; residual block, attention within the frame, residual block; four levels of
   residual blocks. Levels 0 and 1 end with two 1 x 1 convolutions over three frames, which make two frames of one, and
   levels 0 to 2 with doubling and a 3 x 3 convolution to half the width; silu(norm(x)), conv_out, clamp to [-1, 1]. A
   stream's first latent frame stays one frame, and the convolutions that double frames never read it.
   Encoder: conv_in; four levels of residual blocks; levels 0 to 2 are followed by a 3 x 3 convolution of stride 2, and
   levels 1 and 2 also by a 1 x 1 convolution over three frames that makes one frame of two (the first stays as it is);
   block, attention, block; silu(norm(x)), conv_out, quant 1 x 1, of which only the mean is kept. */
#ifndef CARRY_MODEL_WAN_VAE_H
#define CARRY_MODEL_WAN_VAE_H

#include "model/codec/codec_weights.h"

#define CARRY_WAN_LEVELS 4
#define CARRY_WAN_BLOCKS 8 /* maximum number of blocks of a level */
#define CARRY_WAN_RATIO 4  /* frames of a latent frame */

typedef struct carry_wan_config {
    int64_t width[CARRY_WAN_LEVELS]; /* base_dim times dim_mult: widths of the encoder's levels; the decoder has them in
                                        reverse order */
    int blocks;                      /* num_res_blocks: blocks of an encoder level; a decoder level has one more */
    float mean[CARRY_LATENT_CHANNELS], deviation[CARRY_LATENT_CHANNELS]; /* of latents */
} carry_wan_config;

/* Reads config.json in the format of diffusers; a value that Wan 2.1 does not have is an error that names its key. */
carry_status carry_wan_config_read(carry_ctx *ctx, carry_wan_config *config, const char *folder);

typedef struct carry_wan_block {
    int64_t in, out;
    carry_tensor norm[2];
    carry_codec_conv conv[2], shortcut; /* shortcut: if in differs from out */
} carry_wan_block;

typedef struct carry_wan_attention {
    carry_tensor norm, qkv, qkv_bias, proj, proj_bias; /* qkv [3 C, C]: q is divided by sqrt(C) */
} carry_wan_attention;

typedef struct carry_wan_level {
    int64_t in, out; /* in: channels of its input frames */
    int blocks;
    carry_wan_block block[CARRY_WAN_BLOCKS];
    bool resamples, has_time;
    carry_codec_conv resample;
    carry_codec_conv time[2]; /* decoder: one for each frame that is made; encoder: only the first */
} carry_wan_level;

typedef struct carry_wan_side {
    carry_codec_conv
        quant; /* between normalised latents, as transformers use them, and those that the convolutions use */
    carry_codec_conv conv_in, conv_out;
    carry_wan_block middle[2];
    carry_wan_attention attention;
    carry_wan_level level[CARRY_WAN_LEVELS];
    carry_tensor norm_out;
} carry_wan_side;

typedef struct carry_wan {
    carry_ctx *ctx;
    int device;
    carry_dtype dtype; /* of pictures and weights */
    carry_wan_config config;
    carry_wan_side decoder, encoder;
    void *memory;
} carry_wan;

/* Loads weights with the names and shapes of diffusers' files, or Wan's own, in f32, bf16 or f16. Only device and dtype
   of size are used. CARRY_ESHAPE and CARRY_EFORMAT name the tensor that does not fit, is missing or surplus. */
carry_status carry_wan_load(carry_ctx *ctx, carry_wan **wan, const char *folder, const carry_codec_size *size);
void carry_wan_free(carry_wan *wan);

/* A stream's memory. The weights must outlive it. The buffers of the decoder are allocated at its first frame, and
   those of the encoder at its own. */
typedef struct carry_wan_stream carry_wan_stream;
carry_status carry_wan_stream_new(const carry_wan *wan, carry_wan_stream **stream, int64_t height, int64_t width);
void carry_wan_stream_free(carry_wan_stream *stream);
void carry_wan_stream_reset(carry_wan_stream *stream); /* both ways */

/* Decodes one latent frame, planes [16, height / 8, width / 8] on the device. Its frames are written from index *made
   of the output on: 1 for the first latent frame of a stream, then 4; *made is increased by their number. */
carry_status carry_wan_decode(carry_wan_stream *stream, const carry_codec_output *to, int64_t *made,
                              carry_tensor latent);
/* Encodes one frame, planes [3, height, width] on the device. The first frame of a stream, and every fourth after it,
   writes a latent frame. */
carry_status carry_wan_encode(carry_wan_stream *stream, carry_tensor latent, carry_tensor frame);

#endif
