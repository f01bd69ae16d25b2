/* Products of rows with quantised experts on a GPU against sums in float64 over the decoded values: every format, few
   and many rows of an expert, experts without rows, odd numbers of columns, launched and recorded. */
/* labels: gpu */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "carry/device.h"
#include "carry/ops.h"
#include "model/host.h"
#include "ops/experts.h"
#include "ops/quantised/tiles.h"
#include "support.h"

enum { GPU = 1, SKIPPED = 77 };

typedef struct experts_case {
    const carry_quant_format *format;
    int64_t experts, out, in, rows;
    carry_dtype dtype;
    float *values; /* decoded, [experts, out, in] */
    float *x;
    int64_t *offsets;
    carry_tensor W, x_there, y_there, offsets_there;
} experts_case;

static void *there(carry_ctx *ctx, const void *data, size_t bytes) {
    void *made;
    assert_ok(ctx, carry_device_alloc(ctx, &made, GPU, bytes + 16));
    assert_ok(ctx, data != NULL ? carry_device_copy(ctx, made, GPU, data, 0, bytes, NULL)
                                : carry_device_fill(ctx, made, GPU, 0xff, bytes, NULL));
    return made;
}

/* Rows of different magnitudes, one of them zero. */
static void open_weights(carry_ctx *ctx, experts_case *c) {
    const int64_t rows = c->experts * c->out;
    const int64_t blocks = (c->in + c->format->block - 1) / c->format->block;
    const size_t row_bytes = carry_quant_row_bytes(c->format, c->in);
    float *row = malloc((size_t)(blocks * c->format->block) * sizeof *row);
    unsigned char *data = malloc((size_t)rows * row_bytes);
    size_t bytes;
    c->values = malloc((size_t)(rows * c->in) * sizeof *c->values);
    assert_true(row != NULL && data != NULL && c->values != NULL);
    for (int64_t r = 0; r < rows; r++) {
        const float size = r % 7 == 3 ? 0.0f : r % 5 == 1 ? 1e-4f : 0.5f;
        assert_ok(ctx, carry_random_normal(ctx, carry_view_1d(row, CARRY_F32, blocks * c->format->block), 3,
                                           (uint64_t)r, 0.1f * size, size));
        c->format->encode(data + (size_t)r * row_bytes, row, blocks);
    }
    const carry_tensor W = carry_quant_view(data, c->format, rows, c->in);
    for (int64_t r = 0; r < rows; r++) {
        carry_quant_decode(&W, r, 0, c->in, c->values + r * c->in);
    }
    void *source = there(ctx, data, (size_t)rows * row_bytes);
    assert_true(carry_quant_bytes_on(&bytes, GPU, c->format, rows, c->in));
    void *tiles = there(ctx, NULL, bytes);
    assert_ok(ctx, carry_quant_pack(ctx, carry_quant_view_on(GPU, tiles, c->format, rows, c->in), source));
    c->W = carry_quant_stack_view(GPU, tiles, c->format, c->experts, c->out, c->in);
    carry_device_free(ctx, GPU, source);
    free(data);
    free(row);
}

