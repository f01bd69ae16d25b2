/* Uploads batches while steps run. */
#include "train/feed.h"

#include <stdlib.h>
#include <string.h>

#include "carry/nn.h"
#include "core/error.h"
#include "core/memory.h"

size_t carry_feed_bytes(int64_t count) {
    const int64_t sizes[] = {CARRY_FEED_SLOTS + 1, 2, count};
    size_t bytes;
    return carry_size_product(&bytes, sizes, 3, sizeof(int64_t)) ? bytes : SIZE_MAX;
}

static size_t slot_bytes(const carry_feed *feed) {
    return (size_t)feed->count * 2 * sizeof(int64_t);
}

carry_status carry_feed_open(carry_ctx *ctx, carry_feed *feed, int device, int64_t count, int64_t vocabulary,
                             int64_t sequences) {
    void *here = NULL;
    *feed =
        (carry_feed){.ctx = ctx, .device = device, .count = count, .vocabulary = vocabulary, .sequences = sequences};
    if (carry_feed_bytes(count) == SIZE_MAX) {
        return carry_fail(ctx, CARRY_ESIZE, "a batch of %lld tokens is too large", (long long)count);
    }
    CARRY_TRY(carry_device_alloc(ctx, &here, device, slot_bytes(feed)));
    feed->ids = carry_view_on(device, here, CARRY_I64, 1, &count);
    feed->labels = carry_view_on(device, (int64_t *)here + count, CARRY_I64, 1, &count);
    CARRY_TRY(carry_stream_new(ctx, &feed->stream, device));
    for (int i = 0; i < CARRY_FEED_SLOTS; i++) {
        carry_feed_slot *slot = &feed->slot[i];
        void *pinned = NULL;
        CARRY_TRY(carry_host_alloc(ctx, &pinned, slot_bytes(feed)));
        slot->pinned = pinned;
        CARRY_TRY(carry_device_alloc(ctx, &slot->there, device, slot_bytes(feed)));
        CARRY_TRY(carry_event_new(ctx, &slot->used, device));
        slot->cuts = sequences > 0 ? malloc(((size_t)sequences + 1) * sizeof(int64_t)) : NULL;
        if (sequences > 0 && slot->cuts == NULL) {
            return carry_fail(ctx, CARRY_EMEMORY, "out of memory: %lld packed sequences", (long long)sequences);
        }
    }
    return CARRY_OK;
}

void carry_feed_close(carry_feed *feed) {
    if (feed->device == 0) {
        return;
    }
    (void)carry_stream_wait(feed->ctx, feed->device, feed->stream);
    for (int i = 0; i < CARRY_FEED_SLOTS; i++) {
        carry_feed_slot *slot = &feed->slot[i];
        carry_device_free(feed->ctx, feed->device, slot->there);
        carry_event_free(feed->ctx, feed->device, slot->used);
        free(slot->cuts);
        if (slot->pinned != NULL) {
            carry_host_free(feed->ctx, slot->pinned);
        }
    }
    carry_device_free(feed->ctx, feed->device, feed->ids.data);
    carry_stream_free(feed->ctx, feed->device, feed->stream);
    *feed = (carry_feed){0};
}

static carry_status make(carry_feed *feed, carry_batches *batches) {
    carry_ctx *ctx = feed->ctx;
    carry_feed_slot *slot = &feed->slot[feed->next];
    const carry_batch *batch;
    int64_t counted;
    const size_t bytes = (size_t)feed->count * sizeof(int64_t);
    CARRY_TRY(carry_batches_next(ctx, batches, &batch));
    CARRY_TRY(carry_check_ids(ctx, carry_view_1d(batch->input, CARRY_I64, feed->count), feed->vocabulary));
    CARRY_TRY(
        carry_check_targets(ctx, &counted, carry_view_1d(batch->label, CARRY_I64, feed->count), feed->vocabulary));
    if (slot->was_used) {
        double none;
        CARRY_TRY(carry_event_elapsed(ctx, &none, feed->device, slot->used, slot->used)); /* waits for the event */
    }
    memcpy(slot->pinned, batch->input, bytes);
    memcpy(slot->pinned + feed->count, batch->label, bytes);
    if (slot->cuts != NULL) {
        memcpy(slot->cuts, batch->cu_seqlens, ((size_t)feed->sequences + 1) * sizeof(int64_t));
    }
    CARRY_TRY(carry_device_copy(ctx, slot->there, feed->device, slot->pinned, 0, 2 * bytes, feed->stream));
    feed->ready_labels = batch->labels_whole;
    return CARRY_OK;
}

carry_status carry_feed_prepare(carry_feed *feed, carry_batches *batches) {
    if (feed->is_ready) {
        return CARRY_OK;
    }
    const carry_position before = carry_batches_position(batches);
    const carry_status status = make(feed, batches);
    if (status != CARRY_OK) {
        carry_batches_seek(batches, before);
        return status;
    }
    feed->ready_after = carry_batches_position(batches);
    feed->is_ready = true;
    return CARRY_OK;
}

carry_status carry_feed_take(carry_feed *feed, carry_batches *batches, carry_position *after) {
    carry_ctx *ctx = feed->ctx;
    CARRY_TRY(carry_feed_prepare(feed, batches));
    carry_feed_slot *slot = &feed->slot[feed->next];
    carry_stream *stream = carry_ctx_stream(ctx, feed->device);
    CARRY_TRY(carry_stream_wait(ctx, feed->device, feed->stream));
    CARRY_TRY(
        carry_device_copy(ctx, feed->ids.data, feed->device, slot->there, feed->device, slot_bytes(feed), stream));
    CARRY_TRY(carry_event_record(ctx, feed->device, slot->used, stream));
    slot->was_used = true;
    feed->labels_whole = feed->ready_labels;
    feed->cuts = slot->cuts;
    *after = feed->ready_after;
    feed->is_ready = false;
    feed->next = (feed->next + 1) % CARRY_FEED_SLOTS;
    return CARRY_OK;
}
