/* The weights of Wan's autoencoder: a convolution over time becomes a convolution over the channels of three pictures,
   and the scaling of latents is folded into the 1 x 1 convolutions next to them. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "carry/ops.h"
#include "core/error.h"
#include "model/codec/wan_names.h"
#include "model/codec/wan_vae.h"

#define NAME_BYTES 112
#define PIXEL_CHANNELS 3
#define FRAMES 3 /* number of frames that a convolution reads */

static void name_in(char full[NAME_BYTES], const char *prefix, const char *name) {
    (void)snprintf(full, NAME_BYTES, "%.70s%.40s", prefix, name);
}

/* wide[1] [rows, 3 in, area] = rows first_row, ... of wide[0] [.., in, 3, area], with the newest frame first. */
static void turn(carry_codec_loading *l, int64_t first_row, int64_t rows, int64_t in, int64_t area) {
    for (int64_t i = 0; i < rows * FRAMES * in * area; i++) {
        const int64_t row = i / (FRAMES * in * area);
        const int64_t frame = i / (in * area) % FRAMES;
        const int64_t channel = i / area % in;
        const int64_t from = ((first_row + row) * in + channel) * FRAMES + FRAMES - 1 - frame;
        l->wide[1][i] = l->wide[0][from * area + i % area];
    }
}

/* Reads a 3 x 3 x 3 convolution. */
static carry_status read_causal(carry_codec_loading *l, carry_codec_conv *conv, const char *prefix, const char *name,
                                int64_t in, int64_t out) {
    char full[NAME_BYTES];
    const int64_t shape[] = {out, in, FRAMES, 3, 3};
    *conv = (carry_codec_conv){.form = CARRY_CONV2D_SAME, .in = FRAMES * in, .out = out};
    (void)snprintf(full, sizeof full, "%.64s%.24s.weight", prefix, name);
    CARRY_TRY(carry_codec_tensor(l, full, 5, shape));
    if (!carry_codec_is_counting(l)) {
        turn(l, 0, out, in, 9);
    }
    CARRY_TRY(carry_codec_pack(l, conv, l->wide[1], in));
    (void)snprintf(full, sizeof full, "%.64s%.24s.bias", prefix, name);
    return carry_codec_vector(l, &conv->bias, full, 1, &out);
}

/* Reads a 3 x 1 x 1 convolution with parts * width rows as `parts` convolutions. */
static carry_status read_time(carry_codec_loading *l, carry_codec_conv *conv, const char *prefix, int64_t width,
                              int parts) {
    char full[NAME_BYTES];
    const int64_t rows = parts * width;
    const int64_t shape[] = {rows, width, FRAMES, 1, 1};
    name_in(full, prefix, "time_conv.weight");
    CARRY_TRY(carry_codec_tensor(l, full, 5, shape));
    for (int i = 0; i < parts; i++) {
        conv[i] = (carry_codec_conv){.form = CARRY_CONV2D_POINT, .in = FRAMES * width, .out = width};
        if (!carry_codec_is_counting(l)) {
            turn(l, i * width, width, width, 1);
        }
        CARRY_TRY(carry_codec_pack(l, &conv[i], l->wide[1], width));
    }
    name_in(full, prefix, "time_conv.bias");
    CARRY_TRY(carry_codec_tensor(l, full, 1, &rows));
    for (int i = 0; i < parts; i++) {
        conv[i].bias = carry_codec_take(l, CARRY_F32, 1, &width);
        CARRY_TRY(carry_codec_fill(l, conv[i].bias, l->wide[0] + (carry_codec_is_counting(l) ? 0 : i * width)));
    }
    return CARRY_OK;
}

static carry_status read_gamma(carry_codec_loading *l, carry_tensor *to, const char *prefix, const char *name, int rank,
                               int64_t width) {
    char full[NAME_BYTES];
    const int64_t shape[] = {width, 1, 1, 1};
    (void)snprintf(full, sizeof full, "%.64s%.24s.gamma", prefix, name);
    return carry_codec_vector(l, to, full, rank, shape);
}

