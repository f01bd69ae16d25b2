/* The log form of MatMulScan, kept for measurements: P = exp(cumulative sum of log a), then
   h = P (prefix sum of b/P + h0).

   Its prefix sum is a product with the all-ones triangle, which is why it was proposed. Its limits: transitions must be
   diagonal and positive, the cumulative product must stay within e^-80..e^80, and finite b/P within 1e36 in magnitude;
   otherwise b/P may overflow and P underflow. It checks this first and refuses other inputs (CARRY_ERANGE). */
#include <math.h>
#include <stdio.h>

#include "core/context.h"
#include "core/span.h"
#include "scan/matmul.h"

#define RADIX 16
#define LOG_LIMIT 80.0f
#define QUOTIENT_LIMIT 1e36f

/* Computes P[t] for every step. Returns false at the first step and channel outside of the limits. */
static bool cumulative(carry_scan_item *item, float *P) {
    int64_t n = item->work->n;
    for (int64_t r = 0; r < n; r++) {
        float sum = 0.0f;
        for (int64_t t = 0; t < item->work->steps; t++) {
            float a = item->A[t * item->A_step + r];
            sum += logf(a);
            if (!(a > 0.0f) || !(fabsf(sum) <= LOG_LIMIT)) {
                item->refused_step = t;
                item->refused = a;
                return false;
            }
            P[t * n + r] = expf(sum);
        }
    }
    return true;
}

/* b/P and its sums must stay far from the limits of f32, and so must h0, which is added undivided. */
static bool quotients_fit(carry_scan_item *item, const float *P) {
    int64_t n = item->work->n;
    int64_t width = item->work->width;
    for (int64_t t = 0; t < item->work->steps; t++) {
        for (int64_t i = 0; i < n * width; i++) {
            float value = item->h[t * item->h_step + i];
            if (!(fabsf(value) <= QUOTIENT_LIMIT * P[t * n + i / width]) && isfinite(value)) {
                item->refused_step = t;
                item->refused = item->A[t * item->A_step + i / width];
                return false;
            }
        }
    }
    return true;
}

/* h[t] = h[t] / P[t], or h[t] = h[t] P[t]. */
static void scale(carry_scan_item *item, const float *P, bool divide) {
    int64_t n = item->work->n;
    int64_t width = item->work->width;
    for (int64_t t = 0; t < item->work->steps; t++) {
        for (int64_t r = 0; r < n; r++) {
            float factor = divide ? 1.0f / P[t * n + r] : P[t * n + r];
            float *row = item->h + t * item->h_step + r * width;
            for (int64_t j = 0; j < width; j++) {
                row[j] *= factor;
            }
        }
    }
}

static void solve(carry_scan_item *item) {
    int64_t n = item->work->n;
    float *P = carry_arena_take(&item->arena, (size_t)(item->work->steps * n), sizeof(float));
    float *ones = carry_arena_take(&item->arena, (size_t)n, sizeof(float));
    if (!cumulative(item, P)) {
        return;
    }
    for (int64_t r = 0; r < n; r++) {
        ones[r] = 1.0f;
    }
    if (!quotients_fit(item, P)) {
        return;
    }
    scale(item, P, true);
    carry_scan_item sums = *item;
    sums.A = ones;
    sums.A_step = 0;
    carry_scan_matmul_solve(&sums, RADIX);
    item->products = sums.products;
    item->flops = sums.flops;
    scale(item, P, false);
}

static bool applies(const carry_scan_shape *shape, char *why, size_t why_size) {
    if (shape->kind == CARRY_SCAN_DENSE) {
        (void)snprintf(why, why_size, "the log form needs diagonal transitions");
        return false;
    }
    return true;
}

/* In the table, but never the planner's choice: matmul16 does the same without the logarithms and without the
   limits. */
static double cost(const carry_scan_shape *shape, const carry_rates_table *rates, int threads) {
    double steps = (double)shape->steps;
    double transcendental = (double)shape->batch * steps * (double)shape->n * 20e-9 / (double)threads;
    return carry_scan_items_cost(shape, rates, threads, steps, 8.0 * steps, 34.0) + transcendental;
}

static size_t item_bytes(const carry_scan_shape *shape) {
    carry_arena arena = carry_arena_over(NULL, 0);
    (void)carry_arena_take(&arena, (size_t)shape->steps * (size_t)shape->n, sizeof(float));
    (void)carry_arena_take(&arena, (size_t)shape->n, sizeof(float));
    return arena.used + carry_scan_matmul_bytes(shape, RADIX);
}

static bool workspace(const carry_scan_shape *shape, int threads, size_t *bytes) {
    return carry_scan_items_workspace(shape, threads, item_bytes(shape), bytes);
}

static carry_status run(carry_scan_work *work) {
    return carry_scan_each_item(work, item_bytes(work), solve);
}

const carry_scan_algorithm carry_scan_matmul_log = {
    .name = "matmul_log",
    .span = CARRY_SPAN_SITE("scan", "matmul_log"),
    .about = "log form, for measuring: positive diagonal transitions whose product stays within e^-80..e^80",
    .by_value = true,
    .applies = applies,
    .cost = cost,
    .workspace = workspace,
    .run = run,
};
