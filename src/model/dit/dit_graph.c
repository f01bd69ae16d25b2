/* Forwards as graphs: one for each set of kernel arguments (key_of).

   A forward of one chunk whose tensors are on the device launches some 400 kernels. Their arguments depend only on the
   chunk's position in the ring, the frames that it attends to, the KV bias, the number of text rows, and the addresses
   of latents and velocity: the time, the positions and the text are read from memory. A stream repeats the same call in
   every step, and in every round of the ring. */
#include "carry/device.h"
#include "core/context.h"
#include "model/dit/dit_cache.h"

static uint64_t mix(uint64_t key, uint64_t word) {
    key = (key ^ word) * 0x9e3779b97f4a7c15u;
    return key ^ key >> 29;
}

/* A hash of all values that the kernels' arguments depend on; never 0. */
static uint64_t key_of(const carry_dit_chunks *call) {
    const carry_dit_cache *cache = call->cache;
    uint64_t key = mix(1, (uint64_t)cache->text_rows);
    for (int c = 0; c < call->chunks; c++) {
        const carry_dit_chunk *chunk = &call->chunk[c];
        const int64_t end = chunk->start + chunk->latents.shape[1];
        carry_key_run run[CARRY_MAX_KEY_RUNS];
        const int runs = carry_dit_runs(cache, chunk->start, end, call->bias, run);
        key = mix(key, (uint64_t)(uintptr_t)chunk->latents.data);
        key = mix(key, (uint64_t)(uintptr_t)chunk->velocity.data);
        for (int64_t frame = chunk->start; frame < end; frame++) {
            key = mix(key, (uint64_t)carry_dit_slot_of(cache, frame));
        }
        for (int i = 0; i < runs; i++) {
            union {
                float value;
                uint32_t bits;
            } bias = {.value = run[i].bias};
            key = mix(mix(mix(key, (uint64_t)run[i].first), (uint64_t)run[i].count), bias.bits);
        }
    }
    return key != 0 ? key : 1;
}

/* Returns the graph with this key, or the least recently used one, emptied. */
static carry_dit_graph *find(carry_dit_cache *cache, uint64_t key) {
    carry_dit_graph *oldest = &cache->graph[0];
    for (int i = 0; i < CARRY_DIT_GRAPHS; i++) {
        carry_dit_graph *g = &cache->graph[i];
        if (g->key == key) {
            return g;
        }
        oldest = g->used < oldest->used ? g : oldest;
    }
    carry_ctx *ctx = cache->dit->ctx;
    const int device = cache->dit->own.device;
    if (oldest->graph != NULL) { /* it may still be running */
        (void)carry_stream_wait(ctx, device, carry_ctx_stream(ctx, device));
        carry_graph_free(ctx, device, oldest->graph);
    }
    *oldest = (carry_dit_graph){0};
    return oldest;
}

/* Records a call. The recording is ended even if the call fails. */
static carry_status record(const carry_dit_chunks *call, carry_status (*work)(const carry_dit_chunks *call),
                           carry_graph **graph) {
    carry_ctx *ctx = call->cache->dit->ctx;
    const int device = call->cache->dit->own.device;
    carry_stream *stream = carry_ctx_stream(ctx, device);
    CARRY_TRY(carry_graph_begin(ctx, device, stream));
    const carry_status status = work(call);
    const carry_status ended = carry_graph_end(ctx, graph, device, stream);
    if (status != CARRY_OK && ended == CARRY_OK) {
        carry_graph_free(ctx, device, *graph);
        *graph = NULL;
    }
    return status != CARRY_OK ? status : ended;
}

void carry_dit_forget_graphs(carry_dit_cache *cache) {
    carry_ctx *ctx = cache->dit->ctx;
    const int device = cache->dit->own.device;
    bool any = false;
    for (int i = 0; i < CARRY_DIT_GRAPHS; i++) {
        any = any || cache->graph[i].graph != NULL;
    }
    if (any) {
        (void)carry_stream_wait(ctx, device, carry_ctx_stream(ctx, device));
    }
    for (int i = 0; i < CARRY_DIT_GRAPHS; i++) {
        carry_graph_free(ctx, device, cache->graph[i].graph);
        cache->graph[i] = (carry_dit_graph){0};
    }
}

