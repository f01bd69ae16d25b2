/* The router of a mixture of experts: chooses the experts of a token and their weights, and sorts the pairs (token,
   choice) by expert. Scores are computed in float64: they are few, and rounding should not decide between nearly equal
   ones. */
#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "core/context.h"
#include "core/tensor.h"
#include "core/threads.h"
#include "ops/convert.h"
#include "ops/cpu.h"
#include "ops/nn.h"

#define GRAIN_SCORES 4096
#define TINY 1e-20 /* added to the sum of weights, as transformers does */

typedef struct job {
    const carry_kernels *kernels;
    carry_tensor weights, chosen, logits, bias, dlogits;
    carry_router router;
} job;

/* The logits of a token, widened. */
static void read_logits(const job *j, int64_t t, float *logits) {
    const int64_t E = j->logits.shape[1];
    carry_widen(j->kernels, logits,
                (const unsigned char *)j->logits.data + (size_t)(t * E) * carry_dtype_size(j->logits.dtype),
                j->logits.dtype, E);
}

static void scores_of(const carry_router *r, const float *logits, int64_t E, double *p) {
    double largest = -INFINITY;
    double sum = 0.0;
    if (r->score == CARRY_ROUTER_SIGMOID) {
        for (int64_t e = 0; e < E; e++) {
            p[e] = 1.0 / (1.0 + exp(-(double)logits[e]));
        }
        return;
    }
    for (int64_t e = 0; e < E; e++) {
        largest = logits[e] > largest ? logits[e] : largest;
    }
    for (int64_t e = 0; e < E; e++) {
        p[e] = exp((double)logits[e] - largest);
        sum += p[e];
    }
    for (int64_t e = 0; e < E; e++) {
        p[e] /= sum;
    }
}

/* Returns the first of the largest free scores, or some free one if there is a NaN. */
static int64_t take_largest(const double *score, bool *taken, int64_t count) {
    int64_t best = -1;
    for (int64_t i = 0; i < count; i++) {
        if (!taken[i] && (best < 0 || score[i] > score[best])) {
            best = i;
        }
    }
    taken[best] = true;
    return best;
}

/* Marks the experts of dropped groups as taken. */
static void drop_groups(const carry_router *r, const double *score, int64_t E, bool *taken) {
    const int64_t each = E / r->groups;
    double sums[CARRY_MAX_EXPERTS];
    bool kept[CARRY_MAX_EXPERTS] = {false};
    for (int64_t g = 0; g < r->groups; g++) {
        double first = -INFINITY;
        double second = each > 1 ? -INFINITY : 0.0;
        for (int64_t e = g * each; e < (g + 1) * each; e++) {
            if (score[e] > first) {
                second = each > 1 ? first : 0.0;
                first = score[e];
            } else if (score[e] > second && each > 1) {
                second = score[e];
            }
        }
        sums[g] = first + second;
    }
    for (int64_t i = 0; i < r->kept_groups; i++) {
        (void)take_largest(sums, kept, r->groups);
    }
    for (int64_t e = 0; e < E; e++) {
        taken[e] = !kept[e / each];
    }
}

static bool has_nan(const float *logits, int64_t E) {
    bool found = false;
    for (int64_t e = 0; e < E; e++) {
        found = found || isnan(logits[e]);
    }
    return found;
}

static void route_row(const job *j, int64_t t) {
    const carry_router *r = &j->router;
    const int64_t E = j->logits.shape[1];
    const int64_t k = j->chosen.shape[1];
    const float *bias = j->bias.data;
    int64_t *chosen = (int64_t *)j->chosen.data + t * k;
    float *weights = (float *)j->weights.data + t * k;
    float logits[CARRY_MAX_EXPERTS];
    double p[CARRY_MAX_EXPERTS];
    double score[CARRY_MAX_EXPERTS];
    bool taken[CARRY_MAX_EXPERTS];
    memset(taken, 0, (size_t)E * sizeof *taken);
    read_logits(j, t, logits);
    scores_of(r, logits, E, p);
    for (int64_t e = 0; e < E; e++) {
        score[e] = p[e] + (bias != NULL ? (double)bias[e] : 0.0);
    }
    if (r->groups > 1) {
        drop_groups(r, score, E, taken);
    }
    double sum = TINY;
    for (int64_t i = 0; i < k; i++) {
        chosen[i] = take_largest(score, taken, E);
        sum += p[chosen[i]];
    }
    const bool bad = has_nan(logits, E);
    for (int64_t i = 0; i < k; i++) {
        weights[i] = bad ? NAN : (float)((double)r->scale * p[chosen[i]] / (r->normalise ? sum : 1.0));
    }
}

