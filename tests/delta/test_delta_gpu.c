/* Every method that a GPU has for the gated delta rule: outputs and states equal the float64 recurrence, gradients
   those of the CPU, over odd sizes, every option and every storage type; the same bits in repeated runs; bad input is
   refused by name. Without a GPU all of it is skipped. */
#include <math.h>

#include "core/tensor.h"
#include "support.h"

#define GPU 1
#define REPEATS 50

enum { Q, KEY, V, BETA, G, INITIAL, A_LOG, DT_BIAS, DO, DFINAL, READ };
enum { O = READ, FINAL, SNAPSHOTS, DQ, DK, DV, DBETA, DG, DINITIAL, DA_LOG, DDT_BIAS, ALL };

static const char *const names[ALL] = {"q",       "k",  "v",      "beta", "g",        "initial",   "A_log",
                                       "dt_bias", "do", "dfinal", "o",    "final",    "snapshots", "dq",
                                       "dk",      "dv", "dbeta",  "dg",   "dinitial", "dA_log",    "ddt_bias"};

typedef struct data {
    carry_ctx *ctx;
    carry_delta_problem p; /* on the GPU */
    int64_t sequences;
    carry_tensor cu_seqlens; /* on the CPU */
    carry_tensor here[ALL], there[ALL];
} data;

static bool no_gpu(void) {
    if (carry_device_count() > 1 && carry_delta_name_on(GPU, 0) != NULL) {
        return false;
    }
    (void)printf("skipped: there is no GPU here, or this build has no delta rule for it\n");
    return true;
}

static size_t bytes_of(const carry_tensor *t) {
    return (size_t)carry_tensor_count(t) * carry_dtype_size(t->dtype);
}

static carry_tensor shape_of(const data *d, int which) {
    const carry_delta_problem *p = &d->p;
    int64_t rows = p->state_transposed ? p->value : p->key;
    int64_t columns = p->key + p->value - rows;
    int64_t every = p->snapshot_every;
    int64_t snapshots = every > 0 ? (p->tokens + every - 1) / every : p->snapshot_last;
    switch (which) {
    case Q:
    case KEY:
    case DQ:
    case DK:
        return carry_view_4d(NULL, p->dtype, p->batch, p->tokens, p->heads, p->key);
    case V:
    case O:
    case DO:
    case DV:
        return carry_view_4d(NULL, p->dtype, p->batch, p->tokens, p->value_heads, p->value);
    case G:
    case DG:
        if (p->gate == CARRY_DELTA_KEY_GATE) {
            return carry_view_4d(NULL, CARRY_F32, p->batch, p->tokens, p->value_heads, p->key);
        }
        return carry_view_3d(NULL, CARRY_F32, p->batch, p->tokens, p->value_heads);
    case BETA:
    case DBETA:
        return carry_view_3d(NULL, CARRY_F32, p->batch, p->tokens, p->value_heads);
    case A_LOG:
    case DT_BIAS:
    case DA_LOG:
    case DDT_BIAS:
        return carry_view_1d(NULL, CARRY_F32, p->value_heads);
    case SNAPSHOTS: {
        const int64_t shape[] = {d->sequences, snapshots > 0 ? snapshots : 1, p->value_heads, rows, columns};
        return carry_view(NULL, CARRY_F32, 5, shape);
    }
    default:
        return carry_view_4d(NULL, CARRY_F32, d->sequences, p->value_heads, rows, columns);
    }
}

static void send(const data *d, int which) {
    size_t bytes = bytes_of(&d->here[which]);
    assert_ok(d->ctx, carry_device_copy(d->ctx, d->there[which].data, GPU, d->here[which].data, 0, bytes, NULL));
    assert_ok(d->ctx, carry_stream_wait(d->ctx, GPU, NULL));
}

static void fetch(const data *d, int which) {
    size_t bytes = bytes_of(&d->here[which]);
    assert_ok(d->ctx, carry_stream_wait(d->ctx, GPU, NULL));
    assert_ok(d->ctx, carry_device_copy(d->ctx, d->here[which].data, 0, d->there[which].data, GPU, bytes, NULL));
}

