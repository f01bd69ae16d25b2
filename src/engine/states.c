/* Kept states: forking, rolling back, saving, loading and dropping them. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "core/context.h"
#include "core/hash.h"
#include "engine/scheduler_internal.h"
#include "engine/state_image.h"

#define BLOCK CARRY_PAGE_TOKENS

carry_kept *carry_scheduler_state(const carry_scheduler *s, uint64_t handle) {
    carry_kept *k = s->states;
    while (k != NULL && k->handle != handle) {
        k = k->next;
    }
    return k;
}

static carry_status find_state(carry_scheduler *s, uint64_t handle, carry_kept **found) {
    *found = carry_scheduler_state(s, handle);
    return *found != NULL ? CARRY_OK : carry_fail(s->ctx, CARRY_ENOTFOUND, "there is no state %" PRIu64, handle);
}

/* The same; also moves the state to the device. */
static carry_status take_state(carry_scheduler *s, uint64_t handle, carry_kept **found) {
    CARRY_TRY(find_state(s, handle, found));
    return carry_scheduler_to_device(s, *found);
}

/* Counts the pages of kept states, each page once. */
void carry_scheduler_count_pages(carry_scheduler *s, const carry_track *t, int more) {
    for (int64_t i = 0; i < t->page_count; i++) {
        int32_t *owners = &s->kept_owners[t->pages[i]];
        s->state_pages += more > 0 && *owners == 0;
        *owners += more;
        s->state_pages -= more < 0 && *owners == 0;
    }
}

uint64_t carry_scheduler_keep(carry_scheduler *s, carry_track *track, int64_t singles) {
    carry_kept *k = calloc(1, sizeof *k);
    if (k == NULL) {
        return 0;
    }
    *k = (carry_kept){.next = s->states, .handle = ++s->next_state, .track = *track, .singles = singles};
    *track = (carry_track)CARRY_TRACK_EMPTY;
    carry_track_cut_pages(&s->pool, &k->track, k->track.length);
    carry_scheduler_count_pages(s, &k->track, 1);
    s->states = k;
    s->stats.states++;
    return k->handle;
}

carry_status carry_scheduler_state_drop(carry_scheduler *s, uint64_t state) {
    for (carry_kept **at = &s->states; *at != NULL; at = &(*at)->next) {
        carry_kept *k = *at;
        if (k->handle == state) {
            *at = k->next;
            carry_scheduler_count_pages(s, &k->track, -1);
            carry_track_close(&s->pool, &k->track);
            free(k->host);
            free(k);
            s->stats.states--;
            return CARRY_OK;
        }
    }
    return carry_fail(s->ctx, CARRY_ENOTFOUND, "there is no state %" PRIu64, state);
}

void carry_scheduler_free_states(carry_scheduler *s) {
    while (s->states != NULL) {
        (void)carry_scheduler_state_drop(s, s->states->handle);
    }
}

carry_status carry_scheduler_state_length(carry_scheduler *s, uint64_t state, int64_t *tokens) {
    carry_kept *k;
    CARRY_TRY(find_state(s, state, &k));
    *tokens = k->track.count;
    return CARRY_OK;
}

carry_status carry_scheduler_state_cache(carry_scheduler *s, uint64_t state) {
    carry_kept *k;
    CARRY_TRY(take_state(s, state, &k));
    if (s->options.same_bits || s->prefix.options.device_bytes == 0) {
        return carry_fail(s->ctx, CARRY_EUNSUPPORTED, "state %" PRIu64 " cannot become a cached prefix%s", state,
                          s->options.same_bits ? " with same_bits" : ": nothing is cached");
    }
    const carry_track *t = &k->track;
    return carry_prefix_insert(&s->prefix, t->ids, t->length, t->slot, t->pages, false)
               ? CARRY_OK
               : carry_fail(s->ctx, CARRY_ESIZE, "out of memory: a state of %" PRId64 " tokens is not cached",
                            t->length);
}

/* Makes an empty track with a slot. */
static carry_status open_track(carry_scheduler *s, carry_track *track) {
    *track = (carry_track)CARRY_TRACK_EMPTY;
    track->slot = carry_prefix_take_slot(&s->prefix);
    return track->slot != CARRY_POOL_NONE
               ? CARRY_OK
               : carry_fail(s->ctx, CARRY_EMEMORY, "all %" PRId64 " slots are in use: drop a state", s->pool.slots);
}

static carry_status keep_track(carry_scheduler *s, carry_track *track, carry_status status, int64_t singles,
                               uint64_t *made) {
    *made = status == CARRY_OK ? carry_scheduler_keep(s, track, singles) : 0;
    if (status == CARRY_OK && *made == 0) {
        status = carry_fail(s->ctx, CARRY_EMEMORY, "out of memory: a state");
    }
    carry_track_close(&s->pool, track);
    return status;
}

