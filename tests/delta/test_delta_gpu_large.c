/* Sizes that need 64-bit offsets and grids beyond 65,535 blocks, on a GPU: one long sequence equals its two halves one
   after the other, and many short packed ones give the same by every method as by the plain one. With less than 60 GB
   of free memory (an emulated GPU) the same with small sizes; without a GPU all of it is skipped. */
/* labels: gpu */
#include <math.h>

#include "core/tensor.h"
#include "support.h"

#define GPU 1

enum { Q, KEY, V, BETA, G, O, INPUTS };

typedef struct data {
    carry_ctx *ctx;
    carry_delta_problem p;
    carry_tensor t[INPUTS], begin, middle, end;
    carry_tensor borders; /* on the CPU */
} data;

static bool is_large(carry_ctx *ctx) {
    void *probe;
    if (carry_device_alloc(ctx, &probe, GPU, (size_t)60 << 30) != CARRY_OK) {
        (void)printf("less than 60 GB are free: small sizes\n");
        return false;
    }
    carry_device_free(ctx, GPU, probe);
    (void)printf("60 GB are free: large sizes\n");
    return true;
}

static size_t bytes_of(const carry_tensor *t) {
    return (size_t)carry_tensor_count(t) * carry_dtype_size(t->dtype);
}

/* Fills the start with random numbers and then repeats them. */
static void fill(const data *d, carry_tensor *t, int which) {
    int64_t count = carry_tensor_count(t);
    int64_t some = count < 1 << 20 ? count : 1 << 20;
    carry_tensor here = carry_view_1d(malloc((size_t)some * sizeof(float)), t->dtype, some);
    assert_non_null(here.data);
    assert_ok(d->ctx, carry_random_normal(d->ctx, here, 3, (uint64_t)which, 0.0f, which >= INPUTS ? 0.1f : 1.0f));
    float *x = here.data;
    for (int64_t i = 0; (which == BETA || which == G) && i < some; i++) {
        x[i] = which == BETA ? 1.0f / (1.0f + expf(-x[i])) : -0.02f * fabsf(x[i]);
    }
    t->device = GPU;
    size_t size = carry_dtype_size(t->dtype);
    assert_ok(d->ctx, carry_device_alloc(d->ctx, &t->data, GPU, bytes_of(t)));
    for (int64_t i = 0; which != O && i < count; i += some) {
        int64_t left = count - i < some ? count - i : some;
        assert_ok(d->ctx, carry_device_copy(d->ctx, (char *)t->data + (size_t)i * size, GPU, here.data, 0,
                                            (size_t)left * size, NULL));
    }
    assert_ok(d->ctx, carry_stream_wait(d->ctx, GPU, NULL));
    free(here.data);
}

static data make(carry_ctx *ctx, carry_delta_problem p, const int64_t *borders) {
    data d = {.ctx = ctx, .p = p};
    int64_t sequences = p.sequences > 0 ? p.sequences : p.batch;
    d.p.device = GPU;
    d.t[Q] = d.t[KEY] = carry_view_4d(NULL, p.dtype, p.batch, p.tokens, p.heads, p.key);
    d.t[V] = d.t[O] = carry_view_4d(NULL, p.dtype, p.batch, p.tokens, p.value_heads, p.value);
    d.t[BETA] = d.t[G] = carry_view_3d(NULL, CARRY_F32, p.batch, p.tokens, p.value_heads);
    for (int i = 0; i < INPUTS; i++) {
        fill(&d, &d.t[i], i);
    }
    d.begin = d.middle = d.end = carry_view_4d(NULL, CARRY_F32, sequences, p.value_heads, p.key, p.value);
    fill(&d, &d.begin, INPUTS);
    fill(&d, &d.middle, INPUTS + 1);
    fill(&d, &d.end, INPUTS + 2);
    d.borders = carry_view_1d((void *)(uintptr_t)borders, CARRY_I64, sequences + 1);
    return d;
}

