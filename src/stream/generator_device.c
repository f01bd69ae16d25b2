/* A chunk on a GPU: latents are uploaded once, the sampler's steps are enqueued on the device's stream, and the host
   waits only for the result. The clean pass is enqueued after it: it runs while the result is sent and decoded, and
   the next chunk is enqueued behind it. If prompts may arrive during a chunk, at most two steps are enqueued before
   the host checks for a prompt again: the GPU always has work, and the last step, which has the largest effect on
   the picture, uses the newest prompt. */
#include <math.h>
#include <string.h>

#include "carry/ops.h"
#include "core/clock.h"
#include "core/error.h"
#include "core/memory.h"
#include "core/span.h"
#include "core/tensor.h"
#include "device/share.h"
#include "ops/sampler.h"
#include "stream/generator_internal.h"

static void lay_out(carry_generator *g, carry_arena *arena) {
    carry_generator_device *f = &g->far;
    const int device = g->dit->own.device;
    const int64_t shape[] = {g->config.in_dim, g->options.chunk, g->options.height, g->options.width};
    f->x = carry_arena_tensor(arena, device, CARRY_F32, 4, shape);
    f->x0 = carry_arena_tensor(arena, device, CARRY_F32, 4, shape);
    f->velocity = carry_arena_tensor(arena, device, CARRY_F32, 4, shape);
    f->noise = carry_arena_tensor(arena, device, CARRY_F32, 4, shape);
    if (g->options.batch > 0) {
        const int64_t count = carry_tensor_count(&f->x);
        f->slots = carry_arena_tensor(arena, device, CARRY_F32, 2, (const int64_t[]){g->options.batch + 1, count});
        f->velocities = carry_arena_tensor(arena, device, CARRY_F32, 2, (const int64_t[]){g->options.batch, count});
    }
    f->bits = carry_arena_tensor(arena, device, CARRY_BF16, 4, shape);
    f->bad = carry_arena_tensor(arena, device, CARRY_F32, 1, (const int64_t[]){CARRY_ENVELOPE_STEPS});
}

/* Makes a stream for the generator: the default stream cannot be captured as a graph. */
static carry_status open_stream(carry_generator *g) {
    const int device = g->dit->own.device;
    if (carry_ctx_stream(g->ctx, device) != NULL) {
        return CARRY_OK;
    }
    CARRY_TRY(carry_stream_wait(g->ctx, device, NULL)); /* weights that are still being uploaded */
    const int others = g->options.multiprocessors;
    CARRY_TRY(others > 0 ? carry_stream_new_share(g->ctx, &g->far.stream, device, others, true)
                         : carry_stream_new(g->ctx, &g->far.stream, device));
    return carry_ctx_set_stream(g->ctx, device, g->far.stream);
}

carry_status carry_generator_device_open(carry_generator *g) {
    carry_generator_device *f = &g->far;
    const int device = g->dit->own.device;
    carry_arena arena = carry_arena_over(NULL, 0);
    size_t bytes = 0;
    if (device == 0) {
        return CARRY_OK;
    }
    lay_out(g, &arena);
    if (!carry_arena_total(&arena, &bytes)) {
        return carry_fail(g->ctx, CARRY_ESIZE, "chunks are too large for a device");
    }
    const size_t latents = (size_t)carry_tensor_count(&f->bits) * sizeof(uint16_t);
    CARRY_TRY(open_stream(g));
    CARRY_TRY(carry_device_alloc(g->ctx, &f->memory, device, bytes));
    arena = carry_arena_over(f->memory, bytes);
    lay_out(g, &arena);
    CARRY_TRY(carry_upload_open(g->ctx, &f->upload, device, latents, 2));
    CARRY_TRY(carry_host_alloc(g->ctx, &f->host, latents + CARRY_ENVELOPE_STEPS * sizeof(float)));
    CARRY_TRY(carry_event_new(g->ctx, &f->rebuilt, device));
    CARRY_TRY(carry_event_new(g->ctx, &f->began, device));
    CARRY_TRY(carry_event_new(g->ctx, &f->denoised, device));
    for (int i = 0; i < 2; i++) {
        CARRY_TRY(carry_event_new(g->ctx, &f->stepped[i], device));
        CARRY_TRY(carry_event_new(g->ctx, &f->ready[i], device));
        CARRY_TRY(carry_event_new(g->ctx, &f->cleaned[i], device));
    }
    return CARRY_OK;
}

