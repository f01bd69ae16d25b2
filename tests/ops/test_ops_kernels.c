/* Every set of kernels that this processor can run gives the results of the plain one, over odd sizes. */
#include <math.h>

#include "support.h"

#include "ops/kernels/kernels.h"

/* 1, primes, and one less and one more than every tile height and width in use (2, 4, 5, 6, 8, 12, 16, 32, 64). */
static const int64_t sizes[] = {1, 2, 3, 4, 5, 7, 8, 9, 11, 15, 16, 17, 31, 33, 63, 65};
#define SIZES (sizeof sizes / sizeof sizes[0])

static uint32_t state = 12345;

static float random_float(void) {
    state = state * 1664525u + 1013904223u;
    return (float)(int32_t)state * 0x1p-31f;
}

static void fill(float *to, int64_t count) {
    for (int64_t i = 0; i < count; i++) {
        to[i] = random_float();
    }
}

/* A sum of k terms of magnitude at most 1, plus the base: each of k + 1 roundings is at most u times k + 1. */
static double product_bound(int64_t k) {
    return 0x1p-24 * (double)((k + 1) * (k + 1));
}

static void compare(const float *a, const float *b, int64_t count, double bound, const char *what) {
    for (int64_t i = 0; i < count; i++) {
        double difference = fabs((double)a[i] - (double)b[i]);
        if (!(difference <= bound)) {
            fail_msg("%s: element %lld is %g and should be %g", what, (long long)i, (double)a[i], (double)b[i]);
        }
    }
}

typedef struct arrays {
    float *a, *b, *base, *c, *expected;
    int64_t room;
} arrays;

static arrays make_arrays(void) {
    arrays s = {.room = 3 * 70 * 80};
    float **all[] = {&s.a, &s.b, &s.base, &s.c, &s.expected};
    for (int i = 0; i < 5; i++) {
        *all[i] = malloc((size_t)s.room * sizeof(float));
        assert_non_null(*all[i]);
        fill(*all[i], s.room);
    }
    return s;
}

static void free_arrays(arrays *s) {
    free(s->a);
    free(s->b);
    free(s->base);
    free(s->c);
    free(s->expected);
}

/* Rows are padded, so that a write past a row's end shows. */
static void one_product(const carry_kernels *kernels, arrays *s, int64_t m, int64_t n, int64_t k, int form) {
    bool a_transposed = (form & 1) != 0;
    bool b_transposed = (form & 2) != 0;
    bool with_base = (form & 4) != 0;
    int64_t pad = (form & 8) != 0 ? 3 : 0;
    carry_product p = {.m = m,
                       .n = n,
                       .k = k,
                       .count = 2,
                       .a = s->a,
                       .b = s->b,
                       .base = with_base ? s->base : NULL,
                       .a_row = (a_transposed ? m : k) + pad,
                       .b_row = (b_transposed ? k : n) + pad,
                       .base_row = n + pad,
                       .c_row = n + pad,
                       .a_next = 70 * 80,
                       .b_next = 70 * 80,
                       .base_next = 70 * 80,
                       .c_next = 70 * 80,
                       .a_transposed = a_transposed,
                       .b_transposed = b_transposed};
    for (int64_t i = 0; i < s->room; i++) {
        s->c[i] = s->expected[i] = 1e30f; /* untouched places must stay so */
    }
    p.c = s->c;
    kernels->product(&p);
    p.c = s->expected;
    carry_kernels_at(0)->product(&p);
    char what[96];
    (void)snprintf(what, sizeof what, "%s product %lld x %lld x %lld form %d", kernels->name, (long long)m,
                   (long long)n, (long long)k, form);
    compare(s->c, s->expected, s->room, product_bound(k), what);
}

static void products_equal_plain_ones(void **unused) {
    (void)unused;
    arrays s = make_arrays();
    for (int set = 1; carry_kernels_at(set) != NULL; set++) {
        if (!carry_kernels_at(set)->usable()) {
            print_message("skipped: this processor cannot run %s\n", carry_kernels_at(set)->name);
            continue;
        }
        for (size_t i = 0; i < SIZES; i++) {
            for (size_t j = 0; j < SIZES; j++) {
                for (int form = 0; form < 16; form++) {
                    one_product(carry_kernels_at(set), &s, sizes[i], sizes[j],
                                sizes[(i * 5 + j * 3 + (size_t)form) % SIZES], form);
                    one_product(carry_kernels_at(set), &s, sizes[i], 1, sizes[j], form);
                }
            }
        }
    }
    free_arrays(&s);
}

