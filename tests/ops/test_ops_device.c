/* Operators on GPUs against those of the CPU: conversions bit by bit, element-wise operators, products of every form,
   type, size and alignment; tensors in the wrong memory are refused. Skipped, with the reason, where there is no
   GPU. */
/* labels: gpu */
#include <math.h>

#include "ops/table.h"
#include "support.h"

enum { GPU = 1, SKIPPED = 77 };

static const carry_dtype types[] = {CARRY_F32, CARRY_BF16, CARRY_F16};

static void *host(size_t bytes) {
    void *made = malloc(bytes > 0 ? bytes : 1);
    assert_non_null(made);
    memset(made, 0xff, bytes);
    return made;
}

/* Copies host data to the GPU, `shift` bytes after an aligned address. */
static char *upload(carry_ctx *ctx, const void *data, size_t bytes, size_t shift) {
    char *there;
    assert_ok(ctx, carry_device_alloc(ctx, (void **)&there, GPU, bytes + shift));
    assert_ok(ctx, carry_device_copy(ctx, there + shift, GPU, data, 0, bytes, NULL));
    return there;
}

static carry_tensor on_gpu(carry_tensor tensor, void *data) {
    tensor.data = data;
    tensor.device = GPU;
    return tensor;
}

/* Every pattern of 16 bits, and patterns of 32 bits around every step of rounding: each exponent with fractions at,
   below and above the halves, and random ones. */
static int64_t patterns(uint32_t *bits, int64_t count) {
    static const uint32_t fractions[] = {0,        1,        0xfff,    0x1000,   0x1001,   0x1fff,  0x2000,   0x3000,
                                         0x7fff,   0x8000,   0x8001,   0xffff,   0x10000,  0x18000, 0x7fffff, 0x7fe000,
                                         0x7ff000, 0x7f0000, 0x7f8000, 0x400000, 0x400001, 0x200000};
    int64_t made = 0;
    for (uint32_t exponent = 0; exponent < 512; exponent++) { /* with the sign */
        for (size_t i = 0; i < sizeof fractions / sizeof fractions[0] && made < count; i++) {
            bits[made++] = exponent << 23 | fractions[i];
        }
    }
    uint32_t state = 12345;
    while (made < count) {
        state = state * 1664525u + 1013904223u;
        bits[made++] = state ^ (state >> 15);
    }
    return made;
}

static void check_conversion(carry_ctx *ctx, carry_dtype to, carry_dtype from, const void *data, int64_t count,
                             size_t shift) {
    size_t to_bytes = (size_t)count * carry_dtype_size(to);
    size_t from_bytes = (size_t)count * carry_dtype_size(from);
    unsigned char *expected = host(to_bytes);
    unsigned char *got = host(to_bytes);
    char *there = upload(ctx, data, from_bytes, shift * carry_dtype_size(from));
    char *result = upload(ctx, got, to_bytes, shift * carry_dtype_size(to));
    carry_tensor x = carry_view_1d((void *)(uintptr_t)data, from, count);
    carry_tensor y = carry_view_1d(expected, to, count);
    assert_ok(ctx, carry_convert(ctx, y, x));
    assert_ok(ctx, carry_convert(ctx, on_gpu(y, result + shift * carry_dtype_size(to)),
                                 on_gpu(x, there + shift * carry_dtype_size(from))));
    assert_ok(ctx, carry_device_copy(ctx, got, 0, result + shift * carry_dtype_size(to), GPU, to_bytes, NULL));
    for (size_t i = 0; i < to_bytes; i++) {
        if (expected[i] != got[i]) {
            fail_msg("%s from %s, %lld elements, shifted by %zu: byte %zu is %#x, not %#x", carry_dtype_name(to),
                     carry_dtype_name(from), (long long)count, shift, i, got[i], expected[i]);
        }
    }
    carry_device_free(ctx, GPU, there);
    carry_device_free(ctx, GPU, result);
    free(expected);
    free(got);
}

