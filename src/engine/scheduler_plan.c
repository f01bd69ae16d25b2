/* The runs of a step.

   Texts keep at least half of their rate while prompts are read. If a step with only texts takes w seconds, a step that
   has pieces of prompts too and takes m seconds adds m - 2 w to a debt; each step without pieces subtracts w. Beside
   texts, pieces are read only while there is no debt. A piece takes as long as a few steps of texts, so that no text
   pauses for long. */
#include <inttypes.h>
#include <string.h>

#include "core/context.h"
#include "engine/scheduler_internal.h"

#define BLOCK CARRY_PAGE_TOKENS
#define PAUSE 4.0          /* a piece may take as long as this many steps of texts, */
#define PAUSE_SECONDS 0.02 /* or this long: shorter pieces do not keep a GPU busy, and the pause is not noticed */
#define SINGLE_PIECE 8 /* tokens of a prompt beside texts if they are read one by one: a text waits for all of them */
#define OLDEST_SHARE 4 /* the oldest prompt gets 1 / OLDEST_SHARE of a step */
#define NEW_SHARE 0.25 /* weight of a new measurement in a running mean */
#define FINE_SNAPSHOTS 8192 /* up to this token of a prompt, pieces end at multiples of snapshot_every */

static int64_t block_floor(int64_t tokens) {
    return tokens / BLOCK * BLOCK;
}

/* Runs. */

static bool may_run_ahead(const carry_scheduler *s, const carry_sequence *q) {
    return s->runner->overlaps && !q->options.keeps && !carry_sequence_needs_last(q) &&
           !carry_scheduler_is_drafted(s, q);
}

carry_run carry_scheduler_run_of(const carry_sequence *q, const int32_t *ids, int64_t count, bool wants) {
    return (carry_run){.slot = q->track.slot,
                       .pages = q->track.pages,
                       .length = q->track.length,
                       .ids = ids,
                       .count = count,
                       .wants_token = wants,
                       .sampling = &q->options.sampling,
                       .stream = q->options.stream,
                       .at = (uint64_t)(q->written + q->pending),
                       .seen = q->seen,
                       .seen_count = q->seen_count,
                       .bias = q->bias,
                       .logprobs = q->options.logprobs};
}

void carry_scheduler_add_run(carry_scheduler *s, carry_sequence *q, carry_flight *f, const int32_t *ids, int64_t count,
                             bool wants) {
    const carry_status status = carry_track_extend(&s->prefix, &q->track, count);
    if (status != CARRY_OK) {
        carry_scheduler_fail(s, q, status);
        return;
    }
    s->runs[f->count] = carry_scheduler_run_of(q, ids, count, wants);
    if (wants && !carry_sequence_allow(q, &s->runs[f->count].allowed)) {
        carry_fail_at(s->ctx, CARRY_ERANGE, __FILE__, __LINE__,
                      "token %" PRId64 " of the text: the constraint allows no token, or exceeds its bound of work",
                      q->written);
        carry_scheduler_fail(s, q, CARRY_ERANGE);
        return;
    }
    f->sequences[f->count] = q;
    f->follows[f->count] = false;
    f->wants[f->count++] = wants;
}

bool carry_scheduler_waits(const carry_scheduler *s, const carry_sequence *q) {
    return (q->pending > 0 && !may_run_ahead(s, q)) || q->written + q->pending >= q->options.tokens ||
           q->track.count + q->pending >= s->runner->sizes.context;
}

/* Adds one token of each text; false if there are no texts. */
static bool add_texts(carry_scheduler *s, carry_flight *f) {
    bool are_texts = false;
    carry_scheduler_find_drafts(s);
    for (int64_t i = 0; i < s->active_count; i++) {
        carry_sequence *q = s->active[i];
        const carry_track *t = &q->track;
        are_texts = are_texts || q->phase == CARRY_PHASE_WRITES;
        if (q->phase != CARRY_PHASE_WRITES || carry_scheduler_waits(s, q)) {
            continue;
        }
        if (carry_scheduler_is_drafted(s, q)) {
            carry_scheduler_add_drafted(s, q, f);
        } else {
            carry_scheduler_add_run(s, q, f, q->pending > 0 ? NULL : t->ids + t->length, 1, true);
        }
    }
    f->writers = f->count;
    return are_texts;
}

/* The end of a piece: `stop` if it is inside the piece, else `end`. */
static int64_t cut(int64_t length, int64_t end, int64_t stop) {
    return length < stop && stop < end ? stop : end;
}

