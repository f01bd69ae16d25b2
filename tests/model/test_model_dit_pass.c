/* The training pass of the video transformer: gradients of every parameter against differences of the loss; the same
   bits on 1, 2 and 3 threads; which chunks a chunk sees. */
#include "support.h"

#include <math.h>

#include "model/dit/dit_pass.h"

enum { VIDEOS = 2, CHUNKS = 3, FRAMES = 2, SIDE = 4, TEXTS = 2, CHANNELS = 16 };
enum { CHUNK = CHANNELS * FRAMES * SIDE * SIDE, PLACES = VIDEOS * CHUNKS };

typedef struct problem {
    carry_ctx *ctx;
    carry_dit *dit;
    carry_dit_pass *pass;
    float *clean, *noisy, *target, *velocity, *text;
    int64_t text_count;
    double t[PLACES];
    int64_t caption[PLACES], start[VIDEOS];
    float weight[PLACES];
    void *memory;
    carry_dit_pass_args args;
    double loss;
} problem;

static float *numbers(carry_ctx *ctx, int64_t count, uint64_t stream) {
    float *x = malloc((size_t)count * sizeof *x);
    assert_non_null(x);
    assert_ok(ctx, carry_random_normal(ctx, carry_view_1d(x, CARRY_F32, count), 5, stream, 0.0f, 1.0f));
    return x;
}

static carry_tensor all(float *x) {
    const int64_t shape[] = {VIDEOS, CHUNKS, CHANNELS, FRAMES, SIDE, SIDE};
    return carry_view(x, CARRY_F32, 6, shape);
}

/* Odd sizes, and a window of one and a half chunks. */
static void open_problem(problem *p, int threads) {
    carry_dit_config c;
    *p = (problem){.ctx = support_ctx(threads, NULL, NULL)};
    assert_ok(p->ctx, carry_dit_config_named(p->ctx, &c, "shapes"));
    c.dim = 36;
    c.ffn_dim = 29;
    c.num_heads = 3;
    c.num_layers = 2;
    c.text_len = 3;
    c.text_dim = 5;
    c.freq_dim = 10;
    assert_ok(p->ctx, carry_dit_new(p->ctx, &p->dit, &c, NULL, 0));
    assert_ok(p->ctx, carry_dit_init(p->dit, 3));
    p->dit->own.gradients = calloc((size_t)p->dit->own.count, sizeof(float));
    assert_non_null(p->dit->own.gradients);
    const carry_dit_pass_options o = {.videos = VIDEOS,
                                      .chunks = CHUNKS,
                                      .frames = FRAMES,
                                      .height = SIDE,
                                      .width = SIDE,
                                      .window = 3,
                                      .texts = TEXTS};
    assert_ok(p->ctx, carry_dit_pass_new(p->dit, &p->pass, &o));
    p->clean = numbers(p->ctx, PLACES * CHUNK, 1);
    p->noisy = numbers(p->ctx, PLACES * CHUNK, 2);
    p->target = numbers(p->ctx, PLACES * CHUNK, 3);
    p->velocity = numbers(p->ctx, PLACES * CHUNK, 4);
    p->text_count = VIDEOS * TEXTS * c.text_len * c.text_dim;
    p->text = numbers(p->ctx, p->text_count, 5);
    for (int i = 0; i < PLACES; i++) {
        p->t[i] = 990.0 - 160.0 * i;
        p->caption[i] = (i / 2) % TEXTS;
        p->weight[i] = i == 1 ? 0.0f : 0.5f + 0.25f * (float)i;
    }
    p->start[1] = 700;
    p->memory = malloc(carry_dit_pass_memory(p->pass));
    assert_non_null(p->memory);
    p->args = (carry_dit_pass_args){
        .clean = all(p->clean),
        .noisy = all(p->noisy),
        .text = carry_view_3d(p->text, CARRY_F32, (int64_t)VIDEOS * TEXTS, c.text_len, c.text_dim),
        .t = p->t,
        .caption = p->caption,
        .start = p->start,
        .weight = p->weight,
        .target = all(p->target),
        .velocity = all(p->velocity),
        .backward = true,
        .scale = 1.0 / (PLACES * CHUNK),
        .loss = &p->loss};
}

static void close_problem(problem *p) {
    carry_dit_pass_free(p->pass);
    carry_dit_free(p->dit);
    carry_ctx_free(p->ctx);
    free(p->clean);
    free(p->noisy);
    free(p->target);
    free(p->velocity);
    free(p->text);
    free(p->memory);
}

static double run(problem *p, bool backward) {
    p->args.backward = backward;
    memset(p->memory, 255, carry_dit_pass_memory(p->pass));
    assert_ok(p->ctx, carry_dit_pass_run(p->pass, &p->args, p->memory, carry_dit_pass_memory(p->pass)));
    return p->loss * p->args.scale;
}