static data make(carry_ctx *ctx, carry_delta_problem p, const int64_t *borders) {
    data d = {.ctx = ctx, .p = p, .sequences = p.sequences > 0 ? p.sequences : p.batch};
    d.p.device = GPU;
    d.cu_seqlens = carry_view_1d((void *)(uintptr_t)borders, CARRY_I64, d.sequences + 1);
    for (int i = 0; i < ALL; i++) {
        d.here[i] = d.there[i] = shape_of(&d, i);
        d.here[i].data = malloc(bytes_of(&d.here[i]));
        assert_non_null(d.here[i].data);
        d.there[i].device = GPU;
        assert_ok(ctx, carry_device_alloc(ctx, &d.there[i].data, GPU, bytes_of(&d.here[i])));
        float spread = i == INITIAL || i == DFINAL ? 0.3f : i == A_LOG || i == DT_BIAS ? 0.5f : 1.0f;
        spread = (i == Q || i == KEY) && !p.l2norm ? 1.0f / sqrtf((float)p.key) : spread;
        assert_ok(ctx, carry_random_normal(ctx, d.here[i], 9, (uint64_t)i, 0.0f, spread));
        float *x = d.here[i].data;
        for (int64_t j = 0; j < carry_tensor_count(&d.here[i]); j++) {
            if (i == BETA && !p.beta_sigmoid) {
                x[j] = 1.0f / (1.0f + expf(-x[j]));
            } else if (i == G && !p.gate_inside) {
                x[j] = -0.3f * fabsf(x[j]);
            }
        }
        if (i >= READ) {
            memset(d.here[i].data, 0xff, bytes_of(&d.here[i]));
        }
        send(&d, i);
    }
    return d;
}

static void discard(data *d) {
    for (int i = 0; i < ALL; i++) {
        free(d->here[i].data);
        carry_device_free(d->ctx, GPU, d->there[i].data);
    }
}

static carry_delta_forward_args forward_args(const data *d, const carry_tensor t[ALL]) {
    bool gated = d->p.gate != CARRY_DELTA_NO_GATE;
    bool snapshots = d->p.snapshot_every > 0 || d->p.snapshot_last > 0;
    return (carry_delta_forward_args){.o = t[O],
                                      .final_state = t[FINAL],
                                      .snapshots = snapshots ? t[SNAPSHOTS] : (carry_tensor){0},
                                      .q = t[Q],
                                      .k = t[KEY],
                                      .v = t[V],
                                      .beta = t[BETA],
                                      .g = gated ? t[G] : (carry_tensor){0},
                                      .initial_state = t[INITIAL],
                                      .cu_seqlens = d->p.sequences > 0 ? d->cu_seqlens : (carry_tensor){0},
                                      .A_log = d->p.gate_inside ? t[A_LOG] : (carry_tensor){0},
                                      .dt_bias = d->p.gate_inside ? t[DT_BIAS] : (carry_tensor){0}};
}

static carry_delta_backward_args backward_args(const data *d, const carry_tensor t[ALL], const void *kept) {
    carry_delta_forward_args f = forward_args(d, t);
    return (carry_delta_backward_args){.dq = t[DQ],
                                       .dk = t[DK],
                                       .dv = t[DV],
                                       .dbeta = t[DBETA],
                                       .dg = f.g.data != NULL ? t[DG] : (carry_tensor){0},
                                       .dinitial_state = t[DINITIAL],
                                       .dA_log = d->p.gate_inside ? t[DA_LOG] : (carry_tensor){0},
                                       .ddt_bias = d->p.gate_inside ? t[DDT_BIAS] : (carry_tensor){0},
                                       .d_o = t[DO],
                                       .dfinal_state = t[DFINAL],
                                       .kept = kept,
                                       .q = t[Q],
                                       .k = t[KEY],
                                       .v = t[V],
                                       .beta = t[BETA],
                                       .g = f.g,
                                       .initial_state = f.initial_state,
                                       .cu_seqlens = f.cu_seqlens,
                                       .A_log = f.A_log,
                                       .dt_bias = f.dt_bias};
}

/* Relative to the largest: sums in f32 of at most K + V + 64 terms, some hundred roundings of 2^-24, and the result's
   own type; methods on tensor cores round what they multiply to the inputs' type. Far below any wrong index. */
static void compare(const data *d, const char *method, int which, const double *wanted, double tolerance) {
    const carry_tensor *got = &d->here[which];
    const carry_delta_problem *p = &d->p;
    double largest = 1e-30;
    tolerance += got->dtype == CARRY_BF16 ? 0x1p-7 : got->dtype == CARRY_F16 ? 0x1p-10 : 0.0;
    tolerance += p->dtype != CARRY_F32 && strcmp(method, "recurrent") != 0 ? 0x1p-6 : 0.0;
    for (int64_t i = 0; i < carry_tensor_count(got); i++) {
        largest = fmax(largest, fabs(wanted[i]));
    }
    for (int64_t i = 0; i < carry_tensor_count(got); i++) {
        double value = carry_tensor_at(got, i);
        if (!(fabs(value - wanted[i]) <= tolerance * largest)) {
            fail_msg("%s by %s: element %lld is %g and should be %g (largest %g); B=%lld T=%lld H=%lld HV=%lld K=%lld "
                     "V=%lld %s gate %d l2norm %d transposed %d inside %d sigmoid %d packed %lld",
                     names[which], method, (long long)i, value, wanted[i], largest, (long long)p->batch,
                     (long long)p->tokens, (long long)p->heads, (long long)p->value_heads, (long long)p->key,
                     (long long)p->value, carry_dtype_name(p->dtype), (int)p->gate, p->l2norm, p->state_transposed,
                     p->gate_inside, p->beta_sigmoid, (long long)p->sequences);
        }
    }
}

