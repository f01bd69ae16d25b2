/* Weights that are packed once: the same bits as when every product packs them, for every kernel that can run here. */
#include "nn_support.h"

#include "core/context.h"
#include "ops/kernels/kernels.h"
#include "ops/product/bf16.h"
#include "ops/product/kept.h"

typedef struct weight {
    array W;
    void *panels;
    size_t bytes;
} weight;

static weight random_weight(const carry_bf16 *by, int64_t n, int64_t k) {
    weight made = {.W = random_array(CARRY_BF16, 2, SHAPE(n, k), -1, 1)};
    made.bytes = carry_kept_bytes(by, made.W.t);
    assert_true(made.bytes > 0 && made.bytes % 64 == 0);
    made.panels = keep(aligned_alloc(64, made.bytes));
    memset(made.panels, 255, made.bytes);
    return made;
}

static carry_mixed_product product_of(const array *x, const weight *w, array *y, bool accumulate) {
    return (carry_mixed_product){
        .m = x->t.shape[0],
        .n = w->W.t.shape[0],
        .k = w->W.t.shape[1],
        .a = {.data = x->t.data, .dtype = CARRY_BF16, .row = w->W.t.shape[1]},
        .b = {.data = w->W.t.data, .dtype = CARRY_BF16, .row = w->W.t.shape[1], .transposed = true},
        .c = y->t.data,
        .c_dtype = y->t.dtype,
        .c_row = w->W.t.shape[0],
        .accumulate = accumulate};
}

static void check(const carry_bf16 *by, int64_t m, int64_t n, int64_t k, carry_dtype type, bool accumulate) {
    const array x = random_array(CARRY_BF16, 2, SHAPE(m, k), -1, 1);
    const array before = random_array(type, 2, SHAPE(m, n), -1, 1);
    const weight w = random_weight(by, n, k);
    const carry_kernels *kernels;
    for (int c = 0; c < CTXS; c += ctxs_step()) {
        array packed = copy_of(&before);
        array stays = copy_of(&before);
        carry_mixed_product p = product_of(&x, &w, &packed, accumulate);
        assert_ok(ctxs[c], carry_kernels_of(ctxs[c], &kernels));
        assert_null(carry_kept_find(ctxs[c], by, &p));
        assert_true(carry_bf16_run(ctxs[c], kernels, by, &p));
        assert_ok(ctxs[c], carry_kept_add(ctxs[c], by, w.W.t, w.panels));
        p = product_of(&x, &w, &stays, accumulate);
        assert_ptr_equal(carry_kept_find(ctxs[c], by, &p), w.panels);
        assert_true(carry_bf16_run(ctxs[c], kernels, by, &p));
        assert_same(by->name, &stays, &packed);
        carry_kept_forget(ctxs[c], w.panels, w.bytes);
        assert_null(carry_kept_find(ctxs[c], by, &p));
    }
    (void)free_kept(NULL);
}

/* Odd sizes around every panel; k of more than one block if c is f32. */
static void test_products_with_kept_panels_have_the_same_bits(void **state) {
    (void)state;
    static const int64_t sizes[][3] = {{1, 4, 16},    {9, 13, 17},    {33, 31, 65},
                                       {100, 97, 67}, {64, 192, 256}, {7, 30, 4100}};
    const carry_bf16 *by;
    for (int i = 0; (by = carry_bf16_at(i)) != NULL; i++) {
        for (size_t s = 0; by->missing() == NULL && s < sizeof sizes / sizeof *sizes; s++) {
            for (int form = 0; form < 4; form++) {
                if (!support_takes((int)s * 4 + form, by->emulated ? 7 : 3)) {
                    continue;
                }
                check(by, sizes[s][0], sizes[s][1], sizes[s][2], form % 2 == 0 ? CARRY_F32 : CARRY_BF16, form >= 2);
            }
        }
    }
}