static void conversions_have_the_bits_of_the_cpu(void **unused) {
    (void)unused;
    enum { COUNT = 300007 };
    static uint32_t wide[COUNT];
    static uint16_t narrow[65536];
    carry_ctx *ctx = support_ctx(1, "plain", NULL);
    assert_int_equal(patterns(wide, COUNT), COUNT);
    for (int i = 0; i < 65536; i++) {
        narrow[i] = (uint16_t)i;
    }
    static const int64_t counts[] = {0, 1, 7, 8, 9, 257, 65536};
    for (int to = 0; to < 3; to++) {
        check_conversion(ctx, types[to], CARRY_F32, wide, COUNT, 0);
        check_conversion(ctx, types[to], CARRY_F32, wide, COUNT, 1);
        for (int from = 1; from < 3; from++) {
            for (size_t i = 0; i < sizeof counts / sizeof counts[0]; i++) {
                check_conversion(ctx, types[to], types[from], narrow, counts[i], 0);
                check_conversion(ctx, types[to], types[from], narrow, counts[i], 3);
            }
        }
    }
    carry_ctx_free(ctx);
}

static void a_conversion_may_be_in_place(void **unused) {
    (void)unused;
    enum { COUNT = 1001 };
    uint16_t data[COUNT];
    uint16_t expected[COUNT];
    carry_ctx *ctx = support_ctx(1, "plain", NULL);
    assert_ok(ctx, carry_random_normal(ctx, carry_view_1d(data, CARRY_BF16, COUNT), 3, 0, 0.0f, 2.0f));
    assert_ok(ctx,
              carry_convert(ctx, carry_view_1d(expected, CARRY_F16, COUNT), carry_view_1d(data, CARRY_BF16, COUNT)));
    char *there = upload(ctx, data, sizeof data, 0);
    assert_ok(ctx, carry_convert(ctx, on_gpu(carry_view_1d(data, CARRY_F16, COUNT), there),
                                 on_gpu(carry_view_1d(data, CARRY_BF16, COUNT), there)));
    assert_ok(ctx, carry_device_copy(ctx, data, 0, there, GPU, sizeof data, NULL));
    assert_memory_equal(data, expected, sizeof data);
    carry_device_free(ctx, GPU, there);
    carry_ctx_free(ctx);
}

/* Sums, differences and products of two numbers are rounded once to f32 and once to the type, on both devices. */
static void elementwise_operators_equal_those_of_the_cpu(void **unused) {
    (void)unused;
    enum { COUNT = 4099 };
    static uint32_t x[COUNT], y[COUNT], expected[COUNT], got[COUNT];
    carry_ctx *ctx = support_ctx(1, "plain", NULL);
    for (int from = 0; from < 3; from++) {
        assert_ok(ctx, carry_random_normal(ctx, carry_view_1d(x, types[from], COUNT), 5, 0, 0.0f, 3.0f));
        assert_ok(ctx, carry_random_normal(ctx, carry_view_1d(y, types[from], COUNT), 5, 1, 0.0f, 3.0f));
        char *x_there = upload(ctx, x, sizeof x, 0);
        char *y_there = upload(ctx, y, sizeof y, 0);
        for (int to = 0; to < 3; to++) {
            for (int op = CARRY_ADD; op <= CARRY_MULTIPLY; op++) {
                carry_tensor X = carry_view_1d(x, types[from], COUNT);
                carry_tensor Y = carry_view_1d(y, types[from], COUNT);
                carry_tensor Z = carry_view_1d(expected, types[to], COUNT);
                size_t bytes = COUNT * carry_dtype_size(types[to]);
                memset(got, 0xff, sizeof got);
                char *there = upload(ctx, got, sizeof got, 0);
                assert_ok(ctx, carry_elementwise(ctx, Z, X, Y, (carry_elementwise_op)op));
                assert_ok(ctx, carry_elementwise(ctx, on_gpu(Z, there), on_gpu(X, x_there), on_gpu(Y, y_there),
                                                 (carry_elementwise_op)op));
                assert_ok(ctx, carry_device_copy(ctx, got, 0, there, GPU, bytes, NULL));
                assert_memory_equal(got, expected, bytes);
                carry_device_free(ctx, GPU, there);
            }
        }
        carry_device_free(ctx, GPU, x_there);
        carry_device_free(ctx, GPU, y_there);
    }
    carry_ctx_free(ctx);
}

