/* The planner: chooses an algorithm for a problem, and records why.

   It uses, in this order: the caller's choice by name, wisdom (earlier measurements on this machine), and the cost
   model with this machine's measured rates. With CARRY_PLAN_MEASURE and no name it uses neither wisdom nor the model,
   and times every algorithm that applies whatever the values are (by_value in algorithm.h marks the others). */
#include "scan/plan.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/clock.h"
#include "core/context.h"
#include "core/sized.h"
#include "core/span.h"
#include "scan/check.h"
#include "scan/trial.h"
#include "scan/wisdom.h"

#define WHY 128

typedef struct choice {
    const carry_scan_algorithm *best, *second;
    double seconds, second_seconds;
} choice;

static void consider(choice *c, const carry_scan_algorithm *algorithm, double seconds) {
    if (c->best == NULL || seconds < c->seconds) {
        c->second = c->best;
        c->second_seconds = c->seconds;
        c->best = algorithm;
        c->seconds = seconds;
    } else if (c->second == NULL || seconds < c->second_seconds) {
        c->second = algorithm;
        c->second_seconds = seconds;
    }
}

static const carry_scan_algorithm *find(const carry_scan_plan *plan, const char *name) {
    const carry_scan_algorithm *algorithm;
    for (int i = 0; (algorithm = carry_scan_at(plan->gpu != NULL, i)) != NULL; i++) {
        if (strcmp(algorithm->name, name) == 0) {
            return algorithm;
        }
    }
    return NULL;
}

static carry_status find_or_fail(const carry_scan_plan *plan, const carry_scan_algorithm **algorithm,
                                 const char *name) {
    int device = plan->problem.device;
    *algorithm = find(plan, name);
    if (*algorithm != NULL) {
        return CARRY_OK;
    }
    for (int i = 0; carry_scan_name(device == 0, i) != NULL; i++) {
        if (strcmp(carry_scan_name(device == 0, i), name) == 0) {
            return carry_fail(plan->ctx, CARRY_EUNSUPPORTED, "%s is for %s", name, device == 0 ? "GPUs" : "the CPU");
        }
    }
    char all[256] = "";
    size_t used = 0;
    for (int i = 0; carry_scan_name(device, i) != NULL; i++) {
        used += (size_t)snprintf(all + used, sizeof all - used, "%s%s", i > 0 ? ", " : "", carry_scan_name(device, i));
    }
    return carry_fail(plan->ctx, CARRY_ENOTFOUND, "there is no scan algorithm '%.40s'%s: choose one of %s", name,
                      plan->gpu != NULL ? " on GPUs" : "", all);
}

static carry_status settle(carry_scan_plan *plan, const carry_scan_algorithm *algorithm) {
    carry_ctx *ctx = plan->ctx;
    carry_scan_shape shape = carry_scan_plan_shape(plan, algorithm);
    char why[WHY];
    if (!algorithm->applies(&shape, why, sizeof why)) {
        return carry_fail(ctx, CARRY_EUNSUPPORTED, "%s does not apply here: %s", algorithm->name, why);
    }
    size_t extra = 0;
    int threads = carry_scan_plan_threads(plan);
    if (!algorithm->workspace(&shape, threads, &plan->workspace) ||
        (plan->problem.backward &&
         (!carry_scan_backward_extra(&plan->problem, plan->gpu != NULL ? 0 : threads, &extra) ||
          !carry_size_add(&plan->workspace, plan->workspace, extra)))) {
        return carry_fail(ctx, CARRY_ESIZE, "the workspace of %s for this problem is larger than memory can be",
                          algorithm->name);
    }
    plan->algorithm = algorithm;
    return CARRY_OK;
}

static carry_status estimate(carry_scan_plan *plan, choice *c) {
    const carry_rates_table *rates = NULL;
    if (plan->gpu == NULL) {
        CARRY_TRY(carry_wisdom_rates(plan->ctx, &rates, false));
    }
    const carry_scan_algorithm *algorithm;
    for (int i = 0; (algorithm = carry_scan_at(plan->gpu != NULL, i)) != NULL; i++) {
        carry_scan_shape shape = carry_scan_plan_shape(plan, algorithm);
        char why[WHY];
        if (!algorithm->by_value && algorithm->applies(&shape, why, sizeof why)) {
            consider(c, algorithm, algorithm->cost(&shape, rates, carry_ctx_threads(plan->ctx)));
        }
    }
    return c->best != NULL ? CARRY_OK : carry_fail(plan->ctx, CARRY_EUNSUPPORTED, "no algorithm applies");
}

