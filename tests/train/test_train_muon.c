/* Muon against a reference in float64, and AdamW for the parameters that Muon does not update. */
#include "train_support.h"

#include "ops/muon.h"
#include "train/optimizer.h"

#define STEPS 3
#define RATE 0.02
#define DECAY 0.1
#define MOMENTUM 0.9

static const struct {
    const char *name;
    int rank;
    int64_t shape[3];
    bool is_table, decays;
} listed[] = {{"wide", 2, {6, 21}, false, true},    {"tall", 2, {33, 5}, false, true},
              {"stack", 3, {3, 4, 7}, false, true}, {"table", 2, {11, 4}, true, true},
              {"vector", 1, {13}, false, true},     {"gate", 1, {5}, false, false},
              {"filter", 3, {9, 1, 4}, false, true}};
#define LISTED (sizeof listed / sizeof listed[0])

static void multiply(double *c, const double *a, const double *b, int64_t m, int64_t k, int64_t n) {
    for (int64_t i = 0; i < m; i++) {
        for (int64_t j = 0; j < n; j++) {
            double sum = 0.0;
            for (int64_t l = 0; l < k; l++) {
                sum += a[i * k + l] * b[l * n + j];
            }
            c[i * n + j] = sum;
        }
    }
}

/* x [rows, columns] of any shape: five steps of x = a x + (b A + c A^2) x with A = x x^T. */
static void orthogonalise(double *x, int64_t rows, int64_t columns) {
    double turned[256] = {0.0};
    double a[4096] = {0.0};
    double a2[4096] = {0.0};
    double next[256] = {0.0};
    double norm = 0.0;
    for (int64_t i = 0; i < rows * columns; i++) {
        norm += x[i] * x[i];
    }
    for (int64_t i = 0; i < rows * columns; i++) {
        x[i] /= sqrt(norm) + 1e-7;
    }
    for (int step = 0; step < 5; step++) {
        for (int64_t i = 0; i < rows * columns; i++) {
            turned[i % columns * rows + i / columns] = x[i];
        }
        multiply(a, x, turned, rows, columns, rows);
        multiply(a2, a, a, rows, rows, rows);
        for (int64_t i = 0; i < rows * rows; i++) {
            a2[i] = -4.7750 * a[i] + 2.0315 * a2[i];
        }
        multiply(next, a2, x, rows, rows, columns);
        for (int64_t i = 0; i < rows * columns; i++) {
            x[i] = 3.4445 * x[i] + next[i];
        }
    }
}

static void step_muon(double *w, double *m, const float *g, double clip, int64_t rows, int64_t columns) {
    double u[256] = {0.0};
    for (int64_t i = 0; i < rows * columns; i++) {
        m[i] = MOMENTUM * m[i] + clip * (double)g[i];
        u[i] = clip * (double)g[i] + MOMENTUM * m[i];
    }
    orthogonalise(u, rows, columns);
    const double scale = 0.2 * sqrt((double)(rows > columns ? rows : columns));
    for (int64_t i = 0; i < rows * columns; i++) {
        w[i] -= RATE * (scale * u[i] + DECAY * w[i]);
    }
}

static void step_adamw(double *w, double *m, double *v, const float *g, double clip, int64_t count, bool decays,
                       int step) {
    for (int64_t i = 0; i < count; i++) {
        const double slope = clip * (double)g[i];
        m[i] = 0.9 * m[i] + 0.1 * slope;
        v[i] = 0.95 * v[i] + 0.05 * slope * slope;
        const double mean = m[i] / (1.0 - pow(0.9, step));
        const double square = v[i] / (1.0 - pow(0.95, step));
        w[i] -= RATE * (mean / (sqrt(square) + 1e-8) + (decays ? DECAY * w[i] : 0.0));
    }
}

static void open_model(carry_ctx *ctx, carry_parameters *own) {
    assert_ok(ctx, carry_parameters_open(ctx, own, 0, LISTED));
    for (size_t i = 0; i < LISTED; i++) {
        carry_parameter p = {.rank = listed[i].rank, .decays = listed[i].decays, .is_table = listed[i].is_table};
        memcpy(p.shape, listed[i].shape, sizeof listed[i].shape);
        (void)snprintf(p.name, sizeof p.name, "%s", listed[i].name);
        (void)carry_parameters_add(own, p);
    }
    assert_ok(ctx, carry_parameters_allocate(own));
    assert_ok(ctx, carry_parameters_want_gradients(own));
}

static float value_of(int64_t i, int64_t salt) {
    return 0.37f * (float)((i * 29 + salt * 17 + i * i % 13) % 41 - 20) / 20.0f;
}

