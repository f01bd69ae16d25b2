/* Fills in the lists of a call: single tokens first, then pieces. */
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
    lists->targets = carry_arena_take(arena, r->scores ? tokens : 0, sizeof *lists->targets);
    lists->before = carry_arena_take(arena, r->heads.lm != NULL ? tokens : 0, sizeof *lists->before);
    lists->last_rows = carry_arena_take(arena, r->heads.lm != NULL ? sequences : 0, sizeof *lists->last_rows);
    lists->slot_rows = carry_arena_take(arena, r->heads.lm != NULL ? sequences : 0, sizeof *lists->slot_rows);
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
    if (r->scores != (run->targets != NULL) || (r->scores && (run->wants_token || run->follows || run->ids == NULL))) {
        return carry_fail(ctx, CARRY_EARGUMENT, "run %" PRId64 ": %s", index,
                          r->scores ? "a runner that scores needs ids and targets, and samples no token"
                                    : "targets need a runner that scores");
    }
    for (int64_t i = 0; r->scores && i < run->count; i++) {
        if (run->targets[i] >= sizes->vocabulary) {
            return carry_fail(ctx, CARRY_ERANGE,
                              "run %" PRId64 ", target %" PRId64 ": id %" PRId32 ", expected 0 to %" PRId64, index, i,
                              run->targets[i], sizes->vocabulary - 1);
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

/* Checks a run that follows another. */
static carry_status check_follower(const carry_model_runner *r, const carry_run *runs, int64_t index) {
    const carry_run *run = &runs[index];
    return index > 0 && run->count == 1 && run[-1].count == 1 && run->ids != NULL && run->length == run[-1].length + 1
               ? CARRY_OK
               : carry_fail(r->head.ctx, CARRY_EARGUMENT,
                            "run %" PRId64 " follows the one before it: expected one token of each, in turn", index);
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
        CARRY_TRY(runs[i].follows ? check_follower(r, runs, i) : CARRY_OK);
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

/* Adds sequence number `sequence` of the call, with its rows from `row` on and its pages from *page on. */
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
        if (r->scores) {
            l->targets[row + i] = run->targets[i] >= 0 ? run->targets[i] : CARRY_RUN_NO_TARGET;
        }
    }
    *page += pages;
}

typedef struct listing {
    carry_model_runner *r;
    const carry_run *runs;
    int64_t count, sequence, page;
} listing;

static void list_one(listing *to, int64_t index) {
    carry_model_runner *r = to->r;
    list_run(r, &to->runs[index], to->sequence, r->starts[to->sequence], &to->page);
    r->order[to->sequence] = index;
    r->starts[to->sequence + 1] = r->starts[to->sequence] + to->runs[index].count;
    to->sequence++;
}

/* The number of runs from `index` on that belong to one text, each with one token: 1, plus the runs that follow it. */
static int64_t followers(const listing *to, int64_t index) {
    int64_t n = 1;
    while (index + n < to->count && to->runs[index + n].follows) {
        n++;
    }
    return n;
}

/* Adds single tokens in waves; in each wave, texts with more tokens come first. */
static void list_waves(listing *to) {
    carry_model_runner *r = to->r;
    int64_t longest = 0;
    for (int64_t i = 0; i < to->count; i++) {
        const int64_t n = to->runs[i].count == 1 && !to->runs[i].follows ? followers(to, i) : 0;
        longest = n > longest ? n : longest;
    }
    for (int64_t wave = 0; wave < longest; wave++) {
        r->wave[wave] = to->sequence;
        for (int64_t length = longest; length > wave; length--) {
            for (int64_t i = 0; i < to->count; i++) {
                if (to->runs[i].count == 1 && !to->runs[i].follows && followers(to, i) == length) {
                    list_one(to, i + wave);
                }
            }
        }
    }
    r->wave[longest] = to->sequence;
    r->places.waves = longest > 1 ? longest : 0;
    r->places.wave = r->wave;
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
    /* On a device, the lists of the previous step may still be being copied. */
    r->list = r->lists[r->device != 0 ? r->steps % CARRY_MODEL_RUNNER_PENDING : 0];
    r->places.slots = r->list.slots;
    r->places.lengths = r->list.lengths;
    r->places.offsets = r->list.offsets;
    listing to = {.r = r, .runs = runs, .count = count};
    r->starts[0] = 0;
    list_waves(&to);
    r->places.steps = to.sequence;
    for (int64_t i = 0; i < count; i++) {
        if (runs[i].count > 1) {
            list_one(&to, i);
        }
    }
    r->places.sequences = count;
    for (int64_t i = r->places.steps; i <= count; i++) {
        r->borders[i - r->places.steps] = r->starts[i] - r->starts[r->places.steps];
    }
    list_wanted(r, runs, count);
    if (r->heads.lm != NULL) {
        carry_model_runner_list_heads(r, 0);
    }
    r->list_bytes = (size_t)((unsigned char *)(r->list.pages + to.page) - (unsigned char *)r->list.slots);
    return CARRY_OK;
}
