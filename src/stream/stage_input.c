/* Video input: frames are encoded by the same autoencoder and noised to the level of the first step,

       x = (1 - s) z + s noise,  with z the encoded frames and s the sampler's sigma of that level,

   so the result keeps as much of the video as the noise leaves (strength 1: nothing). The sigmas of the steps are
   those of the requested steps times the strength.

   Motion: with as much noise as a still chunk gets, the motion of a fast chunk is lost or smeared. With --strength S
   and --motion c, the strength of a chunk is S (1 - c m). m in [0, 1] is the root mean square difference of successive
   frames, divided by FAST and at most 1, averaged with that of earlier chunks so that it does not jump. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/context.h"
#include "core/memory.h"
#include "core/span.h"
#include "core/tensor.h"
#include "stream/stage.h"

#define FAST 0.25 /* root mean square difference of frames, with values in [0, 1], that counts as full motion */
#define KEPT 0.5  /* weight of the motion of the previous chunks */

/* Number of frames of the next chunk. If the autoencoder's first latent frame is a single frame, the first chunk has
   fewer. */
static int64_t frames_of(const carry_stage *s) {
    const int64_t ratio = carry_codec_ratio(s->input_codec);
    const int64_t all = s->options->chunk * ratio;
    return carry_codec_latent_frames(s->input_codec, all) == s->options->chunk ? all : all - (ratio - 1);
}

carry_status carry_stage_open_input(carry_stage *s, const char *codec) {
    const carry_pipeline_options *o = s->options;
    const carry_codec_size size = {.height = o->height,
                                   .width = o->width,
                                   .most = o->chunk + 1,
                                   .device = o->device,
                                   .dtype = o->device != 0 ? CARRY_BF16 : CARRY_F32};
    size_t pixels = 0;
    size_t latents = 0;
    CARRY_TRY(carry_codec_open(s->ctx, &s->input_codec, codec, &size));
    const int64_t frames = o->chunk * carry_codec_ratio(s->input_codec);
    const bool fits =
        carry_size_product(&pixels, (const int64_t[]){frames, 3, o->height, o->width}, 4, sizeof(float)) &&
        carry_size_product(&latents, (const int64_t[]){s->config.in_dim, o->chunk, s->frame}, 3, sizeof(float));
    s->input = fits ? carry_aligned_new(pixels) : NULL;
    s->before = fits ? carry_aligned_new(pixels / (size_t)frames) : NULL;
    s->encoded = fits ? carry_aligned_new(latents) : NULL;
    return s->input != NULL && s->before != NULL && s->encoded != NULL
               ? CARRY_OK
               : carry_fail(s->ctx, CARRY_EMEMORY, "out of memory: %lld frames of video", (long long)frames);
}

void carry_stage_close_input(carry_stage *s) {
    carry_codec_free(s->input_codec);
    free(s->input);
    free(s->before);
    free(s->encoded);
}

bool carry_stage_input_is_ready(const carry_stage *s) {
    return s->hooks->is_ready == NULL || s->hooks->is_ready(s->hooks->user, frames_of(s));
}

int carry_stage_weaken(carry_stage *s, int steps) {
    const double shift = s->options->shift;
    const double strength = s->options->strength * (1.0 - s->options->motion * s->motion);
    int kept = 0;
    for (int i = 0; i < steps; i++) {
        const double sigma = strength * carry_flow_sigma((double)s->step[i], shift);
        /* The level with that sigma. */
        int64_t level = (int64_t)(1000.0 * sigma / (shift - (shift - 1.0) * sigma) + 0.5);
        level = level > 1 ? level : 1;
        if (kept == 0 || level < s->step[kept - 1]) { /* levels must fall */
            s->step[kept++] = level;
        }
    }
    return kept;
}

/* If the video ends within a chunk, its last frame fills the rest. */
static carry_status read_frames(carry_stage *s, int64_t count, int64_t *got) {
    const int64_t each = 3 * s->options->height * s->options->width;
    const carry_tensor frames = carry_view_4d(s->input, CARRY_F32, count, 3, s->options->height, s->options->width);
    CARRY_TRY(s->hooks->source(s->hooks->user, s->ctx, frames, got));
    for (int64_t i = *got; *got > 0 && i < count; i++) {
        memcpy(s->input + i * each, s->input + (*got - 1) * each, (size_t)each * sizeof *s->input);
    }
    s->has_ended = s->has_ended || *got < count;
    return CARRY_OK;
}

