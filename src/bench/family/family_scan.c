/* Scans as problems: scan:diagonal or scan:dense with sizes b, t, n, w. scan_set.h describes the inputs. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "carry/device.h"
#include "carry/scan.h"
#include "core/context.h"
#include "core/tensor.h"
#include "bench/deviation.h"
#include "bench/family/family.h"
#include "bench/family/scan_set.h"
#include "bench/timer.h"
#include "scan/wisdom.h"

typedef struct instance {
    carry_instance base;
    carry_scan_problem problem;
    bool with_h0, deep;
    int64_t chunk;
    carry_scan_set sets[CARRY_COPIES];
    carry_scan_set host; /* set 0 on the CPU; the same memory if that is the device */
    carry_scan_plan *plan;
    void *workspace;
    struct {
        double *h, *dA, *db, *dh0;
        float *h_stored; /* the states that a run would have kept, for the gradients */
        bool made;
    } reference;
} instance;

static const char takes[] =
    "diagonal or dense, f32, bf16 or f16, b, t, n, w, reversed, backward, initial (a state), deep, out=f32, "
    "algo=NAME, chunk=STEPS, device=cpu or cuda";

static carry_status parse_type(carry_ctx *ctx, instance *it, carry_problem *problem) {
    const char *out = carry_problem_setting(problem, "out");
    if (out != NULL && strcmp(out, "f32") != 0) {
        return carry_fail(ctx, CARRY_EARGUMENT, "out=%s in '%s': only out=f32 is known", out, problem->text);
    }
    it->problem.f32_result = out != NULL;
    return carry_problem_dtype(ctx, &it->problem.dtype, problem, CARRY_F16);
}

static carry_status parse_chunk(carry_ctx *ctx, instance *it, carry_problem *problem) {
    const char *chunk = carry_problem_setting(problem, "chunk");
    if (chunk == NULL) {
        return CARRY_OK;
    }
    char *end;
    long long steps = strtoll(chunk, &end, 10);
    if (*end != '\0' || steps < 1 || steps > (1ll << 40)) {
        return carry_fail(ctx, CARRY_EARGUMENT, "chunk=%s in '%s' is not a number of steps", chunk, problem->text);
    }
    it->chunk = steps;
    return CARRY_OK;
}

static carry_status parse(void *given, carry_problem *problem) {
    instance *it = given;
    carry_ctx *ctx = it->base.ctx;
    bool diagonal = carry_problem_has(problem, "diagonal");
    bool dense = carry_problem_has(problem, "dense");
    if (diagonal == dense) {
        return carry_fail(ctx, CARRY_EARGUMENT, "'%s' must say diagonal or dense, and not both", problem->text);
    }
    CARRY_TRY(parse_type(ctx, it, problem));
    CARRY_TRY(parse_chunk(ctx, it, problem));
    it->problem.kind = dense ? CARRY_SCAN_DENSE : CARRY_SCAN_DIAGONAL;
    it->problem.batch = carry_problem_size(problem, "b", 1);
    it->problem.steps = carry_problem_size(problem, "t", 1024);
    it->problem.n = carry_problem_size(problem, "n", 16);
    it->problem.width = carry_problem_size(problem, "w", 1);
    it->problem.reversed = carry_problem_has(problem, "reversed");
    it->problem.backward = carry_problem_has(problem, "backward");
    it->with_h0 = carry_problem_has(problem, "initial");
    it->deep = carry_problem_has(problem, "deep");
    const char *algorithm = carry_problem_setting(problem, "algo");
    (void)snprintf(it->base.only, sizeof it->base.only, "%s", algorithm != NULL ? algorithm : "");
    CARRY_TRY(carry_problem_device(ctx, &it->problem.device, problem));
    CARRY_TRY(carry_problem_finish(ctx, problem, takes));
    it->base.device = it->problem.device;
    if (it->deep && it->problem.dtype != CARRY_F32) {
        return carry_fail(ctx, CARRY_EARGUMENT, "deep decays are made in f32 only");
    }
    carry_scan_plan *probe; /* refuses sizes before memory is allocated */
    carry_status status = carry_scan_plan_new(
        ctx, &probe, &it->problem, &(carry_scan_options){CARRY_INIT(carry_scan_options), .algorithm = "sequential"});
    carry_scan_plan_free(probe);
    return status;
}

static void free_reference(instance *it) {
    free(it->reference.h);
    free(it->reference.dA);
    free(it->reference.db);
    free(it->reference.dh0);
    free(it->reference.h_stored);
    memset(&it->reference, 0, sizeof it->reference);
}

