/* Large products side by side: Carry's packed ones and those of a BLAS that is opened at run time, both with their own
   threads. Prints GFLOP/s of the best repeat (on one thread by processor time), their ratio, and the median of the
   ratios of two neighbouring repeats, which does not depend on changes of the processor's speed.

       bench_products LIBRARY THREADS SECONDS [SIZE...]      LIBRARY is a libopenblas.so, or "none"

   OPENBLAS_CORETYPE chooses the library's kernels. */
#include <dlfcn.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "carry/carry.h"
#include "core/clock.h"
#include "core/memory.h"
#include "ops/kernels/kernels.h"
#include "ops/product/matmul.h"

#define MOST_PAIRS 4096

enum { ROW_MAJOR = 101, PLAIN = 111, TRANSPOSED = 112 };

/* Libraries with 64-bit sizes and with 32-bit ones are called alike: on 64-bit ARM and x86-64 the latter read the low
   halves. */
typedef void (*sgemm_function)(int order, int ta, int tb, int64_t m, int64_t n, int64_t k, float alpha, const float *a,
                               int64_t a_row, const float *b, int64_t b_row, float beta, float *c, int64_t c_row);

typedef struct bench {
    carry_ctx *ctx;
    carry_product p;
    const carry_kernels *kernels;
    sgemm_function sgemm;
} bench;

static void run_own(const bench *b) {
    carry_products_by(b->ctx, b->kernels->product, &b->p);
}

static void run_blas(const bench *b) {
    const carry_product *p = &b->p;
    b->sgemm(ROW_MAJOR, p->a_transposed ? TRANSPOSED : PLAIN, p->b_transposed ? TRANSPOSED : PLAIN, p->m, p->n, p->k,
             1.0f, p->a, p->a_row, p->b, p->b_row, 0.0f, p->c, p->c_row);
}

/* On one thread this is processor time, which other programs do not increase. */
static double now(int threads) {
    struct timespec time;
    return threads == 1 && clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time) == 0
               ? (double)time.tv_sec + 1e-9 * (double)time.tv_nsec
               : carry_seconds();
}

static double seconds_of(const bench *b, bool own, int threads, int calls) {
    double start = now(threads);
    for (int call = 0; call < calls; call++) {
        (own ? run_own : run_blas)(b);
    }
    return (now(threads) - start) / calls;
}

static int by_size(const void *a, const void *b) {
    double x = *(const double *)a;
    double y = *(const double *)b;
    return x < y ? -1 : x > y;
}

/* Measures GFLOP/s of both, and the median ratio. The two take turns, so that both see the same noise. The threads of a
   BLAS spin for some 30 ms after a product and would occupy the cores of our threads, so they are given time to
   sleep. */
static void time_both(const bench *b, int threads, double seconds, double rate[2], double *ratio) {
    static double ratios[MOST_PAIRS];
    double flops = 2.0 * (double)b->p.m * (double)b->p.n * (double)b->p.k;
    int calls = flops < 5e7 ? (int)(5e7 / flops) + 1 : 1;
    double best[2] = {INFINITY, INFINITY};
    int pairs = 0;
    double spent = 0.0;
    for (; pairs < 3 || (spent < seconds && pairs < MOST_PAIRS); pairs++) {
        double own = seconds_of(b, true, threads, calls);
        best[0] = own < best[0] ? own : best[0];
        spent += own * calls;
        if (b->sgemm != NULL) {
            double blas = seconds_of(b, false, threads, calls);
            best[1] = blas < best[1] ? blas : best[1];
            ratios[pairs] = blas / own;
            spent += blas * calls;
            if (threads > 1) {
                (void)nanosleep(&(struct timespec){.tv_nsec = 5000000}, NULL);
            }
        }
    }
    qsort(ratios, (size_t)pairs, sizeof *ratios, by_size);
    rate[0] = 1e-9 * flops / best[0];
    rate[1] = b->sgemm != NULL ? 1e-9 * flops / best[1] : 0.0;
    *ratio = b->sgemm != NULL ? ratios[pairs / 2] : 0.0;
}

static void one_size(bench *b, int64_t n, int threads, double seconds) {
    static const char *const forms[] = {"nn", "tn", "nt", "tt"};
    float *floats = carry_aligned_new((size_t)(3 * n * n) * sizeof(float));
    for (int64_t i = 0; floats != NULL && i < 3 * n * n; i++) {
        floats[i] = (float)(i % 13) - 6.0f;
    }
    for (int form = 0; floats != NULL && form < 4; form++) {
        b->p = (carry_product){.m = n, .n = n, .k = n, .count = 1, .a_row = n, .b_row = n, .c_row = n};
        b->p.a = floats;
        b->p.b = floats + n * n;
        b->p.c = floats + 2 * n * n;
        b->p.a_transposed = (form & 1) != 0;
        b->p.b_transposed = (form & 2) != 0;
        double rate[2];
        double ratio;
        time_both(b, threads, seconds, rate, &ratio);
        printf("%5d %s %7.1f %7.1f %5.2f %6.2f\n", (int)n, forms[form], rate[0], rate[1],
               rate[1] > 0.0 ? rate[0] / rate[1] : 0.0, ratio);
    }
    free(floats);
}

/* A function of the library, by its own name or by the names that libraries in Python packages use. */
static void *find(void *library, const char *name) {
    static const char *const forms[] = {"%s", "scipy_%s", "scipy_%s64_"};
    void *found = NULL;
    for (int i = 0; i < 3 && found == NULL; i++) {
        char symbol[64];
        (void)snprintf(symbol, sizeof symbol, forms[i], name);
        found = dlsym(library, symbol);
    }
    return found;
}

int main(int count, char **word) {
    if (count < 4) {
        (void)fprintf(stderr, "usage: bench_products LIBRARY THREADS SECONDS [SIZE...]\n");
        return 2;
    }
    bench b = {0};
    int threads = atoi(word[2]);
    const char *core = "none";
    if (strcmp(word[1], "none") != 0) {
        void *library = dlopen(word[1], RTLD_NOW | RTLD_LOCAL);
        if (library == NULL) {
            (void)fprintf(stderr, "%s\n", dlerror());
            return 2;
        }
        *(void **)&b.sgemm = find(library, "cblas_sgemm");
        void (*set_threads)(int) = NULL;
        char *(*name)(void) = NULL;
        *(void **)&set_threads = find(library, "openblas_set_num_threads");
        *(void **)&name = find(library, "openblas_get_corename");
        if (set_threads != NULL) {
            set_threads(threads);
        }
        core = name != NULL ? name() : "unknown";
    }
    if (carry_ctx_new(&b.ctx, &(carry_ctx_options){CARRY_INIT(carry_ctx_options), .threads = threads,
                                                   .kernels = getenv("KERNELS")}) != CARRY_OK ||
        carry_kernels_of(b.ctx, &b.kernels) != CARRY_OK) {
        (void)fprintf(stderr, "no context\n");
        return 2;
    }
    printf("%s, %d threads; BLAS's core type %s\n size ab    own    blas ratio median\n", b.kernels->name, threads,
           core);
    for (int i = 4; i < count; i++) {
        one_size(&b, atoi(word[i]), threads, atof(word[3]));
    }
    carry_ctx_free(b.ctx);
    return 0;
}
