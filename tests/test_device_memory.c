/* Every device there is: memory, copies both ways and within, fills, streams, events, refusals that leave it usable. On
   a machine without a GPU this walks the CPU alone and says so. */
#include "support.h"

enum { COUNT = 100003 };

static void check_device(carry_ctx *ctx, int device) {
    static unsigned char there[COUNT], back[COUNT];
    void *a;
    void *b;
    carry_stream *stream;
    carry_event *from;
    carry_event *to;
    for (int i = 0; i < COUNT; i++) {
        there[i] = (unsigned char)(i * 7 + device);
    }
    memset(back, 0, sizeof back);
    assert_ok(ctx, carry_device_alloc(ctx, &a, device, COUNT));
    assert_ok(ctx, carry_device_alloc(ctx, &b, device, COUNT));
    assert_ok(ctx, carry_stream_new(ctx, &stream, device));
    assert_ok(ctx, carry_event_new(ctx, &from, device));
    assert_ok(ctx, carry_event_new(ctx, &to, device));
    assert_ok(ctx, carry_event_record(ctx, device, from, stream));
    assert_ok(ctx, carry_device_copy(ctx, a, device, there, 0, COUNT, stream));
    assert_ok(ctx, carry_device_copy(ctx, b, device, a, device, COUNT, stream));
    assert_ok(ctx, carry_device_fill(ctx, a, device, 0x5a, COUNT, stream));
    assert_ok(ctx, carry_device_copy(ctx, back, 0, b, device, COUNT, stream));
    assert_ok(ctx, carry_event_record(ctx, device, to, stream));
    assert_ok(ctx, carry_stream_wait(ctx, device, stream));
    assert_memory_equal(back, there, COUNT);
    assert_ok(ctx, carry_device_copy(ctx, back, 0, a, device, COUNT, NULL));
    for (int i = 0; i < COUNT; i++) {
        assert_int_equal(back[i], 0x5a);
    }
    double seconds = -1.0;
    assert_ok(ctx, carry_event_elapsed(ctx, device, &seconds, from, to));
    assert_true(seconds >= 0.0 && seconds < 60.0);
    carry_event_free(ctx, device, from);
    carry_event_free(ctx, device, to);
    carry_stream_free(ctx, device, stream);
    carry_device_free(ctx, device, a);
    carry_device_free(ctx, device, b);
    void *huge;
    assert_refused(ctx, CARRY_EMEMORY, "bytes", carry_device_alloc(ctx, &huge, device, (size_t)1 << 50));
    assert_ok(ctx, carry_device_alloc(ctx, &a, device, 64)); /* the refusal broke nothing */
    carry_device_free(ctx, device, a);
}

static void every_device_keeps_what_it_is_given(void **unused) {
    (void)unused;
    carry_ctx *ctx = support_ctx(1, NULL, NULL);
    int devices = carry_device_count();
    if (devices == 1) {
        print_message("skipped: there is no GPU here, or no CUDA in this build; the CPU alone is tested\n");
    }
    for (int device = 0; device < devices; device++) {
        carry_device_properties properties;
        assert_ok(ctx, carry_device_describe(ctx, device, &properties));
        print_message("device %d: %s\n", device, properties.name);
        check_device(ctx, device);
    }
    carry_ctx_free(ctx);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(every_device_keeps_what_it_is_given)};
    return cmocka_run_group_tests_name("device/memory", tests, NULL, NULL);
}
