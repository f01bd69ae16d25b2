/* Ceilings: measures every implementation of a large product, each the best of several runs after a warm-up, and
   takes the best of all; and measures copies. */
#include "ops/product/ceiling.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "carry/device.h"
#include "core/clock.h"
#include "core/context.h"
#include "core/memory.h"
#include "core/rng.h"
#include "core/span.h"
#include "core/threads.h"
#include "device/gpu.h"
#include "ops/table.h"
#include "ops/linear.h"
#include "ops/product/matmul.h"

/* Bytes copied by all ranks of a machine together (40 ranks that copied this much each took 20 GB and 14 s), and the
   smallest share of one rank. */
#define COPY_BYTES ((size_t)CARRY_MEASURED(256, 16) << 20)
#define COPY_BYTES_RANK ((size_t)CARRY_MEASURED(16, 1) << 20)
#define COPY_RUNS 7
#define LEAST_RUNS 3
/* Per size and implementation: processors and threads need a moment to reach full speed. */
#define SIDE_SECONDS CARRY_MEASURED(0.06, 0.005)
/* After this time no further size is started, so ranks that share a core measure only the smaller ones. */
#define MOST_SECONDS 0.5
/* A size whose runs would take longer is skipped: the previous one is large enough then. */
#define LONG_RUN 0.03
#define GPU_SIDE 8192 /* of 16-bit products; half of it for f32, which takes 20 times as long */
#define FILL_BYTES ((size_t)1 << 20)
#define GPU_RUNS 5
#define GPU_SECONDS 0.1
#define GPU_EACH 4 /* products between two events */

bool carry_ceilings_are_rough(void) {
    const char *asked = getenv("CARRY_CEILINGS");
    return asked != NULL && strcmp(asked, "rough") == 0;
}

size_t carry_copy_bytes(size_t usual) {
    return carry_ceilings_are_rough() && usual > COPY_BYTES_RANK ? COPY_BYTES_RANK : usual;
}

static const int64_t sides[] = {CARRY_MEASURED(256, 32), CARRY_MEASURED(512, 64), CARRY_MEASURED(1024, 128)};

typedef struct probe {
    carry_ctx *ctx;
    const carry_kernels *kernels;
    const carry_product *p;
    carry_dtype type;
    const void *a, *b; /* 16-bit operands, or NULL if the type is f32 */
} probe;

static void by_kernels(const probe *by) {
    carry_products_by(by->ctx, by->kernels->product, by->p);
}

static void by_blas(const probe *by) {
    carry_products_by(by->ctx, carry_blas_product, by->p);
}

static void by_choice(const probe *by) {
    carry_products(by->ctx, by->kernels, by->p);
}

static void linear(const probe *by, carry_dtype type, const void *a, const void *b) {
    const carry_product *p = by->p;
    carry_mixed_products(by->ctx, by->kernels,
                         &(carry_mixed_product){.m = p->m,
                                                .n = p->n,
                                                .k = p->k,
                                                .a = {.data = a, .dtype = type, .row = p->a_row},
                                                .b = {.data = b, .dtype = type, .row = p->b_row},
                                                .c = p->c,
                                                .c_dtype = CARRY_F32,
                                                .c_row = p->c_row});
}

static void by_linear(const probe *by) {
    linear(by, CARRY_F32, by->p->a, by->p->b);
}

static void by_narrow(const probe *by) {
    linear(by, by->type, by->a, by->b);
}

typedef void (*way)(const probe *by);

/* The fastest product of a type on the CPU. */
typedef struct fastest {
    way run; /* NULL: not measured */
    int64_t side;
} fastest;

/* The data of a context's slot of ceilings. */
typedef struct remembered {
    double of_gpu[CARRY_MAX_DEVICES][2];
    fastest of_cpu[2]; /* f32, 16 bits */
} remembered;

static carry_status remembered_of(carry_ctx *ctx, remembered **of) {
    *of = ctx->slots[CARRY_SLOT_CEILINGS].data;
    if (*of == NULL) {
        *of = calloc(1, sizeof **of);
        if (*of == NULL) {
            return carry_fail(ctx, CARRY_EMEMORY, "out of memory: ceilings");
        }
        ctx->slots[CARRY_SLOT_CEILINGS].data = *of;
        ctx->slots[CARRY_SLOT_CEILINGS].free = free;
    }
    return CARRY_OK;
}