/* What the recurrence gives, states as they lie in tensors. */
static void expected(const data *d, double **o, double **final) {
    carry_delta_problem p = d->p;
    p.device = 0;
    carry_delta_forward_args args = forward_args(d, d->here);
    int64_t states = carry_tensor_count(&d->here[FINAL]);
    double *plain = calloc((size_t)states, sizeof *plain);
    *o = calloc((size_t)carry_tensor_count(&d->here[O]), sizeof **o);
    *final = calloc((size_t)states, sizeof **final);
    assert_true(plain != NULL && *o != NULL && *final != NULL);
    assert_ok(d->ctx, carry_delta_reference(d->ctx, *o, plain, &p, &args));
    for (int64_t i = 0; i < states; i++) {
        int64_t inside = i % (p.key * p.value);
        int64_t row = inside / p.value;
        int64_t column = inside % p.value;
        (*final)[i - inside + (p.state_transposed ? column * p.key + row : inside)] = plain[i];
    }
    free(plain);
}

typedef struct device_plan {
    carry_delta_plan *plan;
    void *workspace, *kept;
    size_t forward, backward;
} device_plan;

/* False when the method is not for this problem. */
static bool open_plan(const data *d, device_plan *made, const char *method) {
    carry_status status = carry_delta_plan_new(d->ctx, &made->plan, &d->p, &(carry_delta_options){.method = method});
    if (status == CARRY_EUNSUPPORTED) {
        return false;
    }
    assert_ok(d->ctx, status);
    made->forward = carry_delta_forward_workspace(made->plan);
    made->backward = carry_delta_backward_workspace(made->plan);
    size_t most = made->forward > made->backward ? made->forward : made->backward;
    assert_ok(d->ctx, carry_device_alloc(d->ctx, &made->workspace, GPU, most));
    assert_ok(d->ctx, carry_device_alloc(d->ctx, &made->kept, GPU, carry_delta_kept(made->plan)));
    assert_ok(d->ctx, carry_device_fill(d->ctx, made->workspace, GPU, 0xff, most, NULL));
    assert_ok(d->ctx, carry_device_fill(d->ctx, made->kept, GPU, 0xff, carry_delta_kept(made->plan), NULL));
    assert_ok(d->ctx, carry_stream_wait(d->ctx, GPU, NULL));
    return true;
}

static void close_plan(const data *d, device_plan *made) {
    carry_device_free(d->ctx, GPU, made->workspace);
    carry_device_free(d->ctx, GPU, made->kept);
    carry_delta_plan_free(made->plan);
}

static void poison(const data *d) {
    for (int i = READ; i < ALL; i++) {
        assert_ok(d->ctx, carry_device_fill(d->ctx, d->there[i].data, GPU, 0xff, bytes_of(&d->there[i]), NULL));
    }
    assert_ok(d->ctx, carry_stream_wait(d->ctx, GPU, NULL));
}

/* Gradients of the CPU in float64; false where it has none. */
static bool gradients_of_cpu(const data *d, double *wanted[ALL]) {
    carry_delta_plan *plan;
    carry_delta_problem p = d->p;
    p.device = 0;
    p.snapshot_every = p.snapshot_last = 0;
    assert_ok(d->ctx, carry_delta_plan_new(d->ctx, &plan, &p, &(carry_delta_options){.method = "chunk64"}));
    size_t bytes = carry_delta_backward_workspace(plan);
    void *workspace = malloc(bytes);
    assert_non_null(workspace);
    carry_delta_backward_args args = backward_args(d, d->here, NULL);
    carry_status status = carry_delta_backward(plan, &args, workspace, bytes);
    free(workspace);
    carry_delta_plan_free(plan);
    for (int i = DQ; i < ALL; i++) {
        int64_t count = carry_tensor_count(&d->here[i]);
        wanted[i] = malloc((size_t)count * sizeof **wanted);
        assert_non_null(wanted[i]);
        for (int64_t j = 0; j < count; j++) {
            wanted[i][j] = carry_tensor_at(&d->here[i], j);
        }
    }
    assert_true(status == CARRY_OK || status == CARRY_EUNSUPPORTED);
    return status == CARRY_OK;
}

