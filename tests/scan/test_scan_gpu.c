/* Every scan of a GPU, against the float64 recurrence: odd sizes, both kinds, every storage type, both directions, with
   and without an initial state; the same bits in a hundred runs; gradients as on the CPU; host pointers refused with an
   error message. Without a GPU all of it is reported as skipped. An emulated GPU (tests/emulate) runs fewer and smaller
   sizes, since it does thousands of operations where a GPU does one. */
/* labels: gpu */
#include <math.h>

#include "support.h"

#define GPU 1
#define REPEATS 100

typedef struct side {
    carry_tensor A, b, h, h0;
} side;

typedef struct data {
    carry_scan_problem problem;
    side here, there;
    double *expected;
} data;

static bool no_gpu(void) {
    if (carry_device_count() > 1 && carry_scan_name(GPU, 0) != NULL) {
        return false;
    }
    (void)printf("skipped: there is no GPU here, or this build has no scans for it\n");
    return true;
}

static bool is_emulated(carry_ctx *ctx) {
    carry_device_properties properties = {CARRY_INIT(carry_device_properties)};
    assert_ok(ctx, carry_device_properties_of(ctx, &properties, GPU));
    return strstr(properties.name, "emulated") != NULL;
}

static size_t bytes_of(const carry_tensor *t) {
    size_t count = 1;
    for (int i = 0; i < t->rank; i++) {
        count *= (size_t)t->shape[i];
    }
    return count * carry_dtype_size(t->dtype);
}

static carry_tensor make(carry_ctx *ctx, carry_tensor *there, carry_dtype dtype, int rank, const int64_t *shape) {
    carry_tensor here = carry_view(NULL, dtype, rank, shape);
    here.data = malloc(bytes_of(&here));
    assert_non_null(here.data);
    *there = here;
    there->device = GPU;
    assert_ok(ctx, carry_device_alloc(ctx, &there->data, GPU, bytes_of(&here)));
    return here;
}

static void send(carry_ctx *ctx, const carry_tensor *there, const carry_tensor *here) {
    assert_ok(ctx, carry_device_copy(ctx, there->data, GPU, here->data, 0, bytes_of(here), NULL));
    assert_ok(ctx, carry_stream_wait(ctx, GPU, NULL));
}

static void fetch(carry_ctx *ctx, const carry_tensor *here, const carry_tensor *there) {
    assert_ok(ctx, carry_stream_wait(ctx, GPU, NULL));
    assert_ok(ctx, carry_device_copy(ctx, here->data, 0, there->data, GPU, bytes_of(here), NULL));
}

static data make_data(carry_ctx *ctx, carry_scan_problem p, bool with_h0) {
    data d = {.problem = p};
    bool dense = p.kind == CARRY_SCAN_DENSE;
    const int64_t A[] = {p.batch, p.steps, p.n, p.n};
    const int64_t b[] = {p.batch, p.steps, p.n, p.width};
    const int64_t state[] = {p.batch, p.n, p.width};
    d.here.A = make(ctx, &d.there.A, p.dtype, dense ? 4 : 3, A);
    d.here.b = make(ctx, &d.there.b, p.dtype, 4, b);
    d.here.h = make(ctx, &d.there.h, p.f32_result ? CARRY_F32 : p.dtype, 4, b);
    d.here.h0 = make(ctx, &d.there.h0, p.dtype, 3, state);
    float spread = dense ? 0.78f / sqrtf((float)p.n) : 1.0f;
    assert_ok(ctx, carry_random_uniform(ctx, d.here.A, 7, 0, dense ? -spread : 0.8f, spread));
    assert_ok(ctx, carry_random_normal(ctx, d.here.b, 7, 1, 0.0f, 0.1f));
    assert_ok(ctx, carry_random_normal(ctx, d.here.h0, 7, 2, 0.0f, 1.0f));
    send(ctx, &d.there.A, &d.here.A);
    send(ctx, &d.there.b, &d.here.b);
    send(ctx, &d.there.h0, &d.here.h0);
    d.expected = calloc((size_t)(p.batch * p.steps * p.n * p.width), sizeof(double));
    assert_non_null(d.expected);
    carry_scan_problem on_cpu = p;
    on_cpu.device = 0;
    assert_ok(ctx,
              carry_scan_reference(
                  ctx, d.expected, &on_cpu,
                  &(carry_scan_args){.A = d.here.A, .b = d.here.b, .h0 = with_h0 ? d.here.h0 : (carry_tensor){0}}));
    return d;
}

