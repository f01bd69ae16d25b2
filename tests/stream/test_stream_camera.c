/* Cameras, with functions in place of a device: frames as Motion JPEG and as YUYV, damaged ones, a camera that is
   unplugged, and one that refuses every call in turn. */
#include "stream_support.h"

#include <errno.h>
#include <linux/videodev2.h>
#include <math.h>
#include <poll.h>
#include <stdatomic.h>
#include <time.h>

#include "stream/server/hub_jpeg.h"
#include "stream/server/video.h"

enum { W = 48, H = 32, EACH = 3 * W * H, FRAMES = 12, SLOTS = 4, SIZE = 1 << 16, NEVER = 1 << 30 };

typedef struct fake_frame {
    unsigned char *bytes;
    unsigned size;  /* as the driver says */
    unsigned flags; /* of the buffer */
} fake_frame;

/* One camera at a time. The video's thread uses it; the test inspects it before and after. */
static struct {
    unsigned format; /* the format that it has; 0: any */
    int row;         /* bytes of a YUYV row */
    int frames, given;
    fake_frame frame[FRAMES];
    unsigned char slot[SLOTS][SIZE];
    bool is_queued[SLOTS], is_on;
    int opened, mapped;    /* descriptors and mappings not yet released */
    int calls, refuses_at; /* the call that fails */
    int unplugged_after;   /* frames */
    short hangup;          /* the result of poll after that; 0: DQBUF fails with ENODEV */
    atomic_int wrong;
} cam;

static carry_ctx *ctx;

static bool refuses(void) {
    const bool does = cam.calls++ == cam.refuses_at;
    errno = does ? EBUSY : errno;
    return does;
}

static int fake_open(const char *path) {
    (void)path;
    if (refuses()) {
        return -1;
    }
    cam.opened++;
    return 100;
}

static int fake_close(int file) {
    cam.wrong += file != 100;
    cam.opened--;
    return 0;
}

static bool is_unplugged(void) {
    return cam.given >= cam.unplugged_after;
}

static int dequeue(struct v4l2_buffer *b) {
    if (is_unplugged()) {
        errno = ENODEV;
        return -1;
    }
    unsigned i = 0;
    while (i < SLOTS && !cam.is_queued[i]) {
        i++;
    }
    if (i == SLOTS || cam.given == cam.frames) {
        cam.wrong += i == SLOTS; /* buffers were not given back */
        errno = EAGAIN;
        return -1;
    }
    const fake_frame *f = &cam.frame[cam.given++];
    memcpy(cam.slot[i], f->bytes, f->size <= SIZE ? f->size : 0);
    cam.is_queued[i] = false;
    b->index = i;
    b->bytesused = f->size;
    b->flags = f->flags;
    return 0;
}

static int set_format(struct v4l2_format *f) {
    f->fmt.pix.pixelformat = cam.format != 0 ? cam.format : f->fmt.pix.pixelformat;
    f->fmt.pix.width = W; /* whatever was asked for */
    f->fmt.pix.height = H;
    f->fmt.pix.bytesperline = (unsigned)cam.row;
    return 0;
}

static int fake_ioctl(int file, unsigned long request, void *argument) {
    struct v4l2_buffer *b = argument;
    cam.wrong += file != 100;
    if (refuses()) {
        return -1;
    }
    switch (request) {
    case VIDIOC_S_FMT:
        return set_format(argument);
    case VIDIOC_REQBUFS:
        return 0;
    case VIDIOC_QUERYBUF:
        b->length = SIZE;
        b->m.offset = b->index * SIZE;
        return 0;
    case VIDIOC_QBUF:
        cam.wrong += cam.is_queued[b->index];
        cam.is_queued[b->index] = true;
        return 0;
    case VIDIOC_DQBUF:
        return dequeue(b);
    case VIDIOC_STREAMON:
    case VIDIOC_STREAMOFF:
        cam.is_on = request == VIDIOC_STREAMON;
        return 0;
    default:
        cam.wrong++;
        errno = ENOTTY;
        return -1;
    }
}

static int fake_poll(int file, int milliseconds, short *events) {
    cam.wrong += file != 100 || milliseconds < 1 || !cam.is_on;
    *events = is_unplugged() && cam.hangup != 0 ? cam.hangup : POLLIN;
    if (cam.given < cam.frames || is_unplugged()) {
        return 1;
    }
    (void)nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    *events = 0;
    return 0;
}

static void *fake_map(int file, size_t length, unsigned offset) {
    cam.wrong += file != 100 || length != SIZE;
    if (refuses()) {
        return NULL;
    }
    cam.mapped++;
    return cam.slot[offset / SIZE];
}

static void fake_unmap(void *data, size_t length) {
    cam.wrong += data == NULL || length != SIZE;
    cam.mapped--;
}

static const carry_camera_calls fake = {fake_open, fake_close, fake_ioctl, fake_poll, fake_map, fake_unmap};

static float grey(int i) {
    return 0.08f + 0.07f * (float)i;
}

