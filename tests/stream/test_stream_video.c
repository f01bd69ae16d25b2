/* Video input: a recording reads back the same, a folder is read in the order of its names, a live source gives its
   newest frame and drops the others, and damaged files are refused, cut short or skipped. */
#include "stream_support.h"

#include <math.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/file.h"
#include "stream/server/hub_jpeg.h"
#include "stream/server/recording_avi.h"
#include "stream/server/video.h"
#include "stream/server/video_internal.h"

enum { W = 48, H = 32, EACH = 3 * W * H, FRAMES = 10 };

static carry_ctx *ctx;
static char folder[64], path[160];

static const char *in_folder(const char *name) {
    (void)snprintf(path, sizeof path, "%s/%s", folder, name);
    return path;
}

static int open_folder(void **state) {
    (void)state;
    ctx = support_ctx(1, NULL, NULL);
    (void)snprintf(folder, sizeof folder, "/tmp/carry-video-XXXXXX");
    assert_non_null(mkdtemp(folder));
    return 0;
}

static int close_folder(void **state) {
    (void)state;
    char command[128];
    (void)snprintf(command, sizeof command, "rm -r %s", folder);
    assert_int_equal(system(command), 0);
    carry_ctx_free(ctx);
    return 0;
}

/* Frame i is grey with its own brightness, which JPEG keeps within a few levels of 255. */
static float grey(int i) {
    return 0.08f + 0.09f * (float)i;
}

static void make_jpeg(carry_jpeg_bytes *to, int i) {
    carry_jpeg *jpeg;
    float *pixels = malloc(EACH * sizeof *pixels);
    assert_non_null(pixels);
    for (int j = 0; j < EACH; j++) {
        pixels[j] = grey(i);
    }
    assert_ok(ctx, carry_jpeg_new(ctx, &jpeg, W, H, 95));
    assert_ok(ctx, carry_jpeg_encode(ctx, jpeg, to, pixels));
    carry_jpeg_free(jpeg);
    free(pixels);
}

static void record(const char *name, double fps) {
    carry_avi *avi;
    carry_jpeg_bytes jpeg = {0};
    assert_ok(ctx, carry_avi_new(ctx, &avi, in_folder(name), W, H, fps, CARRY_AVI_LIMIT));
    for (int i = 0; i < FRAMES; i++) {
        make_jpeg(&jpeg, i);
        assert_ok(ctx, carry_avi_write(ctx, avi, jpeg.bytes, jpeg.size, (double)i / fps));
    }
    assert_ok(ctx, carry_avi_close(ctx, avi));
    free(jpeg.bytes);
}

/* Reads up to count frames of w x h; their brightness must be that of frames from `first` on. */
static int64_t read_greys(carry_video *v, int64_t count, int first, int w, int h) {
    float *pixels = malloc((size_t)(count * 3 * w * h) * sizeof *pixels);
    int64_t got;
    assert_non_null(pixels);
    assert_ok(ctx, carry_video_read(ctx, v, carry_view_4d(pixels, CARRY_F32, count, 3, h, w), &got, NULL));
    for (int64_t i = 0; i < got * 3 * w * h; i++) {
        assert_true(fabsf(pixels[i] - grey(first + (int)(i / (3 * w * h)))) < 0.02f);
    }
    free(pixels);
    return got;
}

static void test_what_was_recorded_is_read_back(void **state) {
    (void)state;
    carry_video *v;
    record("a.avi", 16.0);
    for (int scaled = 0; scaled < 2; scaled++) {
        const int w = scaled != 0 ? 40 : W, h = scaled != 0 ? 56 : H;
        assert_ok(ctx, carry_video_open(ctx, &v, in_folder("a.avi"), &(carry_video_options){.width = w, .height = h}));
        assert_int_equal(read_greys(v, 4, 0, w, h), 4);
        assert_int_equal(read_greys(v, 4, 4, w, h), 4);
        assert_string_equal(carry_video_end(v), "");
        assert_int_equal(read_greys(v, 4, 8, w, h), 2);
        assert_non_null(strstr(carry_video_end(v), "ended"));
        assert_int_equal(read_greys(v, 4, 0, w, h), 0);
        carry_video_free(v);
    }
}

