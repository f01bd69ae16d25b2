/* The video transformer against float64: whole videos in odd shapes; chunks over a cache against the full causal
   computation; several chunks in one call; steps that are repeated; cuts; KV bias; and refusals.

   Bounds. A block is about 30 roundings deep (sums of up to 72 numbers in 16 parts, norms, softmax, two products), each
   2^-24 relative and of random sign; with two or three blocks the relative RMS is near sqrt(100) 2^-24 = 6e-7. 5e-6
   leaves a factor of eight; one frame more or less in the window changes results by 1e-3 and more, which the tests
   check. */
#include "dit_support.h"

#define BOUND 5e-6

static carry_ctx *ctx;

static int open_ctx(void **state) {
    (void)state;
    ctx = support_ctx(2, NULL, NULL);
    return 0;
}

static int close_ctx(void **state) {
    (void)state;
    carry_ctx_free(ctx);
    return 0;
}

static carry_dit_cache *cache_for(carry_dit *dit, const cut_video *video, int64_t chunk, int64_t chunks) {
    carry_dit_cache *cache;
    assert_ok(ctx, carry_dit_cache_new(dit, &cache,
                                       &(carry_dit_cache_options){.height = video->v.height,
                                                                  .width = video->v.width,
                                                                  .chunk = chunk,
                                                                  .chunks = chunks,
                                                                  .window = video->v.window,
                                                                  .sink = video->v.sink}));
    assert_ok(ctx, carry_dit_cache_text(cache, text_of(dit, video)));
    return cache;
}

static void assert_video(const char *what, const carry_dit *dit, cut_video *video) {
    double *wanted = wanted_velocity(dit, video);
    double error = velocity_error(dit, video, wanted, 0, video->v.frames);
    if (!(error <= BOUND)) {
        fail_msg("%s: dim %lld, heads %lld, window %lld, sink %lld: relative RMS %.3g", what,
                 (long long)dit->config.dim, (long long)dit->config.num_heads, (long long)video->v.window,
                 (long long)video->v.sink, error);
    }
    free(wanted);
}

static void check_whole(const carry_dit_config *config, int64_t frames, int64_t height, int64_t width, int64_t rows) {
    carry_dit *dit = small_dit(ctx, config);
    cut_video video = cut(ctx, config, height, width, &frames, 1);
    video.v.text_rows = rows;
    carry_dit_cache *cache = cache_for(dit, &video, frames, 1);
    assert_ok(ctx, run_chunks(dit, cache, &video, video.latents, 0, 1, true));
    assert_video("whole", dit, &video);
    carry_dit_cache_free(cache);
    carry_dit_free(dit);
    close_video(&video);
}

static void test_whole_videos_match_float64(void **state) {
    (void)state;
    carry_dit_config c = small_config();
    static const int64_t heads[] = {2, 4, 6, 10, 16, 22, 34};
    for (size_t i = 0; i < sizeof heads / sizeof heads[0]; i++) { /* sizes at which the thirds of pairs are rounded */
        c.num_heads = 3;
        c.dim = 3 * heads[i];
        check_whole(&c, 1 + (int64_t)i % 3, 4, 6, (int64_t)i % 6);
    }
    c = small_config();
    c.qk_norm = false;
    check_whole(&c, 2, 6, 4, 5);
    c.cross_attn_norm = false;
    check_whole(&c, 2, 2, 2, 1);
    c.qk_norm = true;
    c.num_layers = 1;
    c.patch[1] = 1;
    c.patch[2] = 3;
    c.in_dim = 3;
    c.out_dim = 5;
    check_whole(&c, 3, 3, 9, 5);
}