double carry_stage_motion(const float *before, const float *frames, int64_t count, int64_t each) {
    double sum = 0.0;
    int64_t pairs = 0;
    for (int64_t i = 0; i < count; i++) {
        const float *a = i > 0 ? frames + (i - 1) * each : before;
        const float *b = frames + i * each;
        double squares = 0.0;
        for (int64_t k = 0; a != NULL && k < each; k++) {
            squares += (double)((b[k] - a[k]) * (b[k] - a[k]));
        }
        sum += squares / (double)each;
        pairs += a != NULL;
    }
    const double share = pairs > 0 ? sqrt(sum / (double)pairs) / FAST : 0.0;
    return share < 1.0 ? share : 1.0; /* NaN counts as 1 */
}

/* Updates the motion with that of the chunk whose frames were read. */
static void follow_motion(carry_stage *s, int64_t count) {
    const int64_t each = 3 * s->options->height * s->options->width;
    const bool goes_on = s->has_before && s->chunk_of > 0;
    const double now = carry_stage_motion(goes_on ? s->before : NULL, s->input, count, each);
    s->motion = goes_on ? KEPT * s->motion + (1.0 - KEPT) * now : now;
    memcpy(s->before, s->input + (count - 1) * each, (size_t)each * sizeof *s->before);
    s->has_before = true;
}

carry_status carry_stage_read(carry_stage *s) {
    const int64_t count = s->input_codec != NULL ? frames_of(s) : 0;
    int64_t got = 0;
    if (s->input_codec == NULL) {
        return CARRY_OK;
    }
    CARRY_TRY(read_frames(s, count, &got));
    s->is_empty = got == 0;
    if (!s->is_empty && s->options->motion > 0.0) {
        follow_motion(s, count);
    }
    return CARRY_OK;
}

/* Makes the initial noise of the next chunk in advance; it is made again if the seed changes. Otherwise the mesh
   would wait some milliseconds for it. */
carry_status carry_stage_prepare(carry_stage *s) {
    if (s->has_noise && s->noise_of == s->chunk_index && s->noise_seed == s->state.seed) {
        return CARRY_OK;
    }
    s->has_noise = false; /* until the noise is made */
    const carry_tensor noise = carry_view_1d(s->noise, CARRY_BF16, s->piece);
    CARRY_TRY(carry_random_normal(s->ctx, noise, s->state.seed, carry_generator_stream(s->chunk_index, 0), 0.0f, 1.0f));
    s->has_noise = true;
    s->noise_of = s->chunk_index;
    s->noise_seed = s->state.seed;
    return CARRY_OK;
}

carry_status carry_stage_start(carry_stage *s, carry_tensor latents, double level) {
    CARRY_TRY(carry_stage_prepare(s));
    s->has_noise = s->input_codec == NULL; /* otherwise the noise is overwritten */
    if (s->input_codec == NULL) {
        return CARRY_OK;
    }
    CARRY_SPAN(s->ctx, "stream", "encode");
    const int64_t count = frames_of(s);
    if (s->is_empty) {
        return CARRY_OK;
    }
    const carry_tensor z =
        carry_view_4d(s->encoded, CARRY_F32, s->config.in_dim, s->options->chunk, s->height, s->width);
    CARRY_TRY(carry_codec_encode(s->input_codec, z,
                                 carry_view_4d(s->input, CARRY_F32, count, 3, s->options->height, s->options->width)));
    const float sigma = (float)carry_flow_sigma(level, s->options->shift);
    uint16_t *bits = latents.data;
    for (int64_t i = 0; i < s->piece; i++) {
        bits[i] = carry_bf16_from_f32((1.0f - sigma) * s->encoded[i] + sigma * carry_f32_from_bf16(bits[i]));
    }
    return CARRY_OK;
}