carry_status carry_scheduler_state_fork(carry_scheduler *s, uint64_t state, uint64_t *made) {
    carry_kept *k;
    carry_track track;
    *made = 0;
    CARRY_TRY(take_state(s, state, &k));
    CARRY_TRY(open_track(s, &track));
    carry_status status = carry_track_fork(&s->prefix, &track, &k->track);
    if (status == CARRY_OK) {
        carry_track_anchor(&s->prefix, &track);
    }
    return keep_track(s, &track, status, k->singles, made);
}

/* Reads tokens without sampling, in a step of their own, and waits. */
static carry_status replay(carry_scheduler *s, carry_track *t, int64_t count) {
    carry_run_result result;
    CARRY_TRY(carry_track_extend(&s->prefix, t, count));
    const carry_run run = {.slot = t->slot,
                           .pages = t->pages,
                           .length = t->length,
                           .ids = t->ids + t->length,
                           .count = count,
                           .logprobs = -1};
    CARRY_TRY(s->runner->ops->step(s->runner, &run, 1));
    CARRY_TRY(s->runner->ops->results(s->runner, &result, 1));
    t->length += count;
    return CARRY_OK;
}

/* Rolls a track back to the state after `length` tokens. Tokens from `singles` on were sampled and read one by one;
   they are read one by one again, so that the state has the same bits. */
static carry_status go_back(carry_scheduler *s, carry_track *t, int64_t length, int64_t singles) {
    const carry_track before = *t;
    int i = CARRY_TRACK_ANCHORS - 1;
    while (i >= 0 && (t->anchor[i] == CARRY_POOL_NONE || t->anchor_length[i] > length)) {
        i--;
    }
    t->length = i >= 0 ? before.anchor_length[i] : 0;
    CARRY_TRY(i >= 0 ? s->runner->ops->copy_slot(s->runner, t->slot, before.anchor[i])
                     : s->runner->ops->clear_slot(s->runner, t->slot));
    while (t->length < length) {
        const int64_t most = s->runner->sizes.tokens / BLOCK * BLOCK;
        const int64_t next = t->length / most * most + most;
        const int64_t limit = singles > t->length && singles < length ? singles : length;
        const int64_t end = t->length >= singles ? t->length + 1 : next < limit ? next : limit;
        CARRY_TRY(replay(s, t, end - t->length));
    }
    return CARRY_OK;
}

/* Makes the pages to which a replay writes the track's own. */
static carry_status own_pages(carry_scheduler *s, carry_track *t, int64_t length) {
    for (int64_t i = length / BLOCK; i < t->page_count; i++) {
        if (carry_state_pool_is_shared(&s->pool, t->pages[i])) {
            const int32_t page = carry_prefix_take_page(&s->prefix);
            if (page == CARRY_POOL_NONE) {
                return carry_fail(s->ctx, CARRY_EMEMORY, "all %" PRId64 " pages are in use", s->pool.pages);
            }
            const carry_status status = s->runner->ops->copy_page(s->runner, page, t->pages[i]);
            carry_state_pool_give_page(&s->pool, status == CARRY_OK ? t->pages[i] : page);
            CARRY_TRY(status);
            t->pages[i] = page;
        }
    }
    return CARRY_OK;
}

/* Fails if the pages are not free, counting those that active requests may still need. */
static carry_status check_pages(carry_scheduler *s, int64_t pages) {
    return s->runner->sizes.page_bytes == 0 || s->reserved + s->state_pages + pages <= s->pool.pages
               ? CARRY_OK
               : carry_fail(s->ctx, CARRY_EMEMORY, "%" PRId64 " pages are needed: requests and states have the others",
                            pages);
}

/* Works on a fork of the state, which replaces it at the end: a failure leaves the state unchanged. */
static carry_status roll_back_fork(carry_scheduler *s, carry_kept *k, int64_t length) {
    carry_track track;
    CARRY_TRY(open_track(s, &track));
    carry_status status = carry_track_fork(&s->prefix, &track, &k->track);
    int64_t from = 0;
    for (int i = 0; i < CARRY_TRACK_ANCHORS && status == CARRY_OK; i++) { /* the fork uses the anchors for the replay */
        track.anchor[i] = k->track.anchor[i];
        track.anchor_length[i] = k->track.anchor_length[i];
        from = track.anchor[i] != CARRY_POOL_NONE && track.anchor_length[i] <= length ? track.anchor_length[i] : from;
    }
    if (status == CARRY_OK) {
        carry_track_cut_pages(&s->pool, &track, length);
        status = check_pages(s, track.page_count - from / BLOCK);
        status = status == CARRY_OK ? own_pages(s, &track, from) : status;
        status = status == CARRY_OK ? go_back(s, &track, length, k->singles) : status;
    }
    if (status != CARRY_OK) {
        track.anchor[0] = track.anchor[1] = CARRY_POOL_NONE;
        carry_track_close(&s->pool, &track);
        return status;
    }
    carry_scheduler_count_pages(s, &k->track, -1);
    k->track.anchor[0] = k->track.anchor[1] = CARRY_POOL_NONE; /* the fork owns them now */
    carry_track_close(&s->pool, &k->track);
    k->track = track;
    carry_scheduler_count_pages(s, &k->track, 1);
    return CARRY_OK;
}

