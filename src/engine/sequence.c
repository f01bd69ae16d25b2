/* Tracks and sequences. */
#include "engine/sequence.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "core/error.h"
#include "core/memory.h"

#define BLOCK CARRY_PAGE_TOKENS
#define SHARED_PROMPT 128 /* tokens: states of shorter prompts are neither shared nor cached */

carry_status carry_track_append(carry_ctx *ctx, carry_track *t, const int32_t *ids, int64_t count) {
    if (t->count + count > t->room) {
        const int64_t room = t->count + count < 64 ? 64 : 3 * (t->count + count) / 2;
        int32_t *grown = realloc(t->ids, (size_t)room * sizeof *grown);
        if (grown == NULL) {
            return carry_fail(ctx, CARRY_EMEMORY, "out of memory: %" PRId64 " tokens", room);
        }
        t->ids = grown;
        t->room = room;
    }
    if (count == 0 || t->ids == NULL) {
        return CARRY_OK;
    }
    memcpy(t->ids + t->count, ids, (size_t)count * sizeof *ids);
    t->count += count;
    return CARRY_OK;
}

static int64_t pages_for(int64_t length) {
    return (length + BLOCK - 1) / BLOCK;
}

carry_status carry_track_reserve(carry_ctx *ctx, carry_track *t, const carry_runner_sizes *sizes, int64_t length) {
    const int64_t room = pages_for(length);
    if (sizes->page_bytes == 0 || room <= t->page_room) {
        return CARRY_OK;
    }
    int32_t *grown = realloc(t->pages, (size_t)room * sizeof *grown);
    if (grown == NULL) {
        return carry_fail(ctx, CARRY_EMEMORY, "out of memory: %" PRId64 " page numbers", room);
    }
    t->pages = grown;
    t->page_room = room;
    return CARRY_OK;
}

/* Copies the page of token `length` if it is shared. */
static carry_status own_last_page(carry_prefix *prefix, carry_track *t) {
    const int64_t last = t->length / BLOCK;
    if (t->length % BLOCK == 0 || last >= t->page_count || !carry_state_pool_is_shared(prefix->pool, t->pages[last])) {
        return CARRY_OK;
    }
    const int32_t page = carry_prefix_take_page(prefix);
    if (page == CARRY_POOL_NONE) {
        return carry_fail(prefix->ctx, CARRY_EMEMORY, "all %" PRId64 " pages are in use", prefix->pool->pages);
    }
    const carry_status status = prefix->runner->ops->copy_page(prefix->runner, page, t->pages[last]);
    carry_state_pool_give_page(prefix->pool, status == CARRY_OK ? t->pages[last] : page);
    t->pages[last] = status == CARRY_OK ? page : t->pages[last];
    return status;
}

carry_status carry_track_extend(carry_prefix *prefix, carry_track *t, int64_t more) {
    const int64_t pages = pages_for(t->length + more);
    if (prefix->runner->sizes.page_bytes == 0) {
        return CARRY_OK;
    }
    CARRY_TRY(carry_track_reserve(prefix->ctx, t, &prefix->runner->sizes, t->length + more));
    CARRY_TRY(own_last_page(prefix, t));
    while (t->page_count < pages) {
        const int32_t page = carry_prefix_take_page(prefix);
        if (page == CARRY_POOL_NONE) {
            return carry_fail(prefix->ctx, CARRY_EMEMORY, "all %" PRId64 " pages are in use", prefix->pool->pages);
        }
        t->pages[t->page_count++] = page;
    }
    return CARRY_OK;
}

void carry_track_cut_pages(carry_state_pool *pool, carry_track *t, int64_t length) {
    while (t->page_count > pages_for(length)) {
        carry_state_pool_give_page(pool, t->pages[--t->page_count]);
    }
}

