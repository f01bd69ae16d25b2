/* Timing methods on a problem. */
#include "lab/bench.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "carry/device.h"
#include "core/clock.h"
#include "core/context.h"
#include "core/memory.h"
#include "core/span.h"
#include "core/threads.h"
#include "device/gpu.h"
#include "lab/sample.h"
#include "ops/matmul.h"

#define GEMM_SIZE 512
#define COPY_BYTES ((size_t)256 << 20)
#define CEILING_RUNS 7
#define LEAST_RUNS 5
#define MOST_RUNS 2000
#define SECONDS 0.3
#define MOST_SET_BYTES 512e6
#define MOST_COPIES 64

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

static double copy_rate(carry_ctx *ctx, char *to, const char *from) {
    int threads = carry_ctx_threads(ctx);
    copy c = {.to = to, .from = from, .piece = COPY_BYTES / (size_t)threads};
    double best = INFINITY;
    for (int i = 0; i < CEILING_RUNS; i++) {
        double start = carry_seconds();
        carry_parallel(ctx, threads, 1, copy_piece, &c);
        double spent = carry_seconds() - start;
        best = spent < best ? spent : best;
    }
    return 2e-9 * (double)(c.piece * (size_t)threads) / best;
}

static double gemm_rate(carry_ctx *ctx, const carry_kernels *kernels, float *floats) {
    const int64_t size = (int64_t)GEMM_SIZE * GEMM_SIZE;
    double best = INFINITY;
    carry_product p = {.m = GEMM_SIZE,
                       .n = GEMM_SIZE,
                       .k = GEMM_SIZE,
                       .count = 1,
                       .a = floats,
                       .b = floats + size,
                       .c = floats + 2 * size,
                       .a_row = GEMM_SIZE,
                       .b_row = GEMM_SIZE,
                       .c_row = GEMM_SIZE};
    for (int i = 0; i < 2 * CEILING_RUNS; i++) {
        bool blas = i % 2 == 1 && carry_blas_product != NULL;
        double start = carry_seconds();
        carry_products_by(ctx, blas ? carry_blas_product : kernels->product, &p);
        double spent = carry_seconds() - start;
        best = spent < best ? spent : best;
    }
    return 2e-9 * GEMM_SIZE * GEMM_SIZE * GEMM_SIZE / best;
}

carry_status carry_ceilings_measure(carry_ctx *ctx, carry_ceilings *ceilings) {
    CARRY_SPAN(ctx, "bench", "ceilings");
    const carry_kernels *kernels;
    CARRY_TRY(carry_kernels_of(ctx, &kernels));
    char *from = carry_aligned_new(COPY_BYTES);
    char *to = carry_aligned_new(COPY_BYTES);
    if (from == NULL || to == NULL) {
        free(from);
        free(to);
        return carry_fail(ctx, CARRY_EMEMORY, "no memory to measure the ceilings (%zu bytes)", 2 * COPY_BYTES);
    }
    float *floats = (float *)(void *)from;
    for (size_t i = 0; i < COPY_BYTES / sizeof *floats; i++) {
        floats[i] = (float)(i % 13) - 6.0f;
    }
    memset(to, 0, COPY_BYTES);
    ceilings->copy_gbytes_s = copy_rate(ctx, to, from);
    ceilings->gemm_gflops = gemm_rate(ctx, kernels, floats);
    free(from);
    free(to);
    return CARRY_OK;
}

carry_status carry_ceilings_gemm(carry_ctx *ctx, double *gflops) {
    const carry_kernels *kernels;
    const size_t count = (size_t)3 * GEMM_SIZE * GEMM_SIZE;
    CARRY_TRY(carry_kernels_of(ctx, &kernels));
    float *floats = carry_aligned_new(count * sizeof *floats);
    if (floats == NULL) {
        return carry_fail(ctx, CARRY_EMEMORY, "no memory to measure a product");
    }
    for (size_t i = 0; i < count; i++) {
        floats[i] = 1e-3f * (float)(i % 1000);
    }
    *gflops = gemm_rate(ctx, kernels, floats);
    free(floats);
    return CARRY_OK;
}

/* One problem under way. */
typedef struct session {
    carry_ctx *ctx;
    const carry_family *family;
    void *instance;
    const carry_bench_options *options;
    carry_bench_result *results;
    int count;
    double *samples; /* MOST_RUNS a method */
    double *sorted;  /* MOST_RUNS */
    double spent[CARRY_BENCH_METHODS];
} session;

static void keep_worst(carry_bench_result *result, const carry_deviation *deviations, int count) {
    for (int i = 0; i < count; i++) {
        double now = deviations[i].error / deviations[i].bound;
        double before = result->worst.error / result->worst.bound;
        if (i == 0 || isnan(now) || now > before) {
            result->worst = deviations[i];
        }
    }
}

