/* Stream batches: several chunks in one forward equal the same chunks one after the other, and a pipeline shows only
   finished chunks. */
#include "stream_support.h"

#include <math.h>

#include "model/dit/dit.h"
#include "stream/generator.h"

enum { H = 4, W = 4, FRAMES = 2, COUNT = 16 * FRAMES * H * W, CALLS = 9 };

/* Chunks in one forward or in several have the same sums in the same order, but products of other heights may be split
   differently: about 1e-6 of the largest. bf16 keeps 2^-8, so a latent near a tie may round either way. */
#define SAME 0.02f

typedef struct fixture {
    carry_ctx *ctx;
    carry_dit *dit;
    uint16_t noise[CALLS][COUNT];
    uint16_t text[4 * 16];
} fixture;

static const double shift = 3.0;

static void open_fixture(fixture *f) {
    const carry_pipeline_options small = small_stream();
    f->ctx = support_ctx(1, NULL, NULL);
    assert_ok(f->ctx, carry_dit_new(f->ctx, &f->dit, &small.config, NULL, 0));
    assert_ok(f->ctx, carry_dit_init(f->dit, 3));
    for (int i = 0; i < CALLS; i++) {
        assert_ok(f->ctx, carry_random_normal(f->ctx, carry_view_1d(f->noise[i], CARRY_BF16, COUNT), 7,
                                              carry_generator_stream((uint64_t)i, 0), 0, 1));
    }
    assert_ok(f->ctx, carry_random_normal(f->ctx, carry_view_1d(f->text, CARRY_BF16, 4 * 16), 8, 0, 0, 1));
}

static void close_fixture(fixture *f) {
    carry_dit_free(f->dit);
    carry_ctx_free(f->ctx);
}

static carry_generator *open_generator(fixture *f, int64_t batch) {
    carry_generator *made = NULL;
    const carry_generator_options options = {
        .height = H, .width = W, .chunk = FRAMES, .window = 9, .sink = 1, .batch = batch, .shift = shift};
    assert_ok(f->ctx, carry_generator_new(f->dit, &made, &options));
    return made;
}

static carry_envelope envelope(fixture *f, int k, int64_t *steps, int count, int clean) {
    return (carry_envelope){
        .version = CARRY_ENVELOPE_VERSION,
        .action = CARRY_INFER,
        .call_id = (uint64_t)k,
        .chunk_index = (uint64_t)k,
        .height = H,
        .width = W,
        .current_start_frame = k * FRAMES,
        .num_denoise_steps = count,
        .expected_generator_calls = count + clean,
        .init_cache = k == 0,
        .reset_cross_cache = k == 0,
        .seed = 7,
        .kv_bias = 0.6f,
        .noise_scale = 1.0f,
        .conditioning = carry_view_2d(f->text, CARRY_BF16, k == 0 ? 4 : 0, 16),
        .latents_in = carry_view_4d(f->noise[k], CARRY_BF16, 16, FRAMES, H, W),
        .steps = carry_view_1d(steps, CARRY_I64, count),
    };
}

static void assert_same(const uint16_t *got, const uint16_t *wanted, int k) {
    for (int i = 0; i < COUNT; i++) {
        const float a = carry_f32_from_bf16(got[i]);
        const float b = carry_f32_from_bf16(wanted[i]);
        if (!(fabsf(a - b) <= SAME * (1.0f + fabsf(b)))) {
            fail_msg("chunk %d, latent %d: %g where %g is wanted", k, i, (double)a, (double)b);
        }
    }
}

static void test_a_batch_of_one_step_is_chunk_after_chunk(void **state) {
    (void)state;
    static fixture f;
    open_fixture(&f);
    carry_generator *batch = open_generator(&f, 1);
    carry_generator *plain = open_generator(&f, 0);
    int64_t steps[] = {1000};
    for (int k = 0; k < CALLS; k++) {
        carry_result a, b;
        carry_generator_times times;
        const carry_envelope of_batch = envelope(&f, k, steps, 1, k > 0 ? 1 : 0);
        const carry_envelope of_plain = envelope(&f, k, steps, 1, 1);
        assert_ok(f.ctx, carry_generator_run(batch, &a, &times, &of_batch));
        assert_ok(f.ctx, carry_generator_run(plain, &b, &times, &of_plain));
        assert_int_equal(a.observed_generator_calls, of_batch.expected_generator_calls);
        assert_same(a.latents_out.data, b.latents_out.data, k);
    }
    carry_generator_free(batch);
    carry_generator_free(plain);
    close_fixture(&f);
}

/* The same by single forwards over a separate cache, the oldest chunk first. */
typedef struct by_hand {
    carry_dit_cache *cache;
    float x0[CALLS][COUNT], x[COUNT], velocity[COUNT];
    uint16_t out[COUNT];
} by_hand;

static carry_tensor view(float *data) {
    return carry_view_4d(data, CARRY_F32, 16, FRAMES, H, W);
}