static void put_jpeg(int i, float brightness) {
    carry_jpeg *jpeg;
    carry_jpeg_bytes made = {0};
    float *pixels = malloc(EACH * sizeof *pixels);
    assert_non_null(pixels);
    for (int j = 0; j < EACH; j++) {
        pixels[j] = brightness;
    }
    assert_ok(ctx, carry_jpeg_new(ctx, &jpeg, W, H, 95));
    assert_ok(ctx, carry_jpeg_encode(ctx, jpeg, &made, pixels));
    carry_jpeg_free(jpeg);
    free(pixels);
    cam.frame[i] = (fake_frame){.bytes = made.bytes, .size = (unsigned)made.size};
}

static int plug_in(void **state) {
    (void)state;
    memset(&cam, 0, sizeof cam);
    cam.format = V4L2_PIX_FMT_MJPEG;
    cam.frames = FRAMES;
    cam.refuses_at = cam.unplugged_after = NEVER;
    ctx = support_ctx(1, NULL, NULL);
    for (int i = 0; i < FRAMES; i++) {
        put_jpeg(i, grey(i));
    }
    return 0;
}

static int put_away(void **state) {
    (void)state;
    for (int i = 0; i < FRAMES; i++) {
        free(cam.frame[i].bytes);
    }
    assert_int_equal(cam.wrong, 0);
    assert_int_equal(cam.opened, 0);
    assert_int_equal(cam.mapped, 0);
    assert_false(cam.is_on);
    carry_ctx_free(ctx);
    return 0;
}

static carry_status open_fake(carry_video **v, int keep) {
    return carry_video_open(ctx, v, "/dev/video-fake", &(carry_video_options){W, H, keep, .camera = &fake});
}

/* Reads up to count frames, whose brightness must be that of the list. */
static int64_t read_greys(carry_video *v, int64_t count, const int *list) {
    float *pixels = malloc((size_t)(count * EACH) * sizeof *pixels);
    int64_t got;
    assert_non_null(pixels);
    assert_ok(ctx, carry_video_read(ctx, v, carry_view_4d(pixels, CARRY_F32, count, 3, H, W), &got, NULL));
    for (int64_t i = 0; i < got * EACH; i++) {
        assert_true(fabsf(pixels[i] - grey(list[i / EACH])) < 0.02f);
    }
    free(pixels);
    return got;
}

static const int all[FRAMES] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11};

static void test_frames_arrive_and_every_buffer_goes_back(void **state) {
    carry_video *v;
    (void)state;
    assert_ok(ctx, open_fake(&v, FRAMES));
    assert_int_equal(read_greys(v, FRAMES, all), FRAMES);
    assert_string_equal(carry_video_end(v), "");
    assert_true(carry_video_dropped(v) == 0);
    carry_video_free(v);
}

/* Removes all segments of this kind, as cameras omit Huffman tables. */
static void remove_segments(fake_frame *f, unsigned char kind) {
    for (unsigned at = 2; at + 4 < f->size && f->bytes[at] == 0xff && f->bytes[at + 1] != 0xda;) {
        const unsigned length = 2 + ((unsigned)f->bytes[at + 2] << 8 | f->bytes[at + 3]);
        if (f->bytes[at + 1] == kind) {
            memmove(f->bytes + at, f->bytes + at + length, f->size - at - length);
            f->size -= length;
        } else {
            at += length;
        }
    }
}

static void test_frames_without_huffman_tables_are_read(void **state) {
    carry_video *v;
    const unsigned before = cam.frame[2].size;
    (void)state;
    remove_segments(&cam.frame[2], 0xc4);
    assert_true(cam.frame[2].size < before);
    assert_ok(ctx, open_fake(&v, FRAMES));
    assert_int_equal(read_greys(v, FRAMES, all), FRAMES);
    carry_video_free(v);
}

static void test_damaged_frames_are_passed_over(void **state) {
    static const int whole[] = {0, 6, 7, 8, 9, 10, 11};
    carry_video *v;
    (void)state;
    cam.frame[1].size /= 2;
    cam.frame[2].size = 0;
    cam.frame[3].size = SIZE + 1; /* more than the buffer has */
    cam.frame[4].flags = V4L2_BUF_FLAG_ERROR;
    memset(cam.frame[5].bytes, 0x5a, cam.frame[5].size);
    assert_ok(ctx, open_fake(&v, FRAMES));
    assert_int_equal(read_greys(v, 7, whole), 7);
    assert_string_equal(carry_video_end(v), "");
    carry_video_free(v);
}

