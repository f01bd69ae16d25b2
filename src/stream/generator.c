/* The passes that an envelope asks for, in order:

       recompute     the cache is emptied and the context frames are written to it at t = 0
       step 0..n-1   the same frames at each t: velocity, clean estimate, new noise for the next step
       clean         the finished frames are written to the cache once more at t = 0; they produce no output

   Latents are sent as bf16 and computed in f32. The clean pass writes the same rounded values to the cache that are
   sent back, so a cache rebuilt from sent frames (recompute) equals the original one. */
#include "stream/generator_internal.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "core/clock.h"
#include "core/error.h"
#include "core/memory.h"
#include "core/span.h"
#include "model/dit/dit_fp8.h"

static bool frames_bytes(size_t *bytes, const carry_generator_options *o, int64_t channels, int64_t frames,
                         size_t unit) {
    return carry_size_product(bytes, (const int64_t[]){channels, frames, o->height, o->width}, 4, unit);
}

carry_tensor carry_generator_view(const carry_generator *g, void *data, carry_dtype dtype, int64_t frames) {
    return carry_view_4d(data, dtype, g->config.in_dim, frames, g->options.height, g->options.width);
}

static carry_status allocate(carry_generator *g) {
    const carry_generator_options *o = &g->options;
    const int64_t side_by_side = o->batch > 0 ? o->batch : 1;
    size_t chunk, wide, velocity, context, text;
    if (!frames_bytes(&chunk, o, g->config.in_dim, o->chunk, sizeof(uint16_t)) ||
        !frames_bytes(&wide, o, g->config.in_dim, o->chunk, sizeof(float)) ||
        !frames_bytes(&velocity, o, g->config.in_dim, o->chunk * side_by_side, sizeof(float)) ||
        !frames_bytes(&context, o, g->config.in_dim, o->context, sizeof(float)) ||
        !carry_size_product(&text, (const int64_t[]){g->config.text_len, g->config.text_dim}, 2, sizeof(float))) {
        return carry_fail(g->ctx, CARRY_ESIZE, "chunks of %lld frames of %lld x %lld are too large",
                          (long long)o->chunk, (long long)o->height, (long long)o->width);
    }
    g->x = carry_aligned_new(wide);
    g->velocity = carry_aligned_new(velocity);
    g->x0 = carry_aligned_new(wide);
    g->context = carry_aligned_new(context);
    g->digests = calloc((size_t)g->dit->ranks, sizeof *g->digests);
    g->text = carry_aligned_new(text);
    g->out = carry_aligned_new(chunk);
    if (o->batch > 0 && g->dit->own.device == 0) {
        CARRY_TRY(carry_generator_batch_new(g, wide));
    }
    return g->x != NULL && g->velocity != NULL && g->x0 != NULL && g->context != NULL && g->text != NULL &&
                   g->out != NULL && g->digests != NULL
               ? CARRY_OK
               : carry_fail(g->ctx, CARRY_EMEMORY, "out of memory: chunks of %lld frames of %lld x %lld",
                            (long long)o->chunk, (long long)o->height, (long long)o->width);
}

carry_status carry_generator_new(carry_dit *dit, carry_generator **made, const carry_generator_options *options) {
    carry_generator *g = calloc(1, sizeof *g);
    *made = NULL;
    if (g == NULL) {
        return carry_fail(dit->ctx, CARRY_EMEMORY, "out of memory: a generator");
    }
    g->dit = dit;
    g->ctx = dit->ctx;
    g->config = dit->config;
    g->options = *options;
    if (options->batch < 0 || options->batch > CARRY_GENERATOR_BATCH) {
        free(g);
        return carry_fail(dit->ctx, CARRY_EARGUMENT, "a stream batch of %lld steps: up to %d",
                          (long long)options->batch, CARRY_GENERATOR_BATCH);
    }
    const carry_dit_cache_options cache = {.height = options->height,
                                           .width = options->width,
                                           .chunk = options->chunk,
                                           .chunks = options->batch > 0 ? options->batch + 1
                                                                        : options->context / options->chunk,
                                           .window = options->window,
                                           .sink = options->sink,
                                           .dtype = options->dtype,
                                           .no_graphs = options->no_graphs};
    carry_status status = allocate(g);
    status = status == CARRY_OK ? carry_generator_device_open(g) : status;
    status = status == CARRY_OK ? carry_dit_cache_new(dit, &g->cache, &cache) : status;
    if (status != CARRY_OK) {
        carry_generator_free(g);
        return status;
    }
    *made = g;
    return CARRY_OK;
}

