/* The lists of a call: single tokens first, then pieces. */
#include <inttypes.h>

#include "core/context.h"
#include "core/tensor.h"
#include "engine/model_runner_inside.h"

void carry_model_runner_take_lists(const carry_model_runner *r, carry_arena *arena, carry_model_runner_lists *lists) {
    const size_t sequences = (size_t)r->head.sizes.sequences;
    const size_t tokens = (size_t)r->head.sizes.tokens;
    lists->slots = carry_arena_take(arena, sequences, sizeof *lists->slots);
    lists->offsets = carry_arena_take(arena, sequences, sizeof *lists->offsets);
    lists->lengths = carry_arena_take(arena, sequences, sizeof *lists->lengths);
    lists->positions = carry_arena_take(arena, tokens, sizeof *lists->positions);
    lists->rows = carry_arena_take(arena, tokens, sizeof *lists->rows);
    lists->wanted = carry_arena_take(arena, sequences, sizeof *lists->wanted);
    lists->ids = carry_arena_take(arena, tokens, sizeof *lists->ids);
    lists->pages = carry_arena_take(arena, sequences, (size_t)r->page_list * sizeof *lists->pages);
}

static int64_t pages_of(int64_t tokens) {
    return (tokens + CARRY_PAGE_TOKENS - 1) / CARRY_PAGE_TOKENS;
}

static carry_status check_run(const carry_model_runner *r, const carry_run *run, int64_t index) {
    const carry_runner_sizes *sizes = &r->head.sizes;
    carry_ctx *ctx = r->head.ctx;
    if (run->slot < 0 || run->slot >= sizes->slots || run->count < 1 || run->length < 0 ||
        run->length > sizes->context || run->count > sizes->context - run->length) {
        return carry_fail(ctx, CARRY_ERANGE,
                          "run %" PRId64 ": %" PRId64 " tokens after %" PRId64 " in slot %" PRId32
                          ": expected 1 to %" PRId64 " tokens in all, and a slot below %" PRId64,
                          index, run->count, run->length, run->slot, sizes->context, sizes->slots);
    }
    if (run->ids == NULL && (run->count != 1 || r->last[run->slot] < 0)) {
        return carry_fail(ctx, CARRY_EARGUMENT, "run %" PRId64 " has no ids, and no token was sampled in slot %" PRId32,
                          index, run->slot);
    }
    for (int64_t i = 0; run->ids != NULL && i < run->count; i++) {
        if (run->ids[i] < 0 || run->ids[i] >= sizes->vocabulary) {
            return carry_fail(ctx, CARRY_ERANGE,
                              "run %" PRId64 ", token %" PRId64 ": id %" PRId32 ", expected 0 to %" PRId64, index, i,
                              run->ids[i], sizes->vocabulary - 1);
        }
    }
    const int64_t pages = sizes->pages > 0 ? pages_of(run->length + run->count) : 0;
    for (int64_t i = 0; i < pages; i++) {
        if (run->pages[i] < 0 || run->pages[i] >= sizes->pages) {
            return carry_fail(ctx, CARRY_ERANGE,
                              "run %" PRId64 ", page %" PRId64 ": number %" PRId32 ", expected 0 to %" PRId64, index, i,
                              run->pages[i], sizes->pages - 1);
        }
    }
    for (int64_t i = 0; run->wants_token && i < run->seen_count; i++) {
        if (run->seen[i] >= (uint64_t)sizes->vocabulary) {
            return carry_fail(ctx, CARRY_ERANGE, "run %" PRId64 ": seen token %" PRIu32 ", expected 0 to %" PRId64,
                              index, run->seen[i], sizes->vocabulary - 1);
        }
    }
    return run->wants_token ? carry_sampling_check(ctx, run->sampling) : CARRY_OK;
}

