/* The chunk kernels of Hopper GPUs against the token-by-token ones of the same GPU, at sizes where their launches
   differ: segments, rings of chunks, rounds of heads, packed sequences; other sizes of heads; betas of zero, deep
   gates, similar keys. The same bits in every run. Without such a GPU all of it is skipped. */
/* labels: gpu */
#include <math.h>

#include "core/tensor.h"
#include "support.h"

#define GPU 1

enum { Q, KEY, V, BETA, G, INITIAL, A_LOG, DT_BIAS, DO, DFINAL, READ };
enum { O = READ, FINAL, DQ, DK, DV, DBETA, DG, DINITIAL, DA_LOG, DDT_BIAS, ALL };

static const char *const names[ALL] = {"q",       "k",     "v",      "beta",     "g",      "initial", "A_log",
                                       "dt_bias", "do",    "dfinal", "o",        "final",  "dq",      "dk",
                                       "dv",      "dbeta", "dg",     "dinitial", "dA_log", "ddt_bias"};

typedef struct problem {
    carry_ctx *ctx;
    carry_delta_problem p;
    carry_tensor t[ALL], cu_seqlens;
    bool small_betas, deep_gates, alike; /* alike: keys that are close together, and no gates */
} problem;

static bool no_chunks(void) {
    for (int i = 0; carry_device_count() > 1 && carry_delta_name(GPU, i) != NULL; i++) {
        carry_ctx *ctx = support_ctx(1, NULL, NULL);
        carry_delta_plan *plan = NULL;
        carry_delta_problem p = {.batch = 1, .tokens = 64, .heads = 1, .value_heads = 1, .key = 128, .value = 128};
        p.dtype = CARRY_BF16;
        p.device = GPU;
        bool there = strcmp(carry_delta_name(GPU, i), "chunk64") == 0 &&
                     carry_delta_plan_new(
                         ctx, &plan, &p,
                         &(carry_delta_options){CARRY_INIT(carry_delta_options), .algorithm = "chunk64"}) == CARRY_OK;
        carry_delta_plan_free(plan);
        carry_ctx_free(ctx);
        if (there) {
            return false;
        }
    }
    (void)printf("skipped: there is no GPU with the chunk kernels here\n");
    return true;
}

static size_t bytes_of(const carry_tensor *t) {
    return (size_t)carry_tensor_count(t) * carry_dtype_size(t->dtype);
}

static carry_tensor shape_of(const problem *d, int which) {
    const carry_delta_problem *p = &d->p;
    switch (which) {
    case Q:
    case KEY:
    case DQ:
    case DK:
        return carry_view_4d(NULL, p->dtype, p->batch, p->tokens, p->heads, p->key);
    case V:
    case DO:
    case O:
    case DV:
        return carry_view_4d(NULL, p->dtype, p->batch, p->tokens, p->value_heads, p->value);
    case BETA:
    case G:
    case DBETA:
    case DG:
        return carry_view_3d(NULL, CARRY_F32, p->batch, p->tokens, p->value_heads);
    case A_LOG:
    case DT_BIAS:
    case DA_LOG:
    case DDT_BIAS:
        return carry_view_1d(NULL, CARRY_F32, p->value_heads);
    default:
        return carry_view_4d(NULL, CARRY_F32, p->sequences > 0 ? p->sequences : p->batch, p->value_heads,
                             p->state_transposed ? p->value : p->key, p->state_transposed ? p->key : p->value);
    }
}

static void set_numbers(const problem *d, int which, float *x, int64_t count) {
    const float deep[] = {-20.0f, -1000.0f, -INFINITY};
    for (int64_t i = 0; i < count; i++) {
        int64_t token = i / d->p.value_heads;
        if (which == BETA && !d->p.beta_sigmoid) {
            x[i] = 1.0f / (1.0f + expf(-x[i]));
            x[i] *= !d->small_betas || token % 3 == 0 ? 1.0f : token % 3 == 1 ? 0.0f : 1e-4f;
        } else if (which == G && !d->p.gate_inside) {
            x[i] = d->alike ? 0.0f : d->deep_gates && token % 7 == 3 ? deep[token % 3] : -0.1f * fabsf(x[i]);
        }
    }
}

