/* A generator on every device except the CPU, against the CPU: the latents of a stream whose ring wraps, with a cut, a
   changing prompt and a changing number of steps. Replayed graphs give the same bits as direct launches. Skipped
   without such a device. */
/* labels: gpu */
#include "stream_support.h"

#include <math.h>

#include "carry/device.h"
#include "device/share.h"
#include "model/dit/dit.h"
#include "stream/generator.h"

enum { H = 4, W = 6, FRAMES = 2, COUNT = 16 * FRAMES * H * W, CALLS = 12, CUT = 9 };

typedef struct fixture {
    uint16_t noise[CALLS][COUNT];
    uint16_t text[2][4 * 16];
} fixture;

static fixture *made(carry_ctx *ctx) {
    fixture *f = malloc(sizeof *f);
    assert_non_null(f);
    for (int i = 0; i < CALLS; i++) {
        assert_ok(ctx, carry_random_normal(ctx, carry_view_1d(f->noise[i], CARRY_BF16, COUNT), 7,
                                           carry_generator_stream((uint64_t)i, 0), 0, 1));
    }
    for (int i = 0; i < 2; i++) {
        assert_ok(ctx, carry_random_normal(ctx, carry_view_1d(f->text[i], CARRY_BF16, 4 * 16), 8, (uint64_t)i, 0, 1));
    }
    return f;
}

static carry_envelope envelope(fixture *f, int k, int64_t *steps, int count) {
    const bool is_first = k == 0 || k == CUT;
    const bool has_text = k == 0 || k == 5;
    return (carry_envelope){.version = CARRY_ENVELOPE_VERSION,
                            .action = CARRY_INFER,
                            .call_id = (uint64_t)k,
                            .chunk_index = (uint64_t)k,
                            .height = H,
                            .width = W,
                            .current_start_frame = (k >= CUT ? k - CUT : k) * FRAMES,
                            .num_denoise_steps = count,
                            .expected_generator_calls = count + 1,
                            .init_cache = k == 0,
                            .reset_cache = is_first,
                            .reset_cross_cache = has_text,
                            .seed = 7,
                            .kv_bias = 0.6f,
                            .noise_scale = 0.9f,
                            .conditioning = carry_view_2d(f->text[k == 5], CARRY_BF16, has_text ? 4 : 0, 16),
                            .latents_in = carry_view_4d(f->noise[k], CARRY_BF16, 16, FRAMES, H, W),
                            .steps = carry_view_1d(steps, CARRY_I64, count)};
}

/* A head of 128 and a longer text, of which a prompt uses few rows: another cross-attention kernel on GPUs
   (dit_few.c). */
static bool has_long_text;
/* One of two ranks has 32 columns each of q, k and v: multiples of 16, so that the three are one product on GPUs. */
static bool has_one_product;
static int decoding; /* multiprocessors that the generator leaves to decoding */

/* narrow: weights are stored only in 16 bits, and initialized on the device. */
static carry_status run_on(carry_ctx *ctx, carry_comm *mesh, int device, carry_dtype dtype, bool narrow, bool no_graphs,
                           uint16_t out[CALLS][COUNT], carry_dit_counts *counts) {
    carry_dit_config config = small_stream().config;
    fixture *f = made(ctx);
    carry_dit *dit;
    carry_generator *g;
    int64_t steps[] = {1000, 750, 400};
    const carry_generator_options options = {.height = H,
                                             .width = W,
                                             .chunk = FRAMES,
                                             .window = 5,
                                             .sink = 1,
                                             .shift = 3.0,
                                             .dtype = dtype,
                                             .no_graphs = no_graphs,
                                             .multiprocessors = decoding};
    if (has_long_text) {
        config.dim = 128;
        config.num_heads = 1;
        config.text_len = 64;
    }
    if (has_one_product) {
        config.dim = 64;
        config.num_heads = 2;
    }
    CARRY_TRY(carry_dit_new_for(ctx, &dit, &config, mesh, device, NULL, narrow ? dtype : CARRY_F32));
    CARRY_TRY(carry_dit_init(dit, 3));
    CARRY_TRY(carry_generator_new(dit, &g, &options));
    for (int k = 0; k < CALLS; k++) {
        carry_result result;
        carry_generator_times times;
        const carry_envelope e = envelope(f, k, steps, k == 6 ? 2 : 3);
        CARRY_TRY(carry_generator_run(g, &result, &times, &e));
        CARRY_TRY(carry_generator_agree(g, &result));
        if (result.observed_generator_calls != e.expected_generator_calls || times.denoise < 0.0 || times.clean < 0.0) {
            return carry_fail(ctx, CARRY_EPEER, "chunk %d: %d calls", k, result.observed_generator_calls);
        }
        memcpy(out[k], result.latents_out.data, sizeof out[k]);
    }
    *counts = dit->counts;
    carry_generator_free(g);
    carry_dit_free(dit);
    free(f);
    return CARRY_OK;
}

