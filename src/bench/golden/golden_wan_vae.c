/* Compares Wan's autoencoder with vectors from other programs: a folder whose expected.safetensors holds latents [1,
   16, F, h, w] as the decoder takes them, the video [1, 3, n, 8h, 8w] in [-1, 1] that they decode to (decoded), and
   a video with the mean of its encoded latents (encoded_mean). Everything goes through the codec, whose latents are
   normalized and whose frames are in [0, 1]: in one call, and one latent frame at a time. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "bench/golden/golden.h"
#include "core/error.h"
#include "core/file.h"
#include "core/tensor.h"
#include "model/codec/wan_vae.h"
#include "file/safetensors.h"

#define BOUND 1e-5
/* bf16 keeps 8 bits, and there are some forty convolutions and norms in a row: 0.010 to 0.015 was measured. */
#define BOUND_BF16 5e-2
#define CHANNELS CARRY_LATENT_CHANNELS

typedef struct golden_wan {
    carry_ctx *ctx;
    const char *folder, *name;
    void (*report)(void *user, const carry_golden_line *line);
    void *user;
    int device;
    carry_dtype dtype;
    carry_wan_config config;
    carry_codec *codec;
    const carry_tensor *latents, *decoded, *video, *mean;
    float *normal; /* latents in the codec's normalization */
    float *frames; /* [n, 3, H, W] in [0, 1] */
    float *turned; /* the tensor under test in the layout of the file */
} golden_wan;

static void tell(const golden_wan *g, const char *tensor, const carry_tensor *wanted) {
    const carry_tensor got = carry_view(g->turned, CARRY_F32, wanted->rank, wanted->shape);
    g->report(g->user, &(carry_golden_line){.name = g->name,
                                            .method = g->device != 0 ? "wan, GPU" : "wan",
                                            .tensor = tensor,
                                            .dtype = g->dtype,
                                            .error = carry_golden_error(wanted, &got),
                                            .bound = g->dtype == CARRY_F32 ? BOUND : BOUND_BF16});
}

/* Converts between [C, n, area] and [n, C, area], with v = scale v + shift. */
static void turn(float *to, const float *from, int64_t outer, int64_t inner, int64_t area, float scale, float shift) {
    for (int64_t i = 0; i < outer * inner * area; i++) {
        const int64_t item = i / area;
        to[(item % inner * outer + item / inner) * area + i % area] = scale * from[i] + shift;
    }
}

static carry_tensor latents_at(const golden_wan *g, float *data, int64_t count) {
    return carry_view_4d(data, CARRY_F32, CHANNELS, count, g->latents->shape[3], g->latents->shape[4]);
}

static carry_tensor frames_at(const golden_wan *g, int64_t first, int64_t count) {
    const int64_t *shape = g->decoded->shape;
    return carry_view_4d(g->frames + first * 3 * shape[3] * shape[4], CARRY_F32, count, 3, shape[3], shape[4]);
}

static void tell_decoded(const golden_wan *g, const char *name) {
    const int64_t *shape = g->decoded->shape;
    turn(g->turned, g->frames, shape[2], 3, shape[3] * shape[4], 2.0f, -1.0f);
    tell(g, name, g->decoded);
}

/* Decodes one latent frame per call. */
static carry_status stream(golden_wan *g) {
    const int64_t count = g->latents->shape[2];
    const int64_t area = g->latents->shape[3] * g->latents->shape[4];
    int64_t shown = 0;
    carry_codec_reset(g->codec);
    for (int64_t f = 0; f < count; f++) {
        const int64_t n = carry_codec_frames(g->codec, 1);
        for (int64_t c = 0; c < CHANNELS; c++) {
            memcpy(g->turned + c * area, g->normal + (c * count + f) * area, (size_t)area * sizeof *g->turned);
        }
        CARRY_TRY(carry_codec_decode(g->codec, frames_at(g, shown, n), latents_at(g, g->turned, 1)));
        shown += n;
    }
    tell_decoded(g, "streamed");
    return CARRY_OK;
}

