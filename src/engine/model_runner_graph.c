/* Recorded calls: only the lists change from one call to the next, and their addresses do not. */
#include "carry/device.h"
#include "core/context.h"
#include "engine/model_runner_inside.h"
#include "model/lm/mixers/attention_pooled.h"

static const int64_t buckets[CARRY_MODEL_RUNNER_BUCKETS] = {1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 192, 256};

/* Calls can be recorded only if the steps of all mixers whose states grow can. */
void carry_model_runner_open_graphs(carry_model_runner *r) {
    r->records = r->device != 0;
    for (int64_t layer = 0; layer < r->pool->layers; layer++) {
        bool grows = false;
        for (int i = 0; i < CARRY_LM_STATE_PARTS; i++) {
            grows = grows || r->pool->about[layer][i].grows;
        }
        r->records = r->records && (!grows || (r->lm->layer[layer].mixer.part == &carry_lm_mixer_attention &&
                                               carry_lm_attention_pooled_records(r->pass)));
    }
}

void carry_model_runner_close_graphs(carry_model_runner *r) {
    for (int i = 0; i < CARRY_MODEL_RUNNER_BUCKETS; i++) {
        carry_graph_free(r->head.ctx, r->device, r->bucket[i].graph);
    }
    for (int i = 0; i < CARRY_MODEL_RUNNER_WAVES; i++) {
        carry_graph_free(r->head.ctx, r->device, r->guessed[i].bucket.graph);
    }
}

/* The index of the smallest bucket for this number of sequences, or -1 if it is too large. */
static int bucket_of(const carry_model_runner *r, int64_t sequences) {
    for (int i = 0; i < CARRY_MODEL_RUNNER_BUCKETS; i++) {
        if (buckets[i] >= sequences) {
            return buckets[i] <= r->head.sizes.sequences ? i : -1;
        }
    }
    return -1;
}

int64_t carry_model_runner_padded(const carry_model_runner *r) {
    const int at = r->records && r->places.waves == 0 ? bucket_of(r, r->places.sequences) : -1;
    return at >= 0 ? buckets[at] : r->places.sequences;
}

/* Adds sequences that use the runner's own slot and page. */
static void pad(carry_model_runner *r, int64_t to) {
    carry_model_runner_lists *l = &r->list;
    const int64_t from = r->places.sequences;
    const int64_t page =
        from < to ? (int64_t)(r->list_bytes - (size_t)((unsigned char *)l->pages - (unsigned char *)l->slots)) /
                        (int64_t)sizeof *l->pages
                  : 0;
    for (int64_t i = from; i < to; i++) {
        l->slots[i] = (int32_t)r->head.sizes.slots;
        l->lengths[i] = l->positions[i] = l->ids[i] = 0;
        l->rows[i] = r->head.sizes.pages * CARRY_PAGE_TOKENS + i % CARRY_PAGE_TOKENS;
        l->offsets[i] = (int32_t)page;
        r->starts[i + 1] = i + 1;
    }
    if (from < to && r->page_list > 0) {
        l->pages[page] = (int32_t)r->head.sizes.pages;
        r->list_bytes += sizeof *l->pages;
    }
    r->places.sequences = r->places.steps = r->places.wanted_count = to;
    r->places.wanted = NULL;
    if (r->heads.lm != NULL) {
        carry_model_runner_list_heads(r, from);
    }
}

static carry_status record(carry_model_runner *r, carry_model_runner_bucket *bucket) {
    carry_ctx *ctx = r->head.ctx;
    carry_stream *stream = carry_ctx_stream(ctx, r->device);
    if (carry_graph_begin(ctx, r->device, stream) != CARRY_OK) {
        r->records = false;
        return CARRY_OK;
    }
    const carry_status status = carry_model_runner_enqueue(r);
    const carry_status ended = carry_graph_end(ctx, &bucket->graph, r->device, stream);
    if (status != CARRY_OK || ended != CARRY_OK) {
        carry_graph_free(ctx, r->device, bucket->graph);
        bucket->graph = NULL;
        r->records = false; /* calls that cannot be recorded are launched directly from now on */
    }
    return CARRY_OK;
}

/* Returns the bucket for a call whose waves all have as many sequences as the first; NULL if they differ in size, or if
   all buckets are used for other shapes. */
static carry_model_runner_bucket *waves_of(carry_model_runner *r) {
    const carry_lm_places *p = &r->places;
    const int64_t texts = p->wave[1];
    for (int i = 0; i < CARRY_MODEL_RUNNER_WAVES && texts * p->waves == p->steps; i++) {
        carry_model_runner_waves *w = &r->guessed[i];
        if (w->waves == 0) {
            w->texts = texts;
            w->waves = p->waves;
        }
        if (w->texts == texts && w->waves == p->waves) {
            return &w->bucket;
        }
    }
    return NULL;
}

carry_status carry_model_runner_replay(carry_model_runner *r) {
    carry_ctx *ctx = r->head.ctx;
    carry_stream *stream = carry_ctx_stream(ctx, r->device);
    const int at = r->places.waves == 0 ? bucket_of(r, r->places.sequences) : -1;
    if (at >= 0) {
        pad(r, buckets[at]);
    }
    CARRY_TRY(carry_device_copy(ctx, r->listed.slots, r->device, r->list.slots, 0, r->list_bytes, stream));
    carry_model_runner_bucket *bucket = at >= 0 ? &r->bucket[at] : r->places.waves > 0 ? waves_of(r) : NULL;
    if (bucket != NULL && bucket->has_run && bucket->graph == NULL) {
        CARRY_TRY(record(r, bucket));
    }
    if (bucket != NULL && bucket->graph != NULL) {
        return carry_graph_launch(ctx, r->device, bucket->graph, stream);
    }
    CARRY_TRY(carry_model_runner_enqueue(r));
    if (bucket != NULL) {
        bucket->has_run = true;
    }
    return CARRY_OK;
}
