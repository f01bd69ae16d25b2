/* A forward of the video transformer over its cache: checks, embeddings, blocks, head. */
#include <inttypes.h>
#include <math.h>

#include "carry/ops.h"
#include "core/context.h"
#include "core/span.h"
#include "core/tensor.h"
#include "model/dit/dit_cache.h"
#include "model/host.h"
#include "ops/sampler.h"

static carry_status check_tensor(const carry_dit_cache *cache, const char *name, const carry_tensor *tensor,
                                 int64_t channels) {
    carry_ctx *ctx = cache->dit->ctx;
    if (tensor->rank != 4) {
        return carry_fail(ctx, CARRY_ESHAPE, "%s have rank %d where 4 is needed: channels, frames, height, width", name,
                          tensor->rank);
    }
    const int64_t shape[4] = {channels, tensor->shape[1], cache->options.height, cache->options.width};
    CARRY_TRY(carry_tensor_expect(ctx, name, tensor, 4, shape));
    if (tensor->dtype != CARRY_F32 || !carry_tensor_is_packed(tensor, 0) ||
        (tensor->device != 0 && tensor->device != cache->dit->own.device)) {
        return carry_fail(ctx, CARRY_EDTYPE, "%s must be packed f32 on the CPU or the model's device", name);
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
        if (chunk->velocity.device != chunk->latents.device) {
            return carry_fail(dit->ctx, CARRY_EDEVICE, "velocity is on device %d and latents are on device %d",
                              chunk->velocity.device, chunk->latents.device);
        }
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

/* Checks that the first chunk continues the stream or starts again at one of the newest frames, and that all frames it
   attends to are still there. */
static carry_status check_start(const carry_dit_cache *cache, const carry_dit_chunk *first) {
    const int64_t sink = cache->options.sink;
    const int64_t end = first->start + first->latents.shape[1];
    const int64_t low = end - (cache->options.window - sink);
    const int64_t gone = cache->top - cache->ring; /* frames of the ring below this number are lost */
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

static carry_status check_call(carry_dit_chunks *call) {
    const carry_dit_cache *cache = call->cache;
    carry_ctx *ctx = call->cache->dit->ctx;
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

/* Computes the sinusoids of every chunk, [chunks, freq_dim], and copies them to the model's device. */
static carry_status bring_times(const carry_dit_chunks *call) {
    carry_dit_cache *cache = call->cache;
    const int64_t freq_dim = cache->dit->config.freq_dim;
    void *slot = cache->host_sinusoid.data;
    CARRY_TRY(cache->dit->own.device != 0 ? carry_upload_slot(&cache->time_upload, &slot) : CARRY_OK);
    for (int i = 0; i < call->chunks; i++) {
        carry_dit_sinusoid((float *)slot + i * freq_dim, freq_dim, call->chunk[i].t);
    }
    return cache->dit->own.device != 0 ? carry_upload_send(&cache->time_upload, cache->sinusoid.data,
                                                           (size_t)(call->chunks * freq_dim) * sizeof(float))
                                       : CARRY_OK;
}

/* Computes the table of positions. Chunks are consecutive, so the table depends only on the first frame and the number
   of tokens; the denoising steps of a chunk share it. */
static carry_status bring_table(const carry_dit_chunks *call) {
    carry_dit_cache *cache = call->cache;
    const int64_t start = call->chunk[0].start;
    const int64_t head = carry_dit_head(cache->dit);
    const bool is_far = cache->dit->own.device != 0;
    void *slot = cache->host_table.data;
    if (cache->table_start == start && cache->table_rows == call->tokens) {
        return CARRY_OK;
    }
    CARRY_TRY(is_far ? carry_upload_slot(&cache->table_upload, &slot) : CARRY_OK);
    carry_dit_rotary_table(slot, cache->positions, head, start, call->tokens / cache->per_frame, cache->rows,
                           cache->columns);
    cache->table_rows = 0; /* until it is uploaded */
    CARRY_TRY(is_far ? carry_upload_send(&cache->table_upload, cache->table.data,
                                         (size_t)(call->tokens * head) * sizeof(float))
                     : CARRY_OK);
    cache->table_start = start;
    cache->table_rows = call->tokens;
    return CARRY_OK;
}

/* A view of `rows` rows of patches, each of `width` elements, in host memory or on the device. */
static carry_tensor patches_of(carry_tensor patches, int64_t first, int64_t rows, int64_t width) {
    return carry_reshape_2d(carry_slice(patches, first * width, rows * width), rows, width);
}

/* Copies the inputs that are computed in host memory to the model's device. */
static carry_status bring(const carry_dit_chunks *call) {
    carry_dit_cache *cache = call->cache;
    carry_dit *dit = cache->dit;
    const carry_dit_config *c = &dit->config;
    const int64_t width = c->in_dim * c->patch[1] * c->patch[2];
    bool is_here = false; /* chunks are in host memory, but the device has its own memory */
    CARRY_SPAN(dit->ctx, "dit", "bring");
    CARRY_TRY(bring_times(call));
    CARRY_TRY(bring_table(call));
    for (int i = 0; i < call->chunks; i++) {
        if (call->chunk[i].latents.device != dit->own.device) {
            carry_dit_patchify(dit->ctx, patches_of(cache->host_patches, call->row[i], 1, width).data,
                               &call->chunk[i].latents, c->patch + 1, false);
            is_here = true;
        }
    }
    return is_here ? carry_dit_cache_bring(cache, patches_of(cache->patches, 0, call->tokens, width),
                                           patches_of(cache->host_patches, 0, call->tokens, width))
                   : CARRY_OK;
}

/* Computes e and e0 of every chunk: [chunks, dim] and [chunks, 6 dim], in f32. */
static carry_status embed_times(const carry_dit_chunks *call) {
    carry_dit_cache *cache = call->cache;
    carry_dit *dit = cache->dit;
    const carry_tensor sinusoid = carry_slice(cache->sinusoid, 0, call->chunks);
    const carry_tensor e = carry_slice(cache->time, 0, call->chunks);
    const carry_tensor hidden = carry_slice(cache->time, call->chunks, call->chunks);
    CARRY_TRY(carry_dit_outer_affine(dit, hidden, sinusoid, CARRY_DIT_TIME_0, CARRY_SILU));
    CARRY_TRY(carry_dit_outer_affine(dit, e, hidden, CARRY_DIT_TIME_2, CARRY_NO_ACTIVATION));
    CARRY_TRY(carry_activate(dit->ctx, hidden, e, CARRY_SILU));
    return carry_dit_outer_affine(dit, carry_slice(cache->projected, 0, call->chunks), hidden, CARRY_DIT_PROJECTION,
                                  CARRY_NO_ACTIVATION);
}

static carry_status embed(const carry_dit_chunks *call) {
    carry_dit_cache *cache = call->cache;
    carry_dit *dit = cache->dit;
    const carry_dit_config *c = &dit->config;
    const int64_t width = c->in_dim * c->patch[1] * c->patch[2];
    const carry_dit_rows rows = carry_dit_rows_in(&cache->room, dit, call->tokens);
    carry_tensor patches = patches_of(cache->patches, 0, call->tokens, width);
    CARRY_SPAN(dit->ctx, "dit", "embed");
    CARRY_TRY(embed_times(call));
    for (int i = 0; i < call->chunks; i++) {
        const int64_t count = call->row[i + 1] - call->row[i];
        if (call->chunk[i].latents.device == dit->own.device) {
            CARRY_TRY(carry_patchify(dit->ctx, patches_of(cache->patches, call->row[i], count, width),
                                     call->chunk[i].latents, c->patch + 1, false));
        }
    }
    if (cache->options.dtype != CARRY_F32) {
        const carry_tensor narrow = carry_reshape_2d(cache->room.wide, call->tokens, width);
        CARRY_TRY(carry_convert(dit->ctx, narrow, patches));
        patches = narrow;
    }
    return carry_dit_outer_affine(dit, rows.x, patches, CARRY_DIT_PATCH, CARRY_NO_ACTIVATION);
}

/* Computes the velocity of a chunk: LN(x)(1 + s1) + s0 with s = modulation + e, then the last product. */
static carry_status finish(const carry_dit_chunks *call, int i) {
    carry_dit_cache *cache = call->cache;
    carry_dit *dit = cache->dit;
    const carry_dit_config *c = &dit->config;
    const int64_t rows = call->row[i + 1] - call->row[i];
    const int64_t width = c->out_dim * c->patch[1] * c->patch[2];
    const carry_tensor velocity = call->chunk[i].velocity;
    const carry_tensor normed = carry_slice(cache->room.h, 0, rows);
    const carry_tensor out = patches_of(cache->patches, 0, rows, width);
    const carry_tensor made = cache->options.dtype == CARRY_F32 ? out : carry_reshape_2d(cache->room.wide, rows, width);
    const carry_tensor e = carry_reshape_1d(carry_slice(cache->time, i, 1), c->dim);
    CARRY_SPAN(dit->ctx, "dit", "head");
    CARRY_TRY(carry_convert(dit->ctx, cache->shift, carry_dit_outer_weight(dit, CARRY_DIT_HEAD_MODULATION)));
    CARRY_TRY(carry_add_bias(dit->ctx, cache->shift, e));
    CARRY_TRY(carry_layer_norm(dit->ctx, normed, carry_slice(cache->room.x, call->row[i], rows),
                               carry_reshape_1d(carry_slice(cache->shift, 1, 1), c->dim),
                               carry_reshape_1d(carry_slice(cache->shift, 0, 1), c->dim), 1.0f, (float)c->eps));
    CARRY_TRY(carry_dit_outer_affine(dit, made, normed, CARRY_DIT_HEAD, CARRY_NO_ACTIVATION));
    CARRY_TRY(made.data != out.data ? carry_convert(dit->ctx, out, made) : CARRY_OK);
    if (velocity.device == dit->own.device) {
        return carry_unpatchify(dit->ctx, velocity, out, c->patch + 1, true);
    }
    CARRY_TRY(carry_read(dit->ctx, patches_of(cache->host_patches, 0, rows, width), out));
    carry_dit_unpatchify(dit->ctx, &velocity, cache->host_patches.data, c->patch + 1);
    return CARRY_OK;
}

/* Gives the cache rows of a chunk's frames, from the frame of token `at` on, as far as their slots are consecutive. */
static int64_t place(const carry_dit_call *call, int64_t block, int64_t group, int64_t at, carry_tensor *k,
                     carry_tensor *v) {
    const carry_dit_chunks *chunks = call->owner;
    const carry_dit_cache *cache = chunks->cache;
    const int64_t frame = chunks->chunk[group].start + at / cache->per_frame;
    const int64_t end = chunks->chunk[group].start + chunks->chunk[group].latents.shape[1];
    const int64_t slot = carry_dit_slot_of(cache, frame);
    int64_t count = 1;
    while (frame + count < end && carry_dit_slot_of(cache, frame + count) == slot + count) {
        count++;
    }
    const int64_t first = (block * (cache->options.sink + cache->ring) + slot) * cache->per_frame;
    *k = carry_slice(cache->keys, first, count * cache->per_frame);
    *v = carry_slice(cache->values, first, count * cache->per_frame);
    return count * cache->per_frame;
}

static carry_attention_args see_frames(const carry_dit_call *call, int64_t block, const carry_dit_rows *r,
                                       int64_t group, carry_key_run run[CARRY_MAX_KEY_RUNS]) {
    const carry_dit_chunks *chunks = call->owner;
    const carry_dit_cache *cache = chunks->cache;
    const carry_dit *dit = cache->dit;
    const int64_t start = chunks->chunk[group].start;
    const int64_t rows = call->row[group + 1] - call->row[group];
    const int64_t keys = (cache->options.sink + cache->ring) * cache->per_frame;
    return (carry_attention_args){
        .o = carry_dit_heads(dit, r->o, call->row[group], rows),
        .q = carry_dit_heads(dit, r->q, call->row[group], rows),
        .k = carry_dit_heads(dit, cache->keys, block * keys, keys),
        .v = carry_dit_heads(dit, cache->values, block * keys, keys),
        .run = run,
        .runs = carry_dit_runs(cache, start, start + chunks->chunk[group].latents.shape[1], chunks->bias, run)};
}

static carry_attention_args see_text(const carry_dit_call *call, int64_t block, const carry_dit_rows *r, int64_t group,
                                     carry_key_run run[CARRY_MAX_KEY_RUNS]) {
    const carry_dit_chunks *chunks = call->owner;
    const carry_dit_cache *cache = chunks->cache;
    const int64_t length = cache->dit->config.text_len;
    const int64_t rows = cache->text_rows;
    int runs = 0;
    (void)group; /* all chunks have the same text */
    if (cache->dit->own.device != 0 && rows < length - 1) {
        /* Rows after the prompt are zeros, and Wan attends to them (no mask, no key lengths). Their keys and values are
           all equal, so one of them with the logarithm of their number as its bias gives the same sum. */
        run[runs++] = (carry_key_run){.first = 0, .count = rows};
        run[runs++] = (carry_key_run){.first = rows, .count = 1, .bias = logf((float)(length - rows))};
    }
    return (carry_attention_args){.run = run,
                                  .runs = runs,
                                  .o = carry_dit_heads(cache->dit, r->co, 0, chunks->tokens),
                                  .q = carry_dit_heads(cache->dit, r->cq, 0, chunks->tokens),
                                  .k = carry_dit_heads(cache->dit, cache->text_keys, block * length, length),
                                  .v = carry_dit_heads(cache->dit, cache->text_values, block * length, length)};
}

static carry_status run_blocks(const carry_dit_chunks *chunks) {
    carry_dit_cache *cache = chunks->cache;
    carry_dit *dit = cache->dit;
    const carry_dit_call call = {.dit = dit,
                                 .groups = chunks->chunks,
                                 .row = chunks->row,
                                 .e0 = carry_slice(cache->projected, 0, chunks->chunks),
                                 .table = carry_slice(cache->table, 0, chunks->tokens),
                                 .sums = cache->sums,
                                 .owner = chunks,
                                 .self = see_frames,
                                 .place = place,
                                 .cross_groups = 1,
                                 .cross = see_text,
                                 .few = cache->few,
                                 .codes = cache->codes,
                                 .scratch = cache->attention,
                                 .scratch_bytes = cache->attention_bytes};
    carry_dit_rows rows = carry_dit_rows_in(&cache->room, dit, chunks->tokens);
    const int64_t last = dit->config.num_layers - 1;
    const carry_tensor m[2] = {carry_slice(cache->m, 0, chunks->chunks),
                               carry_slice(cache->m, CARRY_DIT_CHUNKS, chunks->chunks)};
    const bool chains = dit->own.device != 0 && dit->mesh == NULL;
    bool wants_more = dit->mesh != NULL; /* a mesh counts its all-reduces: every forward must have the same number */
    for (int i = 0; i < chunks->chunks; i++) {
        wants_more = wants_more || chunks->chunk[i].velocity.data != NULL;
    }
    for (int64_t block = 0; block <= last; block++) {
        rows.m = m[chains ? block % 2 : 0];
        rows.next_m = chains ? m[1 - block % 2] : (carry_tensor){.data = NULL};
        CARRY_TRY(block < last || wants_more ? carry_dit_block_forward(&call, block, &rows, chains && block > 0)
                                             : carry_dit_block_keys(&call, block, &rows, chains && block > 0));
    }
    return CARRY_OK;
}

static carry_status work(const carry_dit_chunks *call) {
    CARRY_TRY(embed(call));
    CARRY_TRY(run_blocks(call));
    for (int c = 0; c < call->chunks; c++) {
        if (call->chunk[c].velocity.data != NULL) {
            CARRY_TRY(finish(call, c));
        }
    }
    return CARRY_OK;
}

carry_status carry_dit_forward(carry_dit *dit, carry_dit_cache *cache, const carry_dit_chunk *chunk, int chunks,
                               float bias) {
    carry_dit_chunks call = {.cache = cache, .chunk = chunk, .chunks = chunks, .bias = bias};
    CARRY_SPAN(dit->ctx, "dit", "forward");
    if (cache->dit != dit) {
        return carry_fail(dit->ctx, CARRY_EARGUMENT, "the cache belongs to another model");
    }
    CARRY_TRY(check_call(&call));
    /* Slots are written from here on: if the forward fails, its partly written frames do not count. */
    const int64_t end = chunk[chunks - 1].start + chunk[chunks - 1].latents.shape[1];
    cache->next = chunk[0].start;
    cache->top = end > cache->top ? end : cache->top;
    CARRY_TRY(bring(&call));
    CARRY_TRY(carry_dit_run(&call, work));
    cache->next = end;
    dit->counts.forwards++;
    carry_span_work(dit->ctx, 0.0, (double)call.tokens);
    return CARRY_OK;
}
