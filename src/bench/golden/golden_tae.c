/* Compares a tiny video autoencoder with vectors from other programs: a folder whose expected.safetensors holds
   latents [B, F, 16, h, w] and the frames [B, n, 3, 8h, 8w] that they decode to, in one call (frames) and as a
   stream (stream0, stream1, ...), and pixels [B, n, 3, H, W] with their encoding (encoded). The number of latent
   frames of each part of the stream follows from its frames: the first latent frame gives 1 frame, the others 4
   each. Missing tensors are not checked, but at least one must exist. Everything goes through the codec, as in a
   stream. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/error.h"
#include "core/file.h"
#include "core/memory.h"
#include "core/tensor.h"
#include "bench/golden/golden.h"
#include "model/codec/codec.h"
#include "file/safetensors.h"

#define BOUND 1e-5
/* bf16 keeps 8 bits, and there are some thirty convolutions in a row: 0.004 to 0.006 was measured. */
#define BOUND_BF16 2e-2
#define CHANNELS 16

typedef struct golden_tae {
    carry_ctx *ctx;
    const char *folder, *name;
    void (*report)(void *user, const carry_golden_line *line);
    void *user;
    carry_safetensors expected;
    int device;
    carry_dtype dtype; /* type that the codec computes in */
    carry_codec *codec;
    float *made;    /* the tensor under test */
    float *latents; /* [16, F, h, w], the layout of a codec */
    int checked;
} golden_tae;

/* Finds a tensor; *found is NULL if it does not exist. */
static carry_status find(const golden_tae *g, const carry_tensor **found, const char *name) {
    char has[CARRY_SHAPE_TEXT];
    *found = carry_safetensors_find(&g->expected, name);
    const carry_tensor *t = *found;
    if (t != NULL && (t->dtype != CARRY_F32 || t->rank != 5 || carry_tensor_count(t) < 1)) {
        return carry_fail(g->ctx, CARRY_EFORMAT,
                          "expected.safetensors: %s is %s of shape %s where f32 of rank 5 is needed", name,
                          carry_dtype_name(t->dtype), carry_shape_text(has, t->rank, t->shape));
    }
    return CARRY_OK;
}

/* Allocates memory for a tensor like this one, filled with NaN so that elements that are not written are noticed. */
static carry_status make(const golden_tae *g, float **made, const carry_tensor *like) {
    size_t bytes = (size_t)carry_tensor_count(like) * sizeof(float); /* cannot overflow: it is in memory already */
    free(*made);
    *made = carry_aligned_new(bytes);
    if (*made == NULL) {
        return carry_fail(g->ctx, CARRY_EMEMORY, "out of memory: the case %s", g->name);
    }
    memset(*made, 0xff, bytes);
    return CARRY_OK;
}

static void tell(golden_tae *g, const char *tensor, const carry_tensor *wanted, float *made) {
    carry_tensor got = carry_view(made, CARRY_F32, wanted->rank, wanted->shape);
    g->checked++;
    g->report(g->user, &(carry_golden_line){.name = g->name,
                                            .method = g->device != 0 ? "tae, GPU" : "tae",
                                            .tensor = tensor,
                                            .dtype = g->dtype,
                                            .error = carry_golden_error(wanted, &got),
                                            .bound = g->dtype == CARRY_F32 ? BOUND : BOUND_BF16});
}

/* A view of `count` frames of video b in a tensor of rank 5, starting at frame `from`. */
static carry_tensor frames_at(const carry_tensor *t, float *data, int64_t b, int64_t from, int64_t count) {
    return carry_view_4d(data + b * t->stride[0] + from * t->stride[1], CARRY_F32, count, t->shape[2], t->shape[3],
                         t->shape[4]);
}

/* Converts between frames of channels, the layout of the file, and channels of frames, the layout of a codec. */
static void transpose(float *to, const float *from, int64_t outer, int64_t inner, int64_t area) {
    for (int64_t i = 0; i < outer * inner; i++) {
        memcpy(to + (i % inner * outer + i / inner) * area, from + i * area, (size_t)area * sizeof *to);
    }
}