static void discard(carry_ctx *ctx, data *d) {
    const carry_tensor *const here[] = {&d->here.A, &d->here.b, &d->here.h, &d->here.h0};
    const carry_tensor *const there[] = {&d->there.A, &d->there.b, &d->there.h, &d->there.h0};
    for (int i = 0; i < 4; i++) {
        free(here[i]->data);
        carry_device_free(ctx, GPU, there[i]->data);
    }
    free(d->expected);
}

static double element(const carry_tensor *t, int64_t i) {
    const uint16_t *halves = t->data;
    return t->dtype == CARRY_F32    ? (double)((const float *)t->data)[i]
           : t->dtype == CARRY_BF16 ? (double)carry_f32_from_bf16(halves[i])
                                    : (double)carry_f32_from_f16(halves[i]);
}

/* As in test_scan_algorithms.c. A GPU also stores the products of dense transitions in their own type, so every level
   of a tree adds a rounding of that type. */
static double bound_of(const data *d) {
    const carry_scan_problem *p = &d->problem;
    bool dense = p->kind == CARRY_SCAN_DENSE;
    double length = dense ? (double)p->n + 2.0 : 3.0;
    double spread = dense ? fmax(1.0, 0.4 * sqrt((double)p->n)) : 1.0;
    double levels = 2.0 * log2((double)p->steps) + 1.0;
    double sums = 0x1p-24 * length * spread * (fmin((double)p->steps, 32.0) + levels);
    double unit = p->dtype == CARRY_BF16 ? 0x1p-8 : p->dtype == CARRY_F16 ? 0x1p-11 : 0.0;
    return sums + (dense ? unit * levels : 0.0) + (d->here.h.dtype == CARRY_F32 ? 0.0 : unit);
}

static void compare(const data *d, const char *name) {
    const carry_scan_problem *p = &d->problem;
    int64_t count = p->batch * p->steps * p->n * p->width;
    double largest = 0.0;
    for (int64_t i = 0; i < count; i++) {
        largest = fmax(largest, fabs(d->expected[i]));
    }
    for (int64_t i = 0; i < count; i++) {
        double difference = fabs(element(&d->here.h, i) - d->expected[i]);
        if (!(difference <= bound_of(d) * largest)) {
            fail_msg("%s %s %s b%lld t%lld n%lld w%lld%s: element %lld is %g and should be %g", name,
                     p->kind == CARRY_SCAN_DENSE ? "dense" : "diagonal", carry_dtype_name(p->dtype),
                     (long long)p->batch, (long long)p->steps, (long long)p->n, (long long)p->width,
                     p->reversed ? " reversed" : "", (long long)i, element(&d->here.h, i), d->expected[i]);
        }
    }
}

/* False if the algorithm does not support the shape. */
static bool run(carry_ctx *ctx, data *d, const char *name, bool with_h0) {
    carry_scan_plan *plan;
    void *workspace;
    carry_status status = carry_scan_plan_new(ctx, &plan, &d->problem,
                                              &(carry_scan_options){CARRY_INIT(carry_scan_options), .algorithm = name});
    if (status == CARRY_EUNSUPPORTED) {
        assert_true(strlen(carry_ctx_error(ctx)) > 20); /* and says why */
        return false;
    }
    assert_ok(ctx, status);
    assert_ok(ctx, carry_device_alloc(ctx, &workspace, GPU, carry_scan_run_workspace(plan)));
    assert_ok(ctx, carry_device_fill(ctx, workspace, GPU, 0xff, carry_scan_run_workspace(plan), NULL));
    memset(d->here.h.data, 0xff, bytes_of(&d->here.h));
    send(ctx, &d->there.h, &d->here.h);
    assert_ok(ctx, carry_scan_run(plan,
                                  &(carry_scan_args){.h = d->there.h,
                                                     .A = d->there.A,
                                                     .b = d->there.b,
                                                     .h0 = with_h0 ? d->there.h0 : (carry_tensor){0}},
                                  workspace, carry_scan_run_workspace(plan)));
    fetch(ctx, &d->here.h, &d->there.h);
    carry_device_free(ctx, GPU, workspace);
    carry_scan_plan_free(plan);
    return true;
}

static void check_all(carry_ctx *ctx, carry_scan_problem p, bool with_h0) {
    data d = make_data(ctx, p, with_h0);
    int ran = 0;
    for (int i = 0; carry_scan_name(GPU, i) != NULL; i++) {
        if (run(ctx, &d, carry_scan_name(GPU, i), with_h0)) {
            compare(&d, carry_scan_name(GPU, i));
            ran++;
        }
    }
    assert_true(ran > 0);
    discard(ctx, &d);
}

