/* The weights of a tiny video autoencoder: found by name, checked by shape, packed for the convolutions.

   The same lines run twice: over an empty arena they check everything and count, over memory they fill it. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "carry/ops.h"
#include "core/error.h"
#include "core/file.h"
#include "core/memory.h"
#include "core/tensor.h"
#include "model/codec/codec_kind.h"
#include "model/json.h"
#include "model/codec/tae.h"
#include "model/weights.h"

#define CONFIG_LIMIT ((size_t)4 << 20)
#define WIDTH_LIMIT 8192 /* channels: products of sizes cannot overflow */
#define TENSORS 128      /* 64 of each side */
#define PIXEL_CHANNELS 3

static const int grows[CARRY_TAE_LEVELS] = {1, 2, 2};
static const int pools[CARRY_TAE_LEVELS] = {2, 2, 1};

typedef struct loading {
    carry_ctx *ctx;
    const char *folder;
    carry_weights weights;
    carry_arena arena; /* of the packed weights */
    float *wide[2];    /* a tensor in f32, and a part of it */
    size_t widest;     /* numbers of the largest tensor */
    const carry_tensor *used[TENSORS];
    int count;
} loading;

static bool is_counting(const loading *l) {
    return l->arena.base == NULL;
}

static carry_status find(loading *l, const carry_tensor **found, const char *name) {
    *found = carry_weights_find(&l->weights, name);
    if (*found == NULL) {
        return carry_fail(l->ctx, CARRY_EFORMAT, "%s has no tensor %s, which a TAEHV needs", l->folder, name);
    }
    if ((*found)->dtype == CARRY_I64) {
        return carry_fail(l->ctx, CARRY_EDTYPE, "%s: %s is i64: f32, bf16 or f16 is needed", l->folder, name);
    }
    return CARRY_OK;
}

/* The output channels of a convolution, where they are the file's to say. */
static carry_status width_of(loading *l, int64_t *width, const char *name) {
    const carry_tensor *found;
    char full[64];
    char has[CARRY_SHAPE_TEXT];
    (void)snprintf(full, sizeof full, "%s.weight", name);
    CARRY_TRY(find(l, &found, full));
    if (found->rank != 4 || found->shape[0] < 1 || found->shape[0] > WIDTH_LIMIT) {
        return carry_fail(l->ctx, CARRY_ESHAPE,
                          "%s: %s has shape %s where [width, ...] of rank 4 is needed, the width from 1 to %d",
                          l->folder, full, carry_shape_text(has, found->rank, found->shape), WIDTH_LIMIT);
    }
    *width = found->shape[0];
    return CARRY_OK;
}

/* A tensor of this shape, in f32 where it is filled in. */
static carry_status read_tensor(loading *l, carry_tensor *to, const char *name, int rank, const int64_t *shape) {
    const carry_tensor *found;
    char has[CARRY_SHAPE_TEXT];
    char needs[CARRY_SHAPE_TEXT];
    CARRY_TRY(find(l, &found, name));
    if (found->rank != rank || memcmp(found->shape, shape, (size_t)rank * sizeof *shape) != 0) {
        return carry_fail(l->ctx, CARRY_ESHAPE, "%s: %s has shape %s where the other weights need %s", l->folder, name,
                          carry_shape_text(has, found->rank, found->shape), carry_shape_text(needs, rank, shape));
    }
    if (is_counting(l)) {
        size_t count = (size_t)carry_tensor_count(found);
        l->widest = count > l->widest ? count : l->widest;
        if (l->count < TENSORS) {
            l->used[l->count] = found;
        }
        l->count++;
        return CARRY_OK;
    }
    return carry_convert(l->ctx, *to, *found);
}

static carry_tensor take(loading *l, int64_t count) {
    return carry_view_1d(carry_arena_take(&l->arena, (size_t)count, sizeof(float)), CARRY_F32, count);
}

