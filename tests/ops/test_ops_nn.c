/* The exponential, activations, norm, embedding and AdamW against float64, over odd sizes, all types and 1, 2, 3
   threads. */
#include "nn_support.h"

#include "carry/nn.h"
#include "ops/kernels/exp.h"

/* Two roundings in the reduction and one in each of the last steps: 2^-22 is four half units. */
static void test_exp_is_near_the_true_one_and_passes_nan(void **state) {
    (void)state;
    for (int64_t i = -869000; i <= 887000; i += 13) {
        float x = (float)i * 1e-4f;
        double true_one = exp((double)x);
        if (!(fabs((double)carry_exp(x) - true_one) <= 0x1p-22 * true_one)) {
            fail_msg("e^%.9g is %.9g where %.9g is expected", x, carry_exp(x), true_one);
        }
    }
    assert_true(carry_exp(0.0f) == 1.0f && carry_exp(-0.0f) == 1.0f);
    assert_true(carry_exp(-INFINITY) == 0.0f && carry_exp(-87.0f) == 0.0f && carry_exp(-1e30f) == 0.0f);
    assert_true(carry_exp(INFINITY) == INFINITY && carry_exp(89.0f) == INFINITY && carry_exp(1e30f) == INFINITY);
    assert_true(isnan(carry_exp(NAN)));
}

typedef struct problem {
    array x, y, z, w;
    const double *dy;
    int64_t tokens, n;
    carry_activation activation;
    double eps;
} problem;

static double activation_loss(const void *given) {
    const problem *p = given;
    double sum = 0.0;
    for (int64_t i = 0; i < p->x.count; i++) {
        sum += p->dy[i] * activate64(p->x.v[i], p->activation);
    }
    return sum;
}

/* Values are below 6 in magnitude: f and f' are off by a few 2^-24 of that. */
static void check_activation(carry_dtype type, carry_activation activation, int64_t count, bool in_place) {
    problem p = {.x = random_array(type, 1, &count, -6, 6), .activation = activation};
    array dy = random_array(type, 1, &count, -1, 1);
    array first[2];
    p.dy = dy.v;
    for (int c = 0; c < CTXS; c += ctxs_step()) {
        array x = copy_of(&p.x), d = copy_of(&dy);
        array y = in_place ? x : poisoned(type, 1, &count), dx = in_place ? d : poisoned(type, 1, &count);
        assert_ok(ctxs[c], carry_activate_backward(ctxs[c], dx.t, d.t, x.t, activation));
        assert_ok(ctxs[c], carry_activate(ctxs[c], y.t, x.t, activation));
        first[0] = c == 0 ? y : first[0];
        first[1] = c == 0 ? dx : first[1];
        assert_same("y", &y, &first[0]);
        assert_same("dx", &dx, &first[1]);
    }
    double *want = keep(malloc((size_t)count * sizeof *want));
    for (int64_t i = 0; i < count; i++) {
        want[i] = activate64(p.x.v[i], activation);
    }
    assert_near("y", &first[0], want, 0x1p-20);
    assert_gradient("dx", &first[1], &p.x, count / 100 + 1, activation_loss, &p, 0x1p-20);
}

static void test_activations_match_float64_and_differences(void **state) {
    (void)state;
    const int64_t counts[] = {1, 15, 17, 1023, 1025, support_cases(40001, 4001)};
    for (int i = 0; i < 3; i++) {
        for (int a = CARRY_NO_ACTIVATION; a <= CARRY_GELU; a++) {
            for (size_t k = 0; k < sizeof counts / sizeof *counts; k++) {
                check_activation(types[i], (carry_activation)a, counts[k], k % 2 == 1);
            }
            (void)free_kept(NULL);
        }
    }
}