static carry_status compare(session *s, carry_bench_result *result) {
    CARRY_SPAN(s->ctx, "bench", "compare");
    carry_deviation deviations[CARRY_DEVIATIONS];
    int count = 0;
    carry_status status = s->family->compare(s->instance, deviations, &count);
    keep_worst(result, deviations, count);
    return status;
}

static carry_status warm_up(session *s) {
    CARRY_SPAN(s->ctx, "bench", "warm-up");
    return s->family->run(s->instance);
}

/* Chooses, compares and warms up; a method that does not apply gets its reason. */
static carry_status prepare(session *s, carry_bench_result *result) {
    carry_status status = s->family->choose(s->instance, result->algorithm);
    if (status == CARRY_OK && !s->options->unchecked) {
        status = compare(s, result);
    }
    for (int i = 0; status == CARRY_OK && i < (s->options->warm_up > 1 ? s->options->warm_up : 1); i++) {
        status = warm_up(s);
    }
    if (status == CARRY_EUNSUPPORTED || status == CARRY_ERANGE || status == CARRY_EMEMORY) {
        (void)snprintf(result->reason, sizeof result->reason, "%s", carry_ctx_error(s->ctx));
        return CARRY_OK;
    }
    return status;
}

static bool wants_more(const session *s, int i) {
    const carry_bench_result *result = &s->results[i];
    double seconds = s->options->seconds > 0.0 ? s->options->seconds : SECONDS;
    int least = s->options->repeats > 0 ? s->options->repeats : LEAST_RUNS;
    if (result->reason[0] != '\0' || result->repeats >= MOST_RUNS) {
        return false;
    }
    return result->repeats < least || (s->options->repeats == 0 && s->spent[i] < seconds);
}

static carry_status time_run(session *s, double *seconds) {
    if (s->family->time != NULL) {
        return s->family->time(s->instance, seconds);
    }
    double before = carry_seconds();
    CARRY_TRY(s->family->run(s->instance));
    *seconds = carry_seconds() - before;
    return CARRY_OK;
}

/* A method's turn: some runs in a row, so that choosing it again (a new plan) does not dominate short problems. */
static carry_status take_turn(session *s, int i) {
    CARRY_SPAN(s->ctx, "bench", "turn");
    carry_bench_result *result = &s->results[i];
    carry_status status = s->family->choose(s->instance, result->algorithm);
    status = status == CARRY_OK ? s->family->run(s->instance) : status;
    if (status == CARRY_EUNSUPPORTED || status == CARRY_EMEMORY) { /* it could be had before: what was timed stands */
        (void)snprintf(result->reason, sizeof result->reason, "%s", carry_ctx_error(s->ctx));
        return CARRY_OK;
    }
    CARRY_TRY(status);
    double started = carry_seconds();
    do {
        double seconds;
        double before = carry_seconds(); /* a sample on a GPU is a graph of many runs: what it takes is what counts */
        CARRY_TRY(time_run(s, &seconds));
        s->samples[i * MOST_RUNS + result->repeats++] = seconds;
        s->spent[i] += carry_seconds() - before;
        if (s->options->stop != NULL && s->options->stop()) {
            return carry_fail(s->ctx, CARRY_EINTERRUPTED, "interrupted");
        }
    } while (wants_more(s, i) && carry_seconds() - started < 0.03);
    result->counts = s->family->counts(s->instance);
    return CARRY_OK;
}

static carry_status take_turns(session *s) {
    for (bool more = true; more;) {
        more = false;
        for (int i = 0; i < s->count; i++) {
            if (wants_more(s, i)) {
                CARRY_TRY(take_turn(s, i));
                more = true;
                if (s->options->progress != NULL) {
                    double wanted = s->options->seconds > 0.0 ? s->options->seconds : SECONDS;
                    s->options->progress(s->options->progress_user, fmin(1.0, s->spent[i] / wanted));
                }
            }
        }
    }
    return CARRY_OK;
}

static int device_of(const session *s) {
    return s->family->device != NULL && s->instance != NULL ? s->family->device(s->instance) : 0;
}

/* Of the device that the problem runs on. */
static carry_ceilings ceilings_of(const session *s, const carry_ceilings *cpu) {
    const carry_gpu *gpu;
    if (device_of(s) == 0 || carry_gpu_of(s->ctx, &gpu, device_of(s)) != CARRY_OK) {
        return *cpu;
    }
    return (carry_ceilings){.gemm_gflops = 1e-9 * gpu->tensor_flops_s, .copy_gbytes_s = 1e-9 * gpu->copy_bytes_s};
}

static void summarise(session *s, int i, const carry_ceilings *ceilings) {
    carry_bench_result *result = &s->results[i];
    int n = result->repeats;
    if (n > 0) {
        result->reason[0] = '\0';
    } else {
        if (result->reason[0] == '\0') {
            (void)snprintf(result->reason, sizeof result->reason, "not reached");
        }
        return;
    }
    double *samples = s->samples + (size_t)i * MOST_RUNS;
    memcpy(s->sorted, samples, (size_t)n * sizeof *samples);
    carry_summary summary = carry_summarise(s->sorted, n);
    result->median = summary.median;
    result->spread = summary.spread;
    if (ceilings != NULL) {
        carry_ceilings here = ceilings_of(s, ceilings);
        double arithmetic = 1e-9 * result->counts.flops / here.gemm_gflops;
        double movement = 1e-9 * result->counts.bytes / here.copy_gbytes_s;
        result->share = fmax(arithmetic, movement) / result->median;
        result->ceilings = here;
    }
}

