/* Every device: memory, copies both ways and within, fills, streams, events, graphs, pinned memory, pointers, refusals
   that leave it usable. Without a GPU only the CPU is tested, and the test says so. Other processes may use the GPU at
   the same time: memory is judged by what this context holds, and rates are compared only with values that no GPU
   exceeds. */
/* labels: gpu */
#include <math.h>

#include "device/gpu.h"
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
    assert_ok(ctx, carry_event_elapsed(ctx, &seconds, device, from, to));
    assert_true(seconds >= 0.0 && seconds < 60.0);
    carry_event_free(ctx, device, from);
    carry_event_free(ctx, device, to);
    carry_stream_free(ctx, device, stream);
    carry_device_free(ctx, device, a);
    carry_device_free(ctx, device, b);
}

static void every_device_keeps_what_it_is_given(void **unused) {
    (void)unused;
    carry_ctx *ctx = support_ctx(1, NULL, NULL);
    int devices = carry_device_count();
    if (devices == 1) {
        print_message("skipped: there is no GPU here, or no CUDA in this build; the CPU alone is tested\n");
    }
    for (int device = 0; device < devices; device++) {
        carry_device_properties properties = {CARRY_INIT(carry_device_properties)};
        assert_ok(ctx, carry_device_properties_of(ctx, &properties, device));
        print_message("device %d: %s\n", device, properties.name);
        check_device(ctx, device);
    }
    carry_ctx_free(ctx);
}

/* Allocates, fills, copies out and frees pieces of many sizes in one stream, without waiting in between. If a piece
   were handed out while the previous owner still used it, a copy would show the other's bytes. */
static void memory_in_order_of_a_stream_is_not_shared(void **unused) {
    (void)unused;
    enum { ROUNDS = 60, LARGEST = 1 << 20 };
    carry_ctx *ctx = support_ctx(1, NULL, NULL);
    for (int device = 0; device < carry_device_count(); device++) {
        unsigned char *back;
        carry_stream *stream;
        assert_ok(ctx, carry_host_alloc(ctx, (void **)&back, (size_t)ROUNDS * LARGEST));
        assert_ok(ctx, carry_stream_new(ctx, &stream, device));
        for (int i = 0; i < ROUNDS; i++) {
            size_t bytes = (size_t)LARGEST >> (i * 5 % 11);
            void *data;
            assert_ok(ctx, carry_device_alloc_on(ctx, &data, device, bytes, stream));
            assert_int_equal((uintptr_t)data % 64, 0);
            assert_ok(ctx, carry_device_fill(ctx, data, device, (unsigned char)(i + 1), bytes, stream));
            assert_ok(ctx, carry_device_copy(ctx, back + (size_t)i * LARGEST, 0, data, device, bytes, stream));
            carry_device_free_on(ctx, device, data, stream);
        }
        assert_ok(ctx, carry_stream_wait(ctx, device, stream));
        for (int i = 0; i < ROUNDS; i++) {
            for (size_t j = 0; j < (size_t)LARGEST >> (i * 5 % 11); j++) {
                assert_int_equal(back[(size_t)i * LARGEST + j], i + 1);
            }
        }
        carry_stream_free(ctx, device, stream);
        carry_host_free(ctx, back);
    }
    carry_ctx_free(ctx);
}

