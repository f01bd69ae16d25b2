/* Golden folders of tiny video autoencoders: any split of a stream and any part of the vectors is checked, a wrong
   number shows, and files that do not fit are refused. The vectors are made by the codec itself, whose results are
   tested elsewhere. */
#include "tae_support.h"

#include "bench/golden/golden.h"

enum { N = 3, ROWS = 1, COLUMNS = 2, AREA = ROWS * COLUMNS, FRAME = 3 * 64 * AREA, FRAMES = 4 * N - 3, PICTURES = 7 };

static float *latents; /* [N, 16, ROWS, COLUMNS], as a file has them */
static float *frames, *pixels, *encoded;
static carry_safetensors_item items[8];
static int item_count;

static void vectors(void) {
    carry_codec *codec;
    weights *w = random_weights((const int64_t[]){4, 3, 5, 2}, (const int64_t[]){2, 3, 4, 5});
    write_folder(w, w->count, CARRY_F32);
    assert_ok(ctx, carry_codec_open(ctx, &codec, folder,
                                    &(carry_codec_size){.height = 8 * ROWS, .width = 8 * COLUMNS, .most = N}));
    latents = random_numbers(16 * N * AREA, 2000, 3.0f);
    frames = numbers(FRAMES * FRAME);
    pixels = random_numbers(PICTURES * FRAME, 2001, 1.0f);
    encoded = numbers(16 * 2 * AREA);
    float *turned = numbers(16 * N * AREA);
    for (int i = 0; i < 16 * N * AREA; i++) {
        turned[(i / AREA % 16 * N + i / AREA / 16) * AREA + i % AREA] = latents[i];
    }
    assert_ok(ctx, carry_codec_decode(codec, carry_view_4d(frames, CARRY_F32, FRAMES, 3, 8 * ROWS, 8 * COLUMNS),
                                      carry_view_4d(turned, CARRY_F32, 16, N, ROWS, COLUMNS)));
    assert_ok(ctx, carry_codec_encode(codec, carry_view_4d(turned, CARRY_F32, 16, 2, ROWS, COLUMNS),
                                      carry_view_4d(pixels, CARRY_F32, PICTURES, 3, 8 * ROWS, 8 * COLUMNS)));
    for (int i = 0; i < 16 * 2 * AREA; i++) {
        encoded[i] = turned[(i / AREA % 16 * 2 + i / AREA / 16) * AREA + i % AREA];
    }
    carry_codec_free(codec);
    item_count = 0;
}

static void add_item(const char *name, float *data, int64_t count, int64_t channels, int64_t rows, int64_t columns) {
    const int64_t shape[] = {1, count, channels, rows, columns};
    items[item_count++] = (carry_safetensors_item){.name = name, .tensor = carry_view(data, CARRY_F32, 5, shape)};
}

static void add_latents(int64_t count) {
    add_item("latents", latents, count, 16, ROWS, COLUMNS);
}

/* Frames from..from+count-1 of the whole. */
static void add_frames(const char *name, int64_t from, int64_t count) {
    add_item(name, frames + from * FRAME, count, 3, 8 * ROWS, 8 * COLUMNS);
}

typedef struct seen {
    char names[128];
    int right, wrong;
} seen;

static void note(void *user, const carry_golden_line *line) {
    seen *s = user;
    size_t used = strlen(s->names);
    (void)snprintf(s->names + used, sizeof s->names - used, "%s ", line->tensor);
    s->right += line->error <= line->bound;
    s->wrong += !(line->error <= line->bound);
}

static carry_status golden(seen *s) {
    char path[64];
    memset(s, 0, sizeof *s);
    (void)snprintf(path, sizeof path, "%s/expected.safetensors", folder);
    assert_ok(ctx, carry_safetensors_write(ctx, path, items, item_count, NULL));
    item_count = 0;
    return carry_golden(ctx, folder, 0, note, s);
}

