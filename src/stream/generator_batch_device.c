/* A stream batch on a GPU: generator_batch.c with its chunks in device memory. The latents of the new chunk are
   uploaded, noise and steps are computed on the device, and the host waits only for the finished chunk. Slots keep
   their addresses and chunks move from one slot to the next. The arguments of a forward therefore depend only on the
   position in the ring, and the forward can be replayed as a graph. A slot has one tensor, which is x before a
   forward and x0 after it. */
#include <math.h>
#include <string.h>

#include "carry/ops.h"
#include "core/span.h"
#include "core/tensor.h"
#include "ops/sampler.h"
#include "stream/generator_internal.h"

static carry_tensor slot_of(const carry_generator *g, carry_tensor all, int i) {
    const carry_tensor *x = &g->far.x;
    const int64_t count = carry_tensor_count(x);
    carry_tensor one = *x;
    one.data = (float *)all.data + i * count;
    return one;
}

/* The new chunk becomes slot 0 and overwrites the chunk whose clean pass is done. */
static carry_status enter(carry_generator *g, const carry_envelope *e) {
    const carry_generator_device *f = &g->far;
    const int n = (int)g->options.batch;
    for (int i = g->slots < n ? g->slots : n; i > 0; i--) {
        CARRY_TRY(carry_copy(g->ctx, slot_of(g, f->slots, i), slot_of(g, f->slots, i - 1)));
        g->slot[i].chunk_index = g->slot[i - 1].chunk_index;
        g->slot[i].seed = g->slot[i - 1].seed;
    }
    g->slot[0].chunk_index = e->chunk_index;
    g->slot[0].seed = e->seed;
    g->slots = g->slots < n ? g->slots + 1 : n;
    return carry_generator_device_upload(g, e, slot_of(g, f->slots, 0));
}

/* x = (1 - sigma) x0 + sigma scale noise for slot i, in place: the slot holds x0 before and x after. .sigma = 0
   makes carry_flow_step take the slot itself as x0, whatever the velocity is. */
static carry_status add_noise(carry_generator *g, const carry_envelope *e, int i, double sigma) {
    carry_generator_device *f = &g->far;
    const carry_generator_slot *s = &g->slot[i];
    CARRY_TRY(carry_random_fill(g->ctx, f->noise, s->seed, carry_generator_stream(s->chunk_index, i), 0.0f, 1.0f));
    return carry_flow_step(g->ctx, &(carry_flow_step_args){.x0 = f->x0,
                                                           .x = slot_of(g, f->slots, i),
                                                           .velocity = f->noise,
                                                           .noise = f->noise,
                                                           .sigma = 0.0f,
                                                           .keep = (float)(1.0 - sigma),
                                                           .scale = (float)(sigma * (double)e->noise_scale)});
}

static carry_status denoise(carry_generator *g, const carry_envelope *e, int clean) {
    carry_generator_device *f = &g->far;
    const int active = e->num_denoise_steps;
    const int64_t frames = g->options.chunk;
    const int64_t *steps = e->steps.data;
    carry_dit_chunk chunk[CARRY_GENERATOR_SLOTS];
    double sigma[CARRY_GENERATOR_SLOTS] = {0};
    for (int i = active - 1 + clean; i >= 0; i--) { /* the oldest first */
        const bool is_clean = i == active;
        carry_dit_chunk *one = &chunk[active - 1 + clean - i];
        sigma[i] = is_clean ? 0.0 : carry_flow_sigma((double)steps[i], g->options.shift);
        CARRY_TRY(i > 0 && !is_clean ? add_noise(g, e, i, sigma[i]) : CARRY_OK);
        *one = (carry_dit_chunk){
            .latents = slot_of(g, f->slots, i), .t = 1000.0 * sigma[i], .start = e->current_start_frame - i * frames};
        if (!is_clean) {
            one->velocity = slot_of(g, f->velocities, i);
        }
    }
    CARRY_TRY(carry_dit_forward(g->dit, g->cache, chunk, active + clean, logf(e->kv_bias)));
    g->calls += active + clean;
    for (int i = 0; i < active; i++) {
        const carry_tensor x = slot_of(g, f->slots, i);
        CARRY_TRY(carry_flow_step(g->ctx, &(carry_flow_step_args){.x0 = x,
                                                                  .x = x,
                                                                  .velocity = slot_of(g, f->velocities, i),
                                                                  .bad = carry_slice(f->bad, i, 1),
                                                                  .sigma = (float)sigma[i]}));
    }
    return CARRY_OK;
}

carry_status carry_generator_device_batch(carry_generator *g, const carry_envelope *e, carry_generator_times *times) {
    CARRY_SPAN(g->ctx, "stream", "denoise");
    carry_generator_device *f = &g->far;
    const int device = g->dit->own.device;
    carry_stream *stream = carry_ctx_stream(g->ctx, device);
    const int clean = e->expected_generator_calls - e->num_denoise_steps;
    CARRY_TRY(carry_generator_batch_check(g, e, clean));
    CARRY_TRY(carry_event_record(g->ctx, device, f->began, stream));
    CARRY_TRY(enter(g, e));
    CARRY_TRY(denoise(g, e, clean));
    CARRY_TRY(carry_event_record(g->ctx, device, f->denoised, stream));
    CARRY_TRY(carry_generator_device_download(g, slot_of(g, f->slots, e->num_denoise_steps - 1)));
    CARRY_TRY(carry_event_record(g->ctx, device, f->ready[0], stream));
    CARRY_TRY(carry_event_wait(g->ctx, device, f->ready[0]));
    CARRY_TRY(carry_dit_cache_check(g->cache));
    CARRY_TRY(carry_event_elapsed(g->ctx, &times->denoise, device, f->began, f->denoised));
    return carry_generator_device_finite(g, e->num_denoise_steps);
}