static void release(void *given) {
    instance *it = given;
    for (int i = 0; i < it->base.copies; i++) {
        carry_scan_set_free(it->base.ctx, &it->sets[i]);
    }
    if (it->problem.device != 0) {
        carry_scan_set_free(it->base.ctx, &it->host);
    }
    carry_scan_plan_free(it->plan);
    carry_device_free(it->base.ctx, it->problem.device, it->workspace);
    free_reference(it);
}

static carry_status make_set(void *given, int index, uint64_t seed) {
    instance *it = given;
    carry_scan_set *set = &it->sets[index];
    if (it->problem.device == 0) {
        CARRY_TRY(carry_scan_set_new(it->base.ctx, set, &it->problem, it->deep, seed));
        it->host = it->sets[0];
        return CARRY_OK;
    }
    carry_scan_set made;
    carry_status status = carry_scan_set_new(it->base.ctx, &made, &it->problem, it->deep, seed);
    status = status == CARRY_OK ? carry_scan_set_upload(it->base.ctx, set, &made, it->problem.device) : status;
    if (index == 0) {
        it->host = made;
    } else {
        carry_scan_set_free(it->base.ctx, &made);
    }
    return status;
}

static carry_status make_plan(void *given, bool measure) {
    instance *it = given;
    return carry_scan_plan_new(it->base.ctx, &it->plan, &it->problem,
                               &(carry_scan_options){CARRY_INIT(carry_scan_options),
                                                     .algorithm = carry_instance_only(it), .chunk = it->chunk,
                                                     .effort = measure ? CARRY_PLAN_MEASURE : CARRY_PLAN_ESTIMATE});
}

static double bytes_of(const instance *it) {
    const carry_scan_problem *p = &it->problem;
    double steps = (double)p->batch * (double)p->steps;
    double A =
        steps * (double)p->n * (p->kind == CARRY_SCAN_DENSE ? (double)p->n : 1.0) * (double)carry_dtype_size(p->dtype);
    double b = steps * (double)p->n * (double)p->width * (double)carry_dtype_size(p->dtype);
    double h = steps * (double)p->n * (double)p->width *
               (double)carry_dtype_size(it->problem.f32_result ? CARRY_F32 : it->problem.dtype);
    return p->backward ? 2.0 * A + 2.0 * b + h : A + b + h;
}

static double bytes(const void *given) {
    return bytes_of(given);
}

static size_t workspace_of(const instance *it) {
    return it->problem.backward ? carry_scan_backward_workspace(it->plan) : carry_scan_run_workspace(it->plan);
}

static carry_status choose(void *given, const char *method) {
    instance *it = given;
    carry_scan_plan_free(it->plan);
    carry_device_free(it->base.ctx, it->problem.device, it->workspace);
    carry_timer_reset(it->base.timer);
    it->plan = NULL;
    it->workspace = NULL;
    CARRY_TRY(carry_scan_plan_new(
        it->base.ctx, &it->plan, &it->problem,
        &(carry_scan_options){CARRY_INIT(carry_scan_options), .algorithm = method, .chunk = it->chunk}));
    if (carry_device_alloc(it->base.ctx, &it->workspace, it->problem.device, workspace_of(it)) != CARRY_OK) {
        return carry_fail(it->base.ctx, CARRY_EUNSUPPORTED, "%s needs %.3g GB of workspace, which cannot be allocated",
                          carry_scan_plan_algorithm(it->plan), 1e-9 * (double)workspace_of(it));
    }
    return CARRY_OK;
}

static const char *chosen(const void *given) {
    return carry_scan_plan_algorithm(((const instance *)given)->plan);
}

static const char *about_plan(const void *given) {
    return carry_scan_plan_about(((const instance *)given)->plan);
}

static carry_status run_set(instance *it, carry_scan_set *s) {
    const carry_tensor h0 = it->with_h0 ? s->h0 : (carry_tensor){0};
    size_t workspace = workspace_of(it);
    if (!it->problem.backward) {
        return carry_scan_run(it->plan, &(carry_scan_args){.h = s->h, .A = s->A, .b = s->b, .h0 = h0}, it->workspace,
                              workspace);
    }
    return carry_scan_backward(
        it->plan,
        &(carry_scan_backward_args){.db = s->h, .dA = s->dA, .dh0 = s->dh0, .A = s->A, .h = s->b, .dh = s->g, .h0 = h0},
        it->workspace, workspace);
}

static carry_status run(void *given) {
    instance *it = given;
    it->base.current = (it->base.current + 1) % it->base.copies;
    return run_set(it, &it->sets[it->base.current]);
}

static carry_status time_run(void *given, double *seconds) {
    return carry_timer_time(((carry_instance *)given)->timer, seconds, run, given);
}

