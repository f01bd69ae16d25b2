/* The arithmetic of All-Scan with the CPU's kernels: M S + L for some heads and columns, products of maps, and
   conversions to and from messages. Heads, and columns if there are fewer heads than threads, are divided among the
   context's threads. */
#include <string.h>

#include "core/context.h"
#include "core/threads.h"
#include "ops/convert.h"
#include "scan/all_scan/all_scan.h"

#define COLUMNS 16 /* columns that kernels process at a time; a thread's piece is a multiple of it */

typedef struct job {
    carry_all_scan_plan *plan;
    carry_all_scan_view out, S, L;
    carry_all_scan_map map;
    const float *first, *second;
    void *wire;
    int64_t rows, columns;
    int64_t pieces, piece; /* for each head: the number of pieces, and their columns */
} job;

static ptrdiff_t step(carry_all_scan_view view, int64_t head) {
    return (ptrdiff_t)head * view.head;
}

static void apply_dense(const job *j, int64_t head, int64_t column, int64_t columns) {
    const carry_all_scan_problem *p = &j->plan->shape.problem;
    j->plan->kernels->product(&(carry_product){.m = p->key,
                                               .n = columns,
                                               .k = p->key,
                                               .count = 1,
                                               .a = j->map.M + head * p->key * p->key,
                                               .b = j->S.data + step(j->S, head) + column,
                                               .base = j->L.data + step(j->L, head) + column,
                                               .c = j->out.data + step(j->out, head) + column,
                                               .a_row = p->key,
                                               .b_row = j->S.row,
                                               .base_row = j->L.row,
                                               .c_row = j->out.row,
                                               .a_transposed = p->transposed});
}

/* Each row is a separate call, since rows of some columns are not adjacent. */
static void apply_diagonal(const job *j, int64_t head, int64_t column, int64_t columns) {
    const carry_all_scan_problem *p = &j->plan->shape.problem;
    j->plan->kernels->diagonal_apply(&(carry_diagonal_apply){.count = p->key,
                                                             .rows = 1,
                                                             .width = columns,
                                                             .a = j->map.M + head * p->key,
                                                             .x = j->S.data + step(j->S, head) + column,
                                                             .base = j->L.data + step(j->L, head) + column,
                                                             .y = j->out.data + step(j->out, head) + column,
                                                             .a_next = 1,
                                                             .x_next = j->S.row,
                                                             .base_next = j->L.row,
                                                             .y_next = j->out.row});
}

/* gamma (I - W^T Y) S + L = (gamma S + L) + W^T (-gamma Y S). */
static void apply_factors(const job *j, int64_t head, int64_t column, int64_t columns, int worker) {
    const carry_all_scan_problem *p = &j->plan->shape.problem;
    const float *S = j->S.data + step(j->S, head) + column, *L = j->L.data + step(j->L, head) + column;
    const float *W = (p->transposed ? j->map.Y : j->map.W) + head * p->rows * p->key;
    const float *Y = (p->transposed ? j->map.W : j->map.Y) + head * p->rows * p->key;
    const float gamma = j->map.gamma[head];
    float *out = j->out.data + step(j->out, head) + column;
    float *beside = j->plan->scratch + worker * p->rows * p->value;
    carry_product product = {.m = p->rows, .n = columns, .k = p->key, .count = 1, .a = Y, .b = S, .c = beside};
    product.a_row = p->key;
    product.b_row = j->S.row;
    product.c_row = columns;
    j->plan->kernels->product(&product);
    for (int64_t i = 0; i < p->rows * columns; i++) {
        beside[i] *= -gamma;
    }
    for (int64_t r = 0; r < p->key; r++) {
        for (int64_t c = 0; c < columns; c++) {
            out[r * j->out.row + c] = gamma * S[r * j->S.row + c] + L[r * j->L.row + c];
        }
    }
    product = (carry_product){.m = p->key, .n = columns, .k = p->rows, .count = 1, .a = W, .b = beside, .base = out};
    product.c = out;
    product.a_row = p->key;
    product.a_transposed = true;
    product.b_row = columns;
    product.base_row = product.c_row = j->out.row;
    j->plan->kernels->product(&product);
}

