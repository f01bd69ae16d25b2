/* The CPU as device 0: memory, copies, streams and events; and missing devices. */
#include "core/memory.h"
#include "core/rng.h"
#include "support.h"

/* The address sanitizer aborts at an allocation that malloc would refuse, unless this option is set. */
__attribute__((visibility("default"))) const char *__asan_default_options(void);
const char *__asan_default_options(void) {
    return "allocator_may_return_null=1";
}

static int ctx_make(void **state) {
    carry_ctx *ctx = NULL;
    carry_status status = carry_ctx_new(&ctx, &(carry_ctx_options){CARRY_INIT(carry_ctx_options), .threads = 1});
    *state = ctx;
    return status == CARRY_OK ? 0 : -1;
}

static int ctx_end(void **state) {
    carry_ctx_free(*state);
    return 0;
}

static void test_device_0_is_the_cpu(void **state) {
    carry_ctx *ctx = *state;
    carry_device_properties cpu = {CARRY_INIT(carry_device_properties)};
    memset(&cpu, 0xff, sizeof cpu);
    cpu.size = sizeof cpu;
    assert_true(carry_device_count() >= 1);
    assert_ok(ctx, carry_device_properties_of(ctx, &cpu, 0));
    assert_string_equal(cpu.backend, "cpu");
    assert_non_null(memchr(cpu.name, '\0', sizeof cpu.name));
    assert_non_null(memchr(cpu.kernels, '\0', sizeof cpu.kernels));
    assert_true(strlen(cpu.name) > 0);
    assert_null(strpbrk(cpu.name, "\n\t"));
    assert_true(cpu.units >= 1);
    assert_true(cpu.memory == 0 || cpu.memory > ((size_t)1 << 20));
    assert_true(cpu.cache >= cpu.cache_inner);
}

static void test_memory_is_aligned_and_its_own(void **state) {
    carry_ctx *ctx = *state;
    enum { BLOCKS = 200 };
    unsigned char *blocks[BLOCKS];
    size_t sizes[BLOCKS];
    for (uint64_t i = 0; i < BLOCKS; i++) {
        sizes[i] = i < 130 ? i : carry_philox(1, 0, i).word[0] % 10000;
        void *data = NULL;
        assert_ok(ctx, carry_device_alloc(ctx, &data, 0, sizes[i]));
        assert_non_null(data);
        assert_int_equal((uintptr_t)data % 64, 0);
        memset(data, (int)(i % 251), sizes[i]);
        blocks[i] = data;
    }
    for (int i = 0; i < BLOCKS; i++) {
        for (size_t j = 0; j < sizes[i]; j++) {
            assert_int_equal(blocks[i][j], i % 251);
        }
        carry_device_free(ctx, 0, blocks[i]);
    }
    carry_device_free(ctx, 0, NULL);
}

static void test_sizes_that_cannot_be_had_are_told(void **state) {
    carry_ctx *ctx = *state;
    static const size_t sizes[] = {SIZE_MAX, SIZE_MAX - 64, (size_t)PTRDIFF_MAX + 1, (size_t)1 << 60};
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        char number[32];
        int unused;
        void *data = &unused;
        (void)snprintf(number, sizeof number, "%zu", sizes[i]);
        assert_refused(ctx, CARRY_EMEMORY, number, carry_device_alloc(ctx, &data, 0, sizes[i]));
        assert_null(data);
    }
}

static void test_copies_equal_their_source(void **state) {
    carry_ctx *ctx = *state;
    unsigned char from[1000];
    unsigned char to[1002];
    for (uint64_t i = 0; i < sizeof from; i++) {
        from[i] = (unsigned char)carry_philox(2, 0, i).word[0];
    }
    for (size_t bytes = 0; bytes <= sizeof from; bytes += 37) {
        memset(to, 0xaa, sizeof to);
        assert_ok(ctx, carry_device_copy(ctx, to + 1, 0, from, 0, bytes, NULL));
        assert_memory_equal(to + 1, from, bytes);
        assert_int_equal(to[0], 0xaa);
        assert_int_equal(to[1 + bytes], 0xaa);
    }
    assert_ok(ctx, carry_device_copy(ctx, NULL, 0, NULL, 0, 0, NULL));
}

