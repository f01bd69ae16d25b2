/* A forward of the video transformer over its cache: checks, embeddings, blocks, head. */
#include <inttypes.h>
#include <math.h>

#include "carry/nn.h"
#include "core/context.h"
#include "core/span.h"
#include "core/tensor.h"
#include "model/dit/dit_cache.h"

static carry_status check_tensor(const carry_dit_cache *cache, const char *name, const carry_tensor *tensor,
                                 int64_t channels) {
    carry_ctx *ctx = cache->dit->ctx;
    if (tensor->rank != 4) {
        return carry_fail(ctx, CARRY_ESHAPE, "%s have rank %d where 4 is needed: channels, frames, height, width", name,
                          tensor->rank);
    }
    const int64_t shape[4] = {channels, tensor->shape[1], cache->options.height, cache->options.width};
    CARRY_TRY(carry_tensor_expect(ctx, name, tensor, 4, shape));
    if (tensor->dtype != CARRY_F32 || tensor->device != 0 || !carry_tensor_is_packed(tensor, 0)) {
        return carry_fail(ctx, CARRY_EDTYPE, "%s must be packed f32 on the CPU", name);
    }
    return CARRY_OK;
}

static carry_status check_chunk(const carry_dit_cache *cache, const carry_dit_chunk *chunk) {
    const carry_dit *dit = cache->dit;
    CARRY_TRY(check_tensor(cache, "latents", &chunk->latents, dit->config.in_dim));
    const int64_t frames = chunk->latents.shape[1];
    if (frames < 1 || frames > cache->options.chunk) {
        return carry_fail(dit->ctx, CARRY_ESHAPE, "a chunk of %" PRId64 " frames: 1 to %" PRId64 " fit the cache",
                          frames, cache->options.chunk);
    }
    if (chunk->velocity.data != NULL) {
        CARRY_TRY(check_tensor(cache, "velocity", &chunk->velocity, dit->config.out_dim));
        if (chunk->velocity.shape[1] != frames) {
            return carry_fail(dit->ctx, CARRY_ESHAPE, "velocity has %" PRId64 " frames and latents have %" PRId64,
                              chunk->velocity.shape[1], frames);
        }
    }
    if (!(chunk->t >= 0.0 && chunk->t <= 1000.0)) {
        return carry_fail(dit->ctx, CARRY_ERANGE, "t is %g: times are from 0 to 1000", chunk->t);
    }
    if (chunk->start < 0 || chunk->start > CARRY_DIT_POSITIONS - frames) {
        return carry_fail(dit->ctx, CARRY_ERANGE,
                          "frames %" PRId64 " to %" PRId64 " have no position: there are %d, a cut starts them again",
                          chunk->start, chunk->start + frames - 1, CARRY_DIT_POSITIONS);
    }
    return CARRY_OK;
}

/* The first chunk continues, or goes back to frames that are among the newest, all that it sees being there. */
static carry_status check_start(const carry_dit_cache *cache, const carry_dit_chunk *first) {
    const int64_t sink = cache->options.sink;
    const int64_t end = first->start + first->latents.shape[1];
    const int64_t low = end - (cache->options.window - sink);
    const int64_t gone = cache->top - cache->ring; /* of the ring's frames, those below */
    if (first->start > cache->next) {
        return carry_fail(cache->dit->ctx, CARRY_ERANGE,
                          "a chunk starts at frame %" PRId64 " and the next frame is %" PRId64, first->start,
                          cache->next);
    }
    if (first->start < cache->next &&
        (first->start < cache->top - cache->frames || (gone > sink && (low > sink ? low : sink) < gone))) {
        return carry_fail(cache->dit->ctx, CARRY_ERANGE,
                          "a chunk starts at frame %" PRId64
                          " again, which is not among the newest: the next frame is %" PRId64 ", and the last %" PRId64
                          " can be done again",
                          first->start, cache->next, cache->frames);
    }
    return CARRY_OK;
}