carry_status carry_track_fork(carry_prefix *prefix, carry_track *to, const carry_track *from) {
    const int64_t pages = prefix->runner->sizes.page_bytes > 0 ? pages_for(from->length) : 0;
    CARRY_TRY(carry_track_reserve(prefix->ctx, to, &prefix->runner->sizes, from->length));
    CARRY_TRY(carry_track_append(prefix->ctx, to, from->ids, from->count));
    const carry_status status = prefix->runner->ops->copy_slot(prefix->runner, to->slot, from->slot);
    if (status != CARRY_OK) {
        to->count = 0;
        return status;
    }
    for (int64_t i = 0; i < pages; i++) {
        carry_state_pool_share_page(prefix->pool, from->pages[i]);
        to->pages[i] = from->pages[i];
    }
    to->page_count = pages;
    to->length = from->length;
    return CARRY_OK;
}

void carry_track_anchor(carry_prefix *prefix, carry_track *t) {
    const int32_t slot = carry_prefix_take_slot(prefix);
    if (slot == CARRY_POOL_NONE) {
        return;
    }
    if (prefix->runner->ops->copy_slot(prefix->runner, slot, t->slot) != CARRY_OK) {
        carry_state_pool_give_slot(prefix->pool, slot);
        return;
    }
    carry_state_pool_give_slot(prefix->pool, t->anchor[0]);
    t->anchor[0] = t->anchor[1];
    t->anchor_length[0] = t->anchor_length[1];
    t->anchor[1] = slot;
    t->anchor_length[1] = t->length;
}

void carry_track_drop_anchors(carry_state_pool *pool, carry_track *t, int64_t after) {
    for (int i = 0; i < CARRY_TRACK_ANCHORS; i++) {
        if (t->anchor[i] != CARRY_POOL_NONE && t->anchor_length[i] > after) {
            carry_state_pool_give_slot(pool, t->anchor[i]);
            t->anchor[i] = CARRY_POOL_NONE;
        }
    }
    if (t->anchor[1] == CARRY_POOL_NONE) { /* there is only one anchor */
        t->anchor[1] = t->anchor[0];
        t->anchor_length[1] = t->anchor_length[0];
        t->anchor[0] = CARRY_POOL_NONE;
    }
}

void carry_track_close(carry_state_pool *pool, carry_track *t) {
    carry_track_cut_pages(pool, t, 0);
    carry_track_drop_anchors(pool, t, -1);
    carry_state_pool_give_slot(pool, t->slot);
    free(t->ids);
    free(t->pages);
    *t = (carry_track)CARRY_TRACK_EMPTY;
}

/* The maximum number of pages of a sequence: one more than its tokens fill, because a shared page exists twice while it
   is copied. */
static int64_t pages_at_most(const carry_runner_sizes *sizes, int64_t count, int64_t tokens) {
    const int64_t most = tokens < sizes->context - count ? count + tokens : sizes->context;
    return sizes->page_bytes > 0 ? pages_for(most) + 1 : 0;
}

static carry_status check_tokens(carry_ctx *ctx, const carry_runner_sizes *sizes, const carry_sequence_options *o) {
    if (o->count < 1 || o->ids == NULL) {
        return carry_fail(ctx, CARRY_EARGUMENT, "the prompt is empty: expected 1 token or more");
    }
    for (int64_t i = 0; i < o->count; i++) {
        if (o->ids[i] < 0 || o->ids[i] >= sizes->vocabulary) {
            return carry_fail(ctx, CARRY_ERANGE,
                              "token %" PRId64 " of the prompt is %" PRId32 ": the model has ids from 0 to %" PRId64, i,
                              o->ids[i], sizes->vocabulary - 1);
        }
    }
    if (o->tokens < 0 || (o->tokens == 0 && !o->keeps)) {
        return carry_fail(ctx, CARRY_EARGUMENT, "tokens is %" PRId64 ": expected 1 or more, or 0 to keep the state",
                          o->tokens);
    }
    const int64_t needed = o->count + (o->tokens > 0);
    if (needed > sizes->context) {
        return carry_fail(ctx, CARRY_ESIZE,
                          "a prompt of %" PRId64 " tokens is longer than the context of %" PRId64 " tokens allows",
                          o->count, sizes->context);
    }
    const int64_t pages = pages_at_most(sizes, o->count, o->tokens);
    if (pages > sizes->pages) {
        return carry_fail(ctx, CARRY_ESIZE,
                          "a prompt of %" PRId64 " tokens and a text of %" PRId64 " need %" PRId64
                          " pages of memory and there are %" PRId64,
                          o->count, o->tokens, pages, sizes->pages);
    }
    return CARRY_OK;
}

