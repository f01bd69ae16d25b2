/* Codecs: the dct kind by its mathematics and by the loss of pictures, and common properties of all kinds: refusals,
   and a stream that equals the whole. The tae kind has test_model_tae.c. */
#include "support.h"

#include <math.h>
#include <stdbool.h>

#include "core/rng.h"
#include "model/codec/codec.h"

enum { HEIGHT = 64, WIDTH = 96, PICTURES = 512, AREA = HEIGHT * WIDTH };
enum { ROWS = HEIGHT / 8, COLUMNS = WIDTH / 8, BLOCKS = ROWS * COLUMNS };

static carry_ctx *ctx;

static int open_context(void **state) {
    (void)state;
    ctx = support_ctx(2, NULL, NULL);
    return 0;
}

static int close_context(void **state) {
    (void)state;
    carry_ctx_free(ctx);
    return 0;
}

static float *numbers(int64_t count) {
    float *made = malloc((size_t)count * sizeof *made);
    assert_non_null(made);
    memset(made, 255, (size_t)count * sizeof *made);
    return made;
}

static carry_tensor frames_of(float *data, int64_t n) {
    return carry_view_4d(data, CARRY_F32, n, 3, HEIGHT, WIDTH);
}

static carry_tensor latents_of(float *data, int64_t n) {
    return carry_view_4d(data, CARRY_F32, 16, n, ROWS, COLUMNS);
}

static carry_codec *open_dct(int64_t most) {
    carry_codec *codec;
    assert_ok(ctx,
              carry_codec_open(ctx, &codec, NULL, &(carry_codec_size){.height = HEIGHT, .width = WIDTH, .most = most}));
    return codec;
}

static double uniform(uint64_t seed, uint64_t at) {
    return carry_philox(seed, 0, at).word[0] * 0x1p-32;
}

/* One shape (disc, square or triangle) of one colour on a dark ground, with random size and position. */
static void draw_shape(float *frame, uint64_t picture) {
    static const float colours[][3] = {{0.9f, 0.1f, 0.1f},    {0.1f, 0.9f, 0.1f}, {0.15f, 0.2f, 0.95f},
                                       {0.9f, 0.9f, 0.1f},    {0.9f, 0.1f, 0.9f}, {0.1f, 0.9f, 0.9f},
                                       {0.95f, 0.95f, 0.95f}, {1.0f, 0.5f, 0.0f}};
    const float *colour = colours[(int)(uniform(picture, 0) * 8.0)];
    int kind = (int)(uniform(picture, 1) * 3.0);
    double radius = HEIGHT * (0.12 + 0.16 * uniform(picture, 2));
    double cx = radius + (WIDTH - 2.0 * radius) * uniform(picture, 3);
    double cy = radius + (HEIGHT - 2.0 * radius) * uniform(picture, 4);
    for (int y = 0; y < HEIGHT; y++) {
        for (int x = 0; x < WIDTH; x++) {
            double dx = x + 0.5 - cx;
            double dy = y + 0.5 - cy;
            bool inside = kind == 0   ? dx * dx + dy * dy < radius * radius
                          : kind == 1 ? fabs(dx) < radius && fabs(dy) < radius
                                      : fabs(dy) < radius && 2.0 * fabs(dx) < radius + dy;
            for (int c = 0; c < 3; c++) {
                frame[c * AREA + y * WIDTH + x] = inside ? colour[c] : 0.06f;
            }
        }
    }
}

/* Long waves of different direction in each colour: 6 blocks and more. Chroma is linear within a block, so shorter
   waves lose it: a wavelength of 19 pixels gives 27 dB. */
static void draw_waves(float *frame, uint64_t picture) {
    for (int c = 0; c < 3; c++) {
        double fx = 2.0 * uniform(picture, 10 + (uint64_t)c) / WIDTH;
        double fy = 1.3 * uniform(picture, 20 + (uint64_t)c) / HEIGHT;
        for (int i = 0; i < AREA; i++) {
            frame[c * AREA + i] = 0.5f + 0.4f * (float)sin(6.2831853 * (fx * (i % WIDTH) + fy * (i / WIDTH)) + c);
        }
    }
}

