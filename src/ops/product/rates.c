/* Measuring the machine's rates, and interpolating between them. */
#include "ops/product/rates.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "carry/device.h"
#include "core/clock.h"
#include "core/context.h"
#include "core/span.h"
#include "core/memory.h"
#include "core/threads.h"
#include "ops/product/bf16.h"
#include "ops/product/ceiling.h"
#include "ops/kernels/kernels.h"
#include "ops/product/packed.h"
#include "ops/quantised/many.h"
#include "ops/quantised/quantised.h"

#define TRIES 3
#define TRY_SECONDS CARRY_MEASURED(250e-6, 25e-6)
/* A call that takes this long is measured once. This happens under sanitizers and emulators, hardly ever elsewhere. */
#define LONG_SECONDS CARRY_MEASURED(0.1, 1e-3)
#define COPY_BYTES ((size_t)CARRY_MEASURED(64, 4) << 20)
#define SCRATCH_FLOATS ((size_t)1 << 18)
#define BLAS_SIZES 3

static const int64_t sizes[CARRY_RATE_SIZES] = {4, 8, 16, 32, 64, 128};
static const int64_t widths[CARRY_RATE_WIDTHS] = {1, 8, 32, 128};
static const int64_t steps[CARRY_RATE_STEPS] = {4, 32, 256, 2048, 16384};
static const int64_t blas_sizes[BLAS_SIZES] = {CARRY_MEASURED(128, 32), CARRY_MEASURED(256, 64),
                                               CARRY_MEASURED(512, 128)};
/* OpenBLAS is chosen only if it is faster by this factor, so that noise in a measurement does not change products. */
#define BLAS_MARGIN 1.1
#define BLAS_ROUNDS 4 /* at most, while OpenBLAS seems to be faster */

typedef struct probe {
    carry_ctx *ctx;
    const carry_kernels *kernels;
    float *floats; /* SCRATCH_FLOATS of ones */
    float *more;
    int64_t n, width;
    carry_product_function product;
    const carry_bf16 *bf16;
    size_t bytes; /* bytes of `floats`, and of `more` */
    size_t piece; /* bytes a thread copies */
} probe;

/* Returns the seconds of one call: the best of a few tries of many calls. */
static double time_of(probe *p, void (*call)(probe *p)) {
    int64_t calls = 1;
    double best = INFINITY;
    for (int tries = 0; tries < TRIES;) {
        double start = carry_seconds();
        for (int64_t i = 0; i < calls; i++) {
            call(p);
        }
        double spent = carry_seconds() - start;
        if (spent < TRY_SECONDS && calls < ((int64_t)1 << 24)) {
            calls *= 2;
            continue;
        }
        best = spent / (double)calls < best ? spent / (double)calls : best;
        tries = best > LONG_SECONDS ? TRIES : tries + 1;
    }
    return best;
}

#define PRODUCTS_A_CALL CARRY_MEASURED(8, 1)

/* Runs a few products in a row, as the scans do, over operands that stay in the first-level caches. */
static void call_product(probe *p) {
    int64_t A_size = p->n * p->n;
    int64_t count = A_size * PRODUCTS_A_CALL <= (int64_t)SCRATCH_FLOATS / 4 ? PRODUCTS_A_CALL : 1;
    for (int64_t done = 0; done < PRODUCTS_A_CALL; done += count) {
        p->product(&(carry_product){.m = p->n,
                                    .n = p->width,
                                    .k = p->n,
                                    .count = count,
                                    .a = p->floats,
                                    .b = p->floats + SCRATCH_FLOATS / 2,
                                    .c = p->more,
                                    .a_row = p->n,
                                    .b_row = p->width,
                                    .c_row = p->width,
                                    .a_next = A_size,
                                    .b_next = 0,
                                    .c_next = p->n * p->width});
    }
}

static void call_steps(probe *p) {
    p->kernels->diagonal_scan(&(carry_diagonal_scan){.steps = 8,
                                                     .rows = p->n,
                                                     .width = p->width,
                                                     .a = p->floats,
                                                     .b = p->floats,
                                                     .state = p->floats + SCRATCH_FLOATS / 2,
                                                     .h = p->more,
                                                     .a_step = p->n,
                                                     .b_step = p->n * p->width,
                                                     .h_step = p->n * p->width});
}