static void test_activations_pass_nan_and_stand_infinity(void **state) {
    (void)state;
    static const double at_infinity[][2] = {{INFINITY, -INFINITY}, {INFINITY, NAN}, {INFINITY, 0},
                                            {INFINITY, -1},        {1, 0},          {INFINITY, NAN}};
    float x[3] = {NAN, INFINITY, -INFINITY}, y[3], dy[3] = {1, 1, 1}, dx[3];
    for (int a = CARRY_NO_ACTIVATION; a <= CARRY_GELU; a++) {
        assert_ok(ctxs[0], carry_activate(ctxs[0], carry_view_1d(y, CARRY_F32, 3), carry_view_1d(x, CARRY_F32, 3),
                                          (carry_activation)a));
        assert_ok(ctxs[0],
                  carry_activate_backward(ctxs[0], carry_view_1d(dx, CARRY_F32, 3), carry_view_1d(dy, CARRY_F32, 3),
                                          carry_view_1d(x, CARRY_F32, 3), (carry_activation)a));
        assert_true(isnan(y[0]) && (a == CARRY_NO_ACTIVATION || isnan(dx[0])));
        assert_true((double)y[1] == at_infinity[a][0]);
        assert_true((double)y[2] == at_infinity[a][1] || isnan(at_infinity[a][1])); /* -inf times sigmoid's 0 is NaN */
    }
    assert_refused(
        ctxs[0], CARRY_EARGUMENT, "number 9",
        carry_activate(ctxs[0], carry_view_1d(y, CARRY_F32, 3), carry_view_1d(x, CARRY_F32, 3), (carry_activation)9));
}

static double swiglu_loss(const void *given) {
    const problem *p = given;
    double sum = 0.0;
    for (int64_t i = 0; i < p->x.count; i++) {
        sum += p->dy[i] * activate64(p->x.v[i], CARRY_SILU) * p->y.v[i];
    }
    return sum;
}

static void check_swiglu(carry_dtype type, int64_t count, bool in_place) {
    problem p = {.x = random_array(type, 1, &count, -4, 4), .y = random_array(type, 1, &count, -1, 1)};
    array dy = random_array(type, 1, &count, -1, 1);
    array first[3];
    p.dy = dy.v;
    for (int c = 0; c < CTXS; c += ctxs_step()) {
        array gate = copy_of(&p.x), up = copy_of(&p.y);
        array got[3] = {poisoned(type, 1, &count), in_place ? gate : poisoned(type, 1, &count),
                        in_place ? up : poisoned(type, 1, &count)};
        assert_ok(ctxs[c], carry_swiglu(ctxs[c], got[0].t, gate.t, up.t));
        assert_ok(ctxs[c], carry_swiglu_backward(ctxs[c], got[1].t, got[2].t, dy.t, gate.t, up.t));
        for (int i = 0; i < 3; i++) {
            first[i] = c == 0 ? got[i] : first[i];
            assert_same("swiglu", &got[i], &first[i]);
        }
    }
    double *want = keep(malloc((size_t)count * sizeof *want));
    for (int64_t i = 0; i < count; i++) {
        want[i] = activate64(p.x.v[i], CARRY_SILU) * p.y.v[i];
    }
    assert_near("y", &first[0], want, 0x1p-20);
    assert_gradient("dgate", &first[1], &p.x, count / 50 + 1, swiglu_loss, &p, 0x1p-20);
    assert_gradient("dup", &first[2], &p.y, count / 50 + 1, swiglu_loss, &p, 0x1p-20);
}

static void test_swiglu_matches_float64_and_differences(void **state) {
    (void)state;
    const int64_t counts[] = {1, 31, 1024, 1025, support_cases(33333, 3333)};
    for (int i = 0; i < 3; i++) {
        for (size_t k = 0; k < sizeof counts / sizeof *counts; k++) {
            check_swiglu(types[i], counts[k], k % 2 == 1);
        }
    }
}

static double norm_loss(const void *given) {
    const problem *p = given;
    double sum = 0.0;
    for (int64_t t = 0; t < p->tokens; t++) {
        double squares = 0.0;
        for (int64_t i = 0; i < p->n; i++) {
            squares += p->x.v[t * p->n + i] * p->x.v[t * p->n + i];
        }
        double scale = 1.0 / sqrt(squares / (double)p->n + p->eps);
        for (int64_t i = 0; i < p->n; i++) {
            int64_t at = t * p->n + i;
            double y = p->x.v[at] * scale * (p->w.v != NULL ? p->w.v[i] : 1.0);
            y *= p->z.v != NULL ? activate64(p->z.v[at], CARRY_SILU) : 1.0;
            p->y.v[at] = y;
            sum += p->dy[at] * y;
        }
    }
    return sum;
}

/* Sums of n squares below 1, in partial sums: the scale is off by less than n 2^-24 of itself (n is at most 2000 here),
   and a gradient by a few times that. Sums over tokens add as many roundings. A small n may have a large scale, so
   inputs are at least 0.25. */