void carry_generator_free(carry_generator *g) {
    if (g == NULL) {
        return;
    }
    carry_dit_cache_free(g->cache);
    carry_generator_device_close(g);
    carry_generator_batch_free(g);
    free(g->x);
    free(g->velocity);
    free(g->x0);
    free(g->context);
    free(g->text);
    free(g->out);
    free(g->digests);
    free(g);
}

void carry_generator_widen(float *to, const uint16_t *bits, int64_t count) {
    for (int64_t i = 0; i < count; i++) {
        to[i] = carry_f32_from_bf16(bits[i]);
    }
}

carry_status carry_generator_finite(carry_generator *g, const float *values, int64_t count, const char *pass,
                                    int step) {
    for (int64_t i = 0; i < count; i++) {
        if (!isfinite(values[i])) {
            char which[32] = "";
            if (step >= 0) {
                (void)snprintf(which, sizeof which, " %d", step);
            }
            return carry_fail(g->ctx, CARRY_ERANGE, "%s%s: latent %lld is %g: the stream stops", pass, which,
                              (long long)i, (double)values[i]);
        }
    }
    return CARRY_OK;
}

void carry_generator_round(carry_generator *g, float *x0, int64_t count) {
    for (int64_t i = 0; i < count; i++) {
        g->out[i] = carry_bf16_from_f32(x0[i]);
        x0[i] = carry_f32_from_bf16(g->out[i]);
    }
}

/* Writes chunks, packed one after the other, to the cache at t = 0. Each chunk attends to those before it. */
static carry_status write_chunks(carry_generator *g, float *chunks, int count, int64_t start) {
    carry_dit_chunk pieces[CARRY_DIT_CHUNKS];
    for (int i = 0; i < count; i++) {
        carry_tensor view = carry_generator_view(g, chunks, CARRY_F32, g->options.chunk);
        view.data = chunks + i * view.shape[0] * view.stride[0];
        pieces[i] = (carry_dit_chunk){.latents = view, .t = 0.0, .start = start + i * g->options.chunk};
    }
    g->calls++;
    return carry_dit_forward(g->dit, g->cache, pieces, count, 0.0f);
}

static carry_status recompute(carry_generator *g, const carry_envelope *e) {
    CARRY_SPAN(g->ctx, "stream", "recompute");
    const carry_tensor *context = &e->context_frames;
    const int64_t frames = context->shape[1];
    const int64_t chunk = g->options.chunk;
    const int64_t piece = chunk * context->stride[1];
    if (frames > g->options.context || frames % chunk != 0 || frames / chunk > CARRY_DIT_CHUNKS) {
        return carry_fail(g->ctx, CARRY_ESHAPE, "recompute: %lld context frames, not chunks of %lld and at most %lld",
                          (long long)frames, (long long)chunk, (long long)g->options.context);
    }
    const uint16_t *bits = context->data;
    for (int64_t i = 0; i < frames / chunk; i++) {
        for (int64_t c = 0; c < context->shape[0]; c++) {
            carry_generator_widen(g->context + (i * context->shape[0] + c) * piece,
                                  bits + c * context->stride[0] + i * piece, piece);
        }
    }
    carry_dit_cache_reset(g->cache);
    CARRY_TRY(carry_generator_finite(g, g->context, context->shape[0] * context->stride[0], "recompute's context", -1));
    return write_chunks(g, g->context, (int)(frames / chunk), 0);
}