/* Along random signs of every parameter. The loss is near 3 and summed in f64 from f32 outputs, each off by some 2^-22:
   3e-7 of it at worst. Steps change it by 1e-2, so a slope is known to 1e-4 of itself; the effect of the curvature is
   of third order. */
static void test_gradients_match_differences(void **state) {
    (void)state;
    problem p;
    open_problem(&p, 2);
    const double loss = run(&p, true);
    carry_parameters *own = &p.dit->own;
    assert_true(isfinite(loss) && loss > 0.5);
    float *saved = malloc((size_t)own->count * sizeof *saved);
    float *sign = malloc((size_t)own->count * sizeof *sign);
    assert_true(saved != NULL && sign != NULL);
    for (int64_t i = 0; i < own->parameters; i += support_cases(1, 3)) {
        const carry_parameter *q = &own->parameter[i];
        float *w = own->weights + q->offset;
        const float *g = own->gradients + q->offset;
        const carry_tensor signs = carry_view_1d(sign, CARRY_F32, q->count);
        assert_ok(p.ctx, carry_random_uniform(p.ctx, signs, 9, (uint64_t)i, -1.0f, 1.0f));
        memcpy(saved, w, (size_t)q->count * sizeof *w);
        double slope = 0.0;
        double size = 0.0;
        for (int64_t j = 0; j < q->count; j++) {
            sign[j] = sign[j] < 0.0f ? -1.0f : 1.0f;
            slope += (double)sign[j] * (double)g[j];
            size += (double)g[j] * (double)g[j];
        }
        assert_true(size > 0.0);
        const double h = fmin(0.004 / sqrt(size), 0.02 / sqrt(sqrt((double)q->count)));
        double at[2];
        for (int side = 0; side < 2; side++) {
            for (int64_t j = 0; j < q->count; j++) {
                w[j] = saved[j] + (side == 0 ? -(float)h : (float)h) * sign[j];
            }
            at[side] = run(&p, false);
        }
        memcpy(w, saved, (size_t)q->count * sizeof *w);
        const double got = (at[1] - at[0]) / (2.0 * h);
        const double allowed = 2e-3 * sqrt(size) + 6e-7 * loss / h;
        if (!(fabs(got - slope) <= allowed)) {
            fail_msg("%s: the slope is %.6g and the gradients say %.6g, %.2g apart of %.2g allowed", q->name, got,
                     slope, fabs(got - slope), allowed);
        }
    }
    free(saved);
    free(sign);
    close_problem(&p);
}

static void test_threads_change_nothing(void **state) {
    (void)state;
    problem one;
    open_problem(&one, 1);
    const double loss = run(&one, true);
    for (int threads = 2; threads <= 3; threads++) {
        problem more;
        open_problem(&more, threads);
        assert_true(run(&more, true) == loss);
        assert_memory_equal(one.dit->own.gradients, more.dit->own.gradients,
                            (size_t)one.dit->own.count * sizeof(float));
        assert_memory_equal(one.velocity, more.velocity, (size_t)(PLACES * CHUNK) * sizeof(float));
        close_problem(&more);
    }
    close_problem(&one);
}

/* Sets differs[i] if the velocity of chunk i has changed. */
static void changed(problem *p, const float *before, bool differs[PLACES]) {
    (void)run(p, false);
    for (int i = 0; i < PLACES; i++) {
        differs[i] = memcmp(before + i * CHUNK, p->velocity + i * CHUNK, CHUNK * sizeof(float)) != 0;
    }
}

static void test_a_chunk_sees_the_clean_ones_before_it_and_itself(void **state) {
    (void)state;
    problem p;
    bool differs[PLACES];
    open_problem(&p, 1);
    (void)run(&p, false);
    float *before = malloc(PLACES * CHUNK * sizeof *before);
    assert_non_null(before);
    memcpy(before, p.velocity, PLACES * CHUNK * sizeof *before);
    for (int i = 0; i < PLACES; i++) {
        const int last = (i / CHUNKS + 1) * CHUNKS;
        const float own = p.noisy[i * CHUNK];
        p.noisy[i * CHUNK] += 1.0f; /* alone in what it is */
        changed(&p, before, differs);
        for (int j = 0; j < PLACES; j++) {
            assert_int_equal(differs[j], j == i);
        }
        p.noisy[i * CHUNK] = own;
        const float saved = p.clean[i * CHUNK + SIDE * SIDE]; /* in the second frame, which is inside the window */
        p.clean[i * CHUNK + SIDE * SIDE] += 1.0f;
        changed(&p, before, differs);
        for (int j = 0; j < PLACES; j++) {
            const bool sees =
                j > i && j < last; /* after two blocks also the chunk after next, through the one between */
            assert_int_equal(differs[j], sees);
        }
        p.clean[i * CHUNK + SIDE * SIDE] = saved;
        memcpy(p.velocity, before, PLACES * CHUNK * sizeof *before);
    }
    free(before);
    close_problem(&p);
}