static const way ways[] = {by_kernels, by_blas, by_choice, by_linear, by_narrow};

static bool is_there(const probe *by, way run) {
    return run == by_blas ? carry_blas_product != NULL : run == by_narrow ? by->a != NULL : true;
}

/* Returns the seconds of the fastest run of this implementation. */
static double best_of(const probe *by, way run) {
    double best = INFINITY;
    run(by);
    const double until = carry_seconds() + SIDE_SECONDS / (sizeof ways / sizeof ways[0]);
    for (int i = 0; i < LEAST_RUNS || carry_seconds() < until; i++) {
        double start = carry_seconds();
        run(by);
        best = fmin(best, carry_seconds() - start);
    }
    return best;
}

/* Allocates a, b and c of `area` numbers each in f32, and a and b in 16 bits, with numbers near 1 in either type. */
static carry_status cpu_operands(carry_ctx *ctx, int64_t area, float **floats, uint16_t **narrow) {
    *floats = carry_aligned_new((size_t)(3 * area) * sizeof **floats);
    *narrow = carry_aligned_new((size_t)(2 * area) * sizeof **narrow);
    if (*floats == NULL || *narrow == NULL) {
        return carry_fail(ctx, CARRY_EMEMORY, "out of memory: measuring a product of %lld numbers", (long long)area);
    }
    for (int64_t i = 0; i < 3 * area; i++) {
        (*floats)[i] = (float)(i % 13) - 6.0f;
    }
    for (int64_t i = 0; i < 2 * area; i++) {
        (*narrow)[i] = (uint16_t)(0x3f80 + i % 127);
    }
    return CARRY_OK;
}

static carry_product square(int64_t n, float *floats, int64_t area) {
    return (carry_product){.m = n,
                           .n = n,
                           .k = n,
                           .count = 1,
                           .a = floats,
                           .b = floats + area,
                           .c = floats + 2 * area,
                           .a_row = n,
                           .b_row = n,
                           .c_row = n};
}

/* Returns the best rate over the sizes, with operands that are already filled. */
static double best_rate(probe by, float *floats, int64_t area, fastest *winner) {
    const int count = carry_ceilings_are_rough() ? 1 : (int)(sizeof sides / sizeof sides[0]);
    double shortest = 0.0;
    double rate = 0.0;
    const double until = carry_seconds() + MOST_SECONDS;
    for (int i = 0; i < count && 8.0 * shortest < LONG_RUN && carry_seconds() < until; i++) {
        const int64_t n = sides[i];
        const carry_product p = square(n, floats, area);
        by.p = &p;
        shortest = INFINITY;
        for (size_t j = 0; j < sizeof ways / sizeof ways[0]; j++) {
            if (!is_there(&by, ways[j])) {
                continue;
            }
            const double seconds = best_of(&by, ways[j]);
            shortest = fmin(shortest, seconds);
            if (2.0 * (double)(n * n * n) / seconds > rate) {
                rate = 2.0 * (double)(n * n * n) / seconds;
                *winner = (fastest){.run = ways[j], .side = n};
            }
        }
    }
    return rate;
}

/* Both 16-bit types run at the same speed. */
static int kind_of(carry_dtype type) {
    return type == CARRY_F32 ? 0 : 1;
}

static carry_status cpu_product(carry_ctx *ctx, carry_dtype type, double *flops_s) {
    const int64_t side = sides[sizeof sides / sizeof sides[0] - 1];
    const int64_t area = side * side;
    probe by = {.ctx = ctx, .type = type};
    float *floats = NULL;
    uint16_t *narrow = NULL;
    remembered *all;
    CARRY_TRY(remembered_of(ctx, &all));
    CARRY_TRY(carry_kernels_of(ctx, &by.kernels));
    const carry_status status = cpu_operands(ctx, area, &floats, &narrow);
    *flops_s = 0.0;
    if (status == CARRY_OK) {
        by.a = type != CARRY_F32 ? narrow : NULL;
        by.b = type != CARRY_F32 ? narrow + area : NULL;
        *flops_s = best_rate(by, floats, area, &all->of_cpu[kind_of(type)]);
    }
    free(floats);
    free(narrow);
    return status;
}

