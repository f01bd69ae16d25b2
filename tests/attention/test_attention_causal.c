/* Causal attention with grouped heads and windows, forward and backward, against float64. Through a cache, the last
   queries of a longer row see the same keys as in the whole row. The same on a GPU if there is one. */
/* labels: gpu */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "support.h"

#include "attention/attention.h"
#include "attention/device.h"
#include "carry/device.h"
#include "core/tensor.h"

typedef struct problem {
    int64_t T, S, H, HK, D, window;
    float *q, *k, *v, *o, *lse, *d_o, *dq, *dk, *dv;
} problem;

static float *numbers(int64_t count, unsigned *seed) {
    float *made = malloc((size_t)(count + 1) * sizeof *made);
    assert_non_null(made);
    for (int64_t i = 0; i < count; i++) {
        *seed = *seed * 1664525u + 1013904223u;
        made[i] = (float)(*seed >> 8) * 0x1p-23f - 1.0f;
    }
    return made;
}

static problem make(int64_t T, int64_t S, int64_t H, int64_t HK, int64_t D, int64_t window) {
    unsigned seed = 7;
    problem p = {.T = T, .S = S, .H = H, .HK = HK, .D = D, .window = window};
    p.q = numbers(T * H * D, &seed);
    p.k = numbers(S * HK * D, &seed);
    p.v = numbers(S * HK * D, &seed);
    p.d_o = numbers(T * H * D, &seed);
    p.o = numbers(T * H * D, &seed);
    p.lse = numbers(T * H, &seed);
    p.dq = numbers(T * H * D, &seed);
    p.dk = calloc((size_t)(S * HK * D), sizeof *p.dk);
    p.dv = calloc((size_t)(S * HK * D), sizeof *p.dv);
    assert_true(p.dk != NULL && p.dv != NULL);
    return p;
}

static void drop(problem *p) {
    free(p->q);
    free(p->k);
    free(p->v);
    free(p->o);
    free(p->lse);
    free(p->d_o);
    free(p->dq);
    free(p->dk);
    free(p->dv);
}

static carry_attention_backward_args args_of(const problem *p) {
    return (carry_attention_backward_args){.dq = carry_view_3d(p->dq, CARRY_F32, p->T, p->H, p->D),
                                           .dk = carry_view_3d(p->dk, CARRY_F32, p->S, p->HK, p->D),
                                           .dv = carry_view_3d(p->dv, CARRY_F32, p->S, p->HK, p->D),
                                           .d_o = carry_view_3d(p->d_o, CARRY_F32, p->T, p->H, p->D),
                                           .forward = {.o = carry_view_3d(p->o, CARRY_F32, p->T, p->H, p->D),
                                                       .lse = carry_view_2d(p->lse, CARRY_F32, p->H, p->T),
                                                       .q = carry_view_3d(p->q, CARRY_F32, p->T, p->H, p->D),
                                                       .k = carry_view_3d(p->k, CARRY_F32, p->S, p->HK, p->D),
                                                       .v = carry_view_3d(p->v, CARRY_F32, p->S, p->HK, p->D),
                                                       .causal = true,
                                                       .window = p->window}};
}

/* Sums of at most 600 products of numbers below 1: 1e-4 is far above their rounding and far below one wrong key. */
static void compare(const char *what, const float *got, const double *wanted, int64_t count) {
    for (int64_t i = 0; i < count; i++) {
        if (!(fabs((double)got[i] - wanted[i]) <= 1e-4 * (1.0 + fabs(wanted[i])))) {
            fail_msg("%s: element %lld is %g and should be %g", what, (long long)i, (double)got[i], wanted[i]);
        }
    }
}

static void run(carry_ctx *ctx, const problem *p) {
    const carry_attention_backward_args args = args_of(p);
    const size_t forward = carry_attention_workspace(&args.forward);
    const size_t backward = carry_attention_backward_workspace(&args);
    void *workspace = carry_aligned_new((forward > backward ? forward : backward) + 64);
    assert_non_null(workspace);
    assert_ok(ctx, carry_attention(ctx, &args.forward, workspace, forward));
    assert_ok(ctx, carry_attention_backward(ctx, &args, workspace, backward));
    free(workspace);
}