static void compare_gradients(const data *d, const char *method, double *const wanted[ALL]) {
    for (int i = DQ; i < ALL; i++) {
        if ((i == DG && d->p.gate == CARRY_DELTA_NO_GATE) || (i >= DA_LOG && !d->p.gate_inside)) {
            continue;
        }
        fetch(d, i);
        compare(d, method, i, wanted[i], 2e-4);
    }
}

/* Forward, backward with what was kept, backward without it, by every method of the GPU. */
static void check_methods(data *d) {
    double *o;
    double *final;
    double *wanted[ALL] = {NULL};
    int done = 0;
    expected(d, &o, &final);
    bool gradients = gradients_of_cpu(d, wanted);
    for (int m = 0; carry_delta_name_on(GPU, m) != NULL; m++) {
        const char *method = carry_delta_name_on(GPU, m);
        device_plan on;
        if (!open_plan(d, &on, method)) {
            continue;
        }
        for (int kept = 0; kept < 2; kept++) {
            carry_delta_forward_args args = forward_args(d, d->there);
            args.kept = kept == 1 && args.snapshots.data == NULL ? on.kept : NULL;
            poison(d);
            assert_ok(d->ctx, carry_delta_forward(on.plan, &args, on.workspace, on.forward));
            fetch(d, O);
            fetch(d, FINAL);
            compare(d, method, O, o, 2e-5);
            compare(d, method, FINAL, final, 2e-5);
            carry_delta_backward_args back = backward_args(d, d->there, args.kept);
            assert_ok(d->ctx, carry_delta_backward(on.plan, &back, on.workspace, on.backward));
            if (gradients) {
                compare_gradients(d, method, wanted);
            }
            assert_ok(d->ctx, carry_stream_wait(d->ctx, GPU, NULL));
        }
        close_plan(d, &on);
        done++;
    }
    assert_true(done > 0);
    for (int i = 0; i < ALL; i++) {
        free(wanted[i]);
    }
    free(o);
    free(final);
}

static void every_method_equals_the_recurrence_for_every_shape(void **unused) {
    (void)unused;
    static const int64_t shapes[][6] = {{1, 1, 1, 1, 1, 1},      {1, 17, 1, 2, 3, 5},     {2, 33, 2, 2, 16, 16},
                                        {1, 65, 1, 1, 60, 100},  {3, 15, 1, 3, 33, 17},   {1, 129, 2, 4, 8, 1},
                                        {1, 200, 1, 1, 64, 64},  {1, 64, 1, 2, 1, 31},    {1, 20, 1, 1, 256, 256},
                                        {2, 70, 2, 4, 128, 128}, {1, 63, 1, 2, 128, 256}, {1, 130, 1, 1, 129, 65}};
    carry_ctx *ctx = support_ctx(2, NULL, NULL);
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++) {
        for (int gate = 0; gate < 3; gate++) {
            data d = make(ctx,
                          (carry_delta_problem){.batch = shapes[i][0],
                                                .tokens = shapes[i][1],
                                                .heads = shapes[i][2],
                                                .value_heads = shapes[i][3],
                                                .key = shapes[i][4],
                                                .value = shapes[i][5],
                                                .dtype = (carry_dtype)((i + (size_t)gate) % 3),
                                                .gate = (carry_delta_gate)gate,
                                                .l2norm = i % 2 == 0 && shapes[i][4] > 1, /* else no gradient is left */
                                                .state_transposed = i % 3 == 1,
                                                .scale = i % 4 == 2 ? 0.7f : 0.0f},
                          NULL);
            check_methods(&d);
            discard(&d);
        }
    }
    carry_ctx_free(ctx);
}

static void options_inside_the_rule_equal_the_recurrence(void **unused) {
    (void)unused;
    carry_ctx *ctx = support_ctx(2, NULL, NULL);
    static const int64_t sizes[][2] = {{12, 20}, {128, 128}, {32, 32}, {64, 40}};
    for (int form = 0; form < 32; form++) {
        data d = make(ctx,
                      (carry_delta_problem){.batch = 2,
                                            .tokens = 90,
                                            .heads = 2,
                                            .value_heads = 4,
                                            .key = sizes[form / 8][0],
                                            .value = sizes[form / 8][1],
                                            .dtype = form < 16 ? CARRY_F32 : CARRY_BF16,
                                            .gate = CARRY_DELTA_HEAD_GATE,
                                            .gate_inside = (form & 1) != 0,
                                            .beta_sigmoid = (form & 2) != 0,
                                            .beta_factor = (form & 2) != 0 ? 2.0f : 0.0f,
                                            .l2norm = true,
                                            .state_transposed = (form & 4) != 0},
                      NULL);
        check_methods(&d);
        discard(&d);
    }
    carry_ctx_free(ctx);
}