void carry_generator_device_close(carry_generator *g) {
    carry_generator_device *f = &g->far;
    const int device = g->dit->own.device;
    if (device == 0) {
        return;
    }
    carry_device_free(g->ctx, device, f->memory); /* waits for the device */
    carry_upload_close(&f->upload);
    if (f->host != NULL) {
        carry_host_free(g->ctx, f->host);
    }
    carry_event_free(g->ctx, device, f->rebuilt);
    carry_event_free(g->ctx, device, f->began);
    carry_event_free(g->ctx, device, f->denoised);
    for (int i = 0; i < 2; i++) {
        carry_event_free(g->ctx, device, f->stepped[i]);
        carry_event_free(g->ctx, device, f->ready[i]);
        carry_event_free(g->ctx, device, f->cleaned[i]);
    }
    if (f->stream != NULL) {
        (void)carry_stream_wait(g->ctx, device, f->stream);
        (void)carry_ctx_set_stream(g->ctx, device, NULL);
        carry_stream_free(g->ctx, device, f->stream);
    }
    *f = (carry_generator_device){0};
}

static carry_status mark(carry_generator *g, carry_event *event) {
    const int device = g->dit->own.device;
    return carry_event_record(g->ctx, device, event, carry_ctx_stream(g->ctx, device));
}

carry_status carry_generator_device_rebuild(carry_generator *g) {
    return g->dit->own.device != 0 ? mark(g, g->far.rebuilt) : CARRY_OK;
}

carry_status carry_generator_device_upload(carry_generator *g, const carry_envelope *e, carry_tensor x) {
    carry_generator_device *f = &g->far;
    const size_t bytes = (size_t)carry_tensor_count(&f->bits) * sizeof(uint16_t);
    void *slot;
    CARRY_TRY(carry_upload_slot(&f->upload, &slot));
    memcpy(slot, e->latents_in.data, bytes);
    CARRY_TRY(carry_upload_send(&f->upload, f->bits.data, bytes));
    CARRY_TRY(carry_zero(g->ctx, f->bad));
    return carry_convert(g->ctx, x, f->bits);
}

static carry_status step(carry_generator *g, const carry_envelope *e, int i) {
    carry_generator_device *f = &g->far;
    const int64_t *steps = e->steps.data;
    const double sigma = carry_flow_sigma((double)steps[i], g->options.shift);
    const carry_dit_chunk chunk = {
        .velocity = f->velocity, .latents = f->x, .t = 1000.0 * sigma, .start = e->current_start_frame};
    carry_flow_step_args args = {
        .x0 = f->x0, .x = f->x, .velocity = f->velocity, .bad = carry_slice(f->bad, i, 1), .sigma = (float)sigma};
    CARRY_TRY(carry_dit_forward(g->dit, g->cache, &chunk, 1, logf(e->kv_bias)));
    if (i + 1 < e->num_denoise_steps) {
        const double next = carry_flow_sigma((double)steps[i + 1], g->options.shift);
        args.noise = f->noise;
        args.keep = (float)(1.0 - next);
        args.scale = (float)(next * (double)e->noise_scale);
        CARRY_TRY(
            carry_random_fill(g->ctx, f->noise, e->seed, carry_generator_stream(e->chunk_index, i + 1), 0.0f, 1.0f));
    }
    return carry_flow_step(g->ctx, &args);
}