static carry_status read_block(carry_codec_loading *l, carry_wan_block *block, const char *prefix, int64_t in,
                               int64_t out) {
    char full[NAME_BYTES];
    *block = (carry_wan_block){.in = in, .out = out};
    CARRY_TRY(read_gamma(l, &block->norm[0], prefix, "norm1", 4, in));
    CARRY_TRY(read_causal(l, &block->conv[0], prefix, "conv1", in, out));
    CARRY_TRY(read_gamma(l, &block->norm[1], prefix, "norm2", 4, out));
    CARRY_TRY(read_causal(l, &block->conv[1], prefix, "conv2", out, out));
    if (in == out) {
        return CARRY_OK;
    }
    const int64_t shape[] = {out, in, 1, 1, 1};
    block->shortcut = (carry_codec_conv){.form = CARRY_CONV2D_POINT, .in = in, .out = out};
    name_in(full, prefix, "conv_shortcut.weight");
    CARRY_TRY(carry_codec_tensor(l, full, 5, shape));
    CARRY_TRY(carry_codec_pack(l, &block->shortcut, l->wide[0], in));
    name_in(full, prefix, "conv_shortcut.bias");
    return carry_codec_vector(l, &block->shortcut.bias, full, 1, &out);
}

/* Makes a matrix [rows, columns] on the device, in the type of the pictures. */
static carry_status fill_matrix(carry_codec_loading *l, carry_tensor *to, int64_t rows, int64_t columns) {
    const int64_t shape[] = {rows, columns};
    *to = carry_codec_take(l, l->dtype, 2, shape);
    if (carry_codec_is_counting(l)) {
        return CARRY_OK;
    }
    if (l->dtype == CARRY_F32) {
        return carry_codec_fill(l, *to, l->wide[0]);
    }
    const carry_tensor staged = carry_view_on(l->device, l->staged, CARRY_F32, 2, shape);
    CARRY_TRY(carry_copy(l->ctx, staged, carry_view(l->wide[0], CARRY_F32, 2, shape)));
    return carry_convert(l->ctx, *to, staged);
}

static carry_status read_attention(carry_codec_loading *l, carry_wan_attention *a, const char *prefix, int64_t width) {
    char full[NAME_BYTES];
    const int64_t rows = 3 * width;
    const float scale = 1.0f / sqrtf((float)width);
    CARRY_TRY(read_gamma(l, &a->norm, prefix, "norm", 3, width));
    name_in(full, prefix, "to_qkv.weight");
    CARRY_TRY(carry_codec_tensor(l, full, 4, (const int64_t[]){rows, width, 1, 1}));
    for (int64_t i = 0; !carry_codec_is_counting(l) && i < width * width; i++) {
        l->wide[0][i] *= scale;
    }
    CARRY_TRY(fill_matrix(l, &a->qkv, rows, width));
    name_in(full, prefix, "to_qkv.bias");
    CARRY_TRY(carry_codec_tensor(l, full, 1, &rows));
    for (int64_t i = 0; !carry_codec_is_counting(l) && i < width; i++) {
        l->wide[0][i] *= scale;
    }
    a->qkv_bias = carry_codec_take(l, CARRY_F32, 1, &rows);
    CARRY_TRY(carry_codec_fill(l, a->qkv_bias, l->wide[0]));
    name_in(full, prefix, "proj.weight");
    CARRY_TRY(carry_codec_tensor(l, full, 4, (const int64_t[]){width, width, 1, 1}));
    CARRY_TRY(fill_matrix(l, &a->proj, width, width));
    name_in(full, prefix, "proj.bias");
    return carry_codec_vector(l, &a->proj_bias, full, 1, &width);
}

static carry_status read_middle(carry_codec_loading *l, carry_wan_side *side, const char *prefix, int64_t width) {
    char full[NAME_BYTES];
    name_in(full, prefix, "mid_block.resnets.0.");
    CARRY_TRY(read_block(l, &side->middle[0], full, width, width));
    name_in(full, prefix, "mid_block.attentions.0.");
    CARRY_TRY(read_attention(l, &side->attention, full, width));
    name_in(full, prefix, "mid_block.resnets.1.");
    return read_block(l, &side->middle[1], full, width, width);
}