static float *drawn(void (*draw)(float *, uint64_t), int64_t count) {
    float *frames = numbers(count * 3 * AREA);
    for (int64_t i = 0; i < count; i++) {
        draw(frames + i * 3 * AREA, (uint64_t)i);
    }
    return frames;
}

/* The tables of dct.c are made from drawn shapes: every channel has mean 0 and deviation 1 to 0.15. They are the same
   for a coefficient and its transpose, but triangles are not symmetric: that alone is off by 0.13 (channels 7 and
   8). */
static void test_latents_of_drawn_shapes_have_unit_variance(void **state) {
    (void)state;
    carry_codec *codec = open_dct(PICTURES);
    float *frames = drawn(draw_shape, PICTURES);
    float *latents = numbers((int64_t)16 * PICTURES * BLOCKS);
    assert_ok(ctx, carry_codec_encode(codec, latents_of(latents, PICTURES), frames_of(frames, PICTURES)));
    double worst = 0.0;
    for (int c = 0; c < 16; c++) {
        double sum = 0.0;
        double squares = 0.0;
        for (int64_t i = 0; i < (int64_t)PICTURES * BLOCKS; i++) {
            double value = latents[c * PICTURES * BLOCKS + i];
            sum += value;
            squares += value * value;
        }
        double mean = sum / (PICTURES * BLOCKS);
        double deviation = sqrt(squares / (PICTURES * BLOCKS) - mean * mean);
        print_message("channel %2d: mean %8.4f, deviation %7.4f\n", c, mean, deviation);
        worst = fmax(worst, fmax(fabs(mean), fabs(deviation - 1.0)));
    }
    if (!(worst < 0.15)) {
        fail_msg("a channel is %.3f off mean 0 and deviation 1", worst);
    }
    free(frames);
    free(latents);
    carry_codec_free(codec);
}

static double psnr_of(void (*draw)(float *, uint64_t)) {
    enum { N = 16 };
    carry_codec *codec = open_dct(N);
    float *frames = drawn(draw, N);
    float *again = numbers((int64_t)N * 3 * AREA);
    float *latents = numbers((int64_t)16 * N * BLOCKS);
    assert_ok(ctx, carry_codec_encode(codec, latents_of(latents, N), frames_of(frames, N)));
    assert_int_equal(carry_codec_frames(codec, N), N);
    assert_ok(ctx, carry_codec_decode(codec, frames_of(again, N), latents_of(latents, N)));
    double squares = 0.0;
    for (int64_t i = 0; i < (int64_t)N * 3 * AREA; i++) {
        assert_true(again[i] >= 0.0f && again[i] <= 1.0f);
        squares += (double)(again[i] - frames[i]) * (again[i] - frames[i]);
    }
    free(frames);
    free(again);
    free(latents);
    carry_codec_free(codec);
    return -10.0 * log10(squares / ((double)N * 3 * AREA));
}

/* 38 dB is a good JPEG. A shape loses its sharp edge and keeps its position, form and colour: 24 dB. */
static void test_pictures_survive_the_round_trip(void **state) {
    (void)state;
    double waves = psnr_of(draw_waves);
    double shapes = psnr_of(draw_shape);
    print_message("round trip: smooth pictures %.1f dB, shapes %.1f dB\n", waves, shapes);
    assert_true(waves > 38.0);
    assert_true(shapes > 24.0);
}

/* The transform is orthonormal and the conversion to YCbCr is inverted: latents whose picture stays within [0, 1] equal
   the latents of their picture. A value is a sum of 64 products of numbers below 8: 64 x 8 x 2^-24 = 3e-5 at most,
   before the division by a deviation of 0.1 or more. */