static void add_counts(carry_dit_counts *to, const carry_dit_counts *more, int64_t times) {
    to->large += times * more->large;
    to->small += times * more->small;
    to->large_bytes += times * more->large_bytes;
    to->small_bytes += times * more->small_bytes;
}

/* Recording runs no work: its all-reduces are counted when the graph is launched. */
static carry_status record_counted(const carry_dit_chunks *call, carry_status (*work)(const carry_dit_chunks *call),
                                   carry_dit_graph *found) {
    carry_dit_counts *counts = &call->cache->dit->counts;
    const carry_dit_counts before = *counts;
    const carry_status status = record(call, work, &found->graph);
    found->counts = *counts;
    add_counts(&found->counts, &before, -1);
    *counts = before;
    return status;
}

/* Making a graph may wait until the GPU is idle, and a graph of another rank on that GPU may wait for this rank. So the
   ranks of a mesh make their graphs together, while none of them has work on its GPU, and launch them when all are
   made. Fails on all ranks if it fails on one. */
static carry_status record_together(const carry_dit_chunks *call, carry_status (*work)(const carry_dit_chunks *call),
                                    carry_dit_graph *found) {
    const carry_dit *dit = call->cache->dit;
    const int device = dit->own.device;
    carry_stream *stream = carry_ctx_stream(dit->ctx, device);
    if (dit->mesh == NULL) {
        return record_counted(call, work, found);
    }
    CARRY_TRY(carry_stream_wait(dit->ctx, device, stream));
    CARRY_TRY(carry_barrier(dit->mesh));
    carry_status status = record_counted(call, work, found);
    status = status == CARRY_OK ? carry_stream_wait(dit->ctx, device, stream) : status;
    int64_t failed = status != CARRY_OK;
    CARRY_TRY(carry_all_reduce(dit->mesh, &failed, 1, CARRY_I64, CARRY_REDUCE_MAX));
    if (failed != 0 && status == CARRY_OK) {
        carry_graph_free(dit->ctx, device, found->graph);
        found->graph = NULL;
        return carry_fail(dit->ctx, CARRY_EPEER, "another rank of the mesh cannot record a forward");
    }
    return status;
}

/* Runs a call that was made before. */
static carry_status run_again(const carry_dit_chunks *call, carry_status (*work)(const carry_dit_chunks *call),
                              carry_dit_graph *found) {
    carry_dit_cache *cache = call->cache;
    carry_dit *dit = cache->dit;
    const int device = dit->own.device;
    if (cache->no_graph || cache->options.no_graphs) {
        return work(call);
    }
    if (found->graph == NULL && record_together(call, work, found) != CARRY_OK) {
        carry_log(dit->ctx, CARRY_LOG_WARNING, "forwards are not replayed as graphs: %s", carry_ctx_error(dit->ctx));
        cache->no_graph = true;
        return work(call);
    }
    CARRY_TRY(carry_graph_launch(dit->ctx, device, found->graph, carry_ctx_stream(dit->ctx, device)));
    add_counts(&dit->counts, &found->counts, 1);
    return CARRY_OK;
}

carry_status carry_dit_run(const carry_dit_chunks *call, carry_status (*work)(const carry_dit_chunks *call)) {
    carry_dit_cache *cache = call->cache;
    carry_dit *dit = cache->dit;
    const int device = dit->own.device;
    carry_stream *stream = carry_ctx_stream(dit->ctx, device);
    const bool by_host = dit->mesh != NULL && (cache->reductions == NULL || cache->options.no_graphs);
    if (device == 0 || stream == NULL || by_host || call->chunk[0].latents.device != device) {
        return work(call);
    }
    const uint64_t key = key_of(call);
    carry_dit_graph *found = find(cache, key);
    found->used = ++cache->graph_uses;
    if (found->key == 0) { /* new: a direct call initialises libraries and plans */
        found->key = key;
        return work(call);
    }
    dit->sums = cache->reductions;
    const carry_status status = run_again(call, work, found);
    dit->sums = NULL;
    return status;
}

carry_status carry_dit_cache_check(const carry_dit_cache *cache) {
    return cache->reductions != NULL ? carry_sums_check(cache->reductions) : CARRY_OK;
}