static void test_overlapping_copies_move(void **state) {
    carry_ctx *ctx = *state;
    unsigned char original[300];
    unsigned char data[300];
    for (uint64_t i = 0; i < sizeof original; i++) {
        original[i] = (unsigned char)carry_philox(3, 0, i).word[0];
    }
    for (size_t by = 0; by <= 100; by += 10) {
        memcpy(data, original, sizeof data);
        assert_ok(ctx, carry_device_copy(ctx, data + by, 0, data, 0, 200, NULL));
        assert_memory_equal(data + by, original, 200);
        memcpy(data, original, sizeof data);
        assert_ok(ctx, carry_device_copy(ctx, data, 0, data + by, 0, 200, NULL));
        assert_memory_equal(data, original + by, 200);
        assert_memory_equal(data + 200, original + 200, 100);
    }
}

static void test_fills_fill_and_no_more(void **state) {
    carry_ctx *ctx = *state;
    static const unsigned char bytes[] = {0, 1, 0x80, 0xff};
    for (size_t i = 0; i < sizeof bytes; i++) {
        unsigned char data[66];
        memset(data, 0x55, sizeof data);
        assert_ok(ctx, carry_device_fill(ctx, data + 1, 0, bytes[i], 64, NULL));
        for (int j = 1; j <= 64; j++) {
            assert_int_equal(data[j], bytes[i]);
        }
        assert_int_equal(data[0], 0x55);
        assert_int_equal(data[65], 0x55);
    }
    assert_ok(ctx, carry_device_fill(ctx, NULL, 0, 1, 0, NULL));
}

/* On the default stream, and on a separate one. */
static void test_time_between_events_does_not_run_backwards(void **state) {
    carry_ctx *ctx = *state;
    carry_stream *own = NULL;
    carry_event *before = NULL;
    carry_event *after = NULL;
    assert_ok(ctx, carry_stream_new(ctx, &own, 0));
    assert_ok(ctx, carry_event_new(ctx, &before, 0));
    assert_ok(ctx, carry_event_new(ctx, &after, 0));
    for (int i = 0; i < 100; i++) {
        carry_stream *stream = i % 2 == 0 ? own : NULL;
        unsigned char data[64];
        double seconds = -1.0;
        assert_ok(ctx, carry_event_record(ctx, 0, before, stream));
        assert_ok(ctx, carry_device_fill(ctx, data, 0, 7, sizeof data, stream));
        assert_ok(ctx, carry_event_record(ctx, 0, after, stream));
        assert_ok(ctx, carry_stream_wait(ctx, 0, stream));
        assert_int_equal(data[63], 7);
        assert_ok(ctx, carry_event_elapsed(ctx, &seconds, 0, before, after));
        assert_true(seconds >= 0.0 && seconds < 60.0);
        assert_ok(ctx, carry_event_elapsed(ctx, &seconds, 0, before, before));
        assert_true(seconds == 0.0);
    }
    carry_event_free(ctx, 0, before);
    carry_event_free(ctx, 0, after);
    carry_event_free(ctx, 0, NULL);
    carry_stream_free(ctx, 0, own);
    carry_stream_free(ctx, 0, NULL);
}