static void apply_range(void *argument, int64_t begin, int64_t end, int worker) {
    const job *j = argument;
    for (int64_t i = begin; i < end; i++) {
        const int64_t head = i / j->pieces, column = i % j->pieces * j->piece;
        const int64_t columns = j->columns - column < j->piece ? j->columns - column : j->piece;
        if (j->map.kind == CARRY_ALL_SCAN_DENSE) {
            apply_dense(j, head, column, columns);
        } else if (j->map.kind == CARRY_ALL_SCAN_DIAGONAL) {
            apply_diagonal(j, head, column, columns);
        } else {
            apply_factors(j, head, column, columns, worker);
        }
    }
}

/* Runs work of `seconds` on all threads if that is faster. */
static void spread(carry_all_scan_plan *plan, double seconds, int64_t items, carry_task task, job *j) {
    const bool spreads = carry_all_scan_spreads(&plan->machine, seconds);
    carry_parallel(plan->ctx, items, spreads ? 1 : items, task, j);
}

static void apply(carry_all_scan_plan *plan, carry_all_scan_view out, const carry_all_scan_map *map,
                  carry_all_scan_view S, carry_all_scan_view L, int64_t heads, int64_t columns) {
    job j = {.plan = plan, .out = out, .S = S, .L = L, .map = *map, .columns = columns};
    const double value = (double)plan->shape.problem.value;
    const double seconds = plan->machine.product * (double)heads * (double)columns / value;
    const int threads = carry_all_scan_spreads(&plan->machine, seconds) ? plan->shape.threads : 1;
    const int64_t wanted = heads < threads ? (threads + heads - 1) / heads : 1;
    const int64_t wide = (columns + wanted - 1) / wanted;
    j.piece = (wide + COLUMNS - 1) / COLUMNS * COLUMNS;
    j.pieces = (columns + j.piece - 1) / j.piece;
    spread(plan, seconds, heads * j.pieces, apply_range, &j);
}

/* Stored maps that are transposed are multiplied in reverse order: M2^T M1^T = (M1 M2)^T. */
static void compose_range(void *argument, int64_t begin, int64_t end, int worker) {
    (void)worker;
    const job *j = argument;
    const carry_all_scan_problem *p = &j->plan->shape.problem;
    if (p->kind == CARRY_ALL_SCAN_DIAGONAL) {
        for (int64_t i = begin * p->key; i < end * p->key; i++) {
            j->out.data[i] = j->second[i] * j->first[i];
        }
        return;
    }
    const float *left = p->transposed ? j->first : j->second, *right = p->transposed ? j->second : j->first;
    const int64_t size = p->key * p->key;
    j->plan->kernels->product(&(carry_product){.m = p->key,
                                               .n = p->key,
                                               .k = p->key,
                                               .count = end - begin,
                                               .a = left + begin * size,
                                               .b = right + begin * size,
                                               .c = j->out.data + begin * size,
                                               .a_row = p->key,
                                               .b_row = p->key,
                                               .c_row = p->key,
                                               .a_next = size,
                                               .b_next = size,
                                               .c_next = size});
}

static void compose(carry_all_scan_plan *plan, float *out, const float *second, const float *first, int64_t heads) {
    job j = {.plan = plan, .out.data = out, .second = second, .first = first};
    spread(plan, plan->machine.compose * (double)heads, heads, compose_range, &j);
}

static void densify_range(void *argument, int64_t begin, int64_t end, int worker) {
    (void)worker;
    const job *j = argument;
    const carry_all_scan_problem *p = &j->plan->shape.problem;
    for (int64_t head = begin; head < end; head++) {
        float *M = j->out.data + head * p->key * p->key;
        const float gamma = j->map.gamma[head];
        j->plan->kernels->product(&(carry_product){.m = p->key,
                                                   .n = p->key,
                                                   .k = p->rows,
                                                   .count = 1,
                                                   .a = j->map.W + head * p->rows * p->key,
                                                   .b = j->map.Y + head * p->rows * p->key,
                                                   .c = M,
                                                   .a_row = p->key,
                                                   .b_row = p->key,
                                                   .c_row = p->key,
                                                   .a_transposed = true});
        for (int64_t i = 0; i < p->key * p->key; i++) {
            M[i] *= -gamma;
        }
        for (int64_t i = 0; i < p->key; i++) {
            M[i * (p->key + 1)] += gamma;
        }
    }
}

static void densify(carry_all_scan_plan *plan, float *out, const carry_all_scan_map *map, int64_t heads) {
    job j = {.plan = plan, .out.data = out, .map = *map};
    spread(plan, plan->machine.compose * (double)heads, heads, densify_range, &j);
}

