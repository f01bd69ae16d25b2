/* The operator on runs of elements for both kinds, and calls for one sequence at a time in f32. */
#include "scan/element.h"

#include <inttypes.h>
#include <math.h>
#include <pthread.h>
#include <string.h>

#include "core/context.h"
#include "core/threads.h"
#include "ops/convert.h"

/* Dividing less work than this among threads costs more than it saves: about 5 us of products. */
#define PIECE_FLOPS 100000
/* Fixed cost of a sequence: its arena, its state, its share of the sums. */
#define SET_UP_SECONDS 5e-7

typedef struct combination {
    const carry_scan_work *work;
    carry_run to, base, A, x;
} combination;

static void apply_range(void *argument, int64_t begin, int64_t end, int worker) {
    (void)worker;
    const combination *c = argument;
    const carry_scan_work *work = c->work;
    int64_t count = end - begin;
    float *y = c->to.data + begin * c->to.next;
    const float *base = c->base.data + begin * c->base.next;
    const float *A = c->A.data + begin * c->A.next;
    const float *x = c->x.data + begin * c->x.next;
    if (work->kind == CARRY_SCAN_DENSE) {
        work->kernels->product(&(carry_product){.m = work->n,
                                                .n = work->width,
                                                .k = work->n,
                                                .count = count,
                                                .a = A,
                                                .b = x,
                                                .base = base,
                                                .c = y,
                                                .a_row = work->n,
                                                .b_row = work->width,
                                                .base_row = work->width,
                                                .c_row = work->width,
                                                .a_next = c->A.next,
                                                .b_next = c->x.next,
                                                .base_next = c->base.next,
                                                .c_next = c->to.next,
                                                .a_transposed = work->transposed});
        return;
    }
    work->kernels->diagonal_apply(&(carry_diagonal_apply){.count = count,
                                                          .rows = work->n,
                                                          .width = work->width,
                                                          .a = A,
                                                          .x = x,
                                                          .base = base,
                                                          .y = y,
                                                          .a_next = c->A.next,
                                                          .x_next = c->x.next,
                                                          .base_next = c->base.next,
                                                          .y_next = c->to.next});
}

static void compose_range(void *argument, int64_t begin, int64_t end, int worker) {
    (void)worker;
    const combination *c = argument;
    const carry_scan_work *work = c->work;
    float *to = c->to.data + begin * c->to.next;
    const float *later = c->A.data + begin * c->A.next;
    const float *earlier = c->x.data + begin * c->x.next;
    if (work->kind == CARRY_SCAN_DENSE) {
        /* (A2^T)(A1^T) = (A1 A2)^T: transposed transitions stay as stored and are multiplied in reverse order. */
        bool swap = work->transposed;
        work->kernels->product(&(carry_product){.m = work->n,
                                                .n = work->n,
                                                .k = work->n,
                                                .count = end - begin,
                                                .a = swap ? earlier : later,
                                                .b = swap ? later : earlier,
                                                .c = to,
                                                .a_row = work->n,
                                                .b_row = work->n,
                                                .c_row = work->n,
                                                .a_next = swap ? c->x.next : c->A.next,
                                                .b_next = swap ? c->A.next : c->x.next,
                                                .c_next = c->to.next});
        return;
    }
    for (int64_t i = begin; i < end; i++, to += c->to.next, later += c->A.next, earlier += c->x.next) {
        for (int64_t r = 0; r < work->n; r++) {
            to[r] = later[r] * earlier[r];
        }
    }
}

static void spread(carry_scan_item *item, int64_t count, double flops, carry_task task, combination *c) {
    item->products += count;
    item->flops += (double)count * flops;
    if (!item->threaded) {
        task(c, 0, count, 0);
        return;
    }
    double pieces = (double)count * flops / PIECE_FLOPS;
    int64_t grain = pieces > (double)count ? 1 : (int64_t)((double)count / (pieces > 1.0 ? pieces : 1.0)) + 1;
    carry_parallel(item->work->ctx, count, grain, task, c);
}

void carry_scan_apply(carry_scan_item *item, int64_t count, carry_run y, carry_run base, carry_run A, carry_run x) {
    if (count <= 0) {
        return;
    }
    combination c = {.work = item->work, .to = y, .base = base, .A = A, .x = x};
    spread(item, count, 2.0 * (double)(carry_scan_A_size(item->work) * item->work->width), apply_range, &c);
}

void carry_scan_compose(carry_scan_item *item, int64_t count, carry_run C, carry_run A2, carry_run A1) {
    if (count <= 0) {
        return;
    }
    combination c = {.work = item->work, .to = C, .A = A2, .x = A1};
    double across = item->work->kind == CARRY_SCAN_DENSE ? (double)item->work->n : 1.0;
    spread(item, count, 2.0 * (double)carry_scan_A_size(item->work) * across, compose_range, &c);
}