/* Resources of a measurement on a GPU. */
typedef struct rig {
    carry_stream *stream;
    carry_event *from, *to;
    void *data; /* a, b and c */
} rig;

/* Fills with random bits that have magnitude 0.5 to 2 both as f32 and as bf16: a product of constants would need
   less power and be faster than any real one. One block is copied until all is filled. */
static carry_status fill(carry_ctx *ctx, int device, char *data, size_t bytes) {
    size_t full = bytes < FILL_BYTES ? bytes : FILL_BYTES;
    uint16_t *block = malloc(FILL_BYTES);
    if (block == NULL) {
        return carry_fail(ctx, CARRY_EMEMORY, "out of memory: measuring a product");
    }
    for (size_t i = 0; i < FILL_BYTES / sizeof *block; i += 4) {
        const carry_words random = carry_philox(7, 0, i);
        for (size_t j = 0; j < 4; j++) {
            block[i + j] = (uint16_t)(0x3f00u | (random.word[j] & 0x80ffu));
        }
    }
    carry_status status = carry_device_copy(ctx, data, device, block, 0, full, NULL);
    while (status == CARRY_OK && full < bytes) {
        size_t more = full < bytes - full ? full : bytes - full;
        status = carry_device_copy(ctx, data + full, device, data, device, more, NULL);
        full += more;
    }
    status = status == CARRY_OK ? carry_stream_wait(ctx, device, NULL) : status;
    free(block);
    return status;
}

static carry_status rig_open(carry_ctx *ctx, int device, rig *r, size_t bytes) {
    CARRY_TRY(carry_stream_new(ctx, &r->stream, device));
    CARRY_TRY(carry_event_new(ctx, &r->from, device));
    CARRY_TRY(carry_event_new(ctx, &r->to, device));
    CARRY_TRY(carry_device_alloc(ctx, &r->data, device, bytes));
    return fill(ctx, device, r->data, bytes);
}

static void rig_close(carry_ctx *ctx, int device, rig *r) {
    carry_device_free(ctx, device, r->data);
    carry_event_free(ctx, device, r->to);
    carry_event_free(ctx, device, r->from);
    carry_stream_free(ctx, device, r->stream);
}

/* *seconds: time of one product, the best of some runs after a first one. CARRY_EUNSUPPORTED if this implementation
   does not accept the product. */
static carry_status time_way(carry_ctx *ctx, int device, const rig *r, const carry_operators *ops,
                             const carry_device_product *p, const char *by, double *seconds) {
    const double until = carry_seconds() + GPU_SECONDS; /* the clock rises under load */
    *seconds = INFINITY;
    for (int i = 0; i <= GPU_RUNS || carry_seconds() < until; i++) {
        double spent;
        CARRY_TRY(carry_event_record(ctx, device, r->from, r->stream));
        for (int j = 0; j < GPU_EACH; j++) {
            CARRY_TRY(ops->product(ctx, p, by));
        }
        CARRY_TRY(carry_event_record(ctx, device, r->to, r->stream));
        CARRY_TRY(carry_stream_wait(ctx, device, r->stream));
        CARRY_TRY(carry_event_elapsed(ctx, &spent, device, r->from, r->to));
        *seconds = i > 0 ? fmin(*seconds, spent / GPU_EACH) : *seconds;
    }
    return CARRY_OK;
}

static carry_status time_ways(carry_ctx *ctx, int device, const rig *r, carry_dtype type, int64_t n, double *flops_s) {
    const carry_operators *ops;
    int ordinal;
    CARRY_TRY(carry_operators_of(ctx, &ops, "matmul", device, &ordinal));
    const size_t area = (size_t)(n * n) * carry_dtype_size(type);
    const carry_device_product p = {.m = n,
                                    .n = n,
                                    .k = n,
                                    .count = 1,
                                    .a = r->data,
                                    .b = (char *)r->data + area,
                                    .c = (char *)r->data + 2 * area,
                                    .a_row = n,
                                    .b_row = n,
                                    .c_row = n,
                                    .type = type,
                                    .c_type = type,
                                    .ordinal = ordinal,
                                    .stream = r->stream};
    for (int i = 0; ops->ways != NULL && ops->ways[i] != NULL; i++) {
        double seconds;
        carry_status status = time_way(ctx, device, r, ops, &p, ops->ways[i], &seconds);
        if (status != CARRY_OK && status != CARRY_EUNSUPPORTED) {
            return status;
        }
        *flops_s = status == CARRY_OK ? fmax(*flops_s, 2.0 * (double)(n * n * n) / seconds) : *flops_s;
    }
    return CARRY_OK;
}