static void pinned_memory_is_ordinary_memory_that_devices_copy(void **unused) {
    (void)unused;
    carry_ctx *ctx = support_ctx(1, NULL, NULL);
    unsigned char *host;
    assert_ok(ctx, carry_host_alloc(ctx, (void **)&host, COUNT));
    assert_int_equal((uintptr_t)host % 64, 0);
    for (int device = 0; device < carry_device_count(); device++) {
        void *data;
        assert_ok(ctx, carry_device_alloc(ctx, &data, device, COUNT));
        memset(host, 0x21 + device, COUNT);
        assert_ok(ctx, carry_device_copy(ctx, data, device, host, 0, COUNT, NULL));
        assert_ok(ctx, carry_stream_wait(ctx, device, NULL));
        memset(host, 0, COUNT);
        assert_ok(ctx, carry_device_copy(ctx, host, 0, data, device, COUNT, NULL));
        for (int i = 0; i < COUNT; i++) {
            assert_int_equal(host[i], 0x21 + device);
        }
        carry_device_free(ctx, device, data);
    }
    carry_host_free(ctx, host);
    assert_ok(ctx, carry_host_alloc(ctx, (void **)&host, 0));
    carry_host_free(ctx, host);
    carry_host_free(ctx, NULL);
    void *huge = &huge;
    assert_refused(ctx, CARRY_EMEMORY, "1125899906842624", carry_host_alloc(ctx, &huge, (size_t)1 << 50));
    assert_null(huge);
    carry_ctx_free(ctx);
}

static void too_much_memory_is_refused_and_nothing_is_lost(void **unused) {
    (void)unused;
    carry_ctx *ctx = support_ctx(1, NULL, NULL);
    for (int device = 0; device < carry_device_count(); device++) {
        size_t available = 0;
        size_t total = 0;
        size_t held = 0;
        void *data = NULL;
        assert_ok(ctx, carry_device_memory(ctx, &available, &total, device));
        assert_true(available <= total);
        for (int i = 0; i < 20; i++) {
            data = &data;
            assert_refused(ctx, CARRY_EMEMORY, "1125899906842624",
                           carry_device_alloc(ctx, &data, device, (size_t)1 << 50));
            assert_null(data);
            assert_refused(ctx, CARRY_EMEMORY, "1125899906842624",
                           carry_device_alloc_on(ctx, &data, device, (size_t)1 << 50, NULL));
            assert_null(data);
            if (device > 0) { /* the CPU allows more than it has */
                assert_refused(ctx, CARRY_EMEMORY, "are free", carry_device_alloc(ctx, &data, device, total + 1));
                /* For such a request a driver's pool reserves all of the card's memory; none of it is in use. */
                assert_true(carry_device_held(ctx, device) <= (size_t)64 << 20);
                assert_refused(ctx, CARRY_EMEMORY, "are free",
                               carry_device_alloc_on(ctx, &data, device, total + 1, NULL));
                assert_true(carry_device_held(ctx, device) <= (size_t)64 << 20);
            }
            assert_ok(ctx, carry_device_alloc(ctx, &data, device, (size_t)16 << 20));
            assert_true(device == 0 || carry_device_held(ctx, device) >= (size_t)16 << 20);
            assert_ok(ctx, carry_device_fill(ctx, data, device, 1, (size_t)16 << 20, NULL));
            assert_ok(ctx, carry_stream_wait(ctx, device, NULL));
            carry_device_free(ctx, device, data);
            held = i < 4 ? carry_device_held(ctx, device) : held;
        }
        /* 16 lost blocks would be 256 MiB. The driver keeps free blocks, and allocates memory in pieces of its own
           size. */
        print_message("held after four rounds %zu, after twenty %zu\n", held, carry_device_held(ctx, device));
        assert_true(carry_device_held(ctx, device) <= held + ((size_t)64 << 20));
    }
    carry_ctx_free(ctx);
}

/* The bytes that a context holds grow by its own allocations only, and a new context holds none. */
static void a_context_knows_what_it_holds(void **unused) {
    (void)unused;
    carry_ctx *ctx = support_ctx(1, NULL, NULL);
    carry_ctx *other = support_ctx(1, NULL, NULL);
    assert_int_equal(carry_device_held(ctx, 0), 0);
    assert_int_equal(carry_device_held(ctx, 99), 0);
    for (int device = 1; device < carry_device_count(); device++) {
        void *data;
        void *theirs;
        assert_int_equal(carry_device_held(ctx, device), 0);
        assert_ok(ctx, carry_device_alloc(ctx, &data, device, (size_t)64 << 20));
        const size_t held = carry_device_held(ctx, device);
        assert_in_range(held, (size_t)64 << 20, (size_t)128 << 20); /* drivers allocate pieces of up to 32 MiB */
        assert_ok(other, carry_device_alloc(other, &theirs, device, (size_t)64 << 20));
        assert_int_equal(carry_device_held(ctx, device), held);
        carry_device_free(other, device, theirs);
        carry_device_free(ctx, device, data);
    }
    carry_ctx_free(other);
    carry_ctx_free(ctx);
}

