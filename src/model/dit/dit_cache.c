/* What is carried over chunks: keys and values by frame, the first `sink` frames for good and the others in a ring; and
   those of the text. A frame's slot depends on its number alone, so that going back to an earlier frame of the ring is
   nothing but writing its slot again. */
#include "model/dit/dit_cache.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "carry/nn.h"
#include "carry/ops.h"
#include "core/error.h"
#include "core/memory.h"
#include "core/span.h"
#include "core/tensor.h"

static float *take(carry_arena *arena, int count, const int64_t *factors) {
    size_t elements = 0;
    if (!carry_size_product(&elements, factors, count, 1)) {
        arena->overflowed = true;
        return NULL;
    }
    return carry_arena_take(arena, elements, sizeof(float));
}

#define TAKE(arena, ...) \
    take(arena, (int)(sizeof(int64_t[]){__VA_ARGS__} / sizeof(int64_t)), (const int64_t[]){__VA_ARGS__})

static int64_t larger(int64_t a, int64_t b) {
    return a > b ? a : b;
}

/* The largest workspace that attention asks for, with up to `frames` frames of queries: fewer may need more, since
   queries are dealt out to blocks evenly (300 are two blocks of 150, and 200 one of 200). */
static size_t attention_of(const carry_dit_cache *cache, int64_t heads, int64_t frames, int64_t keys) {
    const int64_t head = carry_dit_head(cache->dit);
    const carry_tensor k = carry_view_3d(NULL, CARRY_F32, keys, heads, head);
    size_t most = 0;
    for (int64_t count = 1; count <= frames; count++) {
        const carry_tensor q = carry_view_3d(NULL, CARRY_F32, count * cache->per_frame, heads, head);
        const size_t bytes = carry_attention_workspace(&(carry_attention_args){.o = q, .q = q, .k = k, .v = k});
        most = bytes > most ? bytes : most;
    }
    return most;
}

static size_t attention_bytes(const carry_dit_cache *cache) {
    const carry_dit *dit = cache->dit;
    const int64_t keys = (cache->options.sink + cache->ring) * cache->per_frame;
    const size_t self = attention_of(cache, dit->heads, cache->options.chunk, keys);
    const size_t cross = attention_of(cache, dit->config.num_heads, cache->frames, dit->config.text_len);
    return self > cross ? self : cross;
}

static void lay_out(carry_dit_cache *cache, carry_arena *arena) {
    const carry_dit *dit = cache->dit;
    const carry_dit_config *c = &dit->config;
    const int64_t head = carry_dit_head(dit);
    const int64_t slots = cache->options.sink + cache->ring;
    const int64_t tokens = cache->tokens;
    const int64_t chunks = CARRY_DIT_CHUNKS;
    const int64_t patch = larger(c->in_dim, c->out_dim) * c->patch[1] * c->patch[2];
    cache->keys = TAKE(arena, c->num_layers, slots, cache->per_frame, dit->heads, head);
    cache->values = TAKE(arena, c->num_layers, slots, cache->per_frame, dit->heads, head);
    cache->text_keys = TAKE(arena, c->num_layers, c->text_len, c->dim);
    cache->text_values = TAKE(arena, c->num_layers, c->text_len, c->dim);
    cache->positions = TAKE(arena, CARRY_DIT_POSITIONS, head);
    cache->table = TAKE(arena, tokens, head);
    cache->x = TAKE(arena, tokens, c->dim);
    cache->normed = TAKE(arena, tokens, c->dim);
    cache->wide = TAKE(arena, tokens, larger(larger(4 * c->dim, dit->ffn), patch));
    cache->sums = TAKE(arena, larger(2 * tokens, c->text_len));
    cache->sinusoid = TAKE(arena, chunks, c->freq_dim);
    cache->time = TAKE(arena, 2, chunks, c->dim);
    cache->projected = TAKE(arena, chunks, 6, c->dim);
    cache->modulation = TAKE(arena, chunks, 6, c->dim);
    cache->head_modulation = TAKE(arena, 2, c->dim);
    cache->text = TAKE(arena, c->text_len, c->text_dim);
    cache->text_hidden = TAKE(arena, c->text_len, c->dim);
    cache->text_embedded = TAKE(arena, c->text_len, c->dim);
    cache->attention = carry_arena_take(arena, cache->attention_bytes, 1);
}