/* Rounds x0 on the device too, so that the clean pass sees the values that are sent. */
carry_status carry_generator_device_download(carry_generator *g, carry_tensor x0) {
    carry_generator_device *f = &g->far;
    const int64_t count = carry_tensor_count(&f->bits);
    const carry_tensor out = carry_view(f->host, CARRY_BF16, 4, f->bits.shape);
    const carry_tensor bad = carry_view_1d((uint16_t *)f->host + count, CARRY_F32, CARRY_ENVELOPE_STEPS);
    CARRY_TRY(carry_convert(g->ctx, f->bits, x0));
    CARRY_TRY(carry_convert(g->ctx, x0, f->bits));
    CARRY_TRY(carry_copy(g->ctx, out, f->bits));
    return carry_copy(g->ctx, bad, f->bad);
}

static carry_status clean(carry_generator *g, const carry_envelope *e) {
    const carry_dit_chunk chunk = {.latents = g->far.x0, .t = 0.0, .start = e->current_start_frame};
    g->calls++;
    return carry_dit_forward(g->dit, g->cache, &chunk, 1, 0.0f);
}

carry_status carry_generator_device_finite(carry_generator *g, int steps) {
    const int64_t count = carry_tensor_count(&g->far.bits);
    for (int i = 0; i < steps; i++) {
        float bad;
        memcpy(&bad, (const uint16_t *)g->far.host + count + 2 * i, sizeof bad);
        if (bad != 0.0f) {
            return carry_fail(g->ctx, CARRY_ERANGE, "denoising step %d: a latent is not finite: the stream stops", i);
        }
    }
    return CARRY_OK;
}

static carry_status denoise(carry_generator *g, const carry_envelope *e) {
    carry_generator_device *f = &g->far;
    const int device = g->dit->own.device;
    const int n = e->num_denoise_steps;
    for (int i = 0; i < n; i++) {
        bool is_new;
        CARRY_TRY(g->take != NULL && i > 1 ? carry_event_wait(g->ctx, device, f->stepped[i % 2]) : CARRY_OK);
        CARRY_TRY(carry_generator_late(g, &is_new));
        g->calls++;
        CARRY_TRY(step(g, e, i));
        CARRY_TRY(g->take != NULL ? mark(g, f->stepped[i % 2]) : CARRY_OK);
    }
    if (g->take == NULL) {
        return CARRY_OK;
    }
    CARRY_TRY(carry_event_wait(g->ctx, device, f->stepped[(n - 1) % 2]));
    CARRY_TRY(carry_generator_late(g, &g->is_again));
    return g->is_again ? step(g, e, n - 1) : CARRY_OK;
}

carry_status carry_generator_device_run(carry_generator *g, const carry_envelope *e, bool with_clean,
                                        carry_generator_times *times) {
    carry_generator_device *f = &g->far;
    const int device = g->dit->own.device;
    CARRY_SPAN(g->ctx, "stream", "denoise");
    const bool had_clean = f->has_cleaned;
    const int before = f->turn;
    const int now = 1 - before;
    f->turn = now;
    CARRY_TRY(mark(g, f->began));
    CARRY_TRY(carry_generator_device_upload(g, e, f->x));
    CARRY_TRY(denoise(g, e));
    CARRY_TRY(mark(g, f->denoised));
    CARRY_TRY(carry_generator_device_download(g, f->x0));
    CARRY_TRY(mark(g, f->ready[now]));
    if (with_clean) {
        CARRY_TRY(clean(g, e));
        CARRY_TRY(mark(g, f->cleaned[now]));
    }
    f->has_cleaned = with_clean;
    CARRY_TRY(carry_event_wait(g->ctx, device, f->ready[now]));
    CARRY_TRY(carry_dit_cache_check(g->cache));
    CARRY_TRY(carry_event_elapsed(g->ctx, &times->denoise, device, f->began, f->denoised));
    if (e->do_recompute) { /* timed by events: the host finishes enqueuing long before the GPU is done */
        CARRY_TRY(carry_event_elapsed(g->ctx, &times->recompute, device, f->rebuilt, f->began));
    }
    if (had_clean) { /* no wait: this event precedes the current chunk in the stream */
        CARRY_TRY(carry_event_elapsed(g->ctx, &times->clean, device, f->ready[before], f->cleaned[before]));
    }
    return carry_generator_device_finite(g, e->num_denoise_steps);
}