static void run(carry_ctx *ctx, int device, carry_dtype dtype, bool narrow, bool no_graphs,
                uint16_t out[CALLS][COUNT]) {
    carry_dit_counts counts;
    assert_ok(ctx, run_on(ctx, NULL, device, dtype, narrow, no_graphs, out, &counts));
}

static double distance(uint16_t a[CALLS][COUNT], uint16_t b[CALLS][COUNT]) {
    double off = 0.0;
    double all = 0.0;
    for (int k = 0; k < CALLS; k++) {
        for (int i = 0; i < COUNT; i++) {
            const double x = (double)carry_f32_from_bf16(a[k][i]);
            const double y = (double)carry_f32_from_bf16(b[k][i]);
            assert_true(isfinite(x) && isfinite(y));
            off += (x - y) * (x - y);
            all += y * y;
        }
    }
    return sqrt(off / all);
}

static uint16_t here[CALLS][COUNT], there[CALLS][COUNT], again[CALLS][COUNT];

/* Latents are rounded to bf16 after every chunk (2^-9) and fed back through the cache, over 12 chunks of 4 passes. */
static void test_streams_equal_the_cpu(void **state) {
    (void)state;
    carry_ctx *ctx = support_ctx(2, NULL, NULL);
    run(ctx, 0, CARRY_F32, false, false, here);
    for (int device = 1; device < carry_device_count(); device++) {
        run(ctx, device, CARRY_F32, false, false, there);
        const double f32 = distance(there, here);
        run(ctx, device, CARRY_BF16, false, false, there);
        const double bf16 = distance(there, here);
        run(ctx, device, CARRY_BF16, true, false, again);
        const double narrow = distance(again, there);
        (void)printf("device %d: f32 %.2g, bf16 %.2g, bf16 weights alone %.2g\n", device, f32, bf16, narrow);
        assert_true(f32 < 0.01);
        assert_true(bf16 < 0.08);
        assert_true(narrow < 0.03);
    }
    carry_ctx_free(ctx);
}

static void test_streams_of_a_short_prompt_in_a_long_text_equal_the_cpu(void **state) {
    (void)state;
    carry_ctx *ctx = support_ctx(2, NULL, NULL);
    has_long_text = true;
    run(ctx, 0, CARRY_F32, false, false, here);
    for (int device = 1; device < carry_device_count(); device++) {
        run(ctx, device, CARRY_BF16, false, false, there);
        const double bf16 = distance(there, here);
        (void)printf("device %d, a short prompt: bf16 %.2g\n", device, bf16);
        assert_true(bf16 < 0.08);
    }
    has_long_text = false;
    carry_ctx_free(ctx);
}

static void test_replayed_graphs_give_the_same_bits(void **state) {
    (void)state;
    carry_ctx *ctx = support_ctx(2, NULL, NULL);
    for (int device = 1; device < carry_device_count(); device++) {
        run(ctx, device, CARRY_BF16, true, false, there);
        run(ctx, device, CARRY_BF16, true, true, again);
        assert_memory_equal(there, again, sizeof there);
    }
    carry_ctx_free(ctx);
}

