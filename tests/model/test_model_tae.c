/* Tiny video autoencoders: against a plain one in float64 over random widths, split into calls in every way, reset, and
   files that do not fit. */
#include "tae_support.h"

#include "core/tensor.h"

enum { MOST = 16 };

/* The reference: planes of doubles, one loop for every convolution, and whole videos at once. */
typedef struct video {
    int64_t frames, channels, height, width;
    double *v; /* [frames, channels, height, width] */
} video;

static video new_video(int64_t frames, int64_t channels, int64_t height, int64_t width) {
    video made = {frames, channels, height, width, NULL};
    made.v = keep((size_t)(frames * channels * height * width) * sizeof(double));
    return made;
}

static const carry_tensor *found(const weights *w, const char *name, const char *part) {
    char full[64];
    (void)snprintf(full, sizeof full, "%s.%s", name, part);
    for (int i = 0; i < w->count; i++) {
        if (strcmp(w->name[i], full) == 0) {
            return &w->item[i].tensor;
        }
    }
    return NULL;
}

static double pixel(const video *x, int64_t f, int64_t c, int64_t y, int64_t at) {
    bool outside = f < 0 || y < 0 || at < 0 || y >= x->height || at >= x->width;
    return outside ? 0.0 : x->v[((f * x->channels + c) * x->height + y) * x->width + at];
}

/* with_past: the channels of the previous frame follow those of a frame. */
static video conv64(const weights *w, const char *name, video x, int64_t step, bool with_past) {
    const carry_tensor *taps = found(w, name, "weight");
    const carry_tensor *bias = found(w, name, "bias");
    int64_t side = taps->shape[2];
    video y = new_video(x.frames, taps->shape[0], x.height / step, x.width / step);
    assert_int_equal(taps->shape[1], x.channels * (with_past ? 2 : 1));
    for (int64_t i = 0; i < y.frames * y.channels * y.height * y.width; i++) {
        int64_t f = i / y.width / y.height / y.channels;
        int64_t out = i / y.width / y.height % y.channels;
        double sum = bias != NULL ? carry_tensor_at(bias, out) : 0.0;
        for (int64_t k = 0; k < taps->shape[1] * side * side; k++) {
            int64_t in = k / side / side;
            sum += carry_tensor_at(taps, out * taps->shape[1] * side * side + k) *
                   pixel(&x, in < x.channels ? f : f - 1, in % x.channels,
                         i / y.width % y.height * step + k / side % side - side / 2,
                         i % y.width * step + k % side - side / 2);
        }
        y.v[i] = sum;
    }
    return y;
}

static video relu64(video x) {
    for (int64_t i = 0; i < x.frames * x.channels * x.height * x.width; i++) {
        x.v[i] = fmax(x.v[i], 0.0);
    }
    return x;
}

static video blocks64(const weights *w, const char *side, int at, video x) {
    for (int b = 0; b < 3; b++) {
        char name[48];
        (void)snprintf(name, sizeof name, "%s.%d.conv.0", side, at + b);
        video h = relu64(conv64(w, name, x, 1, true));
        (void)snprintf(name, sizeof name, "%s.%d.conv.2", side, at + b);
        h = relu64(conv64(w, name, h, 1, false));
        (void)snprintf(name, sizeof name, "%s.%d.conv.4", side, at + b);
        h = conv64(w, name, h, 1, false);
        for (int64_t i = 0; i < x.frames * x.channels * x.height * x.width; i++) {
            h.v[i] += x.v[i];
        }
        x = relu64(h);
    }
    return x;
}

static video doubled64(video x) {
    video y = new_video(x.frames, x.channels, 2 * x.height, 2 * x.width);
    for (int64_t i = 0; i < y.frames * y.channels * y.height * y.width; i++) {
        y.v[i] = x.v[(i / y.width / y.height * x.height + i / y.width % y.height / 2) * x.width + i % y.width / 2];
    }
    return y;
}

/* Frames and channels are adjacent in memory, so growing and pooling only reinterpret the same numbers. */
static video regrouped(video x, int64_t frames, int64_t channels) {
    x.frames = frames;
    x.channels = channels;
    return x;
}

