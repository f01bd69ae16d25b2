/* Shared by the tests of the gated delta rule on a GPU: a problem's tensors on the CPU and on the GPU, their expected
   values, and plans of every method. */
#ifndef CARRY_TESTS_DELTA_GPU_SUPPORT_H
#define CARRY_TESTS_DELTA_GPU_SUPPORT_H

#include <math.h>

#include "core/tensor.h"
#include "support.h"

#define GPU 1

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

static inline bool no_gpu(void) {
    if (carry_device_count() > 1 && carry_delta_name(GPU, 0) != NULL) {
        return false;
    }
    (void)printf("skipped: there is no GPU here, or this build has no delta rule for it\n");
    return true;
}

static inline size_t bytes_of(const carry_tensor *t) {
    return (size_t)carry_tensor_count(t) * carry_dtype_size(t->dtype);
}

static inline carry_tensor shape_of(const data *d, int which) {
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

static inline void send(const data *d, int which) {
    size_t bytes = bytes_of(&d->here[which]);
    assert_ok(d->ctx, carry_device_copy(d->ctx, d->there[which].data, GPU, d->here[which].data, 0, bytes, NULL));
    assert_ok(d->ctx, carry_stream_wait(d->ctx, GPU, NULL));
}

static inline void fetch(const data *d, int which) {
    size_t bytes = bytes_of(&d->here[which]);
    assert_ok(d->ctx, carry_stream_wait(d->ctx, GPU, NULL));
    assert_ok(d->ctx, carry_device_copy(d->ctx, d->here[which].data, 0, d->there[which].data, GPU, bytes, NULL));
}

static inline data make(carry_ctx *ctx, carry_delta_problem p, const int64_t *borders) {
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

static inline void discard(data *d) {
    for (int i = 0; i < ALL; i++) {
        free(d->here[i].data);
        carry_device_free(d->ctx, GPU, d->there[i].data);
    }
}

static inline carry_delta_forward_args forward_args(const data *d, const carry_tensor t[ALL]) {
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

static inline carry_delta_backward_args backward_args(const data *d, const carry_tensor t[ALL], const void *kept) {
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

/* Compares relative to the largest element: f32 sums of at most K + V + 64 terms, some hundred roundings of 2^-24, and
   the rounding of the result's type. Methods on tensor cores also round factors to the inputs' type. The tolerance is
   far below the effect of a wrong index. */
static inline void compare(const data *d, const char *method, int which, const double *wanted, double tolerance) {
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

/* The results of the float64 recurrence, with states in the layout of the tensors. */
static inline void expected(const data *d, double **o, double **final) {
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

/* False if the method does not support this problem. */
static inline bool open_plan(const data *d, device_plan *made, const char *method) {
    carry_status status = carry_delta_plan_new(
        d->ctx, &made->plan, &d->p, &(carry_delta_options){CARRY_INIT(carry_delta_options), .algorithm = method});
    if (status == CARRY_EUNSUPPORTED) {
        return false;
    }
    assert_ok(d->ctx, status);
    made->forward = carry_delta_forward_workspace(made->plan);
    made->backward = carry_delta_backward_workspace(made->plan);
    size_t most = made->forward > made->backward ? made->forward : made->backward;
    assert_ok(d->ctx, carry_device_alloc(d->ctx, &made->workspace, GPU, most));
    assert_ok(d->ctx, carry_device_alloc(d->ctx, &made->kept, GPU, carry_delta_kept_bytes(made->plan)));
    assert_ok(d->ctx, carry_device_fill(d->ctx, made->workspace, GPU, 0xff, most, NULL));
    assert_ok(d->ctx, carry_device_fill(d->ctx, made->kept, GPU, 0xff, carry_delta_kept_bytes(made->plan), NULL));
    assert_ok(d->ctx, carry_stream_wait(d->ctx, GPU, NULL));
    return true;
}

static inline void close_plan(const data *d, device_plan *made) {
    carry_device_free(d->ctx, GPU, made->workspace);
    carry_device_free(d->ctx, GPU, made->kept);
    carry_delta_plan_free(made->plan);
}

static inline void poison(const data *d) {
    for (int i = READ; i < ALL; i++) {
        assert_ok(d->ctx, carry_device_fill(d->ctx, d->there[i].data, GPU, 0xff, bytes_of(&d->there[i]), NULL));
    }
    assert_ok(d->ctx, carry_stream_wait(d->ctx, GPU, NULL));
}

/* Gradients of the CPU in float64; false if the CPU has no backward pass for the problem. */
static inline bool gradients_of_cpu(const data *d, double *wanted[ALL]) {
    carry_delta_plan *plan;
    carry_delta_problem p = d->p;
    p.device = 0;
    p.snapshot_every = p.snapshot_last = 0;
    assert_ok(d->ctx,
              carry_delta_plan_new(d->ctx, &plan, &p,
                                   &(carry_delta_options){CARRY_INIT(carry_delta_options), .algorithm = "chunk64"}));
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

static inline void compare_gradients(const data *d, const char *method, double *const wanted[ALL]) {
    for (int i = DQ; i < ALL; i++) {
        if ((i == DG && d->p.gate == CARRY_DELTA_NO_GATE) || (i >= DA_LOG && !d->p.gate_inside)) {
            continue;
        }
        fetch(d, i);
        compare(d, method, i, wanted[i], 2e-4);
    }
}

/* Runs forward, backward with the memory that forward kept, and backward without it, by every method of the GPU. */
static inline void check_methods(data *d) {
    double *o;
    double *final;
    double *wanted[ALL] = {NULL};
    int done = 0;
    expected(d, &o, &final);
    bool gradients = gradients_of_cpu(d, wanted);
    for (int m = 0; carry_delta_name(GPU, m) != NULL; m++) {
        const char *method = carry_delta_name(GPU, m);
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

#endif
