/* The autoencoder of Wan 2.1: its weights, and streams of frames through them.

   Convolutions see the frame, and the two before it (zeros before a stream's first): what each has seen last is all
   that a stream carries from frame to frame, so frames go through one at a time and the result does not depend on how a
   video is cut into calls.

   Residual block: x' = conv2(silu(norm2(conv1(silu(norm1(x)))))) + x, or + shortcut(x) where widths differ. The norm of
   a pixel is x sqrt(channels) / |x| gamma.
   Decoder: post_quant 1 x 1; conv_in; residual block, attention within the frame, residual block; four levels of
   residual blocks. Levels 0 and 1 end with two 1 x 1 convolutions over three frames, which make two frames of one, and
   levels 0 to 2 with doubling and a 3 x 3 convolution to half the width; silu(norm(x)), conv_out, clamp to [-1, 1]. A
   stream's first latent frame stays one frame, and the convolutions that double frames never see it.
   Encoder: conv_in; four levels of residual blocks, 0 to 2 followed by a 3 x 3 convolution of stride 2, 1 and 2 also by
   a 1 x 1 convolution over three frames that makes one frame of two (the first stays as it is); block, attention,
   block; silu(norm(x)), conv_out, quant 1 x 1, of which the mean is kept. */
#ifndef CARRY_MODEL_WAN_VAE_H
#define CARRY_MODEL_WAN_VAE_H

#include "model/codec/codec_weights.h"

#define CARRY_WAN_LEVELS 4
#define CARRY_WAN_BLOCKS 8 /* of a level, at most */
#define CARRY_WAN_RATIO 4  /* frames of a latent frame */

typedef struct carry_wan_config {
    int64_t width[CARRY_WAN_LEVELS]; /* base_dim times dim_mult: of the encoder's levels, and the decoder's reversed */
    int blocks;                      /* num_res_blocks: of the encoder's levels; the decoder's have one more */
    float mean[CARRY_LATENT_CHANNELS], deviation[CARRY_LATENT_CHANNELS]; /* of latents */
} carry_wan_config;

/* config.json as diffusers writes it; a value that Wan 2.1 does not have is refused with its key. */
carry_status carry_wan_config_read(carry_ctx *ctx, carry_wan_config *config, const char *folder);

typedef struct carry_wan_block {
    int64_t in, out;
    carry_tensor norm[2];
    carry_codec_conv conv[2], shortcut; /* shortcut: where in is not out */
} carry_wan_block;

typedef struct carry_wan_attention {
    carry_tensor norm, qkv, qkv_bias, proj, proj_bias; /* qkv [3 C, C]: q is divided by sqrt(C) */
} carry_wan_attention;

typedef struct carry_wan_level {
    int64_t in, out; /* in: of the frames that enter it */
    int blocks;
    carry_wan_block block[CARRY_WAN_BLOCKS];
    bool resamples, has_time;
    carry_codec_conv resample;
    carry_codec_conv time[2]; /* decoder: one a frame that is made; encoder: the first */
} carry_wan_level;

typedef struct carry_wan_side {
    carry_codec_conv quant; /* between latents as transformers have them and as convolutions do */
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

/* Names and shapes as diffusers' files have them, or Wan's own, in f32, bf16 or f16. size: device and dtype are used.
   CARRY_ESHAPE and CARRY_EFORMAT name the tensor that does not fit, is missing or is too much. */
carry_status carry_wan_load(carry_ctx *ctx, carry_wan **wan, const char *folder, const carry_codec_size *size);
void carry_wan_free(carry_wan *wan);

/* A stream's memory. The weights outlive it. Pictures of a side (0: decoder, 1: encoder) are allocated at its first
   frame. */
typedef struct carry_wan_stream carry_wan_stream;
carry_status carry_wan_stream_new(const carry_wan *wan, carry_wan_stream **stream, int64_t height, int64_t width);
void carry_wan_stream_free(carry_wan_stream *stream);
void carry_wan_stream_reset(carry_wan_stream *stream); /* both ways */

/* One latent frame, planes [16, height / 8, width / 8] on the device. Its frames go to place *made of the output and
   the places after it: 1 of the first latent frame of a stream, then 4; *made counts them. */
carry_status carry_wan_decode(carry_wan_stream *stream, const carry_codec_output *to, int64_t *made,
                              carry_tensor latent);
/* One frame, planes [3, height, width] on the device. The first frame of a stream, and every fourth after it, writes a
   latent frame. */
carry_status carry_wan_encode(carry_wan_stream *stream, carry_tensor latent, carry_tensor frame);

#endif
