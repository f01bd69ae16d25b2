/* Admission: gives a request a slot, pages, and the state that it begins with.

   Requests with the same prompt, such as the choices of an answer, read it once: the first one reads; the others wait
   with their slots and take copies of its state before the last block of the prompt. Each reads that block itself,
   since its first token is sampled from its own run. If the reader ends early, the next one reads. */
#include <inttypes.h>
#include <string.h>

#include "core/context.h"
#include "engine/scheduler_internal.h"

#define BLOCK CARRY_PAGE_TOKENS

static carry_status start_from_state(carry_scheduler *s, carry_sequence *q) {
    carry_kept *kept = carry_scheduler_state(s, q->options.state);
    if (kept == NULL) {
        return carry_fail(s->ctx, CARRY_ENOTFOUND, "there is no state %" PRIu64, q->options.state);
    }
    CARRY_TRY(carry_scheduler_to_device(s, kept));
    const int64_t prompt = q->track.count;
    const int64_t total = kept->track.count + prompt;
    if (total + (q->options.tokens > 0) > s->runner->sizes.context) {
        return carry_fail(s->ctx, CARRY_ESIZE,
                          "a state of %" PRId64 " tokens and a prompt of %" PRId64 " exceed the context of %" PRId64
                          " tokens",
                          kept->track.count, prompt, s->runner->sizes.context);
    }
    carry_track track = CARRY_TRACK_EMPTY;
    track.slot = q->track.slot;
    carry_status status = carry_track_fork(&s->prefix, &track, &kept->track);
    status = status == CARRY_OK ? carry_track_append(s->ctx, &track, q->track.ids, prompt) : status;
    q->track.slot = CARRY_POOL_NONE;
    carry_track_close(&s->pool, &q->track);
    q->track = track; /* freed with the sequence, also after a failure */
    q->before = kept->track.count;
    q->prompt_end = total;
    return status;
}

/* Starts from the state in the cache, if there is one. */
static carry_status start_from_prefix(carry_scheduler *s, carry_sequence *q) {
    carry_track *t = &q->track;
    if (q->options.is_uncached || s->prefix.options.device_bytes == 0) {
        return s->runner->ops->clear_slot(s->runner, t->slot);
    }
    CARRY_TRY(carry_track_reserve(s->ctx, t, &s->runner->sizes, t->count));
    const carry_prefix_hit hit = carry_prefix_find(&s->prefix, t->ids, t->count);
    q->branch = hit.shared > hit.length ? hit.shared : 0;
    if (hit.node == NULL) {
        return s->runner->ops->clear_slot(s->runner, t->slot);
    }
    const carry_status status = carry_prefix_restore(&s->prefix, &hit, t->slot, t->pages);
    carry_prefix_unpin(hit.node);
    if (status != CARRY_OK) { /* read the text from its beginning */
        carry_prefix_drop_snapshot(&s->prefix, hit.node);
        return s->runner->ops->clear_slot(s->runner, t->slot);
    }
    t->page_count = s->runner->sizes.page_bytes > 0 ? (hit.length + BLOCK - 1) / BLOCK : 0;
    t->length = q->cached = hit.length;
    s->stats.cached_tokens += hit.length;
    return CARRY_OK;
}

static void begin(carry_scheduler *s, carry_sequence *q) {
    const carry_status status = q->options.state != 0 ? start_from_state(s, q) : start_from_prefix(s, q);
    if (status != CARRY_OK) {
        carry_scheduler_fail(s, q, status);
    } else if (q->options.keeps && q->track.length > 0) {
        carry_track_anchor(&s->prefix, &q->track);
    }
}

/* The active sequence that reads the prompt of q, if it has not reached its last block. */
static carry_sequence *reader_of(const carry_scheduler *s, const carry_sequence *q) {
    const uint64_t shares = q->options.shares;
    for (int64_t i = 0; shares != 0 && q->options.state == 0 && i < s->active_count; i++) {
        carry_sequence *r = s->active[i];
        if (r != q && (r->request == shares || r->options.shares == shares) && r->phase == CARRY_PHASE_READS &&
            r->reader == NULL && r->options.state == 0 && r->options.is_uncached == q->options.is_uncached &&
            r->track.length < carry_sequence_last_block(r) && r->track.count == q->track.count &&
            memcmp(r->track.ids, q->track.ids, (size_t)q->track.count * sizeof *q->track.ids) == 0) {
            return r;
        }
    }
    return NULL;
}

