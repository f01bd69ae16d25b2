/* Batches of small products as problems: every set of kernels this processor can run, and a loop of OpenBLAS calls, all
   split over threads by the same code; on a GPU, every way of its table of operators. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "carry/device.h"
#include "core/clock.h"
#include "core/context.h"
#include "core/memory.h"
#include "core/tensor.h"
#include "core/threads.h"
#include "bench/deviation.h"
#include "bench/family/family.h"
#include "bench/timer.h"
#include "ops/table.h"
#include "ops/product/bf16.h"
#include "ops/kernels/kernels.h"
#include "ops/product/matmul.h"
#include "ops/product/packed.h"
#include "ops/product/rates.h"
#include "scan/wisdom.h"

#define MAX_COPIES 64

typedef struct instance {
    carry_ctx *ctx;
    carry_product shape;
    int device;
    carry_dtype dtype; /* of a and b; c is f32 */
    char only[CARRY_PROBLEM_WORD];
    int copies, current;
    carry_tensor a[MAX_COPIES], b[MAX_COPIES], c[MAX_COPIES]; /* on the device */
    carry_tensor a0, b0, c0;                                  /* set 0 on the CPU */
    double *reference;                                        /* for set 0 */
    carry_timer *timer;                                       /* of a GPU, else NULL */
    carry_product_function function;                          /* on the CPU */
    const carry_kernels *kernels;                             /* of 16 bits on the CPU: */
    const carry_bf16 *bf16;                                   /* NULL: widened to f32 */
    const char *way;                                          /* on a GPU */
    char name[24];
    char about[384];
} instance;

static const char takes[] = "f32, bf16, f16, b (how many), m, n, k (m and k are n unless given), "
                            "algo=NAME, device=cpu or cuda";

/* Sets of kernels, OpenBLAS, products of bf16 but the emulated ones, ways of GPUs. */
static const char *method(int index) {
    for (int i = 0; carry_kernels_at(i) != NULL; i++) {
        if (index-- == 0) {
            return carry_kernels_at(i)->name;
        }
    }
    if (carry_blas_product != NULL && index-- == 0) {
        return "openblas";
    }
    for (int i = 0; carry_bf16_at(i) != NULL; i++) {
        if (!carry_bf16_at(i)->emulated && index-- == 0) {
            return carry_bf16_at(i)->name;
        }
    }
    return carry_device_way(index);
}