static carry_status read_resample(carry_codec_loading *l, carry_wan_level *level, const char *prefix,
                                  carry_conv2d_form form, int64_t out) {
    char full[NAME_BYTES];
    level->resamples = true;
    level->resample = (carry_codec_conv){.form = form, .in = level->out, .out = out};
    name_in(full, prefix, "resample.1");
    CARRY_TRY(carry_codec_conv_read(l, &level->resample, full, level->out, true));
    return level->has_time ? read_time(l, level->time, prefix, level->out, form == CARRY_CONV2D_DOUBLE ? 2 : 1)
                           : CARRY_OK;
}

/* Decoder input: latents z as transformers have them become W (deviation z + mean) + bias. */
static carry_status read_post_quant(carry_codec_loading *l, carry_codec_conv *conv, const carry_wan_config *config) {
    enum { N = CARRY_LATENT_CHANNELS };
    float bias[N] = {0};
    const int64_t width = N;
    *conv = (carry_codec_conv){.form = CARRY_CONV2D_POINT, .in = N, .out = N};
    CARRY_TRY(carry_codec_tensor(l, "post_quant_conv.weight", 5, (const int64_t[]){N, N, 1, 1, 1}));
    for (int64_t i = 0; !carry_codec_is_counting(l) && i < width * width; i++) {
        bias[i / N] += l->wide[0][i] * config->mean[i % N];
        l->wide[0][i] *= config->deviation[i % N];
    }
    CARRY_TRY(carry_codec_pack(l, conv, l->wide[0], N));
    CARRY_TRY(carry_codec_tensor(l, "post_quant_conv.bias", 1, &width));
    for (int i = 0; !carry_codec_is_counting(l) && i < N; i++) {
        bias[i] += l->wide[0][i];
    }
    conv->bias = carry_codec_take(l, CARRY_F32, 1, &width);
    return carry_codec_fill(l, conv->bias, bias);
}

/* Encoder output: only the rows of the mean, as (W x + bias - mean) / deviation. */
static carry_status read_quant(carry_codec_loading *l, carry_codec_conv *conv, const carry_wan_config *config) {
    enum { N = CARRY_LATENT_CHANNELS, TWICE = 2 * N };
    const int64_t rows = TWICE;
    const int64_t width = N;
    *conv = (carry_codec_conv){.form = CARRY_CONV2D_POINT, .in = TWICE, .out = N};
    CARRY_TRY(carry_codec_tensor(l, "quant_conv.weight", 5, (const int64_t[]){TWICE, TWICE, 1, 1, 1}));
    for (int64_t i = 0; !carry_codec_is_counting(l) && i < width * TWICE; i++) {
        l->wide[0][i] /= config->deviation[i / TWICE];
    }
    CARRY_TRY(carry_codec_pack(l, conv, l->wide[0], TWICE));
    CARRY_TRY(carry_codec_tensor(l, "quant_conv.bias", 1, &rows));
    for (int i = 0; !carry_codec_is_counting(l) && i < N; i++) {
        l->wide[0][i] = (l->wide[0][i] - config->mean[i]) / config->deviation[i];
    }
    conv->bias = carry_codec_take(l, CARRY_F32, 1, &width);
    return carry_codec_fill(l, conv->bias, l->wide[0]);
}