static void copy_row(float *to, const float *from, int64_t count) {
    if (from == NULL) {
        memset(to, 0, (size_t)count * sizeof *to);
    } else if (to != from) {
        memcpy(to, from, (size_t)count * sizeof *to);
    }
}

static void copy(carry_all_scan_plan *plan, carry_all_scan_view to, carry_all_scan_view from, int64_t heads,
                 int64_t rows, int64_t columns) {
    (void)plan;
    for (int64_t i = 0; i < heads * rows; i++) {
        const int64_t head = i / rows, row = i % rows;
        copy_row(to.data + step(to, head) + row * to.row,
                 from.data != NULL ? from.data + step(from, head) + row * from.row : NULL, columns);
    }
}

/* Sets *run to the number of contiguous floats in the view. Returns the number of such runs. */
static int64_t runs_of(carry_all_scan_view view, int64_t heads, int64_t rows, int64_t columns, int64_t *run) {
    const bool rows_follow = rows == 1 || view.row == columns;
    const bool heads_follow = rows_follow && (heads == 1 || view.head == rows * columns);
    *run = heads_follow ? heads * rows * columns : rows_follow ? rows * columns : columns;
    return heads_follow ? 1 : rows_follow ? heads : heads * rows;
}

static void wire_range(void *argument, int64_t begin, int64_t end, int worker) {
    (void)worker;
    const job *j = argument;
    const bool unpacks = j->out.data != NULL;
    const carry_all_scan_view view = unpacks ? j->out : j->S;
    const carry_dtype wire = j->plan->shape.problem.wire;
    int64_t run;
    const int64_t runs = runs_of(view, end - begin, j->rows, j->columns, &run);
    const int64_t a_head = runs / (end - begin); /* runs of a head; 0: one run covers all heads */
    char *bytes = (char *)j->wire + (size_t)(begin * j->rows * j->columns) * carry_dtype_size(wire);
    for (int64_t i = 0; i < runs; i++) {
        const int64_t head = begin + (a_head > 0 ? i / a_head : 0), row = a_head > 0 ? i % a_head : 0;
        float *floats = view.data + step(view, head) + row * view.row;
        void *at = bytes + (size_t)(i * run) * carry_dtype_size(wire);
        if (unpacks) {
            carry_widen(j->plan->kernels, floats, at, wire, run);
        } else {
            carry_narrow(j->plan->kernels, at, floats, wire, run);
        }
    }
}

static double handling_seconds(const carry_all_scan_plan *plan, int64_t numbers) {
    return (double)numbers * (sizeof(float) + (double)carry_dtype_size(plan->shape.problem.wire)) /
           plan->machine.memory;
}

static void pack(carry_all_scan_plan *plan, void *wire, carry_all_scan_view from, int64_t heads, int64_t rows,
                 int64_t columns) {
    job j = {.plan = plan, .S = from, .wire = wire, .rows = rows, .columns = columns};
    spread(plan, handling_seconds(plan, heads * rows * columns), heads, wire_range, &j);
}

static void unpack(carry_all_scan_plan *plan, carry_all_scan_view to, const void *wire, int64_t heads, int64_t rows,
                   int64_t columns) {
    job j = {.plan = plan, .out = to, .wire = (void *)wire, .rows = rows, .columns = columns};
    spread(plan, handling_seconds(plan, heads * rows * columns), heads, wire_range, &j);
}

static void clear(carry_all_scan_plan *plan, void *bytes, size_t count) {
    (void)plan;
    memset(bytes, 0, count);
}

const carry_all_scan_arith carry_all_scan_real = {
    .apply = apply,
    .compose = compose,
    .densify = densify,
    .copy = copy,
    .pack = pack,
    .unpack = unpack,
    .clear = clear,
};

void carry_all_scan_apply(carry_all_scan_plan *plan, carry_all_scan_view out, const carry_all_scan_map *map,
                          carry_all_scan_view S, carry_all_scan_view L, int64_t heads, int64_t columns) {
    CARRY_SPAN(plan->ctx, "scan", "all_scan apply");
    const carry_all_scan_problem *p = &plan->shape.problem;
    const int64_t a_column = map->kind == CARRY_ALL_SCAN_DENSE      ? p->key * p->key
                             : map->kind == CARRY_ALL_SCAN_DIAGONAL ? p->key
                                                                    : p->key * (2 * p->rows + 1);
    const double flops = 2.0 * (double)(heads * columns) * (double)a_column;
    plan->arith->apply(plan, out, map, S, L, heads, columns);
    plan->counts.products += heads;
    plan->counts.flops += flops;
    carry_span_work(plan->ctx, flops, 0);
}