static carry_status measure(carry_scan_plan *plan, choice *c) {
    CARRY_SPAN(plan->ctx, "plan", "measure");
    carry_scan_trial *trial;
    CARRY_TRY(carry_scan_trial_new(plan, &trial));
    const carry_scan_algorithm *algorithm;
    for (int i = 0; (algorithm = carry_scan_at(plan->gpu != NULL, i)) != NULL; i++) {
        if (!algorithm->by_value && settle(plan, algorithm) == CARRY_OK) {
            double seconds = carry_scan_trial_seconds(plan, trial);
            carry_log(plan->ctx, CARRY_LOG_DEBUG, "measured %s: %.4g s", algorithm->name, seconds);
            if (isfinite(seconds)) {
                consider(c, algorithm, seconds);
            }
        }
    }
    carry_scan_trial_free(plan, trial);
    return c->best != NULL ? CARRY_OK
                           : carry_fail(plan->ctx, CARRY_EMEMORY, "no algorithm could be measured: too little memory");
}

static void tell(carry_scan_plan *plan, const choice *c, const char *how) {
    char first[32];
    char second[32];
    int used;
    if (plan->gpu != NULL) {
        used = snprintf(plan->about, sizeof plan->about, "%s on device %d", plan->algorithm->name, plan->gpu->device);
    } else {
        used =
            snprintf(plan->about, sizeof plan->about, "%s on %d thread%s (%s)", plan->algorithm->name,
                     carry_scan_plan_threads(plan), carry_scan_plan_threads(plan) == 1 ? "" : "s", plan->kernels->name);
    }
    if (plan->chunk > 0) {
        used += snprintf(plan->about + used, sizeof plan->about - (size_t)used, ", chunk %" PRId64, plan->chunk);
    }
    if (c->seconds > 0.0) {
        used += snprintf(plan->about + used, sizeof plan->about - (size_t)used, ": %s %s",
                         carry_time_text(first, c->seconds), how);
    } else {
        used += snprintf(plan->about + used, sizeof plan->about - (size_t)used, ": %s", how);
    }
    if (c->second != NULL) {
        (void)snprintf(plan->about + used, sizeof plan->about - (size_t)used, "; next %s %s", c->second->name,
                       carry_time_text(second, c->second_seconds));
    }
    plan->seconds = c->seconds;
}

/* Rates of one GPU do not hold for another, so the key contains the GPU's name without spaces. */
static carry_status add_gpu(carry_scan_plan *plan, char key[CARRY_SCAN_KEY]) {
    if (plan->gpu == NULL) {
        return CARRY_OK;
    }
    carry_device_properties gpu = {CARRY_INIT(carry_device_properties)};
    CARRY_TRY(carry_device_properties_of(plan->ctx, &gpu, plan->problem.device));
    size_t length = strlen(key);
    (void)snprintf(key + length, CARRY_SCAN_KEY - length, ":device=%.40s", gpu.name);
    for (char *at = key + length; *at != '\0'; at++) {
        *at = (char)(*at == ' ' ? '_' : *at);
    }
    return CARRY_OK;
}

static carry_status choose(carry_scan_plan *plan, const carry_scan_options *options) {
    choice c = {0};
    const carry_scan_algorithm *algorithm;
    if (options->algorithm != NULL) {
        CARRY_TRY(find_or_fail(plan, &algorithm, options->algorithm));
        CARRY_TRY(settle(plan, algorithm));
        tell(plan, &c, "asked for by name");
        return CARRY_OK;
    }
    char key[CARRY_SCAN_KEY];
    carry_scan_key(key, &plan->problem);
    CARRY_TRY(add_gpu(plan, key));
    bool measures = options->effort == CARRY_PLAN_MEASURE;
    /* A chunk size given by the caller changes which algorithm is fastest, so such plans are neither looked up nor
       remembered. */
    CARRY_TRY(carry_wisdom_ready(plan->ctx));
    const carry_wisdom_plan *known = measures || plan->chunk > 0 ? NULL : carry_wisdom_find(plan->ctx, key);
    if (known != NULL && (algorithm = find(plan, known->algorithm)) != NULL) {
        const bool on_cpu = plan->gpu == NULL;
        plan->chunk = on_cpu ? known->chunk : 0;
        plan->threads = on_cpu && known->used < carry_ctx_threads(plan->ctx) ? known->used : 0;
        if (settle(plan, algorithm) == CARRY_OK) {
            c.seconds = known->seconds;
            tell(plan, &c, "measured before (wisdom)");
            return CARRY_OK;
        }
        plan->chunk = 0;
        plan->threads = 0;
    }
    if (measures) {
        CARRY_TRY(measure(plan, &c));
        CARRY_TRY(settle(plan, c.best));
        tell(plan, &c, "measured");
        return plan->chunk > 0
                   ? CARRY_OK
                   : carry_wisdom_excuse(plan->ctx, carry_wisdom_remember(plan->ctx, key, c.best->name, c.seconds));
    }
    CARRY_TRY(estimate(plan, &c));
    CARRY_TRY(settle(plan, c.best));
    tell(plan, &c, "predicted");
    return CARRY_OK;
}

int carry_scan_plan_threads(const carry_scan_plan *plan) {
    return plan->threads > 0 ? plan->threads : carry_ctx_threads(plan->ctx);
}

