/* Configurations of video transformers: the named ones, and the checks. */
#include "model/dit/dit_config.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "core/error.h"

#define SIZE_LIMIT ((int64_t)1 << 20)
#define LAYER_LIMIT 4096
#define HEAD_LIMIT 256 /* carry_attention's */

static const struct {
    const char *name, *about;
    carry_dit_config config;
} named[] = {
    {"1.3B",
     "Wan2.1 T2V 1.3B",
     {.dim = 1536,
      .ffn_dim = 8960,
      .num_heads = 12,
      .num_layers = 30,
      .in_dim = 16,
      .out_dim = 16,
      .text_len = 512,
      .text_dim = 4096,
      .freq_dim = 256,
      .patch = {1, 2, 2},
      .eps = 1e-6,
      .qk_norm = true,
      .cross_attn_norm = true,
      .chunk_frames = 3,
      .window_frames = 21,
      .shift = 5.0,
      .step = {1000, 750, 500, 250},
      .steps = 4}},
    {"14B",
     "Wan2.1 T2V 14B",
     {.dim = 5120,
      .ffn_dim = 13824,
      .num_heads = 40,
      .num_layers = 40,
      .in_dim = 16,
      .out_dim = 16,
      .text_len = 512,
      .text_dim = 4096,
      .freq_dim = 256,
      .patch = {1, 2, 2},
      .eps = 1e-6,
      .qk_norm = true,
      .cross_attn_norm = true,
      .chunk_frames = 3,
      .window_frames = 21,
      .shift = 5.0,
      .step = {1000, 750, 500, 250},
      .steps = 4}},
    {"shapes",
     "a small model for moving coloured shapes; the demo, models/shapes, is 128 wide with 4 heads",
     {.dim = 192,
      .ffn_dim = 768,
      .num_heads = 6,
      .num_layers = 6,
      .in_dim = 16,
      .out_dim = 16,
      .text_len = 16,
      .text_dim = 64,
      .freq_dim = 64,
      .patch = {1, 2, 2},
      .eps = 1e-6,
      .qk_norm = true,
      .cross_attn_norm = true,
      .chunk_frames = 3,
      .window_frames = 12,
      .shift = 5.0,
      .step = {1000, 750, 500, 250},
      .steps = 4}},
};

enum { NAMED = sizeof named / sizeof named[0] };

const char *carry_dit_config_name(int index, const char **about) {
    if (index < 0 || index >= NAMED) {
        return NULL;
    }
    if (about != NULL) {
        *about = named[index].about;
    }
    return named[index].name;
}

carry_status carry_dit_config_named(carry_ctx *ctx, carry_dit_config *config, const char *name) {
    char names[128] = "";
    size_t used = 0;
    for (int i = 0; i < NAMED; i++) {
        if (strcmp(named[i].name, name) == 0) {
            *config = named[i].config;
            return CARRY_OK;
        }
        int more = snprintf(names + used, sizeof names - used, "%s%s", i > 0 ? ", " : "", named[i].name);
        used += (size_t)(more > 0 ? more : 0);
    }
    return carry_fail(ctx, CARRY_EARGUMENT, "no video transformer is called %.60s: %s are known", name, names);
}

static carry_status expect_size(carry_ctx *ctx, const char *key, int64_t value, int64_t most) {
    if (value < 1 || value > most) {
        return carry_fail(ctx, CARRY_ESIZE, "%s is %" PRId64 ": 1 to %" PRId64 " is possible", key, value, most);
    }
    return CARRY_OK;
}

static carry_status check_sizes(carry_ctx *ctx, const carry_dit_config *c) {
    CARRY_TRY(expect_size(ctx, "dim", c->dim, SIZE_LIMIT));
    CARRY_TRY(expect_size(ctx, "ffn_dim", c->ffn_dim, SIZE_LIMIT));
    CARRY_TRY(expect_size(ctx, "num_heads", c->num_heads, SIZE_LIMIT));
    CARRY_TRY(expect_size(ctx, "num_layers", c->num_layers, LAYER_LIMIT));
    CARRY_TRY(expect_size(ctx, "in_dim", c->in_dim, 4096));
    CARRY_TRY(expect_size(ctx, "out_dim", c->out_dim, 4096));
    CARRY_TRY(expect_size(ctx, "text_len", c->text_len, CARRY_DIT_TEXT));
    CARRY_TRY(expect_size(ctx, "text_dim", c->text_dim, SIZE_LIMIT));
    CARRY_TRY(expect_size(ctx, "freq_dim", c->freq_dim, SIZE_LIMIT));
    CARRY_TRY(expect_size(ctx, "patch_size[1]", c->patch[1], 64));
    CARRY_TRY(expect_size(ctx, "patch_size[2]", c->patch[2], 64));
    if (c->patch[0] != 1) {
        return carry_fail(ctx, CARRY_EUNSUPPORTED,
                          "patch_size[0] is %" PRId64 ": only patches of one frame are supported", c->patch[0]);
    }
    if (c->dim % c->num_heads != 0 || c->dim / c->num_heads % 2 != 0 || c->dim / c->num_heads > HEAD_LIMIT) {
        return carry_fail(ctx, CARRY_EUNSUPPORTED,
                          "dim %" PRId64 " and num_heads %" PRId64 ": heads must be of an even size up to %d", c->dim,
                          c->num_heads, HEAD_LIMIT);
    }
    if (c->freq_dim % 2 != 0) {
        return carry_fail(ctx, CARRY_EUNSUPPORTED, "freq_dim is %" PRId64 ": cosines and sines need an even number",
                          c->freq_dim);
    }
    return CARRY_OK;
}