static carry_status put_text(carry_generator *g, const carry_tensor *c) {
    if (c->shape[0] > g->config.text_len || c->shape[1] != g->config.text_dim) {
        return carry_fail(g->ctx, CARRY_ESHAPE, "conditioning is [%lld, %lld] where [up to %lld, %lld] is needed",
                          (long long)c->shape[0], (long long)c->shape[1], (long long)g->config.text_len,
                          (long long)g->config.text_dim);
    }
    const int64_t count = c->shape[0] * c->shape[1];
    carry_generator_widen(g->text, c->data, count);
    CARRY_TRY(carry_generator_finite(g, g->text, count, "conditioning", -1));
    g->text_rows = c->shape[0];
    return carry_dit_cache_text(g->cache, carry_view_2d(g->text, CARRY_F32, c->shape[0], c->shape[1]));
}

carry_status carry_generator_reload(carry_generator *g) {
    CARRY_TRY(carry_dit_fp8_refresh(g->dit));
    return g->text_rows > 0
               ? carry_dit_cache_text(g->cache, carry_view_2d(g->text, CARRY_F32, g->text_rows, g->config.text_dim))
               : CARRY_OK;
}

static carry_status prepare_text(carry_generator *g, const carry_envelope *e) {
    return e->reset_cross_cache ? put_text(g, &e->conditioning) : CARRY_OK;
}

void carry_generator_set_late(carry_generator *g, carry_generator_take take, void *user) {
    g->take = take;
    g->take_user = user;
}

bool carry_generator_did_again(const carry_generator *g) {
    return g->is_again;
}

carry_status carry_generator_late(carry_generator *g, bool *is_new) {
    carry_tensor text = {0};
    CARRY_TRY(g->take != NULL ? g->take(g->take_user, &text) : CARRY_OK);
    *is_new = text.data != NULL;
    return *is_new ? put_text(g, &text) : CARRY_OK;
}

static carry_status step(carry_generator *g, const carry_envelope *e, int i) {
    const int64_t frames = e->latents_in.shape[1];
    const int64_t *steps = e->steps.data;
    carry_tensor x = carry_generator_view(g, g->x, CARRY_F32, frames);
    carry_tensor x0 = carry_generator_view(g, g->x0, CARRY_F32, frames);
    carry_tensor velocity = carry_generator_view(g, g->velocity, CARRY_F32, frames);
    const double sigma = carry_flow_sigma((double)steps[i], g->options.shift);
    const carry_dit_chunk chunk = {
        .velocity = velocity, .latents = x, .t = 1000.0 * sigma, .start = e->current_start_frame};
    CARRY_TRY(carry_dit_forward(g->dit, g->cache, &chunk, 1, logf(e->kv_bias)));
    CARRY_TRY(carry_generator_finite(g, g->velocity, x.stride[0] * x.shape[0], "denoising step", i));
    CARRY_TRY(carry_flow_clean(g->ctx, x0, x, velocity, sigma));
    return i + 1 < e->num_denoise_steps
               ? carry_flow_noise(g->ctx, x, x0, carry_flow_sigma((double)steps[i + 1], g->options.shift),
                                  (double)e->noise_scale, e->seed, carry_generator_stream(e->chunk_index, i + 1))
               : CARRY_OK;
}

static carry_status denoise(carry_generator *g, const carry_envelope *e) {
    CARRY_SPAN(g->ctx, "stream", "denoise");
    const int64_t count = e->latents_in.shape[0] * e->latents_in.shape[1] * e->height * e->width;
    for (int i = 0; i < e->num_denoise_steps; i++) {
        bool is_new;
        CARRY_TRY(carry_generator_late(g, &is_new));
        g->calls++;
        CARRY_TRY(step(g, e, i));
    }
    CARRY_TRY(carry_generator_late(g, &g->is_again));
    CARRY_TRY(g->is_again ? step(g, e, e->num_denoise_steps - 1) : CARRY_OK);
    CARRY_TRY(carry_generator_finite(g, g->x0, count, "the last step's estimate", -1));
    carry_generator_round(g, g->x0, count);
    return CARRY_OK;
}

static carry_status clean(carry_generator *g, const carry_envelope *e) {
    CARRY_SPAN(g->ctx, "stream", "clean pass");
    return write_chunks(g, g->x0, 1, e->current_start_frame);
}

