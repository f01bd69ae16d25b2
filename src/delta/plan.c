/* Plans of the delta rule: choose the device, the method and the chunk size, and compute the workspace. */
#include "delta/plan.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/context.h"
#include "core/sized.h"
#include "core/span.h"
#include "delta/terms.h"
#include "device/backend.h"

#define BACKWARD_CHUNK 64 /* backward chunk of a plan whose forward pass goes token by token */
#define WHY 128

size_t carry_delta_test_room = 0;

static const carry_delta_method *find(bool on_gpu, const char *name) {
    const carry_delta_method *method;
    for (int i = 0; (method = carry_delta_at(on_gpu, i)) != NULL; i++) {
        if (strcmp(method->name, name) == 0) {
            return method;
        }
    }
    return NULL;
}

static carry_status find_or_fail(const carry_delta_plan *plan, const carry_delta_method **method, const char *name) {
    bool on_gpu = plan->problem.device != 0;
    *method = find(on_gpu, name);
    if (*method != NULL) {
        return CARRY_OK;
    }
    if (find(!on_gpu, name) != NULL) {
        return carry_fail(plan->ctx, CARRY_EUNSUPPORTED, "%s is for %s", name, on_gpu ? "the CPU" : "GPUs");
    }
    char all[256] = "";
    size_t used = 0;
    const carry_delta_method *other;
    for (int i = 0; (other = carry_delta_at(on_gpu, i)) != NULL && used < sizeof all; i++) {
        used += (size_t)snprintf(all + used, sizeof all - used, "%s%s", i > 0 ? ", " : "", other->name);
    }
    return carry_fail(plan->ctx, CARRY_ENOTFOUND, "there is no delta-rule method '%.40s'%s: choose one of %s", name,
                      on_gpu ? " on GPUs" : "", all);
}

static void use(carry_delta_plan *plan, const carry_delta_method *method) {
    plan->method = method;
    plan->chunk = method->chunk > 0 ? method->chunk : BACKWARD_CHUNK;
}

/* Returns the cheapest method that applies. If none does, returns NULL, and `why` says why the first method, which
   supports every size and option, does not apply. */
static const carry_delta_method *cheapest(const carry_delta_plan *plan, char why[WHY]) {
    char reason[WHY] = "";
    const carry_delta_method *best = NULL;
    const carry_delta_method *method;
    double least = 0.0;
    for (int i = 0; (method = carry_delta_at(plan->problem.device != 0, i)) != NULL; i++) {
        carry_delta_plan one = *plan;
        use(&one, method);
        if (!method->applies(&one, i == 0 ? why : reason, WHY)) {
            continue;
        }
        double cost = method->cost(&one);
        if (best == NULL || cost < least) {
            best = method;
            least = cost;
        }
    }
    return best;
}

const carry_delta_method *carry_delta_choose(const carry_delta_problem *problem) {
    char why[WHY];
    carry_delta_plan plan = {.problem = *problem};
    plan.problem.device = 0;
    return cheapest(&plan, why);
}

static carry_status choose(carry_delta_plan *plan, const char *name) {
    char why[WHY] = "this build has no method for it";
    const carry_delta_method *method;
    if (name == NULL) {
        method = cheapest(plan, why);
        if (method == NULL) {
            return carry_fail(plan->ctx, CARRY_EUNSUPPORTED, "the delta rule does not run on device %d: %s",
                              plan->problem.device, why);
        }
        use(plan, method);
        return CARRY_OK;
    }
    CARRY_TRY(find_or_fail(plan, &method, name));
    use(plan, method);
    if (!method->applies(plan, why, sizeof why)) {
        return carry_fail(plan->ctx, CARRY_EUNSUPPORTED, "%s does not apply here: %s", method->name, why);
    }
    return CARRY_OK;
}

static carry_status find_device(carry_delta_plan *plan) {
    int device = plan->problem.device;
    if (device == 0) {
        CARRY_TRY(carry_kernels_of(plan->ctx, &plan->kernels));
        plan->terms = carry_delta_terms_of(plan->ctx, &plan->problem);
        return CARRY_OK;
    }
    if (carry_backend_of(device, &plan->ordinal) == NULL) {
        return carry_fail(plan->ctx, CARRY_EDEVICE, "there is no device %d here: there are %d, the CPU being device 0",
                          device, carry_device_count());
    }
    plan->gpu.size = sizeof plan->gpu;
    return carry_device_properties_of(plan->ctx, &plan->gpu, device);
}

static void tell(carry_delta_plan *plan, bool by_name) {
    char where[128];
    if (plan->problem.device != 0) {
        (void)snprintf(where, sizeof where, "device %d (%.90s)", plan->problem.device, plan->gpu.name);
    } else {
        int threads = carry_ctx_threads(plan->ctx);
        bool terms = carry_delta_by_terms(plan);
        (void)snprintf(where, sizeof where, "%d thread%s (%s%s%s)", threads, threads == 1 ? "" : "s",
                       plan->kernels->name, terms ? ", products by " : "", terms ? plan->terms->name : "");
    }
    const carry_delta_problem *p = &plan->problem;
    double inputs = 2.0 * (double)(p->batch * p->tokens) * (double)carry_dtype_size(p->dtype) *
                    (double)(p->heads * p->key + p->value_heads * p->value);
    (void)snprintf(plan->about, sizeof plan->about,
                   "%s on %s: %s; workspace %.3g MB, backward %.3g MB (%.3g times q, k, v and do), %.3g MB kept for it",
                   plan->method->name, where, by_name ? "asked for by name" : "least work by the cost model",
                   1e-6 * (double)plan->forward_workspace, 1e-6 * (double)plan->backward_workspace,
                   inputs > 0.0 ? (double)plan->backward_workspace / inputs : 0.0, 1e-6 * (double)plan->kept);
    carry_log(plan->ctx, by_name ? CARRY_LOG_DEBUG : CARRY_LOG_INFO, "plan: %s", plan->about);
}