static void test_steps_equal_a_reference_in_float64(void **state) {
    (void)state;
    carry_ctx *ctx = support_ctx(2, NULL, NULL);
    carry_parameters own = {0};
    carry_comm *comm;
    carry_optimizer *optimizer;
    double squares;
    const carry_optimizer_options options = {
        .b1 = 0.9, .b2 = 0.95, .eps = 1e-8, .decay = DECAY, .clip = 1.0, .momentum = MOMENTUM};
    open_model(ctx, &own);
    double *w = calloc((size_t)own.count * 3, sizeof *w);
    assert_non_null(w);
    for (int64_t i = 0; i < own.count; i++) {
        own.weights[i] = value_of(i, 0);
        w[i] = (double)own.weights[i];
    }
    assert_ok(ctx, carry_comm_open(ctx, &comm, "self", NULL));
    assert_ok(ctx, carry_optimizer_new(ctx, &optimizer, &own, comm, &options));
    for (int step = 1; step <= STEPS; step++) {
        double sum = 0.0;
        for (size_t i = 0; i < LISTED; i++) { /* the gaps stay zero */
            for (int64_t j = own.parameter[i].offset; j < own.parameter[i].offset + own.parameter[i].count; j++) {
                own.gradients[j] = value_of(j, step);
                sum += (double)own.gradients[j] * (double)own.gradients[j];
            }
        }
        const carry_tensor total = carry_view_1d(&squares, CARRY_F64, 1);
        assert_ok(ctx, carry_optimizer_collect(optimizer, total));
        assert_ok(ctx, carry_optimizer_set(optimizer, step, RATE));
        assert_ok(ctx, carry_optimizer_step(optimizer, total));
        const double clip = sqrt(sum) > 1.0 ? 1.0 / sqrt(sum) : 1.0;
        for (size_t i = 0; i < LISTED; i++) {
            const carry_parameter *p = &own.parameter[i];
            double *m = w + own.count;
            double *v = m + own.count;
            const int64_t at = p->offset;
            if (i > 2) {
                step_adamw(w + at, m + at, v + at, own.gradients + at, clip, p->count, p->decays, step);
                continue;
            }
            const int64_t rows = p->shape[p->rank - 2];
            const int64_t columns = p->shape[p->rank - 1];
            for (int64_t k = at; k < at + p->count; k += rows * columns) {
                step_muon(w + k, m + k, own.gradients + k, clip, rows, columns);
            }
        }
    }
    /* The iteration multiplies errors of f32 by up to 3.4445 in each of five steps: 500 * 6e-8 of steps of 0.02. */
    for (int64_t i = 0; i < own.count; i++) {
        assert_near(own.weights[i], w[i], 5e-6);
    }
    free(w);
    carry_optimizer_free(optimizer);
    carry_comm_close(comm);
    carry_parameters_free(&own);
    carry_ctx_free(ctx);
}

/* A step whose gradients are not finite changes neither weights nor momentum. */
static void test_steps_that_are_not_finite_change_nothing(void **state) {
    (void)state;
    carry_ctx *ctx = support_ctx(1, NULL, NULL);
    carry_parameters own = {0};
    carry_comm *comm;
    carry_optimizer *optimizer;
    double squares;
    const carry_optimizer_options options = {.b1 = 0.9, .b2 = 0.95, .eps = 1e-8, .momentum = MOMENTUM, .skips = 5};
    open_model(ctx, &own);
    own.weights[0] = 0.5f;
    own.gradients[1] = NAN;
    assert_ok(ctx, carry_comm_open(ctx, &comm, "self", NULL));
    assert_ok(ctx, carry_optimizer_new(ctx, &optimizer, &own, comm, &options));
    const carry_tensor total = carry_view_1d(&squares, CARRY_F64, 1);
    assert_ok(ctx, carry_optimizer_collect(optimizer, total));
    assert_ok(ctx, carry_optimizer_set(optimizer, 1, RATE));
    assert_ok(ctx, carry_optimizer_step(optimizer, total));
    assert_true(own.weights[0] == 0.5f);
    for (int64_t i = 0; i < own.count; i++) {
        assert_true(((const float *)optimizer->m.data)[i] == 0.0f);
    }
    carry_optimizer_free(optimizer);
    carry_comm_close(comm);
    carry_parameters_free(&own);
    carry_ctx_free(ctx);
}

/* One unit of bf16's last place in 32 steps: the mean over many elements rises as it does in f32. With the same
   random bits in every step, an element that was rounded down once would be rounded down for ever. */
static void test_small_changes_of_a_bf16_momentum_are_not_lost(void **state) {
    (void)state;
    enum { COUNT = 4000, LONG = 320 };
    static uint16_t m[COUNT];
    static float g[COUNT];
    static float u[COUNT];
    carry_ctx *ctx = support_ctx(2, NULL, NULL);
    const carry_tensor momentum = carry_view_1d(m, CARRY_BF16, COUNT);
    const carry_tensor slope = carry_view_1d(g, CARRY_F32, COUNT);
    const carry_tensor to = carry_view_1d(u, CARRY_F32, COUNT);
    float number;
    const carry_tensor step = carry_view_1d(&number, CARRY_F32, 1);
    for (int i = 0; i < COUNT; i++) {
        m[i] = 0x3F80; /* 1 */
        g[i] = 0x1p-12f;
    }
    for (number = 1.0f; number <= (float)LONG; number += 1.0f) {
        assert_ok(ctx, carry_muon_momentum(ctx, to, momentum, slope, (carry_tensor){0}, step, 1.0));
    }
    double mean = 0.0;
    for (int i = 0; i < COUNT; i++) {
        const uint32_t bits = (uint32_t)m[i] << 16;
        float value;
        memcpy(&value, &bits, sizeof value);
        mean += (double)value / COUNT;
    }
    /* Each element makes about 10 steps of 2^-7 with a variance of 10: the mean's deviation is 0.0004. */
    assert_near(mean - 1.0, LONG * 0x1p-12, 0.002);
    assert_refused(ctx, CARRY_EARGUMENT, "step is absent",
                   carry_muon_momentum(ctx, to, momentum, slope, (carry_tensor){0}, (carry_tensor){0}, 1.0));
    carry_ctx_free(ctx);
}

