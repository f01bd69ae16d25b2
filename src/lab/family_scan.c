/* Scans as problems: scan:diagonal or scan:dense, sizes b, t, n, w.

   Inputs are experiment 044's: decays uniform in [0.8, 1], b = 0.1 normal. Dense transitions are uniform in
   +-0.78/sqrt(n), whose spectral norm comes to about 0.9. `deep` draws decays from e^-40 to 1 with every eighth exactly
   zero. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "carry/scan.h"
#include "core/context.h"
#include "core/memory.h"
#include "lab/deviation.h"
#include "lab/family.h"

#define DENSE_SPREAD 0.78f
#define MAX_COPIES 64

typedef struct set {
    carry_tensor A, b, h, h0;
    carry_tensor g, dA, dh0; /* backward only; db goes to h */
} set;

typedef struct instance {
    carry_ctx *ctx;
    carry_scan_problem problem;
    bool with_h0, deep;
    char only[CARRY_PROBLEM_WORD];
    int64_t chunk;
    int copies, current;
    set sets[MAX_COPIES];
    carry_scan_plan *plan;
    void *workspace;
    struct {
        double *h, *dA, *db, *dh0;
        float *h_stored; /* what a run would have kept, for the gradients */
        bool made;
    } reference;
} instance;

static const char takes[] =
    "diagonal or dense, f32, bf16 or f16, b, t, n, w, reversed, backward, initial (a state), deep, out=f32, "
    "algo=NAME, chunk=STEPS, device=cpu";