/* Empty sequences, one longer than a chunk by one; 1,500 of one token; 70,000, more than a grid's y or z may be. */
static void packed_sequences_do_not_leak(void **unused) {
    (void)unused;
    static const int64_t borders[] = {0, 0, 15, 100, 100, 165, 166, 300};
    static int64_t singles[70001];
    for (int64_t i = 0; i <= 70000; i++) {
        singles[i] = i;
    }
    carry_ctx *ctx = support_ctx(2, NULL, NULL);
    for (int form = 0; form < 5; form++) {
        const bool few = form < 2 || form == 4;
        carry_delta_problem p = {.batch = 1, .gate = CARRY_DELTA_HEAD_GATE, .l2norm = true};
        p.tokens = few ? 300 : form == 2 ? 1500 : 70000;
        p.sequences = few ? 7 : p.tokens;
        p.heads = few ? 2 : 1;
        p.value_heads = few ? 4 : 1;
        p.key = form == 0 ? 16 : form == 1 ? 128 : form == 4 ? 64 : form == 2 ? 4 : 1;
        p.value = form == 0 ? 18 : form == 1 ? 128 : form == 4 ? 64 : form == 2 ? 4 : 1;
        p.dtype = form == 1 || form == 4 ? CARRY_BF16 : CARRY_F32;
        data d = make(ctx, p, few ? borders : singles);
        check_methods(&d);
        discard(&d);
    }
    carry_ctx_free(ctx);
}

/* Gates of 0, -20, -1000 and -inf among small ones; beta of 0 and near 2. */
static void extreme_gates_and_betas_are_right(void **unused) {
    (void)unused;
    carry_ctx *ctx = support_ctx(2, NULL, NULL);
    for (int all = 0; all < 18; all++) {
        const int form = all % 6;
        const int64_t size = all < 6 ? 128 : all < 12 ? 32 : 64;
        carry_delta_problem p = {.batch = 1,
                                 .tokens = 150,
                                 .heads = 1,
                                 .value_heads = 2,
                                 .key = size,
                                 .value = size,
                                 .dtype = all < 6 ? CARRY_F32 : CARRY_BF16,
                                 .gate = CARRY_DELTA_HEAD_GATE,
                                 .l2norm = true};
        data d = make(ctx, p, NULL);
        float *g = d.here[G].data;
        float *beta = d.here[BETA].data;
        const float deep[] = {0.0f, -20.0f, -1000.0f, -INFINITY, -20.0f, -1000.0f};
        for (int64_t i = 0; i < p.tokens * p.value_heads; i++) {
            g[i] = form < 2 || i % 7 == 3 ? deep[form] : g[i];
            beta[i] = form == 4 ? 0.0f : form == 5 ? 1.99f : beta[i];
        }
        send(&d, G);
        send(&d, BETA);
        double *o;
        double *final;
        expected(&d, &o, &final);
        for (int m = 0; carry_delta_name_on(GPU, m) != NULL; m++) {
            device_plan on;
            if (!open_plan(&d, &on, carry_delta_name_on(GPU, m))) {
                continue;
            }
            carry_delta_forward_args args = forward_args(&d, d.there);
            carry_delta_backward_args back = backward_args(&d, d.there, NULL);
            poison(&d);
            assert_ok(ctx, carry_delta_forward(on.plan, &args, on.workspace, on.forward));
            assert_ok(ctx, carry_delta_backward(on.plan, &back, on.workspace, on.backward));
            for (int i = O; i <= DINITIAL; i++) {
                fetch(&d, i);
                for (int64_t j = 0; i != SNAPSHOTS && j < carry_tensor_count(&d.here[i]); j++) {
                    assert_true(isfinite(carry_tensor_at(&d.here[i], j)));
                }
            }
            compare(&d, carry_delta_name_on(GPU, m), O, o, 2e-5);
            compare(&d, carry_delta_name_on(GPU, m), FINAL, final, 2e-5);
            close_plan(&d, &on);
        }
        free(o);
        free(final);
        discard(&d);
    }
    carry_ctx_free(ctx);
}

