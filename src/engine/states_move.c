/* Kept states in host memory, and moved to other devices. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "core/context.h"
#include "core/memory.h"
#include "engine/scheduler_internal.h"

/* Reads the slot and pages of a state into one piece of memory, the slot first. */
static carry_status read_parts(carry_scheduler *s, const carry_track *t, unsigned char **made) {
    carry_runner *r = s->runner;
    const int64_t pages = t->page_count;
    size_t bytes;
    if (!carry_size_product(&bytes, &pages, 1, r->sizes.page_bytes) ||
        !carry_size_add(&bytes, bytes, r->sizes.slot_bytes) || (*made = malloc(bytes + 1)) == NULL) {
        return carry_fail(s->ctx, CARRY_EMEMORY, "out of memory: a state of %" PRId64 " tokens", t->count);
    }
    carry_status status = r->ops->read_slot(r, *made, t->slot);
    for (int64_t i = 0; status == CARRY_OK && i < pages; i++) {
        unsigned char *to = *made + r->sizes.slot_bytes + (size_t)i * r->sizes.page_bytes;
        status = r->ops->read_page(r, to, t->pages[i]);
    }
    if (status != CARRY_OK) {
        free(*made);
        *made = NULL;
    }
    return status;
}

/* The inverse: writes them to a track that has a slot and no pages, for `length` tokens. */
static carry_status write_parts(carry_scheduler *s, carry_track *t, const unsigned char *from, int64_t length) {
    carry_runner *r = s->runner;
    CARRY_TRY(carry_track_extend(&s->prefix, t, length));
    for (int64_t i = 0; i < t->page_count; i++) {
        const unsigned char *page = from + r->sizes.slot_bytes + (size_t)i * r->sizes.page_bytes;
        CARRY_TRY(r->ops->write_page(r, t->pages[i], page));
    }
    CARRY_TRY(r->ops->write_slot(r, t->slot, from));
    t->length = length;
    return CARRY_OK;
}

int64_t carry_scheduler_host_pages(const carry_scheduler *s, const carry_kept *k) {
    return k->host != NULL && s->runner->sizes.page_bytes > 0
               ? (k->track.length + CARRY_PAGE_TOKENS - 1) / CARRY_PAGE_TOKENS
               : 0;
}

carry_status carry_scheduler_state_to_host(carry_scheduler *s, uint64_t state) {
    carry_kept *k = carry_scheduler_state(s, state);
    if (k == NULL) {
        return carry_fail(s->ctx, CARRY_ENOTFOUND, "there is no state %" PRIu64, state);
    }
    carry_track *t = &k->track;
    if (k->host != NULL) {
        return CARRY_OK;
    }
    CARRY_TRY(read_parts(s, t, &k->host));
    carry_scheduler_count_pages(s, t, -1);
    carry_track_cut_pages(&s->pool, t, 0);
    carry_track_drop_anchors(&s->pool, t, -1);
    carry_state_pool_give_slot(&s->pool, t->slot);
    t->slot = CARRY_POOL_NONE;
    return CARRY_OK;
}

carry_status carry_scheduler_to_device(carry_scheduler *s, carry_kept *k) {
    carry_track *t = &k->track;
    if (k->host == NULL) {
        return CARRY_OK;
    }
    const int64_t length = t->length;
    const int64_t pages = carry_scheduler_host_pages(s, k);
    if (s->reserved + s->state_pages + pages > s->pool.pages ||
        (t->slot = carry_prefix_take_slot(&s->prefix)) == CARRY_POOL_NONE) {
        return carry_fail(s->ctx, CARRY_EMEMORY,
                          "a state in host memory needs a slot and %" PRId64 " pages: requests and states have them",
                          pages);
    }
    t->length = 0;
    const carry_status status = write_parts(s, t, k->host, length);
    t->length = length;
    if (status != CARRY_OK) {
        carry_track_cut_pages(&s->pool, t, 0);
        carry_state_pool_give_slot(&s->pool, t->slot);
        t->slot = CARRY_POOL_NONE;
        return status;
    }
    carry_scheduler_count_pages(s, t, 1);
    free(k->host);
    k->host = NULL;
    return CARRY_OK;
}

/* Checks that both schedulers have the same model and layout of states. */
static carry_status check_target(carry_scheduler *s, carry_scheduler *to, const carry_track *t) {
    const carry_runner_sizes *here = &s->runner->sizes;
    const carry_runner_sizes *there = &to->runner->sizes;
    uint64_t model;
    uint64_t other;
    CARRY_TRY(s->runner->ops->hash(s->runner, &model));
    if (to->runner->ops->hash(to->runner, &other) != CARRY_OK) {
        return carry_fail(s->ctx, CARRY_EARGUMENT, "%s", carry_ctx_error(to->ctx));
    }
    const bool has_types = here->kv_type != NULL && there->kv_type != NULL;
    if (model == other && has_types &&
        (strcmp(here->kv_type, there->kv_type) != 0 || strcmp(here->state_type, there->state_type) != 0)) {
        return carry_fail(s->ctx, CARRY_EARGUMENT,
                          "the other engine has keys and values in %s and states in %s, and this one %s and %s",
                          there->kv_type, there->state_type, here->kv_type, here->state_type);
    }
    if (model != other || here->slot_bytes != there->slot_bytes || here->page_bytes != there->page_bytes) {
        return carry_fail(s->ctx, CARRY_EARGUMENT,
                          "the other engine has another model, or the same one in another type");
    }
    return t->count <= there->context
               ? CARRY_OK
               : carry_fail(s->ctx, CARRY_ESIZE,
                            "a state of %" PRId64 " tokens: the other engine has a context of %" PRId64, t->count,
                            there->context);
}

/* Adds the state to host memory of the other scheduler; its first use there moves it to the device. */
static carry_status add_there(carry_scheduler *to, const carry_kept *k, unsigned char *parts, uint64_t *made) {
    carry_track track = CARRY_TRACK_EMPTY;
    CARRY_TRY(carry_track_append(to->ctx, &track, k->track.ids, k->track.count));
    *made = carry_scheduler_keep(to, &track, k->singles);
    carry_kept *moved = carry_scheduler_state(to, *made);
    if (moved == NULL) {
        carry_track_close(&to->pool, &track);
        return carry_fail(to->ctx, CARRY_EMEMORY, "out of memory: a state");
    }
    moved->track.length = k->track.length;
    moved->host = parts;
    return CARRY_OK;
}

carry_status carry_scheduler_state_move(carry_scheduler *s, uint64_t state, carry_scheduler *to, uint64_t *made) {
    carry_kept *k = carry_scheduler_state(s, state);
    *made = 0;
    if (k == NULL) {
        return carry_fail(s->ctx, CARRY_ENOTFOUND, "there is no state %" PRIu64, state);
    }
    CARRY_TRY(check_target(s, to, &k->track));
    CARRY_TRY(carry_scheduler_state_to_host(s, state));
    if (add_there(to, k, k->host, made) != CARRY_OK) {
        return carry_fail(s->ctx, CARRY_EMEMORY, "%s", carry_ctx_error(to->ctx));
    }
    k->host = NULL;
    return carry_scheduler_state_drop(s, state);
}