static void steps_of_narrow(carry_optimizer *o, carry_parameters *own, int first, int last) {
    double squares;
    const carry_tensor total = carry_view_1d(&squares, CARRY_F64, 1);
    for (int step = first; step <= last; step++) {
        for (size_t i = 0; i < LISTED; i++) {
            for (int64_t j = own->parameter[i].offset; j < own->parameter[i].offset + own->parameter[i].count; j++) {
                own->gradients[j] = value_of(j, 3); /* the same in each step */
            }
        }
        assert_ok(o->ctx, carry_optimizer_collect(o, total));
        assert_ok(o->ctx, carry_optimizer_set(o, step, RATE));
        assert_ok(o->ctx, carry_optimizer_step(o, total));
    }
}

/* Steps 1 to 3, a copy of the state as in a checkpoint, and steps 4 to 6 give the bits of steps 1 to 6. */
static void test_a_resumed_bf16_momentum_has_the_same_bits(void **state) {
    (void)state;
    carry_ctx *ctx = support_ctx(2, NULL, NULL);
    const carry_optimizer_options options = {
        .b1 = 0.9, .b2 = 0.95, .eps = 1e-8, .clip = 1.0, .momentum = MOMENTUM, .narrow = true};
    carry_comm *comm;
    carry_parameters own[2] = {{0}, {0}};
    carry_optimizer *o[2];
    assert_ok(ctx, carry_comm_open(ctx, &comm, "self", NULL));
    for (int i = 0; i < 2; i++) {
        open_model(ctx, &own[i]);
        assert_ok(ctx, carry_optimizer_new(ctx, &o[i], &own[i], comm, &options));
    }
    const int64_t count = own[0].count;
    float *m = calloc((size_t)count * 2, sizeof *m);
    assert_non_null(m);
    steps_of_narrow(o[0], &own[0], 1, 3);
    assert_ok(ctx, carry_optimizer_gather(o[0], m, m + count));
    memcpy(own[1].weights, own[0].weights, (size_t)count * sizeof *m);
    assert_ok(ctx, carry_optimizer_put(o[1], o[1]->m, 0, m, count));
    assert_ok(ctx, carry_optimizer_put(o[1], o[1]->v, 0, m + count, count));
    steps_of_narrow(o[0], &own[0], 4, 6);
    steps_of_narrow(o[1], &own[1], 4, 6);
    assert_memory_equal(own[0].weights, own[1].weights, (size_t)count * sizeof *m);
    assert_memory_equal(o[0]->m.data, o[1]->m.data, (size_t)count * sizeof(uint16_t));
    assert_memory_equal(o[0]->v.data, o[1]->v.data, (size_t)count * sizeof(uint16_t));
    free(m);
    for (int i = 0; i < 2; i++) {
        carry_optimizer_free(o[i]);
        carry_parameters_free(&own[i]);
    }
    carry_comm_close(comm);
    carry_ctx_free(ctx);
}

static void test_muon_trains_and_is_refused_on_several_ranks(void **state) {
    char out[256];
    told t;
    carry_train_options o = tiny(below(out, state, "muon"));
    o.length = 8;
    o.hidden = 32;
    o.head_dim = 16;
    o.batch = 16;
    o.steps = support_cases(60, 10);
    o.rate = 0.01;
    o.final_rate = 0.0; /* warm-up, then down to zero */
    (void)snprintf(o.optimizer, sizeof o.optimizer, "muon");
    train_ok(1, &o, false, &t);
    assert_true(t.loss[1] > 1.6 && t.loss[o.steps] < (o.steps == 60 ? 1.1 : t.loss[1]));
    assert_true(t.rate[o.steps] == 0.0);
    assert_int_equal(train_on(2, &o, false, NULL, &t), CARRY_EUNSUPPORTED);
    assert_non_null(strstr(t.error, "one rank"));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_steps_equal_a_reference_in_float64),
        cmocka_unit_test(test_steps_that_are_not_finite_change_nothing),
        cmocka_unit_test(test_small_changes_of_a_bf16_momentum_are_not_lost),
        cmocka_unit_test(test_a_resumed_bf16_momentum_has_the_same_bits),
        cmocka_unit_test(test_muon_trains_and_is_refused_on_several_ranks),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
