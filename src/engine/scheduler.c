/* The life of requests: queue, results, ends. scheduler_admit.c has admission, scheduler_plan.c steps. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/clock.h"
#include "core/context.h"
#include "engine/scheduler_internal.h"

#define QUEUE 1024
#define SNAPSHOT_EVERY 1024

double carry_scheduler_now(const carry_scheduler *s) {
    return s->options.clock != NULL ? s->options.clock(s->options.user) : carry_seconds();
}

static carry_status open_arrays(carry_scheduler *s) {
    const size_t n = (size_t)s->runner->sizes.sequences;
    bool is_whole = true;
    s->active = calloc(n, sizeof(carry_sequence *));
    s->runs = calloc(n, sizeof *s->runs);
    s->results = calloc(n, sizeof *s->results);
    s->guessing = calloc(n, sizeof(carry_sequence *));
    s->guesses = calloc(n, CARRY_DRAFT_MOST * sizeof *s->guesses);
    s->kept_owners = calloc((size_t)s->runner->sizes.pages + 1, sizeof *s->kept_owners);
    for (int i = 0; i < CARRY_FLIGHTS; i++) {
        s->flights[i].sequences = calloc(n, sizeof(carry_sequence *));
        s->flights[i].wants = calloc(n, sizeof(bool));
        s->flights[i].follows = calloc(n, sizeof(bool));
        is_whole =
            is_whole && s->flights[i].sequences != NULL && s->flights[i].wants != NULL && s->flights[i].follows != NULL;
    }
    is_whole = is_whole && s->active != NULL && s->runs != NULL && s->results != NULL && s->kept_owners != NULL &&
               s->guessing != NULL && s->guesses != NULL;
    return is_whole ? CARRY_OK : carry_fail(s->ctx, CARRY_EMEMORY, "out of memory: %zu sequences", n);
}

static carry_status check_sizes(carry_ctx *ctx, const carry_runner_sizes *z, const carry_scheduler_options *o) {
    if (z->sequences < 1 || z->tokens < z->sequences + CARRY_PAGE_TOKENS || z->slots < 1 || z->context < 1) {
        return carry_fail(ctx, CARRY_ESIZE,
                          "a step of %" PRId64 " tokens for %" PRId64 " sequences and %" PRId64
                          " slots: expected at least %d tokens more than sequences, and a slot",
                          z->tokens, z->sequences, z->slots, CARRY_PAGE_TOKENS);
    }
    if (o->texts < 0 || o->texts > z->sequences || o->draft_tokens < 0 || o->draft_tokens > CARRY_DRAFT_MOST) {
        return carry_fail(ctx, CARRY_ESIZE,
                          "%" PRId64 " texts of %" PRId64 " runs, %" PRId64 " guesses: expected up to %d guesses",
                          o->texts, z->sequences, o->draft_tokens, CARRY_DRAFT_MOST);
    }
    if (o->snapshot_every % CARRY_PAGE_TOKENS != 0 || o->snapshot_every < 0 || o->queue < 0) {
        return carry_fail(ctx, CARRY_EARGUMENT, "snapshots every %" PRId64 " tokens: expected a multiple of %d",
                          o->snapshot_every, CARRY_PAGE_TOKENS);
    }
    return CARRY_OK;
}

carry_status carry_scheduler_new(carry_ctx *ctx, carry_scheduler **made, carry_runner *runner,
                                 const carry_scheduler_options *options) {
    *made = NULL;
    CARRY_TRY(check_sizes(ctx, &runner->sizes, options));
    carry_scheduler *s = calloc(1, sizeof *s);
    if (s == NULL) {
        return carry_fail(ctx, CARRY_EMEMORY, "out of memory: a scheduler");
    }
    s->ctx = ctx;
    s->runner = runner;
    s->options = *options;
    s->options.queue = options->queue > 0 ? options->queue : QUEUE;
    s->options.texts = options->texts > 0 ? options->texts : runner->sizes.sequences;
    s->options.snapshot_every = options->snapshot_every > 0 ? options->snapshot_every : SNAPSHOT_EVERY;
    carry_status status = open_arrays(s);
    status =
        status == CARRY_OK ? carry_state_pool_open(ctx, &s->pool, runner->sizes.slots, runner->sizes.pages) : status;
    status = status == CARRY_OK ? carry_prefix_open(ctx, &s->prefix, runner, &s->pool, &options->cache) : status;
    if (status != CARRY_OK) {
        carry_scheduler_free(s);
        return status;
    }
    *made = s;
    return CARRY_OK;
}

void carry_scheduler_free(carry_scheduler *s) {
    if (s == NULL) {
        return;
    }
    s->options.on_event = NULL;
    (void)carry_scheduler_drain(s);
    for (carry_sequence *q = s->first, *next; q != NULL; q = next) {
        next = q->next;
        carry_sequence_free(q);
    }
    for (int64_t i = 0; i < s->active_count; i++) {
        carry_scheduler_drop_drafts(s, s->active[i]);
        carry_track_close(&s->pool, &s->active[i]->track);
        carry_sequence_free(s->active[i]);
    }
    carry_scheduler_free_states(s);
    if (s->prefix.buckets != NULL) {
        carry_prefix_close(&s->prefix);
    }
    carry_state_pool_close(&s->pool);
    for (int i = 0; i < CARRY_FLIGHTS; i++) {
        free(s->flights[i].sequences);
        free(s->flights[i].wants);
        free(s->flights[i].follows);
    }
    free(s->active);
    free(s->guessing);
    free(s->guesses);
    free(s->runs);
    free(s->kept_owners);
    free(s->results);
    free(s);
}

carry_status carry_scheduler_add(carry_scheduler *s, carry_sequence *q, uint64_t request) {
    if (s->stats.waiting >= s->options.queue) {
        return carry_fail(s->ctx, CARRY_ESIZE, "the queue is full: %" PRId64 " requests wait; try again later",
                          s->stats.waiting);
    }
    q->request = request;
    q->submitted = carry_scheduler_now(s);
    q->next = NULL;
    *(s->last != NULL ? &s->last->next : &s->first) = q;
    s->last = q;
    s->stats.waiting++;
    s->stats.requests++;
    return CARRY_OK;
}

void carry_scheduler_end(carry_scheduler *s, carry_sequence *q, carry_outcome outcome) {
    if (q->phase != CARRY_PHASE_ENDED) {
        q->phase = CARRY_PHASE_ENDED;
        q->outcome = outcome;
        s->has_ended = true;
    }
}

void carry_scheduler_fail(carry_scheduler *s, carry_sequence *q, carry_status status) {
    if (q->phase != CARRY_PHASE_ENDED) {
        q->status = status;
        (void)snprintf(q->message, sizeof q->message, "%s", carry_ctx_error(s->ctx));
    }
    carry_scheduler_end(s, q, CARRY_OUTCOME_FAILED);
}

bool carry_scheduler_cancel(carry_scheduler *s, uint64_t request) {
    carry_sequence *found = NULL;
    for (carry_sequence *q = s->first; q != NULL && found == NULL; q = q->next) {
        found = q->request == request ? q : NULL;
    }
    for (int64_t i = 0; i < s->active_count && found == NULL; i++) {
        found = s->active[i]->request == request ? s->active[i] : NULL;
    }
    if (found == NULL || found->phase == CARRY_PHASE_ENDED) {
        return false;
    }
    carry_scheduler_end(s, found, CARRY_OUTCOME_CANCELLED);
    return true;
}

void carry_scheduler_cancel_all(carry_scheduler *s) {
    for (carry_sequence *q = s->first; q != NULL; q = q->next) {
        carry_scheduler_end(s, q, CARRY_OUTCOME_CANCELLED);
    }
    for (int64_t i = 0; i < s->active_count; i++) {
        carry_scheduler_end(s, s->active[i], CARRY_OUTCOME_CANCELLED);
    }
}

/* Handles the state at the end of a text: it is kept, or cached for the next turn of a conversation. A state that has
   not read its whole prompt is neither; cached prefixes of the prompt are those of the tokens that were read. */
