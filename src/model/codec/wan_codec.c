/* The wan codec: the autoencoder of Wan 2.1, and one stream through it each way. */
#include <stdlib.h>

#include "core/error.h"
#include "model/codec/codec_kind.h"
#include "model/codec/wan_vae.h"

typedef struct wan_codec {
    carry_wan *wan;
    carry_wan_stream *stream;
    bool encoding; /* the stream's first latent frame was written */
} wan_codec;

static void close_wan(void *opened) {
    wan_codec *c = opened;
    carry_wan_stream_free(c->stream);
    carry_wan_free(c->wan);
    free(c);
}

static carry_status open_wan(carry_ctx *ctx, void **opened, const char *folder, const carry_codec_size *size) {
    wan_codec *c = calloc(1, sizeof *c);
    if (c == NULL) {
        return carry_fail(ctx, CARRY_EMEMORY, "out of memory: a codec");
    }
    carry_status status = carry_wan_load(ctx, &c->wan, folder, size);
    if (status == CARRY_OK) {
        status = carry_wan_stream_new(c->wan, &c->stream, size->height, size->width);
    }
    if (status != CARRY_OK) {
        close_wan(c);
        return status;
    }
    *opened = c;
    return CARRY_OK;
}

static void reset(void *opened) {
    wan_codec *c = opened;
    carry_wan_stream_reset(c->stream);
    c->encoding = false;
}

static carry_status decode(void *opened, const carry_codec_output *to, carry_tensor latents) {
    wan_codec *c = opened;
    int64_t made = 0;
    for (int64_t i = 0; i < latents.shape[1]; i++) {
        CARRY_TRY(carry_wan_decode(c->stream, to, &made, carry_latent_frame(latents, i)));
    }
    return CARRY_OK;
}

/* If the last latent frame lacks frames, the last frame is repeated. */
static carry_status encode(void *opened, carry_tensor latents, carry_tensor frames) {
    wan_codec *c = opened;
    const int64_t last = frames.shape[0] - 1;
    int64_t frame = 0;
    for (int64_t i = 0; i < latents.shape[1]; i++) {
        const int64_t count = c->encoding ? CARRY_WAN_RATIO : 1;
        for (int64_t f = 0; f < count; f++, frame++) {
            CARRY_TRY(carry_wan_encode(c->stream, carry_latent_frame(latents, i),
                                       carry_codec_frame(frames, frame < last ? frame : last)));
        }
        c->encoding = true;
    }
    return CARRY_OK;
}

const carry_codec_kind carry_codec_wan = {.name = "wan",
                                          .about = "the autoencoder of Wan 2.1: causal convolutions over time",
                                          .class_name = "AutoencoderKLWan",
                                          .ratio = CARRY_WAN_RATIO,
                                          .first = 1,
                                          .encode_first = 1,
                                          .on_gpus = true,
                                          .open = open_wan,
                                          .close = close_wan,
                                          .reset = reset,
                                          .decode = decode,
                                          .encode = encode};
