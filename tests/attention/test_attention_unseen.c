/* NaN and infinity in keys and values change no bit of queries that do not see them, neither of o and lse nor of dq:
   random causal calls, with every kernel set and with tiles of bf16. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "support.h"

#include "attention/attention.h"
#include "ops/product/bf16.h"

typedef struct problem {
    carry_attention_args args;
    unsigned char *q, *k, *v, *o[2], *d_o, *dq[2], *dk, *dv;
    float *lse[2];
} problem;

static unsigned state;

static int64_t below(int64_t count) {
    state = state * 1664525u + 1013904223u;
    return (int64_t)(state >> 8) % count;
}

static unsigned char *numbers(carry_ctx *ctx, carry_dtype type, int64_t count) {
    unsigned char *made = malloc((size_t)count * carry_dtype_size(type));
    assert_non_null(made);
    assert_ok(ctx, carry_random_normal(ctx, carry_view_1d(made, type, count), (uint64_t)below(1 << 20), 0, 0.0f, 1.0f));
    return made;
}

static problem make(carry_ctx *ctx) {
    static const int64_t dims[] = {1, 2, 3, 8, 17, 32, 33, 64};
    static const carry_dtype types[] = {CARRY_F32, CARRY_BF16, CARRY_F16};
    const carry_dtype type = types[below(3)];
    const int64_t T = 1 + below(below(2) != 0 ? 300 : 70), S = T + below(40), D = dims[below(8)];
    const int64_t HK = 1 + below(2), H = HK * (1 + below(2));
    problem p = {.q = numbers(ctx, type, T * H * D), .k = numbers(ctx, type, S * HK * D)};
    p.v = numbers(ctx, type, S * HK * D);
    p.d_o = numbers(ctx, type, T * H * D);
    p.dk = numbers(ctx, type, S * HK * D);
    p.dv = numbers(ctx, type, S * HK * D);
    for (int i = 0; i < 2; i++) {
        p.o[i] = numbers(ctx, type, T * H * D);
        p.dq[i] = numbers(ctx, type, T * H * D);
        p.lse[i] = (float *)(void *)numbers(ctx, CARRY_F32, H * T);
    }
    p.args = (carry_attention_args){.q = carry_view_3d(p.q, type, T, H, D),
                                    .k = carry_view_3d(p.k, type, S, HK, D),
                                    .v = carry_view_3d(p.v, type, S, HK, D),
                                    .o = carry_view_3d(p.o[0], type, T, H, D),
                                    .lse = carry_view_2d(p.lse[0], CARRY_F32, H, T),
                                    .causal = true,
                                    .window = below(3) == 0 ? 1 + below(100) : 0};
    return p;
}

static void drop(problem *p) {
    free(p->q);
    free(p->k);
    free(p->v);
    free(p->d_o);
    free(p->dk);
    free(p->dv);
    for (int i = 0; i < 2; i++) {
        free(p->o[i]);
        free(p->dq[i]);
        free(p->lse[i]);
    }
}

static void run(carry_ctx *ctx, problem *p, int into) {
    p->args.o.data = p->o[into];
    p->args.lse.data = p->lse[into];
    carry_attention_backward_args back = {
        .forward = p->args, .d_o = p->args.o, .dq = p->args.o, .dk = p->args.k, .dv = p->args.v};
    back.d_o.data = p->d_o;
    back.dq.data = p->dq[into];
    back.dk.data = p->dk;
    back.dv.data = p->dv;
    const size_t forward = carry_attention_workspace(&p->args);
    const size_t backward = carry_attention_backward_workspace(&back);
    const size_t bytes = forward > backward ? forward : backward;
    void *workspace = malloc(bytes + 1);
    assert_non_null(workspace);
    assert_ok(ctx, carry_attention(ctx, &p->args, workspace, bytes));
    assert_ok(ctx, carry_attention_backward(ctx, &back, workspace, bytes));
    free(workspace);
}

/* Sets an element of k or v to NaN or an infinity. */
static void spoil(const problem *p, const carry_tensor *x, int64_t row) {
    static const float bad[] = {NAN, INFINITY, -INFINITY};
    const float value = bad[below(3)];
    const int64_t at = row * x->stride[0] + below(p->args.k.shape[1]) * x->stride[1] + below(x->shape[2]);
    if (x->dtype == CARRY_F32) {
        ((float *)x->data)[at] = value;
    } else {
        ((uint16_t *)x->data)[at] = x->dtype == CARRY_BF16 ? carry_bf16_from_f32(value) : carry_f16_from_f32(value);
    }
}