/* Moves the tensor to memory of a device. take_back copies it into `to` and frees the device memory. */
static void send(carry_ctx *ctx, carry_tensor *t, int device) {
    const size_t bytes = (size_t)carry_tensor_count(t) * carry_dtype_size(t->dtype);
    void *there;
    assert_ok(ctx, carry_device_alloc(ctx, &there, device, bytes));
    assert_ok(ctx, carry_device_copy(ctx, there, device, t->data, 0, bytes, NULL));
    t->data = there;
    t->device = device;
}

static void take_back(carry_ctx *ctx, float *to, const carry_tensor *t) {
    const size_t bytes = (size_t)carry_tensor_count(t) * carry_dtype_size(t->dtype);
    assert_ok(ctx, carry_device_copy(ctx, to, 0, t->data, t->device, bytes, NULL));
    assert_ok(ctx, carry_stream_wait(ctx, t->device, NULL));
    carry_device_free(ctx, t->device, t->data);
}

static void run_there(carry_ctx *ctx, const problem *p, int device) {
    carry_attention_backward_args args = args_of(p);
    carry_tensor *const tensor[] = {&args.forward.o, &args.forward.lse, &args.dq,        &args.dk, &args.dv,
                                    &args.forward.q, &args.forward.k,   &args.forward.v, &args.d_o};
    float *const back[] = {p->o, p->lse, p->dq, p->dk, p->dv, p->q, p->k, p->v, p->d_o};
    for (int i = 0; i < 9; i++) {
        send(ctx, tensor[i], device);
    }
    const size_t forward = carry_attention_workspace(&args.forward);
    const size_t backward = carry_attention_backward_workspace(&args);
    void *workspace;
    assert_ok(ctx, carry_device_alloc(ctx, &workspace, device, (forward > backward ? forward : backward) + 64));
    assert_ok(ctx, carry_attention(ctx, &args.forward, workspace, forward));
    assert_ok(ctx, carry_attention_backward(ctx, &args, workspace, backward));
    for (int i = 0; i < 9; i++) {
        take_back(ctx, back[i], tensor[i]);
    }
    carry_device_free(ctx, device, workspace);
}

static void check_all(int device) {
    static const int64_t sizes[][6] = {/* T, S, H, HK, D, window */
                                       {1, 1, 2, 1, 3, 0},      {1, 70, 4, 2, 8, 0},      {5, 5, 2, 2, 7, 0},
                                       {64, 64, 4, 1, 16, 0},   {65, 65, 2, 1, 16, 1},    {70, 129, 4, 2, 8, 0},
                                       {257, 257, 2, 1, 4, 0},  {3, 40, 8, 2, 256, 0},    {257, 300, 4, 4, 4, 9},
                                       {130, 131, 6, 2, 5, 64}, {300, 556, 3, 1, 16, 200}};
    carry_ctx *ctx = support_ctx(2, NULL, NULL);
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        problem p = make(sizes[i][0], sizes[i][1], sizes[i][2], sizes[i][3], sizes[i][4], sizes[i][5]);
        const carry_attention_backward_args args = args_of(&p);
        const int64_t queries = p.T * p.H * p.D;
        const int64_t keys = p.S * p.HK * p.D;
        double *wanted = calloc((size_t)(queries + p.T * p.H + queries + 2 * keys), sizeof *wanted);
        assert_non_null(wanted);
        double *lse = wanted + queries;
        double *dq = lse + p.T * p.H;
        double *dk = dq + queries;
        double *dv = dk + keys;
        if (device == 0) {
            run(ctx, &p);
        } else {
            run_there(ctx, &p, device);
        }
        assert_ok(ctx, carry_attention_reference(ctx, wanted, lse, &args.forward));
        assert_ok(ctx, carry_attention_reference_backward(ctx, dq, dk, dv, &args));
        compare("o", p.o, wanted, queries);
        compare("lse", p.lse, lse, p.T * p.H);
        compare("dq", p.dq, dq, queries);
        compare("dk", p.dk, dk, keys);
        compare("dv", p.dv, dv, keys);
        free(wanted);
        drop(&p);
    }
    carry_ctx_free(ctx);
}

static void causal_attention_equals_the_reference(void **unused) {
    (void)unused;
    check_all(0);
}