static void check_norm(carry_dtype type, int64_t tokens, int64_t n, bool weighted, bool gated, bool accumulate) {
    problem p = {.x = random_array(type, 2, SHAPE(tokens, n), 0.25f, 1), .tokens = tokens, .n = n, .eps = 1e-3f};
    p.y = poisoned(type, 2, p.x.t.shape);
    p.w = weighted ? random_array(type, 1, &n, -1, 1) : p.w;
    p.z = gated ? random_array(type, 2, p.x.t.shape, -2, 2) : p.z;
    array dy = random_array(type, 2, p.x.t.shape, -1, 1), dx0 = random_array(type, 2, p.x.t.shape, -1, 1);
    array dw0 = random_array(CARRY_F32, 1, &n, -1, 1);
    p.dy = dy.v;
    size_t bytes = carry_rms_norm_backward_workspace(tokens, n);
    void *workspace = keep(malloc(bytes));
    array first[4];
    for (int c = 0; c < CTXS; c += ctxs_step()) {
        array got[4] = {poisoned(type, 2, p.x.t.shape), accumulate ? copy_of(&dx0) : poisoned(type, 2, p.x.t.shape),
                        copy_of(&dw0), poisoned(type, 2, p.x.t.shape)};
        assert_ok(ctxs[c], carry_rms_norm(ctxs[c], got[0].t, p.x.t, p.w.t, p.z.t, 1e-3f));
        assert_ok(ctxs[c], carry_rms_norm_backward(ctxs[c],
                                                   &(carry_rms_norm_backward_args){.dx = got[1].t,
                                                                                   .dw = got[2].t,
                                                                                   .dz = gated ? got[3].t : absent,
                                                                                   .dy = dy.t,
                                                                                   .x = p.x.t,
                                                                                   .w = p.w.t,
                                                                                   .z = p.z.t,
                                                                                   .eps = 1e-3f,
                                                                                   .accumulate = accumulate},
                                                   workspace, bytes));
        for (int i = 0; i < (gated ? 4 : 3); i++) {
            first[i] = c == 0 ? got[i] : first[i];
            assert_same("norm", &got[i], &first[i]);
        }
    }
    const double bound = 0x1p-19 + 4.0 * 0x1p-24 * (double)(tokens + n);
    (void)norm_loss(&p);
    assert_near("y", &first[0], p.y.v, bound);
    if (!accumulate) { /* otherwise dx contains earlier values, and 16-bit sums are rounded again */
        assert_gradient("dx", &first[1], &p.x, p.x.count / 60 + 1, norm_loss, &p, bound);
    } else if (type == CARRY_F32) {
        for (int64_t i = 0; i < dx0.count; i++) {
            ((float *)first[1].t.data)[i] -= ((float *)dx0.t.data)[i];
        }
        assert_gradient("dx", &first[1], &p.x, p.x.count / 60 + 1, norm_loss, &p, bound);
    }
    if (weighted) {
        for (int64_t i = 0; i < n; i++) {
            ((float *)first[2].t.data)[i] -= ((float *)dw0.t.data)[i];
        }
        assert_gradient("dw", &first[2], &p.w, n / 30 + 1, norm_loss, &p, bound);
    }
    if (gated) {
        assert_gradient("dz", &first[3], &p.z, p.z.count / 60 + 1, norm_loss, &p, bound);
    }
}

static void test_norm_matches_float64_and_differences(void **state) {
    (void)state;
    static const int64_t shapes[][2] = {{1, 1}, {1, 1025}, {3, 7}, {65, 33}, {130, 128}, {2, 2051}};
    for (int i = 0; i < 3; i++) {
        for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++) {
            for (int form = 0; form < 4; form++) {
                check_norm(types[i], shapes[s][0], shapes[s][1], (form & 1) != 0, (form & 2) != 0, form == 1);
                (void)free_kept(NULL);
            }
        }
    }
    check_norm(CARRY_F32, 64 * 256 + 3, 2, true, false, false); /* blocks of more than 64 tokens */
}

