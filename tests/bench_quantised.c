/* Not a test: products of a few rows of activations with quantised matrices on a GPU, beside a copy.
   bench_quantised DEVICE [FORMAT...]: shapes of Qwen3.5-4B. Copies of a matrix take turns, 400 MB in all, so that none
   is in the L2 cache; 40 products are recorded in a graph and overlap as those of a decoding step do. Results are
   compared with sums in float64 before they are timed. For each matrix, kernels that copy or only read as many bytes
   are timed in the same way, so that one can see how much of the gap to a large copy is the start of a short kernel. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "carry/carry.h"
#include "carry/device.h"
#include "carry/ops.h"
#include "core/clock.h"
#include "core/tensor.h"
#include "ops/quantised/tile_product.h"

#include "bench_quantised_copy.h"

enum { PRODUCTS = 40, REPLAYS = 15, RANDOM_ROWS = 64, MOST_COPIES = 64, MOST_ROWS = 32 };

typedef struct bench {
    carry_ctx *ctx;
    int device, ordinal;
    carry_stream *stream;
    double copy; /* bytes a second, read and written */
} bench;

typedef struct matrix_copies {
    const carry_quant_format *format;
    int64_t rows, columns;
    carry_quant_tiles layout;
    float *values; /* [RANDOM_ROWS, columns]: the rows, which repeat */
    unsigned char *tiles[MOST_COPIES];
    int count;
} matrix_copies;

static void check(carry_ctx *ctx, carry_status status) {
    if (status != CARRY_OK) {
        (void)fprintf(stderr, "bench_quantised: %s\n", carry_ctx_error(ctx));
        exit(1);
    }
}

static void *there(const bench *b, size_t bytes) {
    void *made;
    check(b->ctx, carry_device_alloc(b->ctx, &made, b->device, bytes));
    return made;
}

static int by_value(const void *a, const void *b) {
    const double d = *(const double *)a - *(const double *)b;
    return d < 0 ? -1 : d > 0 ? 1 : 0;
}

static void measure_copy(bench *b) {
    const size_t bytes = (size_t)1 << 30;
    void *from = there(b, bytes);
    void *to = there(b, bytes);
    double took[REPLAYS];
    check(b->ctx, carry_device_fill(b->ctx, from, b->device, 1, bytes, b->stream));
    for (int i = 0; i < REPLAYS; i++) {
        check(b->ctx, carry_stream_wait(b->ctx, b->device, b->stream));
        const double begin = carry_seconds();
        check(b->ctx, carry_device_copy(b->ctx, to, b->device, from, b->device, bytes, b->stream));
        check(b->ctx, carry_stream_wait(b->ctx, b->device, b->stream));
        took[i] = carry_seconds() - begin;
    }
    qsort(took, REPLAYS, sizeof took[0], by_value);
    b->copy = 2.0 * (double)bytes / took[REPLAYS / 2];
    (void)printf("copy of 1 GiB: %.0f GB/s\n", 1e-9 * b->copy);
    carry_device_free(b->ctx, b->device, from);
    carry_device_free(b->ctx, b->device, to);
}

static void open_matrix(const bench *b, matrix_copies *m, const carry_quant_format *format, int64_t rows,
                        int64_t columns) {
    *m = (matrix_copies){.format = format, .rows = rows, .columns = columns};
    const int64_t blocks = (columns + format->block - 1) / format->block;
    const size_t row = carry_quant_row_bytes(format, columns);
    float *numbers = malloc((size_t)(RANDOM_ROWS * blocks * format->block) * sizeof *numbers);
    unsigned char *encoded = malloc(RANDOM_ROWS * row);
    m->values = malloc((size_t)(RANDOM_ROWS * columns) * sizeof *m->values);
    (void)carry_quant_tiles_of(&m->layout, carry_quant_format_index(format), rows, columns);
    check(b->ctx, carry_random_normal(b->ctx, carry_view_1d(numbers, CARRY_F32, RANDOM_ROWS * blocks * format->block),
                                      1, 1, 0.0f, 0.05f));
    for (int64_t r = 0; r < RANDOM_ROWS; r++) {
        format->encode(encoded + (size_t)r * row, numbers + r * blocks * format->block, blocks);
    }
    const carry_tensor here = carry_quant_view(encoded, format, RANDOM_ROWS, columns);
    for (int64_t r = 0; r < RANDOM_ROWS; r++) {
        carry_quant_decode(&here, r, 0, columns, m->values + r * columns);
    }
    void *source = there(b, RANDOM_ROWS * row);
    check(b->ctx, carry_device_copy(b->ctx, source, b->device, encoded, 0, RANDOM_ROWS * row, NULL));
    m->count = (int)((size_t)400000000 / m->layout.all_bytes) + 1;
    m->count = m->count < MOST_COPIES ? m->count : MOST_COPIES;
    for (int i = 0; i < m->count; i++) {
        m->tiles[i] = there(b, m->layout.all_bytes);
        const carry_tensor W = carry_quant_tiles_view(b->device, m->tiles[i], &m->layout);
        for (int64_t r = 0; r < rows; r += RANDOM_ROWS) {
            check(b->ctx,
                  carry_quant_pack(b->ctx, carry_slice(W, r, rows - r < RANDOM_ROWS ? rows - r : RANDOM_ROWS), source));
        }
    }
    check(b->ctx, carry_stream_wait(b->ctx, b->device, carry_ctx_stream(b->ctx, b->device)));
    carry_device_free(b->ctx, b->device, source);
    free(numbers);
    free(encoded);
}