static void causal_attention_on_a_gpu_equals_the_reference(void **unused) {
    (void)unused;
    int ordinal;
    if (carry_device_count() < 2 || carry_attention_device_of(1, &ordinal) == NULL) {
        (void)printf("skipped: there is no GPU here, or this build has no attention for it\n");
        return;
    }
    check_all(1);
}

/* Rounds the numbers to bf16 and stores them in the first half of the memory. */
static void round_bf16(float *numbers_in, int64_t count) {
    uint16_t *to = (uint16_t *)(void *)numbers_in;
    for (int64_t i = 0; i < count; i++) {
        uint32_t bits;
        memcpy(&bits, numbers_in + i, sizeof bits);
        to[i] = (uint16_t)((bits + 0x7fffu + (bits >> 16 & 1)) >> 16);
    }
}

static float from_bf16(uint16_t bits) {
    const uint32_t wide = (uint32_t)bits << 16;
    float number;
    memcpy(&number, &wide, sizeof number);
    return number;
}

/* Forward in bf16 on a GPU against the float64 reference of the same numbers on the host. Probabilities are rounded to
   bf16 (2^-9 of each, values below 1), and so is the result. */
static void check_bf16(carry_ctx *ctx, const int64_t size[6], int device) {
    problem p = make(size[0], size[1], size[2], size[3], size[4], size[5]);
    const int64_t queries = p.T * p.H * p.D;
    const int64_t counts[] = {queries, p.S * p.HK * p.D, p.S * p.HK * p.D, queries};
    float *const data[] = {p.q, p.k, p.v, p.o};
    carry_attention_args args = args_of(&p).forward;
    carry_tensor *const tensor[] = {&args.q, &args.k, &args.v, &args.o};
    double *wanted = calloc((size_t)(queries + p.T * p.H), sizeof *wanted);
    void *workspace;
    assert_non_null(wanted);
    for (int i = 0; i < 4; i++) {
        round_bf16(data[i], counts[i]);
        tensor[i]->dtype = CARRY_BF16;
    }
    assert_ok(ctx, carry_attention_reference(ctx, wanted, wanted + queries, &args));
    for (int i = 0; i < 4; i++) {
        send(ctx, tensor[i], device);
    }
    send(ctx, &args.lse, device);
    const size_t bytes = carry_attention_workspace(&args);
    assert_ok(ctx, carry_device_alloc(ctx, &workspace, device, bytes + 64));
    assert_ok(ctx, carry_attention(ctx, &args, workspace, bytes));
    take_back(ctx, p.o, &args.o);
    take_back(ctx, p.lse, &args.lse);
    for (int i = 0; i < 3; i++) {
        carry_device_free(ctx, device, tensor[i]->data);
    }
    carry_device_free(ctx, device, workspace);
    compare("lse", p.lse, wanted + queries, p.T * p.H);
    for (int64_t i = 0; i < queries; i++) {
        const double got = (double)from_bf16(((const uint16_t *)(const void *)p.o)[i]);
        if (!(fabs(got - wanted[i]) <= 0.004 + 0.008 * fabs(wanted[i]))) {
            fail_msg("T %lld, S %lld, D %lld: o[%lld] is %g and should be %g", (long long)p.T, (long long)p.S,
                     (long long)p.D, (long long)i, got, wanted[i]);
        }
    }
    free(wanted);
    drop(&p);
}

static void bf16_on_a_gpu_equals_the_reference(void **unused) {
    (void)unused;
    static const int64_t sizes[][6] = {/* T, S, H, HK, D, window */
                                       {1, 1, 8, 2, 256, 0},
                                       {1, 65, 8, 2, 256, 0},
                                       {1, 700, 4, 1, 256, 0},
                                       {33, 33, 4, 1, 256, 0},
                                       {70, 129, 8, 2, 256, 0},
                                       {64, 64, 2, 2, 128, 0},
                                       {130, 131, 6, 2, 128, 64},
                                       {200, 520, 3, 1, 64, 70},
                                       {129, 129, 4, 4, 64, 0},
                                       {17, 300, 12, 4, 128, 1},
                                       /* tiles for all multiprocessors of a large GPU */
                                       {100, 230, 136, 4, 256, 0},
                                       {150, 150, 72, 9, 256, 0},
                                       {257, 300, 48, 48, 256, 0}};
    int ordinal;
    if (carry_device_count() < 2 || carry_attention_device_of(1, &ordinal) == NULL) {
        (void)printf("skipped: there is no GPU here, or this build has no attention for it\n");
        return;
    }
    carry_ctx *ctx = support_ctx(2, NULL, NULL);
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        check_bf16(ctx, sizes[i], 1);
    }
    carry_ctx_free(ctx);
}

