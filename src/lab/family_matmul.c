/* Batches of small products as problems: every set of kernels this processor can run, and a loop of OpenBLAS calls, all
   split over threads by the same code. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/context.h"
#include "core/memory.h"
#include "lab/deviation.h"
#include "lab/family.h"
#include "ops/kernels.h"
#include "ops/matmul.h"

#define MAX_COPIES 64

typedef struct instance {
    carry_ctx *ctx;
    carry_product shape;
    char only[CARRY_PROBLEM_WORD];
    int copies, current;
    carry_tensor a[MAX_COPIES], b[MAX_COPIES], c[MAX_COPIES];
    double *reference; /* for set 0 */
    carry_product_function function;
    char name[24];
    char about[96];
} instance;

static const char takes[] = "f32, b (how many), m, n, k (m and k are n unless given), algo=NAME";

static const char *method(int index) {
    const carry_kernels *kernels = carry_kernels_at(index);
    if (kernels != NULL) {
        return kernels->name;
    }
    return carry_kernels_at(index - 1) != NULL && carry_blas_product != NULL ? "openblas" : NULL;
}

static carry_status parse(carry_ctx *ctx, instance *it, carry_problem *problem) {
    (void)carry_problem_has(problem, "f32");
    carry_product *s = &it->shape;
    s->count = carry_problem_size(problem, "b", 1);
    s->n = carry_problem_size(problem, "n", 32);
    s->m = carry_problem_size(problem, "m", s->n);
    s->k = carry_problem_size(problem, "k", s->n);
    const char *algorithm = carry_problem_setting(problem, "algo");
    (void)snprintf(it->only, sizeof it->only, "%s", algorithm != NULL ? algorithm : "");
    CARRY_TRY(carry_problem_finish(ctx, problem, takes));
    const int64_t all[] = {s->count, s->m, s->n, s->k};
    size_t flops;
    if (!carry_size_product(&flops, all, 4, 8)) {
        return carry_fail(ctx, CARRY_ESIZE, "'%s' has sizes that multiply to more than memory can be", problem->text);
    }
    s->a_row = s->k;
    s->b_row = s->c_row = s->n;
    s->a_next = s->m * s->k;
    s->b_next = s->k * s->n;
    s->c_next = s->m * s->n;
    return CARRY_OK;
}

static carry_status make(instance *it, carry_tensor *tensor, int64_t rows, int64_t columns, uint64_t seed,
                         uint64_t stream) {
    size_t bytes = (size_t)(it->shape.count * rows * columns) * sizeof(float);
    *tensor = carry_view_3d(carry_aligned_new(bytes), CARRY_F32, it->shape.count, rows, columns);
    if (tensor->data == NULL) {
        return carry_fail(it->ctx, CARRY_EMEMORY, "%.3g GB of memory could not be had: reduce b, m, n or k",
                          1e-9 * (double)bytes);
    }
    return carry_random_uniform(it->ctx, *tensor, seed, stream, -1.0f, 1.0f);
}

static void close_instance(void *given) {
    instance *it = given;
    for (int i = 0; i < it->copies; i++) {
        free(it->a[i].data);
        free(it->b[i].data);
        free(it->c[i].data);
    }
    free(it->reference);
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
    for (int i = 0; status == CARRY_OK && i < copies && i < MAX_COPIES; i++) {
        it->copies = i + 1;
        uint64_t s = seed + (uint64_t)i;
        status = make(it, &it->a[i], it->shape.m, it->shape.k, s, 0);
        status = status == CARRY_OK ? make(it, &it->b[i], it->shape.k, it->shape.n, s, 1) : status;
        status = status == CARRY_OK ? make(it, &it->c[i], it->shape.m, it->shape.n, s, 2) : status;
    }
    if (status != CARRY_OK) {
        close_instance(it);
        return status;
    }
    *opened = it;
    return CARRY_OK;
}

static double bytes_of(const instance *it) {
    const carry_product *s = &it->shape;
    return 4.0 * (double)s->count * (double)(s->m * s->k + s->k * s->n + s->m * s->n);
}

static double bytes(const void *given) {
    return bytes_of(given);
}

