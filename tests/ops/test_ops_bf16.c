/* bf16 products: every kernel that can run here, and the emulated ones everywhere, against float64 and against each
   other, over odd sizes, all forms and 1, 2, 3 threads. */
#include "matrix_support.h"

#include "carry/nn.h"
#include "core/context.h"
#include "ops/product/bf16.h"
#include "ops/kernels/kernels.h"

static matrix copy_of_matrix(const matrix *from) {
    matrix made = *from;
    made.a = copy_of(&from->a);
    return made;
}

static carry_matrix operand(const matrix *from, bool transposed) {
    return (carry_matrix){.data = from->a.t.data, .dtype = from->a.t.dtype, .row = from->row, .transposed = transposed};
}

static const carry_kernels *kernels_of(carry_ctx *ctx) {
    const carry_kernels *kernels;
    assert_ok(ctx, carry_kernels_of(ctx, &kernels));
    return kernels;
}

/* Compares with the bound of kernels/bf16.h and c's own rounding. With few cases (support_cases), only some elements of
   a large c are checked. */
static SUPPORT_UNWATCHED void assert_product(const char *name, const matrix *c, const matrix *a, bool ta,
                                             const matrix *b, bool tb, int64_t k, const matrix *base) {
    const int64_t step = c->rows * c->row > 20000 ? support_cases(1, 5) : 1;
    for (int64_t i = 0; i < c->rows; i++) {
        for (int64_t j = i % step; j < c->row; j += step) {
            double got = carry_tensor_at(&c->a.t, i * c->row + j);
            if (j >= c->columns) {
                assert_true(isnan(got));
                continue;
            }
            double sum = base != NULL ? base->a.v[i * base->row + j] : 0.0;
            double size = fabs(sum);
            for (int64_t l = 0; l < k; l++) {
                double product =
                    a->a.v[ta ? l * a->row + i : i * a->row + l] * b->a.v[tb ? j * b->row + l : l * b->row + j];
                sum += product;
                size += fabs(product);
            }
            double allowed = (double)(k + 2) * 0x1p-23 * size;
            allowed += rounding(c->a.t.dtype) * (fabs(sum) + allowed);
            if (!(fabs(got - sum) <= allowed)) {
                fail_msg("%s: c[%lld, %lld] of %lld x %lld x %lld is %.9g where %.9g is expected", name, (long long)i,
                         (long long)j, (long long)c->rows, (long long)c->columns, (long long)k, got, sum);
            }
        }
    }
}

static matrix run(carry_ctx *ctx, const carry_bf16 *by, const matrix *a, bool ta, const matrix *b, bool tb, int64_t k,
                  const matrix *base, bool accumulate) {
    matrix c = copy_of_matrix(base);
    for (int64_t i = 0; !accumulate && i < c.rows; i++) {
        memset((char *)c.a.t.data + (size_t)(i * c.row) * carry_dtype_size(c.a.t.dtype), 255,
               (size_t)c.row * carry_dtype_size(c.a.t.dtype));
    }
    carry_mixed_product p = {.m = c.rows,
                             .n = c.columns,
                             .k = k,
                             .a = operand(a, ta),
                             .b = operand(b, tb),
                             .c = c.a.t.data,
                             .c_dtype = c.a.t.dtype,
                             .c_row = c.row,
                             .accumulate = accumulate};
    assert_true(carry_bf16_run(ctx, kernels_of(ctx), by, &p));
    return c;
}

static void check_size(const carry_bf16 *by, int64_t m, int64_t n, int64_t k, carry_dtype type, int form) {
    bool ta = (form & 1) != 0;
    bool tb = (form & 2) != 0;
    bool accumulate = (form & 4) != 0;
    matrix a = random_matrix(CARRY_BF16, ta ? k : m, ta ? m : k);
    matrix b = random_matrix(CARRY_BF16, tb ? n : k, tb ? k : n);
    matrix base = random_matrix(type, m, n);
    matrix first = {0};
    for (int c = 0; c < CTXS; c += ctxs_step()) {
        matrix got = run(ctxs[c], by, &a, ta, &b, tb, k, &base, accumulate);
        first = c == 0 ? got : first;
        assert_same(by->name, &got.a, &first.a);
    }
    assert_product(by->name, &first, &a, ta, &b, tb, k, accumulate ? &base : NULL);
    (void)free_kept(NULL);
}