static void make(problem *d) {
    d->p.device = GPU;
    for (int i = 0; i < ALL; i++) {
        carry_tensor here = d->t[i] = shape_of(d, i);
        here.data = malloc(bytes_of(&here));
        assert_non_null(here.data);
        d->t[i].device = GPU;
        assert_ok(d->ctx, carry_device_alloc(d->ctx, &d->t[i].data, GPU, bytes_of(&here)));
        float spread = i == INITIAL || i == DFINAL ? 0.3f : i == A_LOG || i == DT_BIAS ? 0.5f : 1.0f;
        spread = (i == Q || i == KEY) && !d->p.l2norm ? 1.0f / sqrtf((float)d->p.key) : spread;
        assert_ok(d->ctx, carry_random_normal(d->ctx, here, 11, (uint64_t)i, 0.0f, spread));
        if (d->alike && (i == Q || i == KEY || i == V)) {
            assert_ok(d->ctx, carry_random_uniform(d->ctx, here, 11, (uint64_t)i, 0.0f, 1.0f));
        }
        if (i == BETA || i == G) {
            set_numbers(d, i, here.data, carry_tensor_count(&here));
        }
        assert_ok(d->ctx, carry_device_copy(d->ctx, d->t[i].data, GPU, here.data, 0, bytes_of(&here), NULL));
        assert_ok(d->ctx, carry_stream_wait(d->ctx, GPU, NULL));
        free(here.data);
    }
}

/* Runs forward and backward by a method and copies all outputs to the host. */
static void run(const problem *d, const char *method, void *out[ALL]) {
    carry_delta_plan *plan;
    void *workspace;
    const carry_tensor *t = d->t;
    const carry_tensor *cu_seqlens = d->p.sequences > 0 ? &d->cu_seqlens : NULL;
    const carry_tensor *A_log = d->p.gate_inside ? &t[A_LOG] : NULL;
    const carry_tensor *dt_bias = d->p.gate_inside ? &t[DT_BIAS] : NULL;
    assert_ok(d->ctx,
              carry_delta_plan_new(d->ctx, &plan, &d->p,
                                   &(carry_delta_options){CARRY_INIT(carry_delta_options), .algorithm = method}));
    size_t forward = carry_delta_forward_workspace(plan);
    size_t backward = carry_delta_backward_workspace(plan);
    size_t most = forward > backward ? forward : backward;
    assert_ok(d->ctx, carry_device_alloc(d->ctx, &workspace, GPU, most));
    assert_ok(d->ctx, carry_device_fill(d->ctx, workspace, GPU, 0xff, most, NULL));
    for (int i = READ; i < ALL; i++) {
        assert_ok(d->ctx, carry_device_fill(d->ctx, t[i].data, GPU, 0xff, bytes_of(&t[i]), NULL));
    }
    carry_delta_forward_args f = {
        .o = t[O], .final_state = t[FINAL], .q = t[Q], .k = t[KEY], .v = t[V], .beta = t[BETA]};
    f.g = t[G];
    f.initial_state = t[INITIAL];
    f.cu_seqlens = cu_seqlens != NULL ? *cu_seqlens : (carry_tensor){0};
    f.A_log = A_log != NULL ? *A_log : (carry_tensor){0};
    f.dt_bias = dt_bias != NULL ? *dt_bias : (carry_tensor){0};
    assert_ok(d->ctx, carry_delta_forward(plan, &f, workspace, forward));
    carry_delta_backward_args b = {.dq = t[DQ], .dk = t[DK], .dv = t[DV], .dbeta = t[DBETA], .dg = t[DG], .d_o = t[DO]};
    b.dinitial_state = t[DINITIAL];
    b.dA_log = d->p.gate_inside ? t[DA_LOG] : (carry_tensor){0};
    b.ddt_bias = d->p.gate_inside ? t[DDT_BIAS] : (carry_tensor){0};
    b.dfinal_state = t[DFINAL];
    b.q = t[Q];
    b.k = t[KEY];
    b.v = t[V];
    b.beta = t[BETA];
    b.g = t[G];
    b.initial_state = t[INITIAL];
    b.cu_seqlens = cu_seqlens != NULL ? *cu_seqlens : (carry_tensor){0};
    b.A_log = A_log != NULL ? *A_log : (carry_tensor){0};
    b.dt_bias = dt_bias != NULL ? *dt_bias : (carry_tensor){0};
    assert_ok(d->ctx, carry_delta_backward(plan, &b, workspace, backward));
    assert_ok(d->ctx, carry_stream_wait(d->ctx, GPU, NULL));
    for (int i = READ; i < ALL; i++) {
        out[i] = malloc(bytes_of(&t[i]));
        assert_non_null(out[i]);
        assert_ok(d->ctx, carry_device_copy(d->ctx, out[i], 0, t[i].data, GPU, bytes_of(&t[i]), NULL));
    }
    carry_device_free(d->ctx, GPU, workspace);
    carry_delta_plan_free(plan);
}

