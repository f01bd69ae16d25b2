/* The log of GPU activity: names, sums, records that are kept and dropped, the time in which a GPU was busy. If
   libcupti is missing, a message says so. On a GPU, its work is logged at the right time. */
/* labels: gpu */
#include "support.h"

#include <math.h>

#include "core/clock.h"
#include "device/activity.h"
#include "device/backend.h"
#include "device/gpu.h"

/* In builds with CUDA, where the table of devices links it. */
extern const carry_backend carry_backend_cuda __attribute__((weak));

static const carry_activity_sum *sum_named(const carry_activity_log *log, const char *name) {
    for (int i = 0; i <= CARRY_ACTIVITY_NAMES; i++) {
        if (log->sum[i].calls > 0 && strcmp(log->sum[i].name, name) == 0) {
            return &log->sum[i];
        }
    }
    return NULL;
}

static void add(carry_activity_log *log, int gpu, uint32_t stream, double start, double end, const char *name) {
    carry_activity_add(log, &(carry_activity){.gpu = gpu, .stream = stream, .start = start, .end = end}, name);
}

static void names_of_kernels_are_readable(void **unused) {
    (void)unused;
    static const struct {
        const char *whole, *shown;
    } names[] = {
        {"void (anonymous namespace)::lookback_kernel<4, __half, float>(carry_diagonal)",
         "lookback_kernel<4, __half, float>"},
        {"(anonymous namespace)::copy_steps(carry_scan_array, carry_scan_array, long)", "copy_steps"},
        {"empty_kernel()", "empty_kernel"},
        {"ampere_sgemm_128x64_nn", "ampere_sgemm_128x64_nn"},
        {"void a::b::c<(a::mode)2, (bool)1, d::e<f::g> >(int, void (*)(float))", "c<2, 1, e<g> >"},
        {"void cutlass::Kernel2<cutlass_80_tensorop_f16_s16816gemm_f16_64x64_32x6_nn_align8>(Params)",
         "Kernel2<cutlass_80_tensorop_f16_s16816gemm_f16_64x64_32x6_n...>"},
        {"a_kernel_whose_name_has_more_letters_than_any_table_would_ever_show_to_anybody",
         "a_kernel_whose_name_has_more_letters_than_any_table_would_e..."},
        {"kern\x1b[31mel", "kern?[31mel"},
        {"f<(", "f<"},
        {"", "a kernel without a name"},
    };
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        char shown[CARRY_ACTIVITY_NAME];
        memset(shown, 'x', sizeof shown);
        carry_activity_shorten(shown, names[i].whole);
        assert_string_equal(shown, names[i].shown);
    }
}

/* Records that overlap on one GPU count once; records that overlap on two GPUs count twice. */
static void busy_time_is_what_at_least_one_record_covers(void **unused) {
    (void)unused;
    carry_ctx *ctx = support_ctx(1, NULL, NULL);
    carry_activity_log *log;
    assert_ok(ctx, carry_activity_new(ctx, &log, 0));
    add(log, 0, 8, 5.0, 6.0, "late");
    add(log, 1, 7, 0.0, 2.0, "other");
    add(log, 0, 7, 0.0, 4.0, "long");
    add(log, 0, 8, 1.0, 2.0, "inside");
    add(log, 0, 8, 3.0, 4.5, "across");
    carry_activity_finish(log);
    assert_int_equal(log->gpus, 2);
    assert_true(fabs(log->busy - (4.5 + 1.0 + 2.0)) < 1e-12);
    static const char *const order[] = {"long", "inside", "across", "late", "other"};
    assert_int_equal(log->count, 5);
    for (int i = 0; i < 5; i++) {
        assert_string_equal(log->sum[log->record[i].name].name, order[i]);
    }
    carry_activity_free(log);
    carry_ctx_free(ctx);
}

static void sums_are_exact_when_the_log_is_full(void **unused) {
    (void)unused;
    carry_ctx *ctx = support_ctx(1, NULL, NULL);
    carry_activity_log *log;
    assert_ok(ctx, carry_activity_new(ctx, &log, 10));
    for (int i = 0; i < 1000; i++) {
        add(log, 0, 7, i, i + 0.25, i % 4 == 0 ? "a" : "b");
    }
    carry_activity_finish(log);
    assert_true(log->count == 10 && log->dropped == 990 && log->lost == 0);
    assert_int_equal(sum_named(log, "a")->calls, 250);
    assert_int_equal(sum_named(log, "b")->calls, 750);
    assert_true(fabs(sum_named(log, "b")->seconds - 187.5) < 1e-9);
    assert_true(fabs(log->busy - 250.0) < 1e-9);
    carry_activity_free(log);
    carry_ctx_free(ctx);
}

static void names_beyond_the_table_share_an_entry(void **unused) {
    (void)unused;
    enum { MORE = 76 };
    carry_ctx *ctx = support_ctx(1, NULL, NULL);
    carry_activity_log *log;
    assert_ok(ctx, carry_activity_new(ctx, &log, 0));
    for (int i = 0; i < 2 * (CARRY_ACTIVITY_NAMES + MORE); i++) {
        char name[32];
        (void)snprintf(name, sizeof name, "kernel_%d", i / 2);
        add(log, 0, 7, i, i + 1.0, name);
    }
    carry_activity_finish(log);
    assert_int_equal(sum_named(log, "kernel_0")->calls, 2);
    assert_int_equal(sum_named(log, "other kernels")->calls, 2 * MORE);
    carry_activity_free(log);
    carry_ctx_free(ctx);
}