/* One less and one more than every panel and unit: 8, 12, 32 rows and columns, k in 2, 4, 32. */
static const int64_t sizes[][3] = {{1, 1, 1},    {7, 11, 3},   {9, 13, 5},   {12, 32, 31},  {13, 33, 33}, {32, 12, 2},
                                   {31, 64, 64}, {33, 31, 65}, {17, 65, 95}, {100, 97, 67}, {70, 200, 40}};

static void test_bf16_products_match_float64_for_every_entry_size_and_form(void **state) {
    (void)state;
    const carry_bf16 *by;
    for (int i = 0; (by = carry_bf16_at(i)) != NULL; i++) {
        if (by->missing() != NULL) {
            print_message("skipped: %s: %s\n", by->name, by->missing());
            continue;
        }
        for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++) {
            for (int form = 0; form < 8; form++) {
                if (!support_takes((int)s * 8 + form, by->emulated ? 13 : 5)) {
                    continue;
                }
                carry_dtype type = (form + (int)s) % 2 == 0 ? CARRY_F32 : CARRY_BF16;
                check_size(by, sizes[s][0], sizes[s][1], sizes[s][2], type, form);
            }
        }
    }
}

/* More k than one block where c is f32, and a whole long k where it is not. */
static void test_bf16_products_match_float64_for_long_sums(void **state) {
    (void)state;
    const carry_bf16 *by;
    for (int i = 0; (by = carry_bf16_at(i)) != NULL; i++) {
        for (int form = 0; by->missing() == NULL && form < 4; form += support_cases(1, 3)) {
            check_size(by, 5, 6, 4100, form % 2 == 0 ? CARRY_F32 : CARRY_BF16, form);
        }
    }
}

/* More panels than a tile has, down and across, and k of more than one block. */
static void test_bf16_products_match_float64_over_several_tiles(void **state) {
    (void)state;
    const carry_bf16 *by;
    for (int i = 0; (by = carry_bf16_at(i)) != NULL; i++) {
        for (int form = support_cases(0, 3); by->missing() == NULL && form < 8; form += support_cases(3, 8)) {
            check_size(by, 270, 50, 300, form % 2 == 0 ? CARRY_F32 : CARRY_BF16, form);
            check_size(by, 40, 290, 270, form % 2 == 0 ? CARRY_BF16 : CARRY_F32, form);
            check_size(by, 64, 96, 320, CARRY_F32, form); /* whole panels */
        }
    }
}

/* Larger m and n than the buffers of panels hold. */
static void test_bf16_products_match_float64_beyond_the_buffer(void **state) {
    (void)state;
    const carry_bf16 *by = carry_bf16_best();
    if (by == NULL) {
        print_message("skipped: no bf16 instructions here\n");
        skip();
    }
    const int64_t other = support_cases(24, 9);
    check_size(by, 3100, other, 2040, CARRY_F32, 2);
    check_size(by, other, 1100, 2040, CARRY_F32, 4);
}

/* The processor's instruction agrees with its emulation within twice the bound that each keeps (kernels/bf16.h):
   processors may add in another order than the manual says. The test prints whether bits differ. */