static carry_status parse_type(carry_ctx *ctx, instance *it, carry_problem *problem) {
    int types = 0;
    it->problem.dtype = CARRY_F32;
    for (carry_dtype dtype = CARRY_F32; dtype <= CARRY_F16; dtype++) {
        if (carry_problem_has(problem, carry_dtype_name(dtype))) {
            it->problem.dtype = dtype;
            types++;
        }
    }
    const char *out = carry_problem_setting(problem, "out");
    if (out != NULL && strcmp(out, "f32") != 0) {
        return carry_fail(ctx, CARRY_EARGUMENT, "out=%s in '%s': only out=f32 is known", out, problem->text);
    }
    it->problem.f32_result = out != NULL;
    return types <= 1 ? CARRY_OK
                      : carry_fail(ctx, CARRY_EARGUMENT, "'%s' names more than one element type", problem->text);
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

static carry_status parse(carry_ctx *ctx, instance *it, carry_problem *problem) {
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
    (void)snprintf(it->only, sizeof it->only, "%s", algorithm != NULL ? algorithm : "");
    const char *device = carry_problem_setting(problem, "device");
    if (device != NULL && strcmp(device, "cpu") != 0) {
        return carry_fail(ctx, CARRY_EUNSUPPORTED, "device=%s in '%s': scans run on cpu in this build", device,
                          problem->text);
    }
    return carry_problem_finish(ctx, problem, takes);
}

static carry_status make(instance *it, carry_tensor *tensor, carry_dtype dtype, int rank, const int64_t *shape) {
    size_t bytes;
    if (!carry_size_product(&bytes, shape, rank, carry_dtype_size(dtype))) {
        return carry_fail(it->ctx, CARRY_ESIZE, "the problem is larger than memory can be: reduce b, t, n or w");
    }
    *tensor = carry_view(carry_aligned_new(bytes), dtype, rank, shape);
    if (tensor->data == NULL) {
        return carry_fail(it->ctx, CARRY_EMEMORY, "%.3g GB of memory could not be had: reduce b, t, n or w",
                          1e-9 * (double)bytes);
    }
    return CARRY_OK;
}

/* u in [0, 1) becomes e^(-40 u), and 0 in the last eighth. */
static void deepen(carry_tensor *A, int64_t count) {
    float *a = A->data;
    for (int64_t i = 0; i < count; i++) {
        a[i] = a[i] < 0.875f ? expf(-40.0f * a[i] / 0.875f) : 0.0f;
    }
}

static carry_status fill_A(instance *it, carry_tensor *A, uint64_t seed, uint64_t stream) {
    const carry_scan_problem *p = &it->problem;
    if (p->kind == CARRY_SCAN_DENSE) {
        float spread = DENSE_SPREAD / sqrtf((float)p->n);
        return carry_random_uniform(it->ctx, *A, seed, stream, -spread, spread);
    }
    if (!it->deep) {
        return carry_random_uniform(it->ctx, *A, seed, stream, 0.8f, 1.0f);
    }
    CARRY_TRY(carry_random_uniform(it->ctx, *A, seed, stream, 0.0f, 1.0f));
    deepen(A, p->batch * p->steps * p->n);
    return CARRY_OK;
}

static carry_status make_set(instance *it, set *s, uint64_t seed) {
    const carry_scan_problem *p = &it->problem;
    const int64_t A_shape[] = {p->batch, p->steps, p->n, p->n};
    const int64_t b_shape[] = {p->batch, p->steps, p->n, p->width};
    const int64_t state_shape[] = {p->batch, p->n, p->width};
    int A_rank = p->kind == CARRY_SCAN_DENSE ? 4 : 3;
    CARRY_TRY(make(it, &s->A, p->dtype, A_rank, A_shape));
    CARRY_TRY(make(it, &s->b, p->dtype, 4, b_shape));
    CARRY_TRY(make(it, &s->h, p->f32_result ? CARRY_F32 : p->dtype, 4, b_shape));
    CARRY_TRY(make(it, &s->h0, p->dtype, 3, state_shape));
    CARRY_TRY(fill_A(it, &s->A, seed, 0));
    CARRY_TRY(carry_random_normal(it->ctx, s->b, seed, 1, 0.0f, 0.1f));
    CARRY_TRY(carry_random_normal(it->ctx, s->h0, seed, 2, 0.0f, 1.0f));
    memset(s->h.data, 0, (size_t)(p->batch * p->steps * p->n * p->width) * carry_dtype_size(s->h.dtype));
    if (p->backward) {
        CARRY_TRY(make(it, &s->g, p->dtype, 4, b_shape));
        CARRY_TRY(make(it, &s->dA, p->f32_result ? CARRY_F32 : p->dtype, A_rank, A_shape));
        CARRY_TRY(make(it, &s->dh0, p->f32_result ? CARRY_F32 : p->dtype, 3, state_shape));
        CARRY_TRY(carry_random_normal(it->ctx, s->g, seed, 3, 0.0f, 0.1f));
    }
    return CARRY_OK;
}

static void free_reference(instance *it) {
    free(it->reference.h);
    free(it->reference.dA);
    free(it->reference.db);
    free(it->reference.dh0);
    free(it->reference.h_stored);
    memset(&it->reference, 0, sizeof it->reference);
}

static void close_instance(void *given) {
    instance *it = given;
    for (int i = 0; i < it->copies; i++) {
        set *s = &it->sets[i];
        void *const all[] = {s->A.data, s->b.data, s->h.data, s->h0.data, s->g.data, s->dA.data, s->dh0.data};
        for (size_t j = 0; j < sizeof all / sizeof all[0]; j++) {
            free(all[j]);
        }
    }
    carry_scan_plan_free(it->plan);
    free(it->workspace);
    free_reference(it);
    free(it);
}

static carry_status open_instance(carry_ctx *ctx, void **opened, carry_problem *problem, uint64_t seed, int copies) {
    instance *it = calloc(1, sizeof *it);
    *opened = NULL;
    if (it == NULL) {
        return carry_fail(ctx, CARRY_EMEMORY, "no memory for a problem");
    }
    it->ctx = ctx;
    carry_status status = parse(ctx, it, problem);
    if (status == CARRY_OK && it->deep && it->problem.dtype != CARRY_F32) {
        status = carry_fail(ctx, CARRY_EARGUMENT, "deep decays are made in f32 only");
    }
    if (status == CARRY_OK) { /* refuses sizes before memory is asked for */
        carry_scan_plan *probe;
        status = carry_scan_plan_new(ctx, &probe, &it->problem, &(carry_scan_plan_options){.algorithm = "sequential"});
        carry_scan_plan_free(probe);
    }
    for (int i = 0; status == CARRY_OK && i < copies && i < MAX_COPIES; i++) {
        it->copies = i + 1;
        status = make_set(it, &it->sets[i], seed + (uint64_t)i);
    }
    if (status != CARRY_OK) {
        close_instance(it);
        return status;
    }
    *opened = it;
    return CARRY_OK;
}

static carry_status plan_instance(carry_ctx *ctx, void **opened, carry_problem *problem, bool measure) {
    CARRY_TRY(open_instance(ctx, opened, problem, 0, 0));
    instance *it = *opened;
    carry_status status =
        carry_scan_plan_new(ctx, &it->plan, &it->problem,
                            &(carry_scan_plan_options){.algorithm = it->only[0] != '\0' ? it->only : NULL,
                                                       .chunk = it->chunk,
                                                       .effort = measure ? CARRY_PLAN_MEASURE : CARRY_PLAN_ESTIMATE});
    if (status != CARRY_OK) {
        close_instance(it);
        *opened = NULL;
    }
    return status;
}

static double bytes_of(const instance *it) {
    const carry_scan_problem *p = &it->problem;
    double steps = (double)p->batch * (double)p->steps;
    double A =
        steps * (double)p->n * (p->kind == CARRY_SCAN_DENSE ? (double)p->n : 1.0) * (double)carry_dtype_size(p->dtype);
    double b = steps * (double)p->n * (double)p->width * (double)carry_dtype_size(p->dtype);
    double h = steps * (double)p->n * (double)p->width * (double)carry_dtype_size(it->sets[0].h.dtype);
    return p->backward ? 2.0 * A + 2.0 * b + h : A + b + h;
}

static double bytes(const void *given) {
    return bytes_of(given);
}

static carry_status choose(void *given, const char *method) {
    instance *it = given;
    carry_scan_plan_free(it->plan);
    free(it->workspace);
    it->plan = NULL;
    it->workspace = NULL;
    CARRY_TRY(carry_scan_plan_new(it->ctx, &it->plan, &it->problem,
                                  &(carry_scan_plan_options){.algorithm = method, .chunk = it->chunk}));
    it->workspace = carry_aligned_new(carry_scan_workspace(it->plan));
    if (it->workspace == NULL) {
        return carry_fail(it->ctx, CARRY_EUNSUPPORTED, "%s needs %.3g GB of workspace, which could not be had",
                          carry_scan_plan_algorithm(it->plan), 1e-9 * (double)carry_scan_workspace(it->plan));
    }
    return CARRY_OK;
}

static const char *chosen(const void *given) {
    return carry_scan_plan_algorithm(((const instance *)given)->plan);
}

static const char *about_plan(const void *given) {
    return carry_scan_plan_about(((const instance *)given)->plan);
}

static const char *only(const void *given) {
    const instance *it = given;
    return it->only[0] != '\0' ? it->only : NULL;
}

static carry_status run_set(instance *it, set *s) {
    const carry_tensor *h0 = it->with_h0 ? &s->h0 : NULL;
    size_t workspace = carry_scan_workspace(it->plan);
    if (!it->problem.backward) {
        return carry_scan_run(it->plan, s->h, s->A, s->b, h0, it->workspace, workspace);
    }
    return carry_scan_backward(
        it->plan,
        &(carry_scan_gradients){.db = s->h, .dA = &s->dA, .dh0 = &s->dh0, .A = s->A, .h = s->b, .g = s->g, .h0 = h0},
        it->workspace, workspace);
}

static carry_status run(void *given) {
    instance *it = given;
    it->current = (it->current + 1) % it->copies;
    return run_set(it, &it->sets[it->current]);
}

static carry_counts counts(const void *given) {
    const instance *it = given;
    return (carry_counts){.flops = carry_scan_flops(it->plan),
                          .bytes = bytes_of(it),
                          .products = carry_scan_products(it->plan),
                          .workspace = (double)carry_scan_workspace(it->plan)};
}

/* Rounding of f32 sums, u = 2^-24: one step adds at most (k + 2) u of |A| |h| + |b|, k the length of its sum (n dense,
   1 diagonal), where |A| |h| <= 0.4 sqrt(n) |h| for these dense inputs and <= |h| for diagonal ones. Contraction
   forgets: by 0.9 a step on average, so about 32 steps count. A tree adds two roundings of k + 2 a level. The log form
   works on sums of logarithms up to 80, whose rounding is that much coarser. The result's own type adds half its
   spacing. */
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
    return sums + carry_unit_roundoff(it->sets[0].h.dtype);
}

