/* Tree scan: sweep up, sweep down. About 4T products in 2 log2 T rounds; T need not be a power of two.

   Up: pairs are combined level by level. Down: S is the state that enters an element's first step; the left child's is
   its parent's, and in the same memory; the right child's is the left child applied to it. At the leaves h = A S + b:
   the exclusive scan of the textbook, then the element itself. An odd last element of a level goes up unchanged. */
#include <string.h>

#include "core/span.h"
#include "scan/element.h"

#define MAX_LEVELS 64

typedef struct level {
    int64_t count;
    carry_run A, b, S;
} level;

static carry_run take(carry_scan_item *item, int64_t count, int64_t size) {
    return (carry_run){carry_arena_take(&item->arena, (size_t)(count * size), sizeof(float)), size};
}

static carry_run every_other(carry_run run, int64_t first) {
    return (carry_run){run.data + first * run.next, 2 * run.next};
}

static void copy_element(carry_run to, int64_t at, carry_run from, int64_t from_at, int64_t size) {
    memcpy(to.data + at * to.next, from.data + from_at * from.next, (size_t)size * sizeof(float));
}

static void sweep_up(carry_scan_item *item, const level *here, level *above) {
    CARRY_SPAN(item->work->ctx, "scan", "blelloch up");
    int64_t pairs = here->count / 2;
    carry_scan_apply(item, pairs, above->b, every_other(here->b, 1), every_other(here->A, 1), every_other(here->b, 0));
    carry_scan_compose(item, pairs, above->A, every_other(here->A, 1), every_other(here->A, 0));
    if (here->count % 2 == 1) {
        copy_element(above->A, pairs, here->A, here->count - 1, carry_scan_A_size(item->work));
        copy_element(above->b, pairs, here->b, here->count - 1, carry_scan_b_size(item->work));
    }
}

static void sweep_down(carry_scan_item *item, const level *here, const level *above) {
    CARRY_SPAN(item->work->ctx, "scan", "blelloch down");
    carry_scan_apply(item, here->count / 2, every_other(here->S, 1), every_other(here->b, 0), every_other(here->A, 0),
                     above->S);
}

static void solve(carry_scan_item *item) {
    int64_t A_size = carry_scan_A_size(item->work);
    int64_t b_size = carry_scan_b_size(item->work);
    level levels[MAX_LEVELS];
    int top = 0;
    int64_t pairs = (item->work->steps + 1) / 2;
    levels[0] = (level){.count = item->work->steps,
                        .A = carry_run_from(item->A, item->A_step),
                        .b = {item->h, item->h_step},
                        .S = take(item, pairs, b_size)};
    for (; levels[top].count > 1; top++) {
        int64_t count = (levels[top].count + 1) / 2;
        levels[top + 1] = (level){.count = count,
                                  .A = take(item, count, A_size),
                                  .b = take(item, count, b_size),
                                  .S = top == 0 ? levels[0].S : every_other(levels[top].S, 0)};
        sweep_up(item, &levels[top], &levels[top + 1]);
    }
    memcpy(levels[top].S.data, item->h0, (size_t)b_size * sizeof(float));
    for (int k = top - 1; k > 0; k--) {
        sweep_down(item, &levels[k], &levels[k + 1]);
    }
    const level *leaves = &levels[0]; /* a left leaf's h is the state that enters the right one */
    carry_scan_apply(item, pairs, every_other(leaves->b, 0), every_other(leaves->b, 0), every_other(leaves->A, 0),
                     leaves->S);
    carry_scan_apply(item, item->work->steps / 2, every_other(leaves->b, 1), every_other(leaves->b, 1),
                     every_other(leaves->A, 1), every_other(leaves->b, 0));
}

static double cost(const carry_scan_shape *shape, const carry_rates_table *rates, int threads) {
    double steps = (double)shape->steps;
    double levels = 0.0;
    for (int64_t count = shape->steps; count > 1; count = (count + 1) / 2) {
        levels += 1.0;
    }
    return carry_scan_items_cost(shape, rates, threads, steps - 1.0, 2.5 * steps - 2.0, 3.0 * levels + 1.0);
}

static size_t item_bytes(const carry_scan_shape *shape) {
    carry_arena arena = carry_arena_over(NULL, 0);
    size_t A_size = (size_t)carry_scan_A_size(shape);
    size_t b_size = (size_t)carry_scan_b_size(shape);
    (void)carry_arena_take(&arena, (size_t)((shape->steps + 1) / 2) * b_size, sizeof(float));
    for (int64_t count = shape->steps; count > 1;) {
        count = (count + 1) / 2;
        (void)carry_arena_take(&arena, (size_t)count * A_size, sizeof(float));
        (void)carry_arena_take(&arena, (size_t)count * b_size, sizeof(float));
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
