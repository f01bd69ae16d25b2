/* MatMulScan: computes groups of s steps as products with a triangle, then does the same over the groups' ends.

   Diagonal: for each group and channel, the triangle of decays L[i,j] = a[j+1] ... a[i] (1 on the diagonal, 0 above)
   times the group's s x w block gives the scan of the group. Entries are products of decays, never quotients, so
   decays of e^-40 or exactly 0 are harmless. Dense: prefix products inside the group.

   The group's last element, with the product of its transitions, is an element of the next level. When that level is
   solved, every other element adds the effect of the state H before its group: h[i] += P[i] H, where P[i] is the
   product of the transitions up to i. Values stay in place, as in cyclic.c: element i of a level of stride s^k is at
   step (i+1) s^k - 1 of h. A last group that is not full is handled on the way down. */
#include "scan/matmul.h"

#include <string.h>

#include "core/context.h"
#include "core/span.h"
#include "core/threads.h"
#include "ops/product/triangle.h"

#define MAX_LEVELS 64
#define MAX_RADIX 16
#define MAX_COLUMNS 64

typedef struct level {
    int64_t count, stride; /* the number of elements, and the steps of h between them */
    carry_run A;           /* transitions of the elements */
    carry_run P;           /* products of transitions from the group's first on */
} level;

typedef struct triangles {
    carry_scan_item *item;
    const level *here;
    int64_t radix;
} triangles;

static float *value(const carry_scan_item *item, const level *here, int64_t i) {
    return item->h + ((i + 1) * here->stride - 1) * item->h_step;
}

/* Computes the scan of one channel of one group: its block of w columns times the triangle of decays, some columns at a
   time. */
static void one_channel(const triangles *t, int64_t first, int64_t size, int64_t channel) {
    const carry_scan_work *work = t->item->work;
    float triangle[MAX_RADIX * MAX_RADIX];
    float result[MAX_RADIX * MAX_COLUMNS];
    for (int64_t i = 0; i < size; i++) {
        float a = t->here->A.data[(first + i) * t->here->A.next + channel];
        for (int64_t j = 0; j < size; j++) {
            triangle[i * size + j] = j < i ? a * triangle[(i - 1) * size + j] : (float)(i == j);
        }
    }
    float *block = value(t->item, t->here, first) + channel * work->width;
    ptrdiff_t row = t->here->stride * t->item->h_step;
    for (int64_t from = 0; from < work->width; from += MAX_COLUMNS) {
        int64_t columns = work->width - from < MAX_COLUMNS ? work->width - from : MAX_COLUMNS;
        carry_triangle_product(work->kernels,
                               &(carry_product){.m = size,
                                                .n = columns,
                                                .k = size,
                                                .count = 1,
                                                .a = triangle,
                                                .b = block + from,
                                                .c = result,
                                                .a_row = size,
                                                .b_row = row,
                                                .c_row = columns},
                               block + from, 0, false);
        for (int64_t i = 1; i < size; i++) {
            memcpy(block + from + i * row, result + i * columns, (size_t)columns * sizeof *result);
        }
    }
}

static void diagonal_groups(void *argument, int64_t begin, int64_t end, int worker) {
    (void)worker;
    const triangles *t = argument;
    for (int64_t group = begin; group < end; group++) {
        int64_t first = group * t->radix;
        int64_t size = t->here->count - first < t->radix ? t->here->count - first : t->radix;
        for (int64_t channel = 0; channel < t->item->work->n; channel++) {
            one_channel(t, first, size, channel);
        }
    }
}

/* The values of elements first, first + radix, ... of a level. */
static carry_run values_from(const carry_scan_item *item, const level *here, int64_t first, int64_t radix) {
    return (carry_run){value(item, here, first), radix * here->stride * item->h_step};
}

static carry_run transitions_from(carry_run run, int64_t first, int64_t radix) {
    return (carry_run){run.data + first * run.next, radix * run.next};
}

/* The number of groups that have an element j. */
static int64_t groups_with(const level *here, int64_t j, int64_t radix) {
    return here->count > j ? (here->count - j - 1) / radix + 1 : 0;
}

/* Computes the scan inside every group, and the products P. The first element of a group has P = A. */
static void scan_groups(carry_scan_item *item, const level *here, int64_t radix) {
    bool dense = item->work->kind == CARRY_SCAN_DENSE;
    if (!dense) {
        triangles t = {.item = item, .here = here, .radix = radix};
        int64_t groups = groups_with(here, 0, radix);
        item->products += here->count;
        item->flops += 2.0 * (double)radix * (double)(here->count * carry_scan_b_size(item->work));
        if (item->threaded) {
            int64_t grain = 16384 / (radix * carry_scan_b_size(item->work)) + 1;
            carry_parallel(item->work->ctx, groups, grain, diagonal_groups, &t);
        } else {
            diagonal_groups(&t, 0, groups, 0);
        }
    }
    for (int64_t j = 0; j < radix; j++) {
        int64_t groups = groups_with(here, j, radix);
        carry_run A = transitions_from(here->A, j, radix);
        carry_run P = transitions_from(here->P, j, radix);
        if (j == 0) {
            for (int64_t g = 0; g < groups; g++) {
                size_t bytes = (size_t)carry_scan_A_size(item->work) * sizeof(float);
                memcpy(P.data + g * P.next, A.data + g * A.next, bytes);
            }
            continue;
        }
        if (dense) {
            carry_run to = values_from(item, here, j, radix);
            carry_scan_apply(item, groups, to, to, A, values_from(item, here, j - 1, radix));
        }
        carry_scan_compose(item, groups, P, A, transitions_from(here->P, j - 1, radix));
    }
}