carry_status carry_delta_plan_new(carry_ctx *ctx, carry_delta_plan **plan, const carry_delta_problem *problem,
                                  const carry_delta_options *options) {
    carry_delta_options own;
    CARRY_SPAN(ctx, "plan", "delta");
    *plan = NULL;
    CARRY_TRY(CARRY_SIZED_READ(ctx, carry_delta_options, &own, options));
    CARRY_TRY(carry_delta_check_problem(ctx, problem));
    carry_delta_plan *made = calloc(1, sizeof *made);
    if (made == NULL) {
        return carry_fail(ctx, CARRY_EMEMORY, "out of memory: a plan");
    }
    made->ctx = ctx;
    made->problem = *problem;
    made->group = problem->value_heads / problem->heads;
    made->sequences = problem->sequences > 0 ? problem->sequences : problem->batch;
    made->scale = problem->scale != 0.0f ? problem->scale : 1.0f / sqrtf((float)problem->key);
    carry_status status = find_device(made);
    status = status == CARRY_OK ? choose(made, own.algorithm) : status;
    if (status == CARRY_OK && !made->method->workspace(made)) {
        status = carry_fail(ctx, CARRY_ESIZE, "the workspace of this problem is larger than memory can be");
    }
    if (status != CARRY_OK) {
        free(made);
        return status;
    }
    made->is_named = own.algorithm != NULL;
    tell(made, own.algorithm != NULL);
    *plan = made;
    return CARRY_OK;
}

static carry_status resize(carry_delta_plan *plan, int64_t batch, int64_t tokens, int64_t packed) {
    carry_delta_plan other = *plan;
    other.problem.batch = batch;
    other.problem.tokens = tokens;
    other.problem.sequences = packed;
    other.sequences = packed > 0 ? packed : batch;
    if (plan->problem.batch == batch && plan->problem.tokens == tokens && plan->problem.sequences == packed) {
        return CARRY_OK;
    }
    CARRY_TRY(carry_delta_check_problem(plan->ctx, &other.problem));
    if (!plan->is_named) {
        CARRY_TRY(choose(&other, NULL));
    }
    if (!other.method->workspace(&other)) {
        return carry_fail(plan->ctx, CARRY_ESIZE, "the workspace of this problem is larger than memory can be");
    }
    *plan = other;
    return CARRY_OK;
}

carry_status carry_delta_plan_resize(carry_delta_plan *plan, int64_t batch, int64_t tokens) {
    return resize(plan, batch, tokens, 0);
}

carry_status carry_delta_plan_pack(carry_delta_plan *plan, int64_t sequences, int64_t tokens) {
    return resize(plan, 1, tokens, sequences);
}

size_t carry_delta_plan_most_workspace(const carry_delta_plan *plan, int64_t batch, int64_t tokens) {
    const struct { int64_t batch, tokens, packed; } forms[] = {{1, tokens, 0}, {batch, 1, 0}, {1, tokens, batch}};
    size_t most = plan->forward_workspace;
    char why[WHY];
    const carry_delta_method *method;
    for (int i = 0; (method = carry_delta_at(plan->problem.device != 0, i)) != NULL; i++) {
        for (int form = 0; form < 3; form++) {
            carry_delta_plan one = *plan;
            use(&one, method);
            one.problem.batch = forms[form].batch;
            one.problem.tokens = forms[form].tokens;
            one.problem.sequences = forms[form].packed;
            one.sequences = forms[form].packed > 0 ? forms[form].packed : forms[form].batch;
            if (method->applies(&one, why, WHY) && method->workspace(&one)) {
                most = one.forward_workspace > most ? one.forward_workspace : most;
            }
        }
    }
    return most;
}

void carry_delta_plan_free(carry_delta_plan *plan) {
    free(plan);
}

const char *carry_delta_plan_about(const carry_delta_plan *plan) {
    return plan->about;
}

const char *carry_delta_plan_algorithm(const carry_delta_plan *plan) {
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

size_t carry_delta_kept_bytes(const carry_delta_plan *plan) {
    return plan->kept;
}

int64_t carry_delta_snapshots(const carry_delta_plan *plan) {
    const carry_delta_problem *p = &plan->problem;
    return p->snapshot_every > 0 ? (p->tokens + p->snapshot_every - 1) / p->snapshot_every : p->snapshot_last;
}

carry_status carry_delta_counted(const carry_delta_plan *plan, carry_delta_counts *counts) {
    const carry_delta_counts own = {.flops = plan->flops};
    return CARRY_SIZED_WRITE(plan->ctx, carry_delta_counts, counts, &own);
}