static void test_norm_names_what_does_not_fit(void **state) {
    (void)state;
    carry_ctx *ctx = ctxs[0];
    array x = random_array(CARRY_F32, 2, SHAPE(3, 4), -1, 1), y = poisoned(CARRY_F32, 2, SHAPE(3, 4));
    array w = random_array(CARRY_F32, 1, SHAPE(5), -1, 1), dw = poisoned(CARRY_F32, 1, SHAPE(4));
    float workspace[4];
    assert_refused(ctx, CARRY_ESHAPE, "w has shape [5]", carry_rms_norm(ctx, y.t, x.t, w.t, absent, 0));
    assert_refused(ctx, CARRY_ESHAPE, "z has shape [4]", carry_rms_norm(ctx, y.t, x.t, absent, dw.t, 0));
    assert_refused(ctx, CARRY_EARGUMENT, "z is absent",
                   carry_rms_norm_backward(
                       ctx, &(carry_rms_norm_backward_args){.dz = y.t, .dy = x.t, .x = x.t, .eps = 0}, NULL, 0));
    assert_refused(ctx, CARRY_EWORKSPACE, "16 bytes",
                   carry_rms_norm_backward(
                       ctx, &(carry_rms_norm_backward_args){.dw = dw.t, .dy = x.t, .x = x.t, .eps = 0}, workspace, 15));
}

/* Memory for the longest call is enough for shorter ones: 16384 tokens are summed in more blocks than 16385. */
static void test_workspaces_never_shrink_with_tokens(void **state) {
    (void)state;
    size_t before[4] = {0};
    for (int64_t tokens = 1; tokens < 70000; tokens++) {
        const size_t bytes[] = {
            carry_rms_norm_backward_workspace(tokens, 3), carry_layer_norm_backward_workspace(tokens, 3),
            carry_conv_backward_workspace(2, tokens, 3, 4), carry_linear_cross_entropy_workspace(tokens, 3, 500)};
        for (int i = 0; i < 4; i++) {
            if (bytes[i] < before[i]) {
                fail_msg("workspace %d of %lld tokens is %zu bytes, of one token less %zu", i, (long long)tokens,
                         bytes[i], before[i]);
            }
            before[i] = bytes[i];
        }
    }
}

static void check_embed(carry_dtype type, carry_dtype weights, int64_t tokens, int64_t n) {
    const int64_t vocabulary = 11;
    array table = random_array(weights, 2, SHAPE(vocabulary, n), -1, 1),
          dy = random_array(type, 2, SHAPE(tokens, n), -1, 1);
    array dtable0 = random_array(CARRY_F32, 2, table.t.shape, -1, 1);
    int64_t *ids = keep(malloc((size_t)tokens * sizeof *ids));
    double *want = keep(malloc((size_t)(tokens * n) * sizeof *want));
    for (int64_t i = 0; i < tokens * n; i++) {
        ids[i / n] = i / n * i / n % vocabulary;
    }
    for (int64_t i = 0; i < tokens * n; i++) {
        want[i] = table.v[ids[i / n] * n + i % n];
        dtable0.v[ids[i / n] * n + i % n] += dy.v[i];
    }
    array first[2];
    for (int c = 0; c < CTXS; c += ctxs_step()) {
        array y = poisoned(type, 2, dy.t.shape), dtable = copy_of(&dtable0);
        assert_ok(ctxs[c], carry_embed(ctxs[c], y.t, table.t, carry_view_1d(ids, CARRY_I64, tokens)));
        assert_ok(ctxs[c], carry_embed_backward(ctxs[c], dtable.t, dy.t, carry_view_1d(ids, CARRY_I64, tokens)));
        first[0] = c == 0 ? y : first[0];
        first[1] = c == 0 ? dtable : first[1];
        assert_same("y", &y, &first[0]);
        assert_same("dtable", &dtable, &first[1]);
    }
    assert_near("y", &first[0], want, 0.0);
    assert_near("dtable", &first[1], dtable0.v, 4.0 * 0x1p-24 * (double)tokens);
}

static void test_embed_matches_float64(void **state) {
    (void)state;
    static const int64_t shapes[][2] = {{1, 1}, {7, 63}, {40, 65}, {3, 1025}, {1000, 129}};
    for (int i = 0; i < 3; i++) {
        for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++) {
            check_embed(types[i], CARRY_F32, shapes[s][0], shapes[s][1]);
            check_embed(types[i], types[i], shapes[s][0], shapes[s][1]);
        }
        (void)free_kept(NULL);
    }
}

