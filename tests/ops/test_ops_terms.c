/* f32 products as sums of bf16 products (kernels/bf16.h: terms): every kernel that has them, and the emulated one
   everywhere, against float64 over odd sizes and all forms; and the instructions against their emulation. */
#include "matrix_support.h"

#include "ops/kernels/bf16.h"

enum { GUARD = 64 };

typedef struct form {
    bool a_across, b_across; /* as in carry_bf16_pack: lines are contiguous, not k */
    int a_terms, b_terms, order;
    carry_bf16_triangle triangle;
    bool by, columns_by, base, base_by, k_by;
} form;

typedef struct operand {
    matrix m;
    uint16_t *panels;
    ptrdiff_t next;
    int64_t k; /* as packed */
} operand;

static int64_t up(int64_t size, int64_t unit) {
    return (size + unit - 1) / unit * unit;
}

static SUPPORT_UNWATCHED double element(const operand *x, bool across, int64_t line, int64_t l) {
    return x->m.a.v[across ? l * x->m.row + line : line * x->m.row + l];
}

/* The operand in panels: with one term packed from bf16 numbers, with more by splitting. Elements outside a triangle
   are NaN. */
static operand make(const carry_bf16 *by, bool of_a, int64_t lines, int64_t k, bool across, int terms,
                    carry_bf16_triangle triangle, const float *k_by) {
    const int panel = of_a ? by->rows : by->columns;
    operand x = {.m = random_matrix(terms == 1 ? CARRY_BF16 : CARRY_F32, across ? k : lines, across ? lines : k),
                 .k = up(k, by->unit)};
    x.next = up(lines, panel) * x.k + 32;
    size_t bytes = (size_t)(terms * x.next + GUARD) * sizeof *x.panels;
    x.panels = keep(aligned_alloc(64, (bytes + 63) / 64 * 64));
    memset(x.panels, 255, bytes);
    if (terms == 1) {
        for (int64_t line = 0; line < lines; line += panel) {
            const uint16_t *from = (const uint16_t *)x.m.a.t.data + (across ? line : line * x.m.row);
            (of_a ? by->pack_a : by->pack_b)(x.panels + line * x.k, from, x.m.row, across,
                                             lines - line < panel ? lines - line : panel, k);
        }
    } else {
        for (int64_t line = 0; line < lines; line++) {
            for (int64_t l = 0; l < k; l++) {
                int64_t at = across ? l * x.m.row + line : line * x.m.row + l;
                bool outside = (triangle == CARRY_BF16_LOWER && l / 16 > line / 16) ||
                               (triangle == CARRY_BF16_UPPER && l / 16 < line / 16);
                if (outside) {
                    ((float *)x.m.a.t.data)[at] = NAN;
                    x.m.a.v[at] = 0.0;
                }
            }
        }
        carry_bf16_split split = {.lines = lines,
                                  .k = k,
                                  .from = x.m.a.t.data,
                                  .row = x.m.row,
                                  .across = across,
                                  .triangle = triangle,
                                  .by = k_by,
                                  .terms = terms,
                                  .to = x.panels,
                                  .next = x.next};
        assert_true((of_a ? by->split_a : by->split_b)(&split));
        for (int64_t line = 0; k_by != NULL && line < lines; line++) {
            for (int64_t l = 0; l < k; l++) {
                double *v = &x.m.a.v[across ? l * x.m.row + line : line * x.m.row + l];
                *v = (double)((float)*v * k_by[l]);
            }
        }
    }
    for (int64_t i = 0; i < GUARD; i++) { /* nothing is written after the last term */
        assert_int_equal(x.panels[terms * x.next + i], 0xffff);
    }
    return x;
}

static const float *factors(bool wanted, int64_t count) {
    return wanted ? random_array(CARRY_F32, 1, SHAPE(count), -1, 1).t.data : NULL;
}

static matrix run(const carry_bf16 *by, const operand *a, const operand *b, const form *f, int64_t m, int64_t n,
                  const matrix *base, carry_bf16_terms t) {
    matrix c = {.rows = m, .columns = n, .row = n + GAP};
    c.a = poisoned(CARRY_F32, 2, SHAPE(m, c.row));
    t.m = m;
    t.n = n;
    t.k = a->k;
    t.a = a->panels;
    t.b = b->panels;
    t.a_next = a->next;
    t.b_next = b->next;
    t.a_terms = f->a_terms;
    t.b_terms = f->b_terms;
    t.order = f->order;
    t.triangle = f->triangle;
    t.base = f->base ? base->a.t.data : NULL;
    t.base_row = base->row;
    t.c = c.a.t.data;
    t.c_row = c.row;
    by->terms(&t);
    read_back(&c.a);
    return c;
}