static carry_status read_decoder(carry_codec_loading *l, carry_wan_side *side, const carry_wan_config *config) {
    char prefix[NAME_BYTES];
    int64_t width = config->width[CARRY_WAN_LEVELS - 1];
    CARRY_TRY(read_post_quant(l, &side->quant, config));
    CARRY_TRY(read_causal(l, &side->conv_in, "decoder.", "conv_in", CARRY_LATENT_CHANNELS, width));
    CARRY_TRY(read_middle(l, side, "decoder.", width));
    for (int i = 0; i < CARRY_WAN_LEVELS; i++) {
        carry_wan_level *level = &side->level[i];
        level->in = i > 0 ? width / 2 : width;
        level->out = config->width[CARRY_WAN_LEVELS - 1 - i];
        level->blocks = config->blocks + 1;
        level->has_time = i < 2;
        for (int b = 0; b < level->blocks; b++) {
            (void)snprintf(prefix, sizeof prefix, "decoder.up_blocks.%d.resnets.%d.", i, b);
            CARRY_TRY(read_block(l, &level->block[b], prefix, b == 0 ? level->in : level->out, level->out));
        }
        width = level->out;
        if (i + 1 < CARRY_WAN_LEVELS) {
            (void)snprintf(prefix, sizeof prefix, "decoder.up_blocks.%d.upsamplers.0.", i);
            CARRY_TRY(read_resample(l, level, prefix, CARRY_CONV2D_DOUBLE, width / 2));
        }
    }
    CARRY_TRY(read_gamma(l, &side->norm_out, "decoder.", "norm_out", 4, width));
    return read_causal(l, &side->conv_out, "decoder.", "conv_out", width, PIXEL_CHANNELS);
}

static carry_status read_encoder(carry_codec_loading *l, carry_wan_side *side, const carry_wan_config *config) {
    char prefix[NAME_BYTES];
    int64_t width = config->width[0];
    int at = 0; /* blocks and resamplers are in one list */
    CARRY_TRY(read_causal(l, &side->conv_in, "encoder.", "conv_in", PIXEL_CHANNELS, width));
    for (int i = 0; i < CARRY_WAN_LEVELS; i++) {
        carry_wan_level *level = &side->level[i];
        level->in = width;
        level->out = config->width[i];
        level->blocks = config->blocks;
        level->has_time = i == 1 || i == 2;
        for (int b = 0; b < level->blocks; b++) {
            (void)snprintf(prefix, sizeof prefix, "encoder.down_blocks.%d.", at++);
            CARRY_TRY(read_block(l, &level->block[b], prefix, b == 0 ? level->in : level->out, level->out));
        }
        width = level->out;
        if (i + 1 < CARRY_WAN_LEVELS) {
            (void)snprintf(prefix, sizeof prefix, "encoder.down_blocks.%d.", at++);
            CARRY_TRY(read_resample(l, level, prefix, CARRY_CONV2D_AHEAD, width));
        }
    }
    CARRY_TRY(read_middle(l, side, "encoder.", width));
    CARRY_TRY(read_gamma(l, &side->norm_out, "encoder.", "norm_out", 4, width));
    CARRY_TRY(read_causal(l, &side->conv_out, "encoder.", "conv_out", width, 2 * CARRY_LATENT_CHANNELS));
    return read_quant(l, &side->quant, config);
}

static carry_status read_all(carry_codec_loading *l, void *user) {
    carry_wan *wan = user;
    CARRY_TRY(read_decoder(l, &wan->decoder, &wan->config));
    return read_encoder(l, &wan->encoder, &wan->config);
}

static bool other_name(const void *user, const char *name, char *to, size_t size) {
    return carry_wan_other_name(((const carry_wan *)user)->config.blocks, name, to, size);
}

carry_status carry_wan_load(carry_ctx *ctx, carry_wan **wan, const char *folder, const carry_codec_size *size) {
    carry_codec_loading l = {.ctx = ctx, .folder = folder, .what = "an AutoencoderKLWan", .other = other_name};
    *wan = NULL;
    carry_wan *made = calloc(1, sizeof *made);
    if (made == NULL) {
        return carry_fail(ctx, CARRY_EMEMORY, "out of memory: %s", folder);
    }
    made->ctx = ctx;
    made->device = size->device;
    made->dtype = size->dtype;
    carry_status status = carry_wan_config_read(ctx, &made->config, folder);
    if (status == CARRY_OK) {
        status = carry_codec_load(&l, size, &made->memory, read_all, made);
    }
    if (status != CARRY_OK) {
        free(made);
        return status;
    }
    *wan = made;
    return CARRY_OK;
}

void carry_wan_free(carry_wan *wan) {
    if (wan != NULL) {
        carry_codec_memory_free(wan->ctx, wan->device, wan->memory);
        free(wan);
    }
}
