/* Packed products have the bits of unpacked ones, for every set of kernels, size, form and number of threads; and the
   conditions of the choice between them and OpenBLAS. */
#include <math.h>

#include "core/context.h"
#include "ops/kernels/kernels.h"
#include "ops/product/matmul.h"
#include "ops/product/packed.h"
#include "ops/product/rates.h"
#include "support.h"

static float *random_floats(uint64_t stream, int64_t count) {
    float *made = malloc((size_t)count * sizeof *made);
    assert_non_null(made);
    carry_ctx *ctx = support_ctx(1, NULL, NULL);
    assert_ok(ctx, carry_random_uniform(ctx, carry_view_1d(made, CARRY_F32, count), 11, stream, -1.0f, 1.0f));
    carry_ctx_free(ctx);
    return made;
}

/* There are gaps between rows, so that a panel that reads or writes too far is noticed. */
static void same_bits(carry_ctx *ctx, const carry_kernels *kernels, int64_t m, int64_t n, int64_t k, int form) {
    bool ta = (form & 1) != 0;
    bool tb = (form & 2) != 0;
    int64_t a_row = (ta ? m : k) + 3;
    int64_t b_row = (tb ? k : n) + 1;
    int64_t c_row = n + 2;
    float *a = random_floats(1, (ta ? k : m) * a_row);
    float *b = random_floats(2, (tb ? n : k) * b_row);
    float *base = random_floats(3, m * c_row);
    float *packed = random_floats(4, m * c_row);
    float *plain = random_floats(4, m * c_row);
    carry_product p = {.m = m,
                       .n = n,
                       .k = k,
                       .count = 1,
                       .a = a,
                       .b = b,
                       .base = (form & 4) != 0 ? base : NULL,
                       .a_row = a_row,
                       .b_row = b_row,
                       .base_row = c_row,
                       .c_row = c_row,
                       .a_transposed = ta,
                       .b_transposed = tb};
    p.c = plain;
    kernels->product(&p);
    p.c = packed;
    carry_packed_run(ctx, kernels, &p, 0);
    if (memcmp(packed, plain, (size_t)(m * c_row) * sizeof *packed) != 0) {
        fail_msg("%s, %d threads: %lld x %lld x %lld in form %d differs from the unpacked product", kernels->name,
                 carry_ctx_threads(ctx), (long long)m, (long long)n, (long long)k, form);
    }
    free(a);
    free(b);
    free(base);
    free(packed);
    free(plain);
}

static void packed_products_have_the_bits_of_unpacked_ones(void **unused) {
    (void)unused;
    static const int64_t sizes[][3] = {{2, 2, 1},     {13, 31, 9},   {15, 33, 17},   {6, 16, 256},   {64, 96, 511},
                                       {97, 49, 513}, {128, 128, 8}, {29, 130, 255}, {151, 67, 1030}};
    for (int threads = 1; threads <= 3; threads += support_cases(1, 2)) {
        carry_ctx *ctx = support_ctx(threads, NULL, NULL);
        const carry_kernels *kernels;
        assert_ok(ctx, carry_kernels_of(ctx, &kernels));
        for (int set = 0; (kernels = carry_kernels_at(set)) != NULL; set++) {
            for (size_t i = 0; kernels->usable() && i < sizeof sizes / sizeof sizes[0]; i++) {
                for (int form = 0; form < 8; form++) {
                    if (!support_takes(threads * 72 + (int)i * 8 + form, 7)) {
                        continue;
                    }
                    same_bits(ctx, kernels, sizes[i][0], sizes[i][1], sizes[i][2], form);
                }
            }
        }
        carry_ctx_free(ctx);
    }
}

/* More panels than the buffer holds: blocks of m and n, too. */
static void matrices_larger_than_the_buffer_are_cut(void **unused) {
    (void)unused;
    carry_ctx *ctx = support_ctx(2, NULL, NULL);
    const carry_kernels *kernels;
    assert_ok(ctx, carry_kernels_of(ctx, &kernels));
    same_bits(ctx, kernels, 40, 17000, 70, 0);
    same_bits(ctx, kernels, 17000, 40, 70, 6);
    carry_ctx_free(ctx);
}