static void compare_unseen(const problem *p, const int64_t *rows, int count, const char *name, int number) {
    const int64_t T = p->args.q.shape[0], H = p->args.q.shape[1], D = p->args.q.shape[2];
    const size_t bytes = (size_t)(H * D) * carry_dtype_size(p->args.q.dtype);
    for (int64_t t = 0; t < T; t++) {
        int64_t first, end;
        bool sees = false;
        carry_attention_span(&p->args, t, &first, &end);
        for (int i = 0; i < count; i++) {
            sees = sees || (rows[i] >= first && rows[i] < end);
        }
        bool same = memcmp(p->o[0] + (size_t)t * bytes, p->o[1] + (size_t)t * bytes, bytes) == 0 &&
                    memcmp(p->dq[0] + (size_t)t * bytes, p->dq[1] + (size_t)t * bytes, bytes) == 0;
        for (int64_t h = 0; h < H; h++) {
            same = same && memcmp(&p->lse[0][h * T + t], &p->lse[1][h * T + t], sizeof(float)) == 0;
        }
        if (!sees && !same) {
            fail_msg("%s, case %d, %s, T %lld, S %lld, D %lld, window %lld: query %lld has other bits", name, number,
                     carry_dtype_name(p->args.q.dtype), (long long)T, (long long)p->args.k.shape[0], (long long)D,
                     (long long)p->args.window, (long long)t);
        }
    }
}

static void check(const char *name, int cases) {
    carry_ctx *ctx = support_ctx(2, name, NULL);
    state = 1;
    for (int i = 0; i < cases; i++) {
        problem p = make(ctx);
        int64_t rows[3];
        const int count = 1 + (int)below(3);
        run(ctx, &p, 0);
        for (int j = 0; j < count; j++) {
            rows[j] = below(p.args.k.shape[0]);
            spoil(&p, below(2) != 0 ? &p.args.k : &p.args.v, rows[j]);
        }
        run(ctx, &p, 1);
        compare_unseen(&p, rows, count, name, i);
        drop(&p);
    }
    carry_ctx_free(ctx);
}

static void queries_keep_their_bits_whatever_they_do_not_see(void **unused) {
    (void)unused;
    for (int i = 0; carry_kernels_name(i) != NULL; i++) {
        if (carry_kernels_usable(i)) {
            check(carry_kernels_name(i), support_cases(300, 16));
        }
    }
    check("amx-emulated", support_cases(200, 12));
    const carry_bf16 *amx = carry_bf16_named("amx");
    if (amx != NULL && amx->missing() == NULL) {
        check("amx", support_cases(200, 12));
    }
}

static bool is_finite(const float *x, int64_t count) {
    bool all = true;
    for (int64_t i = 0; i < count; i++) {
        all = all && isfinite(x[i]);
    }
    return all;
}

/* A score of -infinity hides a key. Gradients are finite, also in blocks of which each query sees each key. */
static void keys_with_a_score_of_minus_infinity_give_finite_gradients(void **unused) {
    (void)unused;
    enum { T = 300, D = 8 };
    carry_ctx *ctx = support_ctx(2, NULL, NULL);
    state = 3;
    for (int causal = 0; causal < 2; causal++) {
        problem p = {.q = numbers(ctx, CARRY_F32, T * D), .k = numbers(ctx, CARRY_F32, T * D)};
        float *q = (float *)(void *)p.q;
        float *k = (float *)(void *)p.k;
        p.v = numbers(ctx, CARRY_F32, T * D);
        p.d_o = numbers(ctx, CARRY_F32, T * D);
        p.dk = numbers(ctx, CARRY_F32, T * D);
        p.dv = numbers(ctx, CARRY_F32, T * D);
        p.o[0] = numbers(ctx, CARRY_F32, T * D);
        p.dq[0] = numbers(ctx, CARRY_F32, T * D);
        p.lse[0] = (float *)(void *)numbers(ctx, CARRY_F32, T);
        p.args = (carry_attention_args){.q = carry_view_3d(p.q, CARRY_F32, T, 1, D),
                                        .k = carry_view_3d(p.k, CARRY_F32, T, 1, D),
                                        .v = carry_view_3d(p.v, CARRY_F32, T, 1, D),
                                        .o = carry_view_3d(p.o[0], CARRY_F32, T, 1, D),
                                        .lse = carry_view_2d(p.lse[0], CARRY_F32, 1, T),
                                        .causal = causal != 0};
        for (int64_t t = 0; t < T; t++) {
            q[t * D + 5] = fabsf(q[t * D + 5]) + 0.1f;
        }
        for (int64_t key = 3; key < T; key += 97) {
            k[key * D + 5] = -INFINITY;
        }
        run(ctx, &p, 0);
        assert_true(is_finite((const float *)(const void *)p.o[0], T * D));
        assert_true(is_finite((const float *)(const void *)p.dq[0], T * D));
        assert_true(is_finite((const float *)(const void *)p.dk, T * D));
        assert_true(is_finite((const float *)(const void *)p.dv, T * D));
        drop(&p);
    }
    carry_ctx_free(ctx);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(keys_with_a_score_of_minus_infinity_give_finite_gradients),
                                       cmocka_unit_test(queries_keep_their_bits_whatever_they_do_not_see)};
    return cmocka_run_group_tests_name("attention/unseen", tests, NULL, NULL);
}
