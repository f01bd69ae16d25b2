/* Codecs: which kind a folder is, where a stream stands, and the checks that all kinds need. */
#include "model/codec/codec.h"

#include <inttypes.h>
#include <stdbool.h>
#include <stdlib.h>

#include "core/error.h"
#include "core/file.h"
#include "core/span.h"
#include "model/codec/codec_kind.h"
#include "model/json.h"
#include "ops/nn.h"

#define CONFIG_LIMIT ((size_t)4 << 20)
#define SIDE_LIMIT 16384   /* pixels: no picture that is meant is larger, and no product of sizes overflows */
#define FRAMES_LIMIT 65536 /* latent frames of one call */

struct carry_codec {
    carry_ctx *ctx;
    const carry_codec_kind *kind;
    void *opened;
    carry_codec_size size;
    bool decoding; /* a stream has begun: its first latent frame is decoded */
    bool ended;    /* the last frames that were encoded did not fill a latent frame: nothing can follow them */
};

static carry_status kind_of(carry_ctx *ctx, const carry_codec_kind **kind, const char *folder) {
    char path[CARRY_FILE_PATH];
    char shown[CARRY_JSON_SHOWN];
    carry_json *root;
    *kind = carry_codec_kind_at(0);
    if (folder == NULL) {
        return CARRY_OK;
    }
    CARRY_TRY(carry_file_in(ctx, path, folder, "config.json"));
    CARRY_TRY(carry_json_read(ctx, &root, path, CONFIG_LIMIT));
    const carry_json *name = carry_json_find(root, "_class_name");
    int index = 0;
    while ((*kind = carry_codec_kind_at(index)) != NULL && !carry_json_is_text(name, (*kind)->class_name)) {
        index++;
    }
    carry_status status = CARRY_OK;
    if (*kind == NULL) {
        status = carry_fail(ctx, CARRY_EUNSUPPORTED, "%s has %s for \"_class_name\": a codec is \"TAEHV\" or \"DCT\"",
                            path, name != NULL ? carry_json_show(shown, name) : "nothing");
    }
    carry_json_free(root);
    return status;
}

static carry_status check_side(carry_ctx *ctx, const char *name, int64_t side) {
    if (side < CARRY_LATENT_BLOCK || side > SIDE_LIMIT) {
        return carry_fail(ctx, CARRY_ESIZE, "pictures have a %s from %d to %d pixels, and this is %" PRId64, name,
                          CARRY_LATENT_BLOCK, SIDE_LIMIT, side);
    }
    if (side % CARRY_LATENT_BLOCK != 0) {
        int64_t below = side - side % CARRY_LATENT_BLOCK;
        return carry_fail(ctx, CARRY_ESIZE,
                          "a %s of %" PRId64 " pixels is not a multiple of %d: %" PRId64 " and %" PRId64 " are", name,
                          side, CARRY_LATENT_BLOCK, below, below + CARRY_LATENT_BLOCK);
    }
    return CARRY_OK;
}

carry_status carry_codec_open(carry_ctx *ctx, carry_codec **codec, const char *folder, const carry_codec_size *size) {
    const carry_codec_kind *kind;
    void *opened = NULL;
    *codec = NULL;
    CARRY_TRY(check_side(ctx, "height", size->height));
    CARRY_TRY(check_side(ctx, "width", size->width));
    if (size->most < 1 || size->most > FRAMES_LIMIT) {
        return carry_fail(ctx, CARRY_ESIZE, "a call has from 1 to %d latent frames, and not %" PRId64, FRAMES_LIMIT,
                          size->most);
    }
    CARRY_TRY(kind_of(ctx, &kind, folder));
    CARRY_TRY(kind->open(ctx, &opened, folder, size));
    *codec = malloc(sizeof **codec);
    if (*codec == NULL) {
        kind->close(opened);
        return carry_fail(ctx, CARRY_EMEMORY, "no memory for a codec");
    }
    **codec = (carry_codec){.ctx = ctx, .kind = kind, .opened = opened, .size = *size};
    return CARRY_OK;
}

void carry_codec_free(carry_codec *codec) {
    if (codec != NULL) {
        codec->kind->close(codec->opened);
        free(codec);
    }
}

const char *carry_codec_name(const carry_codec *codec) {
    return codec->kind->name;
}

void carry_codec_reset(carry_codec *codec) {
    codec->decoding = false;
    codec->ended = false;
    codec->kind->reset(codec->opened);
}

int64_t carry_codec_frames(const carry_codec *codec, int64_t latent_frames) {
    const carry_codec_kind *kind = codec->kind;
    return latent_frames < 1 ? 0 : latent_frames * kind->ratio - (codec->decoding ? 0 : kind->ratio - kind->first);
}

int64_t carry_codec_ratio(const carry_codec *codec) {
    return codec->kind->ratio;
}

static carry_status check_latent_frames(const carry_codec *codec, int64_t count) {
    if (count < 1 || count > codec->size.most) {
        return carry_fail(codec->ctx, CARRY_ESHAPE,
                          "%" PRId64 " latent frames in one call: this codec was opened for 1 to %" PRId64, count,
                          codec->size.most);
    }
    return CARRY_OK;
}

/* Both tensors, for this many frames of each. */
static carry_status check_tensors(const carry_codec *codec, const carry_tensor *frames, int64_t n,
                                  const carry_tensor *latents, int64_t count) {
    const carry_codec_size *size = &codec->size;
    const int64_t pictures[] = {n, 3, size->height, size->width};
    const int64_t coded[] = {CARRY_LATENT_CHANNELS, count, size->height / CARRY_LATENT_BLOCK,
                             size->width / CARRY_LATENT_BLOCK};
    CARRY_TRY(carry_expect_f32(codec->ctx, "latents", latents, 4, coded, 0));
    return carry_expect_f32(codec->ctx, "frames", frames, 4, pictures, 0);
}

carry_status carry_codec_decode(carry_codec *codec, carry_tensor frames, carry_tensor latents) {
    CARRY_SPAN(codec->ctx, "model", "codec decode");
    CARRY_TRY(carry_expect_rank(codec->ctx, "latents", &latents, 4));
    int64_t count = latents.shape[1];
    CARRY_TRY(check_latent_frames(codec, count));
    CARRY_TRY(check_tensors(codec, &frames, carry_codec_frames(codec, count), &latents, count));
    CARRY_TRY(codec->kind->decode(codec->opened, frames, latents));
    codec->decoding = true;
    return CARRY_OK;
}

carry_status carry_codec_encode(carry_codec *codec, carry_tensor latents, carry_tensor frames) {
    CARRY_SPAN(codec->ctx, "model", "codec encode");
    CARRY_TRY(carry_expect_rank(codec->ctx, "frames", &frames, 4));
    int64_t ratio = codec->kind->ratio;
    int64_t n = frames.shape[0];
    int64_t count = n / ratio + (n % ratio != 0);
    CARRY_TRY(check_latent_frames(codec, count));
    CARRY_TRY(check_tensors(codec, &frames, n, &latents, count));
    if (codec->ended) {
        return carry_fail(codec->ctx, CARRY_EARGUMENT,
                          "the frames before these did not fill a latent frame of %" PRId64
                          ", which ends a stream: carry_codec_reset starts the next one",
                          ratio);
    }
    CARRY_TRY(codec->kind->encode(codec->opened, latents, frames));
    codec->ended = n % ratio != 0;
    return CARRY_OK;
}
