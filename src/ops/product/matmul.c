/* Batched matrix products on tensors: checks, the choice between Carry's kernels and OpenBLAS, and threads. */
#include <inttypes.h>
#include <math.h>

#include "carry/ops.h"
#include "core/context.h"
#include "core/sized.h"
#include "core/span.h"
#include "core/tensor.h"
#include "core/threads.h"
#include "ops/cpu.h"
#include "ops/kernels/kernels.h"
#include "ops/product/matmul.h"
#include "ops/product/packed.h"
#include "ops/product/rates.h"

/* A piece of work worth waking a thread for: about 20 us at 50 GFLOP/s. */
#define PIECE_FLOPS 1000000

/* In batches smaller than the number of threads, products of fewer flops than this are split by rows over the threads
   without packing, because packing takes a second parallel step: at 128^3, packing with 8 threads reached 114 to 143
   GFLOP/s, hardly more than the 102 of one thread. */
#define PACKED_FLOPS (2.0 * 144 * 144 * 144)

typedef struct job {
    carry_product_function product;
    carry_product whole;
    int64_t row_blocks, rows; /* each matrix is cut into row_blocks of this many rows */
} job;

static void run_pieces(void *argument, int64_t begin, int64_t end, int worker) {
    (void)worker;
    const job *j = argument;
    for (int64_t piece = begin; piece < end; piece++) {
        int64_t item = piece / j->row_blocks;
        int64_t first = piece % j->row_blocks * j->rows;
        carry_product p = j->whole;
        p.count = 1;
        p.m = j->whole.m - first < j->rows ? j->whole.m - first : j->rows;
        p.a += item * p.a_next + first * (p.a_transposed ? 1 : p.a_row);
        p.b += item * p.b_next;
        p.c += item * p.c_next + first * p.c_row;
        if (p.base != NULL) {
            p.base += item * p.base_next + first * p.base_row;
        }
        j->product(&p);
    }
}

typedef struct packed_job {
    carry_ctx *ctx;
    const carry_kernels *kernels;
    const carry_product *p;
} packed_job;

static void run_packed_items(void *argument, int64_t begin, int64_t end, int worker) {
    (void)worker;
    const packed_job *j = argument;
    for (int64_t item = begin; item < end; item++) {
        carry_packed_run(j->ctx, j->kernels, j->p, item);
    }
}

/* One thread per item if there are enough items, else all threads on one item after the other. */
static void run_packed(carry_ctx *ctx, const carry_kernels *kernels, const carry_product *product) {
    packed_job j = {.ctx = ctx, .kernels = kernels, .p = product};
    if (product->count >= carry_ctx_threads(ctx)) {
        carry_parallel(ctx, product->count, 1, run_packed_items, &j);
    } else {
        run_packed_items(&j, 0, product->count, 0);
    }
}

/* The set of kernels that this product function belongs to, or NULL. */
static const carry_kernels *set_of(carry_product_function function) {
    const carry_kernels *kernels = NULL;
    for (int i = 0; (kernels = carry_kernels_at(i)) != NULL && kernels->product != function;) {
        i++;
    }
    return kernels;
}

static void run_items(void *argument, int64_t begin, int64_t end, int worker) {
    (void)worker;
    const job *j = argument;
    carry_product p = j->whole;
    p.count = end - begin;
    p.a += begin * p.a_next;
    p.b += begin * p.b_next;
    p.c += begin * p.c_next;
    if (p.base != NULL) {
        p.base += begin * p.base_next;
    }
    j->product(&p);
}

static carry_status expect_type(carry_ctx *ctx, const char *name, const carry_tensor *tensor, const carry_tensor *c,
                                const carry_tensor *a) {
    carry_dtype dtype = tensor->dtype;
    if (c->device == 0 && dtype != CARRY_F32) {
        return carry_fail(ctx, CARRY_EDTYPE, "%s is %s: carry_matmul takes f32 on the CPU", name,
                          carry_dtype_name(dtype));
    }
    if (!carry_dtype_is_real(dtype) || (dtype != a->dtype && (tensor != c || dtype != CARRY_F32))) {
        return carry_fail(
            ctx, CARRY_EDTYPE,
            "%s is %s and a is %s: on a GPU a and b are both f32, bf16 or f16, and c is f32 or of their type", name,
            carry_dtype_name(dtype), carry_dtype_name(a->dtype));
    }
    return CARRY_OK;
}

static carry_status expect_matrix(carry_ctx *ctx, const char *name, const carry_tensor *tensor, int64_t batch,
                                  int64_t rows, int64_t columns) {
    CARRY_TRY(carry_tensor_expect(ctx, name, tensor, 3, (const int64_t[]){batch, rows, columns}));
    if (columns > 1 && tensor->stride[2] != 1) {
        return carry_fail(ctx, CARRY_ESTRIDE, "%s has stride %" PRId64 " over its last index, which must be 1", name,
                          tensor->stride[2]);
    }
    return CARRY_OK;
}

static carry_status expect_matrices(carry_ctx *ctx, const carry_tensor *c, const carry_tensor *a, const carry_tensor *b,
                                    const carry_matmul_options *o) {
    if (c->rank != 3 || a->rank != 3 || b->rank != 3) {
        return carry_fail(ctx, CARRY_ESHAPE, "carry_matmul takes tensors of rank 3, and c, a, b have %d, %d and %d",
                          c->rank, a->rank, b->rank);
    }
    int64_t batch = c->shape[0];
    int64_t m = c->shape[1];
    int64_t n = c->shape[2];
    int64_t k = a->shape[o->a_transposed ? 1 : 2];
    CARRY_TRY(expect_matrix(ctx, "c", c, batch, m, n));
    CARRY_TRY(expect_matrix(ctx, "a", a, batch, o->a_transposed ? k : m, o->a_transposed ? m : k));
    if (!carry_tensor_is_apart(c, 2)) {
        return carry_fail(ctx, CARRY_ESTRIDE,
                          "c has strides %" PRId64 " and %" PRId64 " over batch and rows: its elements would overlap",
                          c->stride[0], c->stride[1]);
    }
    CARRY_TRY(expect_matrix(ctx, "b", b, batch, o->b_transposed ? n : k, o->b_transposed ? k : n));
    CARRY_TRY(expect_type(ctx, "c", c, c, a));
    CARRY_TRY(expect_type(ctx, "a", a, c, a));
    return expect_type(ctx, "b", b, c, a);
}