static void route_range(void *argument, int64_t begin, int64_t end, int worker) {
    (void)worker;
    for (int64_t t = begin; t < end; t++) {
        route_row(argument, t);
    }
}

/* Stores the first token whose weights are NaN. */
static void note_nan(const job *j) {
    const float *weights = j->weights.data;
    const int64_t k = j->chosen.shape[1];
    for (int64_t t = 0; j->router.first_nan != NULL && t < j->chosen.shape[0]; t++) {
        const int64_t mark = j->router.mark + t;
        if (isnan(weights[t * k]) && mark < *j->router.first_nan) {
            *j->router.first_nan = mark;
            return;
        }
    }
}

/* The weights of the chosen experts are w = scale p, so dp = scale dw; with `normalise`, S being the sum of the chosen
   p, they are w = scale p / S, so dp = scale (dw - sum of dw p / S) / S. dp is zero for the other experts. The gradient
   of a logit is p (dp - sum of p dp) for softmax, and p (1 - p) dp for sigmoid. */
static void route_back_row(const job *j, int64_t t) {
    const carry_router *r = &j->router;
    const int64_t E = j->logits.shape[1];
    const int64_t k = j->chosen.shape[1];
    const int64_t *chosen = (const int64_t *)j->chosen.data + t * k;
    const float *dw = (const float *)j->weights.data + t * k;
    float logits[CARRY_MAX_EXPERTS];
    double p[CARRY_MAX_EXPERTS];
    double dp[CARRY_MAX_EXPERTS];
    memset(dp, 0, (size_t)E * sizeof *dp);
    read_logits(j, t, logits);
    scores_of(r, logits, E, p);
    double sum = TINY;
    double dot = 0.0;
    for (int64_t i = 0; i < k; i++) {
        sum += p[chosen[i]];
        dot += (double)dw[i] * p[chosen[i]];
    }
    double all = 0.0;
    for (int64_t i = 0; i < k; i++) {
        const double own = r->normalise ? ((double)dw[i] - dot / sum) / sum : (double)dw[i];
        dp[chosen[i]] = (double)r->scale * own;
        all += p[chosen[i]] * dp[chosen[i]];
    }
    for (int64_t e = 0; e < E; e++) {
        logits[e] = (float)(p[e] * (r->score == CARRY_ROUTER_SIGMOID ? (1.0 - p[e]) * dp[e] : dp[e] - all));
    }
    carry_narrow(j->kernels, (unsigned char *)j->dlogits.data + (size_t)(t * E) * carry_dtype_size(j->dlogits.dtype),
                 logits, j->dlogits.dtype, E);
}

static void route_back_range(void *argument, int64_t begin, int64_t end, int worker) {
    (void)worker;
    for (int64_t t = begin; t < end; t++) {
        route_back_row(argument, t);
    }
}

/* Checks logits [T, E] and chosen [T, k], and that the router has at least k experts to choose from. */
static carry_status expect_router(carry_ctx *ctx, const carry_tensor *weights, const carry_tensor *chosen,
                                  const carry_tensor *logits, const carry_router *r) {
    CARRY_TRY(carry_expect_rank(ctx, "logits", logits, 2));
    CARRY_TRY(carry_expect_rank(ctx, "chosen", chosen, 2));
    CARRY_TRY(carry_expect_like(ctx, "logits", logits, logits));
    const int64_t T = logits->shape[0];
    const int64_t E = logits->shape[1];
    const int64_t k = chosen->shape[1];
    const carry_tensor flat = carry_reshape_1d(*chosen, T * k);
    CARRY_TRY(carry_expect_i64(ctx, "chosen", &flat, T * k, logits->device));
    CARRY_TRY(carry_expect_f32(ctx, "weights", weights, 2, (const int64_t[]){T, k}, logits->device));
    const int64_t groups = r->groups > 1 ? r->groups : 1;
    const int64_t kept = r->groups > 1 ? r->kept_groups : 1;
    if (E > CARRY_MAX_EXPERTS || E % groups != 0 || kept < 1 || kept > groups || k < 1 || k > E / groups * kept) {
        return carry_fail(ctx, CARRY_ESHAPE,
                          "a router of %" PRId64 " experts (at most %d) in %" PRId64 " groups, of which %" PRId64
                          " remain, cannot choose %" PRId64,
                          E, CARRY_MAX_EXPERTS, groups, kept, k);
    }
    return CARRY_OK;
}