static bool follow(carry_scheduler *s, carry_sequence *q) {
    q->reader = reader_of(s, q);
    if (q->reader != NULL) {
        q->reader->has_followers = true;
    }
    return q->reader != NULL;
}

/* Continues q, which waited for r, from a copy of r's state. False if memory is short. */
static bool take_copy(carry_scheduler *s, carry_sequence *q, const carry_sequence *r) {
    carry_track track = CARRY_TRACK_EMPTY;
    track.slot = q->track.slot;
    const bool is_copied = carry_track_fork(&s->prefix, &track, &r->track) == CARRY_OK;
    carry_track *unused = is_copied ? &q->track : &track;
    unused->slot = CARRY_POOL_NONE;
    carry_track_close(&s->pool, unused);
    if (is_copied) {
        q->track = track;
        q->cached = track.length;
        s->stats.cached_tokens += track.length;
    }
    return is_copied;
}

void carry_scheduler_share(carry_scheduler *s, carry_sequence *r) {
    if (!r->has_followers || r->track.length != carry_sequence_last_block(r)) {
        return;
    }
    r->has_followers = false;
    for (int64_t i = 0; i < s->active_count; i++) {
        carry_sequence *q = s->active[i];
        if (q->reader != r) {
            continue;
        }
        q->reader = NULL;
        if (q->phase == CARRY_PHASE_READS && !take_copy(s, q, r)) {
            begin(s, q);
        } else if (q->phase == CARRY_PHASE_READS && q->options.keeps) {
            carry_track_anchor(&s->prefix, &q->track);
        }
    }
}

void carry_scheduler_replace_reader(carry_scheduler *s, const carry_sequence *ended) {
    carry_sequence *next = NULL;
    for (int64_t i = 0; ended->has_followers && i < s->active_count; i++) {
        carry_sequence *q = s->active[i];
        if (q->reader != ended) {
            continue;
        }
        q->reader = q->phase == CARRY_PHASE_READS ? next : NULL;
        if (q->reader != NULL) {
            next->has_followers = true;
        } else if (q->phase == CARRY_PHASE_READS) {
            begin(s, q);
            next = q->phase == CARRY_PHASE_READS && q->track.length < carry_sequence_last_block(q) ? q : NULL;
        }
    }
}

/* True if there are pages for all that a sequence may need, in addition to those of kept states. */
static bool has_pages_for(const carry_scheduler *s, carry_sequence *q) {
    const carry_kept *kept = q->options.state != 0 ? carry_scheduler_state(s, q->options.state) : NULL;
    if (kept != NULL && s->runner->sizes.page_bytes > 0) {
        const int64_t context = s->runner->sizes.context;
        const int64_t before = kept->track.count + q->track.count; /* `tokens` may be the largest number */
        const int64_t most =
            before < context && q->options.tokens < context - before ? before + q->options.tokens : context;
        q->page_limit = (most + BLOCK - 1) / BLOCK + 1; /* counts shared pages too: the kept state may be dropped */
    }
    const int64_t moved = kept != NULL ? carry_scheduler_host_pages(s, kept) : 0;
    return s->reserved + s->state_pages + moved + q->page_limit <= s->pool.pages;
}

static void start(carry_scheduler *s, carry_sequence *q) {
    s->first = q->next;
    s->last = s->first == NULL ? NULL : s->last;
    s->stats.waiting--;
    s->active[s->active_count++] = q;
    s->reserved += q->page_limit;
    q->phase = CARRY_PHASE_READS;
    s->stats.prompt_tokens += q->track.count;
    if (!follow(s, q)) {
        begin(s, q);
    }
}

void carry_scheduler_admit(carry_scheduler *s) {
    while (s->first != NULL && s->active_count < s->options.texts) {
        carry_sequence *q = s->first;
        q->track.slot = has_pages_for(s, q) ? carry_prefix_take_slot(&s->prefix) : CARRY_POOL_NONE;
        if (q->track.slot != CARRY_POOL_NONE) {
            start(s, q);
            continue;
        }
        if (s->active_count == 0) { /* no sequence will end, so kept states hold too much */
            (void)carry_fail(s->ctx, CARRY_EMEMORY,
                             "a request needs a slot and %" PRId64 " pages: kept states hold %" PRId64 " of %" PRId64
                             " pages and the other slots; drop some",
                             q->page_limit, s->state_pages, s->pool.pages);
            carry_scheduler_fail(s, q, CARRY_EMEMORY);
        }
        return;
    }
}
