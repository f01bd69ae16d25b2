/* The state space layer of Mamba-2 against a token-by-token version in float64: odd lengths, all types, 1, 2, 3
   threads, steps from a state, packed sequences, and decays near 1 and 0; gradients against differences. */
#include "nn_support.h"

#include "carry/nn.h"
#include "ops/ssm.h"

typedef struct problem {
    array xbc, dt, A_log, dt_bias, D, dy;
    int64_t B, T, n, P, G, N;
    double least, most;
    const int64_t *cuts; /* NULL: none */
    int64_t sequences;
    double *y, *S;
} problem;

/* y, and S after the last token. */
static SUPPORT_UNWATCHED void reference(const problem *p, double *y, double *S) {
    const int64_t channels = p->n * p->P + 2 * p->G * p->N;
    memset(S, 0, (size_t)(p->B * p->n * p->P * p->N) * sizeof *S);
    for (int64_t row = 0; row < p->B * p->T * p->n; row++) {
        const int64_t h = row % p->n, token = row / p->n, t = token % p->T, group = h * p->G / p->n;
        double *s = S + (token / p->T * p->n + h) * p->P * p->N;
        const double *x = p->xbc.v + token * channels + h * p->P;
        const double *b = p->xbc.v + token * channels + p->n * p->P + group * p->N, *c = b + p->G * p->N;
        double a = log1p(exp(p->dt.v[row] + p->dt_bias.v[h]));
        a = a < p->least ? p->least : a > p->most ? p->most : a;
        const double fade = exp(-exp(p->A_log.v[h]) * a);
        for (int64_t i = 0; p->cuts != NULL && i < p->sequences; i++) {
            if (p->cuts[i] == t) {
                memset(s, 0, (size_t)(p->P * p->N) * sizeof *s);
            }
        }
        for (int64_t i = 0; i < p->P; i++) {
            double sum = p->D.v[h] * x[i];
            for (int64_t l = 0; l < p->N; l++) {
                s[i * p->N + l] = fade * s[i * p->N + l] + a * x[i] * b[l];
                sum += s[i * p->N + l] * c[l];
            }
            y[row * p->P + i] = sum;
        }
    }
}

static SUPPORT_UNWATCHED double loss(const void *given) {
    const problem *p = given;
    double sum = 0.0;
    reference(p, p->y, p->S);
    for (int64_t i = 0; i < p->dy.count; i++) {
        sum += p->y[i] * p->dy.v[i];
    }
    return sum;
}

static problem make(carry_dtype type, int64_t B, int64_t T, int64_t n, int64_t P, int64_t G, int64_t N, float decay) {
    problem p = {.B = B, .T = T, .n = n, .P = P, .G = G, .N = N, .most = INFINITY};
    p.xbc = random_array(type, 3, SHAPE(B, T, n * P + 2 * G * N), -1, 1);
    p.dt = random_array(type, 3, SHAPE(B, T, n), -2, 2);
    p.A_log = random_array(CARRY_F32, 1, &n, decay - 0.5f, decay + 0.5f);
    p.dt_bias = random_array(CARRY_F32, 1, &n, -1, 1);
    p.D = random_array(CARRY_F32, 1, &n, -1, 1);
    p.dy = random_array(type, 3, SHAPE(B, T, n * P), -1, 1);
    p.y = keep(malloc((size_t)p.dy.count * sizeof *p.y));
    p.S = keep(malloc((size_t)(B * n * P * N) * sizeof *p.S));
    return p;
}

static carry_ssm_args args_of(const problem *p, carry_tensor y, carry_tensor cuts) {
    return (carry_ssm_args){.y = y,
                            .xbc = p->xbc.t,
                            .dt = p->dt.t,
                            .A_log = p->A_log.t,
                            .dt_bias = p->dt_bias.t,
                            .D = p->D.t,
                            .cu_seqlens = cuts,
                            .heads = p->n,
                            .groups = p->G,
                            .state = p->N,
                            .least = (float)p->least,
                            .most = (float)p->most};
}

/* Sums of up to T terms below 1, each rounded: 2^-24 of them for each step. */
static double bound(const problem *p) {
    return 1e-6 * (double)(p->T < 64 ? 64 : p->T) * (double)p->N / 4.0;
}

static void check_forward(const problem *p) {
    array first;
    const carry_tensor cuts =
        p->cuts != NULL ? carry_view_1d((void *)(uintptr_t)p->cuts, CARRY_I64, p->sequences + 1) : absent;
    reference(p, p->y, p->S);
    for (int c = 0; c < CTXS; c += ctxs_step()) {
        array y = poisoned(p->dy.t.dtype, 3, p->dy.t.shape);
        array S = poisoned(CARRY_F32, 4, SHAPE(p->B, p->n, p->P, p->N));
        carry_ssm_args args = args_of(p, y.t, cuts);
        args.final = p->cuts == NULL ? S.t : absent;
        const size_t bytes = carry_ssm_workspace(ctxs[c], &args);
        void *space = keep(malloc(bytes));
        assert_int_equal(carry_ssm(ctxs[c], &args, space, bytes - 1), CARRY_EWORKSPACE);
        assert_ok(ctxs[c], carry_ssm(ctxs[c], &args, space, bytes));
        first = c == 0 ? y : first;
        assert_same("y", &y, &first);
        read_back(&y);
        read_back(&S);
        assert_near("y", &y, p->y, bound(p));
        if (p->cuts == NULL) {
            assert_near("final", &S, p->S, bound(p));
        }
    }
}