static uint64_t leave_state(carry_scheduler *s, carry_sequence *q) {
    const carry_track *t = &q->track;
    if (t->slot == CARRY_POOL_NONE) {
        return 0;
    }
    if (q->is_doubtful && !q->options.is_uncached) {
        carry_prefix_distrust(&s->prefix, t->ids, t->count < t->length ? t->count : t->length);
    }
    if (q->is_doubtful || q->outcome == CARRY_OUTCOME_FAILED || t->length < q->prompt_end || t->count < t->length) {
        return 0;
    }
    if (q->options.keeps) {
        return carry_scheduler_keep(s, &q->track, q->prompt_end);
    }
    if (!s->options.same_bits && !q->options.is_uncached && q->written > 0 && t->length > q->cached) {
        (void)carry_prefix_insert(&s->prefix, t->ids, t->length, t->slot, t->pages, false);
    }
    return 0;
}

static void finish(carry_scheduler *s, carry_sequence *q) {
    carry_scheduler_drop_drafts(s, q);
    carry_scheduler_replace_reader(s, q);
    const uint64_t state = leave_state(s, q);
    carry_track_close(&s->pool, &q->track);
    q->ended = carry_scheduler_now(s);
    s->stats.finished++;
    s->stats.cancelled += q->outcome == CARRY_OUTCOME_CANCELLED;
    s->stats.failed += q->outcome == CARRY_OUTCOME_FAILED;
    if (s->options.on_event != NULL) {
        s->options.on_event(s->options.user, &(carry_sequence_event){.sequence = q, .state = state});
    }
    carry_sequence_free(q);
}