static video decode64(const weights *w, video x) {
    for (int64_t i = 0; i < x.frames * x.channels * x.height * x.width; i++) {
        x.v[i] = 3.0 * tanh(x.v[i] / 3.0);
    }
    x = relu64(conv64(w, "decoder.1", x, 1, false));
    for (int i = 0; i < 3; i++) {
        char name[32];
        x = doubled64(blocks64(w, "decoder", 3 + 6 * i, x));
        (void)snprintf(name, sizeof name, "decoder.%d.conv", 7 + 6 * i);
        x = conv64(w, name, x, 1, false);
        x = regrouped(x, x.frames * grows[i], x.channels / grows[i]);
        (void)snprintf(name, sizeof name, "decoder.%d", 8 + 6 * i);
        x = conv64(w, name, x, 1, false);
    }
    x = conv64(w, "decoder.22", relu64(x), 1, false);
    for (int64_t i = 0; i < x.frames * x.channels * x.height * x.width; i++) {
        x.v[i] = fmin(fmax(x.v[i], 0.0), 1.0);
    }
    x.v += 3 * x.channels * x.height * x.width; /* the first three frames are left out */
    x.frames -= 3;
    return x;
}

static video encode64(const weights *w, video x) {
    x = relu64(conv64(w, "encoder.0", x, 1, false));
    for (int i = 0; i < 3; i++) {
        char name[32];
        (void)snprintf(name, sizeof name, "encoder.%d.conv", 2 + 5 * i);
        x = conv64(w, name, regrouped(x, x.frames / pools[i], x.channels * pools[i]), 1, false);
        (void)snprintf(name, sizeof name, "encoder.%d", 3 + 5 * i);
        x = blocks64(w, "encoder", 4 + 5 * i, conv64(w, name, x, 2, false));
    }
    return conv64(w, "encoder.17", x, 1, false);
}

/* Relative RMS below 1e-5: some 20 layers whose sums of up to 200 products are off by sqrt(200) 2^-24 = 8e-7 each at
   most; measured 3e-7. */
static void assert_close(const char *what, const float *got, const video *want, int64_t frame_step,
                         int64_t channel_step) {
    double difference = 0.0;
    double magnitude = 0.0;
    int64_t area = want->height * want->width;
    for (int64_t i = 0; i < want->frames * want->channels * area; i++) {
        float have = got[i / area / want->channels * frame_step + i / area % want->channels * channel_step + i % area];
        difference += (have - want->v[i]) * (have - want->v[i]);
        magnitude += want->v[i] * want->v[i];
    }
    if (!(sqrt(difference / magnitude) < 1e-5) || !(magnitude > 0.0)) {
        fail_msg("%s: relative RMS %.3g", what, sqrt(difference / magnitude));
    }
}

typedef struct opened {
    carry_codec *codec;
    int64_t height, width; /* of latents */
} opened;

static opened open_codec(int64_t height, int64_t width) {
    opened o = {.height = height, .width = width};
    assert_ok(ctx, carry_codec_open(ctx, &o.codec, folder,
                                    &(carry_codec_size){.height = 8 * height, .width = 8 * width, .most = MOST}));
    return o;
}

static carry_tensor latents_of(const opened *o, float *data, int64_t n) {
    return carry_view_4d(data, CARRY_F32, 16, n, o->height, o->width);
}

static carry_tensor frames_of(const opened *o, float *data, int64_t n) {
    return carry_view_4d(data, CARRY_F32, n, 3, 8 * o->height, 8 * o->width);
}

static void check_widths(const int64_t decoder[4], const int64_t encoder[4], int64_t height, int64_t width, int64_t n,
                         int64_t pictures) {
    weights *w = random_weights(decoder, encoder);
    write_folder(w, w->count, CARRY_F32);
    opened o = open_codec(height, width);
    assert_string_equal(carry_codec_name(o.codec), "tae");
    assert_int_equal(carry_codec_ratio(o.codec), 4);
    assert_int_equal(carry_codec_frames(o.codec, n), 4 * n - 3);
    int64_t area = height * width;
    float *latents = random_numbers(16 * n * area, 1000, 4.0f);
    float *frames = numbers((4 * n - 3) * 3 * 64 * area);
    assert_ok(ctx, carry_codec_decode(o.codec, frames_of(&o, frames, 4 * n - 3), latents_of(&o, latents, n)));
    assert_int_equal(carry_codec_frames(o.codec, n), 4 * n);
    video x = new_video(n, 16, height, width);
    for (int64_t i = 0; i < 16 * n * area; i++) {
        x.v[i] = latents[(i / area % 16 * n + i / area / 16) * area + i % area];
    }
    video y = decode64(w, x);
    assert_close("frames", frames, &y, 3 * 64 * area, 64 * area);

    int64_t coded = (pictures + 3) / 4;
    float *pixels = random_numbers(pictures * 3 * 64 * area, 1001, 1.0f);
    float *encoded = numbers(16 * coded * area);
    assert_ok(ctx, carry_codec_encode(o.codec, latents_of(&o, encoded, coded), frames_of(&o, pixels, pictures)));
    x = new_video(4 * coded, 3, 8 * height, 8 * width);
    for (int64_t i = 0; i < 4 * coded * 3 * 64 * area; i++) {
        int64_t frame = i / (3 * 64 * area) < pictures ? i / (3 * 64 * area) : pictures - 1;
        x.v[i] = pixels[frame * 3 * 64 * area + i % (3 * 64 * area)];
    }
    y = encode64(w, x);
    assert_close("encoded", encoded, &y, area, coded * area);
    carry_codec_free(o.codec);
    (void)free_kept(NULL);
}