static void discard(data *d) {
    for (int i = 0; i < INPUTS; i++) {
        carry_device_free(d->ctx, GPU, d->t[i].data);
    }
    carry_device_free(d->ctx, GPU, d->begin.data);
    carry_device_free(d->ctx, GPU, d->middle.data);
    carry_device_free(d->ctx, GPU, d->end.data);
}

/* Runs forward over tokens [first, first + count); false if the method does not support the problem. */
static bool forward(data *d, const char *method, int64_t first, int64_t count, const carry_tensor *from,
                    const carry_tensor *to) {
    carry_delta_problem p = d->p;
    carry_delta_plan *plan;
    void *workspace;
    p.tokens = count;
    carry_status status = carry_delta_plan_new(
        d->ctx, &plan, &p, &(carry_delta_options){CARRY_INIT(carry_delta_options), .algorithm = method});
    if (status == CARRY_EUNSUPPORTED) {
        return false;
    }
    assert_ok(d->ctx, status);
    carry_tensor t[INPUTS];
    for (int i = 0; i < INPUTS; i++) {
        t[i] = d->t[i];
        t[i].shape[1] = count;
        t[i].data = (char *)t[i].data + (size_t)(first * t[i].stride[1]) * carry_dtype_size(t[i].dtype);
    }
    carry_delta_forward_args args = {.o = t[O],
                                     .final_state = to != NULL ? *to : (carry_tensor){0},
                                     .q = t[Q],
                                     .k = t[KEY],
                                     .v = t[V],
                                     .beta = t[BETA],
                                     .g = t[G],
                                     .initial_state = from != NULL ? *from : (carry_tensor){0},
                                     .cu_seqlens = p.sequences > 0 ? d->borders : (carry_tensor){0}};
    size_t bytes = carry_delta_forward_workspace(plan);
    assert_ok(d->ctx, carry_device_alloc(d->ctx, &workspace, GPU, bytes));
    assert_ok(d->ctx, carry_delta_forward(plan, &args, workspace, bytes));
    assert_ok(d->ctx, carry_stream_wait(d->ctx, GPU, NULL));
    carry_device_free(d->ctx, GPU, workspace);
    carry_delta_plan_free(plan);
    return true;
}

/* The last `count` elements of a tensor. */
static void *tail(const data *d, const carry_tensor *t, int64_t count) {
    size_t size = carry_dtype_size(t->dtype);
    size_t bytes = (size_t)count * size;
    void *here = malloc(bytes);
    assert_non_null(here);
    const char *from = (const char *)t->data + bytes_of(t) - bytes;
    assert_ok(d->ctx, carry_device_copy(d->ctx, here, 0, from, GPU, bytes, NULL));
    assert_ok(d->ctx, carry_stream_wait(d->ctx, GPU, NULL));
    return here;
}

static void expect_close(const char *what, const char *method, void *a, void *b, carry_dtype dtype, int64_t count) {
    carry_tensor one = carry_view_1d(a, dtype, count);
    carry_tensor other = carry_view_1d(b, dtype, count);
    double largest = 1e-30;
    for (int64_t i = 0; i < count; i++) {
        double x = fabs(carry_tensor_at(&one, i));
        largest = x > largest ? x : largest;
    }
    assert_true(isfinite(largest));
    for (int64_t i = 0; i < count; i++) {
        double off = fabs(carry_tensor_at(&one, i) - carry_tensor_at(&other, i));
        if (!(off <= 0x1p-5 * largest)) { /* bf16 results of different chunks; a wrong offset gives about 1 */
            fail_msg("%s by %s: element %lld is %g and %g", what, method, (long long)i, carry_tensor_at(&one, i),
                     carry_tensor_at(&other, i));
        }
    }
    free(a);
    free(b);
}