static void snapshots_are_those_of_the_cpu(void **unused) {
    (void)unused;
    static const int64_t borders[] = {0, 3, 3, 90, 150};
    carry_ctx *ctx = support_ctx(2, NULL, NULL);
    for (int form = 0; form < 4; form++) {
        carry_delta_problem p = {.batch = 1,
                                 .tokens = 150,
                                 .sequences = 4,
                                 .heads = 1,
                                 .value_heads = 2,
                                 .key = 24,
                                 .value = 40,
                                 .gate = CARRY_DELTA_HEAD_GATE,
                                 .state_transposed = form % 2 == 1,
                                 .l2norm = true};
        p.snapshot_every = form < 2 ? 37 : 0;
        p.snapshot_last = form < 2 ? 0 : 5;
        data d = make(ctx, p, borders);
        carry_delta_plan *cpu;
        assert_ok(ctx, carry_delta_plan_new(ctx, &cpu, &p, &(carry_delta_options){.method = "recurrent"}));
        void *workspace = malloc(carry_delta_forward_workspace(cpu));
        int64_t count = carry_tensor_count(&d.here[SNAPSHOTS]);
        double *wanted = malloc((size_t)count * sizeof *wanted);
        assert_true(workspace != NULL && wanted != NULL);
        carry_delta_forward_args args = forward_args(&d, d.here);
        assert_ok(ctx, carry_delta_forward(cpu, &args, workspace, carry_delta_forward_workspace(cpu)));
        for (int64_t i = 0; i < count; i++) {
            wanted[i] = carry_tensor_at(&d.here[SNAPSHOTS], i);
        }
        for (int m = 0; carry_delta_name_on(GPU, m) != NULL; m++) {
            device_plan on;
            if (open_plan(&d, &on, carry_delta_name_on(GPU, m))) {
                args = forward_args(&d, d.there);
                poison(&d);
                assert_ok(ctx, carry_delta_forward(on.plan, &args, on.workspace, on.forward));
                fetch(&d, SNAPSHOTS);
                compare(&d, carry_delta_name_on(GPU, m), SNAPSHOTS, wanted, 2e-5);
                close_plan(&d, &on);
            }
        }
        free(workspace);
        free(wanted);
        carry_delta_plan_free(cpu);
        discard(&d);
    }
    carry_ctx_free(ctx);
}

/* M S + L of the initial state is the final one. */
static void a_range_is_its_pair(void **unused) {
    (void)unused;
    enum { K = 40, W = 24 };
    carry_ctx *ctx = support_ctx(2, NULL, NULL);
    for (int gate = 0; gate < 3; gate++) {
        data d = make(ctx,
                      (carry_delta_problem){.batch = 2,
                                            .tokens = 70,
                                            .heads = 1,
                                            .value_heads = 2,
                                            .key = K,
                                            .value = W,
                                            .gate = (carry_delta_gate)gate,
                                            .l2norm = true},
                      NULL);
        double *o;
        double *final;
        static float here[4 * K * K];
        expected(&d, &o, &final);
        for (int m = 0; carry_delta_name_on(GPU, m) != NULL; m++) {
            device_plan on;
            if (!open_plan(&d, &on, carry_delta_name_on(GPU, m))) {
                continue;
            }
            carry_delta_forward_args args = forward_args(&d, d.there);
            carry_tensor M = carry_view_4d(NULL, CARRY_F32, 2, 2, K, K);
            void *workspace;
            M.device = GPU;
            size_t bytes = carry_delta_range_workspace(on.plan);
            assert_ok(ctx, carry_device_alloc(ctx, &M.data, GPU, sizeof here));
            assert_ok(ctx, carry_device_alloc(ctx, &workspace, GPU, bytes));
            poison(&d);
            assert_ok(ctx, carry_delta_range(on.plan, M, d.there[FINAL], &args, workspace, bytes));
            fetch(&d, FINAL);
            assert_ok(ctx, carry_device_copy(ctx, here, 0, M.data, GPU, sizeof here, NULL));
            const float *S = d.here[INITIAL].data;
            float *L = d.here[FINAL].data;
            for (int64_t i = 0; i < 4 * K * W; i++) {
                int64_t state = i / (K * W);
                double sum = (double)L[i];
                for (int64_t j = 0; j < K; j++) {
                    sum += (double)here[(state * K + i / W % K) * K + j] * (double)S[(state * K + j) * W + i % W];
                }
                L[i] = (float)sum;
            }
            compare(&d, carry_delta_name_on(GPU, m), FINAL, final, 2e-5);
            carry_device_free(ctx, GPU, M.data);
            carry_device_free(ctx, GPU, workspace);
            close_plan(&d, &on);
        }
        free(o);
        free(final);
        discard(&d);
    }
    carry_ctx_free(ctx);
}

/* One token by carry_delta_step is one token of the recurrence, in place; and by a forward pass, which leaves the first
   state as it is. */