/* Chunk by chunk over the cache, for odd lengths, windows, sinks and biases: equal to all frames at once. */
static void test_chunks_over_the_cache_equal_the_full_causal_computation(void **state) {
    (void)state;
    static const struct {
        int64_t length[12];
        int chunks;
        int64_t chunk, window, sink;
        double bias;
    } cases[] = {{{3, 3, 3, 3, 3}, 5, 3, 15, 0, 0.0},      {{3, 3, 3, 3, 3, 3}, 6, 3, 6, 0, 0.0},
                 {{1, 1, 1, 1, 1, 1, 1}, 7, 1, 1, 0, 0.0}, {{1, 1, 1, 1, 1, 1, 1, 1}, 8, 1, 3, 1, -0.7},
                 {{3, 1, 2, 3, 1, 3, 2}, 7, 3, 7, 2, 0.0}, {{2, 3, 1, 3, 3, 2, 3}, 7, 3, 8, 0, -1.2},
                 {{2, 3, 1, 3, 3, 2, 3}, 7, 3, 8, 5, 0.5}, {{5, 5, 5}, 3, 5, 7, 2, -2.0},
                 {{2, 2, 2, 2, 2, 2}, 6, 2, 11, 4, -0.3},  {{1, 4, 1, 4}, 4, 4, 4, 0, -1.0}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        carry_dit_config c = small_config();
        carry_dit *dit = small_dit(ctx, &c);
        cut_video video = cut(ctx, &c, 4, 2, cases[i].length, cases[i].chunks);
        video.v.window = cases[i].window;
        video.v.sink = cases[i].sink;
        video.v.bias = cases[i].bias;
        carry_dit_cache *cache = cache_for(dit, &video, cases[i].chunk, 1);
        int64_t end = 0;
        for (int chunk = 0; chunk < cases[i].chunks; chunk++) {
            assert_ok(ctx, run_chunks(dit, cache, &video, video.latents, chunk, chunk + 1, true));
            end += cases[i].length[chunk];
            assert_int_equal(carry_dit_cache_next(cache), end);
            assert_int_equal(carry_dit_cache_held(cache), end < cases[i].window ? end : cases[i].window);
        }
        assert_video("chunks", dit, &video);
        carry_dit_cache_free(cache);
        carry_dit_free(dit);
        close_video(&video);
    }
}

/* Another window, sink or bias would not pass the comparison above. */
static void test_window_sink_and_bias_make_a_difference(void **state) {
    (void)state;
    static const int64_t lengths[] = {3, 3, 3, 3};
    carry_dit_config c = small_config();
    carry_dit *dit = small_dit(ctx, &c);
    cut_video video = cut(ctx, &c, 4, 2, lengths, 4);
    video.v.window = 7;
    video.v.sink = 1;
    video.v.bias = -0.5;
    carry_dit_cache *cache = cache_for(dit, &video, 3, 1);
    for (int chunk = 0; chunk < 4; chunk++) {
        assert_ok(ctx, run_chunks(dit, cache, &video, video.latents, chunk, chunk + 1, true));
    }
    assert_video("as it is", dit, &video);
    for (int other = 0; other < 3; other++) {
        video.v.window = other == 0 ? 8 : 7;
        video.v.sink = other == 1 ? 0 : 1;
        video.v.bias = other == 2 ? -0.4 : -0.5;
        double *wanted = wanted_velocity(dit, &video);
        assert_true(velocity_error(dit, &video, wanted, 9, 12) > 1e-3);
        free(wanted);
    }
    carry_dit_cache_free(cache);
    carry_dit_free(dit);
    close_video(&video);
}

/* A stream batch: three chunks in a call, one step further each time, as a pipeline of denoising steps runs them. The
   chunk of the last call sees the keys that the others left, and every velocity equals that of the full computation. */
static void test_several_chunks_in_one_call_equal_chunk_after_chunk(void **state) {
    (void)state;
    static const int64_t lengths[] = {2, 2, 2, 2, 2, 2, 2, 2};
    for (int64_t sink = 0; sink < 3; sink += 2) {
        carry_dit_config c = small_config();
        carry_dit *dit = small_dit(ctx, &c);
        cut_video video = cut(ctx, &c, 2, 4, lengths, 8);
        video.v.window = 5;
        video.v.sink = sink;
        video.v.bias = -0.4;
        carry_dit_cache *cache = cache_for(dit, &video, 2, 3);
        assert_ok(ctx, run_chunks(dit, cache, &video, video.latents, 0, 3, true)); /* no frame is known yet */
        for (int first = 0; first + 3 <= 8; first++) {
            float *noise = random_floats(ctx, 16 * 16 * 8, 100); /* of an earlier step */
            assert_ok(ctx, run_chunks(dit, cache, &video, noise, first, first + 3, true));
            free(noise);
            assert_ok(ctx, run_chunks(dit, cache, &video, video.latents, first, first + 3, true));
            assert_int_equal(carry_dit_cache_next(cache), 2 * (first + 3));
        }
        assert_video("several", dit, &video);
        carry_dit_cache_free(cache);
        carry_dit_free(dit);
        close_video(&video);
    }
}