/* True if the pieces of a prompt end where its state is cached. */
static bool is_cut(const carry_scheduler *s, const carry_sequence *q) {
    return s->options.same_bits || q->prompt_end - q->cached >= s->options.cut_from;
}

/* The position at which the state of a prompt is cached. */
static int64_t cached_end(const carry_scheduler *s, const carry_sequence *q) {
    const int64_t last = carry_sequence_last_block(q);
    return is_cut(s, q) || last == 0 ? last : q->prompt_end;
}

/* Returns the position at which a prompt's next piece ends, at most `most` tokens further on; or the current length if
   pieces must end at multiples of BLOCK and the next multiple is further away than that. */
static int64_t piece_end(const carry_scheduler *s, const carry_sequence *q, int64_t most) {
    const int64_t length = q->track.length;
    const int64_t every = s->options.snapshot_every;
    int64_t end = length + most;
    end = end >= q->prompt_end ? q->prompt_end : s->runner->reads_singly ? end : block_floor(end);
    if (end <= length) {
        return length;
    }
    if (q->has_followers) {
        end = cut(length, end, carry_sequence_last_block(q));
    }
    if (!q->options.is_uncached && s->prefix.options.device_bytes > 0) {
        const int64_t next = (length / every + 1) * every;
        end = cut(length, end, q->branch);
        end = cut(length, end, cached_end(s, q));
        if (is_cut(s, q)) {
            end = cut(length, end, next <= FINE_SNAPSHOTS ? next : end / every * every);
        }
    }
    return end;
}

static void add_piece(carry_scheduler *s, carry_sequence *q, carry_flight *f, int64_t *left, int64_t share) {
    const carry_track *t = &q->track;
    share = s->runner->reads_singly && f->writers > 0 && share > SINGLE_PIECE ? SINGLE_PIECE : share;
    const int64_t end = piece_end(s, q, share < *left ? share : *left);
    if (end > t->length) {
        const int64_t before = f->count;
        carry_scheduler_add_run(s, q, f, t->ids + t->length, end - t->length,
                                end == q->prompt_end && q->options.tokens > 0);
        *left -= f->count > before ? end - t->length : 0;
        f->prompt_tokens += f->count > before ? end - t->length : 0;
    }
}

static bool is_reader(const carry_sequence *q) {
    return q->phase == CARRY_PHASE_READS && q->reader == NULL && q->in_flight < CARRY_FLIGHTS;
}

/* Among the prompts without a piece in this step, the one with the fewest tokens left, or the oldest of these. */
static carry_sequence *shortest(const carry_scheduler *s) {
    carry_sequence *found = NULL;
    for (int64_t i = 0; i < s->active_count; i++) {
        carry_sequence *q = s->active[i];
        if (is_reader(q) && !q->is_planned &&
            (found == NULL || q->prompt_end - q->track.length < found->prompt_end - found->track.length)) {
            found = q;
        }
    }
    return found;
}

/* Adds pieces of prompts, first of those with the fewest tokens left: this minimises the mean time to the first token.
   The oldest prompt gets a quarter of each step, so that it finishes even if shorter ones keep arriving. */
static void add_prompts(carry_scheduler *s, carry_flight *f, int64_t left) {
    carry_sequence *oldest = NULL;
    for (int64_t i = 0; i < s->active_count; i++) {
        s->active[i]->is_planned = false;
        oldest = oldest == NULL && is_reader(s->active[i]) ? s->active[i] : oldest;
    }
    carry_sequence *q = shortest(s);
    if (oldest != NULL && oldest != q && left > BLOCK && f->count < s->runner->sizes.sequences) {
        const int64_t quarter = block_floor(left / OLDEST_SHARE);
        oldest->is_planned = true;
        add_piece(s, oldest, f, &left, quarter < BLOCK ? BLOCK : quarter);
    }
    for (; q != NULL && left > 0 && f->count < s->runner->sizes.sequences; q = shortest(s)) {
        q->is_planned = true;
        add_piece(s, q, f, &left, left);
    }
}

/* The number of prompt tokens in a step with texts. */
static int64_t piece_budget(const carry_scheduler *s, int64_t left) {
    if (s->write_s <= 0.0 || s->debt > 0.0) {
        return 0;
    }
    const double pause = PAUSE * s->write_s > PAUSE_SECONDS ? PAUSE * s->write_s : PAUSE_SECONDS;
    const double tokens = s->token_s > 0.0 ? pause / s->token_s : BLOCK;
    const int64_t some = tokens < (double)left ? block_floor((int64_t)tokens) : left;
    return some < BLOCK ? BLOCK : some;
}