static void every_algorithm_matches_the_reference(void **unused) {
    (void)unused;
    static const int64_t shapes[][4] = {
        {1, 1, 1, 1},     {2, 7, 3, 5},      {1, 17, 2, 8},     {2, 33, 5, 2},   {1, 45, 32, 32}, {1, 257, 2, 24},
        {3, 65, 17, 9},   {1, 127, 16, 64},  {2, 257, 16, 8},   {1, 1000, 4, 1}, {5, 33, 33, 2},  {1, 128, 8, 16},
        {70, 16, 16, 64}, {1, 600, 3, 48},   {1, 1500, 128, 1}, {3, 70, 128, 1}, {1, 300, 2, 64}, {2, 130, 32, 32},
        {1, 70, 64, 64},  {1, 40, 128, 128}, {1, 50, 20, 12},   {1, 65, 30, 32}};
    enum { SMALL = 6 }; /* the first ones */
    if (no_gpu()) {
        skip();
    }
    carry_ctx *ctx = support_ctx(2, NULL, NULL);
    size_t count = is_emulated(ctx) ? SMALL : sizeof shapes / sizeof shapes[0];
    for (size_t i = 0; i < count; i++) {
        for (int form = 0; form < 24; form++) {
            carry_scan_problem p = {.kind = (carry_scan_kind)(form & 1),
                                    .batch = shapes[i][0],
                                    .steps = shapes[i][1],
                                    .n = shapes[i][2],
                                    .width = shapes[i][3],
                                    .dtype = (carry_dtype)(form / 8),
                                    .reversed = (form & 2) != 0,
                                    .f32_result = (form & 4) != 0,
                                    .device = GPU};
            check_all(ctx, p, (form & 2) == 0);
        }
    }
    carry_ctx_free(ctx);
}

static void a_hundred_runs_give_the_same_bits(void **unused) {
    (void)unused;
    if (no_gpu()) {
        skip();
    }
    carry_ctx *ctx = support_ctx(2, NULL, NULL);
    bool few = is_emulated(ctx);
    int repeats = few ? 2 : REPEATS;
    for (int kind = 0; kind < 2; kind++) {
        carry_scan_problem p = {.kind = (carry_scan_kind)kind,
                                .batch = 2,
                                .steps = few         ? 40
                                         : kind == 0 ? 5000
                                                     : 300,
                                .n = 16,
                                .width = kind == 0 ? 8 : 1,
                                .dtype = kind == 0 ? CARRY_F32 : CARRY_F16,
                                .device = GPU};
        data d = make_data(ctx, p, true);
        size_t bytes = bytes_of(&d.here.h);
        void *first = malloc(bytes);
        assert_non_null(first);
        for (int i = 0; carry_scan_name(GPU, i) != NULL; i++) {
            for (int repeat = 0; repeat < repeats && run(ctx, &d, carry_scan_name(GPU, i), true); repeat++) {
                if (repeat == 0) {
                    memcpy(first, d.here.h.data, bytes);
                } else if (memcmp(first, d.here.h.data, bytes) != 0) {
                    fail_msg("%s gives other bits in run %d", carry_scan_name(GPU, i), repeat);
                }
            }
        }
        free(first);
        discard(ctx, &d);
    }
    carry_ctx_free(ctx);
}

/* Sets element i to `value`, on the host and on the device. */
static void spoil(carry_ctx *ctx, const carry_tensor *here, const carry_tensor *there, int64_t i, float value) {
    if (here->dtype == CARRY_F32) {
        ((float *)here->data)[i] = value;
    } else {
        ((uint16_t *)here->data)[i] =
            here->dtype == CARRY_BF16 ? carry_bf16_from_f32(value) : carry_f16_from_f32(value);
    }
    send(ctx, there, here);
}

/* d->expected belongs to finite inputs. Then one value of item 0 at step t was changed: row r and column 0 of b, or row
   r of A. The result at row r from t on must not be finite where the change reaches it; all results that it cannot
   reach are as expected. */
static void compare_spoilt(const data *d, const char *name, int64_t t, int64_t r, bool is_b, float value) {
    const carry_scan_problem *p = &d->problem;
    double largest = 0.0;
    for (int64_t i = 0; i < p->batch * p->steps * p->n * p->width; i++) {
        largest = fmax(largest, fabs(d->expected[i]));
    }
    for (int64_t i = 0; i < p->batch * p->steps * p->n * p->width; i++) {
        int64_t column = i % p->width;
        int64_t row = i / p->width % p->n;
        int64_t step = i / (p->width * p->n) % p->steps;
        bool later = i < p->steps * p->n * p->width && (p->reversed ? step <= t : step >= t);
        bool reached = later && (!is_b || column == 0) && (row == r || (p->kind == CARRY_SCAN_DENSE && step != t));
        double h = element(&d->here.h, i);
        bool right = reached ? row != r || !isfinite(h) : fabs(h - d->expected[i]) <= bound_of(d) * largest;
        if (!right) {
            fail_msg(
                "%s %s %s b%lld t%lld n%lld w%lld: %s at step %lld is %g: step %lld row %lld column %lld is %g, of "
                "finite inputs %g",
                name, p->kind == CARRY_SCAN_DENSE ? "dense" : "diagonal", carry_dtype_name(p->dtype),
                (long long)p->batch, (long long)p->steps, (long long)p->n, (long long)p->width, is_b ? "b" : "A",
                (long long)t, (double)value, (long long)step, (long long)row, (long long)column, h, d->expected[i]);
        }
    }
}