static void test_latents_are_those_of_their_picture(void **state) {
    (void)state;
    enum { N = 3 };
    carry_codec *codec = open_dct(N);
    int64_t count = (int64_t)16 * N * BLOCKS;
    float *grey = numbers((int64_t)N * 3 * AREA);
    float *frames = numbers((int64_t)N * 3 * AREA);
    float *latents = numbers(count);
    float *again = numbers(count);
    for (int64_t i = 0; i < (int64_t)N * 3 * AREA; i++) {
        grey[i] = 0.5f;
    }
    assert_ok(ctx, carry_codec_encode(codec, latents_of(latents, N), frames_of(grey, N)));
    for (int64_t i = 0; i < count; i++) {
        latents[i] += (float)(0.2 * uniform(7, (uint64_t)i) - 0.1);
    }
    assert_ok(ctx, carry_codec_decode(codec, frames_of(frames, N), latents_of(latents, N)));
    assert_ok(ctx, carry_codec_encode(codec, latents_of(again, N), frames_of(frames, N)));
    for (int64_t i = 0; i < count; i++) {
        if (!(fabsf(again[i] - latents[i]) < 3e-4f)) {
            fail_msg("latent %lld was %.6f and is %.6f", (long long)i, latents[i], again[i]);
        }
    }
    free(grey);
    free(frames);
    free(latents);
    free(again);
    carry_codec_free(codec);
}

/* A picture in one corner: its latents are in that corner, and its colours are not swapped. */
static void test_a_red_corner_stays_red_and_in_its_corner(void **state) {
    (void)state;
    carry_codec *codec = open_dct(1);
    float *frame = numbers(3 * AREA);
    float *latents = numbers((int64_t)16 * BLOCKS);
    memset(frame, 0, (size_t)3 * AREA * sizeof *frame);
    for (int y = 0; y < 8; y++) {
        for (int x = WIDTH - 8; x < WIDTH; x++) {
            frame[y * WIDTH + x] = 1.0f;
        }
    }
    assert_ok(ctx, carry_codec_encode(codec, latents_of(latents, 1), frames_of(frame, 1)));
    for (int i = 0; i < BLOCKS; i++) {
        assert_int_equal(latents[13 * BLOCKS + i] > latents[13 * BLOCKS] + 1.0f, i == COLUMNS - 1); /* Cr's mean */
    }
    memset(frame, 255, (size_t)3 * AREA * sizeof *frame);
    assert_ok(ctx, carry_codec_decode(codec, frames_of(frame, 1), latents_of(latents, 1)));
    for (int c = 0; c < 3; c++) {
        for (int i = 0; i < AREA; i++) {
            bool red = c == 0 && i / WIDTH < 8 && i % WIDTH >= WIDTH - 8;
            assert_true(fabsf(frame[c * AREA + i] - (red ? 1.0f : 0.0f)) < 1e-4f);
        }
    }
    free(frame);
    free(latents);
    carry_codec_free(codec);
}

/* Chunks of any length, and any number of threads, give the same bits. */
static void test_a_stream_equals_the_whole(void **state) {
    (void)state;
    enum { N = 7 };
    carry_ctx *alone = support_ctx(1, NULL, NULL);
    carry_codec *codec = open_dct(N);
    carry_codec *other;
    assert_ok(alone,
              carry_codec_open(alone, &other, NULL, &(carry_codec_size){.height = HEIGHT, .width = WIDTH, .most = 3}));
    float *frames = drawn(draw_shape, N);
    float *latents = numbers((int64_t)16 * N * BLOCKS);
    float *piece = numbers((int64_t)16 * 3 * BLOCKS);
    float *decoded = numbers((int64_t)N * 3 * AREA);
    float *part = numbers((int64_t)3 * 3 * AREA);
    assert_ok(ctx, carry_codec_encode(codec, latents_of(latents, N), frames_of(frames, N)));
    assert_ok(ctx, carry_codec_decode(codec, frames_of(decoded, N), latents_of(latents, N)));
    for (int64_t at = 0; at < N; at += 3) {
        int64_t n = N - at < 3 ? N - at : 3;
        assert_ok(alone, carry_codec_encode(other, latents_of(piece, n), frames_of(frames + at * 3 * AREA, n)));
        for (int64_t c = 0; c < 16; c++) {
            assert_memory_equal(piece + c * n * BLOCKS, latents + (c * N + at) * BLOCKS,
                                (size_t)n * BLOCKS * sizeof *piece);
        }
        assert_ok(alone, carry_codec_decode(other, frames_of(part, n), latents_of(piece, n)));
        assert_memory_equal(part, decoded + at * 3 * AREA, (size_t)n * 3 * AREA * sizeof *part);
    }
    free(frames);
    free(latents);
    free(piece);
    free(decoded);
    free(part);
    carry_codec_free(codec);
    carry_codec_free(other);
    carry_ctx_free(alone);
}