static carry_counts counts(const void *given) {
    const instance *it = given;
    carry_scan_counts done = {CARRY_INIT(carry_scan_counts)};
    (void)carry_scan_counted(it->plan, &done);
    return (carry_counts){
        .flops = done.flops, .bytes = bytes_of(it), .products = done.products, .workspace = (double)workspace_of(it)};
}

/* Rounding of f32 sums, u = 2^-24: one step adds at most (k + 2) u of |A| |h| + |b|, where k is the length of its
   sum (n for dense, 1 for diagonal), |A| |h| <= 0.4 sqrt(n) |h| for these dense inputs and <= |h| for diagonal ones.
   A step shrinks earlier errors by 0.9 on average, so about 32 steps count. A tree adds the errors of two steps per
   level. The method "matmul_log" works on sums of logarithms up to 80, whose rounding is coarser by that factor.
   Rounding to the result's type adds up to half its spacing. */
static double forward_bound(const instance *it) {
    const carry_scan_problem *p = &it->problem;
    bool dense = p->kind == CARRY_SCAN_DENSE;
    double length = dense ? (double)p->n + 2.0 : 3.0;
    double spread = dense ? fmax(1.0, 0.4 * sqrt((double)p->n)) : 1.0;
    double steps = fmin((double)p->steps, 32.0) + 2.0 * log2((double)p->steps);
    double sums = 0x1p-24 * length * spread * steps;
    if (strcmp(carry_scan_plan_algorithm(it->plan), "matmul_log") == 0) {
        sums *= 80.0;
    }
    if (p->device != 0 && dense) { /* a GPU keeps the products of the levels in the problem's own type */
        sums += p->dtype != CARRY_F32 ? carry_unit_roundoff(p->dtype) * 2.0 * log2((double)p->steps + 1.0) : 0.0;
    }
    return sums + carry_unit_roundoff(it->host.h.dtype);
}

/* The float64 results for set 0, computed once. */
static carry_status make_reference(instance *it) {
    carry_scan_problem on_cpu = it->problem;
    const carry_scan_problem *p = &on_cpu;
    on_cpu.device = 0;
    carry_scan_set *s = &it->host;
    const carry_tensor h0 = it->with_h0 ? s->h0 : (carry_tensor){0};
    size_t steps = (size_t)(p->batch * p->steps);
    size_t b_size = (size_t)(p->n * p->width);
    size_t A_size = (size_t)(p->kind == CARRY_SCAN_DENSE ? p->n * p->n : p->n);
    if (it->reference.made) {
        return CARRY_OK;
    }
    free_reference(it);
    it->reference.h = calloc(steps * b_size, sizeof(double));
    it->reference.h_stored = calloc(steps * b_size, sizeof(float));
    it->reference.db = calloc(p->backward ? steps * b_size : 1, sizeof(double));
    it->reference.dA = calloc(p->backward ? steps * A_size : 1, sizeof(double));
    it->reference.dh0 = calloc(p->backward ? (size_t)p->batch * b_size : 1, sizeof(double));
    if (it->reference.h == NULL || it->reference.h_stored == NULL || it->reference.db == NULL ||
        it->reference.dA == NULL || it->reference.dh0 == NULL) {
        return carry_fail(it->base.ctx, CARRY_EMEMORY, "out of memory: the float64 reference (%.3g GB)",
                          8e-9 * (double)(steps * (b_size + A_size)));
    }
    CARRY_TRY(
        carry_scan_reference(it->base.ctx, it->reference.h, p, &(carry_scan_args){.A = s->A, .b = s->b, .h0 = h0}));
    for (size_t i = 0; i < steps * b_size; i++) {
        it->reference.h_stored[i] = (float)it->reference.h[i];
    }
    if (p->backward) {
        CARRY_TRY(carry_scan_reference_backward(it->base.ctx, it->reference.dA, it->reference.db, it->reference.dh0, p,
                                                &(carry_scan_backward_args){.A = s->A, .dh = s->g, .h0 = h0},
                                                it->reference.h));
    }
    it->reference.made = true;
    return CARRY_OK;
}

static carry_status wait_for(const instance *it) {
    int device = it->problem.device;
    return device != 0 ? carry_stream_wait(it->base.ctx, device, carry_ctx_stream(it->base.ctx, device)) : CARRY_OK;
}