/* A cache whose chunk is a whole context takes it in pieces, each of which sees those before it: a recompute. */
static void test_a_context_is_written_in_one_call(void **state) {
    (void)state;
    static const int64_t lengths[] = {1, 2, 1, 2};
    carry_dit_config c = small_config();
    carry_dit *dit = small_dit(ctx, &c);
    cut_video video = cut(ctx, &c, 2, 4, lengths, 4);
    carry_dit_cache *cache = cache_for(dit, &video, 6, 1);
    for (int round = 0; round < 2; round++) {
        assert_ok(ctx, run_chunks(dit, cache, &video, video.latents, 0, 4, true));
        assert_video("context", dit, &video);
        carry_dit_cache_reset(cache);
    }
    carry_dit_cache_free(cache);
    carry_dit_free(dit);
    close_video(&video);
}

/* A stream batch fills up: with 64 heads, 200 tokens need more memory for attention than the 300 of the full batch. */
static void test_a_batch_that_fills_up_has_memory_for_every_number_of_chunks(void **state) {
    (void)state;
    static const int64_t lengths[] = {1, 1, 1};
    carry_dit_config c = small_config();
    c.dim = 128;
    c.num_heads = 64;
    c.text_len = 64;
    carry_dit *dit = small_dit(ctx, &c);
    cut_video video = cut(ctx, &c, 20, 20, lengths, 3);
    carry_dit_cache *cache = cache_for(dit, &video, 1, 3);
    for (int chunks = 1; chunks <= 3; chunks++) {
        carry_dit_cache_reset(cache);
        assert_ok(ctx, run_chunks(dit, cache, &video, video.latents, 0, chunks, true));
    }
    carry_dit_cache_free(cache);
    carry_dit_free(dit);
    close_video(&video);
}

/* Every denoising step overwrites its own keys, and the clean pass leaves those of t = 0. */
static void test_steps_overwrite_and_the_clean_pass_is_what_later_chunks_see(void **state) {
    (void)state;
    static const int64_t lengths[] = {2, 1, 2, 2};
    carry_dit_config c = small_config();
    carry_dit *dit = small_dit(ctx, &c);
    cut_video video = cut(ctx, &c, 4, 2, lengths, 4);
    video.v.window = 4;
    video.v.sink = 1;
    carry_dit_cache *cache = cache_for(dit, &video, 2, 1);
    float *noise = random_floats(ctx, 16 * 7 * 8, 50);
    for (int chunk = 0; chunk < 4; chunk++) {
        for (double t = 1000.0; t > 0.0; t -= 400.0) {
            video.t[video.start[2 * chunk - (chunk > 1)]] = t;
            assert_ok(ctx, run_chunks(dit, cache, &video, noise, chunk, chunk + 1, true));
        }
        for (int f = 0; f < 7; f++) {
            video.t[f] = 0.0;
        }
        bool last = chunk == 3;
        assert_ok(ctx, run_chunks(dit, cache, &video, video.latents, chunk, chunk + 1, last));
    }
    double *wanted = wanted_velocity(dit, &video);
    assert_true(velocity_error(dit, &video, wanted, 5, 7) <= BOUND);
    free(wanted);
    free(noise);
    carry_dit_cache_free(cache);
    carry_dit_free(dit);
    close_video(&video);
}

/* The same bits again after a cut, on any number of threads, and with a text that was set in between. */
static void test_a_cut_forgets_frames_and_keeps_the_text(void **state) {
    (void)state;
    static const int64_t lengths[] = {2, 2, 2};
    float *kept = NULL;
    for (int threads = 1; threads <= 3; threads++) {
        carry_ctx *own = support_ctx(threads, NULL, NULL);
        carry_dit_config c = small_config();
        carry_dit *dit = small_dit(own, &c);
        cut_video video = cut(own, &c, 4, 4, lengths, 3);
        video.v.window = 3;
        carry_dit_cache *cache = cache_for(dit, &video, 2, 1);
        const size_t bytes = (size_t)(16 * 6 * 16) * sizeof(float);
        for (int round = 0; round < 3; round++) {
            memset(video.velocity, 255, bytes);
            for (int chunk = 0; chunk < 3; chunk++) {
                assert_ok(own, run_chunks(dit, cache, &video, video.latents, chunk, chunk + 1, true));
            }
            kept = kept == NULL ? memcpy(malloc(bytes), video.velocity, bytes) : kept;
            assert_memory_equal(video.velocity, kept, bytes);
            carry_dit_cache_reset(cache);
            assert_int_equal(carry_dit_cache_next(cache), 0);
            assert_int_equal(carry_dit_cache_held(cache), 0);
            assert_ok(own, carry_dit_cache_text(cache, carry_view_2d(video.text, CARRY_F32, 1, c.text_dim)));
            assert_ok(own, carry_dit_cache_text(cache, text_of(dit, &video)));
        }
        carry_dit_cache_free(cache);
        carry_dit_free(dit);
        close_video(&video);
        carry_ctx_free(own);
    }
    free(kept);
}