/* The root mean square of the difference, relative to that of the values. Factors are rounded to bf16 a few times, 2^-9
   each; a wrong index gives 1. */
static void compare(const problem *d, int which, void *got, void *wanted) {
    carry_tensor a = shape_of(d, which);
    carry_tensor b = a;
    double error = 0.0;
    double size = 0.0;
    a.data = got;
    b.data = wanted;
    for (int64_t i = 0; i < carry_tensor_count(&a); i++) {
        double x = carry_tensor_at(&a, i);
        double y = carry_tensor_at(&b, i);
        error += (x - y) * (x - y);
        size += y * y;
    }
    double most = which == DBETA || which == DG ? 2e-2 : which <= FINAL ? 5e-3 : 8e-3; /* that library's */
    most = d->alike ? most : 0x1p-6;
    most = which == DA_LOG || which == DDT_BIAS ? 2.0 * most : most; /* sums over few tokens, which cancel */
    if (!(sqrt(error) <= most * sqrt(size))) {
        fail_msg("%s differs by %g of its size (%lld x %lld tokens, heads %lld/%lld, K %lld, V %lld, packed %lld)",
                 names[which], sqrt(error / size), (long long)d->p.batch, (long long)d->p.tokens, (long long)d->p.heads,
                 (long long)d->p.value_heads, (long long)d->p.key, (long long)d->p.value, (long long)d->p.sequences);
    }
}

static void check(problem d) {
    void *wanted[ALL];
    void *first[ALL];
    void *again[ALL];
    d.ctx = support_ctx(2, NULL, NULL);
    d.p.key = d.p.key > 0 ? d.p.key : 128;
    d.p.value = d.p.value > 0 ? d.p.value : 128;
    d.p.dtype = CARRY_BF16;
    d.p.gate = CARRY_DELTA_HEAD_GATE;
    make(&d);
    run(&d, "recurrent", wanted);
    run(&d, "chunk64", first);
    run(&d, "chunk64", again);
    for (int i = READ; i < ALL; i++) {
        if (i < DA_LOG || d.p.gate_inside) {
            compare(&d, i, first[i], wanted[i]);
            assert_memory_equal(first[i], again[i], bytes_of(&d.t[i]));
        }
        free(wanted[i]);
        free(first[i]);
        free(again[i]);
    }
    for (int i = 0; i < ALL; i++) {
        carry_device_free(d.ctx, GPU, d.t[i].data);
    }
    carry_ctx_free(d.ctx);
}

static void few_heads_in_segments(void **unused) {
    (void)unused;
    check((problem){.p = {.batch = 1, .tokens = 4000, .heads = 1, .value_heads = 1}});
    check((problem){.p = {.batch = 1, .tokens = 8000, .heads = 1, .value_heads = 4, .l2norm = true}});
}

static void long_walks_in_rings(void **unused) {
    (void)unused;
    check((problem){.p = {.batch = 12, .tokens = 2500, .heads = 2, .value_heads = 4, .l2norm = true}});
    check((problem){.p = {.batch = 1,
                          .tokens = 2100,
                          .heads = 24,
                          .value_heads = 24,
                          .gate_inside = true,
                          .beta_sigmoid = true,
                          .state_transposed = true}});
    check((problem){.p = {.batch = 1, .tokens = 6500, .heads = 3, .value_heads = 12, .l2norm = true}});
}