static void snapshot_prompt(carry_scheduler *s, carry_sequence *q) {
    const carry_track *t = &q->track;
    const bool is_end = t->length == cached_end(s, q);
    const bool is_branch = t->length == q->branch;
    if (!q->options.is_uncached && t->length > q->cached &&
        (is_end || is_branch || t->length % s->options.snapshot_every == 0)) {
        (void)carry_prefix_insert(&s->prefix, t->ids, t->length, t->slot, t->pages, !is_end && !is_branch);
    }
}

/* Called after a run was enqueued; copies of its state are enqueued after it. */
static void advance(carry_scheduler *s, carry_sequence *q, int64_t count, bool wants, double enqueued) {
    carry_track *t = &q->track;
    t->length += count;
    q->in_flight++;
    q->pending += wants;
    q->started = q->started > 0.0 ? q->started : enqueued;
    if (q->phase == CARRY_PHASE_READS) {
        snapshot_prompt(s, q);
        carry_scheduler_share(s, q);
        if (t->length == q->prompt_end) {
            q->phase = CARRY_PHASE_WRITES;
            if (q->options.keeps) {
                carry_track_anchor(&s->prefix, t);
            }
            if (q->options.tokens == 0) {
                carry_scheduler_end(s, q, CARRY_OUTCOME_LENGTH);
            }
        }
    } else if (q->options.keeps &&
               (t->anchor[1] == CARRY_POOL_NONE || t->length - t->anchor_length[1] >= CARRY_ROLL_BACK)) {
        carry_track_anchor(&s->prefix, t);
    }
}

/* Handles a step that could not be enqueued: its prompts end, or its texts if it has no prompts, or all if it may have
   changed their states. */
static void refuse(carry_scheduler *s, const carry_flight *f, carry_status status) {
    for (int64_t i = f->prompt_tokens > 0 && !s->runner->has_begun ? f->writers : 0; i < f->count; i++) {
        carry_scheduler_fail(s, f->sequences[i], status);
    }
    for (int64_t i = 0; i < f->writers; i++) {
        carry_scheduler_drop_drafts(s, f->sequences[i]);
    }
}

void carry_scheduler_enqueue(carry_scheduler *s, int64_t *count) {
    carry_flight *f = &s->flights[(s->flight_first + s->flight_count) % CARRY_FLIGHTS];
    f->count = f->writers = f->prompt_tokens = 0;
    const bool are_texts = add_texts(s, f);
    const int64_t left = s->runner->sizes.tokens - f->count;
    add_prompts(s, f, are_texts ? piece_budget(s, left) : left);
    *count = f->count;
    if (f->count == 0) {
        return;
    }
    f->enqueued = carry_scheduler_now(s);
    const carry_status status = s->runner->ops->step(s->runner, s->runs, f->count);
    if (status != CARRY_OK) {
        refuse(s, f, status);
        *count = 0;
        return;
    }
    f->predicted = s->write_s + s->token_s * (double)f->prompt_tokens;
    s->debt += are_texts && f->prompt_tokens > 0 ? f->predicted - 2.0 * s->write_s : 0.0;
    s->flight_count++;
    for (int64_t i = 0; i < f->count; i++) {
        if (!f->follows[i]) {
            advance(s, f->sequences[i], s->runs[i].count, f->wants[i], f->enqueued);
        }
    }
}

static double mean(double before, double now) {
    return before > 0.0 ? (1.0 - NEW_SHARE) * before + NEW_SHARE * now : now;
}

void carry_scheduler_learn(carry_scheduler *s, const carry_flight *f) {
    const double now = carry_scheduler_now(s);
    const double took = now - (f->enqueued > s->last_result ? f->enqueued : s->last_result);
    s->last_result = now;
    if (f->prompt_tokens == 0) {
        s->write_s = mean(s->write_s, took);
        s->debt = s->debt > s->write_s ? s->debt - s->write_s : 0.0;
        return;
    }
    const double rest = f->writers > 0 ? took - s->write_s : took;
    s->token_s = mean(s->token_s, rest > 0.0 ? rest / (double)f->prompt_tokens : 0.0);
    s->debt += f->writers > 0 ? took - f->predicted : 0.0;
    s->debt = s->debt < -s->write_s ? -s->write_s : s->debt;
}