/* More than one block of k, and k = 0. */
static void long_sums_equal_plain_ones(void **unused) {
    (void)unused;
    enum { K = 600, M = 7, N = 19 };
    float *a = malloc(sizeof(float) * M * K);
    float *b = malloc(sizeof(float) * K * N);
    assert_true(a != NULL && b != NULL);
    fill(a, M * K);
    fill(b, K * N);
    for (int set = 1; carry_kernels_at(set) != NULL; set++) {
        for (int64_t k = 0; carry_kernels_at(set)->usable() && k <= K; k += 60) {
            float c[M * N];
            float expected[M * N];
            carry_product p = {
                .m = M, .n = N, .k = k, .count = 1, .a = a, .b = b, .c = c, .a_row = K, .b_row = N, .c_row = N};
            carry_kernels_at(set)->product(&p);
            p.c = expected;
            carry_kernels_at(0)->product(&p);
            compare(c, expected, M * N, product_bound(k), "long sum");
        }
    }
    free(a);
    free(b);
}

/* b[i] may be c[i-1]: one call is a whole recurrence. */
static void products_in_order_are_a_recurrence(void **unused) {
    (void)unused;
    enum { STEPS = 9, SIZE = 6 };
    for (int set = 0; carry_kernels_at(set) != NULL; set++) {
        if (!carry_kernels_at(set)->usable()) {
            continue;
        }
        for (int64_t width = 1; width <= 5; width += 4) {
            float A[STEPS * SIZE * SIZE];
            float b[STEPS * SIZE * 5];
            float h[STEPS * SIZE * 5];
            fill(A, STEPS * SIZE * SIZE);
            fill(b, STEPS * SIZE * 5);
            int64_t size = SIZE * width;
            memcpy(h, b, sizeof h);
            carry_kernels_at(set)->product(&(carry_product){.m = SIZE,
                                                            .n = width,
                                                            .k = SIZE,
                                                            .count = STEPS - 1,
                                                            .a = A + SIZE * SIZE,
                                                            .b = h,
                                                            .base = b + size,
                                                            .c = h + size,
                                                            .a_row = SIZE,
                                                            .b_row = width,
                                                            .base_row = width,
                                                            .c_row = width,
                                                            .a_next = SIZE * SIZE,
                                                            .b_next = size,
                                                            .base_next = size,
                                                            .c_next = size});
            double before[SIZE * 5];
            for (int64_t i = 0; i < size; i++) {
                before[i] = b[i];
            }
            for (int64_t t = 1; t < STEPS; t++) {
                double now[SIZE * 5];
                for (int64_t r = 0; r < SIZE; r++) {
                    for (int64_t j = 0; j < width; j++) {
                        now[r * width + j] = b[t * size + r * width + j];
                        for (int64_t c = 0; c < SIZE; c++) {
                            now[r * width + j] += (double)A[(t * SIZE + r) * SIZE + c] * before[c * width + j];
                        }
                    }
                }
                memcpy(before, now, sizeof now);
            }
            for (int64_t i = 0; i < size; i++) {
                assert_true(fabs(before[i] - (double)h[(STEPS - 1) * size + i]) < 1e-4 * (1.0 + fabs(before[i])));
            }
        }
    }
}

enum { T = 19, ROOM = 65 * 65 * T };

/* |h| <= T, with two roundings a step. 16-bit results may differ by one unit of their type if the two values are on
   different sides of a tie. */