/* The caches have more rows than any sequence. The rows that a step must not read are NaN. */
static void check_step(carry_ctx *ctx, const int64_t size[6], int device) {
    enum { SEQUENCES = 3 };
    const int64_t H = size[2];
    const int64_t HK = size[3];
    const int64_t D = size[4];
    const int64_t room = size[1] + 70;
    const int64_t lengths[SEQUENCES] = {size[1] - 1, 0, size[1] / 2};
    const int64_t cache[] = {SEQUENCES, room, HK, D};
    problem p = make(SEQUENCES, SEQUENCES * room, H, HK, D, size[5]);
    problem added = make(1, SEQUENCES, H, HK, D, 0);
    float *const data[] = {p.q, p.o, added.k, added.v, p.k, p.v};
    const int64_t counts[] = {SEQUENCES * H * D,  SEQUENCES * H * D,         SEQUENCES * HK * D,
                              SEQUENCES * HK * D, SEQUENCES * room * HK * D, SEQUENCES * room * HK * D};
    for (int i = 0; i < 6; i++) {
        round_bf16(data[i], counts[i]);
    }
    carry_attention_step_args args = {.o = carry_view_3d(p.o, CARRY_BF16, SEQUENCES, H, D),
                                      .q = carry_view_3d(p.q, CARRY_BF16, SEQUENCES, H, D),
                                      .k = carry_view_3d(added.k, CARRY_BF16, SEQUENCES, HK, D),
                                      .v = carry_view_3d(added.v, CARRY_BF16, SEQUENCES, HK, D),
                                      .keys = carry_view(p.k, CARRY_BF16, 4, cache),
                                      .values = carry_view(p.v, CARRY_BF16, 4, cache),
                                      .lengths = carry_view_1d((void *)(uintptr_t)lengths, CARRY_I64, SEQUENCES),
                                      .window = size[5]};
    double *wanted = calloc((size_t)(SEQUENCES * H * D), sizeof *wanted);
    assert_non_null(wanted);
    for (int b = 0; b < SEQUENCES; b++) {
        const int64_t first = b * room * HK * D;
        const int64_t row = HK * D;
        for (int c = 0; c < 2; c++) {
            uint16_t *to = (uint16_t *)(void *)(c == 0 ? p.k : p.v) + first + lengths[b] * row;
            const uint16_t *from = (const uint16_t *)(const void *)(c == 0 ? added.k : added.v) + b * row;
            memcpy(to, from, (size_t)row * sizeof *to); /* for the reference */
        }
        const carry_attention_args one = {
            .o = carry_slice(args.o, b, 1),
            .q = carry_slice(args.q, b, 1),
            .k = carry_view_3d((uint16_t *)(void *)p.k + first, CARRY_BF16, lengths[b] + 1, HK, D),
            .v = carry_view_3d((uint16_t *)(void *)p.v + first, CARRY_BF16, lengths[b] + 1, HK, D),
            .causal = true,
            .window = size[5]};
        assert_ok(ctx, carry_attention_reference(ctx, wanted + b * H * D, NULL, &one));
        for (int c = 0; c < 2; c++) { /* the rows that the step itself must write */
            uint16_t *to = (uint16_t *)(void *)(c == 0 ? p.k : p.v) + first + lengths[b] * row;
            memset(to, 0xff, (size_t)((room - lengths[b]) * row) * sizeof *to);
        }
    }
    carry_tensor *const tensor[] = {&args.o, &args.q, &args.k, &args.v, &args.keys, &args.values, &args.lengths};
    for (int i = 0; i < 7; i++) {
        send(ctx, tensor[i], device);
    }
    assert_true(carry_attention_steps(&args));
    const size_t bytes = carry_attention_step_workspace(&args);
    void *workspace;
    assert_ok(ctx, carry_device_alloc(ctx, &workspace, device, bytes + 64));
    assert_ok(ctx, carry_attention_step(ctx, &args, workspace, bytes));
    take_back(ctx, p.o, &args.o);
    for (int i = 1; i < 7; i++) {
        carry_device_free(ctx, device, tensor[i]->data);
    }
    carry_device_free(ctx, device, workspace);
    for (int64_t i = 0; i < SEQUENCES * H * D; i++) {
        const double got = (double)from_bf16(((const uint16_t *)(const void *)p.o)[i]);
        if (!(fabs(got - wanted[i]) <= 0.004 + 0.008 * fabs(wanted[i]))) {
            fail_msg("S %lld, D %lld: o[%lld] is %g and should be %g", (long long)size[1], (long long)D, (long long)i,
                     got, wanted[i]);
        }
    }
    free(wanted);
    drop(&p);
    drop(&added);
}