static void test_chunks_equal_tokens(void **state) {
    (void)state;
    const float decays[] = {0.0f, -30.0f, 3.0f, 7.0f}; /* A of -1, -1e-13, -20 and -1000 */
    for (int type = 0; type < 3; type++) {
        for (int d = 0; d < 4; d++) {
            problem p = make(types[type], 2, d == 0 ? 131 : 65, 4, 5, 2, 3, decays[d]);
            check_forward(&p);
            (void)free_kept(NULL);
        }
    }
    problem p = make(CARRY_F32, 1, 1, 1, 1, 1, 1, 0.0f);
    check_forward(&p);
    p = make(CARRY_F32, 1, 150, 2, 4, 1, 7, 0.0f);
    const int64_t cuts[] = {0, 3, 3, 70, 150};
    p.cuts = cuts;
    p.sequences = 4;
    p.least = 0.5;
    p.most = 1.0;
    check_forward(&p);
}

static void test_steps_equal_the_whole(void **state) {
    (void)state;
    const int64_t T = 70, shape[] = {1, 2, 4, 3};
    problem p = make(CARRY_F32, 1, T, 2, 4, 1, 3, 0.0f);
    array S = poisoned(CARRY_F32, 4, shape), y = poisoned(CARRY_F32, 3, p.dy.t.shape);
    memset(S.t.data, 0, (size_t)S.count * sizeof(float));
    for (int64_t t = 0; t < T;) {
        const int64_t count = t < 5 ? 1 : t < 40 ? 7 : T - t;
        carry_ssm_args args = args_of(&p, y.t, absent);
        carry_tensor *parts[] = {&args.y, &args.xbc, &args.dt};
        for (int i = 0; i < 3; i++) {
            parts[i]->data = (float *)parts[i]->data + t * parts[i]->shape[2];
            *parts[i] = carry_view_3d(parts[i]->data, CARRY_F32, 1, count, parts[i]->shape[2]);
        }
        args.initial = args.final = S.t;
        const size_t bytes = carry_ssm_workspace(ctxs[0], &args);
        assert_ok(ctxs[0], carry_ssm(ctxs[0], &args, keep(malloc(bytes)), bytes));
        t += count;
    }
    reference(&p, p.y, p.S);
    read_back(&y);
    read_back(&S);
    assert_near("y", &y, p.y, bound(&p));
    assert_near("state", &S, p.S, bound(&p));
}

static void check_backward(problem *p) {
    const carry_tensor cuts =
        p->cuts != NULL ? carry_view_1d((void *)(uintptr_t)p->cuts, CARRY_I64, p->sequences + 1) : absent;
    const carry_dtype type = p->xbc.t.dtype;
    array first[5];
    array *inputs[] = {&p->xbc, &p->dt, &p->A_log, &p->dt_bias, &p->D};
    static const char *const names[] = {"dxbc", "ddt", "dA_log", "ddt_bias", "dD"};
    array y = poisoned(type, 3, p->dy.t.shape);
    for (int c = 0; c < CTXS; c += ctxs_step()) {
        array d[5];
        for (int i = 0; i < 5; i++) {
            d[i] = poisoned(inputs[i]->t.dtype, inputs[i]->t.rank, inputs[i]->t.shape);
            if (i >= 2) {
                memset(d[i].t.data, 0, (size_t)d[i].count * sizeof(float));
            }
        }
        const carry_ssm_backward_args args = {.dxbc = d[0].t,
                                              .ddt = d[1].t,
                                              .dA_log = d[2].t,
                                              .ddt_bias = d[3].t,
                                              .dD = d[4].t,
                                              .dy = p->dy.t,
                                              .forward = args_of(p, y.t, cuts)};
        const size_t bytes = carry_ssm_backward_workspace(ctxs[c], &args.forward);
        assert_ok(ctxs[c], carry_ssm_backward(ctxs[c], &args, keep(malloc(bytes)), bytes));
        for (int i = 0; i < 5; i++) {
            first[i] = c == 0 ? d[i] : first[i];
            assert_same(names[i], &d[i], &first[i]);
        }
    }
    for (int i = 0; i < 5; i++) {
        read_back(&first[i]);
        assert_gradient(names[i], &first[i], inputs[i], inputs[i]->count > 200 ? 13 : 1, loss, p, 1e-3);
    }
    (void)free_kept(NULL);
}

static void test_gradients_equal_differences(void **state) {
    (void)state;
    for (int type = 0; type < 3; type++) {
        problem p = make(types[type], 2, 7, 4, 3, 2, 2, 0.0f);
        check_backward(&p);
    }
    problem p = make(CARRY_F32, 1, 130, 2, 3, 1, 4, 0.0f);
    const int64_t cuts[] = {0, 66, 66, 130};
    p.cuts = cuts;
    p.sequences = 3;
    check_backward(&p);
    p = make(CARRY_F32, 1, 67, 2, 2, 2, 2, 3.0f);
    p.least = 0.4;
    check_backward(&p);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(test_chunks_equal_tokens, free_kept),
        cmocka_unit_test_teardown(test_steps_equal_the_whole, free_kept),
        cmocka_unit_test_teardown(test_gradients_equal_differences, free_kept),
    };
    return cmocka_run_group_tests(tests, open_contexts, close_contexts);
}