static carry_status choose(void *given, const char *wanted) {
    instance *it = given;
    const carry_kernels *kernels;
    CARRY_TRY(carry_kernels_of(it->ctx, &kernels));
    if (wanted == NULL && carry_products_choice(it->ctx, kernels, &it->shape) != kernels->product) {
        wanted = "openblas";
    }
    if (wanted != NULL && strcmp(wanted, "openblas") == 0 && carry_blas_product != NULL) {
        it->function = carry_blas_product;
        (void)snprintf(it->name, sizeof it->name, "openblas");
        (void)snprintf(it->about, sizeof it->about, "a loop of cblas_sgemm");
        return CARRY_OK;
    }
    for (int i = 0; wanted != NULL; i++) {
        kernels = carry_kernels_at(i);
        if (kernels == NULL) {
            return carry_fail(it->ctx, CARRY_ENOTFOUND, "there is no product '%s' in this build", wanted);
        }
        if (strcmp(kernels->name, wanted) == 0) {
            break;
        }
    }
    if (!kernels->usable()) {
        return carry_fail(it->ctx, CARRY_EUNSUPPORTED, "this processor cannot run %s", kernels->name);
    }
    it->function = kernels->product;
    (void)snprintf(it->name, sizeof it->name, "%s", kernels->name);
    (void)snprintf(it->about, sizeof it->about, "%s: %s", kernels->name, kernels->about);
    return CARRY_OK;
}

static const char *chosen(const void *given) {
    return ((const instance *)given)->name;
}

static const char *about_plan(const void *given) {
    return ((const instance *)given)->about;
}

static const char *only(const void *given) {
    const instance *it = given;
    return it->only[0] != '\0' ? it->only : NULL;
}

static void run_on(instance *it, int at) {
    carry_product p = it->shape;
    p.a = it->a[at].data;
    p.b = it->b[at].data;
    p.c = it->c[at].data;
    carry_products_by(it->ctx, it->function, &p);
}

static carry_status run(void *given) {
    instance *it = given;
    it->current = (it->current + 1) % it->copies;
    run_on(it, it->current);
    return CARRY_OK;
}

static carry_counts counts(const void *given) {
    const instance *it = given;
    const carry_product *s = &it->shape;
    return (carry_counts){.flops = 2.0 * (double)s->count * (double)s->m * (double)s->n * (double)s->k,
                          .bytes = bytes_of(it),
                          .products = s->count};
}

static carry_status make_reference(instance *it) {
    const carry_product *s = &it->shape;
    if (it->reference != NULL) {
        return CARRY_OK;
    }
    it->reference = calloc((size_t)(s->count * s->m * s->n), sizeof *it->reference);
    if (it->reference == NULL) {
        return carry_fail(it->ctx, CARRY_EMEMORY, "no memory for the float64 reference");
    }
    const float *a = it->a[0].data;
    const float *b = it->b[0].data;
    for (int64_t row = 0; row < s->count * s->m; row++) {
        double *to = it->reference + row * s->n;
        for (int64_t l = 0; l < s->k; l++) {
            const float *from = b + row / s->m * s->b_next + l * s->n;
            for (int64_t j = 0; j < s->n; j++) {
                to[j] += (double)a[row * s->k + l] * (double)from[j];
            }
        }
    }
    return CARRY_OK;
}

/* A sum of k products rounds at most k times: k u |a| |b|, and |a| |b| is at most sqrt(k) times what is left of it. */
static carry_status compare(void *given, carry_deviation deviations[CARRY_DEVIATIONS], int *count) {
    instance *it = given;
    CARRY_TRY(make_reference(it));
    carry_poison(&it->c[0]);
    run_on(it, 0);
    double k = (double)it->shape.k;
    deviations[0] = carry_deviation_of("c", &it->c[0], it->reference, 0x1p-24 * (k + 1.0) * sqrt(k));
    *count = 1;
    return CARRY_OK;
}

static carry_status plan_instance(carry_ctx *ctx, void **opened, carry_problem *problem, bool measure) {
    if (measure) {
        carry_log(ctx, CARRY_LOG_WARNING,
                  "nothing is measured for '%s': products are chosen by size (carry list rates)", problem->text);
    }
    CARRY_TRY(open_instance(ctx, opened, problem, 0, 0));
    carry_status status = choose(*opened, only(*opened));
    if (status != CARRY_OK) {
        close_instance(*opened);
        *opened = NULL;
    }
    return status;
}

const carry_family carry_family_matmul = {
    .name = "matmul",
    .about = "c[i] = a[i] b[i] for a batch of small matrices",
    .takes = takes,
    .example = "matmul:f32:b4096:n32",
    .open = open_instance,
    .plan = plan_instance,
    .close = close_instance,
    .bytes = bytes,
    .method = method,
    .choose = choose,
    .chosen = chosen,
    .about_plan = about_plan,
    .only = only,
    .run = run,
    .counts = counts,
    .compare = compare,
};