typedef struct product_case {
    int64_t batch, m, n, k;
    carry_matmul_options options;
    carry_dtype type, c_type;
    int64_t pad; /* elements between rows, which make rows unaligned */
    bool repeat; /* one a for the whole batch */
} product_case;

/* An array of batch x rows x (columns + pad) numbers in [-1, 1], on the CPU and on the GPU. */
typedef struct both {
    char *here, *there;
    carry_tensor tensor; /* here */
    size_t bytes;
} both;

static both make(carry_ctx *ctx, carry_dtype dtype, int64_t batch, int64_t rows, int64_t columns, int64_t pad,
                 uint64_t stream) {
    both made;
    carry_tensor whole = carry_view_3d(NULL, dtype, batch, rows, columns + pad);
    made.bytes = (size_t)(batch * rows * (columns + pad)) * carry_dtype_size(dtype);
    made.here = host(made.bytes);
    whole.data = made.here;
    assert_ok(ctx, carry_random_uniform(ctx, whole, 11, stream, -1.0f, 1.0f));
    made.there = upload(ctx, made.here, made.bytes, 0);
    made.tensor = whole;
    made.tensor.shape[2] = columns;
    return made;
}

static void unmake(carry_ctx *ctx, both *made) {
    carry_device_free(ctx, GPU, made->there);
    free(made->here);
}

static double element(const carry_tensor *tensor, int64_t item, int64_t row, int64_t column) {
    int64_t at = item * tensor->stride[0] + row * tensor->stride[1] + column;
    const uint16_t *halves = tensor->data;
    return tensor->dtype == CARRY_F32    ? (double)((const float *)tensor->data)[at]
           : tensor->dtype == CARRY_BF16 ? (double)carry_f32_from_bf16(halves[at])
                                         : (double)carry_f32_from_f16(halves[at]);
}

/* The error is at most 1e-6 times the sum of |a||b|, which f32 promises and the split of f32 keeps. For 16-bit a and b,
   whose products are exact, sums on tensor cores lose up to 2^-22 of that sum at each of k / 16 steps. A 16-bit c adds
   half a unit of its type. A product that is added to such a c may have been rounded to c's type before (cuBLASLt
   does): half a unit of the product more. */
static void compare(const product_case *t, const both *a, const both *b, const both *c, const carry_tensor *before) {
    double unit = t->c_type == CARRY_BF16 ? 0x1p-8 : t->c_type == CARRY_F16 ? 0x1p-11 : 0.0;
    for (int64_t i = 0; i < t->batch * t->m * t->n; i++) {
        int64_t item = i / (t->m * t->n);
        int64_t row = i / t->n % t->m;
        int64_t column = i % t->n;
        double sum = t->options.accumulate ? element(before, item, row, column) : 0.0;
        double magnitude = fabs(sum);
        for (int64_t l = 0; l < t->k; l++) {
            double x = t->options.a_transposed ? element(&a->tensor, item, l, row) : element(&a->tensor, item, row, l);
            double y =
                t->options.b_transposed ? element(&b->tensor, item, column, l) : element(&b->tensor, item, l, column);
            sum += x * y;
            magnitude += fabs(x * y);
        }
        double product = sum - (t->options.accumulate ? element(before, item, row, column) : 0.0);
        double got = element(&c->tensor, item, row, column);
        double bound = (t->type == CARRY_F32 ? 1e-6 : 0x1p-22 * (double)(t->k / 16 + 2)) * magnitude +
                       unit * (fabs(sum) + (t->options.accumulate ? fabs(product) : 0.0)) +
                       (t->c_type == CARRY_F16 ? 0x1p-25 : 0.0);
        if (!(fabs(got - sum) <= bound)) {
            fail_msg("%s to %s, %lldx%lldx%lld batch %lld%s%s%s pad %lld: element %lld is %.9g, not %.9g (bound %.3g)",
                     carry_dtype_name(t->type), carry_dtype_name(t->c_type), (long long)t->m, (long long)t->n,
                     (long long)t->k, (long long)t->batch, t->options.a_transposed ? " a^T" : "",
                     t->options.b_transposed ? " b^T" : "", t->options.accumulate ? " added" : "", (long long)t->pad,
                     (long long)i, got, sum, bound);
        }
    }
}