static void call_apply(probe *p) {
    p->kernels->diagonal_apply(&(carry_diagonal_apply){.count = 8,
                                                       .rows = p->n,
                                                       .width = p->width,
                                                       .a = p->floats,
                                                       .x = p->floats,
                                                       .base = p->floats,
                                                       .y = p->more,
                                                       .a_next = p->n,
                                                       .x_next = p->n * p->width,
                                                       .base_next = p->n * p->width,
                                                       .y_next = p->n * p->width});
}

static void nothing(void *argument, int64_t begin, int64_t end, int worker) {
    (void)argument;
    (void)begin;
    (void)end;
    (void)worker;
}

static void call_fork(probe *p) {
    carry_parallel(p->ctx, carry_ctx_threads(p->ctx), 1, nothing, NULL);
}

static void copy_piece(void *argument, int64_t begin, int64_t end, int worker) {
    (void)worker;
    probe *p = argument;
    memcpy((char *)p->more + (size_t)begin * p->piece, (char *)p->floats + (size_t)begin * p->piece,
           (size_t)(end - begin) * p->piece);
}

static void call_copy(probe *p) {
    carry_parallel(p->ctx, carry_ctx_threads(p->ctx), 1, copy_piece, p);
}

static double copy_rate(probe *p, size_t bytes) {
    p->piece = bytes / (size_t)carry_ctx_threads(p->ctx);
    return 2.0 * (double)(p->piece * (size_t)carry_ctx_threads(p->ctx)) / time_of(p, call_copy);
}

static void call_copy_alone(probe *p) {
    copy_piece(p, 0, 1, 0);
}

static double one_thread_rate(probe *p) {
    p->piece = p->bytes;
    return 2.0 * (double)p->bytes / time_of(p, call_copy_alone);
}

static void measure_products(probe *p, carry_rates_table *rates) {
    p->product = p->kernels->product;
    for (int i = 0; i < CARRY_RATE_SIZES; i++) {
        for (int j = 0; j < CARRY_RATE_WIDTHS; j++) {
            p->n = sizes[i];
            p->width = widths[j];
            rates->product[i][j] = time_of(p, call_product) / PRODUCTS_A_CALL;
        }
    }
}

static void call_large(probe *p) {
    carry_product large = {.m = p->n,
                           .n = p->n,
                           .k = p->n,
                           .count = 1,
                           .a = p->floats,
                           .b = p->floats + p->n * p->n,
                           .c = p->more,
                           .a_row = p->n,
                           .b_row = p->n,
                           .c_row = p->n};
    if (p->product != carry_blas_product && carry_packed_pays(p->kernels, &large)) {
        carry_packed_run_alone(p->ctx, p->kernels, &large);
    } else {
        p->product(&large);
    }
}

/* Measures both implementations at every size on one thread, and finds the smallest size from which OpenBLAS is faster
   by the margin. */
static void measure_large(probe *p, carry_rates_table *rates) {
    bool faster = true;
    rates->blas_from = rates->large_blas = 0.0;
    for (int i = BLAS_SIZES - 1; i >= 0; i--) {
        p->n = blas_sizes[i];
        double flops = 2.0 * (double)(p->n * p->n * p->n);
        double own = 0.0;
        double blas = 0.0;
        /* OpenBLAS wins only if it wins every round: on a shared machine one measurement was 39 and the next 115. */
        int rounds = BLAS_ROUNDS;
        for (int round = 0; round == 0 || (round < rounds && blas > BLAS_MARGIN * own); round++) {
            p->product = p->kernels->product;
            own = fmax(own, flops / time_of(p, call_large));
            rounds = flops / own > LONG_SECONDS ? 1 : BLAS_ROUNDS;
            p->product = carry_blas_product;
            blas = carry_blas_product != NULL ? fmax(blas, flops / time_of(p, call_large)) : 0.0;
        }
        rates->large_own = i == BLAS_SIZES - 1 ? own : rates->large_own;
        rates->large_blas = i == BLAS_SIZES - 1 ? blas : rates->large_blas;
        faster = faster && blas > BLAS_MARGIN * own;
        rates->blas_from = faster ? (double)p->n : rates->blas_from;
    }
}

/* The operands are the floats of the probe read as bf16: 2^-10 and 0. */
static void call_bf16(probe *p) {
    const int64_t n = p->n;
    carry_matrix a = {.data = p->floats, .dtype = CARRY_BF16, .row = n};
    carry_matrix b = {.data = p->floats + n * n, .dtype = CARRY_BF16, .row = n};
    (void)carry_bf16_run_alone(
        p->ctx, p->kernels, p->bf16,
        &(carry_mixed_product){.m = n, .n = n, .k = n, .a = a, .b = b, .c = p->more, .c_dtype = CARRY_F32, .c_row = n});
}