static void test_embed_refuses_ids_outside_the_table(void **state) {
    (void)state;
    carry_ctx *ctx = ctxs[2];
    array table = random_array(CARRY_F32, 2, SHAPE(5, 3), -1, 1), y = poisoned(CARRY_F32, 2, SHAPE(4, 3)),
          was = copy_of(&y);
    int64_t ids[] = {0, 4, 5, -1};
    assert_refused(ctx, CARRY_ERANGE, "ids[2] is 5", carry_embed(ctx, y.t, table.t, carry_view_1d(ids, CARRY_I64, 4)));
    ids[2] = INT64_MIN;
    assert_refused(ctx, CARRY_ERANGE, "ids[2]",
                   carry_embed_backward(ctx, table.t, y.t, carry_view_1d(ids, CARRY_I64, 4)));
    assert_refused(ctx, CARRY_EDTYPE, "ids is f32",
                   carry_embed(ctx, y.t, table.t, carry_view_1d(table.t.data, CARRY_F32, 4)));
    assert_same("y", &y, &was);
}

/* Five steps. Each has a dozen roundings relative to w, m, v and the update, whose size is about the learning rate. */
static void check_adamw(int64_t count, bool clipped) {
    array w0 = random_array(CARRY_F32, 1, &count, -1, 1), g = random_array(CARRY_F32, 1, &count, -1, 1);
    double *m = keep(calloc((size_t)count, 8)), *v = keep(calloc((size_t)count, 8));
    carry_adamw o = {CARRY_INIT(carry_adamw),       .rate = 1e-2, .b1 = 0.9, .b2 = 0.95, .eps = 1e-8, .decay = 0.1,
                     .factor = clipped ? 0.25 : 1.0};
    array first[2];
    for (int c = 0; c < CTXS; c += ctxs_step()) {
        array w = copy_of(&w0), m32 = poisoned(CARRY_F32, 1, &count), v32 = poisoned(CARRY_F32, 1, &count);
        array low = poisoned(types[c], 1, &count), again = poisoned(types[c], 1, &count);
        memset(m32.t.data, 0, (size_t)count * 4);
        memset(v32.t.data, 0, (size_t)count * 4);
        for (o.step = 1; o.step <= 5; o.step++) {
            assert_ok(ctxs[c], carry_adamw_step(ctxs[c], w.t, m32.t, v32.t, low.t, g.t, &o));
        }
        assert_ok(ctxs[c], carry_convert(ctxs[c], again.t, w.t));
        assert_same("low", &low, &again);
        first[0] = c == 0 ? w : first[0];
        first[1] = c == 0 ? v32 : first[1];
        assert_same("w", &w, &first[0]);
    }
    for (o.step = 1; o.step <= 5; o.step++) {
        for (int64_t i = 0; i < count; i++) {
            double gradient = o.factor * g.v[i];
            m[i] = o.b1 * m[i] + (1 - o.b1) * gradient;
            v[i] = o.b2 * v[i] + (1 - o.b2) * gradient * gradient;
            double update =
                m[i] / (1 - pow(o.b1, (double)o.step)) / (sqrt(v[i] / (1 - pow(o.b2, (double)o.step))) + o.eps);
            w0.v[i] -= o.rate * (update + o.decay * w0.v[i]);
        }
    }
    assert_near("w", &first[0], w0.v, 5.0 * 0x1p-24 + 60.0 * 0x1p-24 * o.rate);
    assert_near("v", &first[1], v, 60.0 * 0x1p-24);
}

static void test_adamw_matches_float64(void **state) {
    (void)state;
    check_adamw(1, false);
    check_adamw(1027, true);
    check_adamw(40003, false);
}

/* With m and v in bf16 the weights of the first step are those of f32, whose m and v start at 0 as well. A mean that
   changes by less than half a unit of bf16 in each step follows the gradients nevertheless, since rounding is random
   without bias: 200 steps move m from 1 to b1^200, where rounding to nearest would leave it at 1. The mean over 4,096
   elements has a standard deviation of about 2^-8 sqrt(200 / 4096) / 2, below 5e-4. */