/* Row i of a times column j of b in float64; *size gets the sum of the magnitudes of its terms. */
static SUPPORT_UNWATCHED double product64(const operand *a, const operand *b, const form *f, int64_t i, int64_t j,
                                          int64_t k, double *size) {
    double sum = 0.0;
    *size = 0.0;
    for (int64_t l = 0; l < k; l++) {
        double product = element(a, f->a_across, i, l) * element(b, f->b_across, j, l);
        sum += product;
        *size += fabs(product);
    }
    return sum;
}

/* Allows for the sums of k products of each pair in chains (bf16.h), the pairs that are left out, and four roundings at
   the end. */
static void check(const carry_bf16 *by, int64_t m, int64_t n, int64_t k, const form *f) {
    const float *k_by = factors(f->k_by, k);
    operand a = make(by, true, m, k, f->a_across, f->a_terms, f->triangle, f->a_terms > 1 ? k_by : NULL);
    operand b = make(by, false, n, k, f->b_across, f->b_terms, CARRY_BF16_SQUARE,
                     f->a_terms == 1 && f->b_terms > 1 ? k_by : NULL);
    matrix base = random_matrix(CARRY_F32, m, n);
    carry_bf16_terms t = {
        .by = factors(f->by, m), .columns_by = factors(f->columns_by, n), .base_by = factors(f->base_by, m)};
    matrix c = run(by, &a, &b, f, m, n, &base, t);
    bool exact = f->order == f->a_terms + f->b_terms - 2;
    double left_out = exact && f->a_terms != 2 && f->b_terms != 2 ? 0.0 : 3.0 * ldexp(1.0, -8 * (f->order + 1));
    for (int64_t i = 0; i < m; i++) {
        for (int64_t j = 0; j < c.row; j++) {
            double got = c.a.v[i * c.row + j];
            if (j >= n) {
                assert_true(isnan(got));
                continue;
            }
            double size;
            double sum = product64(&a, &b, f, i, j, k, &size);
            double factor = t.by != NULL ? (double)t.by[i] : 1.0;
            factor *= t.columns_by != NULL ? (double)t.columns_by[j] : 1.0;
            double more = f->base ? base.a.v[i * base.row + j] * (t.base_by != NULL ? (double)t.base_by[i] : 1.0) : 0.0;
            double wanted = factor * sum + more;
            double allowed = fabs(factor) * size * ((double)(6 * k + 2) * 0x1p-23 + left_out);
            allowed += 4.0 * 0x1p-24 * (fabs(factor) * size + fabs(more));
            if (!(fabs(got - wanted) <= allowed)) {
                fail_msg("%s: c[%lld, %lld] of %lld x %lld x %lld, terms %d and %d, is %.9g where %.9g is expected",
                         by->name, (long long)i, (long long)j, (long long)m, (long long)n, (long long)k, f->a_terms,
                         f->b_terms, got, wanted);
            }
        }
    }
    const carry_bf16 *emulated = carry_bf16_named("amx-emulated");
    if (by != emulated && strcmp(by->name, "amx") == 0) { /* the instructions have the bits of their emulation */
        matrix same = run(emulated, &a, &b, f, m, n, &base, t);
        assert_same("amx", &c.a, &same.a);
    }
    (void)free_kept(NULL);
}

static const int64_t sizes[][3] = {{1, 1, 1},     {16, 32, 32}, {31, 33, 17},   {32, 16, 64},
                                   {64, 128, 64}, {33, 65, 95}, {100, 31, 128}, {48, 80, 48}};

static void test_products_by_terms_match_float64_for_every_form(void **state) {
    (void)state;
    static const int terms[][3] = {{1, 1, 0}, {1, 3, 2}, {3, 1, 2}, {2, 2, 1}, {3, 3, 2}, {2, 1, 1}, {3, 3, 4}};
    const carry_bf16 *by;
    for (int i = 0; (by = carry_bf16_at(i)) != NULL; i++) {
        if (by->missing() != NULL || by->terms == NULL) {
            print_message("skipped: %s: %s\n", by->name, by->missing() != NULL ? by->missing() : "it has no terms");
            continue;
        }
        unsigned bits = 0;
        for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++) {
            for (size_t w = 0; w < sizeof terms / sizeof *terms; w++) {
                for (int lies = support_cases(0, (int)(s + w) % 3); lies < 4; lies += support_cases(1, 3)) {
                    bits = bits * 5 + 3;
                    form f = {.a_across = (lies & 1) != 0,
                              .b_across = (lies & 2) != 0,
                              .a_terms = terms[w][0],
                              .b_terms = terms[w][1],
                              .order = terms[w][2],
                              .by = (bits & 4) != 0,
                              .columns_by = (bits & 8) != 0,
                              .base = (bits & 16) != 0,
                              .base_by = (bits & 32) != 0,
                              .k_by = (bits & 64) != 0};
                    if (support_takes((int)(bits % 1021), 3)) {
                        check(by, sizes[s][0], sizes[s][1], sizes[s][2], &f);
                    }
                }
            }
        }
    }
}