static void write_file(const char *name, const void *bytes, size_t size) {
    FILE *file = fopen(in_folder(name), "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(bytes, 1, size, file), size);
    assert_int_equal(fclose(file), 0);
}

static void test_a_folder_is_read_in_the_order_of_names_and_damaged_frames_are_passed_over(void **state) {
    (void)state;
    carry_video *v;
    carry_jpeg_bytes jpeg = {0};
    assert_int_equal(mkdir(in_folder("frames"), 0700), 0);
    assert_refused(ctx, CARRY_ENOTFOUND, "has no pictures",
                   carry_video_open(ctx, &v, in_folder("frames"), &(carry_video_options){.width = W, .height = H}));
    for (int i = 2; i >= 0; i--) {
        char name[32];
        make_jpeg(&jpeg, i);
        (void)snprintf(name, sizeof name, "frames/f%d.jpg", i);
        write_file(name, jpeg.bytes, jpeg.size);
    }
    write_file("frames/f1b.jpg", jpeg.bytes, jpeg.size / 2);
    write_file("frames/f1c.jpeg", "text", 4);
    write_file("frames/note.txt", "text", 4);
    free(jpeg.bytes);
    assert_ok(ctx, carry_video_open(ctx, &v, in_folder("frames"), &(carry_video_options){.width = W, .height = H}));
    assert_int_equal(read_greys(v, 8, 0, W, H), 3);
    carry_video_free(v);
    assert_refused(ctx, CARRY_ENOTFOUND, "there is no video",
                   carry_video_open(ctx, &v, in_folder("none"), &(carry_video_options){.width = W, .height = H}));
}

static void test_of_a_live_source_the_newest_frames_are_kept(void **state) {
    (void)state;
    carry_video *v;
    record("b.avi", 500.0);
    assert_ok(ctx, carry_video_open(ctx, &v, in_folder("b.avi"),
                                    &(carry_video_options){.width = W, .height = H, .keep = 4, .is_live = true}));
    support_wait_for(carry_video_dropped(v) >= FRAMES - 4); /* the source is faster: ten frames come in 20 ms */
    assert_int_equal(carry_video_dropped(v), FRAMES - 4);
    assert_true(carry_video_is_ready(v, 4));
    assert_int_equal(read_greys(v, 4, FRAMES - 4, W, H), 4);
    assert_int_equal(read_greys(v, 1, 0, W, H), 0);
    carry_video_free(v);
}

static void test_damaged_files_are_refused_or_end(void **state) {
    (void)state;
    char *bytes;
    size_t length;
    carry_video *v;
    const carry_video_options options = {.width = W, .height = H};
    record("c.avi", 16.0);
    assert_ok(ctx, carry_file_read(ctx, &bytes, &length, in_folder("c.avi"), 1 << 20));
    write_file("d.avi", "RIFF", 4);
    assert_refused(ctx, CARRY_EFORMAT, "not an AVI file", carry_video_open(ctx, &v, in_folder("d.avi"), &options));
    int opened = 0;
    for (size_t cut = 1; cut < length; cut += length / 97 + 1) {
        write_file("d.avi", bytes, cut);
        if (carry_video_open(ctx, &v, in_folder("d.avi"), &options) == CARRY_OK) {
            const int64_t got = read_greys(v, FRAMES, 0, W, H);
            assert_true(got <= FRAMES);
            opened++;
        }
        carry_video_free(v);
    }
    assert_true(opened > 10);
    free(bytes);
}

/* The position after the n-th occurrence of `name`. */
static size_t after(const char *bytes, size_t length, const char *name, int n) {
    for (size_t at = 0; at + 4 <= length; at++) {
        if (memcmp(bytes + at, name, 4) == 0 && n-- == 0) {
            return at + 4;
        }
    }
    fail_msg("there is no %s", name);
    return 0;
}

/* One frame is a JPEG that follows three others; its header is damaged in several ways. */
static void test_what_ends_too_early_is_said_to_be_damaged(void **state) {
    (void)state;
    static const struct {
        int from; /* relative to the head's name */
        const char *bytes;
        size_t count;
    } spoilt[] = {{0, "\xff\xff\xff\x7f", 4}, {-4, "zzzz\xff\xff\xff\x7f", 8}, {-4, "\0\0\0\0\0\0\1\0", 8}};
    const carry_video_options options = {.width = W, .height = H};
    record("e.avi", 16.0);
    for (size_t i = 0; i < sizeof spoilt / sizeof *spoilt; i++) {
        char *bytes;
        size_t length;
        carry_video *v;
        assert_ok(ctx, carry_file_read(ctx, &bytes, &length, in_folder("e.avi"), 1 << 20));
        const size_t at = (size_t)((ptrdiff_t)after(bytes, length, "00dc", 3) + spoilt[i].from);
        memcpy(bytes + at, spoilt[i].bytes, spoilt[i].count);
        write_file("g.avi", bytes, length);
        assert_ok(ctx, carry_video_open(ctx, &v, in_folder("g.avi"), &options));
        assert_int_equal(read_greys(v, FRAMES, 0, W, H), 3);
        if (strstr(carry_video_end(v), "damaged") == NULL) {
            fail_msg("the end of a spoilt video %zu is: %s", i, carry_video_end(v));
        }
        carry_video_free(v);
        free(bytes);
    }
}

static void test_other_codecs_and_pipes_are_refused(void **state) {
    (void)state;
    char *bytes;
    size_t length;
    carry_video *v;
    const carry_video_options options = {.width = W, .height = H};
    record("f.avi", 16.0);
    assert_ok(ctx, carry_file_read(ctx, &bytes, &length, in_folder("f.avi"), 1 << 20));
    memcpy(bytes + after(bytes, length, "vids", 0), "H264", 4);
    write_file("f.avi", bytes, length);
    free(bytes);
    assert_refused(ctx, CARRY_EFORMAT, "are H264, and Motion JPEG is read",
                   carry_video_open(ctx, &v, in_folder("f.avi"), &options));
    assert_int_equal(mkfifo(in_folder("pipe"), 0600), 0);
    assert_refused(ctx, CARRY_EARGUMENT, "a pipe cannot be read",
                   carry_video_open(ctx, &v, in_folder("pipe"), &options));
}

/* A header that claims a large picture is refused before memory is allocated. With several scans (SOF2, progressive)
   the limit is lower, since libjpeg keeps the coefficients of all of them. */
static void test_pictures_that_need_much_memory_are_refused(void **state) {
    (void)state;
    static const struct {
        unsigned char marker;
        int side;
        const char *why;
    } cases[] = {{0xC2, 16384, "16384 x 16384 in several scans needs"},
                 {0xC2, 8192, "needs"},
                 {0xC0, 16384, "needs"},
                 {0xC0, 16385, "a picture of 16385"}};
    float *pixels = malloc(EACH * sizeof *pixels);
    assert_non_null(pixels);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        carry_jpeg_bytes jpeg = {0};
        char why[300];
        size_t at = 2;
        make_jpeg(&jpeg, 1);
        while (jpeg.bytes[at + 1] != 0xC0) { /* the frame header: markers have a length, except the first */
            at += 2 + (size_t)(jpeg.bytes[at + 2] << 8 | jpeg.bytes[at + 3]);
            assert_true(at + 9 < jpeg.size);
        }
        jpeg.bytes[at + 1] = cases[i].marker;
        for (int side = 0; side < 2; side++) {
            jpeg.bytes[at + 5 + (size_t)side * 2] = (unsigned char)(cases[i].side >> 8);
            jpeg.bytes[at + 6 + (size_t)side * 2] = (unsigned char)(cases[i].side & 255);
        }
        assert_false(carry_jpeg_decode(&jpeg, pixels, W, H, why, sizeof why));
        if (strstr(why, cases[i].why) == NULL) {
            fail_msg("expected '%s', got: %s", cases[i].why, why);
        }
        free(jpeg.bytes);
    }
    free(pixels);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_pictures_that_need_much_memory_are_refused),
        cmocka_unit_test_setup_teardown(test_what_was_recorded_is_read_back, open_folder, close_folder),
        cmocka_unit_test_setup_teardown(test_a_folder_is_read_in_the_order_of_names_and_damaged_frames_are_passed_over,
                                        open_folder, close_folder),
        cmocka_unit_test_setup_teardown(test_of_a_live_source_the_newest_frames_are_kept, open_folder, close_folder),
        cmocka_unit_test_setup_teardown(test_damaged_files_are_refused_or_end, open_folder, close_folder),
        cmocka_unit_test_setup_teardown(test_what_ends_too_early_is_said_to_be_damaged, open_folder, close_folder),
        cmocka_unit_test_setup_teardown(test_other_codecs_and_pipes_are_refused, open_folder, close_folder),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