static void test_instructions_agree_with_their_emulation(void **state) {
    (void)state;
    static const char *const names[][2] = {{"avx512-bf16", "avx512-bf16-emulated"}, {"amx", "amx-emulated"}};
    int compared = 0;
    for (int i = 0; i < 2; i++) {
        const carry_bf16 *by = carry_bf16_named(names[i][0]);
        const carry_bf16 *emulated = carry_bf16_named(names[i][1]);
        assert_non_null(emulated);
        if (by == NULL || by->missing() != NULL) {
            print_message("skipped: %s: %s\n", names[i][0], by != NULL ? by->missing() : "another architecture");
            continue;
        }
        compared++;
        int bits = 0; /* products with other bits */
        for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++) {
            for (int form = 0; form < 8; form++) {
                bool ta = (form & 1) != 0;
                bool tb = (form & 2) != 0;
                int64_t m = sizes[s][0];
                int64_t n = sizes[s][1];
                int64_t k = sizes[s][2];
                matrix a = random_matrix(CARRY_BF16, ta ? k : m, ta ? m : k);
                matrix b = random_matrix(CARRY_BF16, tb ? n : k, tb ? k : n);
                matrix base = random_matrix(CARRY_F32, m, n);
                matrix got = run(ctxs[0], by, &a, ta, &b, tb, k, &base, (form & 4) != 0);
                matrix want = run(ctxs[0], emulated, &a, ta, &b, tb, k, &base, (form & 4) != 0);
                read_back(&got.a);
                read_back(&want.a);
                bits += memcmp(got.a.t.data, want.a.t.data, (size_t)got.a.count * sizeof(float)) != 0;
                for (int64_t at = 0; at < got.a.count; at++) { /* terms are below 1, and so is base */
                    double apart = fabs(got.a.v[at] - want.a.v[at]);
                    assert_true(at % got.row >= n || apart <= 2.0 * (double)((k + 2) * (k + 1)) * 0x1p-23);
                }
                (void)free_kept(NULL);
            }
        }
        print_message("%s: %d products have other bits than %s\n", by->name, bits, emulated->name);
    }
    if (compared == 0) {
        skip();
    }
}

/* The loss is the same as with f32 weights of the same values; where products of bf16 are used, gradients differ by the
   rounding of the logits' gradient: 2^-8 of every term. */
static void test_linear_cross_entropy_in_bf16_has_the_gradients_of_f32(void **state) {
    (void)state;
    const int64_t tokens = 37, n = 64, vocabulary = 517;
    array x = random_array(CARRY_BF16, 2, SHAPE(tokens, n), -1, 1);
    array W = random_array(CARRY_BF16, 2, SHAPE(vocabulary, n), -1, 1);
    array wide = poisoned(CARRY_F32, 2, W.t.shape);
    assert_ok(ctxs[0], carry_convert(ctxs[0], wide.t, W.t));
    int64_t targets[37];
    for (int64_t t = 0; t < tokens; t++) {
        targets[t] = t % 5 == 3 ? -100 : t * 7919 % vocabulary;
    }
    size_t bytes = carry_linear_cross_entropy_workspace(tokens, n, vocabulary);
    void *workspace = keep(malloc(bytes));
    array dx[2], dW[2], losses[2];
    for (int narrow = 0; narrow < 2; narrow++) {
        dx[narrow] = poisoned(CARRY_BF16, 2, x.t.shape);
        dW[narrow] = poisoned(CARRY_F32, 2, W.t.shape);
        losses[narrow] = poisoned(CARRY_F32, 1, &tokens);
        memset(dW[narrow].t.data, 0, (size_t)dW[narrow].count * sizeof(float));
        assert_ok(ctxs[narrow], carry_linear_cross_entropy(ctxs[narrow],
                                                           &(carry_linear_cross_entropy_args){
                                                               .losses = losses[narrow].t,
                                                               .dx = dx[narrow].t,
                                                               .dW = dW[narrow].t,
                                                               .x = x.t,
                                                               .W = narrow ? W.t : wide.t,
                                                               .targets = carry_view_1d(targets, CARRY_I64, tokens),
                                                               .scale = 1.0f},
                                                           workspace, bytes));
        read_back(&dx[narrow]);
        read_back(&dW[narrow]);
        read_back(&losses[narrow]);
    }
    assert_near("losses", &losses[1], losses[0].v, (double)n * 0x1p-21);
    /* Gradients of a token's logits add up to at most 2 in size, and x and W are below 1; each side's dx is rounded. */
    assert_near("dx", &dx[1], dx[0].v, 2.0 * 0x1p-8 + 0x1p-7);
    for (int64_t at = 0; at < dW[0].count; at++) {
        assert_true(fabs(dW[1].v[at] - dW[0].v[at]) <= (double)tokens * 0x1p-9 + 0x1p-16);
    }
}