static void close_matrix(const bench *b, matrix_copies *m) {
    for (int i = 0; i < m->count; i++) {
        carry_device_free(b->ctx, b->device, m->tiles[i]);
    }
    free(m->values);
}

static void put(const bench *b, const matrix_copies *m, carry_tile_product *p, int sequences) {
    for (int i = 0; i < PRODUCTS; i++) {
        p->maps[0].tiles = m->tiles[i % m->count];
        p->is_second = i % 2 == 1;
        check(b->ctx, carry_cuda_tile_product(b->ctx, b->ordinal, b->stream, p, sequences, true));
    }
}

/* Seconds of one of the PRODUCTS kernels of a recorded graph: median, least and most of REPLAYS. Frees the graph. */
static void time_graph(const bench *b, carry_graph *graph, double took[REPLAYS]) {
    for (int i = -2; i < REPLAYS; i++) {
        const double begin = carry_seconds();
        for (int j = 0; j < 5; j++) { /* the launch of a graph is hidden behind the one before it */
            check(b->ctx, carry_graph_launch(b->ctx, b->device, graph, b->stream));
        }
        check(b->ctx, carry_stream_wait(b->ctx, b->device, b->stream));
        took[i < 0 ? 0 : i] = (carry_seconds() - begin) / (5 * PRODUCTS);
    }
    qsort(took, REPLAYS, sizeof took[0], by_value);
    carry_graph_free(b->ctx, b->device, graph);
}

/* Seconds of a kernel that copies a matrix, or only reads it if `to` is NULL: the fastest of 1, 2 and 4 blocks of a
   multiprocessor. */
static double time_bytes(const bench *b, const matrix_copies *m, unsigned char *const *to, bool overlaps) {
    double best = 1e30;
    void *result = there(b, sizeof(uint32_t));
    for (int blocks = 1; blocks <= 4; blocks *= 2) {
        carry_graph *graph;
        double took[REPLAYS];
        int error = 0;
        check(b->ctx, carry_graph_begin(b->ctx, b->device, b->stream));
        for (int i = 0; i < PRODUCTS && error == 0; i++) {
            const int at = i % m->count;
            error = bench_stream_bytes(m->tiles[at], to != NULL ? to[at] : NULL, m->layout.all_bytes, blocks, overlaps,
                                       b->ordinal, result, b->stream);
        }
        check(b->ctx, carry_graph_end(b->ctx, &graph, b->device, b->stream));
        if (error != 0) {
            (void)fprintf(stderr, "bench_quantised: a copy cannot be launched: CUDA error %d\n", error);
            exit(1);
        }
        time_graph(b, graph, took);
        best = took[REPLAYS / 2] < best ? took[REPLAYS / 2] : best;
    }
    carry_device_free(b->ctx, b->device, result);
    return best;
}

/* Prints the times of kernels that copy and read a matrix. Those that overlap start before the one before has ended. */
static void measure_bytes(const bench *b, const matrix_copies *m) {
    unsigned char *to[MOST_COPIES];
    const double bytes = (double)m->layout.all_bytes;
    for (int i = 0; i < m->count; i++) {
        to[i] = there(b, m->layout.all_bytes);
    }
    for (int overlaps = 1; overlaps >= 0; overlaps--) {
        const double copy = time_bytes(b, m, to, overlaps == 1);
        const double read = time_bytes(b, m, NULL, overlaps == 1);
        (void)printf("%-10s %5d x %5d, %s: copy %6.2f us, %4.0f GB/s; read %6.2f us, %4.0f GB/s\n", m->format->name,
                     (int)m->rows, (int)m->columns, overlaps == 1 ? "overlapping" : "one by one ", 1e6 * copy,
                     2e-9 * bytes / copy, 1e6 * read, 1e-9 * bytes / read);
    }
    (void)fflush(stdout);
    for (int i = 0; i < m->count; i++) {
        carry_device_free(b->ctx, b->device, to[i]);
    }
}

