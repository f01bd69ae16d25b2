/* The methods of a bench's products: chosen by name or by this machine's rates, and run. */
#include "bench/family/product_way.h"

#include <stdio.h>
#include <string.h>

#include "core/context.h"
#include "core/threads.h"
#include "ops/table.h"
#include "ops/product/packed.h"
#include "ops/product/rates.h"
#include "scan/wisdom.h"

/* The names of all methods: sets of kernels, OpenBLAS, bf16 products except emulated ones, and the methods of GPUs. */
const char *carry_product_way_name(int index) {
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

/* The product as arguments of the device's operator. */
static carry_device_product device_product(const carry_product_way *it, const void *a, const void *b, void *c,
                                           int ordinal) {
    const carry_product *s = &it->shape;
    return (carry_device_product){.m = s->m,
                                  .n = s->n,
                                  .k = s->k,
                                  .count = s->count,
                                  .a = a,
                                  .b = b,
                                  .c = c,
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

/* The product of item `item` in a batch of 16-bit operands. */
static carry_mixed_product mixed_product(const carry_product_way *it, const uint16_t *a, const uint16_t *b, float *c,
                                         int64_t item) {
    const carry_product *s = &it->shape;
    carry_mixed_product p = {.m = s->m, .n = s->n, .k = s->k, .c_dtype = CARRY_F32, .c_row = s->c_row};
    p.a = (carry_matrix){.data = a != NULL ? a + item * s->a_next : NULL, .dtype = it->dtype, .row = s->a_row};
    p.b = (carry_matrix){.data = b != NULL ? b + item * s->b_next : NULL, .dtype = it->dtype, .row = s->b_row};
    p.c = c != NULL ? c + item * s->c_next : NULL;
    return p;
}

static carry_status choose_there(carry_product_way *it, const char *wanted) {
    const carry_operators *ops;
    int ordinal;
    CARRY_TRY(carry_operators_of(it->ctx, &ops, "matmul", it->device, &ordinal));
    carry_device_product product = device_product(it, NULL, NULL, NULL, ordinal);
    wanted = wanted != NULL ? wanted : ops->product_choice(it->ctx, &product);
    for (int i = 0; ops->ways[i] != NULL; i++) {
        if (strcmp(ops->ways[i], wanted) == 0) {
            it->way = ops->ways[i];
            (void)snprintf(it->name, sizeof it->name, "%s", it->way);
            (void)snprintf(it->about, sizeof it->about, "%s on device %d", it->way, it->device);
            return CARRY_OK;
        }
    }
    return carry_fail(it->ctx, CARRY_EUNSUPPORTED, "%s is for the CPU", wanted);
}

/* Chooses as a linear layer of this type does: the processor's instructions for bf16, or else widened operands. */
static carry_status choose_half(carry_product_way *it, const carry_kernels *kernels) {
    const carry_rates_table *rates;
    char over[160];
    CARRY_TRY(carry_wisdom_rates(it->ctx, &rates, false));
    const carry_bf16 *bf16 = carry_packed_bf16(it->ctx);
    carry_mixed_product p = mixed_product(it, NULL, NULL, NULL, 0);
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

/* The method that this machine's rates select, as a new process would. */
static carry_status choose_measured(carry_product_way *it, const carry_kernels *kernels) {
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

static carry_status choose_bf16(carry_product_way *it, const carry_bf16 *bf16) {
    if (it->dtype != CARRY_BF16 || bf16->missing() != NULL) {
        return carry_fail(it->ctx, CARRY_EUNSUPPORTED, "%s: %s", bf16->name,
                          it->dtype != CARRY_BF16 ? "for bf16 only" : bf16->missing());
    }
    it->bf16 = bf16;
    (void)snprintf(it->name, sizeof it->name, "%s", bf16->name);
    (void)snprintf(it->about, sizeof it->about, "%s: %s", bf16->name, bf16->about);
    return CARRY_OK;
}

static carry_status choose_here(carry_product_way *it, const char *wanted) {
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

carry_status carry_product_way_choose(carry_product_way *it, const char *wanted) {
    return it->device != 0 ? choose_there(it, wanted) : choose_here(it, wanted);
}

typedef struct half_job {
    const carry_product_way *it;
    const uint16_t *a, *b;
    float *c;
} half_job;

static void run_half_items(void *argument, int64_t begin, int64_t end, int worker) {
    (void)worker;
    const half_job *j = argument;
    for (int64_t item = begin; item < end; item++) {
        carry_mixed_product p = mixed_product(j->it, j->a, j->b, j->c, item);
        carry_mixed_products_by(j->it->ctx, j->it->kernels, j->it->bf16, &p);
    }
}

/* With at least one item per thread, each thread takes whole items; otherwise all threads work on one item after the
   other. */
static void run_half(half_job j) {
    const carry_product_way *it = j.it;
    if (it->shape.count >= carry_ctx_threads(it->ctx)) {
        carry_parallel(it->ctx, it->shape.count, 1, run_half_items, &j);
    } else {
        run_half_items(&j, 0, it->shape.count, 0);
    }
}

carry_status carry_product_way_run(const carry_product_way *it, const void *a, const void *b, void *c) {
    if (it->device != 0) {
        const carry_operators *ops;
        int ordinal;
        CARRY_TRY(carry_operators_of(it->ctx, &ops, "matmul", it->device, &ordinal));
        carry_device_product product = device_product(it, a, b, c, ordinal);
        return ops->product(it->ctx, &product, it->way);
    }
    if (it->dtype != CARRY_F32) {
        run_half((half_job){.it = it, .a = a, .b = b, .c = c});
        return CARRY_OK;
    }
    carry_product p = it->shape;
    p.a = a;
    p.b = b;
    p.c = c;
    carry_products_by(it->ctx, it->function, &p);
    return CARRY_OK;
}