/* Many weights, added in any order, one of them the first rows of another: each product finds its own. */
static void test_a_product_finds_the_panels_of_its_own_weight(void **state) {
    (void)state;
    enum { WEIGHTS = 150, N = 20, K = 32 };
    const carry_bf16 *by = carry_bf16_at(0);
    const array x = random_array(CARRY_BF16, 2, SHAPE(5, K), -1, 1);
    array y = poisoned(CARRY_F32, 2, SHAPE(5, N));
    weight all[WEIGHTS];
    for (int i = 0; i < WEIGHTS; i++) {
        all[i] = random_weight(by, N, K);
    }
    for (int i = 0; i < WEIGHTS; i++) {
        const weight *w = &all[i * 7 % WEIGHTS];
        assert_ok(ctxs[0], carry_kept_add(ctxs[0], by, w->W.t, w->panels));
    }
    weight part = all[3];
    part.W.t = carry_slice(part.W.t, 0, N / 2);
    part.panels = keep(aligned_alloc(64, part.bytes));
    assert_ok(ctxs[0], carry_kept_add(ctxs[0], by, part.W.t, part.panels));
    for (int i = 0; i < WEIGHTS; i++) {
        carry_mixed_product p = product_of(&x, &all[i], &y, false);
        assert_ptr_equal(carry_kept_find(ctxs[0], by, &p), all[i].panels);
        p.n--;
        assert_null(carry_kept_find(ctxs[0], by, &p));
    }
    carry_mixed_product p = product_of(&x, &part, &y, false);
    assert_ptr_equal(carry_kept_find(ctxs[0], by, &p), part.panels);
    assert_null(carry_kept_find(ctxs[0], carry_bf16_at(1), &p));
    carry_kept_forget(ctxs[0], part.panels, part.bytes);
    assert_null(carry_kept_find(ctxs[0], by, &p));
    for (int i = 0; i < WEIGHTS; i++) {
        carry_kept_forget(ctxs[0], all[i].panels, all[i].bytes);
        p = product_of(&x, &all[i], &y, false);
        assert_null(carry_kept_find(ctxs[0], by, &p));
    }
}

/* Maps of one input share its panels, unless a map between them needs the buffer: the same bits as maps one by one. */
static void test_merged_maps_with_kept_panels_have_the_same_bits(void **state) {
    (void)state;
    enum { MAPS = 5, TOKENS = 70, K = 72 };
    static const int64_t out[MAPS] = {64, 40, 33, 20, 96};
    const carry_bf16 *by;
    for (int i = 0; (by = carry_bf16_at(i)) != NULL; i++, (void)free_kept(NULL)) {
        if (by->missing() != NULL) {
            continue;
        }
        carry_ctx *ctx = support_ctx(2, by->name, NULL);
        const array x = random_array(CARRY_BF16, 2, SHAPE(TOKENS, K), -1, 1);
        carry_merged_linear_args args = {.x = x.t, .maps = MAPS};
        array y[MAPS];
        array alone[MAPS];
        weight w[MAPS];
        for (int m = 0; m < MAPS; m++) {
            w[m] = random_weight(by, out[m], K);
            y[m] = poisoned(CARRY_BF16, 2, SHAPE(TOKENS, out[m]));
            alone[m] = poisoned(CARRY_BF16, 2, SHAPE(TOKENS, out[m]));
            args.y[m] = y[m].t;
            args.W[m] = w[m].W.t;
            assert_ok(ctx, carry_linear(ctx, alone[m].t, x.t, w[m].W.t, false));
        }
        for (int m = 0; m < MAPS; m++) {
            if (m != 2) { /* the third is packed, into the same buffer */
                assert_ok(ctx, carry_kept_add(ctx, by, w[m].W.t, w[m].panels));
            }
        }
        const array other = random_array(CARRY_BF16, 2, SHAPE(TOKENS, K), -1, 1); /* the buffer has its panels */
        assert_ok(ctx, carry_linear(ctx, y[2].t, other.t, w[2].W.t, false));
        assert_ok(ctx, carry_merged_linear(ctx, &args));
        for (int m = 0; m < MAPS; m++) {
            assert_same(by->name, &y[m], &alone[m]);
        }
        carry_ctx_free(ctx);
    }
}