/* NaN and infinities reach the rows and columns that they belong to, and no others. */
static void test_numbers_that_are_not_finite_stay_in_their_rows(void **state) {
    (void)state;
    const carry_bf16 *by;
    for (int i = 0; (by = carry_bf16_at(i)) != NULL; i++) {
        const int64_t m = 9, n = 14, k = 37;
        if (by->missing() != NULL) {
            continue;
        }
        matrix a = random_matrix(CARRY_BF16, m, k);
        matrix b = random_matrix(CARRY_BF16, k, n);
        matrix base = random_matrix(CARRY_F32, m, n);
        ((uint16_t *)a.a.t.data)[8 * a.row + 36] = 0x7fc0; /* NaN in the last row and the last k */
        ((uint16_t *)b.a.t.data)[0 * b.row + 13] = 0x7f80; /* infinity in the last column */
        matrix c = run(ctxs[2], by, &a, false, &b, false, k, &base, false);
        for (int64_t at = 0; at < m * n; at++) {
            double got = carry_tensor_at(&c.a.t, at / n * c.row + at % n);
            assert_int_equal(isfinite(got), at / n != 8 && at % n != 13);
        }
        (void)free_kept(NULL);
    }
}

/* Element `at` of x W^T + y0 in float64; y0 may be NULL. *size gets the sum of the magnitudes of its terms. */
static SUPPORT_UNWATCHED double few64(const array *x, const array *W, const array *y0, int64_t at, double *size) {
    int64_t out = W->t.shape[0];
    int64_t in = W->t.shape[1];
    double sum = y0 != NULL ? y0->v[at] : 0.0;
    *size = fabs(sum);
    for (int64_t l = 0; l < in; l++) {
        double product = x->v[at / out * in + l] * W->v[at % out * in + l];
        sum += product;
        *size += fabs(product);
    }
    return sum;
}

/* x W^T for a few tokens: by dot products that widen, and by the processor's bf16 instructions if it has them. */
static void check_few(carry_dtype type, int64_t tokens, int64_t out, int64_t in, bool accumulate) {
    array x = random_array(type, 2, SHAPE(tokens, in), -1, 1);
    array W = random_array(type, 2, SHAPE(out, in), -1, 1);
    array y0 = random_array(type, 2, SHAPE(tokens, out), -1, 1);
    array first = {0};
    for (int c = 0; c < CTXS; c += ctxs_step()) {
        array y = accumulate ? copy_of(&y0) : poisoned(type, 2, y0.t.shape);
        assert_ok(ctxs[c], carry_linear(ctxs[c], y.t, x.t, W.t, accumulate));
        first = c == 0 ? y : first;
        assert_same("y", &y, &first);
    }
    for (int64_t at = 0; at < tokens * out; at++) {
        double size;
        double sum = few64(&x, &W, accumulate ? &y0 : NULL, at, &size);
        double allowed = (double)(in + 2) * 0x1p-23 * size;
        allowed += rounding(type) * (fabs(sum) + allowed) + 0x1p-24 * (type == CARRY_F16);
        if (!(fabs(carry_tensor_at(&first.t, at) - sum) <= allowed)) {
            fail_msg("%lld tokens, %lld x %lld in %s: y[%lld] is %.9g where %.9g is expected", (long long)tokens,
                     (long long)out, (long long)in, carry_dtype_name(type), (long long)at,
                     carry_tensor_at(&first.t, at), sum);
        }
    }
    (void)free_kept(NULL);
}

static void test_a_few_tokens_match_float64_for_every_number_of_them(void **state) {
    (void)state;
    static const int64_t shapes[][2] = {{1, 1}, {3, 7}, {5, 8}, {64, 16}, {65, 33}, {259, 131}, {1030, 40}};
    for (int64_t tokens = 1; tokens <= 26; tokens += tokens < 10 ? 1 : 5) {
        for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++) {
            if (!support_takes((int)(tokens * 7) + (int)s, 5)) {
                continue;
            }
            check_few(CARRY_BF16, tokens, shapes[s][0], shapes[s][1], s % 2 == 0);
            check_few(CARRY_F16, tokens, shapes[s][0], shapes[s][1], s % 2 != 0);
        }
    }
}

