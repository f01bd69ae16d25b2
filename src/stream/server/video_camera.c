/* Cameras by Video4Linux: Motion JPEG, or else YUYV, in mapped buffers that the driver fills. */
#include "stream/server/video_internal.h"

#include "core/error.h"

#if defined(__linux__)

#include <errno.h>
#include <fcntl.h>
#include <linux/videodev2.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <unistd.h>

enum { BUFFERS = 4, WAIT_MS = 100, SIDE = 16384 };
enum { MISSED = 50 }; /* after this many waits without a frame the camera counts as gone */

typedef struct camera {
    const carry_camera_calls *calls;
    int file, missed;
    unsigned buffers;
    struct {
        void *data;
        size_t size;
    } buffer[BUFFERS];
    carry_yuyv yuyv;  /* width 0: Motion JPEG */
    char refused[96]; /* why the camera does not start */
} camera;

static int open_file(const char *path) {
    return open(path, O_RDWR | O_NONBLOCK | O_CLOEXEC);
}

static int ask_file(int file, unsigned long request, void *argument) {
    return ioctl(file, request, argument);
}

static int poll_file(int file, int milliseconds, short *events) {
    struct pollfd wait = {.fd = file, .events = POLLIN};
    const int ready = poll(&wait, 1, milliseconds);
    *events = wait.revents;
    return ready;
}

static void *map_file(int file, size_t length, unsigned offset) {
    void *data = mmap(NULL, length, PROT_READ, MAP_SHARED, file, (off_t)offset);
    return data != MAP_FAILED ? data : NULL;
}

static void unmap_file(void *data, size_t length) {
    (void)munmap(data, length);
}

static const carry_camera_calls of_the_system = {open_file, close, ask_file, poll_file, map_file, unmap_file};

static int ask(const camera *c, unsigned long what, void *argument) {
    int answer;
    do {
        answer = c->calls->ioctl(c->file, what, argument);
    } while (answer < 0 && errno == EINTR);
    return answer;
}

static void close_camera(void *opened) {
    camera *c = opened;
    int type = V4L2_BUF_TYPE_VIDEO_CAPTURE;
    (void)ask(c, VIDIOC_STREAMOFF, &type);
    for (unsigned i = 0; i < c->buffers; i++) {
        c->calls->unmap(c->buffer[i].data, c->buffer[i].size);
    }
    (void)c->calls->close(c->file);
    free(c);
}

/* Copies a buffer that the driver has filled. A buffer that is marked as damaged, or has an impossible index or
   size, is skipped. */
static carry_status take_buffer(carry_ctx *ctx, const camera *c, const struct v4l2_buffer *b, carry_jpeg_bytes *to) {
    if (b->index >= c->buffers || b->bytesused > c->buffer[b->index].size || (b->flags & V4L2_BUF_FLAG_ERROR) != 0) {
        return CARRY_OK;
    }
    CARRY_TRY(carry_video_room(ctx, to, (size_t)b->bytesused + 1));
    memcpy(to->bytes, c->buffer[b->index].data, b->bytesused);
    to->size = b->bytesused;
    return CARRY_OK;
}

static carry_status next_of_camera(carry_ctx *ctx, void *opened, carry_jpeg_bytes *to, bool *ended, char *why,
                                   size_t why_size) {
    camera *c = opened;
    struct v4l2_buffer b = {.type = V4L2_BUF_TYPE_VIDEO_CAPTURE, .memory = V4L2_MEMORY_MMAP};
    short events = 0;
    const int ready = c->calls->poll(c->file, WAIT_MS, &events);
    to->size = 0;
    *ended = false;
    if (ready > 0 && (events & POLLIN) != 0 && ask(c, VIDIOC_DQBUF, &b) == 0) {
        const carry_status status = take_buffer(ctx, c, &b, to);
        (void)ask(c, VIDIOC_QBUF, &b);
        c->missed = 0;
        return status;
    }
    if (ready > 0 && (events & POLLIN) != 0 && errno != EAGAIN && errno != EIO) { /* EIO: no signal for a moment */
        *ended = true;
        (void)snprintf(why, why_size, "the camera is gone: %s", strerror(errno));
    } else if (++c->missed > MISSED || (events & (POLLERR | POLLHUP | POLLNVAL)) != 0) {
        *ended = true;
        (void)snprintf(why, why_size, "the camera no longer gives frames");
    }
    return CARRY_OK;
}