static void test_decoding_and_encoding_match_the_reference(void **state) {
    (void)state;
    check_widths((const int64_t[]){5, 3, 7, 4}, (const int64_t[]){3, 6, 2, 5}, 2, 3, 3, 8);
    check_widths((const int64_t[]){1, 1, 1, 1}, (const int64_t[]){1, 1, 1, 1}, 1, 1, 1, 1);
    check_widths((const int64_t[]){17, 8, 16, 9}, (const int64_t[]){4, 4, 4, 4}, 3, 1, 2, 7);
}

static opened open_small(void) {
    weights *w = random_weights((const int64_t[]){6, 5, 4, 3}, (const int64_t[]){4, 3, 5, 6});
    write_folder(w, w->count, CARRY_F32);
    return open_codec(2, 3);
}

/* Every way to split five latent frames, given by the bits of `cuts`, gives the same bits as one call. */
static void test_a_stream_equals_the_whole_for_every_split(void **state) {
    (void)state;
    enum { N = 5, AREA = 6, FRAME = 3 * 64 * AREA };
    opened o = open_small();
    float *latents = random_numbers(16 * N * AREA, 7, 3.0f);
    float *whole = numbers((4 * N - 3) * FRAME);
    float *part = numbers((4 * N - 3) * FRAME);
    float *some = numbers(16 * N * AREA);
    float *pixels = random_numbers(4 * N * FRAME, 8, 1.0f);
    float *coded = numbers(16 * N * AREA);
    assert_ok(ctx, carry_codec_decode(o.codec, frames_of(&o, whole, 4 * N - 3), latents_of(&o, latents, N)));
    assert_ok(ctx, carry_codec_encode(o.codec, latents_of(&o, coded, N), frames_of(&o, pixels, 4 * N)));
    for (int cuts = 0; cuts < 1 << (N - 1); cuts += support_cases(1, 5)) {
        carry_codec_reset(o.codec);
        int64_t from = 0;
        int64_t made = 0;
        for (int64_t end = 1; end <= N; end++) {
            if (end < N && (cuts >> (end - 1) & 1) == 0) {
                continue;
            }
            int64_t n = end - from;
            int64_t frames = carry_codec_frames(o.codec, n);
            for (int64_t c = 0; c < 16; c++) {
                memcpy(some + c * n * AREA, latents + (c * N + from) * AREA, (size_t)(n * AREA) * sizeof *some);
            }
            memset(part, 255, (size_t)(frames * FRAME) * sizeof *part);
            assert_ok(ctx, carry_codec_decode(o.codec, frames_of(&o, part, frames), latents_of(&o, some, n)));
            assert_memory_equal(part, whole + made * FRAME, (size_t)(frames * FRAME) * sizeof *part);
            assert_ok(ctx, carry_codec_encode(o.codec, latents_of(&o, some, n),
                                              frames_of(&o, pixels + 4 * from * FRAME, 4 * n)));
            for (int64_t c = 0; c < 16; c++) {
                assert_memory_equal(some + c * n * AREA, coded + (c * N + from) * AREA,
                                    (size_t)(n * AREA) * sizeof *some);
            }
            from = end;
            made += frames;
        }
        assert_int_equal(made, 4 * N - 3);
    }
    carry_codec_free(o.codec);
}

