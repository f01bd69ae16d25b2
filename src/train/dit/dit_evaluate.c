/* Generates streams for prompts and judges them. */
#include "train/dit/dit_evaluate.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/error.h"
#include "core/memory.h"
#include "core/tensor.h"
#include "model/codec/codec.h"
#include "model/dit/words.h"

#define FALLBACK_STEPS 4

struct carry_dit_streamer {
    carry_dit *dit;
    carry_codec *codec;
    carry_dit_cache *cache;
    int64_t side, frames;
    float *x, *x0, *v, *text;
    int64_t chunk; /* number of chunks since the cut */
    uint64_t seed;
};

void carry_dit_streamer_free(carry_dit_streamer *s) {
    if (s != NULL) {
        carry_codec_free(s->codec);
        carry_dit_cache_free(s->cache);
        free(s->x);
        free(s->x0);
        free(s->v);
        free(s->text);
        free(s);
    }
}

static carry_status make(carry_dit_streamer *s) {
    const carry_dit_config *c = &s->dit->config;
    const int64_t edge = s->side / 8;
    const int64_t latents[] = {c->in_dim, s->frames, edge, edge};
    const int64_t text[] = {c->text_len, c->text_dim};
    size_t bytes;
    size_t text_bytes;
    if (!carry_size_product(&bytes, latents, 4, sizeof(float)) ||
        !carry_size_product(&text_bytes, text, 2, sizeof(float))) {
        return carry_fail(s->dit->ctx, CARRY_ESIZE, "a chunk of %lld frames is too large", (long long)s->frames);
    }
    s->x = carry_aligned_new(bytes);
    s->x0 = carry_aligned_new(bytes);
    s->v = carry_aligned_new(bytes);
    s->text = carry_aligned_new(text_bytes);
    if (s->x == NULL || s->x0 == NULL || s->v == NULL || s->text == NULL) {
        return carry_fail(s->dit->ctx, CARRY_EMEMORY, "out of memory: a chunk of %lld frames", (long long)s->frames);
    }
    CARRY_TRY(carry_codec_open(s->dit->ctx, &s->codec, NULL,
                               &(carry_codec_size){.height = s->side, .width = s->side, .most = s->frames}));
    const int64_t window = c->window_frames > s->frames ? c->window_frames : s->frames;
    return carry_dit_cache_new(
        s->dit, &s->cache,
        &(carry_dit_cache_options){
            .height = edge, .width = edge, .chunk = s->frames, .window = window, .sink = c->sink_frames});
}

carry_status carry_dit_streamer_new(carry_dit *dit, carry_dit_streamer **made, int64_t side) {
    carry_dit_streamer *s = calloc(1, sizeof *s);
    *made = NULL;
    if (s == NULL) {
        return carry_fail(dit->ctx, CARRY_EMEMORY, "out of memory: a stream");
    }
    s->dit = dit;
    s->side = side;
    s->frames = dit->config.chunk_frames > 0 ? dit->config.chunk_frames : 3;
    carry_status status = make(s);
    if (status != CARRY_OK) {
        carry_dit_streamer_free(s);
        return status;
    }
    *made = s;
    return CARRY_OK;
}

void carry_dit_streamer_cut(carry_dit_streamer *s, uint64_t seed) {
    carry_dit_cache_reset(s->cache);
    carry_codec_reset(s->codec);
    s->chunk = 0;
    s->seed = seed;
}

carry_status carry_dit_streamer_prompt(carry_dit_streamer *s, const char *prompt) {
    const carry_tensor text = carry_view_2d(s->text, CARRY_F32, s->dit->config.text_len, s->dit->config.text_dim);
    CARRY_TRY(carry_words_encode(s->dit->ctx, text, NULL, NULL, prompt, strlen(prompt)));
    return carry_dit_cache_text(s->cache, text);
}

carry_status carry_dit_streamer_chunk(carry_dit_streamer *s, float *frames) {
    carry_ctx *ctx = s->dit->ctx;
    const carry_dit_config *c = &s->dit->config;
    const int64_t edge = s->side / 8;
    const int64_t steps = c->steps > 0 ? c->steps : FALLBACK_STEPS;
    carry_tensor x = carry_view_4d(s->x, CARRY_F32, c->in_dim, s->frames, edge, edge);
    carry_tensor x0 = carry_view_4d(s->x0, CARRY_F32, c->in_dim, s->frames, edge, edge);
    carry_tensor v = carry_view_4d(s->v, CARRY_F32, c->in_dim, s->frames, edge, edge);
    if ((s->chunk + 1) * s->frames > CARRY_DIT_POSITIONS) {
        carry_dit_streamer_cut(s, s->seed + 1);
    }
    const int64_t start = s->chunk * s->frames;
    memset(s->x0, 0, (size_t)carry_tensor_count(&x0) * sizeof(float)); /* only noise, and no NaN times 0 */
    CARRY_TRY(carry_flow_noise(ctx, x, x0, 1.0, 1.0, s->seed, (uint64_t)(s->chunk * 64)));
    for (int64_t i = 0; i < steps; i++) {
        const double t = c->steps > 0 ? (double)c->step[i] : 1000.0 * (double)(steps - i) / (double)steps;
        const double next = c->steps > 0 ? (double)c->step[i + 1 < steps ? i + 1 : i]
                                         : 1000.0 * (double)(steps - i - 1) / (double)steps;
        const double sigma = carry_flow_sigma(t, c->shift > 0.0 ? c->shift : 1.0);
        const carry_dit_chunk chunk = {.velocity = v, .latents = x, .t = 1000.0 * sigma, .start = start};
        CARRY_TRY(carry_dit_forward(s->dit, s->cache, &chunk, 1, 0.0f));
        CARRY_TRY(carry_flow_clean(ctx, x0, x, v, sigma));
        if (i + 1 < steps) {
            CARRY_TRY(carry_flow_noise(ctx, x, x0, carry_flow_sigma(next, c->shift > 0.0 ? c->shift : 1.0), 1.0,
                                       s->seed, (uint64_t)(s->chunk * 64 + i + 1)));
        }
    }
    const carry_dit_chunk clean = {.latents = x0, .t = 0.0, .start = start};
    CARRY_TRY(carry_dit_forward(s->dit, s->cache, &clean, 1, 0.0f));
    s->chunk++;
    return carry_codec_decode(s->codec, carry_view_4d(frames, CARRY_F32, s->frames, 3, s->side, s->side), x0);
}