static void many_heads_in_rounds(void **unused) {
    (void)unused;
    check((problem){.p = {.batch = 9, .tokens = 320, .heads = 8, .value_heads = 16, .l2norm = true}});
    check((problem){.p = {.batch = 20, .tokens = 300, .heads = 6, .value_heads = 6}});
}

static void packed_sequences(void **unused) {
    (void)unused;
    static int64_t borders[] = {0, 0, 15, 100, 100, 165, 166, 430, 1000};
    carry_tensor cu_seqlens = carry_view_1d(borders, CARRY_I64, 9);
    check((problem){.p = {.batch = 1, .tokens = 1000, .sequences = 8, .heads = 16, .value_heads = 32, .l2norm = true},
                    .cu_seqlens = cu_seqlens});
    check((problem){.p = {.batch = 1, .tokens = 1000, .sequences = 8, .heads = 1, .value_heads = 2},
                    .cu_seqlens = cu_seqlens});
}

static void betas_of_zero_and_deep_gates(void **unused) {
    (void)unused;
    check((problem){.p = {.batch = 1, .tokens = 500, .heads = 2, .value_heads = 4}, .small_betas = true});
    check(
        (problem){.p = {.batch = 1, .tokens = 500, .heads = 2, .value_heads = 4, .l2norm = true}, .deep_gates = true});
}

/* 104 sequences and value heads: blocks of 128 values. */
static void heads_that_fill_the_gpu(void **unused) {
    (void)unused;
    carry_delta_problem p = {.batch = 26, .tokens = 300, .heads = 2, .value_heads = 4, .l2norm = true};
    check((problem){.p = p, .deep_gates = true});
    check((problem){.p = p, .alike = true});
    p.l2norm = false;
    p.state_transposed = true;
    check((problem){.p = p, .small_betas = true});
}

/* flash-linear-attention's tolerances, on inputs drawn as in its tests of chunk_delta_rule. */
static void keys_that_are_alike(void **unused) {
    (void)unused;
    check((problem){.p = {.batch = 2, .tokens = 1024, .heads = 4, .value_heads = 4, .l2norm = true, .scale = 1.0f},
                    .alike = true});
    check((problem){.p = {.batch = 2, .tokens = 700, .heads = 2, .value_heads = 4, .l2norm = true}, .alike = true});
}

static void other_sizes(void **unused) {
    (void)unused;
    static int64_t borders[] = {0, 0, 15, 100, 100, 165, 166, 430, 1000};
    static const int64_t sizes[][2] = {{64, 64},   {64, 128},  {64, 256}, {128, 64},  {128, 256}, {256, 64},
                                       {256, 128}, {256, 256}, {64, 512}, {128, 512}, {256, 512}};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        carry_delta_problem p = {.batch = 1, .heads = 1, .value_heads = 2, .key = sizes[i][0], .value = sizes[i][1]};
        p.l2norm = true;
        p.tokens = 4000; /* in segments */
        check((problem){.p = p});
        p.tokens = 1000;
        p.sequences = 8;
        check((problem){.p = p, .cu_seqlens = carry_view_1d(borders, CARRY_I64, 9), .deep_gates = true});
        p.sequences = 0;
        p.heads = p.value_heads = 6;
        p.batch = 20;
        p.tokens = 300;
        p.state_transposed = true;
        p.gate_inside = p.beta_sigmoid = i % 2 == 0;
        check((problem){.p = p, .small_betas = true});
    }
}

/* Slightly more than a chunk, for slow tools (compute-sanitizer): one size of heads in each, a long sequence in the
   last. */