/* After a reset the frames equal those of a new codec, whatever was decoded before; without a reset they do not. */
static void test_a_reset_starts_anew(void **state) {
    (void)state;
    enum { AREA = 6, FRAME = 3 * 64 * AREA };
    opened o = open_small();
    opened fresh = open_codec(2, 3);
    float *latents = random_numbers(16 * 2 * AREA, 9, 3.0f);
    float *want = numbers(5 * FRAME);
    float *got = numbers(8 * FRAME);
    assert_ok(ctx, carry_codec_decode(fresh.codec, frames_of(&o, want, 5), latents_of(&o, latents, 2)));
    assert_ok(ctx, carry_codec_decode(o.codec, frames_of(&o, got, 5), latents_of(&o, latents, 2)));
    assert_int_equal(carry_codec_frames(o.codec, 2), 8);
    assert_ok(ctx, carry_codec_decode(o.codec, frames_of(&o, got, 8), latents_of(&o, latents, 2)));
    assert_memory_not_equal(got + 3 * FRAME, want, 5 * FRAME * sizeof *got);
    carry_codec_reset(o.codec);
    assert_int_equal(carry_codec_frames(o.codec, 2), 5);
    assert_ok(ctx, carry_codec_decode(o.codec, frames_of(&o, got, 5), latents_of(&o, latents, 2)));
    assert_memory_equal(got, want, 5 * FRAME * sizeof *got);

    float *pixels = random_numbers(8 * FRAME, 10, 1.0f);
    float *coded = numbers(16 * 2 * AREA);
    float *again = numbers(16 * 2 * AREA);
    assert_ok(ctx, carry_codec_encode(fresh.codec, latents_of(&o, coded, 2), frames_of(&o, pixels, 7)));
    assert_ok(ctx, carry_codec_encode(o.codec, latents_of(&o, again, 1), frames_of(&o, pixels + FRAME, 3)));
    assert_refused(ctx, CARRY_EARGUMENT, "carry_codec_reset",
                   carry_codec_encode(o.codec, latents_of(&o, again, 1), frames_of(&o, pixels, 4)));
    carry_codec_reset(o.codec);
    assert_ok(ctx, carry_codec_encode(o.codec, latents_of(&o, again, 2), frames_of(&o, pixels, 7)));
    assert_memory_equal(again, coded, 16 * 2 * AREA * sizeof *coded);
    carry_codec_free(o.codec);
    carry_codec_free(fresh.codec);
}

static void test_threads_change_no_bit(void **state) {
    (void)state;
    enum { AREA = 6, FRAME = 3 * 64 * AREA };
    opened o = open_small();
    float *latents = random_numbers(16 * 2 * AREA, 9, 3.0f);
    float *want = numbers(5 * FRAME);
    float *got = numbers(5 * FRAME);
    assert_ok(ctx, carry_codec_decode(o.codec, frames_of(&o, want, 5), latents_of(&o, latents, 2)));
    for (int threads = 1; threads <= 3; threads += 2) {
        carry_ctx *other = support_ctx(threads, NULL, NULL);
        carry_codec *codec;
        assert_ok(other,
                  carry_codec_open(other, &codec, folder, &(carry_codec_size){.height = 16, .width = 24, .most = 2}));
        assert_ok(other, carry_codec_decode(codec, frames_of(&o, got, 5), latents_of(&o, latents, 2)));
        assert_memory_equal(got, want, 5 * FRAME * sizeof *got);
        carry_codec_free(codec);
        carry_ctx_free(other);
    }
    carry_codec_free(o.codec);
}

/* Half-precision files: the frames are those of the rounded weights, near those of f32 but not equal. */
static void test_weights_may_be_of_16_bits(void **state) {
    (void)state;
    enum { AREA = 6, FRAME = 3 * 64 * AREA };
    weights *w = random_weights((const int64_t[]){6, 5, 4, 3}, (const int64_t[]){4, 3, 5, 6});
    float *latents = random_numbers(16 * AREA, 9, 3.0f);
    float *frame[2] = {numbers(FRAME), numbers(FRAME)};
    double difference = 0.0;
    for (int i = 0; i < 2; i++) {
        write_folder(w, w->count, i == 0 ? CARRY_F32 : CARRY_F16);
        opened o = open_codec(2, 3);
        assert_ok(ctx, carry_codec_decode(o.codec, frames_of(&o, frame[i], 1), latents_of(&o, latents, 1)));
        carry_codec_free(o.codec);
    }
    for (int i = 0; i < FRAME; i++) {
        double off = (double)frame[0][i] - frame[1][i];
        difference += off * off / FRAME;
    }
    assert_true(difference > 0.0 && difference < 1e-4);
}