static void a_step_is_one_token(void **unused) {
    (void)unused;
    static const int64_t shapes[][5] = {{3, 2, 4, 128, 128}, {2, 1, 1, 33, 31}, {2, 1, 3, 256, 60},
                                        {5, 2, 2, 64, 64},   {1, 1, 2, 7, 4},   {2, 1, 1, 200, 256}};
    carry_ctx *ctx = support_ctx(2, NULL, NULL);
    for (size_t form = 0; form < 36; form++) {
        const int64_t *s = shapes[form % 6];
        data d = make(ctx,
                      (carry_delta_problem){.batch = s[0],
                                            .tokens = 1,
                                            .heads = s[1],
                                            .value_heads = s[2],
                                            .key = s[3],
                                            .value = s[4],
                                            .dtype = (carry_dtype)(form % 3),
                                            .gate = (carry_delta_gate)(form / 6 % 3),
                                            .gate_inside = form / 6 % 3 == 1 && form % 2 == 0,
                                            .beta_sigmoid = form % 2 == 1,
                                            .l2norm = form % 4 < 2,
                                            .state_transposed = form >= 18},
                      NULL);
        double *o;
        double *final;
        expected(&d, &o, &final);
        for (int m = 0; carry_delta_name_on(GPU, m) != NULL; m++) {
            device_plan on;
            if (!open_plan(&d, &on, carry_delta_name_on(GPU, m))) {
                continue;
            }
            carry_delta_forward_args args = forward_args(&d, d.there);
            poison(&d);
            memcpy(d.here[FINAL].data, d.here[INITIAL].data, bytes_of(&d.here[FINAL]));
            send(&d, FINAL);
            assert_ok(ctx, carry_delta_step(on.plan, d.there[O], d.there[FINAL], &args, on.workspace, on.forward));
            fetch(&d, O);
            fetch(&d, FINAL);
            compare(&d, carry_delta_name_on(GPU, m), O, o, 2e-5);
            compare(&d, carry_delta_name_on(GPU, m), FINAL, final, 2e-5);
            poison(&d);
            assert_ok(ctx, carry_delta_forward(on.plan, &args, on.workspace, on.forward));
            fetch(&d, O);
            fetch(&d, FINAL);
            compare(&d, carry_delta_name_on(GPU, m), O, o, d.p.dtype == CARRY_BF16 ? 1e-2 : 2e-5);
            compare(&d, carry_delta_name_on(GPU, m), FINAL, final, d.p.dtype == CARRY_BF16 ? 1e-2 : 2e-5);
            close_plan(&d, &on);
        }
        free(o);
        free(final);
        discard(&d);
    }
    carry_ctx_free(ctx);
}

/* The same bits in every run; and with q, k and v as parts of one wider row. */
static void runs_and_strides_do_not_matter(void **unused) {
    (void)unused;
    carry_ctx *ctx = support_ctx(2, NULL, NULL);
    data d = make(ctx,
                  (carry_delta_problem){.batch = 2,
                                        .tokens = 100,
                                        .heads = 2,
                                        .value_heads = 4,
                                        .key = 128,
                                        .value = 128,
                                        .dtype = CARRY_BF16,
                                        .gate = CARRY_DELTA_HEAD_GATE,
                                        .l2norm = true},
                  NULL);
    int64_t q_row = d.p.heads * d.p.key;
    int64_t v_row = d.p.value_heads * d.p.value;
    carry_tensor wide = carry_view_3d(NULL, CARRY_BF16, d.p.batch, d.p.tokens, 2 * q_row + v_row);
    uint16_t *mixed = malloc(bytes_of(&wide));
    assert_non_null(mixed);
    for (int64_t i = 0; i < d.p.batch * d.p.tokens; i++) {
        uint16_t *row = mixed + i * (2 * q_row + v_row);
        memcpy(row, (uint16_t *)d.here[Q].data + i * q_row, (size_t)q_row * 2);
        memcpy(row + q_row, (uint16_t *)d.here[KEY].data + i * q_row, (size_t)q_row * 2);
        memcpy(row + 2 * q_row, (uint16_t *)d.here[V].data + i * v_row, (size_t)v_row * 2);
    }
    assert_ok(ctx, carry_device_alloc(ctx, &wide.data, GPU, bytes_of(&wide)));
    assert_ok(ctx, carry_device_copy(ctx, wide.data, GPU, mixed, 0, bytes_of(&wide), NULL));
    carry_tensor strided[ALL];
    memcpy(strided, d.there, sizeof strided);
    const int parts[] = {Q, KEY, V};
    for (int i = 0; i < 3; i++) {
        strided[parts[i]].data = (uint16_t *)wide.data + i * q_row;
        strided[parts[i]].stride[0] = wide.stride[0];
        strided[parts[i]].stride[1] = wide.stride[1];
    }
    for (int m = 0; carry_delta_name_on(GPU, m) != NULL; m++) {
        device_plan on;
        void *first[ALL] = {NULL};
        if (!open_plan(&d, &on, carry_delta_name_on(GPU, m))) {
            continue;
        }
        for (int run = 0; run < REPEATS; run++) {
            carry_delta_forward_args args = forward_args(&d, run == 1 ? strided : d.there);
            args.kept = on.kept;
            carry_delta_backward_args back = backward_args(&d, run == 1 ? strided : d.there, on.kept);
            poison(&d);
            assert_ok(ctx, carry_delta_forward(on.plan, &args, on.workspace, on.forward));
            assert_ok(ctx, carry_delta_backward(on.plan, &back, on.workspace, on.backward));
            for (int i = O; i <= DINITIAL; i++) {
                fetch(&d, i);
                if (run == 0) {
                    first[i] = malloc(bytes_of(&d.here[i]));
                    assert_non_null(first[i]);
                    memcpy(first[i], d.here[i].data, bytes_of(&d.here[i]));
                } else if (memcmp(first[i], d.here[i].data, bytes_of(&d.here[i])) != 0) {
                    fail_msg("%s by %s has other bits in run %d", names[i], carry_delta_name_on(GPU, m), run);
                }
            }
        }
        for (int i = 0; i < ALL; i++) {
            free(first[i]);
        }
        close_plan(&d, &on);
    }
    carry_device_free(ctx, GPU, wide.data);
    free(mixed);
    discard(&d);
    carry_ctx_free(ctx);
}

