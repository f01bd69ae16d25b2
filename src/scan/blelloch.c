/* Tree scan: sweep up, sweep down. About 3T products in 2 log2 T rounds; T need not be a power of two.

   Up, level by level, in place: the later element of a pair takes in the earlier one, b2 = A2 b1 + b2, and is the
   element of the next level; products of transitions have memory of their own. Down: every second element is final, and
   the ones between follow from their left neighbours: b = A b' + b. An odd last element of a level waits for that. */
#include "core/span.h"
#include "scan/element.h"

#define MAX_LEVELS 64

typedef struct level {
    int64_t count;
    carry_run A, b;
} level;

static carry_run every_other(carry_run run, int64_t first) {
    return (carry_run){run.data + first * run.next, 2 * run.next};
}

static void sweep_up(carry_scan_item *item, const level *here, const level *above) {
    CARRY_SPAN(item->work->ctx, "scan", "blelloch up");
    carry_scan_apply(item, above->count, above->b, above->b, every_other(here->A, 1), every_other(here->b, 0));
    /* The first element of a level has no left neighbour: nothing reads its transition. */
    carry_scan_compose(item, above->count - 1, (carry_run){above->A.data + above->A.next, above->A.next},
                       every_other(here->A, 3), every_other(here->A, 2));
}

static void sweep_down(carry_scan_item *item, const level *here, const level *above) {
    CARRY_SPAN(item->work->ctx, "scan", "blelloch down");
    const carry_run left = every_other(here->b, 2);
    carry_scan_apply(item, (here->count - 1) / 2, left, left, every_other(here->A, 2), above->b);
}

static void solve(carry_scan_item *item) {
    int64_t A_size = carry_scan_A_size(item->work);
    level levels[MAX_LEVELS];
    int top = 0;
    levels[0] =
        (level){.count = item->work->steps, .A = carry_run_from(item->A, item->A_step), .b = {item->h, item->h_step}};
    carry_scan_apply(item, 1, levels[0].b, levels[0].b, levels[0].A, carry_run_from(item->h0, 0));
    for (; levels[top].count > 1; top++) {
        int64_t count = levels[top].count / 2;
        float *products = carry_arena_take(&item->arena, (size_t)(count * A_size), sizeof(float));
        levels[top + 1] = (level){.count = count, .A = {products, A_size}, .b = every_other(levels[top].b, 1)};
        sweep_up(item, &levels[top], &levels[top + 1]);
    }
    for (int k = top - 1; k >= 0; k--) {
        sweep_down(item, &levels[k], &levels[k + 1]);
    }
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