static void step_by_hand(fixture *f, by_hand *b, int k, const int64_t *steps, int n) {
    if (k >= n) { /* the clean pass of the chunk that was finished before */
        const carry_dit_chunk clean = {.latents = view(b->x0[k - n]), .start = (k - n) * FRAMES};
        assert_ok(f->ctx, carry_dit_forward(f->dit, b->cache, &clean, 1, logf(0.6f)));
    }
    for (int i = k < n ? k : n - 1; i >= 0; i--) {
        const double sigma = carry_flow_sigma((double)steps[i], shift);
        const int chunk = k - i;
        if (i == 0) {
            for (int j = 0; j < COUNT; j++) {
                b->x[j] = carry_f32_from_bf16(f->noise[chunk][j]);
            }
        } else {
            assert_ok(f->ctx, carry_flow_noise(f->ctx, view(b->x), view(b->x0[chunk]), sigma, 1.0, 7,
                                               carry_generator_stream((uint64_t)chunk, i)));
        }
        const carry_dit_chunk call = {
            .velocity = view(b->velocity), .latents = view(b->x), .t = 1000.0 * sigma, .start = chunk * FRAMES};
        assert_ok(f->ctx, carry_dit_forward(f->dit, b->cache, &call, 1, logf(0.6f)));
        assert_ok(f->ctx, carry_flow_clean(f->ctx, view(b->x0[chunk]), view(b->x), view(b->velocity), sigma));
    }
    const int done = k - n + 1;
    for (int j = 0; done >= 0 && j < COUNT; j++) {
        b->out[j] = carry_bf16_from_f32(b->x0[done][j]);
        b->x0[done][j] = carry_f32_from_bf16(b->out[j]);
    }
}

static void test_a_batch_is_its_chunks_one_after_the_other(void **state) {
    (void)state;
    static fixture f;
    static by_hand b;
    enum { N = 3 };
    int64_t steps[] = {1000, 600, 250};
    float text[4 * 16];
    open_fixture(&f);
    carry_generator *g = open_generator(&f, N);
    const carry_dit_cache_options cache = {
        .height = H, .width = W, .chunk = FRAMES, .chunks = N + 1, .window = 9, .sink = 1};
    assert_ok(f.ctx, carry_dit_cache_new(f.dit, &b.cache, &cache));
    for (int i = 0; i < 4 * 16; i++) {
        text[i] = carry_f32_from_bf16(f.text[i]);
    }
    assert_ok(f.ctx, carry_dit_cache_text(b.cache, carry_view_2d(text, CARRY_F32, 4, 16)));
    for (int k = 0; k < CALLS; k++) {
        carry_result result;
        carry_generator_times times;
        const int active = k < N ? k + 1 : N;
        const carry_envelope e = envelope(&f, k, steps, active, k >= N ? 1 : 0);
        const int64_t before = f.dit->counts.forwards;
        assert_ok(f.ctx, carry_generator_run(g, &result, &times, &e));
        assert_int_equal(f.dit->counts.forwards, before + 1); /* all of it in one forward */
        assert_int_equal(result.observed_generator_calls, e.expected_generator_calls);
        step_by_hand(&f, &b, k, steps, N);
        if (k >= N - 1) {
            assert_same(result.latents_out.data, b.out, k);
        }
    }
    carry_dit_cache_free(b.cache);
    carry_generator_free(g);
    close_fixture(&f);
}

static void test_an_envelope_that_does_not_fit_the_batch_is_refused(void **state) {
    (void)state;
    static fixture f;
    int64_t steps[] = {1000, 600, 250};
    carry_result result;
    carry_generator_times times;
    open_fixture(&f);
    carry_generator *g = open_generator(&f, 3);
    const carry_envelope all_at_once = envelope(&f, 0, steps, 3, 0);
    assert_int_equal(carry_generator_run(g, &result, &times, &all_at_once), CARRY_EPEER);
    const carry_envelope too_clean = envelope(&f, 0, steps, 1, 1);
    assert_int_equal(carry_generator_run(g, &result, &times, &too_clean), CARRY_EPEER);
    const carry_envelope right = envelope(&f, 0, steps, 1, 0);
    assert_ok(f.ctx, carry_generator_run(g, &result, &times, &right));
    carry_generator_free(g);
    close_fixture(&f);
}

static void run_batch(stream *s, int ranks, bool with_stage) {
    *s = (stream){.options = small_stream(), .ranks = ranks};
    s->options.batch = 2;
    s->options.window = 9;
    s->options.with_stage = with_stage;
    s->cut_at = 4;
    if (run_stream(s) != CARRY_OK) {
        fail_msg("%d ranks: %s", ranks, s->message);
    }
}

static void test_a_pipeline_shows_finished_chunks_in_order(void **state) {
    (void)state;
    static stream alone, staged;
    run_batch(&alone, 1, false);
    run_batch(&staged, 2, true);
    assert_true(alone.shown >= 4);
    assert_int_equal(alone.chunk_index[0], 0);
    assert_int_equal(alone.late, 0);
    for (int i = 1; i < alone.frames; i++) {
        assert_true(alone.chunk_index[i] >= alone.chunk_index[i - 1]);
    }
    for (int i = 0; i < 4 * FRAMES; i++) { /* only up to the cut, which reaches the two streams at different chunks */
        assert_int_equal(alone.digest[i], staged.digest[i]);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_batch_of_one_step_is_chunk_after_chunk),
        cmocka_unit_test(test_a_batch_is_its_chunks_one_after_the_other),
        cmocka_unit_test(test_an_envelope_that_does_not_fit_the_batch_is_refused),
        cmocka_unit_test(test_a_pipeline_shows_finished_chunks_in_order),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
