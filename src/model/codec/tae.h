/* A tiny video autoencoder of TAEHV's shape: its weights, and streams of frames through them.

   Decoder: tanh(x/3) 3; conv 16 -> c0, ReLU; three levels; conv to 3 channels; clamp to [0, 1]. A level is three memory
   blocks; growing, which makes 1, 2 and 2 frames of one in levels 0, 1 and 2, by one 1 x 1 conv per frame; doubling of
   height and width; and a conv to the next width (with ReLU in the last level). Encoder: conv 3 -> c, ReLU; three
   levels; conv c -> 16. A level is pooling of 2, 2 and 1 frames into one by a 1 x 1 conv, a stride-2 conv and three
   memory blocks.

   Memory block: ReLU(conv3(ReLU(conv2(ReLU(conv1([x, past]))))) + x), where past is the x of the previous frame. A
   stream carries only these pasts from frame to frame, so frames are processed one at a time and the result does not
   depend on how a video is split into calls. TAEHV grows after doubling; here growing comes first, which takes a
   quarter of the multiplications and gives the same numbers, since a 1 x 1 convolution reads only one pixel. */
#ifndef CARRY_MODEL_TAE_H
#define CARRY_MODEL_TAE_H

#include <stdbool.h>

#include "carry/tensor.h"
#include "model/codec/codec_weights.h"

#define CARRY_TAE_LEVELS 3
#define CARRY_TAE_BLOCKS 3
#define CARRY_TAE_STEPS 2 /* maximum number of frames that a level grows into or pools */
#define CARRY_TAE_RATIO 4 /* frames of a latent frame */

typedef struct carry_tae_level {
    int64_t width; /* of its blocks */
    carry_codec_conv block[CARRY_TAE_BLOCKS][3];
    int steps;
    carry_codec_conv step[CARRY_TAE_STEPS]; /* 1 x 1, one for each frame that is grown or pooled */
    carry_codec_conv conv;                  /* decoder: at the end of the level; encoder: at its start */
} carry_tae_level;

typedef struct carry_tae_side {
    carry_codec_conv first, last;
    carry_tae_level level[CARRY_TAE_LEVELS];
} carry_tae_side;

typedef struct carry_tae {
    carry_ctx *ctx;
    int device;
    carry_dtype dtype; /* of pictures and weights */
    carry_tae_side decoder, encoder;
    void *memory;
} carry_tae;

/* Loads weights with the names and shapes of TAEHV's files (decoder.1.weight, encoder.4.conv.0.bias, ...), in f32, bf16
   or f16; widths come from the shapes. Only size->device and size->dtype are used. CARRY_ESHAPE and CARRY_EFORMAT name
   the tensor that does not fit, is missing or is surplus. */
carry_status carry_tae_load(carry_ctx *ctx, carry_tae **tae, const char *folder, const carry_codec_size *size);
void carry_tae_free(carry_tae *tae);

/* A stream's memory, for pictures of height x width pixels, multiples of 8. The weights must outlive it. On the CPU,
   memory that a stream does not use, because it only decodes, is never touched. */
typedef struct carry_tae_stream carry_tae_stream;
carry_status carry_tae_stream_new(const carry_tae *tae, carry_tae_stream **stream, int64_t height, int64_t width);
void carry_tae_stream_free(carry_tae_stream *stream);
void carry_tae_stream_reset(carry_tae_stream *stream); /* resets both decoding and encoding */

/* Decodes one latent frame, planes [16, height / 8, width / 8] on the device. Its frames are written from index *made
   of the output on: 1 for the first latent frame of a stream, then 4; *made is increased by their number. */
carry_status carry_tae_decode(carry_tae_stream *stream, const carry_codec_output *to, int64_t *made,
                              carry_tensor latent);
/* Encodes one frame, planes [3, height, width] on the device. Every fourth frame writes a latent frame. */
carry_status carry_tae_encode(carry_tae_stream *stream, carry_tensor latent, carry_tensor frame);

#endif
