/* Traces that are cut off, damaged, of another kind or much larger than they look are refused. */
#include "trace_support.h"

static void test_a_truncated_trace_is_refused_at_every_byte(void **state) {
    (void)state;
    made m = make_trace(64, 20);
    for (size_t length = 0; length < m.length; length++) {
        carry_hotspots back;
        assert_refused(m.ctx, CARRY_EFORMAT, "not a trace", carry_trace_read(m.ctx, &back, m.bytes, length, "t"));
    }
    free_trace(&m);
}

static void test_a_damaged_trace_is_refused_or_read(void **state) {
    (void)state;
    made m = make_trace(64, 20);
    unsigned char *bytes = m.bytes;
    int read = 0;
    for (size_t i = 0; i < m.length; i++) {
        carry_hotspots back;
        bytes[i] ^= 0x10;
        if (carry_trace_read(m.ctx, &back, m.bytes, m.length, "t") == CARRY_OK) {
            read++;
            carry_hotspots_free(&back);
        }
        bytes[i] ^= 0x10;
    }
    assert_true(read <= 7); /* bytes 4 to 9 of the header have no meaning here, nor has the padding in the last byte */
    free_trace(&m);
}

static void test_other_files_are_refused(void **state) {
    (void)state;
    carry_ctx *ctx = support_ctx(1, NULL, NULL);
#define HEAD "{\"traceEvents\":[],\"carry\":{\"version\":"
#define REST ",\"ranks\":1,\"threads\":1,\"wall_s\":1,\"events\":0,\"dropped\":0,\"gemm_gflops\":0,\"hotspots\":["
#define SPOT "{\"category\":\"a\",\"name\":\"b\",\"file\":\"c\",\"line\":1,\"calls\":"
#define TAIL ",\"total_s\":1,\"self_s\":1,\"outer_s\":1,\"flops\":0,\"tokens\":0}]}}"
#define GPUS "],\"gpus\":1,\"gpu_busy_s\":1,\"gpu_events\":1,\"gpu_dropped\":0,\"gpu_lost\":"
#define KERNEL ",\"kernels\":[{\"category\":\"kernel\",\"name\":\"k\",\"total_s\":1,\"calls\":"
    const struct {
        const char *text, *words;
    } bad[] = {{"", "not a trace"},
               {"[]", "not a JSON object"},
               {"{}", "no traceEvents"},
               {"{\"traceEvents\":[]}", "no hotspots"},
               {"{\"traceEvents\":[],\"traceEvents\":[]}", "duplicate"},
               {HEAD "2" REST "]}}", "newer version"},
               {HEAD "1" REST "{}]}}", "incomplete"},
               {HEAD "1" REST SPOT "-1" TAIL, "incomplete"},
               {HEAD "1" REST SPOT "1.5" TAIL, "incomplete"},
               {HEAD "1" REST SPOT "1e30" TAIL, "incomplete"},
               {HEAD "1" REST SPOT "1" TAIL "x", "line 1"},
               {HEAD "1" REST "],\"kernels\":1}}", "more kernels"},
               {HEAD "1" REST "],\"kernels\":[]}}", "of its GPUs"},
               {HEAD "1" REST GPUS "-1" KERNEL "1}]}}", "of its GPUs"},
               {HEAD "1" REST GPUS "0" KERNEL "1.5}]}}", "a kernel"},
               {HEAD "1" REST GPUS "0,\"kernels\":[[]]}}", "a kernel"},
               {"\x1f\x8b", "too early"}};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        carry_hotspots back;
        assert_refused(ctx, CARRY_EFORMAT, bad[i].words,
                       carry_trace_read(ctx, &back, bad[i].text, strlen(bad[i].text), "t"));
    }
    carry_hotspots good;
    const char text[] = HEAD "1" REST SPOT "1" TAIL; /* the same without the fault */
    assert_ok(ctx, carry_trace_read(ctx, &good, text, sizeof text - 1, "t"));
    carry_hotspots_free(&good);
    const char gpu[] = HEAD "1" REST GPUS "0" KERNEL "1}]}}";
    assert_ok(ctx, carry_trace_read(ctx, &good, gpu, sizeof gpu - 1, "t"));
    assert_true(good.kernels == 1 && good.gpus == 1);
    carry_hotspots_free(&good);
    carry_ctx_free(ctx);
}

/* 100 MB of zeros in 100 kB: the limit is on the decompressed size. */
static void test_a_bomb_is_refused(void **state) {
    (void)state;
    carry_ctx *ctx = support_ctx(1, NULL, NULL);
    unsigned char *zeros = calloc(1, 1 << 20);
    unsigned char *bomb = malloc(1 << 20);
    z_stream stream = {.next_out = bomb, .avail_out = 1 << 20};
    assert_int_equal(deflateInit2(&stream, 9, Z_DEFLATED, MAX_WBITS + 16, 8, Z_DEFAULT_STRATEGY), Z_OK);
    for (int i = 0; i <= 100; i++) {
        stream.next_in = zeros;
        stream.avail_in = i < 100 ? 1 << 20 : 0;
        (void)deflate(&stream, i < 100 ? Z_NO_FLUSH : Z_FINISH);
    }
    (void)deflateEnd(&stream);
    carry_hotspots back;
    assert_refused(ctx, CARRY_EFORMAT, "more text", carry_trace_read(ctx, &back, bomb, stream.total_out, "t"));
    free(zeros);
    free(bomb);
    carry_ctx_free(ctx);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_truncated_trace_is_refused_at_every_byte),
        cmocka_unit_test(test_a_damaged_trace_is_refused_or_read),
        cmocka_unit_test(test_other_files_are_refused),
        cmocka_unit_test(test_a_bomb_is_refused),
    };
    return cmocka_run_group_tests_name("lab trace damage", tests, NULL, NULL);
}