static void pointers_to_the_wrong_memory_are_told_by_name(void **unused) {
    (void)unused;
    carry_ctx *ctx = support_ctx(1, NULL, NULL);
    int here = 0;
    void *pinned;
    assert_ok(ctx, carry_host_alloc(ctx, &pinned, 256));
    assert_ok(ctx, carry_device_check_pointer(ctx, "A", &here, 0));
    assert_ok(ctx, carry_device_check_pointer(ctx, "A", pinned, 0));
    for (int device = 0; device < carry_device_count(); device++) {
        char *data;
        assert_ok(ctx, carry_device_alloc(ctx, (void **)&data, device, 256));
        assert_ok(ctx, carry_device_check_pointer(ctx, "A", NULL, device));
        assert_ok(ctx, carry_device_check_pointer(ctx, "A", data, device));
        assert_ok(ctx, carry_device_check_pointer(ctx, "A", data + 100, device));
        if (device > 0) {
            assert_refused(ctx, CARRY_EDEVICE, "A is in host memory",
                           carry_device_check_pointer(ctx, "A", &here, device));
            assert_refused(ctx, CARRY_EDEVICE, "b is in host memory",
                           carry_device_check_pointer(ctx, "b", pinned, device));
            assert_refused(ctx, CARRY_EDEVICE, "must be in host memory", carry_device_check_pointer(ctx, "A", data, 0));
        }
        carry_device_free(ctx, device, data);
    }
    carry_host_free(ctx, pinned);
    carry_ctx_free(ctx);
}

static void a_context_keeps_a_stream_per_device(void **unused) {
    (void)unused;
    carry_ctx *ctx = support_ctx(1, NULL, NULL);
    for (int device = 0; device < carry_device_count(); device++) {
        carry_stream *stream;
        assert_null(carry_ctx_stream(ctx, device));
        assert_ok(ctx, carry_stream_new(ctx, &stream, device));
        assert_ok(ctx, carry_ctx_set_stream(ctx, device, stream));
        assert_ptr_equal(carry_ctx_stream(ctx, device), stream);
        assert_ok(ctx, carry_ctx_set_stream(ctx, device, NULL));
        assert_null(carry_ctx_stream(ctx, device));
        carry_stream_free(ctx, device, stream);
    }
    assert_refused(ctx, CARRY_ENOTFOUND, "device 99", carry_ctx_set_stream(ctx, 99, NULL));
    assert_refused(ctx, CARRY_ENOTFOUND, "device -1", carry_ctx_set_stream(ctx, -1, NULL));
    assert_null(carry_ctx_stream(ctx, 99));
    assert_null(carry_ctx_stream(ctx, -1));
    carry_ctx_free(ctx);
}