static carry_status gpu_product(carry_ctx *ctx, int device, carry_dtype type, double *flops_s) {
    size_t available;
    size_t total;
    int64_t n = type == CARRY_F32 ? GPU_SIDE / 2 : GPU_SIDE;
    CARRY_TRY(carry_device_memory(ctx, &available, &total, device));
    while (n > 512 && available > 0 && 3 * (size_t)(n * n) * carry_dtype_size(type) > available / 2) {
        n /= 2;
    }
    rig r = {0};
    carry_status status = rig_open(ctx, device, &r, 3 * (size_t)(n * n) * carry_dtype_size(type));
    if (status == CARRY_OK) {
        status = time_ways(ctx, device, &r, type, n, flops_s);
    }
    rig_close(ctx, device, &r);
    return status;
}

carry_status carry_ceiling_product(carry_ctx *ctx, int device, carry_dtype type, double *flops_s) {
    CARRY_SPAN(ctx, "bench", "ceiling of products");
    if (device == 0) {
        return cpu_product(ctx, type, flops_s);
    }
    const int kind = kind_of(type);
    const carry_gpu *gpu;
    CARRY_TRY(carry_gpu_of(ctx, &gpu, device)); /* refuses a device that is not a GPU, and checks its number */
    remembered *all;
    CARRY_TRY(remembered_of(ctx, &all));
    double *known = &all->of_gpu[device][kind];
    if (*known == 0.0) {
        double best = kind == 0 ? gpu->plain_flops_s : gpu->tensor_flops_s;
        CARRY_TRY(gpu_product(ctx, device, kind == 0 ? CARRY_F32 : CARRY_BF16, &best));
        *known = best;
    }
    *flops_s = *known;
    return CARRY_OK;
}

typedef struct copy {
    char *to;
    const char *from;
    size_t piece;
} copy;

static void copy_piece(void *argument, int64_t begin, int64_t end, int worker) {
    (void)worker;
    const copy *c = argument;
    memcpy(c->to + (size_t)begin * c->piece, c->from + (size_t)begin * c->piece, (size_t)(end - begin) * c->piece);
}

static double copy_rate(carry_ctx *ctx, char *to, const char *from, size_t bytes) {
    int threads = carry_ctx_threads(ctx);
    copy c = {.to = to, .from = from, .piece = bytes / (size_t)threads};
    double best = INFINITY;
    for (int i = 0; i < COPY_RUNS; i++) {
        double start = carry_seconds();
        carry_parallel(ctx, threads, 1, copy_piece, &c);
        best = fmin(best, carry_seconds() - start);
    }
    return 2.0 * (double)(c.piece * (size_t)threads) / best;
}

carry_status carry_ceiling_copy(carry_ctx *ctx, int device, int ranks, double *bytes_s) {
    CARRY_SPAN(ctx, "bench", "ceiling of copies");
    if (device != 0) {
        const carry_gpu *gpu;
        CARRY_TRY(carry_gpu_of(ctx, &gpu, device));
        *bytes_s = gpu->copy_bytes_s;
        return CARRY_OK;
    }
    const size_t part = carry_copy_bytes(COPY_BYTES) / (size_t)(ranks > 0 ? ranks : 1);
    const size_t bytes = part > COPY_BYTES_RANK ? part : COPY_BYTES_RANK;
    char *from = carry_aligned_new(bytes);
    char *to = carry_aligned_new(bytes);
    if (from == NULL || to == NULL) {
        free(from);
        free(to);
        return carry_fail(ctx, CARRY_EMEMORY, "out of memory: measuring a copy (%zu bytes)", 2 * bytes);
    }
    memset(from, 1, bytes);
    memset(to, 0, bytes);
    *bytes_s = copy_rate(ctx, to, from, bytes);
    free(from);
    free(to);
    return CARRY_OK;
}