static void test_starts_that_do_not_fit_are_refused(void **state) {
    (void)state;
    static const int64_t lengths[] = {2, 2, 2, 2, 2, 2};
    carry_dit_config c = small_config();
    carry_dit *dit = small_dit(ctx, &c);
    cut_video video = cut(ctx, &c, 4, 2, lengths, 6);
    video.v.window = 4;
    carry_dit_cache *cache = cache_for(dit, &video, 2, 2);
    assert_refused(ctx, CARRY_ERANGE, "next frame is 0", run_chunks(dit, cache, &video, video.latents, 1, 2, true));
    assert_refused(ctx, CARRY_ESHAPE, "6 frames: up to 4", run_chunks(dit, cache, &video, video.latents, 0, 3, true));
    for (int chunk = 0; chunk < 6; chunk++) {
        assert_ok(ctx, run_chunks(dit, cache, &video, video.latents, chunk, chunk + 1, true));
    }
    assert_refused(ctx, CARRY_ERANGE, "not among the newest",
                   run_chunks(dit, cache, &video, video.latents, 3, 4, true));
    assert_ok(ctx, run_chunks(dit, cache, &video, video.latents, 4, 5, true)); /* and frames after it are forgotten */
    assert_int_equal(carry_dit_cache_next(cache), 10);
    assert_refused(ctx, CARRY_ERANGE, "not among the newest",
                   run_chunks(dit, cache, &video, video.latents, 3, 4, true));
    assert_ok(ctx, run_chunks(dit, cache, &video, video.latents, 4, 6, true));
    assert_video("gone back", dit, &video);
    video.v.bias = NAN;
    assert_refused(ctx, CARRY_ERANGE, "bias", run_chunks(dit, cache, &video, video.latents, 5, 6, true));
    video.v.bias = 0.0;
    video.t[10] = 1001.0;
    assert_refused(ctx, CARRY_ERANGE, "1001", run_chunks(dit, cache, &video, video.latents, 5, 6, true));
    video.t[10] = NAN;
    assert_refused(ctx, CARRY_ERANGE, "nan", run_chunks(dit, cache, &video, video.latents, 5, 6, true));
    carry_dit_cache_free(cache);
    carry_dit_free(dit);
    close_video(&video);
}

/* A chunk of F frames of 2 x 2. */
static carry_status run_frames(carry_dit *dit, carry_dit_cache *cache, float *latents, int64_t frames, int64_t start) {
    const carry_dit_chunk chunk = {
        .latents = carry_view_4d(latents, CARRY_F32, 16, frames, 2, 2), .t = 10.0, .start = start};
    return carry_dit_forward(dit, cache, &chunk, 1, 0.0f);
}

static void test_positions_run_out(void **state) {
    (void)state;
    carry_dit_config c = small_config();
    carry_dit *dit = small_dit(ctx, &c);
    carry_dit_cache *cache;
    assert_ok(ctx, carry_dit_cache_new(
                       dit, &cache,
                       &(carry_dit_cache_options){.height = 2, .width = 2, .chunk = 100, .window = 103, .sink = 2}));
    float *latents = random_floats(ctx, 16 * 100 * 4, 9);
    assert_refused(ctx, CARRY_EARGUMENT, "no text", run_frames(dit, cache, latents, 1, 0));
    assert_ok(ctx, carry_dit_cache_text(cache, (carry_tensor){.data = NULL})); /* an empty prompt is one too */
    for (int64_t start = 0; start < 1000; start += 100) {
        assert_ok(ctx, run_frames(dit, cache, latents, 100, start));
    }
    assert_refused(ctx, CARRY_ERANGE, "1000 to 1024", run_frames(dit, cache, latents, 25, 1000));
    assert_ok(ctx, run_frames(dit, cache, latents, 24, 1000));
    assert_refused(ctx, CARRY_ERANGE, "a cut starts them again", run_frames(dit, cache, latents, 1, 1024));
    carry_dit_cache_reset(cache);
    assert_ok(ctx, run_frames(dit, cache, latents, 1, 0));
    free(latents);
    carry_dit_cache_free(cache);
    carry_dit_free(dit);
}