/* A NaN or an infinity reaches only later steps, never an earlier step, another sequence or another channel. */
static void a_nan_reaches_what_follows_it_alone(void **unused) {
    (void)unused;
    static const int64_t shapes[][4] = {{2, 70, 3, 5}, {2, 300, 2, 24}, {1, 90, 70, 64}, {3, 40, 5, 1}, {2, 40, 20, 2}};
    static const float values[] = {NAN, INFINITY};
    if (no_gpu()) {
        skip();
    }
    carry_ctx *ctx = support_ctx(2, NULL, NULL);
    for (int form = 0; form < 60; form++) {
        const int64_t *shape = shapes[form / 12];
        carry_scan_problem p = {.kind = (carry_scan_kind)(form / 12 >= 3),
                                .batch = shape[0],
                                .steps = shape[1],
                                .n = shape[2],
                                .width = shape[3],
                                .dtype = (carry_dtype)(form % 3),
                                .reversed = form / 3 % 2 != 0,
                                .device = GPU};
        bool is_b = form / 6 % 2 == 0;
        float value = values[form % 2];
        int64_t t = form % 3 == 0 ? p.steps / 2 + 3 : form % 3 == 1 ? p.steps - 1 : 21;
        int64_t r = p.n - 1;
        data d = make_data(ctx, p, form % 2 == 0);
        const side *here = &d.here;
        int64_t row = t * p.n + r;
        if (is_b) {
            spoil(ctx, &here->b, &d.there.b, row * p.width, value);
        } else {
            spoil(ctx, &here->A, &d.there.A, p.kind == CARRY_SCAN_DENSE ? row * p.n : row, value);
        }
        for (int i = 0; carry_scan_name(GPU, i) != NULL; i++) {
            if (run(ctx, &d, carry_scan_name(GPU, i), form % 2 == 0)) {
                compare_spoilt(&d, carry_scan_name(GPU, i), t, r, is_b, value);
            }
        }
        discard(ctx, &d);
    }
    carry_ctx_free(ctx);
}

static void host_pointers_and_absent_memory_are_refused_and_leave_it_usable(void **unused) {
    (void)unused;
    if (no_gpu()) {
        skip();
    }
    carry_ctx *ctx = support_ctx(1, NULL, NULL);
    carry_scan_problem p = {.batch = 1, .steps = 16, .n = 4, .width = 2, .device = GPU};
    data d = make_data(ctx, p, false);
    carry_scan_plan *plan;
    carry_tensor lying = d.here.A;
    lying.device = GPU;
    assert_ok(ctx,
              carry_scan_plan_new(ctx, &plan, &p,
                                  &(carry_scan_options){CARRY_INIT(carry_scan_options), .algorithm = "sequential"}));
    assert_refused(ctx, CARRY_EDEVICE, "host memory",
                   carry_scan_run(plan, &(carry_scan_args){.h = d.there.h, .A = lying, .b = d.there.b}, NULL, 0));
    assert_refused(ctx, CARRY_EDEVICE, "device 0",
                   carry_scan_run(plan, &(carry_scan_args){.h = d.there.h, .A = d.here.A, .b = d.there.b}, NULL, 0));
    carry_scan_plan_free(plan);
    void *much;
    assert_refused(ctx, CARRY_EMEMORY, "free", carry_device_alloc(ctx, &much, GPU, (size_t)1 << 45));
    assert_true(run(ctx, &d, "sequential", false));
    compare(&d, "sequential");
    discard(ctx, &d);
    carry_ctx_free(ctx);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_algorithm_matches_the_reference),
        cmocka_unit_test(a_hundred_runs_give_the_same_bits),
        cmocka_unit_test(a_nan_reaches_what_follows_it_alone),
        cmocka_unit_test(host_pointers_and_absent_memory_are_refused_and_leave_it_usable),
    };
    if (no_gpu()) {
        return 77;
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}