carry_status carry_model_runner_check(const carry_model_runner *r, const carry_run *runs, int64_t count) {
    const carry_runner_sizes *sizes = &r->head.sizes;
    int64_t tokens = 0;
    if (count < 1 || count > sizes->sequences) {
        return carry_fail(r->head.ctx, CARRY_ESIZE, "a step of %" PRId64 " sequences: expected 1 to %" PRId64, count,
                          sizes->sequences);
    }
    for (int64_t i = 0; i < count; i++) {
        CARRY_TRY(check_run(r, &runs[i], i));
        tokens += runs[i].count;
        for (int64_t j = 0; j < i; j++) {
            if (runs[j].slot == runs[i].slot) {
                return carry_fail(r->head.ctx, CARRY_EARGUMENT,
                                  "runs %" PRId64 " and %" PRId64 " both have slot %" PRId32, j, i, runs[i].slot);
            }
        }
    }
    return tokens <= sizes->tokens
               ? CARRY_OK
               : carry_fail(r->head.ctx, CARRY_ESIZE, "a step of %" PRId64 " tokens: expected at most %" PRId64, tokens,
                            sizes->tokens);
}

/* Sequence number `sequence` of the call, from row `row` on; its pages from *page on. */
static void list_run(carry_model_runner *r, const carry_run *run, int64_t sequence, int64_t row, int64_t *page) {
    carry_model_runner_lists *l = &r->list;
    const bool paged = r->head.sizes.pages > 0;
    const int64_t pages = paged ? pages_of(run->length + run->count) : 0;
    l->slots[sequence] = run->slot;
    l->lengths[sequence] = run->length;
    l->offsets[sequence] = (int32_t)*page;
    for (int64_t i = 0; i < pages; i++) {
        l->pages[*page + i] = run->pages[i];
    }
    for (int64_t i = 0; i < run->count; i++) {
        const int64_t t = run->length + i;
        l->positions[row + i] = t;
        l->rows[row + i] =
            paged ? (int64_t)run->pages[t / CARRY_PAGE_TOKENS] * CARRY_PAGE_TOKENS + t % CARRY_PAGE_TOKENS : 0;
        l->ids[row + i] = run->ids != NULL ? run->ids[i] : r->sampling != NULL ? -1 : r->last[run->slot];
    }
    *page += pages;
}

static void list_wanted(carry_model_runner *r, const carry_run *runs, int64_t count) {
    int64_t wanted = 0;
    for (int64_t i = 0; i < count; i++) {
        const int64_t run = r->order[i];
        r->row_of[run] = runs[run].wants_token ? wanted : -1;
        if (runs[run].wants_token) {
            r->list.wanted[wanted++] = r->starts[i + 1] - 1;
        }
    }
    r->places.wanted_count = wanted;
    r->places.wanted = wanted == r->starts[count] ? NULL : r->list.wanted;
}

carry_status carry_model_runner_list(carry_model_runner *r, const carry_run *runs, int64_t count) {
    /* On a device, those of the step before may be on their way. */
    r->list = r->lists[r->device != 0 ? r->steps % CARRY_MODEL_RUNNER_PENDING : 0];
    r->places.slots = r->list.slots;
    r->places.lengths = r->list.lengths;
    r->places.offsets = r->list.offsets;
    int64_t sequence = 0;
    int64_t page = 0;
    int64_t steps = 0;
    r->starts[0] = 0;
    for (int single = 1; single >= 0; single--) {
        for (int64_t i = 0; i < count; i++) {
            if ((runs[i].count == 1) == (single == 1)) {
                list_run(r, &runs[i], sequence, r->starts[sequence], &page);
                r->order[sequence] = i;
                r->starts[sequence + 1] = r->starts[sequence] + runs[i].count;
                sequence++;
            }
        }
        steps = single == 1 ? sequence : steps;
    }
    r->places.sequences = count;
    r->places.steps = steps;
    list_wanted(r, runs, count);
    r->list_bytes = (size_t)((unsigned char *)(r->list.pages + page) - (unsigned char *)r->list.slots);
    return CARRY_OK;
}