static void test_latents_that_are_no_numbers_give_a_picture(void **state) {
    (void)state;
    carry_codec *codec = open_dct(1);
    float *frame = numbers(3 * AREA);
    float *latents = numbers((int64_t)16 * BLOCKS); /* NaN */
    latents[3] = INFINITY;
    latents[40] = -INFINITY;
    assert_ok(ctx, carry_codec_decode(codec, frames_of(frame, 1), latents_of(latents, 1)));
    for (int i = 0; i < 3 * AREA; i++) {
        assert_true(frame[i] >= 0.0f && frame[i] <= 1.0f);
    }
    free(frame);
    free(latents);
    carry_codec_free(codec);
}

static void test_sizes_that_do_not_fit_are_refused(void **state) {
    (void)state;
    carry_codec *codec;
    assert_refused(ctx, CARRY_ESIZE, "48 and 56",
                   carry_codec_open(ctx, &codec, NULL, &(carry_codec_size){.height = 50, .width = 64, .most = 1}));
    assert_null(codec);
    assert_refused(ctx, CARRY_ESIZE, "width",
                   carry_codec_open(ctx, &codec, NULL, &(carry_codec_size){.height = 64, .width = 0, .most = 1}));
    assert_refused(
        ctx, CARRY_ESIZE, "width",
        carry_codec_open(ctx, &codec, NULL, &(carry_codec_size){.height = 64, .width = INT64_MAX, .most = 1}));
    assert_refused(ctx, CARRY_ESIZE, "latent frames",
                   carry_codec_open(ctx, &codec, NULL, &(carry_codec_size){.height = 64, .width = 64, .most = 0}));
    assert_refused(
        ctx, CARRY_ESIZE, "latent frames",
        carry_codec_open(ctx, &codec, NULL, &(carry_codec_size){.height = 64, .width = 64, .most = INT64_MAX}));
}

static void test_tensors_that_do_not_fit_are_refused(void **state) {
    (void)state;
    carry_codec *codec = open_dct(2);
    float *frames = numbers((int64_t)4 * 3 * AREA);
    float *latents = numbers((int64_t)16 * 4 * BLOCKS);
    assert_refused(ctx, CARRY_ESHAPE, "1 to 2",
                   carry_codec_decode(codec, frames_of(frames, 3), latents_of(latents, 3)));
    assert_refused(ctx, CARRY_ESHAPE, "1 to 2",
                   carry_codec_encode(codec, latents_of(latents, 3), frames_of(frames, 3)));
    assert_refused(ctx, CARRY_ESHAPE, "1 to 2",
                   carry_codec_encode(codec, latents_of(latents, 0), frames_of(frames, 0)));
    assert_refused(ctx, CARRY_ESHAPE, "frames",
                   carry_codec_decode(codec, frames_of(frames, 1), latents_of(latents, 2)));
    assert_refused(ctx, CARRY_ESHAPE, "latents",
                   carry_codec_encode(codec, latents_of(latents, 1), frames_of(frames, 2)));
    carry_tensor odd = latents_of(latents, 1);
    odd.dtype = CARRY_BF16;
    assert_refused(ctx, CARRY_EDTYPE, "latents", carry_codec_decode(codec, frames_of(frames, 1), odd));
    odd = latents_of(latents, 1);
    odd.rank = 3;
    assert_refused(ctx, CARRY_ESHAPE, "rank 3", carry_codec_decode(codec, frames_of(frames, 1), odd));
    odd = latents_of(latents, 1);
    odd.device = 99;
    assert_refused(ctx, CARRY_EDEVICE, "latents", carry_codec_decode(codec, frames_of(frames, 1), odd));
    odd = frames_of(frames, 1);
    odd.stride[2] = WIDTH + 1;
    assert_refused(ctx, CARRY_ESTRIDE, "frames", carry_codec_encode(codec, latents_of(latents, 1), odd));
    free(frames);
    free(latents);
    carry_codec_free(codec);
}