static void test_adamw_with_bf16_means_follows_f32(void **state) {
    (void)state;
    enum { COUNT = 4096 };
    const int64_t count = COUNT;
    array w0 = random_array(CARRY_F32, 1, &count, -1, 1), g = random_array(CARRY_F32, 1, &count, -1, 1);
    carry_adamw o = {CARRY_INIT(carry_adamw), .rate = 1e-2, .b1 = 0.999, .b2 = 0.999, .eps = 1e-8,
                     .factor = 1.0,           .step = 1};
    uint16_t first[COUNT];
    for (int c = 0; c < CTXS; c += ctxs_step()) {
        array w = copy_of(&w0), wide = copy_of(&w0);
        o.step = 1;
        float m32[COUNT] = {0}, v32[COUNT] = {0};
        uint16_t m[COUNT] = {0}, v[COUNT] = {0};
        const carry_tensor tm = carry_view_1d(m, CARRY_BF16, count), tv = carry_view_1d(v, CARRY_BF16, count);
        assert_ok(ctxs[c], carry_adamw_step(ctxs[c], w.t, tm, tv, absent, g.t, &o));
        assert_ok(ctxs[c], carry_adamw_step(ctxs[c], wide.t, carry_view_1d(m32, CARRY_F32, count),
                                            carry_view_1d(v32, CARRY_F32, count), absent, g.t, &o));
        assert_same("w", &w, &wide);
        for (int64_t i = 0; i < count; i++) {
            m[i] = v[i] = 0x3F80; /* 1 */
        }
        memset(g.t.data, 0, sizeof m32);
        for (o.step = 2; o.step < 202; o.step++) {
            assert_ok(ctxs[c], carry_adamw_step(ctxs[c], w.t, tm, tv, absent, g.t, &o));
        }
        double mean = 0.0;
        for (int64_t i = 0; i < count; i++) {
            mean += carry_tensor_at(&tm, i) / COUNT;
        }
        assert_true(fabs(mean - pow(0.999, 200)) < 2.5e-3);
        if (c == 0) {
            memcpy(first, m, sizeof m);
        }
        assert_true(memcmp(first, m, sizeof m) == 0); /* whatever the kernels and threads */
        for (int64_t i = 0; i < count; i++) {
            ((float *)g.t.data)[i] = (float)g.v[i];
        }
    }
    carry_tensor narrow = carry_view_1d(first, CARRY_BF16, count);
    assert_refused(ctxs[0], CARRY_EDTYPE, "they have one type",
                   carry_adamw_step(ctxs[0], w0.t, narrow, g.t, absent, g.t, &o));
}

static void test_adamw_refuses_and_passes_nan(void **state) {
    (void)state;
    float w[2] = {1, 1}, m[2] = {0}, v[2] = {0}, g[2] = {NAN, 1};
    carry_tensor tw = carry_view_1d(w, CARRY_F32, 2), tm = carry_view_1d(m, CARRY_F32, 2),
                 tv = carry_view_1d(v, CARRY_F32, 2);
    carry_tensor tg = carry_view_1d(g, CARRY_F32, 2), half = carry_view_1d(g, CARRY_BF16, 2);
    carry_adamw o = {CARRY_INIT(carry_adamw), .rate = 1e-2, .b1 = 0.9, .b2 = 0.95, .eps = 1e-8, .factor = 1.0};
    assert_refused(ctxs[0], CARRY_EARGUMENT, "step is 0", carry_adamw_step(ctxs[0], tw, tm, tv, absent, tg, &o));
    assert_refused(ctxs[0], CARRY_EDTYPE, "g is bf16", carry_adamw_step(ctxs[0], tw, tm, tv, absent, half, &o));
    o.step = 1;
    assert_ok(ctxs[0], carry_adamw_step(ctxs[0], tw, tm, tv, absent, tg, &o));
    assert_true(isnan(w[0]) && fabsf(w[1] - 0.99f) < 1e-6f);
}

static void test_sum_of_squares_is_that_of_float64(void **state) {
    (void)state;
    static const int64_t counts[] = {0, 1, 17, 16385, 256 * 16384 + 5};
    for (size_t k = 0; k < sizeof counts / sizeof *counts; k++) {
        array x = random_array(CARRY_F32, 1, &counts[k], -1, 1);
        double want = 0.0, got = NAN, one = NAN, partial[1024];
        carry_tensor to = carry_view_1d(&got, CARRY_F64, 1), to_one = carry_view_1d(&one, CARRY_F64, 1);
        for (int64_t i = 0; i < x.count; i++) {
            want += x.v[i] * x.v[i];
        }
        assert_ok(ctxs[0], carry_sum_squares(ctxs[0], to_one, x.t, false, partial, sizeof partial));
        assert_ok(ctxs[2], carry_sum_squares(ctxs[2], to, x.t, false, partial, sizeof partial));
        assert_memory_equal(&got, &one, sizeof got);
        assert_true(fabs(got - want) <= (double)x.count * 0x1p-53 * want); /* a rounding an element, all one way */
        if (x.count > 0) {
            ((float *)x.t.data)[x.count - 1] = k % 2 == 0 ? NAN : INFINITY;
            assert_ok(ctxs[2], carry_sum_squares(ctxs[2], to, x.t, false, partial, sizeof partial));
            assert_true(k % 2 == 0 ? isnan(got) : isinf(got));
        }
    }
}

