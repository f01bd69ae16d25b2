/* Codecs: finding the kind of a folder, the position of a stream, and the checks that all kinds need. */
#include "model/codec/codec.h"

#include <inttypes.h>
#include <math.h>
#include <stdbool.h>
#include <stdlib.h>

#include "carry/device.h"
#include "carry/ops.h"
#include "core/error.h"
#include "core/file.h"
#include "core/span.h"
#include "model/codec/codec_weights.h"
#include "core/json.h"
#include "ops/nn.h"

#define CONFIG_LIMIT ((size_t)4 << 20)
#define SIDE_LIMIT 16384   /* pixels: larger than any real picture; products of sizes do not overflow */
#define FRAMES_LIMIT 65536 /* latent frames of one call */

struct carry_codec {
    carry_ctx *ctx;
    const carry_codec_kind *kind;
    void *opened;
    carry_codec_size size;
    bool decoding;   /* a stream has begun: its first latent frame was decoded */
    bool encoding;   /* the same for encoding */
    bool ended;      /* the last frames encoded did not fill a latent frame: no more may follow */
    void *staged[2]; /* on the codec's device: latents and frames of calls whose tensors are elsewhere; NULL: not
                        allocated yet */
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
        status = carry_fail(ctx, CARRY_EUNSUPPORTED,
                            "%s has %s for \"_class_name\": a codec is \"TAEHV\", "
                            "\"AutoencoderKLWan\" or \"DCT\"",
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
    carry_codec_size own = *size;
    if (!kind->on_gpus) {
        own.device = 0;
        own.dtype = CARRY_F32;
    }
    if (own.dtype != CARRY_F32 && (own.dtype != CARRY_BF16 || own.device == 0)) {
        return carry_fail(ctx, CARRY_EDTYPE, "a codec computes in f32, or in bf16 on a GPU, and not in %s%s",
                          carry_dtype_name(own.dtype), own.device == 0 ? " on the CPU" : "");
    }
    CARRY_TRY(kind->open(ctx, &opened, folder, &own));
    *codec = malloc(sizeof **codec);
    if (*codec == NULL) {
        kind->close(opened);
        return carry_fail(ctx, CARRY_EMEMORY, "out of memory: a codec");
    }
    **codec = (carry_codec){.ctx = ctx, .kind = kind, .opened = opened, .size = own};
    return CARRY_OK;
}

void carry_codec_free(carry_codec *codec) {
    if (codec != NULL) {
        codec->kind->close(codec->opened);
        carry_codec_memory_free(codec->ctx, codec->size.device, codec->staged[0]);
        carry_codec_memory_free(codec->ctx, codec->size.device, codec->staged[1]);
        free(codec);
    }
}

const char *carry_codec_name(const carry_codec *codec) {
    return codec->kind->name;
}

int carry_codec_device(const carry_codec *codec) {
    return codec->size.device;
}

void carry_codec_reset(carry_codec *codec) {
    codec->decoding = false;
    codec->encoding = false;
    codec->ended = false;
    codec->kind->reset(codec->opened);
}

int64_t carry_codec_frames(const carry_codec *codec, int64_t latent_frames) {
    const carry_codec_kind *kind = codec->kind;
    return latent_frames < 1 ? 0 : latent_frames * kind->ratio - (codec->decoding ? 0 : kind->ratio - kind->first);
}

/* The maximum number of frames that the next encode takes for `count` latent frames. */
static int64_t frames_taken(const carry_codec *codec, int64_t count) {
    const carry_codec_kind *kind = codec->kind;
    return count * kind->ratio - (codec->encoding ? 0 : kind->ratio - kind->encode_first);
}

int64_t carry_codec_latent_frames(const carry_codec *codec, int64_t frames) {
    const int64_t ratio = codec->kind->ratio;
    const int64_t missing = codec->encoding ? 0 : ratio - codec->kind->encode_first;
    return frames < 1 ? 0 : (frames + missing) / ratio + ((frames + missing) % ratio != 0);
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

/* Checks the shapes of both tensors, for n frames and `count` latent frames, and that each is in host memory or on the
   codec's device. Frames are absent if bytes are wanted. Latents that are decoded on a GPU may be f32, bf16 or f16;
   other tensors must be f32. */
static carry_status check_tensors(const carry_codec *codec, const carry_tensor *frames, int64_t n,
                                  const carry_tensor *latents, int64_t count, bool decodes) {
    const carry_codec_size *size = &codec->size;
    const int64_t pictures[] = {n, 3, size->height, size->width};
    const int64_t coded[] = {CARRY_LATENT_CHANNELS, count, size->height / CARRY_LATENT_BLOCK,
                             size->width / CARRY_LATENT_BLOCK};
    const bool there = size->device != 0 && latents->device == size->device;
    if (there && decodes) {
        CARRY_TRY(carry_expect_activation(codec->ctx, "latents", latents, 4, coded, size->device));
    } else {
        CARRY_TRY(carry_expect_f32(codec->ctx, "latents", latents, 4, coded, there ? size->device : 0));
    }
    if (!carry_is_here(frames)) {
        return CARRY_OK;
    }
    return carry_expect_f32(codec->ctx, "frames", frames, 4, pictures,
                            size->device != 0 && frames->device == size->device ? size->device : 0);
}

/* Gives a tensor of this shape on the codec's device: the tensor itself, or staging memory (0: for latents, 1: for
   frames). */
static carry_status stage(carry_codec *codec, carry_tensor *staged, carry_tensor tensor, int which) {
    const carry_codec_size *size = &codec->size;
    const int64_t area = size->height * size->width;
    const int64_t each = which == 1 ? codec->kind->ratio * 3 * area
                                    : CARRY_LATENT_CHANNELS * area / (CARRY_LATENT_BLOCK * CARRY_LATENT_BLOCK);
    *staged = tensor;
    if (tensor.device == size->device || tensor.data == NULL) {
        return CARRY_OK;
    }
    if (codec->staged[which] == NULL) {
        CARRY_TRY(carry_device_alloc(codec->ctx, &codec->staged[which], size->device,
                                     (size_t)(size->most * each) * sizeof(float)));
    }
    *staged = carry_view_on(size->device, codec->staged[which], CARRY_F32, tensor.rank, tensor.shape);
    return CARRY_OK;
}

/* Copies back to host memory and waits, so that the caller may read it at once. */
static carry_status fetch(carry_codec *codec, carry_tensor to, carry_tensor from) {
    const int device = codec->size.device;
    if (to.data == from.data) {
        return CARRY_OK;
    }
    CARRY_TRY(carry_copy(codec->ctx, to, from));
    return carry_stream_wait(codec->ctx, device, carry_ctx_stream(codec->ctx, device));
}

static carry_status decode(carry_codec *codec, carry_codec_output to, carry_tensor latents) {
    const carry_tensor frames = to.frames;
    carry_tensor from;
    CARRY_TRY(stage(codec, &from, latents, 0));
    CARRY_TRY(stage(codec, &to.frames, frames, 1));
    if (from.data != latents.data) {
        CARRY_TRY(carry_copy(codec->ctx, from, latents));
    }
    CARRY_TRY(codec->kind->decode(codec->opened, &to, from));
    codec->decoding = true;
    return fetch(codec, frames, to.frames);
}

carry_status carry_codec_decode(carry_codec *codec, carry_tensor frames, carry_tensor latents) {
    CARRY_SPAN(codec->ctx, "model", "codec decode");
    CARRY_TRY(carry_expect_rank(codec->ctx, "latents", &latents, 4));
    const int64_t count = latents.shape[1];
    CARRY_TRY(check_latent_frames(codec, count));
    if (!carry_is_here(&frames)) {
        return carry_fail(codec->ctx, CARRY_EARGUMENT, "frames has no data");
    }
    CARRY_TRY(check_tensors(codec, &frames, carry_codec_frames(codec, count), &latents, count, true));
    const carry_codec_output to = {.frames = frames, .height = codec->size.height, .width = codec->size.width};
    return decode(codec, to, latents);
}

/* A kind that only runs on the CPU decodes to planes: converts them to bytes. */
static carry_status bytes_of_planes(carry_codec *codec, unsigned char *bytes, carry_tensor latents) {
    const int64_t n = carry_codec_frames(codec, latents.shape[1]);
    const int64_t area = codec->size.height * codec->size.width;
    float *planes = carry_aligned_new((size_t)(n * 3 * area) * sizeof *planes);
    if (planes == NULL) {
        return carry_fail(codec->ctx, CARRY_EMEMORY, "out of memory: %" PRId64 " frames", n);
    }
    const carry_tensor frames = carry_view_4d(planes, CARRY_F32, n, 3, codec->size.height, codec->size.width);
    const carry_status status = decode(codec, (carry_codec_output){.frames = frames}, latents);
    for (int64_t i = 0; status == CARRY_OK && i < n * area; i++) {
        for (int64_t c = 0; c < 3; c++) {
            const float value = planes[(i / area * 3 + c) * area + i % area];
            bytes[3 * i + c] = (unsigned char)lrintf(255.0f * (value > 0.0f ? (value < 1.0f ? value : 1.0f) : 0.0f));
        }
    }
    free(planes);
    return status;
}

carry_status carry_codec_decode_bytes(carry_codec *codec, unsigned char *bytes, carry_tensor latents) {
    CARRY_SPAN(codec->ctx, "model", "codec decode");
    CARRY_TRY(carry_expect_rank(codec->ctx, "latents", &latents, 4));
    const int64_t count = latents.shape[1];
    const carry_tensor none = {0};
    CARRY_TRY(check_latent_frames(codec, count));
    CARRY_TRY(check_tensors(codec, &none, 0, &latents, count, true));
    if (bytes == NULL) {
        return carry_fail(codec->ctx, CARRY_EARGUMENT, "bytes is NULL");
    }
    if (!codec->kind->on_gpus) {
        return bytes_of_planes(codec, bytes, latents);
    }
    const carry_codec_output to = {.bytes = bytes, .height = codec->size.height, .width = codec->size.width};
    return decode(codec, to, latents);
}

carry_status carry_codec_encode(carry_codec *codec, carry_tensor latents, carry_tensor frames) {
    CARRY_SPAN(codec->ctx, "model", "codec encode");
    CARRY_TRY(carry_expect_rank(codec->ctx, "frames", &frames, 4));
    const int64_t n = frames.shape[0];
    const int64_t count = carry_codec_latent_frames(codec, n);
    carry_tensor from;
    carry_tensor to;
    CARRY_TRY(check_latent_frames(codec, count));
    CARRY_TRY(check_tensors(codec, &frames, n, &latents, count, false));
    if (codec->ended) {
        return carry_fail(codec->ctx, CARRY_EARGUMENT,
                          "the frames before these did not fill a latent frame of %" PRId64
                          ", which ends a stream: carry_codec_reset starts the next one",
                          codec->kind->ratio);
    }
    CARRY_TRY(stage(codec, &from, frames, 1));
    CARRY_TRY(stage(codec, &to, latents, 0));
    if (from.data != frames.data) {
        CARRY_TRY(carry_copy(codec->ctx, from, frames));
    }
    CARRY_TRY(codec->kind->encode(codec->opened, to, from));
    codec->ended = n != frames_taken(codec, count);
    codec->encoding = true;
    return fetch(codec, latents, to);
}

carry_tensor carry_latent_frame(carry_tensor latents, int64_t index) {
    carry_tensor frame = latents;
    frame.data = (char *)latents.data + (size_t)(index * latents.stride[1]) * carry_dtype_size(latents.dtype);
    frame.rank = 3;
    frame.shape[1] = latents.shape[2];
    frame.shape[2] = latents.shape[3];
    frame.stride[1] = latents.stride[2];
    frame.stride[2] = latents.stride[3];
    return frame;
}

carry_tensor carry_codec_frame(carry_tensor frames, int64_t index) {
    const carry_tensor one = carry_slice(frames, index, 1);
    return carry_reshape_3d(one, frames.shape[1], frames.shape[2], frames.shape[3]);
}

carry_status carry_codec_put(carry_ctx *ctx, const carry_codec_output *to, int64_t index, carry_tensor picture,
                             carry_picture_map map) {
    map.clamped = true;
    if (carry_is_here(&to->frames)) {
        return carry_picture_write(ctx, carry_codec_frame(to->frames, index), picture, map);
    }
    return carry_picture_bytes(ctx, to->bytes + index * 3 * to->height * to->width, picture, map);
}

carry_status carry_codec_pictures(carry_ctx *ctx, void **memory, int device, size_t bytes, int64_t height,
                                  int64_t width) {
    if (device != 0) {
        CARRY_TRY(carry_device_alloc(ctx, memory, device, bytes));
        const carry_status status = carry_device_fill(ctx, *memory, device, 0, bytes, carry_ctx_stream(ctx, device));
        if (status != CARRY_OK) {
            carry_device_free(ctx, device, *memory);
            *memory = NULL;
        }
        return status;
    }
    *memory = calloc(bytes, 1);
    if (*memory == NULL) {
        return carry_fail(ctx, CARRY_EMEMORY,
                          "out of memory: streaming pictures of %" PRId64 " x %" PRId64 " (%zu bytes)", height, width,
                          bytes);
    }
    return CARRY_OK;
}