/* Expert 1 has no rows, and expert 0 about half of them. */
static void open_rows(carry_ctx *ctx, experts_case *c) {
    const int64_t count = c->rows * c->in;
    uint16_t *low = malloc((size_t)count * sizeof *low);
    c->x = malloc((size_t)count * sizeof *c->x);
    c->offsets = malloc((size_t)(c->experts + 1) * sizeof *c->offsets);
    assert_true(low != NULL && c->x != NULL && c->offsets != NULL);
    assert_ok(ctx, carry_random_normal(ctx, carry_view_1d(c->x, CARRY_F32, count), 5, 1, 0.0f, 1.0f));
    for (int64_t i = 0; i < count; i++) {
        low[i] = carry_bf16_from_f32(c->x[i]);
        c->x[i] = carry_f32_from_bf16(low[i]);
    }
    c->offsets[0] = 0;
    c->offsets[1] = c->offsets[2] = (c->rows + 1) / 2;
    for (int64_t e = 3; e <= c->experts; e++) {
        c->offsets[e] = c->offsets[2] + (c->rows - c->offsets[2]) * (e - 2) / (c->experts - 2);
    }
    const bool is_wide = c->dtype == CARRY_F32;
    void *data = there(ctx, is_wide ? (const void *)c->x : low, (size_t)count * carry_dtype_size(c->dtype));
    c->x_there = carry_view_on(GPU, data, c->dtype, 2, (const int64_t[]){c->rows, c->in});
    c->offsets_there = carry_view_on(GPU, there(ctx, c->offsets, (size_t)(c->experts + 1) * sizeof *c->offsets),
                                     CARRY_I64, 1, (const int64_t[]){c->experts + 1});
    data = there(ctx, NULL, (size_t)(c->rows * c->out) * carry_dtype_size(c->dtype));
    c->y_there = carry_view_on(GPU, data, c->dtype, 2, (const int64_t[]){c->rows, c->out});
    free(low);
}

static void close_case(carry_ctx *ctx, experts_case *c) {
    void *const data[] = {c->W.data, c->x_there.data, c->y_there.data, c->offsets_there.data};
    for (size_t i = 0; i < sizeof data / sizeof data[0]; i++) {
        carry_device_free(ctx, GPU, data[i]);
    }
    free(c->values);
    free(c->x);
    free(c->offsets);
}

/* Each term has the errors of its weight, at most 2^-8 if it was decoded to bf16 and 2^-11 from its scale, with random
   sign; the result is rounded once. */
static void expect_sums(carry_ctx *ctx, const experts_case *c, const char *how) {
    const double each = c->dtype == CARRY_BF16 ? 0.012 : 0.003;
    const double whole = c->dtype == CARRY_BF16 ? 0.006 : 0.001;
    const int64_t count = c->rows * c->out;
    uint16_t *low = malloc((size_t)count * sizeof *low);
    float *got = malloc((size_t)count * sizeof *got);
    assert_true(low != NULL && got != NULL);
    const bool is_wide = c->dtype == CARRY_F32;
    assert_ok(ctx, carry_read(ctx, carry_view_2d(is_wide ? (void *)got : low, c->dtype, c->rows, c->out), c->y_there));
    for (int64_t i = 0; !is_wide && i < count; i++) {
        got[i] = carry_f32_from_bf16(low[i]);
    }
    for (int64_t e = 0; e < c->experts; e++) {
        for (int64_t t = c->offsets[e]; t < c->offsets[e + 1]; t++) {
            for (int64_t r = 0; r < c->out; r++) {
                const float *w = c->values + (e * c->out + r) * c->in;
                const float *x = c->x + t * c->in;
                double sum = 0.0;
                double squares = 1e-12;
                for (int64_t i = 0; i < c->in; i++) {
                    const double term = (double)w[i] * (double)x[i];
                    sum += term;
                    squares += term * term;
                }
                const double has = (double)got[t * c->out + r];
                if (!(fabs(has - sum) <= each * sqrt(squares) + whole * fabs(sum) + 1e-6)) {
                    fail_msg("%s %d x %d, %d rows of %s, %s: row %d, column %d is %g, expected %g", c->format->name,
                             (int)c->out, (int)c->in, (int)c->rows, carry_dtype_name(c->dtype), how, (int)t, (int)r,
                             has, sum);
                }
            }
        }
    }
    free(got);
    free(low);
}