typedef struct each {
    carry_scan_work *work;
    void (*solve)(carry_scan_item *item);
    unsigned char *slots;
    size_t slot_bytes;
    bool threaded;
    int64_t products, refused_item, refused_step;
    double flops;
    float refused;
    pthread_mutex_t lock; /* guards the sums above */
} each;

/* Bytes of f32 copies of one sequence: of A and h, unless they are stored in f32. */
static bool copies_bytes(const carry_scan_shape *shape, size_t *bytes) {
    carry_arena arena = carry_arena_over(NULL, 0);
    (void)carry_arena_take(&arena, (size_t)carry_scan_b_size(shape), sizeof(float)); /* h0 */
    size_t A_elements = 0;
    size_t h_elements = 0;
    if (!carry_size_mul(&A_elements, (size_t)shape->steps, (size_t)carry_scan_A_size(shape)) ||
        !carry_size_mul(&h_elements, (size_t)shape->steps, (size_t)carry_scan_b_size(shape))) {
        return false;
    }
    if (shape->A.dtype != CARRY_F32) {
        (void)carry_arena_take(&arena, A_elements, sizeof(float));
    }
    if (shape->h.dtype != CARRY_F32) {
        (void)carry_arena_take(&arena, h_elements, sizeof(float));
    }
    *bytes = arena.used;
    return !arena.overflowed;
}

static bool slot_bytes(const carry_scan_shape *shape, size_t item_bytes, size_t *bytes) {
    return copies_bytes(shape, bytes) && carry_size_add(bytes, *bytes, item_bytes) &&
           carry_size_add(bytes, *bytes, (size_t)2 * CARRY_ALIGN) &&
           (*bytes = *bytes / CARRY_ALIGN * CARRY_ALIGN, true);
}

static const void *at(const carry_scan_array *array, int64_t item, int64_t step) {
    return (const char *)array->data +
           (item * array->item + step * array->step) * (ptrdiff_t)carry_dtype_size(array->dtype);
}

typedef struct transfer {
    const carry_scan_work *work;
    int64_t item;
    const carry_scan_array *array;
    float *beside; /* step s at beside + s*step */
    ptrdiff_t step;
    int64_t size;
} transfer;

static void widen_steps(void *argument, int64_t begin, int64_t end, int worker) {
    (void)worker;
    const transfer *t = argument;
    for (int64_t s = begin; s < end; s++) {
        carry_widen(t->work->kernels, t->beside + s * t->step, at(t->array, t->item, s), t->array->dtype, t->size);
    }
}

static void narrow_steps(void *argument, int64_t begin, int64_t end, int worker) {
    (void)worker;
    const transfer *t = argument;
    for (int64_t s = begin; s < end; s++) {
        void *to = (void *)(uintptr_t)at(t->array, t->item, s);
        carry_narrow(t->work->kernels, to, t->beside + s * t->step, t->array->dtype, t->size);
    }
}

static void transfer_steps(bool threaded, carry_task task, transfer *t) {
    if (threaded) {
        carry_parallel(t->work->ctx, t->work->steps, 16384 / t->size + 1, task, t);
    } else {
        task(t, 0, t->work->steps, 0);
    }
}

/* Solves one sequence: converts its arrays to f32, solves, and converts the result to its storage type. */
static void solve_one(each *e, int64_t index, unsigned char *slot) {
    carry_scan_work *work = e->work;
    carry_scan_item item = {.work = work, .threaded = e->threaded, .refused_step = -1};
    item.arena = carry_arena_over(slot, e->slot_bytes);
    int64_t A_size = carry_scan_A_size(work);
    int64_t b_size = carry_scan_b_size(work);
    float *h0 = carry_arena_take(&item.arena, (size_t)b_size, sizeof(float));
    item.h0 = h0;
    item.has_h0 = work->h0.data != NULL;
    if (item.has_h0) {
        carry_widen(work->kernels, h0, at(&work->h0, index, 0), work->h0.dtype, b_size);
    } else {
        memset(h0, 0, (size_t)b_size * sizeof *h0);
    }
    item.A = at(&work->A, index, 0);
    item.A_step = work->A.step;
    if (work->A.dtype != CARRY_F32) {
        float *A = carry_arena_take(&item.arena, (size_t)(work->steps * A_size), sizeof(float));
        transfer t = {.work = work, .item = index, .array = &work->A, .beside = A, .step = A_size, .size = A_size};
        transfer_steps(e->threaded, widen_steps, &t);
        item.A = A;
        item.A_step = A_size;
    }
    item.h = (float *)(uintptr_t)at(&work->h, index, 0);
    item.h_step = work->h.step;
    if (work->h.dtype != CARRY_F32) {
        item.h = carry_arena_take(&item.arena, (size_t)(work->steps * b_size), sizeof(float));
        item.h_step = b_size;
    }
    if (item.h != at(&work->b, index, 0)) {
        transfer t = {
            .work = work, .item = index, .array = &work->b, .beside = item.h, .step = item.h_step, .size = b_size};
        transfer_steps(e->threaded, widen_steps, &t);
    }
    e->solve(&item);
    if (work->h.dtype != CARRY_F32) {
        transfer t = {.work = work, .item = index, .array = &work->h, .beside = item.h, .step = b_size, .size = b_size};
        transfer_steps(e->threaded, narrow_steps, &t);
    }
    pthread_mutex_lock(&e->lock);
    e->products += item.products;
    e->flops += item.flops;
    if (item.refused_step >= 0 && (e->refused_item < 0 || index < e->refused_item)) {
        e->refused_item = index;
        e->refused_step = item.refused_step;
        e->refused = item.refused;
    }
    pthread_mutex_unlock(&e->lock);
}