/* Recording runs nothing; each launch runs the graph once: b = a, a = 7. */
static void check_graph(carry_ctx *ctx, int device) {
    static unsigned char back[COUNT];
    void *a;
    void *b;
    void *more;
    carry_stream *stream;
    carry_graph *graph;
    assert_ok(ctx, carry_device_alloc(ctx, &a, device, COUNT));
    assert_ok(ctx, carry_device_alloc(ctx, &b, device, COUNT));
    assert_ok(ctx, carry_stream_new(ctx, &stream, device));
    assert_ok(ctx, carry_device_fill(ctx, a, device, 3, COUNT, stream));
    assert_ok(ctx, carry_device_fill(ctx, b, device, 4, COUNT, stream));
    assert_refused(ctx, CARRY_EUNSUPPORTED, "carry_stream_new", carry_graph_begin(ctx, device, NULL));
    assert_ok(ctx, carry_graph_begin(ctx, device, stream));
    assert_ok(ctx, carry_device_copy(ctx, b, device, a, device, COUNT, stream));
    assert_refused(ctx, CARRY_EUNSUPPORTED, "carry_graph_begin", carry_device_alloc_on(ctx, &more, device, 64, stream));
    assert_ok(ctx, carry_device_fill(ctx, a, device, 7, COUNT, stream));
    assert_ok(ctx, carry_graph_end(ctx, &graph, device, stream));
    for (int launches = 0; launches <= 2; launches++) {
        static const int expected[] = {4, 3, 7};
        assert_ok(ctx, carry_device_copy(ctx, back, 0, b, device, COUNT, stream));
        assert_ok(ctx, carry_stream_wait(ctx, device, stream));
        for (int i = 0; i < COUNT; i++) {
            assert_int_equal(back[i], expected[launches]);
        }
        assert_ok(ctx, carry_graph_launch(ctx, device, graph, stream));
    }
    assert_ok(ctx, carry_stream_wait(ctx, device, stream));
    carry_graph_free(ctx, device, graph);
    assert_refused(ctx, CARRY_EDEVICE, "recording", carry_graph_end(ctx, &graph, device, stream));
    assert_null(graph);
    assert_ok(ctx, carry_device_fill(ctx, a, device, 1, COUNT, stream)); /* the refusal broke nothing */
    assert_ok(ctx, carry_stream_wait(ctx, device, stream));
    carry_stream_free(ctx, device, stream);
    carry_device_free(ctx, device, a);
    carry_device_free(ctx, device, b);
}

static void graphs_are_recorded_on_gpus_and_refused_by_the_cpu(void **unused) {
    (void)unused;
    carry_ctx *ctx = support_ctx(1, NULL, NULL);
    carry_graph *graph;
    assert_refused(ctx, CARRY_EUNSUPPORTED, "works at once", carry_graph_begin(ctx, 0, NULL));
    assert_refused(ctx, CARRY_EUNSUPPORTED, "works at once", carry_graph_end(ctx, &graph, 0, NULL));
    assert_refused(ctx, CARRY_ENOTFOUND, "device 99", carry_graph_launch(ctx, 99, NULL, NULL));
    carry_graph_free(ctx, 0, NULL);
    for (int device = 1; device < carry_device_count(); device++) {
        check_graph(ctx, device);
    }
    carry_ctx_free(ctx);
}

static void copies_between_gpus_arrive(void **unused) {
    (void)unused;
    static unsigned char back[COUNT];
    if (carry_device_count() < 3) {
        print_message("skipped: there are no two GPUs here\n");
        skip();
    }
    carry_ctx *ctx = support_ctx(1, NULL, NULL);
    void *a;
    void *b;
    assert_ok(ctx, carry_device_alloc(ctx, &a, 1, COUNT));
    assert_ok(ctx, carry_device_alloc(ctx, &b, 2, COUNT));
    assert_ok(ctx, carry_device_fill(ctx, a, 1, 9, COUNT, NULL));
    assert_ok(ctx, carry_stream_wait(ctx, 1, NULL));
    assert_ok(ctx, carry_device_copy(ctx, b, 2, a, 1, COUNT, NULL));
    assert_ok(ctx, carry_device_copy(ctx, back, 0, b, 2, COUNT, NULL));
    for (int i = 0; i < COUNT; i++) {
        assert_int_equal(back[i], 9);
    }
    carry_device_free(ctx, 1, a);
    carry_device_free(ctx, 2, b);
    carry_ctx_free(ctx);
}

