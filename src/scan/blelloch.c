/* Tree scan: sweep up, sweep down. About 3T products in 2 log2 T rounds; T need not be a power of two.

   Up, level by level, in place: the later element of a pair absorbs the earlier one, b2 = A2 b1 + b2, and becomes
   the element of the next level. Products of transitions are stored separately. Down: every second element is final,
   and the ones between are computed from their left neighbours: b = A b' + b. An odd last element of a level is
   handled on the way down. The low levels are swept block by block. */
#include "core/span.h"
#include "scan/element.h"

#define MAX_LEVELS 64
#define WALKED 1 /* elements of the top level */
#define LOW 4    /* levels that are swept block by block, so that a block of 2^LOW elements stays in the cache */

typedef struct level {
    int64_t count;
    carry_run A, b;
} level;

/* The elements from `first` on, `apart` from each other. */
static carry_run from(carry_run run, int64_t first, int64_t apart) {
    return (carry_run){run.data + first * run.next, apart * run.next};
}

/* Combines pairs among elements begin..end-1 of a level; begin is even. The transition of a level's first element is
   never read, since it has no left neighbour. */
static void sweep_up(carry_scan_item *item, const level *here, int64_t begin, int64_t end) {
    const level *above = here + 1;
    const int64_t first = begin / 2, count = end / 2 - first, composed = first > 0 ? first : 1;
    const carry_run b = from(above->b, first, 1);
    carry_scan_apply(item, count, b, b, from(here->A, 2 * first + 1, 2), from(here->b, 2 * first, 2));
    carry_scan_compose(item, first + count - composed, from(above->A, composed, 1), from(here->A, 2 * composed + 1, 2),
                       from(here->A, 2 * composed, 2));
}

static void sweep_down(carry_scan_item *item, const level *here, int64_t begin, int64_t end) {
    const level *above = here + 1;
    const int64_t first = begin > 0 ? begin / 2 : 1;
    const carry_run b = from(here->b, 2 * first, 2);
    carry_scan_apply(item, (end + 1) / 2 - first, b, b, from(here->A, 2 * first, 2), from(above->b, first - 1, 1));
}

static int64_t end_of(const level *levels, int k, int64_t block) {
    return block < levels[0].count ? block >> k : levels[k].count;
}

static void climb(carry_scan_item *item, const level *levels, int low, int top) {
    CARRY_SPAN(item->work->ctx, "scan", "blelloch up");
    for (int64_t i = 0; i < levels[0].count; i += (int64_t)1 << low) {
        for (int k = 0; k < low; k++) {
            sweep_up(item, &levels[k], i >> k, end_of(levels, k, i + ((int64_t)1 << low)));
        }
    }
    for (int k = low; k < top; k++) {
        sweep_up(item, &levels[k], 0, levels[k].count);
    }
}

static void descend(carry_scan_item *item, const level *levels, int low, int top) {
    CARRY_SPAN(item->work->ctx, "scan", "blelloch down");
    for (int k = top - 1; k >= low; k--) {
        sweep_down(item, &levels[k], 0, levels[k].count);
    }
    for (int64_t i = 0; i < levels[0].count; i += (int64_t)1 << low) {
        for (int k = low - 1; k >= 0; k--) {
            sweep_down(item, &levels[k], i >> k, end_of(levels, k, i + ((int64_t)1 << low)));
        }
    }
}

static void solve(carry_scan_item *item) {
    int64_t A_size = carry_scan_A_size(item->work);
    level levels[MAX_LEVELS];
    int top = 0;
    levels[0] =
        (level){.count = item->work->steps, .A = carry_run_from(item->A, item->A_step), .b = {item->h, item->h_step}};
    carry_scan_apply(item, 1, levels[0].b, levels[0].b, levels[0].A, carry_run_from(item->h0, 0));
    for (; levels[top].count > WALKED; top++) {
        int64_t count = levels[top].count / 2;
        float *products = carry_arena_take(&item->arena, (size_t)(count * A_size), sizeof(float));
        levels[top + 1] = (level){.count = count, .A = {products, A_size}, .b = from(levels[top].b, 1, 2)};
    }
    /* If threads share a sequence, every level is swept as a whole. */
    const int low = item->threaded ? 0 : top < LOW ? top : LOW;
    climb(item, levels, low, top);
    const level *last = &levels[top];
    for (int64_t i = 1; i < last->count; i++) {
        const carry_run b = from(last->b, i, 1);
        carry_scan_apply(item, 1, b, b, from(last->A, i, 1), from(last->b, i - 1, 1));
    }
    descend(item, levels, low, top);
}

static double cost(const carry_scan_shape *shape, const carry_rates_table *rates, int threads) {
    double steps = (double)shape->steps;
    double levels = 0.0;
    for (int64_t count = shape->steps; count > 1; count /= 2) {
        levels += 1.0;
    }
    return carry_scan_items_cost(shape, rates, threads, steps - 1.0, 2.0 * steps, 3.0 * levels + 1.0);
}

static size_t item_bytes(const carry_scan_shape *shape) {
    carry_arena arena = carry_arena_over(NULL, 0);
    for (int64_t count = shape->steps / 2; count > 0; count /= 2) {
        (void)carry_arena_take(&arena, (size_t)(count * carry_scan_A_size(shape)), sizeof(float));
    }
    return arena.used;
}

static bool workspace(const carry_scan_shape *shape, int threads, size_t *bytes) {
    return carry_scan_items_workspace(shape, threads, item_bytes(shape), bytes);
}

static carry_status run(carry_scan_work *work) {
    return carry_scan_each_item(work, item_bytes(work), solve);
}

const carry_scan_algorithm carry_scan_blelloch = {
    .name = "blelloch",
    .span = CARRY_SPAN_SITE("scan", "blelloch"),
    .about = "work-efficient tree: up, then down",
    .applies = carry_scan_always,
    .cost = cost,
    .workspace = workspace,
    .run = run,
};