static void solve_range(void *argument, int64_t begin, int64_t end, int worker) {
    each *e = argument;
    for (int64_t i = begin; i < end; i++) {
        solve_one(e, i, e->slots + (size_t)worker * e->slot_bytes);
    }
}

carry_status carry_scan_each_item(carry_scan_work *work, size_t item_bytes, void (*solve)(carry_scan_item *item)) {
    int threads = carry_ctx_threads(work->ctx);
    each e = {.work = work,
              .solve = solve,
              .threaded = work->batch < threads,
              .refused_item = -1,
              .lock = PTHREAD_MUTEX_INITIALIZER};
    if (!slot_bytes(work, item_bytes, &e.slot_bytes)) {
        return carry_fail(work->ctx, CARRY_ESIZE, "the workspace of one sequence is larger than memory can be");
    }
    carry_arena arena = carry_arena_over(work->workspace, work->workspace_bytes);
    e.slots = carry_arena_take(&arena, (size_t)(e.threaded ? 1 : threads), e.slot_bytes);
    if (e.threaded) {
        solve_range(&e, 0, work->batch, 0);
    } else {
        carry_parallel(work->ctx, work->batch, 1, solve_range, &e);
    }
    work->products += e.products;
    work->flops += e.flops;
    if (e.refused_item >= 0) {
        return carry_fail(
            work->ctx, CARRY_ERANGE,
            "the log form does not hold for sequence %" PRId64 ": at its step %" PRId64
            " the transition is %g, the transitions so far leave e^-80..e^80, or b divided by them leaves f32; "
            "use matmul4, matmul8 or matmul16",
            e.refused_item, e.refused_step, (double)e.refused);
    }
    return CARRY_OK;
}

bool carry_scan_items_workspace(const carry_scan_shape *shape, int threads, size_t item_bytes, size_t *bytes) {
    size_t slots = shape->batch < threads ? 1 : (size_t)threads;
    return slot_bytes(shape, item_bytes, bytes) && carry_size_mul(bytes, *bytes, slots) &&
           carry_size_add(bytes, *bytes, (size_t)2 * CARRY_ALIGN);
}

double carry_scan_items_cost(const carry_scan_shape *shape, const carry_rates_table *rates, int threads,
                             double compositions, double applications, double levels) {
    bool dense = shape->kind == CARRY_SCAN_DENSE;
    double steps = (double)shape->steps;
    double compose = dense ? carry_rates_product(rates, shape->n, shape->n) : carry_rates_diagonal(rates, shape->n, 1);
    double apply = dense ? carry_rates_product(rates, shape->n, shape->width)
                         : carry_rates_diagonal(rates, shape->n, shape->width);
    double work = compositions * compose + fmax(applications, steps) * apply;
    /* Inputs are read once from memory and b is copied to h. Each level reads its operands and writes its results, also
       from and to memory if a sequence exceeds the caches. */
    double A_bytes = 4.0 * (double)carry_scan_A_size(shape);
    double b_bytes = 4.0 * (double)carry_scan_b_size(shape);
    double inputs = steps * (A_bytes + 3.0 * b_bytes);
    double levels_bytes = 3.0 * compositions * A_bytes + applications * (A_bytes + 3.0 * b_bytes);
    bool overflows = 2.0 * steps * (A_bytes + b_bytes) > rates->cache_bytes;
    bool batched = shape->batch >= threads;
    double parallel = batched ? (double)threads : 1.0 + CARRY_TIME_SPLIT * (double)(threads - 1);
    double batch = (double)shape->batch;
    double seconds = batch * (work + SET_UP_SECONDS) / parallel + (batched ? 1.0 : batch * levels) * rates->fork;
    double movement =
        batch * (inputs + (overflows ? levels_bytes : 0.0)) / carry_rates_bandwidth(rates, (double)threads);
    return seconds > movement ? seconds : movement;
}