static carry_status decode_part(golden_tae *g, const carry_tensor *latents, int64_t b, int64_t from, int64_t count,
                                carry_tensor frames) {
    carry_tensor part = frames_at(latents, latents->data, b, from, count);
    transpose(g->latents, part.data, count, CHANNELS, part.shape[2] * part.shape[3]);
    return carry_codec_decode(g->codec, frames,
                              carry_view_4d(g->latents, CARRY_F32, CHANNELS, count, part.shape[2], part.shape[3]));
}

static carry_status check_batch(const golden_tae *g, const char *name, const carry_tensor *t, const carry_tensor *with,
                                const char *with_name) {
    if (t->shape[0] != with->shape[0]) {
        return carry_fail(g->ctx, CARRY_EFORMAT, "expected.safetensors: %s is of %" PRId64 " videos and %s of %" PRId64,
                          name, t->shape[0], with_name, with->shape[0]);
    }
    return CARRY_OK;
}

static carry_status check_whole(golden_tae *g, const carry_tensor *latents, const carry_tensor *frames) {
    CARRY_TRY(check_batch(g, "frames", frames, latents, "latents"));
    CARRY_TRY(make(g, &g->made, frames));
    for (int64_t b = 0; b < frames->shape[0]; b++) {
        carry_codec_reset(g->codec);
        CARRY_TRY(decode_part(g, latents, b, 0, latents->shape[1], frames_at(frames, g->made, b, 0, frames->shape[1])));
    }
    tell(g, "frames", frames, g->made);
    return CARRY_OK;
}

static carry_status find_part(const golden_tae *g, const carry_tensor **part, char name[32], int index) {
    (void)snprintf(name, 32, "stream%d", index);
    return find(g, part, name);
}

/* Decodes one video as a stream. Its parts are stored in `made` one after the other. */
static carry_status stream(golden_tae *g, const carry_tensor *latents, int64_t b) {
    const carry_tensor *part;
    char name[32];
    int64_t from = 0;
    float *made = g->made;
    carry_codec_reset(g->codec);
    for (int i = 0; find_part(g, &part, name, i) == CARRY_OK && part != NULL; i++) {
        int64_t left = latents->shape[1] - from;
        int64_t count = (part->shape[1] + 3) / 4;
        CARRY_TRY(check_batch(g, name, part, latents, "latents"));
        if (count > left || carry_codec_frames(g->codec, count) != part->shape[1]) {
            return carry_fail(g->ctx, CARRY_EFORMAT,
                              "expected.safetensors: %s has %" PRId64
                              " frames: not those of whole latent frames, or of more than the %" PRId64
                              " that are left",
                              name, part->shape[1], left);
        }
        CARRY_TRY(decode_part(g, latents, b, from, count, frames_at(part, made, b, 0, part->shape[1])));
        from += count;
        made += carry_tensor_count(part);
    }
    return CARRY_OK;
}

static carry_status check_streams(golden_tae *g, const carry_tensor *latents) {
    const carry_tensor *part = NULL;
    char name[32];
    carry_tensor all = carry_view_1d(NULL, CARRY_F32, 0);
    for (int i = 0; i == 0 || part != NULL; i++) {
        CARRY_TRY(find_part(g, &part, name, i));
        all.shape[0] += part != NULL ? carry_tensor_count(part) : 0;
    }
    CARRY_TRY(make(g, &g->made, &all));
    for (int64_t b = 0; b < latents->shape[0]; b++) {
        CARRY_TRY(stream(g, latents, b));
    }
    float *made = g->made;
    for (int i = 0; find_part(g, &part, name, i) == CARRY_OK && part != NULL; i++) {
        tell(g, name, part, made);
        made += carry_tensor_count(part);
    }
    return CARRY_OK;
}