/* carry_half_dots of every set of kernels against the plain one: a row's sum does not depend on the rows beside it. */
static void test_half_dots_of_every_set_match_plain(void **state) {
    (void)state;
    const int64_t rows = 23, in = 67;
    const carry_kernels *plain = carry_kernels_at(0);
    const carry_kernels *kernels;
    for (int set = 0; (kernels = carry_kernels_at(set)) != NULL; set++) {
        for (int64_t tokens = 1; kernels->usable() && tokens <= 5; tokens++) {
            array W = random_array(tokens % 2 == 0 ? CARRY_F16 : CARRY_BF16, 2, SHAPE(rows, in), -1, 1);
            array x = random_array(CARRY_F32, 2, SHAPE(tokens, in), -1, 1);
            array got = poisoned(CARRY_F32, 2, SHAPE(tokens, rows)), want = poisoned(CARRY_F32, 2, SHAPE(tokens, rows));
            carry_half_dots dots = {.rows = rows,
                                    .tokens = tokens,
                                    .k = in,
                                    .w = W.t.data,
                                    .x = x.t.data,
                                    .y = want.t.data,
                                    .w_row = in,
                                    .x_row = in,
                                    .y_row = rows,
                                    .type = W.t.dtype};
            plain->half_dots(&dots);
            read_back(&want);
            dots.y = got.t.data;
            kernels->half_dots(&dots);
            assert_near(kernels->name, &got, want.v, (double)in * 0x1p-23);
            float alone[5 * 23];
            dots.y = alone;
            dots.rows = 1;
            dots.w = (const uint16_t *)W.t.data + 22 * in;
            kernels->half_dots(&dots);
            assert_memory_equal(alone, (float *)got.t.data + 22, sizeof(float));
            (void)free_kept(NULL);
        }
    }
}

/* A set of kernels that is named explicitly widens; a bf16 product can be named; one that cannot run is refused with
   the reason. */
static void test_kernels_by_name(void **state) {
    (void)state;
    carry_ctx *ctx = support_ctx(1, "plain", NULL);
    assert_string_equal(carry_ctx_kernels(ctx), "plain");
    assert_null(carry_bf16_of(ctx));
    carry_ctx_free(ctx);
    const char *usual = carry_ctx_kernels(ctxs[0]);
    assert_ptr_equal(carry_bf16_of(ctxs[0]), carry_bf16_best());
    const carry_bf16 *by;
    for (int i = 0; (by = carry_bf16_at(i)) != NULL; i++) {
        ctx = support_ctx(1, by->name, NULL);
        if (by->missing() == NULL) {
            assert_string_equal(carry_ctx_kernels(ctx), usual);
            assert_ptr_equal(carry_bf16_of(ctx), by);
        } else {
            assert_string_equal(carry_ctx_kernels(ctx), "none");
            assert_non_null(strstr(carry_ctx_error(ctx), by->missing()));
        }
        carry_ctx_free(ctx);
    }
}

#define TEST(name) cmocka_unit_test_teardown(name, free_kept)

int main(void) {
    const struct CMUnitTest tests[] = {
        TEST(test_bf16_products_match_float64_for_every_entry_size_and_form),
        TEST(test_bf16_products_match_float64_for_long_sums),
        TEST(test_bf16_products_match_float64_over_several_tiles),
        TEST(test_bf16_products_match_float64_beyond_the_buffer),
        TEST(test_instructions_agree_with_their_emulation),
        TEST(test_linear_cross_entropy_in_bf16_has_the_gradients_of_f32),
        TEST(test_numbers_that_are_not_finite_stay_in_their_rows),
        TEST(test_a_few_tokens_match_float64_for_every_number_of_them),
        TEST(test_half_dots_of_every_set_match_plain),
        TEST(test_kernels_by_name),
    };
    return cmocka_run_group_tests(tests, open_contexts, close_contexts);
}