/* The float64 results for set 0, made once. */
static carry_status make_reference(instance *it) {
    const carry_scan_problem *p = &it->problem;
    set *s = &it->sets[0];
    const carry_tensor *h0 = it->with_h0 ? &s->h0 : NULL;
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
        return carry_fail(it->ctx, CARRY_EMEMORY, "no memory for the float64 reference (%.3g GB)",
                          8e-9 * (double)(steps * (b_size + A_size)));
    }
    CARRY_TRY(carry_scan_reference(it->ctx, it->reference.h, p, s->A, s->b, h0));
    for (size_t i = 0; i < steps * b_size; i++) {
        it->reference.h_stored[i] = (float)it->reference.h[i];
    }
    if (p->backward) {
        CARRY_TRY(carry_scan_reference_backward(it->ctx, it->reference.dA, it->reference.db, it->reference.dh0, p, s->A,
                                                it->reference.h, s->g, h0));
    }
    it->reference.made = true;
    return CARRY_OK;
}

/* dA sums w products of a gradient and a state, each with its own rounding; cancellation costs about sqrt(w). */
static carry_status compare_backward(instance *it, carry_deviation *deviations, int *count) {
    set *s = &it->sets[0];
    carry_poison(&s->h);
    carry_poison(&s->dA);
    carry_poison(&s->dh0);
    CARRY_TRY(
        carry_scan_backward(it->plan,
                            &(carry_scan_gradients){.db = s->h,
                                                    .dA = &s->dA,
                                                    .dh0 = &s->dh0,
                                                    .A = s->A,
                                                    .g = s->g,
                                                    .h = carry_view(it->reference.h_stored, CARRY_F32, 4, s->b.shape),
                                                    .h0 = it->with_h0 ? &s->h0 : NULL},
                            it->workspace, carry_scan_workspace(it->plan)));
    double bound = forward_bound(it);
    double width = (double)it->problem.width;
    deviations[0] = carry_deviation_of("db", &s->h, it->reference.db, bound);
    deviations[1] =
        carry_deviation_of("dA", &s->dA, it->reference.dA, 2.0 * sqrt(width) * (bound + 0x1p-24 * (width + 2.0)));
    deviations[2] = carry_deviation_of("dh0", &s->dh0, it->reference.dh0, 4.0 * bound);
    *count = 3;
    return CARRY_OK;
}

static carry_status compare(void *given, carry_deviation deviations[CARRY_DEVIATIONS], int *count) {
    instance *it = given;
    *count = 0;
    CARRY_TRY(make_reference(it));
    if (it->problem.backward) {
        return compare_backward(it, deviations, count);
    }
    carry_poison(&it->sets[0].h);
    CARRY_TRY(run_set(it, &it->sets[0]));
    deviations[0] = carry_deviation_of("h", &it->sets[0].h, it->reference.h, forward_bound(it));
    *count = 1;
    return CARRY_OK;
}

const carry_family carry_family_scan = {
    .name = "scan",
    .about = "h[t] = A[t] h[t-1] + b[t]; A diagonal or dense n x n, h and b n x w",
    .takes = takes,
    .example = "scan:dense:f32:t1024:n32:w1",
    .open = open_instance,
    .plan = plan_instance,
    .close = close_instance,
    .bytes = bytes,
    .method = carry_scan_name,
    .choose = choose,
    .chosen = chosen,
    .about_plan = about_plan,
    .only = only,
    .run = run,
    .counts = counts,
    .compare = compare,
};