/* Replays a recorded product, which reads the tiles for any number of rows. */
static void check_recorded(carry_ctx *ctx, const experts_case *c) {
    carry_stream *stream = carry_ctx_stream(ctx, GPU);
    carry_graph *graph = NULL;
    if (carry_graph_begin(ctx, GPU, stream) != CARRY_OK) {
        return; /* an emulated GPU records nothing */
    }
    assert_ok(ctx, carry_grouped_linear(ctx, c->y_there, c->x_there, c->W, c->offsets_there));
    assert_ok(ctx, carry_graph_end(ctx, &graph, GPU, stream));
    assert_ok(ctx, carry_device_fill(ctx, c->y_there.data, GPU, 0xff,
                                     (size_t)(c->rows * c->out) * carry_dtype_size(c->dtype), stream));
    assert_ok(ctx, carry_graph_launch(ctx, GPU, graph, stream));
    expect_sums(ctx, c, "recorded");
    carry_graph_free(ctx, GPU, graph);
}

static void products_equal_float64_in_every_format(void **unused) {
    (void)unused;
    static const int64_t shapes[][3] = {{4, 32, 200}, {5, 176, 1032}, {33, 16, 64}};
    static const int64_t rows[] = {1, 2, 7, 23, 40, 170}; /* more than 8 for each expert are decoded */
    carry_ctx *ctx = support_ctx(2, NULL, NULL);
    for (int f = 0; carry_quant_format_at(f) != NULL; f++) {
        for (size_t s = 0; s < sizeof shapes / sizeof shapes[0]; s++) {
            for (size_t n = 0; n < sizeof rows / sizeof rows[0]; n++) {
                for (int wide = 0; wide < 2; wide++) {
                    experts_case c = {.format = carry_quant_format_at(f),
                                      .experts = shapes[s][0],
                                      .out = shapes[s][1],
                                      .in = shapes[s][2],
                                      .rows = rows[n],
                                      .dtype = wide ? CARRY_F32 : CARRY_BF16};
                    if (!support_takes((int)(n + s) + wide + f, 3)) {
                        continue;
                    }
                    open_weights(ctx, &c);
                    open_rows(ctx, &c);
                    assert_ok(ctx, carry_grouped_linear(ctx, c.y_there, c.x_there, c.W, c.offsets_there));
                    expect_sums(ctx, &c, "launched");
                    check_recorded(ctx, &c);
                    close_case(ctx, &c);
                }
            }
        }
    }
    carry_ctx_free(ctx);
}

/* A stack whose numbers of bytes do not match its shape, and gradients, are refused. */
static void wrong_stacks_are_refused(void **unused) {
    (void)unused;
    carry_ctx *ctx = support_ctx(2, NULL, NULL);
    experts_case c = {.format = &carry_quant_q8_0, .experts = 3, .out = 32, .in = 64, .rows = 4, .dtype = CARRY_F32};
    open_weights(ctx, &c);
    open_rows(ctx, &c);
    for (int i = 0; i < 5; i++) {
        carry_tensor W = c.W;
        W.shape[1] -= i == 0 ? 8 : 0;
        W.shape[2] += i == 1 ? 128 : 0;
        W.stride[0] -= i == 2 ? 16 : 0;
        W.stride[2] = i == 3 ? 77 : W.stride[2];
        W.shape[0] -= i == 4 ? 1 : 0;
        assert_int_not_equal(carry_grouped_linear(ctx, c.y_there, c.x_there, W, c.offsets_there), CARRY_OK);
    }
    assert_int_equal(carry_grouped_linear_backward(ctx, c.x_there, (carry_tensor){0}, c.y_there, c.x_there, c.W,
                                                   c.offsets_there, false),
                     CARRY_EUNSUPPORTED);
    close_case(ctx, &c);
    carry_ctx_free(ctx);
}

int main(void) {
    if (carry_device_count() < 2) {
        (void)printf("skipped: no GPU\n");
        return SKIPPED;
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(products_equal_float64_in_every_format),
        cmocka_unit_test(wrong_stacks_are_refused),
    };
    return cmocka_run_group_tests_name("ops_quantised_experts_gpu", tests, NULL, NULL);
}