static carry_status run_backward(instance *it, carry_tensor h) {
    carry_scan_set *s = &it->sets[0];
    CARRY_TRY(carry_scan_backward(it->plan,
                                  &(carry_scan_backward_args){.db = s->h,
                                                              .dA = s->dA,
                                                              .dh0 = s->dh0,
                                                              .A = s->A,
                                                              .dh = s->g,
                                                              .h = h,
                                                              .h0 = it->with_h0 ? s->h0 : (carry_tensor){0}},
                                  it->workspace, workspace_of(it)));
    return wait_for(it);
}

/* Runs backward with the reference's states, on the problem's device. */
static carry_status run_backward_from_reference(instance *it) {
    carry_tensor h = carry_view(it->reference.h_stored, CARRY_F32, 4, it->host.b.shape);
    if (it->problem.device == 0) {
        return run_backward(it, h);
    }
    size_t bytes = (size_t)carry_tensor_count(&h) * sizeof(float);
    h.device = it->problem.device;
    CARRY_TRY(carry_device_alloc(it->base.ctx, &h.data, h.device, bytes));
    carry_status status = carry_device_copy(it->base.ctx, h.data, h.device, it->reference.h_stored, 0, bytes, NULL);
    status = status == CARRY_OK ? carry_stream_wait(it->base.ctx, h.device, NULL) : status;
    status = status == CARRY_OK ? run_backward(it, h) : status;
    carry_device_free(it->base.ctx, h.device, h.data);
    return status;
}

/* An element of dA is a sum of w products of a gradient and a state, w being the problem's width. Both factors have
   errors of their own; cancellation adds a factor of about sqrt(w). */
static void compare_backward(instance *it, carry_deviation *deviations, int *count) {
    carry_scan_set *s = &it->host;
    double bound = forward_bound(it);
    double width = (double)it->problem.width;
    deviations[0] = carry_deviation_of("db", &s->h, it->reference.db, bound);
    deviations[1] =
        carry_deviation_of("dA", &s->dA, it->reference.dA, 2.0 * sqrt(width) * (bound + 0x1p-24 * (width + 2.0)));
    deviations[2] = carry_deviation_of("dh0", &s->dh0, it->reference.dh0, 4.0 * bound);
    *count = 3;
}

static carry_status compare(void *given, carry_deviation deviations[CARRY_DEVIATIONS], int *count) {
    instance *it = given;
    *count = 0;
    CARRY_TRY(make_reference(it));
    CARRY_TRY(carry_scan_set_poison(it->base.ctx, &it->sets[0], &it->host));
    if (it->problem.backward) {
        CARRY_TRY(run_backward_from_reference(it));
        CARRY_TRY(carry_scan_set_download(it->base.ctx, &it->host, &it->sets[0]));
        compare_backward(it, deviations, count);
        return CARRY_OK;
    }
    CARRY_TRY(run_set(it, &it->sets[0]));
    CARRY_TRY(wait_for(it));
    CARRY_TRY(carry_scan_set_download(it->base.ctx, &it->host, &it->sets[0]));
    deviations[0] = carry_deviation_of("h", &it->host.h, it->reference.h, forward_bound(it));
    *count = 1;
    return CARRY_OK;
}

/* The methods of the CPU and, if there is a GPU, the one that only it has. */
static const char *method(int index) {
    int count = 0;
    while (carry_scan_name(0, count) != NULL) {
        count++;
    }
    if (index < count) {
        return carry_scan_name(0, index);
    }
    return index == count && carry_scan_name(1, 0) != NULL && carry_device_count() > 1 ? "lookback" : NULL;
}

static carry_status remember(void *given, double seconds, int threads) {
    const instance *it = given;
    char key[CARRY_SCAN_KEY];
    return carry_wisdom_remember_tuned(it->base.ctx, carry_scan_key(key, &it->problem),
                                       carry_scan_plan_algorithm(it->plan), it->plan->chunk, threads, seconds);
}

const carry_family carry_family_scan = {
    .name = "scan",
    .about = "h[t] = A[t] h[t-1] + b[t]; A diagonal or dense n x n, h and b n x w",
    .takes = takes,
    .example = "scan:dense:f32:t1024:n32:w1",
    .support = {.cpu = "f32 bf16 f16",
                .cuda = "f32 bf16 f16",
                .cpu_backward = "f32 bf16 f16",
                .cuda_backward = "f32 bf16 f16"},
    .instance_bytes = sizeof(instance),
    .parse = parse,
    .make_set = make_set,
    .make_plan = make_plan,
    .release = release,
    .bytes = bytes,
    .method = method,
    .choose = choose,
    .chosen = chosen,
    .about_plan = about_plan,
    .only = carry_instance_only,
    .run = run,
    .time = time_run,
    .device = carry_instance_device,
    .counts = counts,
    .compare = compare,
    .remember = remember,
};