static void measure_bf16(probe *p, carry_rates_table *rates) {
    p->n = blas_sizes[BLAS_SIZES - 1];
    p->bf16 = carry_packed_bf16(p->ctx);
    rates->large_bf16 = p->bf16 != NULL ? 2.0 * (double)(p->n * p->n * p->n) / time_of(p, call_bf16) : 0.0;
}

/* The same floats read as tokens in bf16 and as blocks of a weight in q8_0. */
static bool run_integers(probe *p) {
    const int64_t n = p->n;
    const carry_tensor x = carry_view_2d(p->floats, CARRY_BF16, n, n);
    const carry_tensor W = carry_quant_view(p->floats + n * n, &carry_quant_q8_0, n, n);
    return carry_quantised_many_alone(p->ctx, p->kernels, carry_view_2d(p->more, CARRY_BF16, n, n), x, W);
}

static void call_integers(probe *p) {
    (void)run_integers(p);
}

static void measure_integers(probe *p, carry_rates_table *rates) {
    p->n = blas_sizes[BLAS_SIZES - 1];
    rates->large_integers = run_integers(p) ? 2.0 * (double)(p->n * p->n * p->n) / time_of(p, call_integers) : 0.0;
}

static void measure_steps(probe *p, carry_rates_table *rates) {
    for (int i = 0; i < CARRY_RATE_STEPS; i++) {
        p->n = 4;
        p->width = steps[i] / 4;
        rates->step[i] = time_of(p, call_steps) / 8.0;
    }
    p->n = 4;
    p->width = 8;
    double apply = time_of(p, call_apply) / 8.0;
    rates->apply_call = apply > rates->step[1] ? apply - rates->step[1] : 1e-10;
}

static carry_status measure(carry_ctx *ctx, carry_rates_table *rates) {
    probe p = {.ctx = ctx, .bytes = carry_copy_bytes(COPY_BYTES)};
    CARRY_TRY(carry_kernels_of(ctx, &p.kernels));
    carry_device_properties cpu = {CARRY_INIT(carry_device_properties)};
    CARRY_TRY(carry_device_properties_of(ctx, &cpu, 0));
    p.floats = carry_aligned_new(p.bytes);
    p.more = carry_aligned_new(p.bytes);
    if (p.floats == NULL || p.more == NULL) {
        free(p.floats);
        free(p.more);
        return carry_fail(ctx, CARRY_EMEMORY, "out of memory: measuring this machine's rates (%zu bytes)", 2 * p.bytes);
    }
    for (size_t i = 0; i < p.bytes / sizeof *p.floats; i++) {
        p.floats[i] = 1.0f / 1024.0f; /* small enough that no sum overflows, large enough that none is subnormal */
    }
    memset(p.more, 0, p.bytes);
    measure_products(&p, rates);
    measure_steps(&p, rates);
    measure_large(&p, rates);
    measure_bf16(&p, rates);
    measure_integers(&p, rates);
    rates->fork = time_of(&p, call_fork);
    size_t inner = cpu.cache_inner > 0 ? cpu.cache_inner : (size_t)1 << 20;
    rates->cache_bytes = (double)inner * carry_ctx_threads(ctx);
    rates->memory = copy_rate(&p, p.bytes);
    rates->memory_one = one_thread_rate(&p);
    rates->memory = rates->memory > rates->memory_one ? rates->memory : rates->memory_one;
    free(p.floats);
    free(p.more);
    return CARRY_OK;
}

/* Finds x in an increasing list: returns the index below it, and sets *share to the fraction of the way to the next
   one, in logarithms. Extrapolates beyond both ends. */
static int locate(const int64_t *list, int count, int64_t x, double *share) {
    int i = 0;
    while (i + 2 < count && x >= list[i + 1]) {
        i++;
    }
    double low = log((double)list[i]);
    *share = (log((double)x) - low) / (log((double)list[i + 1]) - low);
    return i;
}

static double between(double low, double high, double share) {
    return exp(log(low) + share * (log(high) - log(low)));
}

double carry_rates_product(const carry_rates_table *rates, int64_t n, int64_t width) {
    double at_n;
    double at_w;
    int i = locate(sizes, CARRY_RATE_SIZES, n, &at_n);
    int j = locate(widths, CARRY_RATE_WIDTHS, width, &at_w);
    at_n = at_n < 0.0 ? 0.0 : at_n;
    double low = between(rates->product[i][j], rates->product[i][j + 1], at_w);
    double high = between(rates->product[i + 1][j], rates->product[i + 1][j + 1], at_w);
    return between(low, high, at_n);
}

