/* Cameras by Video4Linux: Motion JPEG in buffers that the driver fills and this maps. */
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

enum { BUFFERS = 4, WAIT_MS = 100, MISSED = 50 }; /* so many waits without a frame: the camera is gone */

typedef struct camera {
    int file, missed;
    unsigned buffers;
    struct {
        void *data;
        size_t size;
    } buffer[BUFFERS];
} camera;

static int ask(int file, unsigned long what, void *argument) {
    int answer;
    do {
        answer = ioctl(file, what, argument);
    } while (answer < 0 && errno == EINTR);
    return answer;
}

static void close_camera(void *opened) {
    camera *c = opened;
    int type = V4L2_BUF_TYPE_VIDEO_CAPTURE;
    (void)ask(c->file, VIDIOC_STREAMOFF, &type);
    for (unsigned i = 0; i < c->buffers; i++) {
        (void)munmap(c->buffer[i].data, c->buffer[i].size);
    }
    (void)close(c->file);
    free(c);
}

static carry_status next_of_camera(carry_ctx *ctx, void *opened, carry_jpeg_bytes *to, bool *ended, char *why,
                                   size_t why_size) {
    camera *c = opened;
    struct pollfd wait = {.fd = c->file, .events = POLLIN};
    struct v4l2_buffer b = {.type = V4L2_BUF_TYPE_VIDEO_CAPTURE, .memory = V4L2_MEMORY_MMAP};
    const int ready = poll(&wait, 1, WAIT_MS);
    to->size = 0;
    *ended = false;
    c->missed = ready > 0 ? 0 : c->missed + 1;
    if (c->missed > MISSED || (wait.revents & (POLLERR | POLLHUP | POLLNVAL)) != 0) {
        *ended = true;
        (void)snprintf(why, why_size, "the camera no longer gives frames");
        return CARRY_OK;
    }
    if (ready <= 0) {
        return CARRY_OK;
    }
    if (ask(c->file, VIDIOC_DQBUF, &b) < 0) {
        *ended = errno != EAGAIN;
        (void)snprintf(why, why_size, "the camera is gone: %s", strerror(errno));
        return CARRY_OK;
    }
    carry_status status = CARRY_OK;
    if (b.index < c->buffers && b.bytesused <= c->buffer[b.index].size && (b.flags & V4L2_BUF_FLAG_ERROR) == 0) {
        status = carry_video_room(ctx, to, b.bytesused + 1);
        if (status == CARRY_OK) {
            memcpy(to->bytes, c->buffer[b.index].data, b.bytesused);
            to->size = b.bytesused;
        }
    }
    (void)ask(c->file, VIDIOC_QBUF, &b);
    return status;
}

static bool start(camera *c, int width, int height) {
    struct v4l2_format format = {.type = V4L2_BUF_TYPE_VIDEO_CAPTURE};
    format.fmt.pix.width = (unsigned)width;
    format.fmt.pix.height = (unsigned)height;
    format.fmt.pix.pixelformat = V4L2_PIX_FMT_MJPEG;
    format.fmt.pix.field = V4L2_FIELD_ANY;
    struct v4l2_requestbuffers request = {
        .count = BUFFERS, .type = V4L2_BUF_TYPE_VIDEO_CAPTURE, .memory = V4L2_MEMORY_MMAP};
    if (ask(c->file, VIDIOC_S_FMT, &format) < 0 || format.fmt.pix.pixelformat != V4L2_PIX_FMT_MJPEG ||
        ask(c->file, VIDIOC_REQBUFS, &request) < 0 || request.count < 2) {
        return false;
    }
    for (unsigned i = 0; i < request.count && i < BUFFERS; i++) {
        struct v4l2_buffer b = {.type = V4L2_BUF_TYPE_VIDEO_CAPTURE, .memory = V4L2_MEMORY_MMAP, .index = i};
        if (ask(c->file, VIDIOC_QUERYBUF, &b) < 0) {
            return false;
        }
        void *data = mmap(NULL, b.length, PROT_READ, MAP_SHARED, c->file, b.m.offset);
        if (data == MAP_FAILED) {
            return false;
        }
        c->buffer[c->buffers].data = data;
        c->buffer[c->buffers++].size = b.length;
        if (ask(c->file, VIDIOC_QBUF, &b) < 0) {
            return false;
        }
    }
    int type = V4L2_BUF_TYPE_VIDEO_CAPTURE;
    return ask(c->file, VIDIOC_STREAMON, &type) == 0;
}

carry_status carry_video_open_camera(carry_ctx *ctx, carry_video_source *source, const char *path, int width,
                                     int height) {
    camera *c = calloc(1, sizeof *c);
    if (c == NULL) {
        return carry_fail(ctx, CARRY_EMEMORY, "out of memory: a camera");
    }
    c->file = open(path, O_RDWR | O_NONBLOCK | O_CLOEXEC);
    if (c->file < 0) {
        free(c);
        return carry_fail(ctx, CARRY_ENOTFOUND, "the camera %s cannot be opened: %s", path, strerror(errno));
    }
    if (!start(c, width, height)) {
        close_camera(c);
        return carry_fail(ctx, CARRY_EUNSUPPORTED,
                          "%s does not capture Motion JPEG (v4l2-ctl --list-formats says what it does)", path);
    }
    *source = (carry_video_source){.opened = c, .is_live = true, .next = next_of_camera, .close = close_camera};
    return CARRY_OK;
}

#else

carry_status carry_video_open_camera(carry_ctx *ctx, carry_video_source *source, const char *path, int width,
                                     int height) {
    (void)source;
    (void)width;
    (void)height;
    return carry_fail(ctx, CARRY_EUNSUPPORTED, "the camera %s: cameras are read on Linux", path);
}

#endif
