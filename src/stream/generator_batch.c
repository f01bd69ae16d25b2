/* A stream batch: n successive chunks are denoised at the same time in one forward, each one step ahead of the chunk
   after it.

       envelope k:   chunk k at step 0, chunk k-1 at step 1, ..., chunk k-n+1 at step n-1, which finishes it;
                     chunk k-n at t = 0, its clean pass, if the envelope includes one

   An envelope has the steps of its passes, so the first n-1 envelopes after a cut have fewer: the batch fills, n-1
   envelopes pass before the first chunk is finished, and their results are estimates that are not shown. A chunk
   sees the keys of earlier chunks as noisy as they are at that step. The pictures therefore differ from those of one
   chunk at a time; the cost is one forward of n chunks instead of n forwards, with as many all-reduces as one
   forward. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/error.h"
#include "core/memory.h"
#include "core/span.h"
#include "stream/generator_internal.h"

carry_status carry_generator_batch_new(carry_generator *g, size_t bytes) {
    for (int64_t i = 0; i <= g->options.batch; i++) {
        g->slot[i].x = carry_aligned_new(bytes);
        g->slot[i].x0 = carry_aligned_new(bytes);
        if (g->slot[i].x == NULL || g->slot[i].x0 == NULL) {
            return carry_fail(g->ctx, CARRY_EMEMORY, "out of memory: a batch of %lld chunks",
                              (long long)g->options.batch);
        }
    }
    return CARRY_OK;
}

void carry_generator_batch_free(carry_generator *g) {
    for (int i = 0; i < CARRY_GENERATOR_SLOTS; i++) {
        free(g->slot[i].x);
        free(g->slot[i].x0);
    }
}

carry_status carry_generator_batch_check(carry_generator *g, const carry_envelope *e, int clean) {
    const int n = (int)g->options.batch;
    const int expected = g->slots < n ? g->slots + 1 : n;
    if (e->do_recompute) {
        return carry_fail(g->ctx, CARRY_EARGUMENT, "a stream batch has no recompute");
    }
    if (e->num_denoise_steps != expected || clean > (g->slots >= n ? 1 : 0)) {
        return carry_fail(
            g->ctx, CARRY_EPEER,
            "the envelope has %d steps and %d clean passes where %d chunks of a batch of %d are under way",
            e->num_denoise_steps, clean, g->slots, n);
    }
    return CARRY_OK;
}

/* The new chunk becomes slot 0; the chunk whose clean pass is done leaves. */
static void enter(carry_generator *g, const carry_envelope *e, int64_t count) {
    const carry_generator_slot gone = g->slot[g->options.batch];
    memmove(g->slot + 1, g->slot, (size_t)g->options.batch * sizeof *g->slot);
    g->slot[0] = gone;
    g->slot[0].chunk_index = e->chunk_index;
    g->slot[0].seed = e->seed;
    carry_generator_widen(g->slot[0].x, e->latents_in.data, count);
    g->slots = g->slots < g->options.batch ? g->slots + 1 : (int)g->options.batch;
}

carry_status carry_generator_batch(carry_generator *g, const carry_envelope *e) {
    CARRY_SPAN(g->ctx, "stream", "denoise");
    const int active = e->num_denoise_steps;
    const int clean = e->expected_generator_calls - active;
    const int64_t frames = g->options.chunk;
    const int64_t *steps = e->steps.data;
    const int64_t count = g->config.in_dim * frames * e->height * e->width;
    carry_dit_chunk chunk[CARRY_GENERATOR_SLOTS];
    double sigma[CARRY_GENERATOR_SLOTS] = {0};
    CARRY_TRY(carry_generator_batch_check(g, e, clean));
    enter(g, e, count);
    for (int i = active - 1 + clean; i >= 0; i--) { /* the oldest first */
        carry_generator_slot *s = &g->slot[i];
        const bool is_clean = i == active;
        const carry_tensor x0 = carry_generator_view(g, s->x0, CARRY_F32, frames);
        const carry_tensor x = carry_generator_view(g, s->x, CARRY_F32, frames);
        sigma[i] = is_clean ? 0.0 : carry_flow_sigma((double)steps[i], g->options.shift);
        if (i > 0 && !is_clean) {
            CARRY_TRY(carry_flow_noise(g->ctx, x, x0, sigma[i], (double)e->noise_scale, s->seed,
                                       carry_generator_stream(s->chunk_index, i)));
        }
        carry_dit_chunk *one = &chunk[active - 1 + clean - i];
        *one = (carry_dit_chunk){
            .latents = is_clean ? x0 : x, .t = 1000.0 * sigma[i], .start = e->current_start_frame - i * frames};
        if (!is_clean) {
            one->velocity = carry_generator_view(g, g->velocity + i * count, CARRY_F32, frames);
        }
    }
    CARRY_TRY(carry_dit_forward(g->dit, g->cache, chunk, active + clean, logf(e->kv_bias)));
    g->calls += active + clean;
    for (int i = 0; i < active; i++) {
        CARRY_TRY(carry_generator_finite(g, g->velocity + i * count, count, "denoising step", i));
        CARRY_TRY(carry_flow_clean(g->ctx, carry_generator_view(g, g->slot[i].x0, CARRY_F32, frames),
                                   carry_generator_view(g, g->slot[i].x, CARRY_F32, frames),
                                   carry_generator_view(g, g->velocity + i * count, CARRY_F32, frames), sigma[i]));
    }
    CARRY_TRY(carry_generator_finite(g, g->slot[active - 1].x0, count, "the last step's estimate", -1));
    carry_generator_round(g, g->slot[active - 1].x0, count);
    return CARRY_OK;
}