static carry_status check_encoded(golden_tae *g, const carry_tensor *pixels, const carry_tensor *encoded) {
    int64_t area = encoded->shape[3] * encoded->shape[4];
    CARRY_TRY(check_batch(g, "encoded", encoded, pixels, "pixels"));
    CARRY_TRY(make(g, &g->made, encoded));
    CARRY_TRY(make(g, &g->latents, encoded));
    for (int64_t b = 0; b < pixels->shape[0]; b++) {
        carry_tensor latents = carry_view_4d(g->latents, CARRY_F32, encoded->shape[2], encoded->shape[1],
                                             encoded->shape[3], encoded->shape[4]);
        carry_codec_reset(g->codec);
        CARRY_TRY(carry_codec_encode(g->codec, latents, frames_at(pixels, pixels->data, b, 0, pixels->shape[1])));
        transpose(g->made + b * encoded->stride[0], g->latents, CHANNELS, encoded->shape[1], area);
    }
    tell(g, "encoded", encoded, g->made);
    return CARRY_OK;
}

static carry_status open_codec(golden_tae *g, int64_t height, int64_t width, int64_t most) {
    const carry_codec_size size = {
        .height = height, .width = width, .most = most, .device = g->device, .dtype = g->dtype};
    carry_codec_free(g->codec);
    return carry_codec_open(g->ctx, &g->codec, g->folder, &size);
}

static carry_status check_channels(const golden_tae *g, const char *name, const carry_tensor *t) {
    if (t->shape[2] != CHANNELS) {
        return carry_fail(g->ctx, CARRY_EFORMAT,
                          "expected.safetensors: %s has %" PRId64 " channels where %d are needed", name, t->shape[2],
                          CHANNELS);
    }
    return CARRY_OK;
}

static carry_status run_case(golden_tae *g) {
    const carry_tensor *latents;
    const carry_tensor *frames;
    const carry_tensor *pixels;
    const carry_tensor *encoded;
    CARRY_TRY(find(g, &latents, "latents"));
    CARRY_TRY(find(g, &frames, "frames"));
    CARRY_TRY(find(g, &pixels, "pixels"));
    CARRY_TRY(find(g, &encoded, "encoded"));
    if (latents != NULL) {
        CARRY_TRY(check_channels(g, "latents", latents));
        CARRY_TRY(open_codec(g, 8 * latents->shape[3], 8 * latents->shape[4], latents->shape[1]));
        CARRY_TRY(make(g, &g->latents, latents));
        if (frames != NULL) {
            CARRY_TRY(check_whole(g, latents, frames));
        }
        CARRY_TRY(check_streams(g, latents));
    }
    if (pixels != NULL && encoded != NULL) {
        CARRY_TRY(check_channels(g, "encoded", encoded));
        CARRY_TRY(open_codec(g, pixels->shape[3], pixels->shape[4], (pixels->shape[1] + 3) / 4));
        CARRY_TRY(check_encoded(g, pixels, encoded));
    }
    if (g->checked == 0) {
        return carry_fail(g->ctx, CARRY_EFORMAT,
                          "expected.safetensors has neither latents with frames or stream0, nor pixels with encoded");
    }
    return CARRY_OK;
}

carry_status carry_golden_tae(carry_ctx *ctx, const char *folder, const char *name, int device,
                              void (*report)(void *user, const carry_golden_line *line), void *user) {
    golden_tae g = {.ctx = ctx, .folder = folder, .name = name, .report = report, .user = user, .device = device};
    char path[CARRY_FILE_PATH];
    CARRY_TRY(carry_file_in(ctx, path, folder, "expected.safetensors"));
    CARRY_TRY(carry_safetensors_open(ctx, &g.expected, path));
    carry_status status = run_case(&g);
    if (status == CARRY_OK && device != 0) {
        g.dtype = CARRY_BF16;
        status = run_case(&g);
    }
    carry_codec_free(g.codec);
    carry_safetensors_close(&g.expected);
    free(g.made);
    free(g.latents);
    return status;
}