/* Reports and frees sequences that have ended and that no step uses. */
static void sweep(carry_scheduler *s) {
    bool remain = false;
    if (!s->has_ended) {
        return;
    }
    s->has_ended = false;
    for (carry_sequence **at = &s->first, *before = NULL; *at != NULL;) {
        carry_sequence *q = *at;
        if (q->phase != CARRY_PHASE_ENDED) {
            before = q;
            at = &q->next;
            continue;
        }
        *at = q->next;
        s->last = s->last == q ? before : s->last;
        s->stats.waiting--;
        finish(s, q); /* its callback may append requests; that changes neither *at nor before */
    }
    for (int64_t i = s->active_count - 1; i >= 0; i--) {
        carry_sequence *q = s->active[i];
        if (q->phase == CARRY_PHASE_ENDED && q->in_flight == 0) {
            memmove(s->active + i, s->active + i + 1, (size_t)(s->active_count - i - 1) * sizeof(carry_sequence *));
            s->active_count--;
            s->reserved -= q->page_limit;
            finish(s, q);
        } else {
            remain = remain || q->phase == CARRY_PHASE_ENDED;
        }
    }
    s->has_ended = s->has_ended || remain;
}

/* Handles a sampled token of a text that continues. */
static void take_token(carry_scheduler *s, carry_sequence *q, const carry_run_result *r) {
    const carry_status status = carry_track_append(s->ctx, &q->track, &r->token, 1);
    if (status != CARRY_OK) {
        carry_scheduler_fail(s, q, status);
        return;
    }
    if (carry_sequence_ends_with(q, r->token)) {
        q->track.count -= q->options.keeps; /* a kept state does not include the end token */
        carry_scheduler_end(s, q, CARRY_OUTCOME_TOKEN);
        return;
    }
    carry_sequence_note(q, r->token);
    q->first = q->written == 0 ? carry_scheduler_now(s) : q->first;
    q->written++;
    s->stats.written_tokens++;
    if (s->options.on_event != NULL) {
        s->options.on_event(s->options.user, &(carry_sequence_event){.sequence = q, .result = r});
    }
    if (q->written == q->options.tokens) {
        carry_scheduler_end(s, q, CARRY_OUTCOME_LENGTH);
    } else if (q->track.count >= s->runner->sizes.context) {
        carry_scheduler_end(s, q, CARRY_OUTCOME_CONTEXT);
    }
}