carry_scan_shape carry_scan_shape_of(const carry_scan_problem *problem) {
    carry_scan_shape shape = {.kind = problem->kind,
                              .batch = problem->batch,
                              .steps = problem->steps,
                              .n = problem->n,
                              .width = problem->width};
    shape.A.dtype = shape.b.dtype = shape.h.dtype = problem->dtype;
    if (problem->f32_result) {
        shape.h.dtype = CARRY_F32;
    }
    if (problem->backward) {
        shape.steps = problem->steps > 1 ? problem->steps - 1 : 1;
        shape.transposed = true;
        shape.b.dtype = shape.h.dtype = CARRY_F32;
    }
    return shape;
}

carry_scan_shape carry_scan_plan_shape(const carry_scan_plan *plan, const carry_scan_algorithm *algorithm) {
    carry_scan_shape shape = carry_scan_shape_of(&plan->problem);
    shape.ctx = plan->ctx;
    shape.kernels = plan->kernels;
    shape.algorithm = algorithm;
    shape.radix = algorithm->radix;
    shape.chunk = plan->chunk;
    shape.gpu = plan->gpu;
    shape.stream = plan->gpu != NULL ? carry_ctx_stream(plan->ctx, plan->problem.device) : NULL;
    return shape;
}

const char *carry_scan_key(char key[CARRY_SCAN_KEY], const carry_scan_problem *problem) {
    (void)snprintf(key, CARRY_SCAN_KEY, "scan:%s:%s:b%" PRId64 ":t%" PRId64 ":n%" PRId64 ":w%" PRId64 "%s%s%s",
                   problem->kind == CARRY_SCAN_DENSE ? "dense" : "diagonal", carry_dtype_name(problem->dtype),
                   problem->batch, problem->steps, problem->n, problem->width, problem->f32_result ? ":out=f32" : "",
                   problem->reversed ? ":reversed" : "", problem->backward ? ":backward" : "");
    return key;
}

carry_status carry_scan_plan_new(carry_ctx *ctx, carry_scan_plan **plan, const carry_scan_problem *problem,
                                 const carry_scan_options *options) {
    CARRY_SPAN(ctx, "plan", "scan");
    carry_scan_options own;
    *plan = NULL;
    CARRY_TRY(CARRY_SIZED_READ(ctx, carry_scan_options, &own, options));
    CARRY_TRY(carry_scan_check_problem(ctx, problem));
    if (own.chunk < 0) {
        return carry_fail(ctx, CARRY_EARGUMENT,
                          "a chunk of %" PRId64 " steps: give 1 or more, or 0 for the planner's choice", own.chunk);
    }
    carry_scan_plan *made = calloc(1, sizeof *made);
    if (made == NULL) {
        return carry_fail(ctx, CARRY_EMEMORY, "out of memory: a plan");
    }
    made->ctx = ctx;
    made->problem = *problem;
    made->chunk = own.chunk;
    carry_status status = carry_kernels_of(ctx, &made->kernels);
    if (status == CARRY_OK && problem->device != 0) {
        status = carry_gpu_of(ctx, &made->gpu, problem->device);
    }
    if (status == CARRY_OK) {
        status = choose(made, &own);
    }
    if (status != CARRY_OK) {
        free(made);
        return status;
    }
    carry_log(ctx, own.algorithm != NULL ? CARRY_LOG_DEBUG : CARRY_LOG_INFO, "plan: %s", made->about);
    *plan = made;
    return CARRY_OK;
}

void carry_scan_plan_free(carry_scan_plan *plan) {
    free(plan);
}

const char *carry_scan_plan_about(const carry_scan_plan *plan) {
    return plan->about;
}

const char *carry_scan_plan_algorithm(const carry_scan_plan *plan) {
    return plan->algorithm->name;
}

double carry_scan_plan_seconds(const carry_scan_plan *plan) {
    return plan->seconds;
}

size_t carry_scan_run_workspace(const carry_scan_plan *plan) {
    return plan->problem.backward ? 0 : plan->workspace;
}

size_t carry_scan_backward_workspace(const carry_scan_plan *plan) {
    return plan->problem.backward ? plan->workspace : 0;
}

carry_status carry_scan_counted(const carry_scan_plan *plan, carry_scan_counts *counts) {
    const carry_scan_counts own = {.products = plan->products, .flops = plan->flops};
    return CARRY_SIZED_WRITE(plan->ctx, carry_scan_counts, counts, &own);
}

carry_status carry_rates(carry_ctx *ctx, bool again) {
    const carry_rates_table *rates;
    return carry_wisdom_rates(ctx, &rates, again);
}

const char *carry_rate_line(carry_ctx *ctx, int index) {
    const carry_rates_table *rates;
    char name[32];
    const char *unit;
    if (carry_wisdom_rates(ctx, &rates, false) != CARRY_OK) {
        return NULL;
    }
    carry_rates_table copy = *rates;
    double *number = carry_rates_number(&copy, index, name, &unit);
    if (number == NULL) {
        return NULL;
    }
    (void)snprintf(ctx->line, sizeof ctx->line, "%s %.4g %s", name, *number, unit);
    return ctx->line;
}