/* Consecutive bad factors are counted; above the limit the guard stays bad, whatever follows. */
static void test_the_guard_counts_bad_steps_in_a_row(void **state) {
    (void)state;
    carry_ctx *ctx = ctxs[0];
    float factor, bad = 0.0f;
    carry_tensor f = carry_view_1d(&factor, CARRY_F32, 1), b = carry_view_1d(&bad, CARRY_F32, 1);
    const float given[] = {0.5f, NAN, NAN, 0.25f, NAN, NAN, NAN, 1.0f};
    const float counts[] = {0, 1, 2, 0, 1, 2, 3, 3};
    for (int i = 0; i < 8; i++) {
        factor = given[i];
        assert_ok(ctx, carry_skip_guard(ctx, f, b, 2));
        assert_true(bad == counts[i]);
        assert_true(i == 7 ? isnan(factor) : isnan(factor) == isnan(given[i]));
        assert_true(isnan(factor) || factor == given[i]);
    }
    assert_refused(ctx, CARRY_ERANGE, "limit of -1", carry_skip_guard(ctx, f, b, -1));
}

/* Factors in a tensor have the same effect as the same numbers in the options. */
static void test_adamw_by_factors_is_adamw_by_numbers(void **state) {
    (void)state;
    carry_ctx *ctx = ctxs[0];
    float w[2][3] = {{1, -1, 2}, {1, -1, 2}}, m[2][3] = {{0}}, v[2][3] = {{0}}, g[3] = {3, 2, -1}, clip = 0.3f;
    float factors[CARRY_ADAMW_FACTORS];
    for (int step = 1; step <= 4; step++) {
        carry_adamw o = {CARRY_INIT(carry_adamw),
                         .rate = 1e-2 / step,
                         .b1 = 0.9,
                         .b2 = 0.95,
                         .eps = 1e-8,
                         .decay = 0.1,
                         .factor = 0.7};
        o.step = step;
        o.clip = carry_view_1d(&clip, CARRY_F32, 1);
        assert_ok(ctx, carry_adamw_factors(ctx, factors, &o));
        for (int i = 0; i < 2; i++) {
            assert_ok(ctx,
                      carry_adamw_step(ctx, carry_view_1d(w[i], CARRY_F32, 3), carry_view_1d(m[i], CARRY_F32, 3),
                                       carry_view_1d(v[i], CARRY_F32, 3), absent, carry_view_1d(g, CARRY_F32, 3), &o));
            o = (carry_adamw){CARRY_INIT(carry_adamw), .clip = o.clip,
                              .factors = carry_view_1d(factors, CARRY_F32, CARRY_ADAMW_FACTORS)};
        }
    }
    assert_true(fabsf(w[0][0] - w[1][0]) < 1e-6f); /* the factor is rounded before it is multiplied by clip */
    assert_true(fabsf(w[0][2] - w[1][2]) < 1e-6f);
}

/* Without gradients, decayed parameters are multiplied and the others stay unchanged. */
static void test_adamw_spares_what_it_is_told_to(void **state) {
    (void)state;
    carry_ctx *ctx = ctxs[0];
    float w[13], m[13] = {0}, v[13] = {0}, g[13] = {0};
    int64_t spared[] = {0, 4, 8, 12};
    carry_tensor tw = carry_view_1d(w, CARRY_F32, 13), tm = carry_view_1d(m, CARRY_F32, 13),
                 tv = carry_view_1d(v, CARRY_F32, 13), tg = carry_view_1d(g, CARRY_F32, 13);
    carry_adamw o = {CARRY_INIT(carry_adamw), .rate = 0.5, .b1 = 0.9, .b2 = 0.95, .eps = 1e-8, .decay = 0.5,
                     .factor = 1.0,           .step = 1};
    for (int i = 0; i < 13; i++) {
        w[i] = 4.0f;
    }
    o.spared = carry_view_1d(spared, CARRY_I64, 4);
    assert_ok(ctx, carry_adamw_step(ctx, tw, tm, tv, absent, tg, &o));
    for (int i = 0; i < 13; i++) {
        assert_true(w[i] == (i < 4 || (i >= 8 && i < 12) ? 4.0f : 3.0f));
    }
    spared[3] = 14;
    assert_refused(ctx, CARRY_EARGUMENT, "spared[3] is 14", carry_adamw_step(ctx, tw, tm, tv, absent, tg, &o));
    spared[3] = 7;
    assert_refused(ctx, CARRY_EARGUMENT, "spared[3] is 7", carry_adamw_step(ctx, tw, tm, tv, absent, tg, &o));
    o.spared = carry_view_1d(spared, CARRY_I64, 3);
    assert_refused(ctx, CARRY_ESHAPE, "spared", carry_adamw_step(ctx, tw, tm, tv, absent, tg, &o));
}