static void assert_alike(const array *got, const array *wanted) {
    for (int64_t i = 0; i < got->count; i++) {
        const double want = carry_tensor_at(&wanted->t, i);
        assert_true(fabs(carry_tensor_at(&got->t, i) - want) <= 0.01 * fabs(want) + 1e-3);
    }
}

/* y = x W^T for 5 to 24 tokens, with kept panels and without: up to 8 tokens the same bits, for more within the
   rounding of sums of K products of numbers up to 1, and of a result up to K in bf16. The weights' pieces do not end at
   panel borders. */
static void test_a_few_tokens_with_kept_panels_equal_those_without(void **state) {
    (void)state;
    enum { MAPS = 3, K = 1024 };
    static const int64_t out[MAPS] = {2050, 7, 1201};
    const carry_bf16 *by = carry_bf16_best();
    for (int64_t tokens = 4; by != NULL && tokens <= 25; tokens += support_cases(1, 3), (void)free_kept(NULL)) {
        carry_ctx *ctx = support_ctx(2, NULL, NULL);
        const array x = random_array(CARRY_BF16, 2, SHAPE(tokens, K), -1, 1);
        carry_merged_linear_args args = {.x = x.t, .maps = MAPS};
        array y[MAPS];
        array plain[MAPS];
        array sum[MAPS];
        array plain_sum[MAPS];
        weight w[MAPS];
        for (int m = 0; m < MAPS; m++) {
            const array before = random_array(CARRY_BF16, 2, SHAPE(tokens, out[m]), -1, 1);
            w[m] = random_weight(by, out[m], K);
            y[m] = poisoned(CARRY_BF16, 2, SHAPE(tokens, out[m]));
            plain[m] = poisoned(CARRY_BF16, 2, SHAPE(tokens, out[m]));
            sum[m] = copy_of(&before);
            plain_sum[m] = copy_of(&before);
            args.y[m] = y[m].t;
            args.W[m] = w[m].W.t;
            assert_ok(ctx, carry_linear(ctx, plain[m].t, x.t, w[m].W.t, false));
            assert_ok(ctx, carry_linear(ctx, plain_sum[m].t, x.t, w[m].W.t, true));
            assert_ok(ctx, carry_kept_add(ctx, by, w[m].W.t, w[m].panels));
        }
        assert_ok(ctx, carry_merged_linear(ctx, &args));
        for (int m = 0; m < MAPS; m++) {
            assert_ok(ctx, carry_linear(ctx, sum[m].t, x.t, w[m].W.t, true));
            if (tokens <= 8) {
                assert_same("a few tokens", &y[m], &plain[m]);
                assert_same("a few tokens added", &sum[m], &plain_sum[m]);
            }
            assert_alike(&y[m], &plain[m]);
            assert_alike(&sum[m], &plain_sum[m]);
        }
        carry_ctx_free(ctx);
    }
}

static void test_what_has_no_panels_is_refused(void **state) {
    (void)state;
    const carry_bf16 *by = carry_bf16_at(0);
    const array wide = random_array(CARRY_F32, 2, SHAPE(20, 32), -1, 1);
    const array narrow = random_array(CARRY_BF16, 2, SHAPE(20, 8), -1, 1);
    assert_int_equal(carry_kept_bytes(NULL, wide.t), 0);
    assert_int_equal(carry_kept_bytes(by, wide.t), 0);
    assert_int_equal(carry_kept_bytes(by, narrow.t), 0);
    assert_int_equal(carry_kept_add(ctxs[0], by, wide.t, wide.t.data), CARRY_EARGUMENT);
    assert_non_null(strstr(carry_ctx_error(ctxs[0]), "f32"));
}

#define TEST(name) cmocka_unit_test_teardown(name, free_kept)

int main(void) {
    const struct CMUnitTest tests[] = {
        TEST(test_products_with_kept_panels_have_the_same_bits),
        TEST(test_a_product_finds_the_panels_of_its_own_weight),
        TEST(test_merged_maps_with_kept_panels_have_the_same_bits),
        TEST(test_a_few_tokens_with_kept_panels_equal_those_without),
        TEST(test_what_has_no_panels_is_refused),
    };
    return cmocka_run_group_tests(tests, open_contexts, close_contexts);
}