static void test_a_generator_on_a_part_of_the_device_gives_the_same_bits(void **state) {
    (void)state;
    carry_ctx *ctx = support_ctx(2, NULL, NULL);
    for (int device = 1; device < carry_device_count(); device++) {
        carry_stream *part;
        if (carry_stream_new_share(ctx, &part, device, 16, false) != CARRY_OK) {
            (void)printf("skipped: %s\n", carry_ctx_error(ctx));
            continue;
        }
        carry_stream_free(ctx, device, part);
        run(ctx, device, CARRY_BF16, true, false, there);
        decoding = 16;
        run(ctx, device, CARRY_BF16, true, false, again);
        decoding = 0;
        assert_memory_equal(there, again, sizeof there);
    }
    carry_ctx_free(ctx);
}

enum { BATCH = 3 };

/* A stream batch, with a cut: envelopes have the steps of the chunks in it, and a clean pass once the batch is full. */
static void run_batch(carry_ctx *ctx, int device, carry_dtype dtype, bool no_graphs, uint16_t out[CALLS][COUNT]) {
    const carry_dit_config config = small_stream().config;
    fixture *f = made(ctx);
    carry_dit *dit;
    carry_generator *g;
    int64_t steps[BATCH] = {1000, 750, 400};
    const carry_generator_options options = {.height = H,
                                             .width = W,
                                             .chunk = FRAMES,
                                             .window = 5,
                                             .sink = 1,
                                             .batch = BATCH,
                                             .shift = 3.0,
                                             .dtype = dtype,
                                             .no_graphs = no_graphs};
    assert_ok(ctx, carry_dit_new(ctx, &dit, &config, NULL, device));
    assert_ok(ctx, carry_dit_init(dit, 3));
    assert_ok(ctx, carry_generator_new(dit, &g, &options));
    for (int k = 0; k < CALLS; k++) {
        const int since_cut = k >= CUT ? k - CUT : k;
        const int active = since_cut + 1 < BATCH ? since_cut + 1 : BATCH;
        carry_result result;
        carry_generator_times times;
        carry_envelope e = envelope(f, k, steps, active);
        e.expected_generator_calls = active + (since_cut >= BATCH ? 1 : 0);
        assert_ok(ctx, carry_generator_run(g, &result, &times, &e));
        assert_int_equal(result.observed_generator_calls, e.expected_generator_calls);
        assert_true(times.denoise >= 0.0);
        memcpy(out[k], result.latents_out.data, sizeof out[k]);
    }
    carry_generator_free(g);
    carry_dit_free(dit);
    free(f);
}

static void test_stream_batches_equal_the_cpu_and_their_graphs(void **state) {
    (void)state;
    carry_ctx *ctx = support_ctx(2, NULL, NULL);
    run_batch(ctx, 0, CARRY_F32, false, here);
    for (int device = 1; device < carry_device_count(); device++) {
        run_batch(ctx, device, CARRY_F32, false, there);
        const double f32 = distance(there, here);
        run_batch(ctx, device, CARRY_BF16, false, there);
        const double bf16 = distance(there, here);
        (void)printf("stream batches on device %d: f32 %.2g, bf16 %.2g\n", device, f32, bf16);
        assert_true(f32 < 0.01);
        assert_true(bf16 < 0.08);
        run_batch(ctx, device, CARRY_BF16, true, again);
        assert_memory_equal(there, again, sizeof there);
    }
    carry_ctx_free(ctx);
}

/* Two ranks as threads that share the device, or that run on the CPU. */
typedef struct pair {
    int device;
    carry_dtype dtype;
    bool narrow, no_graphs;
    uint16_t out[2][CALLS][COUNT];
    carry_dit_counts counts[2];
} pair;

