/* Cyclic reduction: eliminates every other step, solves for the rest, and computes the eliminated steps.

   Up: for each pair, A' = A[2i+1] A[2i] and b' = A[2i+1] b[2i] + b[2i+1]; recurse on the T/2 odd steps; down: h[2i]
   = A[2i] h[2i-1] + b[2i]. There are 2 products for each pair on the way up and 1 on the way down: 3(T - 1) when T
   is a power of two.

   Values stay in place: element i of a level of stride 2^k is at step (i+1) 2^k - 1 of h, so b' overwrites b[2i+1].
   Only the transitions of the levels, T in all, need memory. An odd last element of a level is handled on the way
   down. */
#include "core/span.h"
#include "scan/element.h"

#define MAX_LEVELS 64

typedef struct level {
    int64_t count;
    carry_run A;
} level;

/* The values of elements first, first + 2, ... of a level, as a run with twice the level's stride. */
static carry_run every_other(const carry_scan_item *item, int k, int64_t first) {
    ptrdiff_t stride = (ptrdiff_t)1 << k;
    return (carry_run){item->h + ((first + 1) * stride - 1) * item->h_step, 2 * stride * item->h_step};
}

static void solve(carry_scan_item *item) {
    int64_t A_size = carry_scan_A_size(item->work);
    level levels[MAX_LEVELS];
    int top = 0;
    levels[0] = (level){.count = item->work->steps, .A = carry_run_from(item->A, item->A_step)};
    CARRY_SPAN_BEGIN(way_up, item->work->ctx, "scan", "cyclic eliminate");
    for (; levels[top].count > 1; top++) {
        level *here = &levels[top];
        int64_t pairs = here->count / 2;
        carry_run even = {here->A.data, 2 * here->A.next};
        carry_run odd = {here->A.data + here->A.next, 2 * here->A.next};
        carry_run up = {carry_arena_take(&item->arena, (size_t)(pairs * A_size), sizeof(float)), A_size};
        carry_scan_apply(item, pairs, every_other(item, top, 1), every_other(item, top, 1), odd,
                         every_other(item, top, 0));
        carry_scan_compose(item, pairs, up, odd, even);
        levels[top + 1] = (level){.count = pairs, .A = up};
    }
    carry_span_end(&way_up);
    CARRY_SPAN_BEGIN(way_down, item->work->ctx, "scan", "cyclic put back");
    carry_run h0 = carry_run_from(item->h0, 0);
    carry_run last = every_other(item, top, 0);
    if (item->has_h0) {
        carry_scan_apply(item, 1, last, last, levels[top].A, h0);
    }
    for (int k = top - 1; k >= 0; k--) {
        level *here = &levels[k];
        int64_t evens = (here->count + 1) / 2;
        carry_run first = every_other(item, k, 0);
        carry_scan_apply(item, 1, first, first, here->A, h0);
        carry_run even = {here->A.data + 2 * here->A.next, 2 * here->A.next};
        carry_scan_apply(item, evens - 1, every_other(item, k, 2), every_other(item, k, 2), even,
                         every_other(item, k, 1));
    }
    carry_span_end(&way_down);
}

static double cost(const carry_scan_shape *shape, const carry_rates_table *rates, int threads) {
    double steps = (double)shape->steps;
    double levels = 0.0;
    for (int64_t count = shape->steps; count > 1; count /= 2) {
        levels += 1.0;
    }
    return carry_scan_items_cost(shape, rates, threads, steps - 1.0, 2.0 * steps - 1.0, 3.0 * levels + 1.0);
}

static size_t item_bytes(const carry_scan_shape *shape) {
    carry_arena arena = carry_arena_over(NULL, 0);
    for (int64_t count = shape->steps / 2; count > 0; count /= 2) {
        (void)carry_arena_take(&arena, (size_t)count * (size_t)carry_scan_A_size(shape), sizeof(float));
    }
    return arena.used;
}

static bool workspace(const carry_scan_shape *shape, int threads, size_t *bytes) {
    return carry_scan_items_workspace(shape, threads, item_bytes(shape), bytes);
}

static carry_status run(carry_scan_work *work) {
    return carry_scan_each_item(work, item_bytes(work), solve);
}

const carry_scan_algorithm carry_scan_cyclic = {
    .name = "cyclic",
    .span = CARRY_SPAN_SITE("scan", "cyclic"),
    .about = "cyclic reduction: eliminate every other step, solve, put back; values in place",
    .applies = carry_scan_always,
    .cost = cost,
    .workspace = workspace,
    .run = run,
};