static void write_config(const char *folder, const char *text) {
    char path[256];
    (void)snprintf(path, sizeof path, "%s/config.json", folder);
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    assert_true(fputs(text, file) >= 0);
    assert_int_equal(fclose(file), 0);
}

static void test_a_folder_says_its_kind(void **state) {
    (void)state;
    char folder[] = "codec.XXXXXX";
    const carry_codec_size size = {.height = 16, .width = 16, .most = 1};
    carry_codec *codec;
    assert_non_null(mkdtemp(folder));
    assert_refused(ctx, CARRY_ENOTFOUND, "config.json", carry_codec_open(ctx, &codec, folder, &size));
    write_config(folder, "{\"_class_name\": \"DCT\"}");
    assert_ok(ctx, carry_codec_open(ctx, &codec, folder, &size));
    assert_string_equal(carry_codec_name(codec), "dct");
    assert_int_equal(carry_codec_ratio(codec), 1);
    carry_codec_free(codec);
    write_config(folder, "{\"_class_name\": \"AutoencoderKL\"}");
    assert_refused(ctx, CARRY_EUNSUPPORTED, "AutoencoderKL", carry_codec_open(ctx, &codec, folder, &size));
    write_config(folder, "{}");
    assert_refused(ctx, CARRY_EUNSUPPORTED, "nothing", carry_codec_open(ctx, &codec, folder, &size));
    write_config(folder, "{");
    assert_refused(ctx, CARRY_EFORMAT, "config.json", carry_codec_open(ctx, &codec, folder, &size));
    char path[64];
    (void)snprintf(path, sizeof path, "%s/config.json", folder);
    (void)remove(path);
    (void)remove(folder);
}

static void test_the_table_names_its_kinds(void **state) {
    (void)state;
    const char *about;
    bool dct = false;
    int count = 0;
    for (; carry_codec_kind_name(count, &about) != NULL; count++) {
        dct = dct || strcmp(carry_codec_kind_name(count, NULL), "dct") == 0;
        assert_non_null(about);
    }
    assert_true(dct);
    assert_null(carry_codec_kind_name(-1, &about));
    carry_codec_free(NULL);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_latents_of_drawn_shapes_have_unit_variance),
        cmocka_unit_test(test_pictures_survive_the_round_trip),
        cmocka_unit_test(test_latents_are_those_of_their_picture),
        cmocka_unit_test(test_a_red_corner_stays_red_and_in_its_corner),
        cmocka_unit_test(test_a_stream_equals_the_whole),
        cmocka_unit_test(test_latents_that_are_no_numbers_give_a_picture),
        cmocka_unit_test(test_sizes_that_do_not_fit_are_refused),
        cmocka_unit_test(test_tensors_that_do_not_fit_are_refused),
        cmocka_unit_test(test_a_folder_says_its_kind),
        cmocka_unit_test(test_the_table_names_its_kinds),
    };
    return cmocka_run_group_tests(tests, open_context, close_context);
}