static void a_step_on_a_gpu_equals_the_reference(void **unused) {
    (void)unused;
    static const int64_t sizes[][6] = {
        {1, 1, 8, 2, 256, 0}, {1, 64, 4, 4, 64, 0}, {1, 300, 8, 2, 256, 0}, {1, 131, 6, 2, 128, 40}};
    int ordinal;
    if (carry_device_count() < 2 || carry_attention_device_of(1, &ordinal) == NULL) {
        (void)printf("skipped: there is no GPU here, or this build has no attention for it\n");
        return;
    }
    carry_ctx *ctx = support_ctx(2, NULL, NULL);
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        check_step(ctx, sizes[i], 1);
    }
    carry_ctx_free(ctx);
}

static void the_last_queries_of_a_row_see_the_same(void **unused) {
    (void)unused;
    carry_ctx *ctx = support_ctx(2, NULL, NULL);
    problem whole = make(90, 90, 4, 2, 8, 0);
    run(ctx, &whole);
    for (int64_t last = 1; last < 90; last += 11) {
        float *o = calloc((size_t)(last * 4 * 8), sizeof *o);
        assert_non_null(o);
        carry_attention_args args = args_of(&whole).forward;
        args.q = carry_slice(args.q, 90 - last, last);
        args.o = carry_view_3d(o, CARRY_F32, last, 4, 8);
        args.lse = (carry_tensor){0};
        const size_t bytes = carry_attention_workspace(&args);
        void *workspace = carry_aligned_new(bytes + 64);
        assert_ok(ctx, carry_attention(ctx, &args, workspace, bytes));
        for (int64_t i = 0; i < last * 4 * 8; i++) {
            assert_true(fabsf(o[i] - whole.o[(90 - last) * 4 * 8 + i]) <= 1e-5f);
        }
        free(workspace);
        free(o);
    }
    drop(&whole);
    carry_ctx_free(ctx);
}

static void calls_that_do_not_fit_are_refused(void **unused) {
    (void)unused;
    carry_ctx *ctx = support_ctx(1, NULL, NULL);
    problem p = make(6, 5, 4, 2, 8, 0);
    carry_attention_args args = args_of(&p).forward;
    assert_refused(ctx, CARRY_ESHAPE, "its last tokens", carry_attention(ctx, &args, NULL, 0));
    args.causal = false;
    args.window = 3;
    assert_refused(ctx, CARRY_EARGUMENT, "a window of 3", carry_attention(ctx, &args, NULL, 0));
    args.window = 0;
    args.k = args.v = carry_view_3d(p.k, CARRY_F32, 3, 3, 8);
    assert_refused(ctx, CARRY_ESHAPE, "k has shape [3, 3, 8]", carry_attention(ctx, &args, NULL, 0));
    drop(&p);
    carry_ctx_free(ctx);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(causal_attention_equals_the_reference),
        cmocka_unit_test(causal_attention_on_a_gpu_equals_the_reference),
        cmocka_unit_test(bf16_on_a_gpu_equals_the_reference),
        cmocka_unit_test(a_step_on_a_gpu_equals_the_reference),
        cmocka_unit_test(the_last_queries_of_a_row_see_the_same),
        cmocka_unit_test(calls_that_do_not_fit_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