static carry_status check_call(carry_dit_call *call) {
    const carry_dit_cache *cache = call->cache;
    carry_ctx *ctx = call->dit->ctx;
    if (cache->dit != call->dit) {
        return carry_fail(ctx, CARRY_EARGUMENT, "the cache belongs to another model");
    }
    if (!cache->has_text) {
        return carry_fail(ctx, CARRY_EARGUMENT, "the cache has no text: carry_dit_cache_text comes first");
    }
    if (call->chunks < 1 || call->chunks > CARRY_DIT_CHUNKS) {
        return carry_fail(ctx, CARRY_EARGUMENT, "%d chunks in a forward: 1 to %d are possible", call->chunks,
                          CARRY_DIT_CHUNKS);
    }
    if (isnan(call->bias) || call->bias == INFINITY) {
        return carry_fail(ctx, CARRY_ERANGE, "the KV bias is %g: its logarithm must be a number", (double)call->bias);
    }
    for (int c = 0; c < call->chunks; c++) {
        CARRY_TRY(check_chunk(cache, &call->chunk[c]));
        const int64_t frames = call->chunk[c].latents.shape[1];
        const int64_t start = call->chunk[c].start;
        call->row[c + 1] = call->row[c] + frames * cache->per_frame;
        if (c > 0 && start != call->chunk[c - 1].start + call->chunk[c - 1].latents.shape[1]) {
            return carry_fail(ctx, CARRY_ERANGE, "chunk %d starts at frame %" PRId64 " and does not follow chunk %d", c,
                              start, c - 1);
        }
    }
    call->tokens = call->row[call->chunks];
    if (call->tokens > cache->tokens) {
        return carry_fail(ctx, CARRY_ESHAPE, "a forward of %" PRId64 " frames: up to %" PRId64 " fit the cache",
                          call->tokens / cache->per_frame, cache->frames);
    }
    return check_start(cache, &call->chunk[0]);
}

/* e and e0 of every chunk: [chunks, dim] and [chunks, 6 dim]. */
static carry_status embed_times(const carry_dit_call *call) {
    carry_dit *dit = call->dit;
    carry_dit_cache *cache = call->cache;
    const carry_dit_config *c = &dit->config;
    const carry_tensor sinusoid = carry_view_2d(cache->sinusoid, CARRY_F32, call->chunks, c->freq_dim);
    const carry_tensor e = carry_view_2d(cache->time, CARRY_F32, call->chunks, c->dim);
    const carry_tensor hidden = carry_view_2d(cache->time + call->chunks * c->dim, CARRY_F32, call->chunks, c->dim);
    const carry_tensor projected = carry_view_2d(cache->projected, CARRY_F32, call->chunks, 6 * c->dim);
    for (int i = 0; i < call->chunks; i++) {
        carry_dit_sinusoid(cache->sinusoid + i * c->freq_dim, c->freq_dim, call->chunk[i].t);
    }
    CARRY_TRY(carry_dit_affine(dit->ctx, hidden, sinusoid, carry_dit_outer_weight(dit, CARRY_DIT_TIME_0),
                               carry_dit_outer_weight(dit, CARRY_DIT_TIME_0_BIAS)));
    CARRY_TRY(carry_activate(dit->ctx, hidden, hidden, CARRY_SILU));
    CARRY_TRY(carry_dit_affine(dit->ctx, e, hidden, carry_dit_outer_weight(dit, CARRY_DIT_TIME_2),
                               carry_dit_outer_weight(dit, CARRY_DIT_TIME_2_BIAS)));
    CARRY_TRY(carry_activate(dit->ctx, hidden, e, CARRY_SILU));
    return carry_dit_affine(dit->ctx, projected, hidden, carry_dit_outer_weight(dit, CARRY_DIT_PROJECTION),
                            carry_dit_outer_weight(dit, CARRY_DIT_PROJECTION_BIAS));
}

