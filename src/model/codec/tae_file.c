/* The weights of a tiny video autoencoder, with the names of TAEHV's files. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/error.h"
#include "core/file.h"
#include "model/codec/codec_weights.h"
#include "core/json.h"
#include "model/codec/tae.h"

#define CONFIG_LIMIT ((size_t)4 << 20)
#define PIXEL_CHANNELS 3

static const int grows[CARRY_TAE_LEVELS] = {1, 2, 2};
static const int pools[CARRY_TAE_LEVELS] = {2, 2, 1};

static carry_status read_blocks(carry_codec_loading *l, carry_tae_level *level, const char *side, int at) {
    for (int b = 0; b < CARRY_TAE_BLOCKS; b++) {
        for (int i = 0; i < 3; i++) {
            char name[48];
            (void)snprintf(name, sizeof name, "%s.%d.conv.%d", side, at + b, 2 * i);
            level->block[b][i] =
                (carry_codec_conv){.in = i == 0 ? 2 * level->width : level->width, .out = level->width};
            CARRY_TRY(carry_codec_conv_read(l, &level->block[b][i], name, level->width, true));
        }
    }
    return CARRY_OK;
}

/* Reads the 1 x 1 convolutions of a level, one per frame, which the file has as one matrix. For growing it is
   [steps * width, width], with the rows of the first frame before those of the second; for pooling it is
   [width, steps * width], with columns in the same order. */
static carry_status read_steps(carry_codec_loading *l, carry_tae_level *level, const char *name, int64_t width,
                               bool grow) {
    char full[64];
    int steps = level->steps;
    const int64_t shape[] = {grow ? steps * width : width, grow ? width : steps * width, 1, 1};
    (void)snprintf(full, sizeof full, "%s.conv.weight", name);
    CARRY_TRY(carry_codec_tensor(l, full, 4, shape));
    for (int s = 0; s < steps; s++) {
        level->step[s] = (carry_codec_conv){.form = CARRY_CONV2D_POINT, .in = width, .out = width};
        for (int64_t out = 0; !carry_codec_is_counting(l) && out < width; out++) {
            const float *row = l->wide[0] + (grow ? (s * width + out) * width : (out * steps + s) * width);
            memcpy(l->wide[1] + out * width, row, (size_t)width * sizeof *row);
        }
        CARRY_TRY(carry_codec_pack(l, &level->step[s], l->wide[1], width));
    }
    return CARRY_OK;
}

static carry_status read_decoder(carry_codec_loading *l, carry_tae_side *side) {
    int64_t width;
    CARRY_TRY(carry_codec_width(l, &width, "decoder.1", 4));
    side->first = (carry_codec_conv){.in = CARRY_LATENT_CHANNELS, .out = width};
    CARRY_TRY(carry_codec_conv_read(l, &side->first, "decoder.1", side->first.in, true));
    for (int i = 0; i < CARRY_TAE_LEVELS; i++) {
        char name[32];
        carry_tae_level *level = &side->level[i];
        level->width = width;
        level->steps = grows[i];
        CARRY_TRY(read_blocks(l, level, "decoder", 3 + 6 * i));
        (void)snprintf(name, sizeof name, "decoder.%d", 7 + 6 * i);
        CARRY_TRY(read_steps(l, level, name, width, true));
        (void)snprintf(name, sizeof name, "decoder.%d", 8 + 6 * i);
        CARRY_TRY(carry_codec_width(l, &width, name, 4));
        level->conv = (carry_codec_conv){.form = CARRY_CONV2D_DOUBLE, .in = level->width, .out = width};
        CARRY_TRY(carry_codec_conv_read(l, &level->conv, name, level->width, false));
    }
    side->last = (carry_codec_conv){.in = width, .out = PIXEL_CHANNELS};
    return carry_codec_conv_read(l, &side->last, "decoder.22", width, true);
}

static carry_status read_encoder(carry_codec_loading *l, carry_tae_side *side) {
    int64_t before;
    CARRY_TRY(carry_codec_width(l, &before, "encoder.0", 4));
    side->first = (carry_codec_conv){.in = PIXEL_CHANNELS, .out = before};
    CARRY_TRY(carry_codec_conv_read(l, &side->first, "encoder.0", side->first.in, true));
    for (int i = 0; i < CARRY_TAE_LEVELS; i++) {
        char name[32];
        carry_tae_level *level = &side->level[i];
        level->steps = pools[i];
        (void)snprintf(name, sizeof name, "encoder.%d", 2 + 5 * i);
        CARRY_TRY(read_steps(l, level, name, before, false));
        (void)snprintf(name, sizeof name, "encoder.%d", 3 + 5 * i);
        CARRY_TRY(carry_codec_width(l, &level->width, name, 4));
        level->conv = (carry_codec_conv){.form = CARRY_CONV2D_HALF, .in = before, .out = level->width};
        CARRY_TRY(carry_codec_conv_read(l, &level->conv, name, before, false));
        CARRY_TRY(read_blocks(l, level, "encoder", 4 + 5 * i));
        before = level->width;
    }
    side->last = (carry_codec_conv){.in = before, .out = CARRY_LATENT_CHANNELS};
    return carry_codec_conv_read(l, &side->last, "encoder.17", before, true);
}

static carry_status read_all(carry_codec_loading *l, void *user) {
    carry_tae *tae = user;
    CARRY_TRY(read_decoder(l, &tae->decoder));
    return read_encoder(l, &tae->encoder);
}

static carry_status check_number(carry_ctx *ctx, const carry_json *root, const char *path, const char *key,
                                 int64_t needed) {
    const carry_json *node = carry_json_find(root, key);
    char shown[CARRY_JSON_SHOWN];
    if (node != NULL && (node->kind != CARRY_JSON_NUMBER || !node->whole || node->as.number.integer != needed)) {
        return carry_fail(ctx, CARRY_EUNSUPPORTED, "%s has %s for \"%s\": only %" PRId64 " is known", path,
                          carry_json_show(shown, node), key, needed);
    }
    return CARRY_OK;
}

static carry_status check_config(carry_ctx *ctx, const char *folder) {
    char path[CARRY_FILE_PATH];
    carry_json *root;
    CARRY_TRY(carry_file_in(ctx, path, folder, "config.json"));
    CARRY_TRY(carry_json_read(ctx, &root, path, CONFIG_LIMIT));
    carry_status status = check_number(ctx, root, path, "latent_channels", CARRY_LATENT_CHANNELS);
    status = status == CARRY_OK ? check_number(ctx, root, path, "image_channels", PIXEL_CHANNELS) : status;
    carry_json_free(root);
    return status;
}

carry_status carry_tae_load(carry_ctx *ctx, carry_tae **tae, const char *folder, const carry_codec_size *size) {
    carry_codec_loading l = {.ctx = ctx, .folder = folder, .what = "a TAEHV"};
    *tae = NULL;
    CARRY_TRY(check_config(ctx, folder));
    carry_tae *made = calloc(1, sizeof *made);
    if (made == NULL) {
        return carry_fail(ctx, CARRY_EMEMORY, "out of memory: %s", folder);
    }
    made->ctx = ctx;
    made->device = size->device;
    made->dtype = size->dtype;
    const carry_status status = carry_codec_load(&l, size, &made->memory, read_all, made);
    if (status != CARRY_OK) {
        free(made);
        return status;
    }
    *tae = made;
    return CARRY_OK;
}

void carry_tae_free(carry_tae *tae) {
    if (tae != NULL) {
        carry_codec_memory_free(tae->ctx, tae->device, tae->memory);
        free(tae);
    }
}
