/* Plans of the delta rule: the method, the chunk, the bytes. */
#include "delta/plan.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/context.h"
#include "core/span.h"
#include "delta/backward.h"
#include "delta/forward.h"

static const carry_delta_method table[] = {
    {"recurrent", "token by token", 0}, {"chunk16", "chunks of 16 tokens as matrix products", 16},
    {"chunk32", "chunks of 32", 32},    {"chunk64", "chunks of 64", 64},
    {"chunk128", "chunks of 128", 128},
};

#define TABLE_COUNT ((int)(sizeof table / sizeof table[0]))
#define BACKWARD_CHUNK 64 /* of a plan that goes forward token by token */

static const carry_delta_method *find(const char *name) {
    for (int i = 0; i < TABLE_COUNT; i++) {
        if (strcmp(table[i].name, name) == 0) {
            return &table[i];
        }
    }
    return NULL;
}

/* Work per token, in units of a product's flop: chunks of C cost 6KV + C(2K + 2V) at the rate of products, tokens alone
   7KV at about a third of that rate, being bound by the first cache. A chunk beyond the sequence is wasted; products of
   16 rows run at about 0.8 of the rate of 64. The factors are measured (docs/results/delta.md). */
static double cost(const carry_delta_problem *p, const carry_delta_method *method) {
    double K = (double)p->key;
    double V = (double)p->value;
    if (method->chunk == 0) {
        return 3.5 * 7.0 * K * V;
    }
    double length = (double)p->tokens * (double)p->batch / (double)(p->sequences > 0 ? p->sequences : p->batch);
    double C = fmin((double)method->chunk, fmax(length, 1.0));
    double share = (double)p->heads / (double)p->value_heads;
    double small = 1.0 + 4.0 / C;
    return small * (6.0 * K * V + (C + 16.0) * (2.0 * K * share + 2.0 * V)) + 1000.0 + 40000.0 / C;
}

const carry_delta_method *carry_delta_choose(const carry_delta_problem *p) {
    const carry_delta_method *best = &table[0];
    for (int i = 1; i < TABLE_COUNT; i++) {
        if (cost(p, &table[i]) < cost(p, best)) {
            best = &table[i];
        }
    }
    return best;
}

static bool state_bytes(carry_delta_plan *plan) {
    carry_arena cut = carry_arena_over(NULL, 0);
    carry_arena whole = carry_arena_over(NULL, 0);
    carry_arena pair = carry_arena_over(NULL, 0);
    carry_arena backward = carry_arena_over(NULL, 0);
    carry_delta_run run = {0};
    carry_delta_back back = {0};
    size_t a = 0;
    size_t b = 0;
    const carry_delta_problem *p = &plan->problem;
    if (!carry_delta_run_take(plan, &cut, &run, p->value, true) ||
        !carry_delta_run_take(plan, &whole, &run, p->value, false) || !carry_arena_total(&cut, &a) ||
        !carry_arena_total(&whole, &b)) {
        return false;
    }
    plan->forward_workspace = a > b ? a : b;
    if (!carry_delta_run_take(plan, &pair, &run, p->value + p->key, true) ||
        !carry_arena_total(&pair, &plan->range_workspace)) {
        return false;
    }
    size_t states = (size_t)carry_delta_most_chunks(plan) * (size_t)(p->value_heads * p->key * p->value);
    size_t corrected = (size_t)(p->batch * p->tokens) * (size_t)(p->value_heads * p->value);
    plan->kept = (states + corrected) * sizeof(float);
    if (!carry_delta_back_take(plan, &backward, &back) || !carry_arena_total(&backward, &plan->backward_workspace)) {
        return false;
    }
    /* Nothing kept: room for it, and for the forward pass that makes it. */
    return carry_size_add(&plan->backward_workspace, plan->backward_workspace, plan->forward_workspace) &&
           carry_size_add(&plan->backward_workspace, plan->backward_workspace, plan->kept + 2 * CARRY_ALIGN);
}

carry_status carry_delta_plan_new(carry_ctx *ctx, carry_delta_plan **plan, const carry_delta_problem *problem,
                                  const char *method) {
    CARRY_SPAN(ctx, "plan", "delta");
    *plan = NULL;
    CARRY_TRY(carry_delta_check_problem(ctx, problem));
    const carry_delta_method *found = method != NULL ? find(method) : carry_delta_choose(problem);
    if (found == NULL) {
        return carry_fail(
            ctx, CARRY_ENOTFOUND,
            "there is no delta-rule method '%.40s': choose recurrent, chunk16, chunk32, chunk64 or chunk128", method);
    }
    carry_delta_plan *made = calloc(1, sizeof *made);
    if (made == NULL) {
        return carry_fail(ctx, CARRY_EMEMORY, "no memory for a plan");
    }
    made->ctx = ctx;
    made->problem = *problem;
    made->method = found;
    made->chunk = found->chunk > 0 ? found->chunk : BACKWARD_CHUNK;
    made->group = problem->value_heads / problem->heads;
    made->sequences = problem->sequences > 0 ? problem->sequences : problem->batch;
    made->scale = problem->scale != 0.0f ? problem->scale : 1.0f / sqrtf((float)problem->key);
    carry_status status = carry_kernels_of(ctx, &made->kernels);
    if (status == CARRY_OK && !state_bytes(made)) {
        status = carry_fail(ctx, CARRY_ESIZE, "the workspace of this problem is larger than memory can be");
    }
    if (status != CARRY_OK) {
        free(made);
        return status;
    }
    (void)snprintf(made->about, sizeof made->about,
                   "%s on %d thread%s (%s): %s; workspace %.3g MB, %.3g MB kept for backward", found->name,
                   carry_ctx_threads(ctx), carry_ctx_threads(ctx) == 1 ? "" : "s", made->kernels->name,
                   method != NULL ? "asked for by name" : "least work by the cost model",
                   1e-6 * (double)made->forward_workspace, 1e-6 * (double)made->kept);
    carry_log(ctx, method != NULL ? CARRY_LOG_DEBUG : CARRY_LOG_INFO, "plan: %s", made->about);
    *plan = made;
    return CARRY_OK;
}

const carry_delta_method *carry_delta_at(int index) {
    return index >= 0 && index < TABLE_COUNT ? &table[index] : NULL;
}

const char *carry_delta_name(int index) {
    const carry_delta_method *method = carry_delta_at(index);
    return method != NULL ? method->name : NULL;
}

const char *carry_delta_about(int index) {
    const carry_delta_method *method = carry_delta_at(index);
    return method != NULL ? method->about : NULL;
}

void carry_delta_plan_free(carry_delta_plan *plan) {
    free(plan);
}

const char *carry_delta_plan_about(const carry_delta_plan *plan) {
    return plan->about;
}

const char *carry_delta_plan_method(const carry_delta_plan *plan) {
    return plan->method->name;
}

size_t carry_delta_forward_workspace(const carry_delta_plan *plan) {
    return plan->forward_workspace;
}

size_t carry_delta_backward_workspace(const carry_delta_plan *plan) {
    return plan->backward_workspace;
}

size_t carry_delta_range_workspace(const carry_delta_plan *plan) {
    return plan->range_workspace;
}

size_t carry_delta_kept(const carry_delta_plan *plan) {
    return plan->kept;
}

int64_t carry_delta_snapshots(const carry_delta_plan *plan) {
    const carry_delta_problem *p = &plan->problem;
    return p->snapshot_every > 0 ? (p->tokens + p->snapshot_every - 1) / p->snapshot_every : p->snapshot_last;
}

double carry_delta_flops(const carry_delta_plan *plan) {
    return plan->flops;
}