/* The gaps between c's rows must stay unchanged. */
static void check_gaps(const product_case *t, const both *c, const char *before) {
    size_t size = carry_dtype_size(t->c_type);
    size_t row = (size_t)(t->n + t->pad) * size;
    for (int64_t i = 0; i < t->batch * t->m; i++) {
        size_t at = (size_t)i * row + (size_t)t->n * size;
        assert_memory_equal(c->here + at, before + at, (size_t)t->pad * size);
    }
}

static void check_product(carry_ctx *ctx, const product_case *t) {
    const carry_matmul_options *o = &t->options;
    both a = make(ctx, t->type, t->batch, o->a_transposed ? t->k : t->m, o->a_transposed ? t->m : t->k, t->pad, 1);
    both b = make(ctx, t->type, t->batch, o->b_transposed ? t->n : t->k, o->b_transposed ? t->k : t->n, t->pad, 2);
    both c = make(ctx, t->c_type, t->batch, t->m, t->n, t->pad, 3);
    char *kept = host(c.bytes);
    memcpy(kept, c.here, c.bytes);
    carry_tensor before = c.tensor;
    before.data = kept;
    if (t->repeat) {
        a.tensor.stride[0] = 0;
    }
    assert_ok(ctx,
              carry_matmul(ctx, on_gpu(c.tensor, c.there), on_gpu(a.tensor, a.there), on_gpu(b.tensor, b.there), o));
    assert_ok(ctx, carry_stream_wait(ctx, GPU, carry_ctx_stream(ctx, GPU)));
    assert_ok(ctx, carry_device_copy(ctx, c.here, 0, c.there, GPU, c.bytes, NULL));
    compare(t, &a, &b, &c, &before);
    check_gaps(t, &c, kept);
    unmake(ctx, &a);
    unmake(ctx, &b);
    unmake(ctx, &c);
    free(kept);
}

static void products_are_right_for_every_size_form_and_type(void **unused) {
    (void)unused;
    static const int64_t sizes[][4] = {{1, 1, 1, 1},    {5, 16, 16, 16}, {3, 15, 17, 5},   {2, 32, 32, 32},
                                       {3, 33, 31, 65}, {7, 64, 64, 64}, {2, 63, 1, 127},  {1, 1, 64, 200},
                                       {9, 4, 4, 4},    {2, 8, 24, 40},  {2, 100, 80, 72}, {1, 130, 257, 300},
                                       {3, 20, 20, 0}};
    carry_ctx *ctx = support_ctx(1, NULL, NULL);
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        for (int form = 0; form < 8; form++) {
            for (int type = 0; type < 6; type++) {
                product_case t = {
                    .batch = sizes[i][0],
                    .m = sizes[i][1],
                    .n = sizes[i][2],
                    .k = sizes[i][3],
                    .options = {CARRY_INIT(carry_matmul_options), form & 1, (form & 2) != 0, (form & 4) != 0},
                    .type = types[type % 3],
                    .c_type = type < 3 ? CARRY_F32 : types[type % 3],
                    .pad = (int64_t)(i + (size_t)form) % 3 * 3};
                check_product(ctx, &t);
                t.pad = 0;
                t.repeat = form == 0;
                check_product(ctx, &t);
            }
        }
    }
    carry_ctx_free(ctx);
}

