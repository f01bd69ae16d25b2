/* The state between chunks: keys and values of frames (the first `sink` frames are kept, the others are in a ring), and
   keys and values of the text. A frame's slot depends only on its number, so going back to an earlier frame of the ring
   only overwrites its slot. */
#include "model/dit/dit_cache.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>

#include "carry/device.h"
#include "carry/ops.h"
#include "core/error.h"
#include "core/memory.h"
#include "core/span.h"
#include "core/tensor.h"
#include "model/dit/dit_fp8.h"

#define TAKE(arena, device, dtype, ...)                                                               \
    carry_arena_tensor(arena, device, dtype, (int)(sizeof(int64_t[]){__VA_ARGS__} / sizeof(int64_t)), \
                       (const int64_t[]){__VA_ARGS__})

static int64_t larger(int64_t a, int64_t b) {
    return a > b ? a : b;
}

static carry_tensor shape_of(const carry_dit_cache *cache, int64_t rows, int64_t heads) {
    return carry_view_on(cache->dit->own.device, NULL, cache->options.dtype, 3,
                         (const int64_t[]){rows, heads, carry_dit_head(cache->dit)});
}

/* The largest workspace of attention with up to `frames` frames of queries. Fewer frames may need more, since queries
   are split evenly into blocks (300 are two blocks of 150, and 200 one of 200). */