static carry_status embed(const carry_dit_call *call) {
    carry_dit *dit = call->dit;
    carry_dit_cache *cache = call->cache;
    const carry_dit_config *c = &dit->config;
    const int64_t patch = c->in_dim * c->patch[1] * c->patch[2];
    const int64_t head = carry_dit_head(dit);
    CARRY_SPAN(dit->ctx, "dit", "embed");
    CARRY_TRY(embed_times(call));
    for (int i = 0; i < call->chunks; i++) {
        carry_dit_patchify(dit->ctx, cache->wide + call->row[i] * patch, &call->chunk[i].latents, c->patch + 1);
        carry_dit_rotary_table(cache->table + call->row[i] * head, cache->positions, head, call->chunk[i].start,
                               call->chunk[i].latents.shape[1], cache->rows, cache->columns);
    }
    return carry_dit_affine(dit->ctx, carry_view_2d(cache->x, CARRY_F32, call->tokens, c->dim),
                            carry_view_2d(cache->wide, CARRY_F32, call->tokens, patch),
                            carry_dit_outer_weight(dit, CARRY_DIT_PATCH),
                            carry_dit_outer_weight(dit, CARRY_DIT_PATCH_BIAS));
}

/* The velocity of a chunk: LN(x)(1 + s1) + s0 with s = modulation + e, and the last product. */
static carry_status finish(const carry_dit_call *call, int i) {
    carry_dit *dit = call->dit;
    carry_dit_cache *cache = call->cache;
    const carry_dit_config *c = &dit->config;
    const int64_t rows = call->row[i + 1] - call->row[i];
    const carry_tensor W = carry_dit_outer_weight(dit, CARRY_DIT_HEAD);
    const carry_tensor normed = carry_view_2d(cache->normed, CARRY_F32, rows, c->dim);
    const float *own = carry_dit_outer_weight(dit, CARRY_DIT_HEAD_MODULATION).data;
    float *shift = cache->head_modulation;
    for (int64_t j = 0; j < 2 * c->dim; j++) {
        shift[j] = own[j] + cache->time[i * c->dim + j % c->dim];
    }
    CARRY_SPAN(dit->ctx, "dit", "head");
    CARRY_TRY(carry_layer_norm(dit->ctx, normed,
                               carry_view_2d(cache->x + call->row[i] * c->dim, CARRY_F32, rows, c->dim),
                               carry_view_1d(shift + c->dim, CARRY_F32, c->dim),
                               carry_view_1d(shift, CARRY_F32, c->dim), 1.0f, (float)c->eps));
    CARRY_TRY(carry_dit_affine(dit->ctx, carry_view_2d(cache->wide, CARRY_F32, rows, W.shape[0]), normed, W,
                               carry_dit_outer_weight(dit, CARRY_DIT_HEAD_BIAS)));
    carry_dit_unpatchify(dit->ctx, &call->chunk[i].velocity, cache->wide, c->patch + 1);
    return CARRY_OK;
}

carry_status carry_dit_forward(carry_dit *dit, carry_dit_cache *cache, const carry_dit_chunk *chunk, int chunks,
                               float bias) {
    carry_dit_call call = {.dit = dit, .cache = cache, .chunk = chunk, .chunks = chunks, .bias = bias};
    CARRY_SPAN(dit->ctx, "dit", "forward");
    CARRY_TRY(check_call(&call));
    /* From here on slots are written: a forward that fails leaves no frame that is half of it. */
    const int64_t end = chunk[chunks - 1].start + chunk[chunks - 1].latents.shape[1];
    cache->next = chunk[0].start;
    cache->top = end > cache->top ? end : cache->top;
    CARRY_TRY(embed(&call));
    for (int64_t block = 0; block < dit->config.num_layers; block++) {
        CARRY_TRY(carry_dit_block_forward(&call, block));
    }
    for (int c = 0; c < chunks; c++) {
        if (chunk[c].velocity.data != NULL) {
            CARRY_TRY(finish(&call, c));
        }
    }
    cache->next = end;
    dit->counts.forwards++;
    carry_span_work(dit->ctx, 0.0, (double)call.tokens);
    return CARRY_OK;
}