/* Sets of inputs, so that together they exceed the last cache twice. */
static int copies_for(const session *s, double bytes, bool hot) {
    carry_device_properties device;
    if (hot || carry_device_describe(s->ctx, device_of(s), &device) != CARRY_OK) {
        return 1;
    }
    double wanted = fmin(2.0 * (double)(device.cache > 0 ? device.cache : (size_t)32 << 20), MOST_SET_BYTES);
    int copies = (int)fmin(ceil(wanted / bytes), MOST_COPIES);
    return copies > 1 ? copies : 1;
}

static carry_status open_session(session *s, const char *text) {
    CARRY_SPAN(s->ctx, "bench", "inputs");
    carry_problem problem;
    CARRY_TRY(carry_problem_parse(s->ctx, &problem, text));
    CARRY_TRY(carry_family_find(s->ctx, &s->family, problem.family));
    carry_problem again = problem;
    CARRY_TRY(s->family->open(s->ctx, &s->instance, &problem, s->options->seed, 1));
    int copies = copies_for(s, s->family->bytes(s->instance), s->options->hot);
    if (copies > 1) {
        s->family->close(s->instance);
        s->instance = NULL;
        CARRY_TRY(s->family->open(s->ctx, &s->instance, &again, s->options->seed, copies));
    }
    return CARRY_OK;
}

static carry_status add_method(session *s, const char *name, const char *planned) {
    if (s->count == CARRY_BENCH_METHODS) {
        return carry_fail(s->ctx, CARRY_ESIZE, "more than %d methods cannot be timed at once", CARRY_BENCH_METHODS);
    }
    carry_bench_result *result = &s->results[s->count++];
    *result = (carry_bench_result){.planned = strcmp(name, planned) == 0};
    (void)snprintf(result->algorithm, sizeof result->algorithm, "%s", name);
    return CARRY_OK;
}

static carry_status list_methods(session *s) {
    const char *only = s->family->only(s->instance);
    CARRY_TRY(s->family->choose(s->instance, NULL));
    char planned[24];
    (void)snprintf(planned, sizeof planned, "%s", s->family->chosen(s->instance));
    if (only != NULL) { /* an unknown name, or one that does not apply, is an error here and not a reason */
        CARRY_TRY(s->family->choose(s->instance, only));
    }
    for (int i = 0; s->options->methods != NULL && s->options->methods[i] != NULL; i++) {
        CARRY_TRY(add_method(s, s->options->methods[i], planned));
    }
    if (s->options->methods != NULL) {
        return CARRY_OK;
    }
    for (int i = 0; s->family->method(i) != NULL && s->count < CARRY_BENCH_METHODS; i++) {
        const char *name = s->family->method(i);
        if (only == NULL || strcmp(only, name) == 0) {
            CARRY_TRY(add_method(s, name, planned));
        }
    }
    return CARRY_OK;
}

carry_status carry_bench_problem(carry_ctx *ctx, const char *problem, const carry_ceilings *ceilings,
                                 const carry_bench_options *options, carry_bench_result results[CARRY_BENCH_METHODS],
                                 int *count) {
    CARRY_SPAN(ctx, "bench", "problem");
    session s = {.ctx = ctx, .options = options, .results = results};
    s.samples = calloc((size_t)(CARRY_BENCH_METHODS + 1) * MOST_RUNS, sizeof *s.samples);
    if (s.samples == NULL) {
        return carry_fail(ctx, CARRY_EMEMORY, "no memory for samples");
    }
    s.sorted = s.samples + (size_t)CARRY_BENCH_METHODS * MOST_RUNS;
    carry_status status = open_session(&s, problem);
    if (status == CARRY_OK) {
        status = list_methods(&s);
    }
    for (int i = 0; status == CARRY_OK && i < s.count; i++) {
        status = prepare(&s, &results[i]);
        if (status == CARRY_OK && options->stop != NULL && options->stop()) {
            status = carry_fail(ctx, CARRY_EINTERRUPTED, "interrupted");
        }
    }
    if (status == CARRY_OK) {
        status = take_turns(&s);
    }
    for (int i = 0; i < s.count; i++) {
        summarise(&s, i, ceilings);
        if (options->keep != NULL) {
            options->keep(options->keep_user, &results[i], s.samples + (size_t)i * MOST_RUNS);
        }
    }
    free(s.samples);
    *count = s.count;
    if (s.instance != NULL) {
        s.family->close(s.instance);
    }
    return status;
}