static void check_diagonal_scan(const carry_kernels *kernels, int64_t rows, int64_t width, carry_dtype b_type,
                                carry_dtype h_type, int form) {
    static float a[65 * T], wide[ROOM], state_in[65 * 65], state_out[65 * 65], expected_state[65 * 65];
    static float b[ROOM], h[ROOM], expected[ROOM]; /* room for any type */
    int64_t size = rows * width;
    bool in_place = form == 1 && b_type == h_type;
    bool only_state = form == 2;
    fill(a, 65 * T);
    fill(state_in, 65 * 65);
    fill(wide, T * size);
    for (int64_t i = 0; i < T * size; i++) {
        if (b_type == CARRY_F32) {
            b[i] = wide[i];
        } else {
            ((uint16_t *)b)[i] = b_type == CARRY_BF16 ? carry_bf16_from_f32(wide[i]) : carry_f16_from_f32(wide[i]);
        }
    }
    memcpy(state_out, state_in, sizeof state_in);
    memcpy(expected_state, state_in, sizeof state_in);
    memset(h, 0xff, sizeof h);
    memset(expected, 0xff, sizeof expected);
    int64_t item = (int64_t)carry_dtype_size(h_type);
    int64_t way = in_place ? -1 : 1; /* in place, and backwards through memory */
    int64_t start = in_place ? (T - 1) * size : 0;
    if (in_place) {
        memcpy(h, b, (size_t)(T * size * item));
    }
    carry_diagonal_scan s = {.steps = T,
                             .rows = rows,
                             .width = width,
                             .a = a,
                             .state = state_out,
                             .b = (char *)(in_place ? h : b) + start * (int64_t)carry_dtype_size(b_type),
                             .h = only_state ? NULL : (char *)h + start * item,
                             .a_step = rows,
                             .b_step = way * size,
                             .h_step = way * size,
                             .b_type = b_type,
                             .h_type = h_type};
    kernels->diagonal_scan(&s);
    s.b = (char *)b + start * (int64_t)carry_dtype_size(b_type);
    s.h = only_state ? NULL : (char *)expected + start * item;
    s.state = expected_state;
    carry_kernels_at(0)->diagonal_scan(&s);
    double bound = 0x1p-24 * 3.0 * T * T;
    compare(state_out, expected_state, size, bound, "state of a diagonal scan");
    if (h_type == CARRY_F32) {
        compare(h, expected, only_state ? 0 : T * size, bound, "diagonal scan");
        return;
    }
    double unit = h_type == CARRY_BF16 ? 0x1p-7 : 0x1p-10;
    for (int64_t i = 0; !only_state && i < T * size; i++) {
        uint16_t x = ((uint16_t *)h)[i];
        uint16_t y = ((uint16_t *)expected)[i];
        double got = h_type == CARRY_BF16 ? carry_f32_from_bf16(x) : carry_f32_from_f16(x);
        double wanted = h_type == CARRY_BF16 ? carry_f32_from_bf16(y) : carry_f32_from_f16(y);
        assert_true(fabs(got - wanted) <= bound + unit * fabs(wanted));
    }
}

static void diagonal_scans_equal_plain_ones(void **unused) {
    (void)unused;
    static const carry_dtype types[][2] = {{CARRY_F32, CARRY_F32},
                                           {CARRY_BF16, CARRY_BF16},
                                           {CARRY_BF16, CARRY_F32},
                                           {CARRY_F16, CARRY_F16},
                                           {CARRY_F16, CARRY_F32}};
    for (int set = 1; carry_kernels_at(set) != NULL; set++) {
        for (size_t i = 0; carry_kernels_at(set)->usable() && i < SIZES; i++) {
            for (size_t j = 0; j < SIZES; j++) {
                for (size_t type = 0; type < 5; type++) {
                    check_diagonal_scan(carry_kernels_at(set), sizes[i], sizes[j], types[type][0], types[type][1],
                                        (int)((i + j + type) % 3));
                }
            }
        }
    }
}

static void diagonal_applications_equal_plain_ones(void **unused) {
    (void)unused;
    static float a[65 * T], b[ROOM], y[ROOM], expected[ROOM];
    fill(a, 65 * T);
    fill(b, ROOM);
    for (int set = 1; carry_kernels_at(set) != NULL; set++) {
        for (size_t i = 0; carry_kernels_at(set)->usable() && i < SIZES * SIZES; i++) {
            int64_t rows = sizes[i / SIZES];
            int64_t width = sizes[i % SIZES];
            int64_t size = rows * width;
            carry_diagonal_apply p = {.count = T,
                                      .rows = rows,
                                      .width = width,
                                      .a = a,
                                      .x = b,
                                      .base = b,
                                      .y = y,
                                      .a_next = rows,
                                      .x_next = 0,
                                      .base_next = size,
                                      .y_next = size};
            memset(y, 0xff, sizeof y);
            carry_kernels_at(set)->diagonal_apply(&p);
            p.y = expected;
            carry_kernels_at(0)->diagonal_apply(&p);
            compare(y, expected, T * size, 0x1p-22, "diagonal apply");
        }
    }
}