static void mark(carry_dit_evaluation *evaluation, carry_shape shape, const carry_shapes_verdict *v, double speed) {
    int step[2];
    (void)carry_shape_direction(shape.direction, step);
    evaluation->prompts++;
    evaluation->colours += v->colour == shape.colour;
    evaluation->directions += v->direction == shape.direction;
    evaluation->both += v->colour == shape.colour && v->direction == shape.direction;
    evaluation->step_error += hypot(v->right - speed * step[0], v->down - speed * step[1]);
}

carry_shape carry_dit_evaluation_second(carry_shape first) {
    return (carry_shape){.form = (first.form + 1) % CARRY_SHAPE_FORMS,
                         .colour = (first.colour + 2) % CARRY_SHAPE_COLOURS,
                         .direction = (first.direction + 2) % CARRY_SHAPE_DIRECTIONS};
}

/* Generates the chunks of half a stream and judges them. */
static carry_status ask(carry_dit_streamer *s, const carry_dit_evaluation_options *o, carry_shape shape, float *frames,
                        carry_shapes_verdict *verdict) {
    char prompt[CARRY_SHAPE_CAPTION];
    CARRY_TRY(carry_dit_streamer_prompt(s, carry_shape_caption(prompt, shape)));
    for (int64_t i = 0; i < o->chunks; i++) {
        CARRY_TRY(carry_dit_streamer_chunk(s, frames + i * s->frames * 3 * o->side * o->side));
    }
    *verdict = carry_shapes_judge(frames, o->chunks * s->frames, o->side, o->speed);
    return CARRY_OK;
}

static carry_status ask_all(carry_dit_streamer *s, const carry_dit_evaluation_options *o,
                            carry_dit_evaluation *evaluation, float *frames, carry_dit_asked asked, void *user) {
    const int64_t half = o->chunks * s->frames;
    for (int i = 0; i < o->forms * CARRY_SHAPE_COLOURS * CARRY_SHAPE_DIRECTIONS; i++) {
        const carry_shape shape = {.form = i / CARRY_SHAPE_DIRECTIONS / CARRY_SHAPE_COLOURS,
                                   .colour = i / CARRY_SHAPE_DIRECTIONS % CARRY_SHAPE_COLOURS,
                                   .direction = i % CARRY_SHAPE_DIRECTIONS};
        const carry_shape then = carry_dit_evaluation_second(shape);
        char prompt[CARRY_SHAPE_CAPTION];
        carry_shapes_verdict first;
        carry_shapes_verdict second;
        carry_dit_streamer_cut(s, o->seed + (uint64_t)i);
        CARRY_TRY(ask(s, o, shape, frames, &first));
        mark(evaluation, shape, &first, o->speed);
        if (o->turns) {
            CARRY_TRY(ask(s, o, then, frames + half * 3 * o->side * o->side, &second));
            evaluation->turned += second.colour == then.colour && second.direction == then.direction;
        }
        if (asked != NULL && !asked(user, carry_shape_caption(prompt, shape), shape, &first, o->turns ? &second : NULL,
                                    frames, o->turns ? 2 * half : half)) {
            break;
        }
    }
    return CARRY_OK;
}

carry_status carry_dit_evaluate(carry_dit *dit, const carry_dit_evaluation_options *o, carry_dit_evaluation *evaluation,
                                carry_dit_asked asked, void *user) {
    carry_dit_streamer *s;
    *evaluation = (carry_dit_evaluation){0};
    CARRY_TRY(carry_dit_streamer_new(dit, &s, o->side));
    const int64_t factors[] = {o->turns ? 2 : 1, o->chunks, s->frames, 3, o->side, o->side};
    size_t bytes = 0;
    float *frames = carry_size_product(&bytes, factors, 6, sizeof(float)) ? carry_aligned_new(bytes + 1) : NULL;
    carry_status status = CARRY_OK;
    if (frames == NULL) {
        status = carry_fail(dit->ctx, CARRY_EMEMORY, "out of memory: %lld chunks", (long long)o->chunks);
    } else {
        status = ask_all(s, o, evaluation, frames, asked, user);
    }
    evaluation->step_error /= evaluation->prompts > 0 ? (double)evaluation->prompts : 1.0;
    free(frames);
    carry_dit_streamer_free(s);
    return status;
}
