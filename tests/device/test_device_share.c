/* Streams on a part of a GPU's multiprocessors: copies, fills and a graph on both parts of a division at once, and
   refused divisions, after which the device still works. Skipped where no device can be divided. */
/* labels: gpu */
#include "device/share.h"
#include "support.h"

enum { COUNT = 1 << 20, PART = 16 };

static bool is_divisible(carry_ctx *ctx, int device) {
    carry_stream *stream;
    if (carry_stream_new_share(ctx, &stream, device, PART, false) != CARRY_OK) {
        assert_null(stream);
        return false;
    }
    carry_stream_free(ctx, device, stream);
    return true;
}

static void check_parts(carry_ctx *ctx, int device) {
    static unsigned char back[2][COUNT];
    carry_stream *stream[2];
    void *memory[2];
    for (int i = 0; i < 2; i++) {
        carry_graph *graph;
        assert_ok(ctx, carry_stream_new_share(ctx, &stream[i], device, PART, i == 1));
        assert_ok(ctx, carry_device_alloc(ctx, &memory[i], device, COUNT));
        assert_ok(ctx, carry_device_fill(ctx, memory[i], device, 0, COUNT, stream[i]));
        assert_ok(ctx, carry_graph_begin(ctx, device, stream[i]));
        assert_ok(ctx, carry_device_fill(ctx, memory[i], device, (unsigned char)(0x41 + i), COUNT / 2, stream[i]));
        assert_ok(ctx, carry_graph_end(ctx, &graph, device, stream[i]));
        assert_ok(ctx, carry_graph_launch(ctx, device, graph, stream[i]));
        assert_ok(ctx, carry_device_copy(ctx, back[i], 0, memory[i], device, COUNT, stream[i]));
        assert_ok(ctx, carry_stream_wait(ctx, device, stream[i]));
        carry_graph_free(ctx, device, graph);
    }
    for (int i = 0; i < 2; i++) {
        for (int k = 0; k < COUNT; k++) {
            assert_int_equal(back[i][k], k < COUNT / 2 ? 0x41 + i : 0);
        }
        carry_stream_free(ctx, device, stream[i]);
        carry_device_free(ctx, device, memory[i]);
    }
}

static void both_parts_of_a_gpu_work(void **unused) {
    (void)unused;
    carry_ctx *ctx = support_ctx(1, NULL, NULL);
    for (int device = 1; device < carry_device_count(); device++) {
        if (is_divisible(ctx, device)) {
            check_parts(ctx, device);
            check_parts(ctx, device); /* the parts of freed streams are free again */
        } else {
            print_message("skipped: %s\n", carry_ctx_error(ctx));
        }
    }
    carry_ctx_free(ctx);
}

static void divisions_without_two_parts_are_refused(void **unused) {
    (void)unused;
    carry_ctx *ctx = support_ctx(1, NULL, NULL);
    carry_stream *stream;
    assert_int_equal(carry_stream_new_share(ctx, &stream, 0, PART, false), CARRY_EUNSUPPORTED);
    assert_int_equal(carry_stream_new_share(ctx, &stream, carry_device_count(), PART, false), CARRY_EUNSUPPORTED);
    for (int device = 1; device < carry_device_count(); device++) {
        static const int wrong[] = {-1, 0, 100000};
        for (int i = 0; i < 3 && is_divisible(ctx, device); i++) {
            assert_int_equal(carry_stream_new_share(ctx, &stream, device, wrong[i], i % 2 == 1), CARRY_EARGUMENT);
            assert_null(stream);
        }
    }
    carry_ctx_free(ctx);
}

int main(void) {
    cmocka_set_test_filter(getenv("CMOCKA_TEST_FILTER"));
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(both_parts_of_a_gpu_work),
        cmocka_unit_test(divisions_without_two_parts_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
