/* Doubling: in round o = 1, 2, 4, ... every element s >= o absorbs element s - o. log2 T rounds of 2(T - o)
   products.

   This is the textbook form, the baseline of experiment 026: every element keeps its pair to the end. Skipping
   transitions that are not read again would save 1,023 of 18,434 products at T = 1024. */
#include <string.h>

#include "core/span.h"
#include "scan/element.h"

static void copy_first(float *to, const float *from, ptrdiff_t next, int64_t count, int64_t size) {
    for (int64_t i = 0; i < count; i++) {
        memcpy(to + i * size, from + i * next, (size_t)size * sizeof *to);
    }
}

static void solve(carry_scan_item *item) {
    const carry_scan_work *work = item->work;
    int64_t steps = work->steps;
    int64_t A_size = carry_scan_A_size(work);
    int64_t b_size = carry_scan_b_size(work);
    carry_run transitions[2];
    for (int i = 0; i < 2; i++) {
        transitions[i] = (carry_run){carry_arena_take(&item->arena, (size_t)(steps * A_size), sizeof(float)), A_size};
    }
    carry_run values = {carry_arena_take(&item->arena, (size_t)(steps * b_size), sizeof(float)), b_size};
    carry_run h = {item->h, item->h_step};
    if (item->has_h0) {
        carry_scan_apply(item, 1, h, h, carry_run_from(item->A, item->A_step), carry_run_from(item->h0, 0));
    }
    carry_run A = carry_run_from(item->A, item->A_step);
    carry_run b = h;
    carry_run free_b = values;
    int round = 0;
    for (int64_t o = 1; o < steps; o *= 2, round++) {
        carry_run C = transitions[round % 2];
        copy_first(C.data, A.data, A.next, o, A_size);
        for (int64_t i = 0; i < o; i++) {
            memcpy(free_b.data + i * free_b.next, b.data + i * b.next, (size_t)b_size * sizeof(float));
        }
        carry_run A_o = {A.data + o * A.next, A.next};
        carry_run b_o = {b.data + o * b.next, b.next};
        carry_scan_apply(item, steps - o, (carry_run){free_b.data + o * free_b.next, free_b.next}, b_o, A_o, b);
        carry_scan_compose(item, steps - o, (carry_run){C.data + o * C.next, C.next}, A_o, A);
        A = C;
        carry_run used = b;
        b = free_b;
        free_b = used;
    }
    if (b.data != item->h) {
        for (int64_t i = 0; i < steps; i++) {
            memcpy(item->h + i * item->h_step, b.data + i * b.next, (size_t)b_size * sizeof(float));
        }
    }
}

static double rounds_of(int64_t steps) {
    double rounds = 0.0;
    for (int64_t o = 1; o < steps; o *= 2) {
        rounds += 1.0;
    }
    return rounds;
}

static double cost(const carry_scan_shape *shape, const carry_rates_table *rates, int threads) {
    double rounds = rounds_of(shape->steps);
    double each = rounds * (double)shape->steps - (double)shape->steps + 1.0;
    return carry_scan_items_cost(shape, rates, threads, each, each, 2.0 * rounds);
}

static size_t item_bytes(const carry_scan_shape *shape) {
    carry_arena arena = carry_arena_over(NULL, 0);
    size_t steps = (size_t)shape->steps;
    (void)carry_arena_take(&arena, steps * (size_t)carry_scan_A_size(shape), sizeof(float));
    (void)carry_arena_take(&arena, steps * (size_t)carry_scan_A_size(shape), sizeof(float));
    (void)carry_arena_take(&arena, steps * (size_t)carry_scan_b_size(shape), sizeof(float));
    return arena.used;
}

static bool workspace(const carry_scan_shape *shape, int threads, size_t *bytes) {
    return carry_scan_items_workspace(shape, threads, item_bytes(shape), bytes);
}

static carry_status run(carry_scan_work *work) {
    return carry_scan_each_item(work, item_bytes(work), solve);
}

const carry_scan_algorithm carry_scan_hillis_steele = {
    .name = "hillis_steele",
    .span = CARRY_SPAN_SITE("scan", "hillis_steele"),
    .about = "doubling: log2 T rounds over all steps",
    .applies = carry_scan_always,
    .cost = cost,
    .workspace = workspace,
    .run = run,
};