static void test_tensors_and_options_that_do_not_fit_are_refused(void **state) {
    (void)state;
    carry_dit_config c = small_config();
    carry_dit *dit = small_dit(ctx, &c);
    carry_dit_cache *cache;
    carry_dit_cache_options o = {.height = 4, .width = 5, .chunk = 2, .window = 2};
    assert_refused(ctx, CARRY_ESIZE, "4 x 4 is the nearest", carry_dit_cache_new(dit, &cache, &o));
    assert_null(cache);
    assert_refused(ctx, CARRY_ESIZE, "2 x 2048 is the nearest", carry_dit_check_size(ctx, &c, 0, 5000));
    assert_refused(ctx, CARRY_ESIZE, "2048 x 2 is the nearest", carry_dit_check_size(ctx, &c, INT64_MAX, -7));
    o.width = 6;
    o.sink = 1;
    assert_refused(ctx, CARRY_ERANGE, "must hold sink and chunk", carry_dit_cache_new(dit, &cache, &o));
    o.window = 1025;
    assert_refused(ctx, CARRY_ERANGE, "at most 1024", carry_dit_cache_new(dit, &cache, &o));
    o.window = 3;
    o.chunks = 65;
    assert_refused(ctx, CARRY_ERANGE, "65 chunks", carry_dit_cache_new(dit, &cache, &o));
    o.chunks = 1;
    assert_ok(ctx, carry_dit_cache_new(dit, &cache, &o));
    assert_true(carry_dit_cache_bytes(cache) > (size_t)(2 * 2 * 3 * 6 * 72) * sizeof(float));
    float numbers[16 * 2 * 24];
    memset(numbers, 0, sizeof numbers);
    assert_refused(ctx, CARRY_ESHAPE, "[6, 7]", carry_dit_cache_text(cache, carry_view_2d(numbers, CARRY_F32, 6, 7)));
    assert_refused(ctx, CARRY_ESHAPE, "[up to 5, 7]",
                   carry_dit_cache_text(cache, carry_view_2d(numbers, CARRY_F32, 5, 8)));
    assert_ok(ctx, carry_dit_cache_text(cache, carry_view_2d(numbers, CARRY_F32, 5, 7)));
    carry_dit_chunk chunk = {.latents = carry_view_4d(numbers, CARRY_F32, 16, 2, 4, 4), .t = 0.0};
    assert_refused(ctx, CARRY_ESHAPE, "latents", carry_dit_forward(dit, cache, &chunk, 1, 0.0f));
    chunk.latents = carry_view_4d(numbers, CARRY_F32, 16, 3, 4, 6);
    assert_refused(ctx, CARRY_ESHAPE, "3 frames", carry_dit_forward(dit, cache, &chunk, 1, 0.0f));
    chunk.latents = carry_view_4d(numbers, CARRY_F32, 16, 2, 4, 6);
    chunk.velocity = carry_view_4d(numbers, CARRY_F32, 16, 1, 4, 6);
    assert_refused(ctx, CARRY_ESHAPE, "velocity has 1", carry_dit_forward(dit, cache, &chunk, 1, 0.0f));
    chunk.velocity.data = NULL;
    chunk.latents.dtype = CARRY_BF16;
    assert_refused(ctx, CARRY_EDTYPE, "f32", carry_dit_forward(dit, cache, &chunk, 1, 0.0f));
    chunk.latents.dtype = CARRY_F32;
    assert_refused(ctx, CARRY_EARGUMENT, "65 chunks", carry_dit_forward(dit, cache, &chunk, 65, 0.0f));
    assert_refused(ctx, CARRY_EARGUMENT, "0 chunks", carry_dit_forward(dit, cache, &chunk, 0, 0.0f));
    assert_ok(ctx, carry_dit_forward(dit, cache, &chunk, 1, 0.0f));
    carry_dit_cache_free(cache);
    carry_dit_free(dit);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_whole_videos_match_float64),
        cmocka_unit_test(test_chunks_over_the_cache_equal_the_full_causal_computation),
        cmocka_unit_test(test_window_sink_and_bias_make_a_difference),
        cmocka_unit_test(test_several_chunks_in_one_call_equal_chunk_after_chunk),
        cmocka_unit_test(test_a_context_is_written_in_one_call),
        cmocka_unit_test(test_a_batch_that_fills_up_has_memory_for_every_number_of_chunks),
        cmocka_unit_test(test_steps_overwrite_and_the_clean_pass_is_what_later_chunks_see),
        cmocka_unit_test(test_a_cut_forgets_frames_and_keeps_the_text),
        cmocka_unit_test(test_starts_that_do_not_fit_are_refused),
        cmocka_unit_test(test_positions_run_out),
        cmocka_unit_test(test_tensors_and_options_that_do_not_fit_are_refused),
    };
    return cmocka_run_group_tests(tests, open_ctx, close_ctx);
}
