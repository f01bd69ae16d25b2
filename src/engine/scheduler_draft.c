/* Guesses of a step: they are found for all texts at once, then added to the step with their texts. */
#include "core/context.h"
#include "engine/scheduler_internal.h"

/* Penalties and constraints depend on every token before, so texts with them get no guesses. */
bool carry_scheduler_is_drafted(const carry_scheduler *s, const carry_sequence *q) {
    return (s->options.draft != NULL || s->options.heads_draft) && s->options.draft_tokens > 0 &&
           !q->options.is_undrafted && !carry_sequence_needs_last(q);
}

void carry_scheduler_drop_drafts(carry_scheduler *s, carry_sequence *q) {
    while (q->draft_count > 0) {
        carry_state_pool_give_slot(&s->pool, q->draft_slot[--q->draft_count]);
    }
}

/* The number of guesses that a text can use. */
static int64_t most_of(const carry_scheduler *s, const carry_sequence *q) {
    int64_t most = s->options.draft_tokens;
    const int64_t text = q->options.tokens - q->written - 1;
    const int64_t context = s->runner->sizes.context - q->track.count;
    most = text < most ? text : most;
    return context < most ? context : most;
}

/* Asks the runner for `most` draft tokens for each run in s->runs; s->guessing has their sequences. If it fails
   there are no drafts, and the next step reports the cause. */
static void guess_by_runner(carry_scheduler *s, int64_t count, int64_t most) {
    int32_t *guesses = s->guesses;
    if (s->runner->ops->draft(s->runner, s->runs, count, most, guesses) != CARRY_OK) {
        return;
    }
    for (int64_t i = 0; i < count; i++) {
        carry_sequence *q = s->guessing[i];
        for (q->found = 0; q->found < most; q->found++) {
            q->draft[q->found] = guesses[i * most + q->found];
        }
    }
}

/* Sets `found` of each text that is about to be read. */
void carry_scheduler_find_drafts(carry_scheduler *s) {
    const int64_t reserved = s->runner->sizes.sequences - s->options.texts;
    const bool pays = s->active_count * s->options.draft_tokens <= reserved; /* with many texts guesses do not */
    int64_t count = 0;
    int64_t fewest = CARRY_DRAFT_MOST;
    for (int64_t i = 0; i < s->active_count; i++) {
        carry_sequence *q = s->active[i];
        q->found = 0;
        if (!pays || q->phase != CARRY_PHASE_WRITES || !carry_scheduler_is_drafted(s, q) ||
            carry_scheduler_waits(s, q)) {
            continue;
        }
        const int64_t most = most_of(s, q);
        const carry_track *t = &q->track;
        if (most > 0 && !s->options.heads_draft) {
            q->found = s->options.draft(s->options.draft_user, t->ids, t->count, q->draft, most);
        } else if (most > 0 && carry_track_extend(&s->prefix, &q->track, 1 + most) == CARRY_OK) {
            s->runs[count] = carry_scheduler_run_of(q, t->ids + t->length, 1, false);
            s->guessing[count++] = q;
            fewest = most < fewest ? most : fewest;
        }
    }
    if (count > 0) {
        guess_by_runner(s, count, fewest);
    }
}

/* Takes slots for the states after the guesses. */
static void take_slots(carry_scheduler *s, carry_sequence *q) {
    for (q->draft_count = 0; q->draft_count < q->found; q->draft_count++) {
        const int32_t slot = carry_prefix_take_slot(&s->prefix);
        if (slot == CARRY_POOL_NONE) {
            break;
        }
        q->draft_slot[q->draft_count] = slot;
    }
}

void carry_scheduler_add_drafted(carry_scheduler *s, carry_sequence *q, carry_flight *f) {
    const int64_t at = f->count;
    take_slots(s, q);
    if (carry_track_extend(&s->prefix, &q->track, 1 + q->draft_count) != CARRY_OK) {
        carry_scheduler_drop_drafts(s, q);
    }
    carry_scheduler_add_run(s, q, f, q->track.ids + q->track.length, 1, true);
    for (int64_t i = 0; i < q->draft_count && f->count > at; i++) {
        carry_run *run = &s->runs[f->count];
        *run = carry_scheduler_run_of(q, &q->draft[i], 1, true);
        run->slot = q->draft_slot[i];
        run->length += 1 + i;
        run->at += (uint64_t)(1 + i);
        run->allowed = s->runs[at].allowed;
        run->follows = true;
        f->sequences[f->count] = q;
        f->follows[f->count] = true;
        f->wants[f->count++] = true;
    }
}