/* The size from which OpenBLAS is used: never, unless this machine's remembered rates say otherwise. It is fixed at
   a context's first product: rates that are measured during a run, perhaps differently on its ranks, do not change
   it. */
static double blas_from(carry_ctx *ctx) {
    double *settled = carry_packed_blas_from(ctx);
    if (settled == NULL) {
        return INFINITY;
    }
    if (*settled == 0.0) {
        const carry_rates_table *rates = ctx->slots[CARRY_SLOT_RATES].data;
        *settled = rates != NULL && rates->remembered && rates->blas_from > 0.0 ? rates->blas_from : INFINITY;
    }
    return *settled;
}

/* True if BLAS accepts the product: rows must not overlap, and sizes and strides must fit an int. */
static bool blas_can(const carry_product *p) {
    int64_t a_columns = p->a_transposed ? p->m : p->k;
    int64_t b_columns = p->b_transposed ? p->k : p->n;
    return p->a_row >= a_columns && p->b_row >= b_columns && p->c_row >= p->n && p->a_row <= INT32_MAX &&
           p->b_row <= INT32_MAX && p->c_row <= INT32_MAX && p->m <= INT32_MAX && p->n <= INT32_MAX &&
           p->k <= INT32_MAX;
}

carry_product_function carry_products_choice(carry_ctx *ctx, const carry_kernels *kernels,
                                             const carry_product *product) {
    double from = blas_from(ctx);
    bool large =
        (double)product->m >= from && (double)product->n >= from && (double)product->k >= from && blas_can(product);
    return large && carry_blas_product != NULL ? carry_blas_product : kernels->product;
}

void carry_products(carry_ctx *ctx, const carry_kernels *kernels, const carry_product *product) {
    carry_products_by(ctx, carry_products_choice(ctx, kernels, product), product);
}

void carry_products_by(carry_ctx *ctx, carry_product_function function, const carry_product *product) {
    double flops = 2.0 * (double)product->m * (double)product->n * (double)product->k;
    if (product->count < 1 || product->m < 1 || product->n < 1) {
        return;
    }
    CARRY_SPAN(ctx, "ops", "products");
    carry_span_work(ctx, flops * (double)product->count, 0.0);
    const carry_kernels *own = set_of(function);
    bool few = product->count < carry_ctx_threads(ctx) && flops < PACKED_FLOPS;
    if (own != NULL && !few && carry_packed_pays(own, product)) {
        run_packed(ctx, own, product);
        return;
    }
    job j = {.product = function, .whole = *product, .row_blocks = 1, .rows = product->m};
    int threads = carry_ctx_threads(ctx);
    if (product->count < threads && flops > 2.0 * PIECE_FLOPS) {
        int64_t wanted = (threads + product->count - 1) / product->count;
        j.rows = ((product->m + wanted - 1) / wanted + 15) / 16 * 16;
        j.row_blocks = (product->m + j.rows - 1) / j.rows;
        carry_parallel(ctx, product->count * j.row_blocks, 1, run_pieces, &j);
        return;
    }
    int64_t grain = flops > 0.0 && flops < PIECE_FLOPS ? (int64_t)(PIECE_FLOPS / flops) + 1 : 1;
    carry_parallel(ctx, product->count, grain, run_items, &j);
}

carry_status carry_matmul(carry_ctx *ctx, carry_tensor c, carry_tensor a, carry_tensor b,
                          const carry_matmul_options *options) {
    carry_matmul_options own;
    CARRY_TRY(CARRY_SIZED_READ(ctx, carry_matmul_options, &own, options));
    CARRY_TRY(expect_matrices(ctx, &c, &a, &b, &own));
    CARRY_OPERATOR(ctx, operators, matmul, &c)
    CARRY_TRY(carry_device_expect(ctx, "c", &c, c.device));
    CARRY_TRY(carry_device_expect(ctx, "a", &a, c.device));
    CARRY_TRY(carry_device_expect(ctx, "b", &b, c.device));
    return operators->matmul(ctx, c, a, b, &own);
}

carry_status carry_cpu_matmul(carry_ctx *ctx, carry_tensor c, carry_tensor a, carry_tensor b,
                              const carry_matmul_options *o) {
    const carry_kernels *kernels;
    CARRY_TRY(carry_kernels_of(ctx, &kernels));
    carry_products(ctx, kernels,
                   &(carry_product){.m = c.shape[1],
                                    .n = c.shape[2],
                                    .k = a.shape[o->a_transposed ? 1 : 2],
                                    .count = c.shape[0],
                                    .a = a.data,
                                    .b = b.data,
                                    .c = c.data,
                                    .base = o->accumulate ? c.data : NULL,
                                    .a_row = a.stride[1],
                                    .b_row = b.stride[1],
                                    .c_row = c.stride[1],
                                    .base_row = c.stride[1],
                                    .a_next = a.stride[0],
                                    .b_next = b.stride[0],
                                    .c_next = c.stride[0],
                                    .base_next = c.stride[0],
                                    .a_transposed = o->a_transposed,
                                    .b_transposed = o->b_transposed});
    return CARRY_OK;
}