struct carry_yardstick {
    probe by;
    carry_product p;
    way run;
    float *floats;
    uint16_t *narrow;
    char *from, *to; /* `bytes` each, allocated at the first copy */
    size_t bytes;
    size_t copied; /* bytes copied so far */
};

carry_status carry_yardstick_new(carry_ctx *ctx, carry_yardstick **made, carry_dtype type) {
    remembered *all;
    CARRY_TRY(remembered_of(ctx, &all));
    const fastest *best = &all->of_cpu[kind_of(type)];
    double flops_s;
    if (best->run == NULL) {
        CARRY_TRY(cpu_product(ctx, type, &flops_s));
    }
    carry_yardstick *y = calloc(1, sizeof *y);
    if (y == NULL) {
        return carry_fail(ctx, CARRY_EMEMORY, "out of memory: measuring beside a problem");
    }
    const int64_t area = best->side * best->side;
    y->by = (probe){.ctx = ctx, .type = type};
    y->run = best->run;
    carry_status status = carry_kernels_of(ctx, &y->by.kernels);
    status = status == CARRY_OK ? cpu_operands(ctx, area, &y->floats, &y->narrow) : status;
    if (status != CARRY_OK) {
        carry_yardstick_free(y);
        return status;
    }
    y->by.a = type != CARRY_F32 ? y->narrow : NULL;
    y->by.b = type != CARRY_F32 ? y->narrow + area : NULL;
    y->p = square(best->side, y->floats, area);
    y->by.p = &y->p;
    *made = y;
    return CARRY_OK;
}

void carry_yardstick_free(carry_yardstick *y) {
    if (y != NULL) {
        free(y->floats);
        free(y->narrow);
        free(y->from);
        free(y->to);
        free(y);
    }
}

/* Copies the next piece. Copies cycle through all bytes, so that no cache holds the piece any more. */
static carry_status copy_next(carry_yardstick *y) {
    carry_ctx *ctx = y->by.ctx;
    if (y->to == NULL) {
        y->bytes = carry_copy_bytes(COPY_BYTES);
        y->from = y->from != NULL ? y->from : carry_aligned_new(y->bytes);
        y->to = y->from != NULL ? carry_aligned_new(y->bytes) : NULL;
        if (y->to == NULL) {
            return carry_fail(ctx, CARRY_EMEMORY, "out of memory: measuring a copy (%zu bytes)", 2 * y->bytes);
        }
        memset(y->from, 1, y->bytes);
        memset(y->to, 0, y->bytes);
    }
    const size_t threads = (size_t)carry_ctx_threads(ctx);
    const size_t at = y->copied % y->bytes;
    copy c = {.to = y->to + at, .from = y->from + at, .piece = COPY_BYTES_RANK / threads};
    carry_parallel(ctx, (int64_t)threads, 1, copy_piece, &c);
    y->copied += COPY_BYTES_RANK;
    return CARRY_OK;
}

carry_status carry_yardstick_measure(carry_yardstick *y, bool copies, double (*clock)(void), double seconds,
                                     double *rate) {
    CARRY_SPAN(y->by.ctx, "bench", "yardstick");
    if (copies) {
        CARRY_TRY(copy_next(y));
    } else {
        y->run(&y->by); /* first run: the work before it evicted the caches */
    }
    const double start = clock();
    double spent;
    double times = 0.0;
    do {
        if (copies) {
            CARRY_TRY(copy_next(y));
        } else {
            y->run(&y->by);
        }
        times += 1.0;
        spent = clock() - start;
    } while (spent + 0.5 * spent / times < seconds);
    const size_t threads = (size_t)carry_ctx_threads(y->by.ctx);
    const double each =
        copies ? 2.0 * (double)(COPY_BYTES_RANK / threads * threads) : 2.0 * (double)(y->p.m * y->p.n) * (double)y->p.k;
    *rate = times * each / spent;
    return CARRY_OK;
}