/* conv's form, in and out are set. first: channels of x (conv2d.h). */
static carry_status read_conv(loading *l, carry_tae_conv *conv, const char *name, int64_t first, bool has_bias) {
    char full[64];
    const int64_t shape[] = {conv->out, conv->in, 3, 3};
    carry_tensor wide = carry_view(l->wide[0], CARRY_F32, 4, shape);
    conv->w = take(l, carry_conv2d_packed(conv->form, conv->out, conv->in));
    conv->bias = (carry_tensor){0};
    (void)snprintf(full, sizeof full, "%s.weight", name);
    CARRY_TRY(read_tensor(l, &wide, full, 4, shape));
    if (!is_counting(l)) {
        CARRY_TRY(carry_conv2d_pack(l->ctx, conv->w, wide, conv->form, first));
    }
    if (!has_bias) {
        return CARRY_OK;
    }
    conv->bias = take(l, conv->out);
    (void)snprintf(full, sizeof full, "%s.bias", name);
    return read_tensor(l, &conv->bias, full, 1, &conv->out);
}

static carry_status read_blocks(loading *l, carry_tae_level *level, const char *side, int at) {
    for (int b = 0; b < CARRY_TAE_BLOCKS; b++) {
        for (int i = 0; i < 3; i++) {
            char name[48];
            (void)snprintf(name, sizeof name, "%s.%d.conv.%d", side, at + b, 2 * i);
            level->block[b][i] = (carry_tae_conv){.in = i == 0 ? 2 * level->width : level->width, .out = level->width};
            CARRY_TRY(read_conv(l, &level->block[b][i], name, level->width, true));
        }
    }
    return CARRY_OK;
}

/* Grow: [width * steps, width], a frame's rows after the other's. Pool: [width, steps * width], its columns. */
static carry_status read_steps(loading *l, carry_tae_level *level, const char *name, int64_t width, bool grow) {
    char full[64];
    int steps = level->steps;
    const int64_t shape[] = {grow ? steps * width : width, grow ? width : steps * width, 1, 1};
    const int64_t part[] = {width, width, 1, 1};
    carry_tensor wide = carry_view(l->wide[0], CARRY_F32, 4, shape);
    (void)snprintf(full, sizeof full, "%s.conv.weight", name);
    CARRY_TRY(read_tensor(l, &wide, full, 4, shape));
    for (int s = 0; s < steps; s++) {
        level->step[s] =
            (carry_tae_conv){.w = take(l, width * width), .form = CARRY_CONV2D_POINT, .in = width, .out = width};
        if (is_counting(l)) {
            continue;
        }
        for (int64_t out = 0; out < width; out++) {
            const float *row = l->wide[0] + (grow ? (s * width + out) * width : (out * steps + s) * width);
            memcpy(l->wide[1] + out * width, row, (size_t)width * sizeof *row);
        }
        CARRY_TRY(carry_conv2d_pack(l->ctx, level->step[s].w, carry_view(l->wide[1], CARRY_F32, 4, part),
                                    CARRY_CONV2D_POINT, width));
    }
    return CARRY_OK;
}

static carry_status read_decoder(loading *l, carry_tae_side *side) {
    int64_t width;
    CARRY_TRY(width_of(l, &width, "decoder.1"));
    side->first = (carry_tae_conv){.in = CARRY_LATENT_CHANNELS, .out = width};
    CARRY_TRY(read_conv(l, &side->first, "decoder.1", side->first.in, true));
    for (int i = 0; i < CARRY_TAE_LEVELS; i++) {
        char name[32];
        carry_tae_level *level = &side->level[i];
        level->width = width;
        level->steps = grows[i];
        CARRY_TRY(read_blocks(l, level, "decoder", 3 + 6 * i));
        (void)snprintf(name, sizeof name, "decoder.%d", 7 + 6 * i);
        CARRY_TRY(read_steps(l, level, name, width, true));
        (void)snprintf(name, sizeof name, "decoder.%d", 8 + 6 * i);
        CARRY_TRY(width_of(l, &width, name));
        level->conv = (carry_tae_conv){.form = CARRY_CONV2D_DOUBLE, .in = level->width, .out = width};
        CARRY_TRY(read_conv(l, &level->conv, name, level->width, false));
    }
    side->last = (carry_tae_conv){.in = width, .out = PIXEL_CHANNELS};
    return read_conv(l, &side->last, "decoder.22", width, true);
}