static void what_is_absent_is_said(void **unused) {
    (void)unused;
    carry_ctx *ctx = support_ctx(1, NULL, NULL);
    const char *line = carry_device_absence(ctx, 0);
    if (line != NULL) {
        print_message("%s\n", line);
        assert_int_equal(carry_device_count(), 1);
        assert_memory_equal(line, "cuda: ", 6);
        assert_true(strlen(line) > 12);
    }
    assert_null(carry_device_absence(ctx, 1));
    carry_ctx_free(ctx);
}

/* Other work on the GPU can slow a measurement by any factor: only values that no GPU reaches are errors. */
static void rates_of_gpus_are_possible_and_measured_once(void **unused) {
    (void)unused;
    carry_ctx *ctx = support_ctx(1, NULL, NULL);
    const carry_gpu *gpu;
    assert_refused(ctx, CARRY_EUNSUPPORTED, "device 0 is not a GPU", carry_gpu_of(ctx, &gpu, 0));
    assert_refused(ctx, CARRY_EUNSUPPORTED, "device 99 is not a GPU", carry_gpu_of(ctx, &gpu, 99));
    for (int device = 1; device < carry_device_count() && device < CARRY_MAX_DEVICES; device++) {
        const carry_gpu *again;
        carry_device_properties about = {CARRY_INIT(carry_device_properties)};
        assert_ok(ctx, carry_device_properties_of(ctx, &about, device));
        if (strstr(about.name, "emulated") != NULL) { /* its rates are made up */
            continue;
        }
        assert_ok(ctx, carry_gpu_of(ctx, &gpu, device));
        print_message("copy %.3g B/s, in cache %.3g B/s, launch %.3g s, barrier %.3g s, load %.3g s, tensor %.3g and "
                      "plain %.3g flop/s\n",
                      gpu->copy_bytes_s, gpu->cache_bytes_s, gpu->launch_s, gpu->barrier_s, gpu->latency_s,
                      gpu->tensor_flops_s, gpu->plain_flops_s);
        assert_int_equal(gpu->device, device);
        assert_true(gpu->units > 0 && gpu->shared_bytes >= 48 * 1024 && gpu->cache > 0);
        assert_true(gpu->copy_bytes_s > 0.0 && gpu->copy_bytes_s < 1e14);
        assert_true(gpu->cache_bytes_s >= gpu->copy_bytes_s && gpu->cache_bytes_s < 1e15);
        assert_true(gpu->launch_s > 1e-7 && isfinite(gpu->launch_s));
        assert_true(gpu->barrier_s > 0.0 && isfinite(gpu->barrier_s)); /* a difference of two times */
        assert_true(gpu->latency_s > 1e-7 && isfinite(gpu->latency_s));
        assert_true(gpu->tensor_flops_s > 0.0 && gpu->tensor_flops_s < 1e17);
        assert_true(gpu->plain_flops_s > 0.0 && gpu->plain_flops_s < 1e16);
        assert_ok(ctx, carry_gpu_of(ctx, &again, device));
        assert_ptr_equal(again, gpu);
    }
    carry_ctx_free(ctx);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_device_keeps_what_it_is_given),
        cmocka_unit_test(memory_in_order_of_a_stream_is_not_shared),
        cmocka_unit_test(pinned_memory_is_ordinary_memory_that_devices_copy),
        cmocka_unit_test(too_much_memory_is_refused_and_nothing_is_lost),
        cmocka_unit_test(a_context_knows_what_it_holds),
        cmocka_unit_test(pointers_to_the_wrong_memory_are_told_by_name),
        cmocka_unit_test(a_context_keeps_a_stream_per_device),
        cmocka_unit_test(graphs_are_recorded_on_gpus_and_refused_by_the_cpu),
        cmocka_unit_test(copies_between_gpus_arrive),
        cmocka_unit_test(what_is_absent_is_said),
        cmocka_unit_test(rates_of_gpus_are_possible_and_measured_once),
    };
    return cmocka_run_group_tests_name("device/memory", tests, NULL, NULL);
}