void carry_all_scan_compose(carry_all_scan_plan *plan, float *out, const float *second, const float *first,
                            int64_t heads) {
    CARRY_SPAN(plan->ctx, "scan", "all_scan compose");
    const carry_all_scan_problem *p = &plan->shape.problem;
    const double key = (double)p->key, numbers = (double)heads * key;
    const double flops = p->kind == CARRY_ALL_SCAN_DIAGONAL ? numbers : 2.0 * numbers * key * key;
    plan->arith->compose(plan, out, second, first, heads);
    plan->counts.products += heads;
    plan->counts.flops += flops;
    carry_span_work(plan->ctx, flops, 0);
}

/* Processes one position of a walk according to its role. */
static void walk_one(carry_all_scan_plan *plan, const carry_all_scan_walk *walk, int q) {
    const carry_all_scan_problem *p = &plan->shape.problem;
    const int64_t state = walk->heads * p->key * p->value, map = walk->heads * carry_all_scan_map_floats(p);
    const carry_all_scan_view zero = {.head = p->key * p->value, .row = p->value};
    const carry_all_scan_view before = q > 0 ? carry_all_scan_packed(p, walk->states + (q - 1) * state) : zero;
    const carry_all_scan_view out = carry_all_scan_packed(p, walk->states + q * state);
    const carry_all_scan_view L = carry_all_scan_packed(p, walk->L + q * state);
    if (walk->role[q] == CARRY_ALL_SCAN_MAP && q > 0) {
        const carry_all_scan_map M = {.kind = p->kind == CARRY_ALL_SCAN_DIAGONAL ? CARRY_ALL_SCAN_DIAGONAL
                                                                                 : CARRY_ALL_SCAN_DENSE,
                                      .M = walk->M + q * map};
        carry_all_scan_apply(plan, out, &M, before, L, walk->heads, p->value);
    } else {
        plan->arith->copy(plan, out, walk->role[q] == CARRY_ALL_SCAN_PASS ? before : L, walk->heads, p->key, p->value);
    }
}

void carry_all_scan_walk_run(carry_all_scan_plan *plan, const carry_all_scan_walk *walk) {
    if (plan->arith->walk != NULL && plan->shape.problem.key <= CARRY_ALL_SCAN_WALKED) {
        CARRY_SPAN(plan->ctx, "scan", "all_scan walk");
        plan->arith->walk(plan, walk);
        plan->counts.products += walk->heads * (walk->count - 1);
        return;
    }
    for (int q = 0; q < walk->count; q++) {
        walk_one(plan, walk, q);
    }
}

void carry_all_scan_leave(carry_all_scan_plan *plan, carry_all_scan_view out, carry_all_scan_view S,
                          carry_all_scan_block block) {
    const carry_all_scan_problem *p = &plan->shape.problem;
    const carry_all_scan_role role = carry_all_scan_role_of(plan);
    if (role == CARRY_ALL_SCAN_PASS) {
        plan->arith->copy(plan, out, S, block.heads, p->key, block.columns);
        return;
    }
    const carry_all_scan_view L = carry_all_scan_view_at(carry_all_scan_packed(p, plan->args.L.data), block);
    if (role == CARRY_ALL_SCAN_CUT) {
        plan->arith->copy(plan, out, L, block.heads, p->key, block.columns);
        return;
    }
    const carry_all_scan_map map = carry_all_scan_own_map(plan, block.head);
    carry_all_scan_apply(plan, out, &map, S, L, block.heads, block.columns);
}

void carry_all_scan_start(carry_all_scan_plan *plan) {
    const carry_all_scan_problem *p = &plan->shape.problem;
    const carry_all_scan_view zero = {.head = p->key * p->value, .row = p->value};
    const void *initial = plan->args.initial.data;
    plan->arith->copy(plan, carry_all_scan_packed(p, plan->args.state.data),
                      initial != NULL ? carry_all_scan_packed(p, initial) : zero, p->heads, p->key, p->value);
}