static void test_a_camera_that_disappears_ends_the_video(void **state) {
    static const struct {
        short hangup;
        const char *says;
    } ways[] = {{0, "gone"}, {POLLERR, "no longer"}, {POLLHUP, "no longer"}};
    (void)state;
    for (size_t i = 0; i < sizeof ways / sizeof ways[0]; i++) {
        carry_video *v;
        cam.given = 0;
        memset(cam.is_queued, 0, sizeof cam.is_queued);
        cam.unplugged_after = 5;
        cam.hangup = ways[i].hangup;
        assert_ok(ctx, open_fake(&v, FRAMES));
        assert_int_equal(read_greys(v, FRAMES, all), 5); /* the frames that it gave are not lost */
        assert_non_null(strstr(carry_video_end(v), ways[i].says));
        carry_video_free(v);
    }
}

static void test_of_a_camera_that_is_faster_the_newest_frames_are_kept(void **state) {
    static const int newest[] = {9, 10, 11};
    carry_video *v;
    (void)state;
    assert_ok(ctx, open_fake(&v, 3));
    support_wait_for(carry_video_dropped(v) >= FRAMES - 3);
    assert_int_equal(read_greys(v, 3, newest), 3);
    carry_video_free(v);
}

/* One colour in the left half, another in the right, with rows longer than necessary. */
static void put_yuyv(fake_frame *f, const unsigned char left[3], const unsigned char right[3]) {
    free(f->bytes);
    *f = (fake_frame){.bytes = calloc((size_t)(cam.row * H), 1), .size = (unsigned)(cam.row * H)};
    assert_non_null(f->bytes);
    for (int y = 0; y < H; y++) {
        for (int x = 0; x < W; x += 2) {
            const unsigned char *yuv = x < W / 2 ? left : right;
            unsigned char *to = f->bytes + y * cam.row + 2 * x;
            to[0] = to[2] = yuv[0];
            to[1] = yuv[1];
            to[3] = yuv[2];
        }
    }
}

static void test_yuyv_is_read_where_there_is_no_motion_jpeg(void **state) {
    static const unsigned char red[] = {81, 90, 240}, white[] = {235, 128, 128};
    float pixels[2 * EACH];
    int64_t got;
    carry_video *v;
    (void)state;
    cam.format = V4L2_PIX_FMT_YUYV;
    cam.row = 2 * W + 32;
    cam.frames = 3;
    for (int i = 0; i < 3; i++) {
        put_yuyv(&cam.frame[i], red, white);
    }
    cam.frame[1].size -= (unsigned)cam.row; /* a row is missing: skipped */
    assert_ok(ctx, open_fake(&v, FRAMES));
    assert_ok(ctx, carry_video_read(ctx, v, carry_view_4d(pixels, CARRY_F32, 2, 3, H, W), &got, NULL));
    assert_int_equal(got, 2);
    for (int i = 0; i < 2 * EACH; i++) {
        const bool is_left = i % W < W / 2;
        const int channel = i % EACH / (W * H);
        assert_true(fabsf(pixels[i] - (is_left && channel > 0 ? 0.0f : 1.0f)) < 0.02f);
    }
    carry_video_free(v);
}

static void test_other_formats_are_refused_by_name(void **state) {
    carry_video *v;
    (void)state;
    cam.format = V4L2_PIX_FMT_H264;
    assert_int_equal(open_fake(&v, FRAMES), CARRY_EUNSUPPORTED);
    assert_non_null(strstr(carry_ctx_error(ctx), "H264"));
    cam.format = V4L2_PIX_FMT_YUYV;
    cam.row = W; /* shorter than its pixels */
    assert_int_equal(open_fake(&v, FRAMES), CARRY_EUNSUPPORTED);
    assert_non_null(strstr(carry_ctx_error(ctx), "bytes a row"));
}

/* put_away finds resources that were not released. */
static void test_a_camera_that_refuses_any_call_is_refused(void **state) {
    carry_video *v;
    int opened = 0;
    (void)state;
    for (int i = 0; opened == 0; i++) {
        memset(cam.is_queued, 0, sizeof cam.is_queued);
        cam.calls = cam.given = 0;
        cam.refuses_at = i;
        opened = open_fake(&v, FRAMES) == CARRY_OK;
        if (opened) {
            carry_video_free(v);
            cam.is_on = false;   /* the refused call may have been the one that stops it */
            assert_true(i > 10); /* open, the format, requests, four buffers by three calls, start */
        } else {
            assert_true(strlen(carry_ctx_error(ctx)) > 0);
        }
        assert_int_equal(cam.opened + cam.mapped, 0);
        assert_true(i < 40);
    }
}

int main(void) {
#define CASE(name) cmocka_unit_test_setup_teardown(name, plug_in, put_away)
    const struct CMUnitTest tests[] = {
        CASE(test_frames_arrive_and_every_buffer_goes_back),
        CASE(test_frames_without_huffman_tables_are_read),
        CASE(test_damaged_frames_are_passed_over),
        CASE(test_a_camera_that_disappears_ends_the_video),
        CASE(test_of_a_camera_that_is_faster_the_newest_frames_are_kept),
        CASE(test_yuyv_is_read_where_there_is_no_motion_jpeg),
        CASE(test_other_formats_are_refused_by_name),
        CASE(test_a_camera_that_refuses_any_call_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