/* A value of 0 means that the file does not have it. */
static carry_status check_stream(carry_ctx *ctx, const carry_dit_config *c) {
    const int64_t chunk = c->chunk_frames;
    const int64_t window = c->window_frames;
    const int64_t sink = c->sink_frames;
    if (chunk < 0 || window < 0 || sink < 0 || chunk > CARRY_DIT_POSITIONS || window > CARRY_DIT_POSITIONS ||
        sink > CARRY_DIT_POSITIONS || (window > 0 && sink + chunk > window)) {
        return carry_fail(ctx, CARRY_ERANGE,
                          "chunks of %" PRId64 " frames in a window of %" PRId64 " with a sink of %" PRId64
                          ": the window must hold sink and chunk, and at most %d frames",
                          chunk, window, sink, CARRY_DIT_POSITIONS);
    }
    if (!(c->eps >= 0.0) || isinf(c->eps) || !(c->shift >= 0.0) || isinf(c->shift)) {
        return carry_fail(ctx, CARRY_ERANGE, "eps is %g and shift %g: both must be numbers from 0 on", c->eps,
                          c->shift);
    }
    for (int64_t i = 0; i < c->steps && i < 16; i++) {
        if (c->step[i] < 1 || c->step[i] > 1000) {
            return carry_fail(ctx, CARRY_ERANGE, "step %" PRId64 " is %" PRId64 ": steps are from 1 to 1000", i,
                              c->step[i]);
        }
    }
    if (c->steps < 0 || c->steps > 16) {
        return carry_fail(ctx, CARRY_ESIZE, "%" PRId64 " steps: up to 16 are possible", c->steps);
    }
    return CARRY_OK;
}

static carry_status check_mesh(carry_ctx *ctx, const carry_dit_config *c, int mesh) {
    if (mesh >= 1 && c->num_heads % mesh == 0 && c->ffn_dim % mesh == 0) {
        return CARRY_OK;
    }
    char sizes[160] = "";
    size_t used = 0;
    for (int64_t size = 1; size <= c->num_heads && used + 24 < sizeof sizes; size++) {
        if (c->num_heads % size == 0 && c->ffn_dim % size == 0) {
            int more = snprintf(sizes + used, sizeof sizes - used, "%s%" PRId64, used > 0 ? ", " : "", size);
            used += (size_t)(more > 0 ? more : 0);
        }
    }
    return carry_fail(ctx, CARRY_ESIZE,
                      "a mesh of %d does not divide %" PRId64 " heads and an FFN of %" PRId64 ": %s would", mesh,
                      c->num_heads, c->ffn_dim, sizes);
}

carry_status carry_dit_config_check(carry_ctx *ctx, const carry_dit_config *config, int mesh) {
    CARRY_TRY(check_sizes(ctx, config));
    CARRY_TRY(check_stream(ctx, config));
    return check_mesh(ctx, config, mesh);
}

/* The nearest multiple of a patch, the smaller one if two are equally near, and not beyond the positions. */
static int64_t nearest(int64_t size, int64_t patch) {
    int64_t below = size / patch * patch;
    int64_t best = size - below <= below + patch - size ? below : below + patch;
    best = best < patch ? patch : best;
    return best > patch * CARRY_DIT_POSITIONS ? patch * CARRY_DIT_POSITIONS : best;
}

carry_status carry_dit_check_size(carry_ctx *ctx, const carry_dit_config *config, int64_t height, int64_t width) {
    const int64_t p = config->patch[1];
    const int64_t q = config->patch[2];
    if (height < 1 || width < 1 || height % p != 0 || width % q != 0 || height / p > CARRY_DIT_POSITIONS ||
        width / q > CARRY_DIT_POSITIONS) {
        const int64_t most = INT64_MAX / 2;
        return carry_fail(ctx, CARRY_ESIZE,
                          "latents of %" PRId64 " x %" PRId64 " are not made of up to %d patches of %" PRId64
                          " x %" PRId64 " a side: %" PRId64 " x %" PRId64 " is the nearest that works",
                          height, width, CARRY_DIT_POSITIONS, p, q, nearest(height < most ? height : most, p),
                          nearest(width < most ? width : most, q));
    }
    return CARRY_OK;
}
