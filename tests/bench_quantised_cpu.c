/* Products of one token, or a few, with quantised matrices on one core, beside a loop that only reads memory.

       bench_quantised_cpu [COLUMNS [SECONDS [TOKENS [KERNELS]]]]

   For each format: ns for 256 weights (and all tokens) with the matrix in the L2 cache and from memory (median of the
   repeats, and the best), and the rate at which its bytes are read, as a share of the loop that reads. Processor time.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "carry/carry.h"
#include "core/clock.h"
#include "core/memory.h"
#include "ops/kernels/quant.h"

#define MEMORY ((size_t)192 << 20)
#define CACHE ((size_t)256 << 10)
#define REPEATS 64

typedef struct timing {
    double median, best;
} timing;

static int compare(const void *a, const void *b) {
    const double x = *(const double *)a;
    const double y = *(const double *)b;
    return (x > y) - (x < y);
}

typedef struct work {
    carry_quant_dots_function function;
    carry_quant_dots dots;
} work;

static float sink;

static void multiply(const work *w) {
    carry_quant_dots d = w->dots;
    float y[2048];
    const int64_t most = 2048 / d.tokens;
    d.y_row = most;
    for (int64_t row = 0; row < w->dots.rows; row += d.rows) {
        d.rows = w->dots.rows - row < most ? w->dots.rows - row : most;
        d.w = w->dots.w + (size_t)row * d.row_bytes;
        d.y = y;
        w->function(&d);
        sink += y[0];
    }
}

static void read_all(const work *w) {
    const size_t count = (size_t)w->dots.rows * w->dots.row_bytes / sizeof(uint64_t);
    const unsigned char *at = w->dots.w;
    uint64_t total[16] = {0};
    for (size_t i = 0; i + 16 <= count; i += 16, at += sizeof total) {
        uint64_t v[16];
        memcpy(v, at, sizeof v);
        for (int j = 0; j < 16; j++) {
            total[j] ^= v[j];
        }
    }
    for (int j = 0; j < 16; j++) {
        sink += (float)(total[j] & 1);
    }
}

static timing time_of(void (*run)(const work *), const work *w, double seconds) {
    double all[REPEATS];
    int count = 0;
    run(w);
    for (double start = carry_seconds(); count < REPEATS && (count < 3 || carry_seconds() - start < seconds); count++) {
        const double before = carry_thread_seconds();
        run(w);
        all[count] = carry_thread_seconds() - before;
    }
    qsort(all, (size_t)count, sizeof all[0], compare);
    return (timing){.median = all[count / 2], .best = all[0]};
}

/* Rows of random values, which repeat after 64. */
static unsigned char *make_rows(carry_ctx *ctx, const carry_quant_format *format, int64_t columns, int64_t rows) {
    const size_t row = carry_quant_row_bytes(format, columns);
    unsigned char *made = carry_aligned_new((size_t)rows * row);
    float *values = malloc((size_t)columns * sizeof *values);
    for (int64_t r = 0; made != NULL && values != NULL && r < rows; r++) {
        if (r < 64) {
            (void)carry_random_normal(ctx, carry_view_1d(values, CARRY_F32, columns), 1, (uint64_t)r, 0.0f, 0.02f);
            format->encode(made + (size_t)r * row, values, columns / format->block);
        } else {
            memcpy(made + (size_t)r * row, made + (size_t)(r % 64) * row, row);
        }
    }
    free(values);
    return made;
}

static void measure(carry_ctx *ctx, const carry_quant_kernels *by, const carry_quant_format *format,
                    const carry_quant_x *x, int64_t tokens, double seconds) {
    const size_t row = carry_quant_row_bytes(format, x->columns);
    work w = {.function = carry_quant_dots_by(by, format),
              .dots = {.rows = (int64_t)(MEMORY / row),
                       .tokens = tokens,
                       .blocks = x->columns / format->block,
                       .row_bytes = row,
                       .x = *x}};
    unsigned char *rows = w.function != NULL ? make_rows(ctx, format, x->columns, w.dots.rows) : NULL;
    if (rows == NULL) {
        return;
    }
    w.dots.w = rows;
    const double weights = (double)w.dots.rows * (double)x->columns / 256.0;
    const timing read = time_of(read_all, &w, seconds);
    const timing memory = time_of(multiply, &w, seconds);
    w.dots.rows = (int64_t)(CACHE / row);
    const double few = (double)w.dots.rows * (double)x->columns / 256.0;
    const timing cache = time_of(multiply, &w, seconds);
    (void)printf("%-10s %5zu  %6.2f %6.2f  %6.2f %6.2f  %6.1f %6.1f  %5.0f %%\n", format->name,
                 256 / (size_t)format->block * format->bytes, 1e9 * cache.median / few, 1e9 * cache.best / few,
                 1e9 * memory.median / weights, 1e9 * memory.best / weights, 1e-9 * (double)MEMORY / memory.median,
                 1e-9 * (double)MEMORY / read.median, 100.0 * read.median / memory.median);
    free(rows);
}

int main(int count, char **arguments) {
    const int64_t columns = count > 1 ? strtol(arguments[1], NULL, 10) / 256 * 256 : 2560;
    const double seconds = count > 2 ? strtod(arguments[2], NULL) : 0.5;
    const int64_t tokens = count > 3 ? strtol(arguments[3], NULL, 10) : 1;
    const carry_quant_kernels *by = carry_quant_kernels_for(count > 4 ? arguments[4] : NULL);
    carry_ctx *ctx;
    if (columns <= 0 || tokens <= 0 || tokens > 64 ||
        carry_ctx_new(&ctx, &(carry_ctx_options){CARRY_INIT(carry_ctx_options), .threads = 1}) != CARRY_OK) {
        return 1;
    }
    float *values = malloc((size_t)columns * sizeof *values);
    const carry_quant_x x = {.columns = columns,
                             .q = malloc((size_t)(tokens * columns)),
                             .scale = malloc((size_t)(tokens * columns) / 8),
                             .sum = malloc((size_t)(tokens * columns) / 8)};
    if (values == NULL || x.q == NULL || x.scale == NULL || x.sum == NULL) {
        return 1;
    }
    for (int64_t t = 0; t < tokens; t++) {
        (void)carry_random_normal(ctx, carry_view_1d(values, CARRY_F32, columns), 2, (uint64_t)t, 0.0f, 1.0f);
        by->round(&x, t, values, columns);
    }
    (void)printf("tokens %lld, %lld columns, kernels %s, one core\n", (long long)tokens, (long long)columns, by->name);
    (void)printf("format     bytes  ns, in cache   ns, memory     GB/s   read   share\n");
    for (int i = 0; carry_quant_format_at(i) != NULL; i++) {
        measure(ctx, by, carry_quant_format_at(i), &x, tokens, seconds);
    }
    carry_ctx_free(ctx);
    return sink == 1.0f; /* keeps the sums */
}