static void test_latents_that_are_no_numbers_give_a_picture(void **state) {
    (void)state;
    enum { AREA = 6, FRAME = 3 * 64 * AREA };
    opened o = open_small();
    float *frame = numbers(FRAME);
    assert_ok(ctx, carry_codec_decode(o.codec, frames_of(&o, frame, 1), latents_of(&o, numbers(16 * AREA), 1)));
    for (int i = 0; i < FRAME; i++) {
        assert_true(frame[i] >= 0.0f && frame[i] <= 1.0f);
    }
    carry_codec_free(o.codec);
}

static const carry_codec_size small = {.height = 16, .width = 24, .most = 2};

/* A missing tensor, one of another shape and an additional one are refused by name, for every tensor. */
static void test_weights_that_do_not_fit_are_refused_by_name(void **state) {
    (void)state;
    weights *w = random_weights((const int64_t[]){6, 5, 4, 3}, (const int64_t[]){4, 3, 5, 6});
    carry_codec *codec;
    for (int i = 0; i < w->count; i++) {
        const carry_safetensors_item saved = w->item[i];
        w->item[i] = w->item[w->count - 1];
        write_folder(w, w->count - 1, CARRY_BF16);
        w->item[i] = saved;
        if (i < w->count - 1) {
            assert_refused(ctx, CARRY_EFORMAT, saved.name, carry_codec_open(ctx, &codec, folder, &small));
            assert_null(codec);
        }
        /* One more in the last dimension: no other tensor agrees with it. */
        w->item[i].tensor.shape[saved.tensor.rank - 1]++;
        int64_t count = carry_tensor_count(&w->item[i].tensor);
        w->item[i].tensor =
            carry_view(random_numbers(count, 3, 0.1f), CARRY_F32, saved.tensor.rank, w->item[i].tensor.shape);
        write_folder(w, w->count, CARRY_BF16);
        assert_refused(ctx, CARRY_ESHAPE, saved.name, carry_codec_open(ctx, &codec, folder, &small));
        w->item[i] = saved;
    }
    w->item[w->count] = (carry_safetensors_item){.name = "decoder.23.weight", .tensor = w->item[0].tensor};
    write_folder(w, w->count + 1, CARRY_F32);
    assert_refused(ctx, CARRY_EFORMAT, "decoder.23.weight", carry_codec_open(ctx, &codec, folder, &small));
}

static void test_hostile_folders_are_refused(void **state) {
    (void)state;
    weights *w = random_weights((const int64_t[]){6, 5, 4, 3}, (const int64_t[]){4, 3, 5, 6});
    carry_codec *codec;
    int64_t one = 1;
    write_folder(w, w->count, CARRY_F32);
    write_config("{\"_class_name\": \"TAEHV\", \"latent_channels\": 4}");
    assert_refused(ctx, CARRY_EUNSUPPORTED, "latent_channels", carry_codec_open(ctx, &codec, folder, &small));
    write_config("{\"_class_name\": \"TAEHV\", \"image_channels\": \"3\"}");
    assert_refused(ctx, CARRY_EUNSUPPORTED, "image_channels", carry_codec_open(ctx, &codec, folder, &small));
    w->item[0].tensor = carry_view_4d(&one, CARRY_F32, 0, 16, 3, 3); /* no channels */
    write_folder(w, w->count, CARRY_F32);
    assert_refused(ctx, CARRY_ESHAPE, "decoder.1.weight", carry_codec_open(ctx, &codec, folder, &small));
    w->item[0].tensor = carry_view_1d(&one, CARRY_I64, 1);
    write_folder(w, 1, CARRY_I64);
    assert_refused(ctx, CARRY_EDTYPE, "decoder.1.weight is i64", carry_codec_open(ctx, &codec, folder, &small));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(test_decoding_and_encoding_match_the_reference, free_kept),
        cmocka_unit_test_teardown(test_a_stream_equals_the_whole_for_every_split, free_kept),
        cmocka_unit_test_teardown(test_a_reset_starts_anew, free_kept),
        cmocka_unit_test_teardown(test_threads_change_no_bit, free_kept),
        cmocka_unit_test_teardown(test_weights_may_be_of_16_bits, free_kept),
        cmocka_unit_test_teardown(test_latents_that_are_no_numbers_give_a_picture, free_kept),
        cmocka_unit_test_teardown(test_weights_that_do_not_fit_are_refused_by_name, free_kept),
        cmocka_unit_test_teardown(test_hostile_folders_are_refused, free_kept),
    };
    return cmocka_run_group_tests(tests, open_all, close_all);
}