/* Bit for bit, NaNs included: every 16-bit pattern one way, many 32-bit ones the other. */
static void conversions_equal_plain_ones_bit_for_bit(void **unused) {
    (void)unused;
    enum { COUNT = 65536 + 7 };
    static uint16_t bits[COUNT], narrow[COUNT], narrow_expected[COUNT];
    static float wide[COUNT], wide_expected[COUNT];
    for (int set = 1; carry_kernels_at(set) != NULL; set++) {
        const carry_kernels *k = carry_kernels_at(set);
        const carry_kernels *plain = carry_kernels_at(0);
        if (!k->usable()) {
            continue;
        }
        for (int i = 0; i < COUNT; i++) {
            bits[i] = (uint16_t)i;
        }
        k->f32_from_bf16(wide, bits, COUNT);
        plain->f32_from_bf16(wide_expected, bits, COUNT);
        assert_memory_equal(wide, wide_expected, sizeof wide);
        k->f32_from_f16(wide, bits, COUNT);
        plain->f32_from_f16(wide_expected, bits, COUNT);
        assert_memory_equal(wide, wide_expected, sizeof wide);
        for (int round = 0; round < 64; round++) {
            for (int i = 0; i < COUNT; i++) {
                state = state * 1664525u + 1013904223u;
                uint32_t word = round == 0 ? (uint32_t)i << 16 : round == 1 ? ((uint32_t)i << 13) + 0x38000000u : state;
                memcpy(&wide[i], &word, sizeof word);
            }
            int64_t count = COUNT - round % 17;
            k->bf16_from_f32(narrow, wide, count);
            plain->bf16_from_f32(narrow_expected, wide, count);
            assert_memory_equal(narrow, narrow_expected, (size_t)count * sizeof *narrow);
            k->f16_from_f32(narrow, wide, count);
            plain->f16_from_f32(narrow_expected, wide, count);
            assert_memory_equal(narrow, narrow_expected, (size_t)count * sizeof *narrow);
        }
    }
}

/* Threads split columns, so an element must have the same bits in tiles of every width and height. */
static void factors_round_alike_in_tiles_of_every_size(void **unused) {
    (void)unused;
    enum { M = 33, N = 112, K = 19 };
    static float a[M * K], b[K * N], base[M * N], whole[M * N], part[M * N], by[M], base_by[M];
    for (int i = 0; i < M * N; i++) {
        base[i] = (float)((i * 7919 + 13) % 1009) / 505.0f - 1.0f;
        a[i % (M * K)] = (float)((i * 6151 + 5) % 997) / 499.0f - 1.0f;
        b[i % (K * N)] = (float)((i * 3571 + 3) % 991) / 496.0f - 1.0f;
        by[i % M] = (float)((i % M) * 31 % 37) / 19.0f - 1.0f;
        base_by[i % M] = (float)((i % M) * 17 % 41) / 21.0f - 1.0f;
    }
    for (int set = 0; carry_kernels_at(set) != NULL; set++) {
        const carry_kernels *kernels = carry_kernels_at(set);
        if (!kernels->usable()) {
            continue;
        }
        carry_product p = {.m = M, .n = N, .k = K, .count = 1, .a = a, .b = b, .base = base, .c = whole, .a_row = K};
        p.b_row = p.base_row = p.c_row = N;
        p.by = by;
        p.base_by = base_by;
        kernels->product(&p);
        const int64_t widths[] = {16, 32, 48, 64, 80};
        for (int w = 0; w < 5; w++) {
            for (int64_t first = 0; first + widths[w] <= N; first += 16) {
                for (int64_t rows = 1; rows <= M; rows += 4) {
                    carry_product some = p;
                    some.m = rows;
                    some.n = widths[w];
                    some.b = b + first;
                    some.base = base + first;
                    some.c = part + first;
                    kernels->product(&some);
                    for (int64_t i = 0; i < rows; i++) {
                        if (memcmp(part + i * N + first, whole + i * N + first, (size_t)widths[w] * 4) != 0) {
                            fail_msg("%s: row %lld of %lld rows and %lld columns from %lld on has other bits",
                                     kernels->name, (long long)i, (long long)rows, (long long)widths[w],
                                     (long long)first);
                        }
                    }
                }
            }
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(products_equal_plain_ones),
        cmocka_unit_test(long_sums_equal_plain_ones),
        cmocka_unit_test(factors_round_alike_in_tiles_of_every_size),
        cmocka_unit_test(products_in_order_are_a_recurrence),
        cmocka_unit_test(diagonal_scans_equal_plain_ones),
        cmocka_unit_test(diagonal_applications_equal_plain_ones),
        cmocka_unit_test(conversions_equal_plain_ones_bit_for_bit),
    };
    return cmocka_run_group_tests_name("ops/kernels", tests, NULL, NULL);
}