static carry_status check(golden_wan *g) {
    const int64_t *shape = g->decoded->shape;
    const int64_t count = g->latents->shape[2];
    const int64_t area = g->latents->shape[3] * g->latents->shape[4];
    const carry_codec_size size = {
        .height = shape[3], .width = shape[4], .most = count, .device = g->device, .dtype = g->dtype};
    CARRY_TRY(carry_codec_open(g->ctx, &g->codec, g->folder, &size));
    const float *raw = g->latents->data;
    for (int64_t i = 0; i < CHANNELS * count * area; i++) {
        const int64_t c = i / (count * area);
        g->normal[i] = (raw[i] - g->config.mean[c]) / g->config.deviation[c];
    }
    CARRY_TRY(carry_codec_decode(g->codec, frames_at(g, 0, shape[2]), latents_at(g, g->normal, count)));
    tell_decoded(g, "decoded");
    CARRY_TRY(stream(g));
    turn(g->frames, g->video->data, 3, shape[2], shape[3] * shape[4], 0.5f, 0.5f);
    CARRY_TRY(carry_codec_encode(g->codec, latents_at(g, g->turned, count), frames_at(g, 0, shape[2])));
    for (int64_t i = 0; i < CHANNELS * count * area; i++) {
        const int64_t c = i / (count * area);
        g->turned[i] = g->turned[i] * g->config.deviation[c] + g->config.mean[c];
    }
    tell(g, "encoded_mean", g->mean);
    carry_codec_free(g->codec);
    g->codec = NULL;
    return CARRY_OK;
}

static carry_status find(const golden_wan *g, const carry_safetensors *file, const carry_tensor **found,
                         const char *name) {
    char has[CARRY_SHAPE_TEXT];
    const carry_tensor *t = carry_safetensors_find(file, name);
    if (t == NULL || t->dtype != CARRY_F32 || t->rank != 5 || t->shape[0] != 1 || carry_tensor_count(t) < 1) {
        return carry_fail(g->ctx, CARRY_EFORMAT,
                          "%s: expected.safetensors has %s %s, where f32 of shape [1, ...] and rank 5 is needed",
                          g->folder, name, t != NULL ? carry_shape_text(has, t->rank, t->shape) : "not");
    }
    *found = t;
    return CARRY_OK;
}

static carry_status open_case(golden_wan *g, const carry_safetensors *file) {
    CARRY_TRY(carry_wan_config_read(g->ctx, &g->config, g->folder));
    CARRY_TRY(find(g, file, &g->latents, "latents"));
    CARRY_TRY(find(g, file, &g->decoded, "decoded"));
    CARRY_TRY(find(g, file, &g->video, "video"));
    CARRY_TRY(find(g, file, &g->mean, "encoded_mean"));
    const int64_t *l = g->latents->shape;
    const int64_t coded[] = {1, CHANNELS, l[2], l[3], l[4]};
    const int64_t pictures[] = {1, 3, CARRY_WAN_RATIO * (l[2] - 1) + 1, CARRY_LATENT_BLOCK * l[3],
                                CARRY_LATENT_BLOCK * l[4]};
    CARRY_TRY(carry_tensor_expect(g->ctx, "latents", g->latents, 5, coded));
    CARRY_TRY(carry_tensor_expect(g->ctx, "encoded_mean", g->mean, 5, coded));
    CARRY_TRY(carry_tensor_expect(g->ctx, "decoded", g->decoded, 5, pictures));
    CARRY_TRY(carry_tensor_expect(g->ctx, "video", g->video, 5, pictures));
    const size_t count = (size_t)carry_tensor_count(g->decoded);
    g->normal = calloc((size_t)carry_tensor_count(g->latents), sizeof *g->normal);
    g->frames = calloc(count, sizeof *g->frames);
    g->turned = calloc(count, sizeof *g->turned);
    return g->normal != NULL && g->frames != NULL && g->turned != NULL
               ? CARRY_OK
               : carry_fail(g->ctx, CARRY_EMEMORY, "out of memory: %s", g->folder);
}

carry_status carry_golden_wan_vae(carry_ctx *ctx, const char *folder, const char *name, int device,
                                  void (*report)(void *user, const carry_golden_line *line), void *user) {
    golden_wan g = {.ctx = ctx, .folder = folder, .name = name, .report = report, .user = user, .device = device};
    carry_safetensors expected;
    char path[CARRY_FILE_PATH];
    CARRY_TRY(carry_file_in(ctx, path, folder, "expected.safetensors"));
    CARRY_TRY(carry_safetensors_open(ctx, &expected, path));
    carry_status status = open_case(&g, &expected);
    status = status == CARRY_OK ? check(&g) : status;
    if (status == CARRY_OK && device != 0) {
        g.dtype = CARRY_BF16;
        status = check(&g);
    }
    carry_codec_free(g.codec);
    carry_safetensors_close(&expected);
    free(g.normal);
    free(g.frames);
    free(g.turned);
    return status;
}