static void expect_no_device(carry_ctx *ctx, int device, const char *number) {
    unsigned char data[8] = {1, 2, 3, 4, 5, 6, 7, 8};
    void *memory = data;
    carry_device_properties properties = {CARRY_INIT(carry_device_properties)};
    carry_stream *stream = NULL;
    carry_event *event = NULL;
    double seconds = -1.0;
    assert_refused(ctx, CARRY_ENOTFOUND, number, carry_device_properties_of(ctx, &properties, device));
    assert_refused(ctx, CARRY_ENOTFOUND, number, carry_device_alloc(ctx, &memory, device, 64));
    assert_null(memory);
    assert_refused(ctx, CARRY_ENOTFOUND, number, carry_device_copy(ctx, data, device, data + 4, 0, 4, NULL));
    assert_refused(ctx, CARRY_ENOTFOUND, number, carry_device_copy(ctx, data, 0, data + 4, device, 4, NULL));
    assert_refused(ctx, CARRY_ENOTFOUND, number, carry_device_copy(ctx, data, device, data + 4, device, 4, NULL));
    assert_refused(ctx, CARRY_ENOTFOUND, number, carry_device_fill(ctx, data, device, 0, 8, NULL));
    assert_refused(ctx, CARRY_ENOTFOUND, number, carry_stream_new(ctx, &stream, device));
    assert_refused(ctx, CARRY_ENOTFOUND, number, carry_stream_wait(ctx, device, NULL));
    assert_refused(ctx, CARRY_ENOTFOUND, number, carry_event_new(ctx, &event, device));
    assert_refused(ctx, CARRY_ENOTFOUND, number, carry_event_record(ctx, device, NULL, NULL));
    assert_refused(ctx, CARRY_ENOTFOUND, number, carry_event_elapsed(ctx, &seconds, device, NULL, NULL));
    assert_null(stream);
    assert_null(event);
    assert_true(seconds == -1.0);
    for (int i = 0; i < 8; i++) {
        assert_int_equal(data[i], i + 1);
    }
    carry_device_free(ctx, device, NULL);
    carry_stream_free(ctx, device, NULL);
    carry_event_free(ctx, device, NULL);
}

static void test_devices_that_are_not_there_are_refused(void **state) {
    carry_ctx *ctx = *state;
    expect_no_device(ctx, 99, "device 99");
    expect_no_device(ctx, -1, "device -1");
    expect_no_device(ctx, INT32_MIN, "device -2147483648");
    expect_no_device(ctx, INT32_MAX, "device 2147483647");
    char number[32];
    (void)snprintf(number, sizeof number, "device %d", carry_device_count());
    expect_no_device(ctx, carry_device_count(), number);
}

static void test_names_of_devices_are_understood_or_refused(void **state) {
    (void)state;
    carry_ctx *ctx;
    int device = -1;
    assert_int_equal(carry_ctx_new(&ctx, NULL), CARRY_OK);
    assert_ok(ctx, carry_device_named(ctx, &device, "cpu"));
    assert_int_equal(device, 0);
    static const char *const bad[] = {"", "gpu", "cuda:", "cuda:x", "cuda:0x", "cuda:-1", "cuda1", "CPU"};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        assert_refused(ctx, CARRY_EARGUMENT, "cpu, cuda or cuda:N", carry_device_named(ctx, &device, bad[i]));
    }
    assert_refused(ctx, CARRY_EUNSUPPORTED, "there is no device cuda:99999",
                   carry_device_named(ctx, &device, "cuda:99999"));
    if (carry_device_named(ctx, &device, "cuda") == CARRY_OK) {
        assert_int_equal(device, 1);
    }
    carry_ctx_free(ctx);
}

/* Files that were just read are in the page cache, which the system gives back when memory is needed. */
static void the_page_cache_counts_as_available(void **unused) {
    (void)unused;
    carry_ctx *ctx = support_ctx(1, NULL, NULL);
    size_t available = 0;
    size_t total = 0;
    const double expected = carry_available_bytes();
    if (expected < 0.0) {
        carry_ctx_free(ctx);
        skip();
    }
    assert_ok(ctx, carry_device_memory(ctx, &available, &total, 0));
    assert_true((double)available >= 0.5 * expected); /* other processes allocate meanwhile */
    carry_ctx_free(ctx);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_device_0_is_the_cpu),
        cmocka_unit_test(test_memory_is_aligned_and_its_own),
        cmocka_unit_test(test_sizes_that_cannot_be_had_are_told),
        cmocka_unit_test(test_copies_equal_their_source),
        cmocka_unit_test(test_overlapping_copies_move),
        cmocka_unit_test(test_fills_fill_and_no_more),
        cmocka_unit_test(test_time_between_events_does_not_run_backwards),
        cmocka_unit_test(test_devices_that_are_not_there_are_refused),
        cmocka_unit_test(test_names_of_devices_are_understood_or_refused),
        cmocka_unit_test(the_page_cache_counts_as_available),
    };
    return cmocka_run_group_tests_name("device cpu", tests, ctx_make, ctx_end);
}