/* Asks for a format. The driver may choose another format and another size. */
static bool set_format(camera *c, unsigned pixels, int width, int height) {
    struct v4l2_format format = {.type = V4L2_BUF_TYPE_VIDEO_CAPTURE};
    format.fmt.pix.width = (unsigned)width;
    format.fmt.pix.height = (unsigned)height;
    format.fmt.pix.pixelformat = pixels;
    format.fmt.pix.field = V4L2_FIELD_ANY;
    if (ask(c, VIDIOC_S_FMT, &format) < 0) {
        (void)snprintf(c->refused, sizeof c->refused, "it does not capture video: %s", strerror(errno));
        return false;
    }
    const struct v4l2_pix_format *pix = &format.fmt.pix;
    const unsigned got = pix->pixelformat;
    if (got != pixels) {
        (void)snprintf(c->refused, sizeof c->refused, "it captures %c%c%c%c", (int)(got & 127), (int)(got >> 8 & 127),
                       (int)(got >> 16 & 127), (int)(got >> 24 & 127));
        return false;
    }
    if (pixels == V4L2_PIX_FMT_YUYV) {
        const bool is_whole = pix->width >= 2 && pix->width % 2 == 0 && pix->width <= SIDE && pix->height >= 1 &&
                              pix->height <= SIDE && pix->bytesperline >= 2 * pix->width &&
                              pix->bytesperline <= 8 * SIDE;
        c->yuyv = (carry_yuyv){(int)pix->width, (int)pix->height, (int)pix->bytesperline};
        (void)snprintf(c->refused, sizeof c->refused, "frames of %u x %u, %u bytes a row", pix->width, pix->height,
                       pix->bytesperline);
        return is_whole;
    }
    return true;
}

static bool start(camera *c) {
    struct v4l2_requestbuffers request = {
        .count = BUFFERS, .type = V4L2_BUF_TYPE_VIDEO_CAPTURE, .memory = V4L2_MEMORY_MMAP};
    (void)snprintf(c->refused, sizeof c->refused, "it gives no buffers to be mapped");
    if (ask(c, VIDIOC_REQBUFS, &request) < 0 || request.count < 2) {
        return false;
    }
    for (unsigned i = 0; i < request.count && i < BUFFERS; i++) {
        struct v4l2_buffer b = {.type = V4L2_BUF_TYPE_VIDEO_CAPTURE, .memory = V4L2_MEMORY_MMAP, .index = i};
        if (ask(c, VIDIOC_QUERYBUF, &b) < 0) {
            return false;
        }
        void *data = c->calls->map(c->file, b.length, b.m.offset);
        if (data == NULL) {
            return false;
        }
        c->buffer[c->buffers].data = data;
        c->buffer[c->buffers++].size = b.length;
        if (ask(c, VIDIOC_QBUF, &b) < 0) {
            return false;
        }
    }
    int type = V4L2_BUF_TYPE_VIDEO_CAPTURE;
    (void)snprintf(c->refused, sizeof c->refused, "it does not start; another program may use it");
    return ask(c, VIDIOC_STREAMON, &type) == 0;
}

carry_status carry_video_open_camera(carry_ctx *ctx, carry_video_source *source, const char *path, int width,
                                     int height, const carry_camera_calls *calls) {
    camera *c = calloc(1, sizeof *c);
    if (c == NULL) {
        return carry_fail(ctx, CARRY_EMEMORY, "out of memory: a camera");
    }
    c->calls = calls != NULL ? calls : &of_the_system;
    c->file = c->calls->open(path);
    if (c->file < 0) {
        free(c);
        return carry_fail(ctx, CARRY_ENOTFOUND, "the camera %s cannot be opened: %s", path, strerror(errno));
    }
    if ((!set_format(c, V4L2_PIX_FMT_MJPEG, width, height) && !set_format(c, V4L2_PIX_FMT_YUYV, width, height)) ||
        !start(c)) {
        char why[sizeof c->refused];
        (void)snprintf(why, sizeof why, "%s", c->refused);
        close_camera(c);
        return carry_fail(ctx, CARRY_EUNSUPPORTED,
                          "%s: %s; Motion JPEG and YUYV are read (v4l2-ctl --list-formats lists what it has)", path,
                          why);
    }
    *source = (carry_video_source){
        .opened = c, .is_live = true, .yuyv = c->yuyv, .next = next_of_camera, .close = close_camera};
    return CARRY_OK;
}

#else

carry_status carry_video_open_camera(carry_ctx *ctx, carry_video_source *source, const char *path, int width,
                                     int height, const carry_camera_calls *calls) {
    (void)source;
    (void)width;
    (void)height;
    (void)calls;
    return carry_fail(ctx, CARRY_EUNSUPPORTED, "the camera %s: cameras are read on Linux", path);
}

#endif
