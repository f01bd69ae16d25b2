/* The kernels of a chunk of the delta rule: every set gives the results of the definition in float64, and elements
   right of the diagonal have no effect. */
#include <math.h>
#include <string.h>

#include "support.h"

#include "ops/kernels/kernels.h"

enum { STRIDE = 64, UNIT = CARRY_UNIT_ROWS };

static uint32_t state = 99;

static float random_float(void) {
    state = state * 1664525u + 1013904223u;
    return (float)(int32_t)state * 0x1p-31f;
}

static void close_to(float found, double wanted, double bound, const char *what, int64_t i, int64_t j) {
    if (!(fabs((double)found - wanted) <= bound)) {
        fail_msg("%s: element %lld, %lld is %.9g and should be %.9g", what, (long long)i, (long long)j, (double)found,
                 wanted);
    }
}

typedef struct chunk {
    double G[STRIDE];
    float beta[STRIDE], kk[STRIDE * STRIDE], qk[STRIDE * STRIDE];
    float D[STRIDE * STRIDE], nA[STRIDE * STRIDE], P[STRIDE * STRIDE];
} chunk;

static void make(chunk *c, int64_t tokens) {
    double sum = 0.0;
    memset(c, 0, sizeof *c);
    for (int64_t i = 0; i < STRIDE; i++) {
        sum -= 0.5 + 0.5 * (double)random_float();
        c->G[i] = sum;
        c->beta[i] = random_float();
        for (int64_t j = 0; j < STRIDE; j++) {
            c->kk[i * STRIDE + j] = j > i || i >= tokens ? NAN : random_float(); /* the upper triangle is unset */
            c->qk[i * STRIDE + j] = j > i || i >= tokens ? INFINITY : random_float();
        }
    }
}

static void check_triangles(const carry_kernels *kernels, chunk *c, int64_t tokens, bool gated, bool with_q) {
    kernels->rows->triangles(&(carry_triangles){.tokens = tokens,
                                                .stride = STRIDE,
                                                .G = gated ? c->G : NULL,
                                                .kk = c->kk,
                                                .qk = with_q ? c->qk : NULL,
                                                .beta = c->beta,
                                                .scale = 0.25f,
                                                .D = c->D,
                                                .nA = c->nA,
                                                .P = c->P});
    for (int64_t i = 0; i < tokens; i++) {
        for (int64_t j = 0; j < (i / UNIT + 1) * UNIT; j++) {
            const int64_t at = i * STRIDE + j;
            double decay = gated ? exp(c->G[i] - c->G[j]) : 1.0;
            close_to(c->nA[at], j < i ? -(double)c->beta[i] * decay * (double)c->kk[at] : 0.0, 2e-6, kernels->name, i,
                     j);
            close_to(c->P[at], with_q && j <= i ? 0.25 * decay * (double)c->qk[at] : 0.0, 2e-6, kernels->name, i, j);
            if (j <= i) {
                close_to(c->D[at], decay, 2e-6, kernels->name, i, j);
            }
        }
    }
}

static void triangles_are_what_they_say(void **unused) {
    (void)unused;
    static const int64_t lengths[] = {1, 2, 15, 16, 17, 33, 50, 64};
    static chunk c;
    const carry_kernels *kernels;
    for (int set = 0; (kernels = carry_kernels_at(set)) != NULL; set++) {
        for (size_t l = 0; kernels->usable() && l < sizeof lengths / sizeof lengths[0]; l++) {
            for (int form = 0; form < 4; form++) {
                make(&c, lengths[l]);
                check_triangles(kernels, &c, lengths[l], (form & 1) != 0, (form & 2) != 0);
            }
        }
    }
}

/* (I + A) inverse = I, row by row. */
static void inverses_are_inverses(void **unused) {
    (void)unused;
    const carry_kernels *kernels;
    for (int set = 0; (kernels = carry_kernels_at(set)) != NULL; set++) {
        for (int64_t size = 1; kernels->usable() && size <= UNIT; size++) {
            float below[UNIT * STRIDE];
            float inverse[UNIT * UNIT];
            for (int64_t i = 0; i < UNIT * STRIDE; i++) {
                below[i] = i % STRIDE < i / STRIDE ? 0.3f * random_float() : NAN;
            }
            kernels->rows->unit_inverse(inverse, below, STRIDE, size);
            for (int64_t i = 0; i < size; i++) {
                for (int64_t j = 0; j < UNIT; j++) {
                    double sum = (double)inverse[i * UNIT + j];
                    for (int64_t l = 0; l < i; l++) {
                        sum -= (double)below[i * STRIDE + l] * (double)inverse[l * UNIT + j];
                    }
                    close_to((float)sum, i == j ? 1.0 : 0.0, 2e-6, kernels->name, i, j);
                }
            }
        }
    }
}

static void rows_have_norm_one_and_neighbours_are_left_alone(void **unused) {
    (void)unused;
    static const int64_t sizes[] = {1, 3, 16, 33, 128};
    const carry_kernels *kernels;
    for (int set = 0; (kernels = carry_kernels_at(set)) != NULL; set++) {
        for (size_t s = 0; kernels->usable() && s < sizeof sizes / sizeof sizes[0]; s++) {
            enum { ROWS = 5, APART = 140 };
            float from[ROWS * APART];
            float to[ROWS * APART];
            float norms[ROWS];
            const int64_t size = sizes[s];
            for (int64_t i = 0; i < ROWS * APART; i++) {
                from[i] = 2.0f * random_float();
                to[i] = 7.0f;
            }
            kernels->rows->unit_rows(to, from, APART, norms, 1e-6f, ROWS, size);
            for (int64_t i = 0; i < ROWS; i++) {
                double sum = 1e-6;
                for (int64_t j = 0; j < size; j++) {
                    sum += (double)from[i * APART + j] * (double)from[i * APART + j];
                }
                for (int64_t j = 0; j < size; j++) {
                    close_to(to[i * size + j], (double)from[i * APART + j] / sqrt(sum), 2e-6, kernels->name, i, j);
                }
            }
            assert_true(to[ROWS * size] == 7.0f);
            kernels->rows->scale_rows(to, APART, from, APART, norms, ROWS, size);
            for (int64_t i = 0; i < ROWS; i++) {
                for (int64_t j = 0; j < size; j++) {
                    assert_true(to[i * APART + j] == norms[i] * from[i * APART + j]);
                }
                assert_true(i + 1 == ROWS || size + i * APART < ROWS * size || to[i * APART + size] == 7.0f);
            }
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(triangles_are_what_they_say),
        cmocka_unit_test(inverses_are_inverses),
        cmocka_unit_test(rows_have_norm_one_and_neighbours_are_left_alone),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