static void test_triangles_read_their_blocks_alone(void **state) {
    (void)state;
    const carry_bf16 *by;
    for (int i = 0; (by = carry_bf16_at(i)) != NULL; i++) {
        for (int64_t m = 1; by->missing() == NULL && by->terms != NULL && m <= 130; m += 43) {
            for (int lies = 0; lies < 4; lies += support_cases(1, 3)) {
                form f = {.a_across = (lies & 1) != 0, .b_across = true, .a_terms = 3, .b_terms = 3, .order = 2};
                f.triangle = (lies & 2) != 0 ? CARRY_BF16_LOWER : CARRY_BF16_UPPER;
                check(by, m, 40, m, &f);
            }
        }
    }
}

/* x0 + x1 + x2 equals x, bit for bit, for every x that is large enough; and c = 1 x gives x back. */
static void test_three_terms_are_exact(void **state) {
    (void)state;
    const carry_bf16 *by;
    for (int i = 0; (by = carry_bf16_at(i)) != NULL; i++) {
        if (by->missing() != NULL || by->terms == NULL) {
            continue;
        }
        float x[32][32];
        for (int e = 0; e < 1024; e++) {
            double mantissa = 1.0 + (double)((uint32_t)e * UINT32_C(2654435761) >> 9) * 0x1p-23;
            x[e / 32][e % 32] = (float)ldexp(e % 2 == 0 ? mantissa : -mantissa, e % 200 - 90);
        }
        _Alignas(64) uint16_t terms[3 * 1024];
        carry_bf16_split split = {
            .lines = 32, .k = 32, .from = x[0], .row = 32, .across = true, .terms = 3, .to = terms, .next = 1024};
        assert_true(by->split_b(&split));
        for (int e = 0; e < 1024; e++) {
            int at = (e / 32 / 2 * 32 + e % 32) * 2 + e / 32 % 2;
            double sum = 0.0;
            for (int term = 0; term < 3; term++) {
                uint32_t wide = (uint32_t)terms[term * 1024 + at] << 16;
                float part;
                memcpy(&part, &wide, sizeof part);
                sum += (double)part;
            }
            assert_true(sum == (double)x[e / 32][e % 32]);
        }
    }
}

static void test_numbers_that_are_not_finite_are_refused(void **state) {
    (void)state;
    static const float bad[] = {INFINITY, -INFINITY, NAN, 3.4028235e38f};
    const carry_bf16 *by;
    for (int i = 0; (by = carry_bf16_at(i)) != NULL; i++) {
        for (int kind = 0; by->missing() == NULL && by->terms != NULL && kind < 8; kind++) {
            for (int at = 0; at < 40 * 40; at += support_cases(61, 305)) {
                float x[40 * 40] = {0};
                uint16_t terms[3 * 64 * 64];
                carry_bf16_split split = {.lines = 40,
                                          .k = 40,
                                          .from = x,
                                          .row = 40,
                                          .across = (kind & 1) != 0,
                                          .terms = (kind & 2) != 0 ? 2 : 3,
                                          .to = terms,
                                          .next = 64 * 64};
                x[at] = 1e38f;
                assert_true(((kind & 4) != 0 ? by->split_a : by->split_b)(&split));
                x[at] = bad[at % 4];
                assert_false(((kind & 4) != 0 ? by->split_a : by->split_b)(&split));
            }
        }
    }
}

#define TEST(name) cmocka_unit_test_teardown(name, free_kept)

int main(void) {
    const struct CMUnitTest tests[] = {
        TEST(test_products_by_terms_match_float64_for_every_form),
        TEST(test_triangles_read_their_blocks_alone),
        TEST(test_three_terms_are_exact),
        TEST(test_numbers_that_are_not_finite_are_refused),
    };
    return cmocka_run_group_tests(tests, open_contexts, close_contexts);
}