static void take_result(carry_scheduler *s, carry_sequence *q, const carry_run_result *r) {
    q->is_doubtful = q->is_doubtful || r->is_failed;
    if (q->phase != CARRY_PHASE_ENDED && r->is_failed) {
        char why[80];
        carry_runner_explain(s->runner, why, sizeof why);
        carry_fail_at(s->ctx, CARRY_ERANGE, __FILE__, __LINE__,
                      "token %" PRId64 " of the text: the logits have NaN or infinity, or allow no token%s", q->written,
                      why);
        carry_scheduler_fail(s, q, CARRY_ERANGE);
    } else if (q->phase != CARRY_PHASE_ENDED) {
        take_token(s, q, r);
    } else if (q->track.count < q->track.length && !r->is_failed) {
        (void)carry_track_append(s->ctx, &q->track, &r->token, 1); /* the next step has already read it */
    }
}

/* Accepts guesses as long as they equal the sampled tokens; the first draft_forced ones are accepted in any case. The
   text continues with the slot of the last accepted guess. */
static void take_drafts(carry_scheduler *s, carry_sequence *q, const carry_run_result *results) {
    carry_track *t = &q->track;
    for (int64_t i = 0; i < q->draft_count; i++) {
        if (q->phase != CARRY_PHASE_WRITES || (results[i].token != q->draft[i] && i >= s->options.draft_forced)) {
            break;
        }
        const int32_t before = t->slot;
        t->slot = q->draft_slot[i];
        q->draft_slot[i] = before;
        t->length++;
        q->accepted++;
        s->stats.accepted_tokens++;
        take_result(s, q, &results[i + 1]);
    }
    q->drafted += q->draft_count;
    s->stats.drafted_tokens += q->draft_count;
    carry_scheduler_drop_drafts(s, q);
}

/* Handles a step whose results cannot be read. Other sequences may have copied the states that it left (those with the
   same prompt, and by cached prefixes), so all end. */
static void fail_all(carry_scheduler *s, carry_status status) {
    for (int64_t i = 0; i < s->active_count; i++) {
        carry_sequence *q = s->active[i];
        q->is_doubtful = true;
        if (q->phase == CARRY_PHASE_ENDED && q->options.keeps && q->outcome == CARRY_OUTCOME_LENGTH) {
            q->phase = CARRY_PHASE_WRITES; /* its prompt was read by this step, so it has not ended well */
        }
        carry_scheduler_fail(s, q, status);
    }
}

/* Reads the results of the oldest step. */
static void read_results(carry_scheduler *s) {
    carry_flight *f = &s->flights[s->flight_first];
    const carry_status status = s->runner->ops->results(s->runner, s->results, f->count);
    s->flight_first = (s->flight_first + 1) % CARRY_FLIGHTS;
    s->flight_count--;
    if (status == CARRY_OK) {
        carry_scheduler_learn(s, f);
    } else {
        fail_all(s, status);
    }
    for (int64_t i = 0; i < f->count; i++) {
        carry_sequence *q = f->sequences[i];
        if (f->follows[i]) {
            continue;
        }
        q->in_flight--;
        q->pending -= f->wants[i];
        if (status == CARRY_OK && f->wants[i]) {
            take_result(s, q, &s->results[i]);
            take_drafts(s, q, &s->results[i]);
        }
    }
}

carry_status carry_scheduler_drain(carry_scheduler *s) {
    while (s->flight_count > 0) {
        read_results(s);
    }
    sweep(s);
    return CARRY_OK;
}

carry_status carry_scheduler_step(carry_scheduler *s, bool *is_busy) {
    int64_t count = 0;
    sweep(s);
    carry_scheduler_admit(s);
    carry_scheduler_enqueue(s, &count);
    s->stats.steps += count > 0;
    const int most = s->runner->overlaps ? CARRY_FLIGHTS : 1;
    if (s->flight_count > 0 && (count == 0 || s->flight_count == most)) {
        read_results(s);
    }
    sweep(s);
    *is_busy = s->first != NULL || s->active_count > 0 || s->flight_count > 0;
    return CARRY_OK;
}

carry_scheduler_stats carry_scheduler_statistics(const carry_scheduler *s) {
    carry_scheduler_stats stats = s->stats;
    stats.active = s->active_count;
    stats.slots = s->pool.slots;
    stats.free_slots = s->pool.free_slots;
    stats.pages = s->pool.pages;
    stats.free_pages = s->pool.free_pages;
    stats.cache = s->prefix.stats;
    stats.cache.snapshots = s->prefix.device.count;
    stats.cache.host_snapshots = s->prefix.host.count;
    return stats;
}