static carry_status parse(carry_ctx *ctx, instance *it, carry_problem *problem) {
    it->dtype = carry_problem_has(problem, "bf16")  ? CARRY_BF16
                : carry_problem_has(problem, "f16") ? CARRY_F16
                                                    : CARRY_F32;
    (void)carry_problem_has(problem, "f32");
    CARRY_TRY(carry_problem_device(ctx, &it->device, problem));
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

/* Random on the CPU, and copied when the device is another one; `kept` gets the CPU's copy, or NULL frees it. */
static carry_status make(instance *it, carry_tensor *tensor, carry_tensor *kept, carry_dtype dtype, int64_t rows,
                         int64_t columns, uint64_t seed, uint64_t stream) {
    size_t bytes = (size_t)(it->shape.count * rows * columns) * carry_dtype_size(dtype);
    carry_tensor made = carry_view_3d(carry_aligned_new(bytes), dtype, it->shape.count, rows, columns);
    if (made.data == NULL) {
        return carry_fail(it->ctx, CARRY_EMEMORY, "%.3g GB of memory cannot be allocated: reduce b, m, n or k",
                          1e-9 * (double)bytes);
    }
    carry_status status = carry_random_uniform(it->ctx, made, seed, stream, -1.0f, 1.0f);
    *tensor = made;
    if (it->device != 0) {
        tensor->device = it->device;
        tensor->data = NULL;
        status = status == CARRY_OK ? carry_device_alloc(it->ctx, &tensor->data, it->device, bytes) : status;
        status = status == CARRY_OK ? carry_device_copy(it->ctx, tensor->data, it->device, made.data, 0, bytes, NULL)
                                    : status;
        status = status == CARRY_OK ? carry_stream_wait(it->ctx, it->device, NULL) : status;
    }
    if (kept != NULL) {
        *kept = made;
    } else if (it->device != 0) {
        free(made.data);
    }
    return status;
}

static carry_status make_set(instance *it, int i, uint64_t seed) {
    const carry_product *s = &it->shape;
    CARRY_TRY(make(it, &it->a[i], i == 0 ? &it->a0 : NULL, it->dtype, s->m, s->k, seed, 0));
    CARRY_TRY(make(it, &it->b[i], i == 0 ? &it->b0 : NULL, it->dtype, s->k, s->n, seed, 1));
    return make(it, &it->c[i], i == 0 ? &it->c0 : NULL, CARRY_F32, s->m, s->n, seed, 2);
}

static void close_instance(void *given) {
    instance *it = given;
    carry_timer_free(it->timer);
    for (int i = 0; i < it->copies; i++) {
        carry_device_free(it->ctx, it->device, it->a[i].data);
        carry_device_free(it->ctx, it->device, it->b[i].data);
        carry_device_free(it->ctx, it->device, it->c[i].data);
    }
    if (it->device != 0) { /* else they are set 0 itself */
        free(it->a0.data);
        free(it->b0.data);
        free(it->c0.data);
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
        status = make_set(it, i, seed + (uint64_t)i);
    }
    if (status == CARRY_OK && it->device != 0 && copies > 0) {
        status = carry_timer_new(ctx, &it->timer, it->device);
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
    double in = (double)carry_dtype_size(it->dtype);
    return (double)s->count * (in * (double)(s->m * s->k + s->k * s->n) + 4.0 * (double)(s->m * s->n));
}

static double bytes(const void *given) {
    return bytes_of(given);
}

/* What an operator of the device would be given for a set. */
static carry_device_product device_product(const instance *it, int at, int ordinal) {
    const carry_product *s = &it->shape;
    return (carry_device_product){.m = s->m,
                                  .n = s->n,
                                  .k = s->k,
                                  .count = s->count,
                                  .a = it->a[at].data,
                                  .b = it->b[at].data,
                                  .c = it->c[at].data,
                                  .a_row = s->a_row,
                                  .b_row = s->b_row,
                                  .c_row = s->c_row,
                                  .a_next = s->a_next,
                                  .b_next = s->b_next,
                                  .c_next = s->c_next,
                                  .type = it->dtype,
                                  .c_type = CARRY_F32,
                                  .ordinal = ordinal,
                                  .stream = carry_ctx_stream(it->ctx, it->device)};
}

/* Item `item` of a set of 16 bits. */
static carry_mixed_product mixed_product(const instance *it, int at, int64_t item) {
    const carry_product *s = &it->shape;
    const uint16_t *a = it->a[at].data;
    const uint16_t *b = it->b[at].data;
    float *c = it->c[at].data;
    carry_mixed_product p = {.m = s->m, .n = s->n, .k = s->k, .c_dtype = CARRY_F32, .c_row = s->c_row};
    p.a = (carry_matrix){.data = a != NULL ? a + item * s->a_next : NULL, .dtype = it->dtype, .row = s->a_row};
    p.b = (carry_matrix){.data = b != NULL ? b + item * s->b_next : NULL, .dtype = it->dtype, .row = s->b_row};
    p.c = c != NULL ? c + item * s->c_next : NULL;
    return p;
}

static carry_status choose_there(instance *it, const char *wanted) {
    const carry_operators *ops;
    int ordinal;
    CARRY_TRY(carry_operators_of(it->ctx, &ops, "matmul", it->device, &ordinal));
    carry_device_product product = device_product(it, 0, ordinal);
    wanted = wanted != NULL ? wanted : ops->product_choice(it->ctx, &product);
    for (int i = 0; ops->ways[i] != NULL; i++) {
        if (strcmp(ops->ways[i], wanted) == 0) {
            if (it->way != ops->ways[i]) {
                carry_timer_reset(it->timer);
            }
            it->way = ops->ways[i];
            (void)snprintf(it->name, sizeof it->name, "%s", it->way);
            (void)snprintf(it->about, sizeof it->about, "%s on device %d", it->way, it->device);
            return CARRY_OK;
        }
    }
    return carry_fail(it->ctx, CARRY_EUNSUPPORTED, "%s is for the CPU", wanted);
}

/* What a linear layer of this type would take: the processor's instructions for bf16, or else the operands widened. */
static carry_status choose_half(instance *it, const carry_kernels *kernels) {
    const carry_rates_table *rates;
    char over[160];
    CARRY_TRY(carry_wisdom_rates(it->ctx, &rates, false));
    const carry_bf16 *bf16 = carry_packed_bf16(it->ctx);
    carry_mixed_product p = mixed_product(it, 0, 0);
    bool measured_slower = it->ctx->kernels == NULL && carry_rates_bf16_slower(rates);
    it->kernels = kernels;
    it->bf16 = carry_bf16_pays(bf16, &p) && !measured_slower ? bf16 : NULL;
    (void)snprintf(it->name, sizeof it->name, "%s", it->bf16 != NULL ? it->bf16->name : kernels->name);
    (void)carry_bf16_passed_over(over, sizeof over, bf16);
    bool named = it->dtype == CARRY_BF16 && over[0] != '\0';
    (void)snprintf(it->about, sizeof it->about, "%s: %s%s; 512^3 on one thread: bf16 %.3g GFLOP/s, f32 %.3g%s%s%s",
                   it->name, it->bf16 != NULL ? it->bf16->about : kernels->about,
                   it->bf16 != NULL ? "" : ", widened to f32", 1e-9 * rates->large_bf16, 1e-9 * rates->large_own,
                   named ? " (" : "", named ? over : "", named ? ")" : "");
    return CARRY_OK;
}

/* The way that this machine's rates name: what a process that starts now would take. */
static carry_status choose_measured(instance *it, const carry_kernels *kernels) {
    const carry_rates_table *rates;
    CARRY_TRY(carry_wisdom_rates(it->ctx, &rates, false));
    const carry_product *s = &it->shape;
    const char *core = carry_blas_core();
    const double from = rates->blas_from;
    bool blas = from > 0.0 && carry_blas_product != NULL && (double)s->m >= from && (double)s->n >= from &&
                (double)s->k >= from;
    it->function = blas ? carry_blas_product : kernels->product;
    (void)snprintf(it->name, sizeof it->name, "%s", blas ? "openblas" : kernels->name);
    int length = snprintf(it->about, sizeof it->about, "%s: %s%s; 512^3 on one thread: own %.0f GFLOP/s", it->name,
                          blas ? "cblas_sgemm" : kernels->about,
                          !blas && carry_packed_pays(kernels, s) ? ", packed" : "", 1e-9 * rates->large_own);
    if (rates->large_blas > 0.0 && length > 0 && length < (int)sizeof it->about) {
        (void)snprintf(it->about + length, sizeof it->about - (size_t)length, ", BLAS (core type %s) %.0f",
                       core != NULL ? core : "unknown", 1e-9 * rates->large_blas);
    }
    char line[200];
    if (carry_blas_misfit(line, sizeof line, core, kernels->name)) {
        carry_log(it->ctx, CARRY_LOG_WARNING, "%s", line);
    }
    return CARRY_OK;
}

static carry_status choose_bf16(instance *it, const carry_bf16 *bf16) {
    if (it->dtype != CARRY_BF16 || bf16->missing() != NULL) {
        return carry_fail(it->ctx, CARRY_EUNSUPPORTED, "%s: %s", bf16->name,
                          it->dtype != CARRY_BF16 ? "for bf16 only" : bf16->missing());
    }
    it->bf16 = bf16;
    (void)snprintf(it->name, sizeof it->name, "%s", bf16->name);
    (void)snprintf(it->about, sizeof it->about, "%s: %s", bf16->name, bf16->about);
    return CARRY_OK;
}

static carry_status choose_here(instance *it, const char *wanted) {
    const carry_kernels *kernels;
    CARRY_TRY(carry_kernels_of(it->ctx, &kernels));
    it->bf16 = NULL;
    it->kernels = kernels;
    if (wanted == NULL) {
        return it->dtype == CARRY_F32 ? choose_measured(it, kernels) : choose_half(it, kernels);
    }
    if (carry_bf16_named(wanted) != NULL) {
        return choose_bf16(it, carry_bf16_named(wanted));
    }
    if (strcmp(wanted, "openblas") == 0 && carry_blas_product != NULL) {
        if (it->dtype != CARRY_F32) {
            return carry_fail(it->ctx, CARRY_EUNSUPPORTED, "openblas is for f32");
        }
        it->function = carry_blas_product;
        (void)snprintf(it->name, sizeof it->name, "openblas");
        (void)snprintf(it->about, sizeof it->about, "a loop of cblas_sgemm");
        return CARRY_OK;
    }
    for (int i = 0; carry_device_way(i) != NULL; i++) {
        if (strcmp(carry_device_way(i), wanted) == 0) {
            return carry_fail(it->ctx, CARRY_EUNSUPPORTED, "%s is for a GPU", wanted);
        }
    }
    for (int i = 0;; i++) {
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
    it->kernels = kernels;
    it->function = kernels->product;
    (void)snprintf(it->name, sizeof it->name, "%s", kernels->name);
    (void)snprintf(it->about, sizeof it->about, "%s: %s%s", kernels->name, kernels->about,
                   it->dtype != CARRY_F32 ? ", widened to f32" : "");
    return CARRY_OK;
}

static carry_status choose(void *given, const char *wanted) {
    instance *it = given;
    return it->device != 0 ? choose_there(it, wanted) : choose_here(it, wanted);
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

typedef struct half_job {
    const instance *it;
    int at;
} half_job;

static void run_half_items(void *argument, int64_t begin, int64_t end, int worker) {
    (void)worker;
    const half_job *j = argument;
    for (int64_t item = begin; item < end; item++) {
        carry_mixed_product p = mixed_product(j->it, j->at, item);
        carry_mixed_products_by(j->it->ctx, j->it->kernels, j->it->bf16, &p);
    }
}

/* A thread to an item where there is one for each, else all threads to one item after the other. */
static void run_half(const instance *it, int at) {
    half_job j = {.it = it, .at = at};
    if (it->shape.count >= carry_ctx_threads(it->ctx)) {
        carry_parallel(it->ctx, it->shape.count, 1, run_half_items, &j);
    } else {
        run_half_items(&j, 0, it->shape.count, 0);
    }
}

static carry_status run_on(instance *it, int at) {
    if (it->device != 0) {
        const carry_operators *ops;
        int ordinal;
        CARRY_TRY(carry_operators_of(it->ctx, &ops, "matmul", it->device, &ordinal));
        carry_device_product product = device_product(it, at, ordinal);
        return ops->product(it->ctx, &product, it->way);
    }
    if (it->dtype != CARRY_F32) {
        run_half(it, at);
        return CARRY_OK;
    }
    carry_product p = it->shape;
    p.a = it->a[at].data;
    p.b = it->b[at].data;
    p.c = it->c[at].data;
    carry_products_by(it->ctx, it->function, &p);
    return CARRY_OK;
}

static carry_status run(void *given) {
    instance *it = given;
    it->current = (it->current + 1) % it->copies;
    return run_on(it, it->current);
}

static carry_status time_run(void *given, double *seconds) {
    instance *it = given;
    if (it->timer != NULL) {
        return carry_timer_time(it->timer, seconds, run, it);
    }
    double before = carry_seconds();
    CARRY_TRY(run(it));
    *seconds = carry_seconds() - before;
    return CARRY_OK;
}

static int device_of(const void *given) {
    return ((const instance *)given)->device;
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
    for (int64_t row = 0; row < s->count * s->m; row++) {
        double *to = it->reference + row * s->n;
        for (int64_t l = 0; l < s->k; l++) {
            int64_t from = row / s->m * s->b_next + l * s->n;
            double factor = carry_tensor_at(&it->a0, row * s->k + l);
            for (int64_t j = 0; j < s->n; j++) {
                to[j] += factor * carry_tensor_at(&it->b0, from + j);
            }
        }
    }
    return CARRY_OK;
}

/* A sum of k products rounds at most k times: k u |a| |b|, and |a| |b| is at most sqrt(k) times what is left of it.
   Tensor cores cut off where others round, and BFMMLA rounds to odd, which is a unit instead of half of one, and leave
   out 4 u of a product of f32. */
static carry_status compare(void *given, carry_deviation deviations[CARRY_DEVIATIONS], int *count) {
    instance *it = given;
    CARRY_TRY(make_reference(it));
    size_t size = (size_t)carry_tensor_count(&it->c0) * sizeof(float);
    double k = (double)it->shape.k;
    double steps = it->device == 0 && it->bf16 == NULL ? k + 1.0 : 2.0 * k + 4.0;
    carry_poison(&it->c0);
    if (it->device != 0) {
        carry_stream *stream = carry_ctx_stream(it->ctx, it->device);
        CARRY_TRY(carry_device_copy(it->ctx, it->c[0].data, it->device, it->c0.data, 0, size, stream));
        CARRY_TRY(run_on(it, 0));
        CARRY_TRY(carry_device_copy(it->ctx, it->c0.data, 0, it->c[0].data, it->device, size, stream));
        CARRY_TRY(carry_stream_wait(it->ctx, it->device, stream));
    } else {
        CARRY_TRY(run_on(it, 0));
    }
    deviations[0] = carry_deviation_of("c", &it->c0, it->reference, 0x1p-24 * steps * sqrt(k));
    *count = 1;
    return CARRY_OK;
}

extern const carry_family carry_family_matmul;

static carry_status plan_instance(carry_ctx *ctx, void **opened, carry_problem *problem, bool measure) {
    if (measure) {
        carry_log(ctx, CARRY_LOG_WARNING,
                  "nothing is measured for '%s': products are chosen by size (carry list rates)", problem->text);
    }
    return carry_family_plan_only(&carry_family_matmul, ctx, opened, problem);
}

const carry_family carry_family_matmul = {
    .name = "matmul",
    .about = "c[i] = a[i] b[i] for a batch of small matrices",
    .takes = takes,
    .example = "matmul:f32:b4096:n32",
    .support = {.cpu = "f32 bf16 f16", .cuda = "f32 bf16 f16"},
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
    .time = time_run,
    .device = device_of,
    .counts = counts,
    .compare = compare,
};