/* Every implementation in the table, also for sizes for which it is not chosen. */
static void every_way_to_a_product_gives_the_same(void **unused) {
    (void)unused;
    carry_ctx *ctx = support_ctx(1, NULL, NULL);
    const carry_operators *ops;
    int ordinal;
    assert_ok(ctx, carry_operators_of(ctx, &ops, "test", GPU, &ordinal));
    for (int way = 0; ops->ways[way] != NULL; way++) {
        product_case t = {.batch = 3, .m = 96, .n = 72, .k = 264, .type = CARRY_F16, .c_type = CARRY_F32};
        both a = make(ctx, t.type, t.batch, t.m, t.k, 0, 1);
        both b = make(ctx, t.type, t.batch, t.k, t.n, 0, 2);
        both c = make(ctx, t.c_type, t.batch, t.m, t.n, 0, 3);
        carry_device_product p = {.m = t.m,
                                  .n = t.n,
                                  .k = t.k,
                                  .count = t.batch,
                                  .a = a.there,
                                  .b = b.there,
                                  .c = c.there,
                                  .a_row = t.k,
                                  .b_row = t.n,
                                  .c_row = t.n,
                                  .a_next = t.m * t.k,
                                  .b_next = t.k * t.n,
                                  .c_next = t.m * t.n,
                                  .type = t.type,
                                  .c_type = t.c_type,
                                  .ordinal = ordinal};
        carry_status status = ops->product(ctx, &p, ops->ways[way]);
        if (status == CARRY_EUNSUPPORTED) {
            print_message("skipped: %s\n", carry_ctx_error(ctx));
        } else {
            assert_ok(ctx, status);
            assert_ok(ctx, carry_device_copy(ctx, c.here, 0, c.there, GPU, c.bytes, NULL));
            compare(&t, &a, &b, &c, NULL);
        }
        unmake(ctx, &a);
        unmake(ctx, &b);
        unmake(ctx, &c);
    }
    carry_ctx_free(ctx);
}

/* A product and a conversion recorded and launched on a stream of the context, small and large. */
static void operators_work_on_the_stream_of_the_context_and_in_graphs(void **unused) {
    (void)unused;
    carry_ctx *ctx = support_ctx(1, NULL, NULL);
    carry_stream *stream;
    assert_ok(ctx, carry_stream_new(ctx, &stream, GPU));
    assert_ok(ctx, carry_ctx_set_stream(ctx, GPU, stream));
    for (int64_t n = 48; n <= 144; n += 96) {
        product_case t = {.batch = 2, .m = n, .n = n, .k = n, .type = CARRY_BF16, .c_type = CARRY_F32};
        carry_graph *graph;
        both a = make(ctx, t.type, t.batch, n, n, 0, 1);
        both b = make(ctx, t.type, t.batch, n, n, 0, 2);
        both c = make(ctx, t.c_type, t.batch, n, n, 0, 3);
        carry_tensor A = on_gpu(a.tensor, a.there);
        carry_tensor B = on_gpu(b.tensor, b.there);
        carry_tensor C = on_gpu(c.tensor, c.there);
        assert_ok(ctx, carry_stream_wait(ctx, GPU, NULL)); /* the copies to the GPU were queued in its default stream */
        assert_ok(ctx, carry_matmul(ctx, C, A, B, NULL));
        assert_ok(ctx, carry_graph_begin(ctx, GPU, stream));
        assert_ok(ctx, carry_matmul(ctx, C, A, B, NULL));
        assert_ok(ctx, carry_graph_end(ctx, &graph, GPU, stream));
        assert_ok(ctx, carry_device_fill(ctx, c.there, GPU, 0xff, c.bytes, stream));
        assert_ok(ctx, carry_graph_launch(ctx, GPU, graph, stream));
        assert_ok(ctx, carry_device_copy(ctx, c.here, 0, c.there, GPU, c.bytes, stream));
        assert_ok(ctx, carry_stream_wait(ctx, GPU, stream));
        compare(&t, &a, &b, &c, NULL);
        carry_graph_free(ctx, GPU, graph);
        unmake(ctx, &a);
        unmake(ctx, &b);
        unmake(ctx, &c);
    }
    assert_ok(ctx, carry_ctx_set_stream(ctx, GPU, NULL));
    carry_stream_free(ctx, GPU, stream);
    carry_ctx_free(ctx);
}