carry_status carry_route(carry_ctx *ctx, carry_tensor weights, carry_tensor chosen, carry_tensor logits,
                         carry_tensor bias, const carry_router *router) {
    CARRY_OPERATOR(ctx, operators, route, &logits)
    CARRY_TRY(expect_router(ctx, &weights, &chosen, &logits, router));
    if (carry_is_here(&bias)) {
        CARRY_TRY(carry_expect_f32(ctx, "bias", &bias, 1, &logits.shape[1], logits.device));
    }
    return operators->route(ctx, weights, chosen, logits, bias, router);
}

carry_status carry_cpu_route(carry_ctx *ctx, carry_tensor weights, carry_tensor chosen, carry_tensor logits,
                             carry_tensor bias, const carry_router *router) {
    job j = {.weights = weights, .chosen = chosen, .logits = logits, .bias = bias, .router = *router};
    CARRY_TRY(carry_kernels_of(ctx, &j.kernels));
    carry_parallel(ctx, logits.shape[0], GRAIN_SCORES / (logits.shape[1] + 1) + 1, route_range, &j);
    note_nan(&j);
    return CARRY_OK;
}

carry_status carry_route_backward(carry_ctx *ctx, carry_tensor dlogits, carry_tensor dweights, carry_tensor logits,
                                  carry_tensor chosen, const carry_router *router) {
    CARRY_OPERATOR(ctx, operators, route_backward, &logits)
    CARRY_TRY(expect_router(ctx, &dweights, &chosen, &logits, router));
    CARRY_TRY(carry_expect_like(ctx, "dlogits", &dlogits, &logits));
    return operators->route_backward(ctx, dlogits, dweights, logits, chosen, router);
}

carry_status carry_cpu_route_backward(carry_ctx *ctx, carry_tensor dlogits, carry_tensor dweights, carry_tensor logits,
                                      carry_tensor chosen, const carry_router *router) {
    job j = {.weights = dweights, .chosen = chosen, .logits = logits, .dlogits = dlogits, .router = *router};
    CARRY_TRY(carry_kernels_of(ctx, &j.kernels));
    carry_parallel(ctx, logits.shape[0], GRAIN_SCORES / (logits.shape[1] + 1) + 1, route_back_range, &j);
    return CARRY_OK;
}

carry_status carry_sort_experts(carry_ctx *ctx, carry_tensor pair, carry_tensor place, carry_tensor offsets,
                                carry_tensor chosen) {
    CARRY_OPERATOR(ctx, operators, sort_experts, &chosen)
    CARRY_TRY(carry_expect_rank(ctx, "chosen", &chosen, 2));
    CARRY_TRY(carry_expect_rank(ctx, "offsets", &offsets, 1));
    const int64_t pairs = chosen.shape[0] * chosen.shape[1];
    const carry_tensor flat = carry_reshape_1d(chosen, pairs);
    CARRY_TRY(carry_expect_i64(ctx, "chosen", &flat, pairs, chosen.device));
    CARRY_TRY(carry_expect_i64(ctx, "pair", &pair, pairs, chosen.device));
    CARRY_TRY(carry_expect_i64(ctx, "place", &place, pairs, chosen.device));
    CARRY_TRY(carry_expect_i64(ctx, "offsets", &offsets, offsets.shape[0], chosen.device));
    if (offsets.shape[0] < 2 || offsets.shape[0] > CARRY_MAX_EXPERTS + 1) {
        return carry_fail(ctx, CARRY_ESHAPE, "offsets has %" PRId64 " numbers: expected 2 to %d", offsets.shape[0],
                          CARRY_MAX_EXPERTS + 1);
    }
    return operators->sort_experts(ctx, pair, place, offsets, flat);
}

carry_status carry_cpu_sort_experts(carry_ctx *ctx, carry_tensor pair, carry_tensor place, carry_tensor offsets,
                                    carry_tensor chosen) {
    const int64_t E = offsets.shape[0] - 1;
    const int64_t *expert = chosen.data;
    int64_t *first = offsets.data;
    int64_t next[CARRY_MAX_EXPERTS];
    memset(first, 0, (size_t)(E + 1) * sizeof *first);
    for (int64_t p = 0; p < chosen.shape[0]; p++) {
        if (expert[p] < 0 || expert[p] >= E) {
            return carry_fail(ctx, CARRY_ERANGE, "chosen[%" PRId64 "] is %" PRId64 ": expected 0 to %" PRId64, p,
                              expert[p], E - 1);
        }
        first[expert[p] + 1]++;
    }
    for (int64_t e = 0; e < E; e++) {
        next[e] = first[e];
        first[e + 1] += first[e];
    }
    for (int64_t p = 0; p < chosen.shape[0]; p++) {
        const int64_t row = next[expert[p]]++;
        ((int64_t *)pair.data)[row] = p;
        ((int64_t *)place.data)[p] = row;
    }
    return CARRY_OK;
}