/* The factor and the scaled step equal those of the same factor given as a number. */
static void test_clipping_by_a_number_on_the_device(void **state) {
    (void)state;
    carry_ctx *ctx = ctxs[0];
    double squares = 16.0;
    float factor = 0.0f;
    carry_tensor to = carry_view_1d(&factor, CARRY_F32, 1), from = carry_view_1d(&squares, CARRY_F64, 1);
    assert_ok(ctx, carry_clip_factor(ctx, to, from, 1.0));
    assert_true(factor == 0.25f);
    float w[2] = {1, -1}, m[2] = {0}, v[2] = {0}, g[2] = {3, 2}, w2[2] = {1, -1}, m2[2] = {0}, v2[2] = {0};
    carry_adamw o = {CARRY_INIT(carry_adamw), .rate = 1e-2, .b1 = 0.9, .b2 = 0.95, .eps = 1e-8,
                     .factor = 1.0,           .step = 1,    .clip = to};
    carry_adamw plain = o;
    plain.clip = absent;
    plain.factor = 0.25;
    carry_tensor tg = carry_view_1d(g, CARRY_F32, 2);
    assert_ok(ctx, carry_adamw_step(ctx, carry_view_1d(w, CARRY_F32, 2), carry_view_1d(m, CARRY_F32, 2),
                                    carry_view_1d(v, CARRY_F32, 2), absent, tg, &o));
    assert_ok(ctx, carry_adamw_step(ctx, carry_view_1d(w2, CARRY_F32, 2), carry_view_1d(m2, CARRY_F32, 2),
                                    carry_view_1d(v2, CARRY_F32, 2), absent, tg, &plain));
    assert_memory_equal(w, w2, sizeof w);
    assert_memory_equal(v, v2, sizeof v);
    assert_ok(ctx, carry_clip_factor(ctx, to, from, 5.0));
    assert_true(factor == 1.0f);
    assert_ok(ctx, carry_clip_factor(ctx, to, from, 0.0));
    assert_true(factor == 1.0f);
    squares = INFINITY;
    assert_ok(ctx, carry_clip_factor(ctx, to, from, 1.0));
    assert_true(isnan(factor));
    assert_ok(ctx, carry_adamw_step(ctx, carry_view_1d(w, CARRY_F32, 2), carry_view_1d(m, CARRY_F32, 2),
                                    carry_view_1d(v, CARRY_F32, 2), absent, tg, &o));
    assert_memory_equal(w, w2, sizeof w);
}

#define TEST(name) cmocka_unit_test_teardown(name, free_kept)

int main(void) {
    const struct CMUnitTest tests[] = {
        TEST(test_exp_is_near_the_true_one_and_passes_nan), TEST(test_activations_match_float64_and_differences),
        TEST(test_activations_pass_nan_and_stand_infinity), TEST(test_swiglu_matches_float64_and_differences),
        TEST(test_norm_matches_float64_and_differences),    TEST(test_norm_names_what_does_not_fit),
        TEST(test_workspaces_never_shrink_with_tokens),     TEST(test_embed_matches_float64),
        TEST(test_embed_refuses_ids_outside_the_table),     TEST(test_adamw_matches_float64),
        TEST(test_adamw_with_bf16_means_follows_f32),       TEST(test_adamw_refuses_and_passes_nan),
        TEST(test_sum_of_squares_is_that_of_float64),       TEST(test_the_guard_counts_bad_steps_in_a_row),
        TEST(test_adamw_by_factors_is_adamw_by_numbers),    TEST(test_adamw_spares_what_it_is_told_to),
        TEST(test_clipping_by_a_number_on_the_device),
    };
    return cmocka_run_group_tests(tests, open_contexts, close_contexts);
}