static carry_status check_options(carry_dit *dit, const carry_dit_cache_options *o) {
    CARRY_TRY(carry_dit_check_size(dit->ctx, &dit->config, o->height, o->width));
    if (o->chunk < 1 || o->sink < 0 || o->window > CARRY_DIT_POSITIONS || o->sink > CARRY_DIT_POSITIONS ||
        o->window < o->chunk || o->window - o->chunk < o->sink) {
        return carry_fail(dit->ctx, CARRY_ERANGE,
                          "chunks of %" PRId64 " frames in a window of %" PRId64 " with a sink of %" PRId64
                          ": the window must hold sink and chunk, and at most %d frames",
                          o->chunk, o->window, o->sink, CARRY_DIT_POSITIONS);
    }
    if (o->chunks < 0 || o->chunks > CARRY_DIT_CHUNKS) {
        return carry_fail(dit->ctx, CARRY_ERANGE, "%" PRId64 " chunks in a forward: 1 to %d are possible", o->chunks,
                          CARRY_DIT_CHUNKS);
    }
    return CARRY_OK;
}

carry_status carry_dit_cache_new(carry_dit *dit, carry_dit_cache **made, const carry_dit_cache_options *options) {
    *made = NULL;
    CARRY_TRY(check_options(dit, options));
    carry_dit_cache *cache = calloc(1, sizeof *cache);
    if (cache == NULL) {
        return carry_fail(dit->ctx, CARRY_EMEMORY, "no memory for a cache");
    }
    cache->dit = dit;
    cache->options = *options;
    cache->options.chunks = options->chunks > 0 ? options->chunks : 1;
    cache->rows = options->height / dit->config.patch[1];
    cache->columns = options->width / dit->config.patch[2];
    cache->per_frame = cache->rows * cache->columns;
    cache->frames = options->chunk * cache->options.chunks;
    cache->tokens = cache->frames * cache->per_frame;
    cache->ring = options->window - options->sink + cache->frames - options->chunk;
    cache->attention_bytes = attention_bytes(cache);
    carry_arena arena = carry_arena_over(NULL, 0);
    lay_out(cache, &arena);
    cache->memory = carry_arena_total(&arena, &cache->bytes) ? carry_aligned_new(cache->bytes) : NULL;
    if (cache->memory == NULL) {
        carry_status status = carry_fail(dit->ctx, CARRY_EMEMORY,
                                         "no memory for a cache of %" PRId64 " frames of %" PRId64 " tokens in %" PRId64
                                         " blocks: %.1f GB",
                                         options->sink + cache->ring, cache->per_frame, dit->config.num_layers,
                                         arena.overflowed ? -1.0 : (double)cache->bytes * 1e-9);
        carry_dit_cache_free(cache);
        return status;
    }
    arena = carry_arena_over(cache->memory, cache->bytes);
    lay_out(cache, &arena);
    carry_dit_positions(cache->positions, carry_dit_head(dit));
    *made = cache;
    return CARRY_OK;
}

void carry_dit_cache_free(carry_dit_cache *cache) {
    if (cache != NULL) {
        free(cache->memory);
        free(cache);
    }
}

size_t carry_dit_cache_bytes(const carry_dit_cache *cache) {
    return cache->bytes;
}

void carry_dit_cache_reset(carry_dit_cache *cache) {
    cache->next = 0;
    cache->top = 0;
}

int64_t carry_dit_cache_next(const carry_dit_cache *cache) {
    return cache->next;
}

int64_t carry_dit_cache_held(const carry_dit_cache *cache) {
    const int64_t sink = cache->options.sink;
    const int64_t oldest = larger(sink, cache->top - cache->ring);
    return (cache->next < sink ? cache->next : sink) + larger(0, cache->next - oldest);
}

int64_t carry_dit_slot_of(const carry_dit_cache *cache, int64_t frame) {
    const int64_t sink = cache->options.sink;
    return frame < sink ? frame : sink + (frame - sink) % cache->ring;
}

