/* The tae codec: a tiny video autoencoder, and one stream through it each way. */
#include <stdlib.h>

#include "core/error.h"
#include "model/codec/codec_kind.h"
#include "model/codec/tae.h"

typedef struct tae_codec {
    carry_tae *tae;
    carry_tae_stream *stream;
} tae_codec;

static void close_tae(void *opened) {
    tae_codec *c = opened;
    carry_tae_stream_free(c->stream);
    carry_tae_free(c->tae);
    free(c);
}

static carry_status open_tae(carry_ctx *ctx, void **opened, const char *folder, const carry_codec_size *size) {
    tae_codec *c = calloc(1, sizeof *c);
    if (c == NULL) {
        return carry_fail(ctx, CARRY_EMEMORY, "out of memory: a codec");
    }
    carry_status status = carry_tae_load(ctx, &c->tae, folder, size);
    if (status == CARRY_OK) {
        status = carry_tae_stream_new(c->tae, &c->stream, size->height, size->width);
    }
    if (status != CARRY_OK) {
        close_tae(c);
        return status;
    }
    *opened = c;
    return CARRY_OK;
}

static void reset(void *opened) {
    tae_codec *c = opened;
    carry_tae_stream_reset(c->stream);
}

static carry_status decode(void *opened, const carry_codec_output *to, carry_tensor latents) {
    tae_codec *c = opened;
    int64_t made = 0;
    for (int64_t i = 0; i < latents.shape[1]; i++) {
        CARRY_TRY(carry_tae_decode(c->stream, to, &made, carry_latent_frame(latents, i)));
    }
    return CARRY_OK;
}

static carry_status encode(void *opened, carry_tensor latents, carry_tensor frames) {
    tae_codec *c = opened;
    int64_t last = frames.shape[0] - 1;
    for (int64_t i = 0; i < CARRY_TAE_RATIO * latents.shape[1]; i++) {
        CARRY_TRY(carry_tae_encode(c->stream, carry_latent_frame(latents, i / CARRY_TAE_RATIO),
                                   carry_codec_frame(frames, i < last ? i : last)));
    }
    return CARRY_OK;
}

const carry_codec_kind carry_codec_tae = {.name = "tae",
                                          .about = "a tiny video autoencoder with the architecture of TAEHV",
                                          .class_name = "TAEHV",
                                          .ratio = CARRY_TAE_RATIO,
                                          .first = 1,
                                          .encode_first = CARRY_TAE_RATIO,
                                          .on_gpus = true,
                                          .open = open_tae,
                                          .close = close_tae,
                                          .reset = reset,
                                          .decode = decode,
                                          .encode = encode};