static carry_status run_rank(void *user, carry_comm *comm) {
    pair *p = user;
    const int rank = carry_comm_rank(comm);
    return run_on(carry_comm_ctx(comm), comm, p->device, p->dtype, p->narrow, p->no_graphs, p->out[rank],
                  &p->counts[rank]);
}

static void run_pair(pair *p) {
    carry_ctx *ctxs[2] = {support_ctx(1, NULL, NULL), support_ctx(1, NULL, NULL)};
    assert_ok(ctxs[0],
              carry_comm_threads(ctxs, 2, &(carry_comm_options){CARRY_INIT(carry_comm_options), .deadline = 60.0},
                                 run_rank, p));
    carry_ctx_free(ctxs[0]);
    carry_ctx_free(ctxs[1]);
    assert_memory_equal(p->out[0], p->out[1], sizeof p->out[0]);
}

static void compare_meshes(void) {
    static pair of_cpu, of_device;
    of_cpu = (pair){.dtype = CARRY_F32};
    run_pair(&of_cpu);
    for (int device = 1; device < carry_device_count(); device++) {
        static const carry_dtype types[] = {CARRY_F32, CARRY_BF16, CARRY_BF16};
        for (int i = 0; i < 3; i++) {
            of_device = (pair){.device = device, .dtype = types[i], .narrow = i == 2};
            run_pair(&of_device);
            const double off = distance(of_device.out[0], of_cpu.out[0]);
            (void)printf("a mesh of two on device %d in %s: %.2g\n", device, carry_dtype_name(types[i]), off);
            assert_true(off < (i == 0 ? 0.01 : 0.08));
            assert_int_equal(of_device.counts[0].large, of_cpu.counts[0].large);
            assert_int_equal(of_device.counts[0].small, of_cpu.counts[0].small);
            assert_int_equal(of_device.counts[0].forwards, of_cpu.counts[0].forwards);
        }
    }
}

static void test_a_mesh_on_one_device_equals_the_cpu_with_as_many_collectives(void **state) {
    (void)state;
    compare_meshes();
}

static void test_a_mesh_whose_queries_keys_and_values_are_one_product_equals_the_cpu(void **state) {
    (void)state;
    has_one_product = true;
    compare_meshes();
    has_one_product = false;
}

static void test_replayed_graphs_of_a_mesh_give_the_same_bits(void **state) {
    (void)state;
    static pair with, without;
    for (int device = 1; device < carry_device_count(); device++) {
        with = (pair){.device = device, .dtype = CARRY_BF16};
        without = (pair){.device = device, .dtype = CARRY_BF16, .no_graphs = true};
        run_pair(&with);
        run_pair(&without);
        assert_memory_equal(with.out[0], without.out[0], sizeof with.out[0]);
        assert_int_equal(with.counts[1].large, without.counts[1].large);
        assert_int_equal(with.counts[1].large_bytes, without.counts[1].large_bytes);
    }
}

int main(void) {
    cmocka_set_test_filter(getenv("CMOCKA_TEST_FILTER"));
    if (carry_device_count() < 2) {
        (void)printf("skipped: there is no device but the CPU\n");
        return 77;
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_streams_equal_the_cpu),
        cmocka_unit_test(test_streams_of_a_short_prompt_in_a_long_text_equal_the_cpu),
        cmocka_unit_test(test_replayed_graphs_give_the_same_bits),
        cmocka_unit_test(test_a_generator_on_a_part_of_the_device_gives_the_same_bits),
        cmocka_unit_test(test_a_mesh_on_one_device_equals_the_cpu_with_as_many_collectives),
        cmocka_unit_test(test_a_mesh_whose_queries_keys_and_values_are_one_product_equals_the_cpu),
        cmocka_unit_test(test_stream_batches_equal_the_cpu_and_their_graphs),
        cmocka_unit_test(test_replayed_graphs_of_a_mesh_give_the_same_bits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
