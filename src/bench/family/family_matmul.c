/* Batches of small products as problems: every set of kernels that this processor can run, and a loop of OpenBLAS
   calls, all split over threads by the same code; on a GPU, every method in its table of operators. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "carry/device.h"
#include "core/context.h"
#include "core/memory.h"
#include "core/tensor.h"
#include "bench/deviation.h"
#include "bench/family/capacity.h"
#include "bench/family/family.h"
#include "bench/family/product_way.h"
#include "bench/timer.h"

#define SIZES "b, m, n or k"

typedef struct instance {
    carry_instance base;
    carry_product_way product;
    carry_tensor a[CARRY_COPIES], b[CARRY_COPIES], c[CARRY_COPIES]; /* on the device */
    carry_tensor a0, b0, c0;                                        /* set 0 on the CPU */
    double *reference;                                              /* for set 0 */
} instance;

static const char takes[] = "f32, bf16, f16, b (how many), m, n, k (m and k are n unless given), "
                            "algo=NAME, device=cpu or cuda";

static carry_status parse(void *given, carry_problem *problem) {
    instance *it = given;
    carry_ctx *ctx = it->base.ctx;
    CARRY_TRY(carry_problem_dtype(ctx, &it->product.dtype, problem, CARRY_F16));
    CARRY_TRY(carry_problem_device(ctx, &it->product.device, problem));
    it->base.device = it->product.device;
    it->product.ctx = ctx;
    carry_product *s = &it->product.shape;
    s->count = carry_problem_size(problem, "b", 1);
    s->n = carry_problem_size(problem, "n", 32);
    s->m = carry_problem_size(problem, "m", s->n);
    s->k = carry_problem_size(problem, "k", s->n);
    const char *algorithm = carry_problem_setting(problem, "algo");
    (void)snprintf(it->base.only, sizeof it->base.only, "%s", algorithm != NULL ? algorithm : "");
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

/* Makes a random tensor on the CPU, and copies it if the device is another one. `kept` gets the CPU's copy; if it is
   NULL, the copy is freed. */
static carry_status make(instance *it, carry_tensor *tensor, carry_tensor *kept, carry_dtype dtype, int64_t rows,
                         int64_t columns, uint64_t seed, uint64_t stream) {
    size_t bytes = (size_t)(it->product.shape.count * rows * columns) * carry_dtype_size(dtype);
    CARRY_TRY(carry_check_capacity(it->product.ctx, (double)bytes, SIZES));
    carry_tensor made = carry_view_3d(carry_aligned_new(bytes), dtype, it->product.shape.count, rows, columns);
    if (made.data == NULL) {
        return carry_fail(it->product.ctx, CARRY_EMEMORY, "%.3g GB of memory cannot be allocated: reduce " SIZES,
                          1e-9 * (double)bytes);
    }
    carry_status status = carry_random_uniform(it->product.ctx, made, seed, stream, -1.0f, 1.0f);
    *tensor = made;
    if (it->product.device != 0) {
        tensor->device = it->product.device;
        tensor->data = NULL;
        status =
            status == CARRY_OK ? carry_device_alloc(it->product.ctx, &tensor->data, it->product.device, bytes) : status;
        status = status == CARRY_OK
                     ? carry_device_copy(it->product.ctx, tensor->data, it->product.device, made.data, 0, bytes, NULL)
                     : status;
        status = status == CARRY_OK ? carry_stream_wait(it->product.ctx, it->product.device, NULL) : status;
    }
    if (kept != NULL) {
        *kept = made;
    } else if (it->product.device != 0) {
        free(made.data);
    }
    return status;
}

static carry_status make_set(void *given, int i, uint64_t seed) {
    instance *it = given;
    const carry_product *s = &it->product.shape;
    CARRY_TRY(make(it, &it->a[i], i == 0 ? &it->a0 : NULL, it->product.dtype, s->m, s->k, seed, 0));
    CARRY_TRY(make(it, &it->b[i], i == 0 ? &it->b0 : NULL, it->product.dtype, s->k, s->n, seed, 1));
    return make(it, &it->c[i], i == 0 ? &it->c0 : NULL, CARRY_F32, s->m, s->n, seed, 2);
}

static void release(void *given) {
    instance *it = given;
    for (int i = 0; i < it->base.copies; i++) {
        carry_device_free(it->product.ctx, it->product.device, it->a[i].data);
        carry_device_free(it->product.ctx, it->product.device, it->b[i].data);
        carry_device_free(it->product.ctx, it->product.device, it->c[i].data);
    }
    if (it->product.device != 0) { /* otherwise they are set 0 itself */
        free(it->a0.data);
        free(it->b0.data);
        free(it->c0.data);
    }
    free(it->reference);
}

static double bytes_of(const instance *it) {
    const carry_product *s = &it->product.shape;
    double in = (double)carry_dtype_size(it->product.dtype);
    return (double)s->count * (in * (double)(s->m * s->k + s->k * s->n) + 4.0 * (double)(s->m * s->n));
}

static double bytes(const void *given) {
    return bytes_of(given);
}

static carry_status choose(void *given, const char *wanted) {
    instance *it = given;
    const char *before = it->product.way;
    CARRY_TRY(carry_product_way_choose(&it->product, wanted));
    if (it->product.way != before) {
        carry_timer_reset(it->base.timer);
    }
    return CARRY_OK;
}

static const char *chosen(const void *given) {
    return ((const instance *)given)->product.name;
}

static const char *about_plan(const void *given) {
    return ((const instance *)given)->product.about;
}

static carry_status run_on(instance *it, int at) {
    return carry_product_way_run(&it->product, it->a[at].data, it->b[at].data, it->c[at].data);
}

static carry_status run(void *given) {
    instance *it = given;
    it->base.current = (it->base.current + 1) % it->base.copies;
    return run_on(it, it->base.current);
}

static carry_status time_run(void *given, double *seconds) {
    return carry_timer_time(((carry_instance *)given)->timer, seconds, run, given);
}

static carry_counts counts(const void *given) {
    const instance *it = given;
    const carry_product *s = &it->product.shape;
    return (carry_counts){.flops = 2.0 * (double)s->count * (double)s->m * (double)s->n * (double)s->k,
                          .bytes = bytes_of(it),
                          .products = s->count};
}

static carry_status make_reference(instance *it) {
    const carry_product *s = &it->product.shape;
    if (it->reference != NULL) {
        return CARRY_OK;
    }
    it->reference = calloc((size_t)(s->count * s->m * s->n), sizeof *it->reference);
    if (it->reference == NULL) {
        return carry_fail(it->product.ctx, CARRY_EMEMORY, "out of memory: the float64 reference");
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

/* The bound is relative to the largest result, with u = 2^-24. A sum of k products has a rounding error of at most
   (k + 1) u |a| |b|, with |a| the norm of a row of a and |b| that of a column of b. For these random numbers |a| |b| is
   at most sqrt(k) times the largest result. Tensor cores truncate and BFMMLA rounds to odd, with an error of up to 2 u
   instead of u each time. An f32 product that is computed from bf16 terms leaves out the smallest of them
   (ops/kernels/bf16.h); another 4 u cover these. */
static carry_status compare(void *given, carry_deviation deviations[CARRY_DEVIATIONS], int *count) {
    instance *it = given;
    CARRY_TRY(make_reference(it));
    size_t size = (size_t)carry_tensor_count(&it->c0) * sizeof(float);
    double k = (double)it->product.shape.k;
    double steps = it->product.device == 0 && it->product.bf16 == NULL ? k + 1.0 : 2.0 * k + 4.0;
    carry_poison(&it->c0);
    if (it->product.device != 0) {
        carry_stream *stream = carry_ctx_stream(it->product.ctx, it->product.device);
        CARRY_TRY(carry_device_copy(it->product.ctx, it->c[0].data, it->product.device, it->c0.data, 0, size, stream));
        CARRY_TRY(run_on(it, 0));
        CARRY_TRY(carry_device_copy(it->product.ctx, it->c0.data, 0, it->c[0].data, it->product.device, size, stream));
        CARRY_TRY(carry_stream_wait(it->product.ctx, it->product.device, stream));
    } else {
        CARRY_TRY(run_on(it, 0));
    }
    deviations[0] = carry_deviation_of("c", &it->c0, it->reference, 0x1p-24 * steps * sqrt(k));
    *count = 1;
    return CARRY_OK;
}

extern const carry_family carry_family_matmul;

const carry_family carry_family_matmul = {
    .name = "matmul",
    .about = "c[i] = a[i] b[i] for a batch of small matrices",
    .takes = takes,
    .example = "matmul:f32:b4096:n32",
    .support = {.cpu = "f32 bf16 f16", .cuda = "f32 bf16 f16"},
    .instance_bytes = sizeof(instance),
    .parse = parse,
    .make_set = make_set,
    .unmeasured = "products are chosen by size (carry list rates)",
    .release = release,
    .bytes = bytes,
    .method = carry_product_way_name,
    .choose = choose,
    .chosen = chosen,
    .about_plan = about_plan,
    .only = carry_instance_only,
    .run = run,
    .time = time_run,
    .device = carry_instance_device,
    .counts = counts,
    .compare = compare,
};