/* Adds the effect of the state before its group to every element, except those that the next level has solved. */
static void take_in_states(carry_scan_item *item, const level *here, int64_t radix, bool is_top) {
    for (int64_t j = 0; j < radix; j++) {
        if (j == radix - 1 && !is_top) {
            break;
        }
        int64_t groups = groups_with(here, j, radix);
        carry_run to = values_from(item, here, j, radix);
        carry_run P = transitions_from(here->P, j, radix);
        if (groups > 0 && item->has_h0) {
            carry_scan_apply(item, 1, to, to, P, carry_run_from(item->h0, 0));
        }
        if (groups > 1) {
            carry_run later = {to.data + to.next, to.next};
            carry_run later_P = {P.data + P.next, P.next};
            carry_scan_apply(item, groups - 1, later, later, later_P, values_from(item, here, radix - 1, radix));
        }
    }
}

void carry_scan_matmul_solve(carry_scan_item *item, int64_t radix) {
    int64_t A_size = carry_scan_A_size(item->work);
    level levels[MAX_LEVELS];
    int top = 0;
    levels[0] = (level){.count = item->work->steps, .stride = 1, .A = carry_run_from(item->A, item->A_step)};
    CARRY_SPAN_BEGIN(way_up, item->work->ctx, "scan", "matmul groups");
    for (;; top++) {
        level *here = &levels[top];
        here->P = (carry_run){carry_arena_take(&item->arena, (size_t)(here->count * A_size), sizeof(float)), A_size};
        scan_groups(item, here, radix);
        if (here->count <= radix) {
            break;
        }
        levels[top + 1] = (level){.count = here->count / radix,
                                  .stride = here->stride * radix,
                                  .A = transitions_from(here->P, radix - 1, radix)};
    }
    carry_span_end(&way_up);
    CARRY_SPAN_BEGIN(way_down, item->work->ctx, "scan", "matmul states");
    for (int k = top; k >= 0; k--) {
        take_in_states(item, &levels[k], radix, k == top);
    }
    carry_span_end(&way_down);
}

size_t carry_scan_matmul_bytes(const carry_scan_shape *shape, int64_t radix) {
    carry_arena arena = carry_arena_over(NULL, 0);
    for (int64_t count = shape->steps;; count /= radix) {
        (void)carry_arena_take(&arena, (size_t)count * (size_t)carry_scan_A_size(shape), sizeof(float));
        if (count <= radix) {
            return arena.used;
        }
    }
}

static void solve(carry_scan_item *item) {
    carry_scan_matmul_solve(item, item->work->radix);
}

static double cost(const carry_scan_shape *shape, const carry_rates_table *rates, int threads) {
    double levels = 1.0;
    double elements = (double)shape->steps;
    for (int64_t count = shape->steps; count > shape->radix; count /= shape->radix) {
        levels += 1.0;
        elements += (double)(count / shape->radix);
    }
    /* For one channel, the product with a triangle costs about as much as radix/4 steps, at the rate of products. */
    bool dense = shape->kind == CARRY_SCAN_DENSE;
    double inside = dense ? 1.0 : 0.25 * (double)shape->radix + 1.0;
    double rounds = (dense ? 3.0 : 2.0) * (double)shape->radix + 1.0;
    return carry_scan_items_cost(shape, rates, threads, elements, elements * (1.0 + inside), levels * rounds);
}

static bool workspace(const carry_scan_shape *shape, int threads, size_t *bytes) {
    return carry_scan_items_workspace(shape, threads, carry_scan_matmul_bytes(shape, shape->radix), bytes);
}

static carry_status run(carry_scan_work *work) {
    return carry_scan_each_item(work, carry_scan_matmul_bytes(work, work->radix), solve);
}

const carry_scan_algorithm carry_scan_matmul4 = {
    .name = "matmul4",
    .span = CARRY_SPAN_SITE("scan", "matmul4"),
    .about = "decayed triangles of radix 4",
    .radix = 4,
    .applies = carry_scan_always,
    .cost = cost,
    .workspace = workspace,
    .run = run,
};

const carry_scan_algorithm carry_scan_matmul8 = {
    .name = "matmul8",
    .span = CARRY_SPAN_SITE("scan", "matmul8"),
    .about = "decayed triangles of radix 8",
    .radix = 8,
    .applies = carry_scan_always,
    .cost = cost,
    .workspace = workspace,
    .run = run,
};

const carry_scan_algorithm carry_scan_matmul16 = {
    .name = "matmul16",
    .span = CARRY_SPAN_SITE("scan", "matmul16"),
    .about = "decayed triangles of radix 16",
    .radix = 16,
    .applies = carry_scan_always,
    .cost = cost,
    .workspace = workspace,
    .run = run,
};