static carry_status check_options(carry_ctx *ctx, const carry_runner_sizes *sizes, const carry_sequence_options *o) {
    CARRY_TRY(check_tokens(ctx, sizes, o));
    CARRY_TRY(carry_sampling_check(ctx, &o->sampling));
    if (o->logprobs < -1 || o->logprobs > CARRY_RUN_LOGPROBS) {
        return carry_fail(ctx, CARRY_ERANGE, "logprobs is %d: expected -1 (none) to %d", o->logprobs,
                          CARRY_RUN_LOGPROBS);
    }
    for (int64_t i = 0; i < o->end_count; i++) {
        if (o->ends[i] < 0 || o->ends[i] >= sizes->vocabulary) {
            return carry_fail(ctx, CARRY_ERANGE, "end token %" PRId32 ": the model has ids from 0 to %" PRId64,
                              o->ends[i], sizes->vocabulary - 1);
        }
    }
    return CARRY_OK;
}

static carry_status fill_sequence(carry_ctx *ctx, carry_sequence *s, const carry_runner_sizes *sizes,
                                  const carry_sequence_options *o) {
    s->ends = malloc(((size_t)o->end_count + 1) * sizeof *s->ends);
    if (s->ends == NULL) {
        return carry_fail(ctx, CARRY_EMEMORY, "out of memory: a request");
    }
    if (o->end_count > 0) {
        memcpy(s->ends, o->ends, (size_t)o->end_count * sizeof *s->ends);
    }
    CARRY_TRY(carry_track_append(ctx, &s->track, o->ids, o->count));
    return carry_sequence_open_rules(ctx, s, sizes->vocabulary, o);
}

carry_status carry_sequence_new(carry_ctx *ctx, carry_sequence **made, const carry_runner_sizes *sizes,
                                const carry_sequence_options *options) {
    *made = NULL;
    CARRY_TRY(check_options(ctx, sizes, options));
    carry_sequence *s = calloc(1, sizeof *s);
    if (s == NULL) {
        return carry_fail(ctx, CARRY_EMEMORY, "out of memory: a request");
    }
    *s = (carry_sequence){.options = *options, .track = CARRY_TRACK_EMPTY, .prompt_end = options->count};
    s->page_limit = pages_at_most(sizes, options->count, options->tokens);
    s->options.ids = NULL;
    s->options.ends = NULL;
    s->options.bias_ids = NULL;
    s->options.biases = NULL;
    const carry_status status = fill_sequence(ctx, s, sizes, options);
    if (status != CARRY_OK) {
        carry_sequence_free(s);
        return status;
    }
    *made = s;
    return CARRY_OK;
}

void carry_sequence_free(carry_sequence *s) {
    if (s != NULL) {
        free(s->track.ids);
        free(s->track.pages);
        free(s->ends);
        carry_sequence_close_rules(s);
        free(s);
    }
}

int64_t carry_sequence_last_block(const carry_sequence *s) {
    return s->prompt_end >= SHARED_PROMPT ? (s->prompt_end - 1) / BLOCK * BLOCK : 0;
}

bool carry_sequence_ends_with(const carry_sequence *s, int32_t id) {
    for (int64_t i = 0; i < s->options.end_count; i++) {
        if (s->ends[i] == id) {
            return true;
        }
    }
    return false;
}