static void short_walk(int64_t key, int64_t value, bool packed) {
    static int64_t borders[] = {0, 5, 75};
    carry_delta_problem p = {.batch = 1, .tokens = 75, .heads = 1, .value_heads = 2, .l2norm = true};
    p.key = key;
    p.value = value;
    p.sequences = packed ? 2 : 0;
    p.gate_inside = p.beta_sigmoid = packed;
    check((problem){.p = p, .small_betas = !packed, .cu_seqlens = carry_view_1d(borders, CARRY_I64, 3)});
}
static void short_walk_of_128(void **unused) {
    (void)unused;
    short_walk(128, 128, false);
}
static void short_walk_of_64_packed(void **unused) {
    (void)unused;
    short_walk(64, 256, true);
}
static void short_walk_of_256(void **unused) {
    (void)unused;
    short_walk(256, 64, false);
}
static void short_walk_of_256_packed(void **unused) {
    (void)unused;
    short_walk(256, 256, true);
}
static void short_walk_of_512_packed(void **unused) {
    (void)unused;
    short_walk(256, 512, true);
}
static void short_walk_of_many_heads(void **unused) {
    (void)unused;
    check((problem){.p = {.batch = 1, .tokens = 75, .heads = 1, .value_heads = 104}});
}
static void short_segments(void **unused) {
    (void)unused;
    check((problem){.p = {.batch = 1, .tokens = 1025, .heads = 1, .value_heads = 1}});
}

/* The workspace is at most one and a half times the bytes of q, k, v and do, or at most 32 MB, for any number of heads
   and sequences, however short. Value heads of 256 keys that share one short head of q need more. */
static void workspace_is_bounded(void **unused) {
    (void)unused;
    carry_ctx *ctx = support_ctx(1, NULL, NULL);
    for (int i = 0; i < 1000; i++) {
        carry_delta_problem p = {.batch = 1 + i % 3 * 4, .tokens = 64 << i % 10, .heads = 1 + i % 5, .device = GPU};
        p.value_heads = p.heads << (p.tokens < 4096 ? i % 2 : i % 4);
        p.key = i % 7 == 0 ? 64 : i % 7 == 1 && p.tokens >= 4096 ? 256 : 128;
        p.value = i % 11 == 0 ? 64 : i % 11 == 1 ? 256 : 128;
        p.sequences = i % 13 == 0 && p.tokens >= 512 ? (i % 2 == 0 ? 7 : p.tokens / 20) : 0;
        p.batch = p.sequences > 0 ? 1 : p.batch;
        p.dtype = CARRY_BF16;
        carry_delta_plan *plan;
        assert_ok(
            ctx, carry_delta_plan_new(ctx, &plan, &p,
                                      &(carry_delta_options){CARRY_INIT(carry_delta_options), .algorithm = "chunk64"}));
        double bytes = (double)carry_delta_backward_workspace(plan);
        double inputs = (double)(p.batch * p.tokens * 4 * (p.heads * p.key + p.value_heads * p.value));
        if (bytes > 1.5 * inputs && bytes > 32e6 + 4096.0) {
            fail_msg("%g of %g bytes of inputs (%lld x %lld tokens, heads %lld/%lld, K %lld, V %lld, packed %lld)",
                     bytes, inputs, (long long)p.batch, (long long)p.tokens, (long long)p.heads,
                     (long long)p.value_heads, (long long)p.key, (long long)p.value, (long long)p.sequences);
        }
        carry_delta_plan_free(plan);
    }
    carry_ctx_free(ctx);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(few_heads_in_segments),
        cmocka_unit_test(long_walks_in_rings),
        cmocka_unit_test(many_heads_in_rounds),
        cmocka_unit_test(packed_sequences),
        cmocka_unit_test(betas_of_zero_and_deep_gates),
        cmocka_unit_test(heads_that_fill_the_gpu),
        cmocka_unit_test(keys_that_are_alike),
        cmocka_unit_test(other_sizes),
        cmocka_unit_test(short_walk_of_128),
        cmocka_unit_test(short_walk_of_64_packed),
        cmocka_unit_test(short_walk_of_256),
        cmocka_unit_test(short_walk_of_256_packed),
        cmocka_unit_test(short_walk_of_512_packed),
        cmocka_unit_test(short_walk_of_many_heads),
        cmocka_unit_test(short_segments),
        cmocka_unit_test(workspace_is_bounded),
    };
    if (no_chunks()) {
        return 77;
    }
    if (getenv("CARRY_CASE") != NULL) { /* a pattern of test names */
        cmocka_set_test_filter(getenv("CARRY_CASE"));
    }
    return cmocka_run_group_tests_name("delta/gpu_chunk", tests, NULL, NULL);
}