/* Only rates that a wisdom file remembered choose OpenBLAS, not rates that this process has just measured. */
static void the_choice_is_own_unless_wisdom_remembers_otherwise(void **unused) {
    (void)unused;
    carry_product large = {.m = 512, .n = 512, .k = 512, .count = 1, .a_row = 512, .b_row = 512, .c_row = 512};
    for (int remembered = 0; remembered < 2; remembered++) {
        carry_ctx *ctx = support_ctx(1, NULL, NULL);
        const carry_kernels *kernels;
        assert_ok(ctx, carry_kernels_of(ctx, &kernels));
        carry_rates_table rates;
        char name[32];
        const char *unit;
        double *number;
        for (int i = 0; (number = carry_rates_number(&rates, i, name, &unit)) != NULL; i++) {
            *number = 1.0;
        }
        rates.blas_from = 256.0;
        rates.remembered = remembered != 0;
        assert_true(carry_rates_put(ctx, &rates));
        bool through_blas = remembered != 0 && carry_blas_product != NULL;
        assert_true(carry_products_choice(ctx, kernels, &large) ==
                    (through_blas ? carry_blas_product : kernels->product));
        rates.remembered = remembered == 0; /* too late: this context has already chosen */
        assert_true(carry_rates_put(ctx, &rates));
        assert_true(carry_products_choice(ctx, kernels, &large) ==
                    (through_blas ? carry_blas_product : kernels->product));
        carry_ctx_free(ctx);
    }
}

static void a_core_type_that_uses_less_than_the_processor_has_is_named(void **unused) {
    (void)unused;
    char line[200];
    assert_true(carry_blas_misfit(line, sizeof line, "Prescott", "avx512"));
    assert_non_null(strstr(line, "Prescott"));
    assert_non_null(strstr(line, "OPENBLAS_CORETYPE=SkylakeX"));
    assert_true(carry_blas_misfit(line, sizeof line, "Haswell", "avx512"));
    assert_true(carry_blas_misfit(line, sizeof line, "Nehalem", "avx2"));
    assert_false(carry_blas_misfit(line, sizeof line, "SkylakeX", "avx512"));
    assert_false(carry_blas_misfit(line, sizeof line, "SkylakeX", "avx2"));
    assert_false(carry_blas_misfit(line, sizeof line, "Zen", "avx2"));
    assert_false(carry_blas_misfit(line, sizeof line, "GraniteRapids", "avx512")); /* newer than the table */
    assert_false(carry_blas_misfit(line, sizeof line, "neoversev1", "neon"));
    assert_false(carry_blas_misfit(line, sizeof line, NULL, "avx512"));
}

static void matrices_are_transposed_and_nothing_beside_them_is_written(void **unused) {
    (void)unused;
    static const int64_t sizes[][2] = {{1, 1}, {3, 9}, {8, 8}, {17, 4}, {64, 33}, {7, 130}};
    const carry_kernels *kernels;
    for (int set = 0; (kernels = carry_kernels_at(set)) != NULL; set++) {
        for (size_t i = 0; kernels->usable() && i < sizeof sizes / sizeof sizes[0]; i++) {
            int64_t rows = sizes[i][0];
            int64_t columns = sizes[i][1];
            float *from = random_floats(5, rows * (columns + 1));
            float *to = random_floats(6, columns * (rows + 2));
            float *before = random_floats(6, columns * (rows + 2));
            kernels->transpose(to, rows + 2, from, columns + 1, rows, columns);
            for (int64_t j = 0; j < columns * (rows + 2); j++) {
                int64_t x = j % (rows + 2);
                assert_true(to[j] == (x < rows ? from[x * (columns + 1) + j / (rows + 2)] : before[j]));
            }
            free(from);
            free(to);
            free(before);
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(packed_products_have_the_bits_of_unpacked_ones),
        cmocka_unit_test(matrices_larger_than_the_buffer_are_cut),
        cmocka_unit_test(matrices_are_transposed_and_nothing_beside_them_is_written),
        cmocka_unit_test(the_choice_is_own_unless_wisdom_remembers_otherwise),
        cmocka_unit_test(a_core_type_that_uses_less_than_the_processor_has_is_named),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