carry_status carry_scheduler_state_roll_back(carry_scheduler *s, uint64_t state, int64_t tokens) {
    carry_kept *k;
    CARRY_TRY(take_state(s, state, &k));
    if (tokens < 0 || tokens > CARRY_ROLL_BACK || tokens >= k->track.count) {
        return carry_fail(s->ctx, CARRY_ERANGE,
                          "a state of %" PRId64 " tokens cannot go back %" PRId64
                          ": expected 0 to %d, and a token left",
                          k->track.count, tokens, CARRY_ROLL_BACK);
    }
    const int64_t count = k->track.count - tokens;
    if (count < k->track.length) {
        CARRY_TRY(carry_scheduler_drain(s));
        CARRY_TRY(take_state(s, state, &k)); /* a callback may have dropped or moved it */
        CARRY_TRY(roll_back_fork(s, k, count));
        carry_track_drop_anchors(&s->pool, &k->track, count);
    }
    k->track.count = count;
    k->singles = k->singles < count ? k->singles : count;
    return CARRY_OK;
}

/* Files. */

static carry_status read_state(carry_scheduler *s, const carry_track *t, unsigned char *slot, unsigned char *pages,
                               int64_t *ids) {
    carry_runner *r = s->runner;
    for (int64_t i = 0; i < t->count; i++) {
        ids[i] = t->ids[i];
    }
    for (int64_t i = 0; i < t->page_count; i++) {
        CARRY_TRY(r->ops->read_page(r, pages + (size_t)i * r->sizes.page_bytes, t->pages[i]));
    }
    return r->ops->read_slot(r, slot, t->slot);
}

carry_status carry_scheduler_state_save(carry_scheduler *s, uint64_t state, const char *path) {
    carry_kept *k;
    CARRY_TRY(take_state(s, state, &k));
    const carry_track *t = &k->track;
    const carry_runner_sizes *z = &s->runner->sizes;
    unsigned char *slot = malloc(z->slot_bytes + 1);
    unsigned char *pages = malloc((size_t)t->page_count * z->page_bytes + 1);
    int64_t *ids = malloc((size_t)t->count * sizeof *ids);
    carry_status status = CARRY_OK;
    if (slot == NULL || pages == NULL || ids == NULL) {
        status = carry_fail(s->ctx, CARRY_EMEMORY, "out of memory: a state of %" PRId64 " tokens", t->count);
    }
    status = status == CARRY_OK ? read_state(s, t, slot, pages, ids) : status;
    if (status == CARRY_OK) {
        status = carry_state_image_write(s->ctx, path, s->runner,
                                         &(carry_state_image){.length = t->length,
                                                              .hash = carry_hash_ids(0, ids, t->length),
                                                              .ids = ids,
                                                              .id_count = t->count,
                                                              .slot = slot,
                                                              .pages = pages,
                                                              .page_count = t->page_count});
    }
    free(slot);
    free(pages);
    free(ids);
    return status;
}

static carry_status fill_track(carry_scheduler *s, carry_track *t, const carry_state_image *image) {
    carry_runner *r = s->runner;
    for (int64_t i = 0; i < image->id_count; i++) {
        const int32_t id = (int32_t)image->ids[i];
        CARRY_TRY(carry_track_append(s->ctx, t, &id, 1));
    }
    CARRY_TRY(carry_track_extend(&s->prefix, t, image->length));
    for (int64_t i = 0; i < image->page_count; i++) {
        CARRY_TRY(
            r->ops->write_page(r, t->pages[i], (const unsigned char *)image->pages + (size_t)i * r->sizes.page_bytes));
    }
    CARRY_TRY(r->ops->write_slot(r, t->slot, image->slot));
    t->length = image->length;
    return CARRY_OK;
}

carry_status carry_scheduler_state_load(carry_scheduler *s, uint64_t *made, const char *path) {
    carry_state_file file;
    carry_state_image image;
    carry_track track;
    *made = 0;
    CARRY_TRY(carry_state_image_open(s->ctx, &file, &image, path, s->runner));
    carry_status status = CARRY_OK;
    if (image.start != 0) {
        status = carry_fail(s->ctx, CARRY_EFORMAT, "%s is part of a cached prefix, not a whole state", path);
    }
    status = status == CARRY_OK ? check_pages(s, image.page_count) : status;
    status = status == CARRY_OK ? open_track(s, &track) : status;
    if (status == CARRY_OK) {
        status = fill_track(s, &track, &image);
        status = keep_track(s, &track, status, image.length, made);
    }
    carry_state_close(&file);
    return status;
}