static carry_status check_shapes(const carry_generator *g, const carry_envelope *e) {
    const carry_generator_options *o = &g->options;
    if (e->height != o->height || e->width != o->width || e->latents_in.shape[1] != o->chunk ||
        e->latents_in.shape[0] != g->config.in_dim) {
        return carry_fail(g->ctx, CARRY_ESHAPE,
                          "latents are [%lld, %lld, %d, %d] where [%lld, %lld, %lld, %lld] was agreed on",
                          (long long)e->latents_in.shape[0], (long long)e->latents_in.shape[1], e->height, e->width,
                          (long long)g->config.in_dim, (long long)o->chunk, (long long)o->height, (long long)o->width);
    }
    return CARRY_OK;
}

static double since(double *mark) {
    const double now = carry_seconds();
    const double seconds = now - *mark;
    *mark = now;
    return seconds;
}

carry_status carry_generator_run(carry_generator *g, carry_result *result, carry_generator_times *times,
                                 const carry_envelope *e) {
    const int wanted = e->num_denoise_steps + (e->do_recompute ? 1 : 0);
    double mark = carry_seconds();
    *times = (carry_generator_times){0};
    g->calls = 0;
    g->is_again = false;
    CARRY_TRY(check_shapes(g, e));
    if (e->init_cache || e->reset_cache) {
        carry_dit_cache_reset(g->cache);
        g->slots = 0;
    }
    CARRY_TRY(prepare_text(g, e));
    if (e->do_recompute && g->options.batch == 0) {
        CARRY_TRY(carry_generator_device_rebuild(g));
        CARRY_TRY(recompute(g, e));
        times->recompute = since(&mark);
    }
    const int64_t next = carry_dit_cache_next(g->cache);
    if (next != e->current_start_frame) {
        return carry_fail(g->ctx, CARRY_EPEER, "current_start_frame is %d and the cache is at frame %lld",
                          e->current_start_frame, (long long)next);
    }
    const int64_t count = e->latents_in.shape[0] * e->latents_in.shape[1] * e->height * e->width;
    const bool with_clean = g->options.batch == 0 && e->expected_generator_calls > wanted;
    const bool is_far = g->far.memory != NULL;
    carry_generator_widen(g->x, e->latents_in.data, count);
    CARRY_TRY(carry_generator_finite(g, g->x, count, "latents_in", -1));
    if (is_far) {
        CARRY_TRY(g->options.batch > 0 ? carry_generator_device_batch(g, e, times)
                                       : carry_generator_device_run(g, e, with_clean, times));
    } else {
        CARRY_TRY(g->options.batch > 0 ? carry_generator_batch(g, e) : denoise(g, e));
        times->denoise = since(&mark);
        CARRY_TRY(with_clean ? clean(g, e) : CARRY_OK);
        times->clean = with_clean ? since(&mark) : 0.0;
    }
    uint16_t *out = is_far ? g->far.host : g->out;
    *result = (carry_result){
        .version = CARRY_ENVELOPE_VERSION,
        .call_id = e->call_id,
        .chunk_index = e->chunk_index,
        .cache_epoch = e->cache_epoch,
        .observed_generator_calls = g->calls,
        .mesh_start_frame = (int32_t)next,
        .digest = carry_stream_digest(out, (size_t)count * sizeof *out),
        .latents_out = carry_generator_view(g, out, CARRY_BF16, e->latents_in.shape[1]),
    };
    return CARRY_OK;
}

carry_status carry_generator_agree(carry_generator *g, const carry_result *result) {
    if (g->dit->mesh == NULL) {
        return CARRY_OK;
    }
    CARRY_TRY(carry_all_gather(g->dit->mesh, g->digests, &result->digest, sizeof result->digest));
    for (int r = 1; r < g->dit->ranks; r++) {
        if (g->digests[r] != g->digests[0]) {
            return carry_fail(g->ctx, CARRY_EPEER,
                              "rank %d of the mesh has digest %016llx where rank 0 has %016llx: they no longer compute "
                              "the same",
                              r, (unsigned long long)g->digests[r], (unsigned long long)g->digests[0]);
        }
    }
    return CARRY_OK;
}