/* Uses more streams, one after the other, than products have workspaces for. Sums of 8,192 terms are best split. */
static void a_product_has_the_same_bits_on_every_stream(void **unused) {
    (void)unused;
    carry_ctx *ctx = support_ctx(1, NULL, NULL);
    both a = make(ctx, CARRY_BF16, 1, 64, 8192, 0, 1);
    both b = make(ctx, CARRY_BF16, 1, 8192, 64, 0, 2);
    both c = make(ctx, CARRY_BF16, 1, 64, 64, 0, 3);
    char *first = host(c.bytes);
    for (int i = 0; i < 20; i++) {
        carry_stream *stream;
        assert_ok(ctx, carry_stream_wait(ctx, GPU, NULL));
        assert_ok(ctx, carry_stream_new(ctx, &stream, GPU));
        assert_ok(ctx, carry_ctx_set_stream(ctx, GPU, stream));
        assert_ok(ctx, carry_matmul(ctx, on_gpu(c.tensor, c.there), on_gpu(a.tensor, a.there),
                                    on_gpu(b.tensor, b.there), NULL));
        assert_ok(ctx, carry_device_copy(ctx, c.here, 0, c.there, GPU, c.bytes, stream));
        assert_ok(ctx, carry_stream_wait(ctx, GPU, stream));
        if (i == 0) {
            memcpy(first, c.here, c.bytes);
        }
        assert_memory_equal(first, c.here, c.bytes);
        assert_ok(ctx, carry_ctx_set_stream(ctx, GPU, NULL));
        carry_stream_free(ctx, GPU, stream);
    }
    unmake(ctx, &a);
    unmake(ctx, &b);
    unmake(ctx, &c);
    free(first);
    carry_ctx_free(ctx);
}

static void tensors_in_the_wrong_place_are_refused(void **unused) {
    (void)unused;
    carry_ctx *ctx = support_ctx(1, NULL, NULL);
    float x[64] = {0};
    char *there = upload(ctx, x, sizeof x, 0);
    carry_tensor here = carry_view_3d(x, CARRY_F32, 1, 8, 8);
    carry_tensor fine = on_gpu(here, there);
    carry_tensor lies = on_gpu(here, x);
    assert_refused(ctx, CARRY_EDEVICE, "a is in host memory", carry_matmul(ctx, fine, lies, fine, NULL));
    assert_refused(ctx, CARRY_EDEVICE, "c is in host memory", carry_matmul(ctx, lies, fine, fine, NULL));
    assert_refused(ctx, CARRY_EDEVICE, "b is on device 0", carry_matmul(ctx, fine, fine, here, NULL));
    assert_refused(ctx, CARRY_EDEVICE, "a is on device 1", carry_matmul(ctx, here, fine, here, NULL));
    assert_refused(ctx, CARRY_EDEVICE, "from is in host memory", carry_convert(ctx, fine, lies));
    assert_refused(ctx, CARRY_EDEVICE, "to is on device 0", carry_convert(ctx, here, fine));
    assert_refused(ctx, CARRY_EDEVICE, "y is in host memory", carry_elementwise(ctx, fine, fine, lies, CARRY_ADD));
    carry_tensor half = fine;
    half.dtype = CARRY_F16;
    assert_refused(ctx, CARRY_EDTYPE, "b is f16 and a is f32", carry_matmul(ctx, fine, fine, half, NULL));
    assert_refused(ctx, CARRY_EDTYPE, "c is f16 and a is f32", carry_matmul(ctx, half, fine, fine, NULL));
    assert_ok(ctx, carry_convert(ctx, fine, fine)); /* the refusals broke nothing */
    assert_ok(ctx, carry_stream_wait(ctx, GPU, NULL));
    carry_device_free(ctx, GPU, there);
    carry_ctx_free(ctx);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(conversions_have_the_bits_of_the_cpu),
        cmocka_unit_test(a_conversion_may_be_in_place),
        cmocka_unit_test(elementwise_operators_equal_those_of_the_cpu),
        cmocka_unit_test(products_are_right_for_every_size_form_and_type),
        cmocka_unit_test(every_way_to_a_product_gives_the_same),
        cmocka_unit_test(operators_work_on_the_stream_of_the_context_and_in_graphs),
        cmocka_unit_test(a_product_has_the_same_bits_on_every_stream),
        cmocka_unit_test(tensors_in_the_wrong_place_are_refused),
    };
    if (carry_device_count() < 2) {
        print_message("skipped: there is no GPU here, or no CUDA in this build\n");
        return SKIPPED;
    }
    return cmocka_run_group_tests_name("ops/device", tests, NULL, NULL);
}