static carry_status read_encoder(loading *l, carry_tae_side *side) {
    int64_t before;
    CARRY_TRY(width_of(l, &before, "encoder.0"));
    side->first = (carry_tae_conv){.in = PIXEL_CHANNELS, .out = before};
    CARRY_TRY(read_conv(l, &side->first, "encoder.0", side->first.in, true));
    for (int i = 0; i < CARRY_TAE_LEVELS; i++) {
        char name[32];
        carry_tae_level *level = &side->level[i];
        level->steps = pools[i];
        (void)snprintf(name, sizeof name, "encoder.%d", 2 + 5 * i);
        CARRY_TRY(read_steps(l, level, name, before, false));
        (void)snprintf(name, sizeof name, "encoder.%d", 3 + 5 * i);
        CARRY_TRY(width_of(l, &level->width, name));
        level->conv = (carry_tae_conv){.form = CARRY_CONV2D_HALF, .in = before, .out = level->width};
        CARRY_TRY(read_conv(l, &level->conv, name, before, false));
        CARRY_TRY(read_blocks(l, level, "encoder", 4 + 5 * i));
        before = level->width;
    }
    side->last = (carry_tae_conv){.in = before, .out = CARRY_LATENT_CHANNELS};
    return read_conv(l, &side->last, "encoder.17", before, true);
}

/* All that is needed was found: what is more than that is named. */
static carry_status refuse_surplus(const loading *l) {
    for (int64_t i = 0; i < l->weights.count; i++) {
        const char *name = carry_weights_name(&l->weights, i);
        const carry_tensor *tensor = carry_weights_find(&l->weights, name);
        int at = 0;
        while (at < l->count && at < TENSORS && l->used[at] != tensor) {
            at++;
        }
        if (at == l->count || at == TENSORS) {
            char has[CARRY_SHAPE_TEXT];
            return carry_fail(l->ctx, CARRY_EFORMAT, "%s: the tensor %.80s of shape %s has no place in a TAEHV",
                              l->folder, name, carry_shape_text(has, tensor->rank, tensor->shape));
        }
    }
    return CARRY_OK;
}

static carry_status read_all(loading *l, carry_tae *tae) {
    CARRY_TRY(read_decoder(l, &tae->decoder));
    return read_encoder(l, &tae->encoder);
}

static carry_status load(loading *l, carry_tae *tae) {
    size_t bytes;
    CARRY_TRY(read_all(l, tae));
    CARRY_TRY(refuse_surplus(l));
    bool fits = carry_arena_total(&l->arena, &bytes);
    tae->memory = fits ? carry_aligned_new(bytes) : NULL;
    for (int i = 0; i < 2; i++) {
        l->wide[i] = malloc(l->widest * sizeof(float));
    }
    if (tae->memory == NULL || l->wide[0] == NULL || l->wide[1] == NULL) {
        return carry_fail(l->ctx, CARRY_EMEMORY, "no memory for the weights of %s", l->folder);
    }
    l->arena = carry_arena_over(tae->memory, bytes);
    return read_all(l, tae);
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

carry_status carry_tae_load(carry_ctx *ctx, carry_tae **tae, const char *folder) {
    loading l = {.ctx = ctx, .folder = folder};
    *tae = NULL;
    CARRY_TRY(check_config(ctx, folder));
    CARRY_TRY(carry_weights_open(ctx, &l.weights, folder));
    carry_tae *made = calloc(1, sizeof *made);
    carry_status status = made != NULL ? CARRY_OK : carry_fail(ctx, CARRY_EMEMORY, "no memory for %s", folder);
    if (status == CARRY_OK) {
        made->ctx = ctx;
        status = load(&l, made);
    }
    free(l.wide[0]);
    free(l.wide[1]);
    carry_weights_close(&l.weights);
    if (status != CARRY_OK) {
        carry_tae_free(made);
        return status;
    }
    *tae = made;
    return CARRY_OK;
}

void carry_tae_free(carry_tae *tae) {
    if (tae != NULL) {
        free(tae->memory);
        free(tae);
    }
}