static void test_what_is_there_is_checked(void **state) {
    (void)state;
    seen s;
    vectors();
    add_latents(N);
    add_frames("frames", 0, FRAMES);
    add_frames("stream0", 0, 1);
    add_frames("stream1", 1, 8);
    add_item("pixels", pixels, PICTURES, 3, 8 * ROWS, 8 * COLUMNS);
    add_item("encoded", encoded, 2, 16, ROWS, COLUMNS);
    assert_ok(ctx, golden(&s));
    assert_string_equal(s.names, "frames stream0 stream1 encoded ");
    assert_int_equal(s.right, 4);

    add_latents(N);
    add_frames("stream0", 0, 5);
    add_frames("stream1", 5, 4);
    assert_ok(ctx, golden(&s));
    assert_string_equal(s.names, "stream0 stream1 ");
    assert_int_equal(s.right, 2);

    add_item("pixels", pixels, PICTURES, 3, 8 * ROWS, 8 * COLUMNS);
    add_item("encoded", encoded, 2, 16, ROWS, COLUMNS);
    assert_ok(ctx, golden(&s));
    assert_string_equal(s.names, "encoded ");
}

static void test_a_wrong_number_shows(void **state) {
    (void)state;
    seen s;
    vectors();
    frames[8 * FRAME + 5] = frames[8 * FRAME + 5] < 0.5f ? 0.9f : 0.1f;
    add_latents(N);
    add_frames("frames", 0, FRAMES);
    add_frames("stream0", 0, 5);
    add_frames("stream1", 5, 4);
    assert_ok(ctx, golden(&s));
    assert_int_equal(s.right, 1);
    assert_int_equal(s.wrong, 2);
    frames[8 * FRAME + 5] = NAN;
    add_latents(N);
    add_frames("frames", 0, FRAMES);
    assert_ok(ctx, golden(&s));
    assert_int_equal(s.wrong, 1);
}

static void test_vectors_that_do_not_fit_are_refused(void **state) {
    (void)state;
    seen s;
    vectors();
    add_latents(N);
    assert_refused(ctx, CARRY_EFORMAT, "neither", golden(&s));
    add_frames("frames", 0, FRAMES);
    assert_refused(ctx, CARRY_EFORMAT, "neither", golden(&s));
    add_latents(N);
    add_frames("stream0", 0, 3);
    assert_refused(ctx, CARRY_EFORMAT, "stream0 has 3 frames", golden(&s));
    add_latents(2);
    add_frames("stream0", 0, 1);
    add_frames("stream1", 1, 8);
    assert_refused(ctx, CARRY_EFORMAT, "the 1 that are left", golden(&s));
    add_latents(N);
    add_frames("frames", 0, FRAMES - 1);
    assert_refused(ctx, CARRY_ESHAPE, "frames", golden(&s));
    add_item("latents", latents, N * 2, 8, ROWS, COLUMNS);
    add_frames("frames", 0, FRAMES);
    assert_refused(ctx, CARRY_EFORMAT, "8 channels", golden(&s));
    add_item("pixels", pixels, PICTURES, 3, 8 * ROWS, 8 * COLUMNS);
    add_item("encoded", encoded, 1, 16, ROWS, COLUMNS);
    assert_refused(ctx, CARRY_ESHAPE, "latents", golden(&s));
    add_latents(N);
    items[0].tensor = carry_view_4d(latents, CARRY_F32, N, 16, ROWS, COLUMNS);
    assert_refused(ctx, CARRY_EFORMAT, "rank 5", golden(&s));
    write_config("{\"_class_name\": \"WhoKnows\"}");
    add_latents(N);
    assert_refused(ctx, CARRY_EUNSUPPORTED, "_class_name \"WhoKnows\"", golden(&s));
    write_config("{}");
    add_latents(N);
    assert_refused(ctx, CARRY_EUNSUPPORTED, "no \"model_type\"", golden(&s));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(test_what_is_there_is_checked, free_kept),
        cmocka_unit_test_teardown(test_a_wrong_number_shows, free_kept),
        cmocka_unit_test_teardown(test_vectors_that_do_not_fit_are_refused, free_kept),
    };
    return cmocka_run_group_tests(tests, open_all, close_all);
}