double carry_rates_bandwidth(const carry_rates_table *rates, double busy) {
    return busy * rates->memory_one < rates->memory ? busy * rates->memory_one : rates->memory;
}

double carry_rates_diagonal_step(const carry_rates_table *rates, int64_t elements) {
    double share;
    int i = locate(steps, CARRY_RATE_STEPS, elements, &share);
    return between(rates->step[i], rates->step[i + 1], share < 0.0 ? 0.0 : share);
}

double carry_rates_diagonal(const carry_rates_table *rates, int64_t n, int64_t width) {
    return carry_rates_diagonal_step(rates, n * width) + rates->apply_call;
}

double *carry_rates_number(carry_rates_table *rates, int index, char name[32], const char **unit) {
    static const char *const names[] = {"apply_call", "fork",       "memory",    "memory_one", "cache_bytes",
                                        "large_own",  "large_blas", "blas_from", "large_bf16", "large_integers"};
    static const char *const units[] = {"s",      "s",      "bytes/s", "bytes/s", "bytes",
                                        "flop/s", "flop/s", "size",    "flop/s",  "flop/s"};
    double *const others[] = {&rates->apply_call,  &rates->fork,          &rates->memory,     &rates->memory_one,
                              &rates->cache_bytes, &rates->large_own,     &rates->large_blas, &rates->blas_from,
                              &rates->large_bf16,  &rates->large_integers};
    *unit = "s";
    if (index < 0) {
        return NULL;
    }
    if (index < CARRY_RATE_SIZES * CARRY_RATE_WIDTHS) {
        int i = index / CARRY_RATE_WIDTHS;
        int j = index % CARRY_RATE_WIDTHS;
        (void)snprintf(name, 32, "product_n%d_w%d", (int)sizes[i], (int)widths[j]);
        return &rates->product[i][j];
    }
    index -= CARRY_RATE_SIZES * CARRY_RATE_WIDTHS;
    if (index < CARRY_RATE_STEPS) {
        (void)snprintf(name, 32, "step_%d", (int)steps[index]);
        return &rates->step[index];
    }
    index -= CARRY_RATE_STEPS;
    if (index >= (int)(sizeof names / sizeof names[0])) {
        return NULL;
    }
    (void)snprintf(name, 32, "%s", names[index]);
    *unit = units[index];
    return others[index];
}

bool carry_rates_known(const carry_ctx *ctx) {
    return ctx->slots[CARRY_SLOT_RATES].data != NULL;
}

bool carry_rates_put(carry_ctx *ctx, const carry_rates_table *rates) {
    carry_rates_table copy = *rates;
    char name[32];
    const char *unit;
    double *number;
    for (int i = 0; (number = carry_rates_number(&copy, i, name, &unit)) != NULL; i++) {
        bool may_be_zero = number == &copy.blas_from || number == &copy.large_blas || number == &copy.large_bf16 ||
                           number == &copy.large_integers;
        if (!isfinite(*number) || *number < 0.0 || (*number == 0.0 && !may_be_zero) || *number > 1e18) {
            return false;
        }
    }
    carry_rates_table *kept = ctx->slots[CARRY_SLOT_RATES].data;
    if (kept == NULL) {
        kept = malloc(sizeof *kept);
        if (kept == NULL) {
            return false;
        }
        ctx->slots[CARRY_SLOT_RATES].data = kept;
        ctx->slots[CARRY_SLOT_RATES].free = free;
    }
    *kept = copy;
    return true;
}

carry_status carry_rates_of(carry_ctx *ctx, const carry_rates_table **rates, bool again) {
    if (!carry_rates_known(ctx) || again) {
        CARRY_SPAN(ctx, "plan", "rates of the machine");
        carry_rates_table measured = {0};
        double start = carry_seconds();
        CARRY_TRY(measure(ctx, &measured));
        carry_log(ctx, CARRY_LOG_INFO, "measured this machine's rates in %.2f s", carry_seconds() - start);
        if (!carry_rates_put(ctx, &measured)) {
            return carry_fail(ctx, CARRY_EMEMORY, "this machine's rates could not be measured or kept");
        }
    }
    *rates = ctx->slots[CARRY_SLOT_RATES].data;
    return CARRY_OK;
}