/* The largest error of the sums, relative to the root of the sum of squares. */
static double error_of(const matrix_copies *m, const uint16_t *x, const float *y, int sequences) {
    double worst = 0;
    for (int s = 0; s < sequences; s++) {
        for (int64_t r = 0; r < m->rows; r += r < RANDOM_ROWS ? 1 : 61) {
            double sum = 0;
            double squares = 1e-30;
            for (int64_t i = 0; i < m->columns; i++) {
                const double term = (double)m->values[r % RANDOM_ROWS * m->columns + i] *
                                    (double)carry_f32_from_bf16(x[s * m->columns + i]);
                sum += term;
                squares += term * term;
            }
            const double off = fabs((double)y[s * m->rows + r] - sum) / sqrt(squares);
            worst = off > worst || isnan(off) ? off : worst;
        }
    }
    return worst;
}

static void measure(const bench *b, const matrix_copies *m, int sequences) {
    const size_t x_count = (size_t)(sequences * m->columns);
    const size_t y_count = (size_t)(sequences * m->rows);
    uint16_t *x = malloc(x_count * sizeof *x);
    float *y = malloc(y_count * sizeof *y);
    for (size_t i = 0; i < x_count; i++) {
        x[i] = carry_bf16_from_f32((float)((int)((uint32_t)i * 2654435761u >> 20) - 2048) / 1024.0f);
    }
    carry_tile_product p = {.count = 1,
                            .maps = {{.tiles = m->tiles[0], .rows = (int)m->rows}},
                            .x = there(b, x_count * sizeof *x),
                            .y = there(b, y_count * sizeof *y),
                            .x_stride = m->columns,
                            .y_stride = m->rows,
                            .y_is_wide = true};
    carry_graph *graph;
    double took[REPLAYS];
    carry_tile_product_finish(&p, &m->layout);
    check(b->ctx, carry_device_copy(b->ctx, (void *)(uintptr_t)p.x, b->device, x, 0, x_count * sizeof *x, b->stream));
    check(b->ctx, carry_device_fill(b->ctx, p.y, b->device, 0xff, y_count * sizeof *y, b->stream));
    put(b, m, &p, sequences);
    check(b->ctx, carry_device_copy(b->ctx, y, 0, p.y, b->device, y_count * sizeof *y, b->stream));
    check(b->ctx, carry_stream_wait(b->ctx, b->device, b->stream));
    const double error = error_of(m, x, y, sequences);
    check(b->ctx, carry_graph_begin(b->ctx, b->device, b->stream));
    put(b, m, &p, sequences);
    check(b->ctx, carry_graph_end(b->ctx, &graph, b->device, b->stream));
    time_graph(b, graph, took);
    (void)printf("%-10s %5d x %5d, %2d rows: %6.2f us (%.2f to %.2f), %3.0f %% of a copy, error %.1e\n",
                 m->format->name, (int)m->rows, (int)m->columns, sequences, 1e6 * took[REPLAYS / 2], 1e6 * took[0],
                 1e6 * took[REPLAYS - 1], 100.0 * (double)m->layout.all_bytes / b->copy / took[REPLAYS / 2], error);
    (void)fflush(stdout);
    carry_device_free(b->ctx, b->device, (void *)(uintptr_t)p.x);
    carry_device_free(b->ctx, b->device, p.y);
    free(x);
    free(y);
}

int main(int argc, char **argv) {
    static const int64_t shapes[][2] = {{9216, 2560}, {12288, 2560}, {2560, 9216}, {2560, 4096}};
    static const int rows[] = {1, 2, 4, 8, 16, 32};
    bench b = {.device = argc > 1 ? atoi(argv[1]) : 1};
    b.ordinal = b.device - 1;
    if (carry_ctx_new(&b.ctx, NULL) != CARRY_OK) {
        return 1;
    }
    if (!carry_cuda_tile_product_works(b.ordinal)) {
        (void)fprintf(stderr, "bench_quantised: device %d has no kernels for quantised matrices\n", b.device);
        return 1;
    }
    check(b.ctx, carry_stream_new(b.ctx, &b.stream, b.device));
    measure_copy(&b);
    for (int i = 0; carry_quant_format_at(i) != NULL; i++) {
        const carry_quant_format *format = carry_quant_format_at(i);
        bool is_asked = argc < 3 && format->encode != NULL;
        for (int j = 2; j < argc; j++) {
            is_asked = is_asked || strcmp(argv[j], format->name) == 0;
        }
        for (int shape = 0; is_asked && shape < 4; shape++) {
            matrix_copies m;
            open_matrix(&b, &m, format, shapes[shape][0], shapes[shape][1]);
            measure_bytes(&b, &m);
            for (int j = 0; j < (shape == 0 ? 6 : 1); j++) {
                measure(&b, &m, rows[j]);
            }
            close_matrix(&b, &m);
        }
    }
    carry_stream_free(b.ctx, b.device, b.stream);
    carry_ctx_free(b.ctx);
    return 0;
}