/* A stream that goes chunk by chunk over its cache gives the results of the training pass. The two round in different
   orders: some 2^-24 times the square root of a few hundred terms, over two blocks. Positions are relative, so a video
   that starts at frame 700 equals the stream that starts at 0, to the rounding of sines and cosines. */
static void test_the_stream_over_its_cache_is_what_is_trained(void **state) {
    (void)state;
    problem p;
    open_problem(&p, 1);
    (void)run(&p, false);
    carry_dit_cache *cache;
    const carry_dit_cache_options o = {.height = SIDE, .width = SIDE, .chunk = FRAMES, .window = 3};
    const int64_t text = p.args.text.shape[1] * p.args.text.shape[2];
    float *got = malloc(CHUNK * sizeof *got);
    assert_non_null(got);
    assert_ok(p.ctx, carry_dit_cache_new(p.dit, &cache, &o));
    for (int i = 0; i < PLACES; i++) {
        const int64_t start = i % CHUNKS * FRAMES;
        if (start == 0) {
            carry_dit_cache_reset(cache);
        }
        const int64_t caption = i / CHUNKS * TEXTS + p.caption[i];
        assert_ok(p.ctx, carry_dit_cache_text(cache, carry_view_2d(p.text + caption * text, CARRY_F32,
                                                                   p.args.text.shape[1], p.args.text.shape[2])));
        const carry_dit_chunk noisy = {.velocity = carry_view_4d(got, CARRY_F32, CHANNELS, FRAMES, SIDE, SIDE),
                                       .latents =
                                           carry_view_4d(p.noisy + i * CHUNK, CARRY_F32, CHANNELS, FRAMES, SIDE, SIDE),
                                       .t = p.t[i],
                                       .start = start};
        assert_ok(p.ctx, carry_dit_forward(p.dit, cache, &noisy, 1, 0.0f));
        double off = 0.0;
        double size = 0.0;
        for (int j = 0; j < CHUNK; j++) {
            const double want = (double)p.velocity[i * CHUNK + j];
            off += ((double)got[j] - want) * ((double)got[j] - want);
            size += want * want;
        }
        if (!(sqrt(off) <= 1e-5 * sqrt(size))) {
            fail_msg("chunk %d of video %d is %.2g off", i % CHUNKS, i / CHUNKS, sqrt(off / size));
        }
        const carry_dit_chunk clean = {
            .latents = carry_view_4d(p.clean + i * CHUNK, CARRY_F32, CHANNELS, FRAMES, SIDE, SIDE), .start = start};
        assert_ok(p.ctx, carry_dit_forward(p.dit, cache, &clean, 1, 0.0f));
    }
    free(got);
    carry_dit_cache_free(cache);
    close_problem(&p);
}

static void test_what_does_not_fit_is_refused(void **state) {
    (void)state;
    problem p;
    carry_dit_pass *none;
    open_problem(&p, 1);
    carry_dit_pass_options o = {
        .videos = 1, .chunks = 1, .frames = 2, .height = SIDE, .width = SIDE, .window = 1, .texts = 1};
    assert_refused(p.ctx, CARRY_EARGUMENT, "window", carry_dit_pass_new(p.dit, &none, &o));
    o.window = 2;
    o.videos = INT64_MAX / 2;
    assert_refused(p.ctx, CARRY_ESIZE, "rows", carry_dit_pass_new(p.dit, &none, &o));
    p.caption[2] = TEXTS;
    assert_refused(p.ctx, CARRY_ERANGE, "caption",
                   carry_dit_pass_run(p.pass, &p.args, p.memory, carry_dit_pass_memory(p.pass)));
    p.caption[2] = 0;
    p.start[0] = CARRY_DIT_POSITIONS;
    assert_refused(p.ctx, CARRY_ERANGE, "start",
                   carry_dit_pass_run(p.pass, &p.args, p.memory, carry_dit_pass_memory(p.pass)));
    p.start[0] = 0;
    assert_refused(p.ctx, CARRY_EWORKSPACE, "bytes",
                   carry_dit_pass_run(p.pass, &p.args, p.memory, carry_dit_pass_memory(p.pass) - 1));
    close_problem(&p);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_gradients_match_differences),
        cmocka_unit_test(test_threads_change_nothing),
        cmocka_unit_test(test_a_chunk_sees_the_clean_ones_before_it_and_itself),
        cmocka_unit_test(test_the_stream_over_its_cache_is_what_is_trained),
        cmocka_unit_test(test_what_does_not_fit_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