int carry_dit_runs(const carry_dit_cache *cache, int64_t start, int64_t end, float bias,
                   carry_key_run run[CARRY_KEY_RUNS]) {
    const int64_t sink = cache->options.sink;
    const int64_t low = larger(sink, end - (cache->options.window - sink)); /* of the ring */
    const int64_t first = sink > 0 ? 0 : low;
    int runs = 0;
    for (int64_t frame = first; frame < end; frame++) {
        frame = frame >= sink && frame < low ? low : frame;
        const int64_t at = carry_dit_slot_of(cache, frame) * cache->per_frame;
        const float own = frame == first || frame >= start ? 0.0f : bias;
        carry_key_run *last = runs > 0 ? &run[runs - 1] : NULL;
        if (last != NULL && last->first + last->count == at && last->bias == own) {
            last->count += cache->per_frame;
        } else {
            run[runs++] = (carry_key_run){.first = at, .count = cache->per_frame, .bias = own};
        }
    }
    return runs;
}

static carry_status embed_text(carry_dit_cache *cache, carry_tensor conditioning) {
    carry_dit *dit = cache->dit;
    const carry_dit_config *c = &dit->config;
    const int64_t given = conditioning.data != NULL ? conditioning.shape[0] : 0;
    const carry_tensor text = carry_view_2d(cache->text, CARRY_F32, c->text_len, c->text_dim);
    const carry_tensor hidden = carry_view_2d(cache->text_hidden, CARRY_F32, c->text_len, c->dim);
    const carry_tensor embedded = carry_view_2d(cache->text_embedded, CARRY_F32, c->text_len, c->dim);
    memset(cache->text, 0, (size_t)(c->text_len * c->text_dim) * sizeof(float));
    if (given > 0) {
        CARRY_TRY(carry_convert(dit->ctx, carry_view_2d(cache->text, CARRY_F32, given, c->text_dim), conditioning));
    }
    CARRY_TRY(carry_dit_affine(dit->ctx, hidden, text, carry_dit_outer_weight(dit, CARRY_DIT_TEXT_0),
                               carry_dit_outer_weight(dit, CARRY_DIT_TEXT_0_BIAS)));
    CARRY_TRY(carry_activate(dit->ctx, hidden, hidden, CARRY_GELU));
    return carry_dit_affine(dit->ctx, embedded, hidden, carry_dit_outer_weight(dit, CARRY_DIT_TEXT_2),
                            carry_dit_outer_weight(dit, CARRY_DIT_TEXT_2_BIAS));
}

carry_status carry_dit_cache_text(carry_dit_cache *cache, carry_tensor conditioning) {
    carry_dit *dit = cache->dit;
    const carry_dit_config *c = &dit->config;
    CARRY_SPAN(dit->ctx, "dit", "text");
    if (conditioning.data != NULL && (conditioning.rank != 2 || conditioning.shape[1] != c->text_dim ||
                                      conditioning.shape[0] < 0 || conditioning.shape[0] > c->text_len)) {
        char has[CARRY_SHAPE_TEXT];
        return carry_fail(dit->ctx, CARRY_ESHAPE,
                          "the conditioning has shape %s where [up to %" PRId64 ", %" PRId64 "] is needed",
                          carry_shape_text(has, conditioning.rank, conditioning.shape), c->text_len, c->text_dim);
    }
    cache->has_text = false; /* until all of it is there */
    CARRY_TRY(embed_text(cache, conditioning));
    const carry_tensor embedded = carry_view_2d(cache->text_embedded, CARRY_F32, c->text_len, c->dim);
    for (int64_t block = 0; block < c->num_layers; block++) {
        const int64_t at = block * c->text_len * c->dim;
        const carry_tensor k = carry_view_2d(cache->text_keys + at, CARRY_F32, c->text_len, c->dim);
        const carry_tensor v = carry_view_2d(cache->text_values + at, CARRY_F32, c->text_len, c->dim);
        CARRY_TRY(carry_dit_affine(dit->ctx, k, embedded, carry_dit_block_weight(dit, block, CARRY_DIT_CROSS_K),
                                   carry_dit_block_weight(dit, block, CARRY_DIT_CROSS_K_BIAS)));
        CARRY_TRY(carry_dit_norm(dit, cache->sums, k, carry_dit_block_weight(dit, block, CARRY_DIT_CROSS_NORM_K)));
        CARRY_TRY(carry_dit_affine(dit->ctx, v, embedded, carry_dit_block_weight(dit, block, CARRY_DIT_CROSS_V),
                                   carry_dit_block_weight(dit, block, CARRY_DIT_CROSS_V_BIAS)));
    }
    cache->has_text = true;
    return CARRY_OK;
}