static size_t attention_of(const carry_dit_cache *cache, int64_t heads, int64_t frames, int64_t keys) {
    const carry_tensor k = shape_of(cache, keys, heads);
    size_t most = 0;
    for (int64_t count = 1; count <= frames; count++) {
        const carry_tensor q = shape_of(cache, count * cache->per_frame, heads);
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

/* Places the inputs that are computed in host memory; the CPU uses them there. */
static void lay_out_host(carry_dit_cache *cache, carry_arena *arena) {
    const carry_dit_config *c = &cache->dit->config;
    const int64_t patch = larger(c->in_dim, c->out_dim) * c->patch[1] * c->patch[2];
    cache->host_table = TAKE(arena, 0, CARRY_F32, cache->tokens, carry_dit_head(cache->dit) / 2, 2);
    cache->host_patches = TAKE(arena, 0, CARRY_F32, cache->tokens * patch);
    cache->host_sinusoid = TAKE(arena, 0, CARRY_F32, CARRY_DIT_CHUNKS, c->freq_dim);
    cache->host_text = TAKE(arena, 0, CARRY_F32, c->text_len, c->text_dim);
    cache->positions = TAKE(arena, 0, CARRY_F32, CARRY_DIT_POSITIONS, carry_dit_head(cache->dit)).data;
}

/* A tensor of the same shape on the device. */
static carry_tensor beside(const carry_dit_cache *cache, carry_arena *arena, carry_tensor host) {
    const int device = cache->dit->own.device;
    return device == 0 ? host : carry_arena_tensor(arena, device, host.dtype, host.rank, host.shape);
}

/* True if cross-attention may use carry_key_weights: only on a GPU, in bf16, and for the shapes for which it is fast.
   Models on a mesh, and on the CPU, where sums keep their order, use ordinary attention. */
static bool takes_few(const carry_dit_cache *cache) {
    const carry_dit *dit = cache->dit;
    return dit->own.device != 0 && dit->mesh == NULL && cache->options.dtype == CARRY_BF16 &&
           carry_dit_head(dit) == 128 && dit->config.num_heads <= CARRY_DIT_FEW &&
           dit->config.text_len >= CARRY_DIT_FEW;
}

static void lay_out(carry_dit_cache *cache, carry_arena *arena) {
    const carry_dit *dit = cache->dit;
    const carry_dit_config *c = &dit->config;
    const carry_dtype dtype = cache->options.dtype;
    const int device = dit->own.device;
    const int64_t width = dit->heads * carry_dit_head(dit);
    const int64_t keys = (cache->options.sink + cache->ring) * cache->per_frame;
    const int64_t chunks = CARRY_DIT_CHUNKS;
    cache->keys = TAKE(arena, device, dtype, c->num_layers * keys, width);
    cache->values = TAKE(arena, device, dtype, c->num_layers * keys, width);
    cache->text_keys = TAKE(arena, device, dtype, c->num_layers * c->text_len, c->dim);
    cache->text_values = TAKE(arena, device, dtype, c->num_layers * c->text_len, c->dim);
    if (takes_few(cache)) {
        cache->few.out = TAKE(arena, device, dtype, c->num_layers * c->dim, c->num_heads * CARRY_DIT_FEW);
    }
    carry_dit_room_take(&cache->room, dit, arena, dtype, cache->tokens);
    cache->codes = carry_dit_fp8_take(dit, arena, cache->tokens);
    cache->sums = TAKE(arena, device, CARRY_F32, 2 * cache->tokens);
    cache->table = beside(cache, arena, cache->host_table);
    cache->patches = beside(cache, arena, cache->host_patches);
    cache->sinusoid = beside(cache, arena, cache->host_sinusoid);
    cache->text = beside(cache, arena, cache->host_text);
    cache->time = TAKE(arena, device, CARRY_F32, 2 * chunks, c->dim);
    cache->projected = TAKE(arena, device, CARRY_F32, chunks, CARRY_DIT_SHIFTS * c->dim);
    cache->m = TAKE(arena, device, CARRY_F32, 2 * chunks, CARRY_DIT_SHIFTS * c->dim);
    cache->shift = TAKE(arena, device, CARRY_F32, 2, c->dim);
    cache->text_hidden = TAKE(arena, device, dtype, c->text_len, c->dim);
    cache->text_narrow = TAKE(arena, device, dtype, c->text_len, c->text_dim);
    cache->text_embedded = TAKE(arena, device, dtype, c->text_len, c->dim);
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

static size_t bytes_of(const carry_tensor *tensor) {
    return (size_t)carry_tensor_count(tensor) * carry_dtype_size(tensor->dtype);
}

static carry_status open_uploads(carry_dit_cache *cache) {
    carry_ctx *ctx = cache->dit->ctx;
    const int device = cache->dit->own.device;
    CARRY_TRY(carry_upload_open(ctx, &cache->table_upload, device, bytes_of(&cache->host_table), 2));
    return carry_upload_open(ctx, &cache->time_upload, device, bytes_of(&cache->host_sinusoid), CARRY_UPLOAD_SLOTS);
}

static carry_status take_memory(carry_dit_cache *cache) {
    const carry_dit *dit = cache->dit;
    carry_arena here = carry_arena_over(NULL, 0);
    carry_arena there = carry_arena_over(NULL, 0);
    size_t host = 0;
    lay_out_host(cache, &here);
    lay_out(cache, &there);
    const bool fits = carry_arena_total(&here, &host) && carry_arena_total(&there, &cache->bytes);
    cache->host = fits ? carry_aligned_new(host) : NULL;
    if (cache->host == NULL ||
        carry_device_alloc(dit->ctx, &cache->memory, dit->own.device, cache->bytes) != CARRY_OK) {
        return carry_fail(dit->ctx, CARRY_EMEMORY,
                          "out of memory: a cache of %" PRId64 " frames of %" PRId64 " tokens in %" PRId64
                          " blocks: %.1f GB",
                          cache->options.sink + cache->ring, cache->per_frame, dit->config.num_layers,
                          fits ? (double)cache->bytes * 1e-9 : -1.0);
    }
    here = carry_arena_over(cache->host, host);
    there = carry_arena_over(cache->memory, cache->bytes);
    lay_out_host(cache, &here);
    lay_out(cache, &there);
    return dit->own.device != 0 ? open_uploads(cache) : CARRY_OK;
}

/* If ranks cannot access each other's memory, all-reduces stay on the host. */
static carry_status open_sums(carry_dit_cache *cache) {
    carry_dit *dit = cache->dit;
    const size_t rows = (size_t)cache->tokens;
    const size_t large = rows * (size_t)dit->config.dim * carry_dtype_size(cache->options.dtype);
    const size_t small = 2 * rows * sizeof(float);
    if (dit->mesh == NULL || dit->own.device == 0) {
        return CARRY_OK;
    }
    const carry_status status =
        carry_sums_open(dit->mesh, &cache->reductions, dit->own.device, large > small ? large : small);
    if (status == CARRY_EUNSUPPORTED) {
        carry_log(dit->ctx, CARRY_LOG_INFO, "all-reduces go through host memory: %s", carry_ctx_error(dit->ctx));
        return CARRY_OK;
    }
    return status;
}

carry_status carry_dit_cache_new(carry_dit *dit, carry_dit_cache **made, const carry_dit_cache_options *options) {
    *made = NULL;
    CARRY_TRY(check_options(dit, options));
    carry_dit_cache *cache = calloc(1, sizeof *cache);
    if (cache == NULL) {
        return carry_fail(dit->ctx, CARRY_EMEMORY, "out of memory: a cache");
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
    carry_status status = options->dtype != CARRY_F32 ? carry_parameters_want_low(&dit->own, options->dtype) : CARRY_OK;
    status = status == CARRY_OK ? take_memory(cache) : status;
    status = status == CARRY_OK ? open_sums(cache) : status;
    if (status != CARRY_OK) {
        carry_dit_cache_free(cache);
        return status;
    }
    carry_dit_positions(cache->positions, carry_dit_head(dit));
    *made = cache;
    return CARRY_OK;
}

void carry_dit_cache_free(carry_dit_cache *cache) {
    if (cache != NULL) {
        carry_dit_forget_graphs(cache);
        carry_device_free(cache->dit->ctx, cache->dit->own.device, cache->memory); /* waits for the device */
        carry_sums_close(cache->reductions);
        carry_upload_close(&cache->table_upload);
        carry_upload_close(&cache->time_upload);
        free(cache->host);
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
                   carry_key_run run[CARRY_MAX_KEY_RUNS]) {
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

carry_status carry_dit_cache_bring(const carry_dit_cache *cache, carry_tensor to, carry_tensor from) {
    return to.data != from.data ? carry_copy(cache->dit->ctx, to, from) : CARRY_OK;
}

static carry_status embed_text(carry_dit_cache *cache, carry_tensor conditioning) {
    carry_dit *dit = cache->dit;
    const int64_t given = conditioning.data != NULL ? conditioning.shape[0] : 0;
    const carry_tensor hidden = cache->text_hidden;
    carry_tensor text = cache->text;
    CARRY_TRY(carry_zero(dit->ctx, cache->host_text));
    if (given > 0) {
        CARRY_TRY(carry_convert(dit->ctx, carry_slice(cache->host_text, 0, given), conditioning));
    }
    CARRY_TRY(carry_dit_cache_bring(cache, text, cache->host_text));
    if (cache->options.dtype != CARRY_F32) {
        text = cache->text_narrow;
        CARRY_TRY(carry_convert(dit->ctx, text, cache->text));
    }
    CARRY_TRY(carry_dit_outer_affine(dit, hidden, text, CARRY_DIT_TEXT_0, CARRY_GELU));
    return carry_dit_outer_affine(dit, cache->text_embedded, hidden, CARRY_DIT_TEXT_2, CARRY_NO_ACTIVATION);
}

/* Sets up cross-attention over the rows of the prompt and one row that stands for all padding rows, which are equal:
   the logarithm of their number is added to its score. */
static void set_few(carry_dit_cache *cache) {
    const int64_t keys = cache->text_rows + 1;
    cache->few.keys = 0;
    if (takes_few(cache) && keys <= CARRY_DIT_FEW) {
        cache->few.keys = keys;
        cache->few.stride = (keys + 7) / 8 * 8;
        cache->few.last = logf((float)(cache->dit->config.text_len - cache->text_rows));
        cache->few.k = cache->text_keys;
    }
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
    cache->has_text = false; /* until all of it is computed */
    const int64_t given = conditioning.data != NULL ? conditioning.shape[0] : 0;
    const int64_t whole = (given + 4) / 4 * 4 - 1; /* with the row for the padding, a multiple of 4: fewer different
                                                      graphs */
    cache->text_rows = whole < c->text_len ? whole : c->text_len;
    set_few(cache);
    CARRY_TRY(embed_text(cache, conditioning));
    for (int64_t block = 0; block < c->num_layers; block++) {
        const carry_tensor k = carry_slice(cache->text_keys, block * c->text_len, c->text_len);
        const carry_dit_rows rows = {
            .ck_in = k, .ck = k, .cv = carry_slice(cache->text_values, block * c->text_len, c->text_len)};
        CARRY_TRY(carry_dit_text_keys(dit, block, cache->text_embedded, &rows));
        CARRY_TRY(cache->few.keys > 0 ? carry_dit_text_out(dit, block, &cache->few, rows.cv) : CARRY_OK);
    }
    cache->has_text = true;
    return CARRY_OK;
}