/* Runs before the test on a GPU: once found, the library stays loaded. */
static void the_absence_of_libcupti_is_said(void **unused) {
    (void)unused;
    if (&carry_backend_cuda == NULL) {
        print_message("skipped: this build has no CUDA\n");
        skip();
    }
    carry_ctx *ctx = support_ctx(1, NULL, NULL);
    carry_activity_log *log;
    assert_ok(ctx, carry_activity_new(ctx, &log, 0));
    (void)setenv("CARRY_CUPTI", "/nowhere/libcupti.so", 1);
    carry_status status = carry_backend_cuda.activity_start(ctx, log);
    (void)unsetenv("CARRY_CUPTI");
    assert_true(status != CARRY_OK);
    assert_non_null(strstr(carry_ctx_error(ctx), "kernels are not on the trace"));
    carry_activity_free(log);
    carry_ctx_free(ctx);
}

static void nothing_is_recorded_without_a_gpu(void **unused) {
    (void)unused;
    if (carry_device_count() > 1) {
        print_message("skipped: there is a GPU here\n");
        skip();
    }
    carry_ctx *ctx = support_ctx(1, NULL, NULL);
    carry_activity_log *log;
    assert_ok(ctx, carry_activity_start(ctx, &log, 0));
    assert_null(log);
    carry_ctx_free(ctx);
}

/* Copies and fills of a known size, then the kernels that measure rates, in graphs too. */
static void work_on_device_1(carry_ctx *ctx) {
    enum { BYTES = 1 << 20, COPIES = 5 };
    static unsigned char here[BYTES];
    void *there;
    const carry_gpu *gpu;
    assert_ok(ctx, carry_device_alloc(ctx, &there, 1, BYTES));
    for (int i = 0; i < COPIES; i++) {
        assert_ok(ctx, carry_device_copy(ctx, there, 1, here, 0, BYTES, NULL));
    }
    assert_ok(ctx, carry_device_fill(ctx, there, 1, 1, BYTES, NULL));
    assert_ok(ctx, carry_device_copy(ctx, here, 0, there, 1, BYTES, NULL));
    assert_ok(ctx, carry_gpu_of(ctx, &gpu, 1));
    carry_device_free(ctx, 1, there);
}

static void work_on_a_gpu_is_told_at_the_right_time(void **unused) {
    (void)unused;
    carry_ctx *ctx = support_ctx(1, NULL, NULL);
    carry_activity_log *log;
    if (carry_device_count() == 1) {
        print_message("skipped: there is no GPU here, or no CUDA in this build\n");
        carry_ctx_free(ctx);
        skip();
    }
    if (carry_activity_start(ctx, &log, 0) != CARRY_OK) {
        print_message("skipped: %s\n", carry_ctx_error(ctx));
        carry_ctx_free(ctx);
        skip();
    }
    double before = carry_seconds();
    work_on_device_1(ctx);
    double after = carry_seconds();
    assert_ok(ctx, carry_activity_stop(ctx, log));
    print_message("%lld records, %lld dropped, %lld lost, busy %.6f s of %.6f s\n", (long long)log->count,
                  (long long)log->dropped, (long long)log->lost, log->busy, after - before);
    assert_int_equal(log->lost, 0);
    static const struct {
        const char *name;
        int64_t calls;
    } expected[] = {{"copy host to device", 5}, {"copy device to host", 1}, {"fill", 1}, {"empty_kernel", 1}};
    carry_device_properties about = {CARRY_INIT(carry_device_properties)};
    assert_ok(ctx, carry_device_properties_of(ctx, &about, 1));
    const bool is_emulated = strstr(about.name, "emulated") != NULL; /* its rates are not measured: no such kernel */
    const size_t wanted = sizeof expected / sizeof expected[0] - is_emulated;
    for (size_t i = 0; i < wanted; i++) { /* the last one is launched only by a graph */
        const carry_activity_sum *sum = sum_named(log, expected[i].name);
        if (sum == NULL || sum->calls < expected[i].calls) {
            fail_msg("%s: %lld times", expected[i].name, sum != NULL ? (long long)sum->calls : 0LL);
        }
    }
    assert_true(log->gpus == 1 && log->busy > 0.0 && log->busy < after - before);
    for (int64_t i = 0; i < log->count; i++) { /* half a millisecond for the alignment of the clocks */
        const carry_activity *a = &log->record[i];
        assert_true(a->start > before - 5e-4 && a->end < after + 5e-4 && a->end >= a->start);
        assert_true(a->kind != CARRY_ACTIVITY_KERNEL || (a->grid[0] > 0 && a->block[0] > 0));
        assert_true(a->kind != CARRY_ACTIVITY_COPY || a->bytes > 0);
    }
    int64_t count = log->count;
    work_on_device_1(ctx); /* after the stop, nothing is recorded */
    assert_int_equal(log->count, count);
    carry_activity_free(log);
    carry_ctx_free(ctx);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(names_of_kernels_are_readable),
        cmocka_unit_test(busy_time_is_what_at_least_one_record_covers),
        cmocka_unit_test(sums_are_exact_when_the_log_is_full),
        cmocka_unit_test(names_beyond_the_table_share_an_entry),
        cmocka_unit_test(the_absence_of_libcupti_is_said),
        cmocka_unit_test(nothing_is_recorded_without_a_gpu),
        cmocka_unit_test(work_on_a_gpu_is_told_at_the_right_time),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