static void a_long_sequence_is_its_two_halves(void **unused) {
    (void)unused;
    carry_ctx *ctx = support_ctx(2, NULL, NULL);
    bool large = is_large(ctx);
    for (int form = 0; form < 2; form++) {
        int64_t size = form == 0 ? 128 : 64;
        int64_t heads = !large ? 2 : form == 0 ? 32 : 64;
        int64_t tokens = large ? 1 << 20 : 256;
        carry_delta_problem p = {.batch = 1,
                                 .tokens = tokens,
                                 .heads = 2,
                                 .value_heads = heads,
                                 .key = size,
                                 .value = size,
                                 .dtype = CARRY_BF16,
                                 .gate = CARRY_DELTA_HEAD_GATE,
                                 .l2norm = true};
        data d = make(ctx, p, NULL);
        int64_t o = heads * size * 64;
        int64_t states = carry_tensor_count(&d.end);
        for (int m = 0; carry_delta_name(GPU, m) != NULL; m++) {
            const char *method = carry_delta_name(GPU, m);
            if (!forward(&d, method, 0, tokens, &d.begin, &d.end)) {
                continue;
            }
            void *whole = tail(&d, &d.t[O], o);
            void *state = tail(&d, &d.end, states);
            assert_true(forward(&d, method, 0, tokens / 2, &d.begin, &d.middle));
            assert_true(forward(&d, method, tokens / 2, tokens / 2, &d.middle, &d.end));
            expect_close("o", method, whole, tail(&d, &d.t[O], o), CARRY_BF16, o);
            expect_close("the state", method, state, tail(&d, &d.end, states), CARRY_F32, states);
        }
        discard(&d);
    }
    carry_ctx_free(ctx);
}

static void many_short_sequences_are_the_plain_methods(void **unused) {
    (void)unused;
    carry_ctx *ctx = support_ctx(2, NULL, NULL);
    bool large = is_large(ctx);
    int64_t sequences = large ? 100000 : 300;
    int64_t *borders = malloc((size_t)(sequences + 1) * sizeof *borders);
    assert_non_null(borders);
    borders[0] = 0;
    for (int64_t i = 0; i < sequences; i++) {
        borders[i + 1] = borders[i] + i % 4; /* every fourth is empty */
    }
    carry_delta_problem p = {.batch = 1,
                             .tokens = borders[sequences],
                             .sequences = sequences,
                             .heads = 1,
                             .value_heads = 2,
                             .key = 32,
                             .value = 32,
                             .dtype = CARRY_BF16,
                             .gate = CARRY_DELTA_HEAD_GATE,
                             .l2norm = true};
    data d = make(ctx, p, borders);
    int64_t o = carry_tensor_count(&d.t[O]);
    int64_t states = carry_tensor_count(&d.end);
    for (int m = 0; carry_delta_name(GPU, m) != NULL; m++) {
        const char *method = carry_delta_name(GPU, m);
        assert_true(forward(&d, "recurrent", 0, p.tokens, &d.begin, &d.end));
        void *plain = tail(&d, &d.t[O], o);
        void *state = tail(&d, &d.end, states);
        if (!forward(&d, method, 0, p.tokens, &d.begin, &d.end)) {
            free(plain);
            free(state);
            continue;
        }
        expect_close("o", method, plain, tail(&d, &d.t[O], o), CARRY_BF16, o);
        expect_close("the state", method, state, tail(&d, &d.end, states), CARRY_F32, states);
    }
    discard(&d);
    free(borders);
    carry_ctx_free(ctx);
}

/* A workspace larger than any GPU is refused with the requested size. */
static void too_much_memory_is_refused_with_its_size(void **unused) {
    (void)unused;
    carry_ctx *ctx = support_ctx(1, NULL, NULL);
    void *none = NULL;
    carry_status status = carry_device_alloc(ctx, &none, GPU, (size_t)1 << 50);
    assert_int_equal(status, CARRY_EMEMORY);
    assert_null(none);
    assert_true(strlen(carry_ctx_error(ctx)) > 0);
    carry_ctx_free(ctx);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_long_sequence_is_its_two_halves),
        cmocka_unit_test(many_short_sequences_are_the_plain_methods),
        cmocka_unit_test(too_much_memory_is_refused_with_its_size),
    };
    if (carry_device_count() < 2 || carry_delta_name(GPU, 0) == NULL) {
        (void)printf("skipped: there is no GPU here, or this build has no delta rule for it\n");
        return 77;
    }
    return cmocka_run_group_tests_name("delta/gpu large", tests, NULL, NULL);
}