static void bad_input_is_refused_by_name(void **unused) {
    (void)unused;
    static const int64_t borders[] = {0, 20, 40};
    carry_ctx *ctx = support_ctx(2, NULL, NULL);
    data d = make(ctx,
                  (carry_delta_problem){.batch = 1,
                                        .tokens = 40,
                                        .sequences = 2,
                                        .heads = 1,
                                        .value_heads = 2,
                                        .key = 16,
                                        .value = 16,
                                        .gate = CARRY_DELTA_HEAD_GATE},
                  borders);
    carry_delta_plan *none;
    carry_delta_problem p = d.p;
    p.device = 99;
    assert_refused(ctx, CARRY_EDEVICE, "there is no device 99", carry_delta_plan_new(ctx, &none, &p, NULL));
    assert_refused(ctx, CARRY_ENOTFOUND, "on GPUs: choose one of recurrent",
                   carry_delta_plan_new(ctx, &none, &d.p, &(carry_delta_options){.method = "chunk7"}));
    assert_refused(ctx, CARRY_EUNSUPPORTED, "chunk16 is for the CPU",
                   carry_delta_plan_new(ctx, &none, &d.p, &(carry_delta_options){.method = "chunk16"}));
    device_plan on;
    assert_true(open_plan(&d, &on, "recurrent"));
    carry_delta_forward_args args = forward_args(&d, d.there);
    args.k = d.here[KEY];
    assert_refused(ctx, CARRY_EDEVICE, "k is on device 0 and the problem is planned for device 1",
                   carry_delta_forward(on.plan, &args, on.workspace, on.forward));
    args.k.device = GPU; /* it says so, and is not */
    assert_refused(ctx, CARRY_EDEVICE, "k", carry_delta_forward(on.plan, &args, on.workspace, on.forward));
    args = forward_args(&d, d.there);
    assert_refused(ctx, CARRY_EDEVICE, "the workspace",
                   carry_delta_forward(on.plan, &args, d.here[O].data, on.forward));
    assert_refused(ctx, CARRY_EWORKSPACE, "the plan needs",
                   carry_delta_forward(on.plan, &args, on.workspace, on.forward - 1));
    args.kept = (char *)on.kept + 4;
    assert_refused(ctx, CARRY_EALIGN, "not a multiple of 16",
                   carry_delta_forward(on.plan, &args, on.workspace, on.forward));
    args.kept = NULL;
    carry_tensor elsewhere = d.cu_seqlens;
    elsewhere.device = GPU;
    args.cu_seqlens = elsewhere;
    assert_refused(ctx, CARRY_EDTYPE, "cu_seqlens must be packed i64 on the CPU",
                   carry_delta_forward(on.plan, &args, on.workspace, on.forward));
    close_plan(&d, &on);
    discard(&d);
    carry_ctx_free(ctx);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_method_equals_the_recurrence_for_every_shape),
        cmocka_unit_test(options_inside_the_rule_equal_the_recurrence),
        cmocka_unit_test(packed_sequences_do_not_leak),
        cmocka_unit_test(extreme_gates_and_betas_are_right),
        cmocka_unit_test(snapshots_are_those_of_the_cpu),
        cmocka_unit_test(a_range_is_its_pair),
        cmocka_unit_test(a_step_is_one_token),
        cmocka_unit_test(runs_and_strides_do_not_matter),
        cmocka_unit_test(bad_input_is_refused_by_name),
    };
    if (no_gpu()) {
        return 77;
    }
    return cmocka_run_group_tests_name("delta/gpu", tests, NULL, NULL);
}
