#include "stream/server/video.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

#include "core/clock.h"
#include "core/context.h"
#include "core/tensor.h"
#include "stream/server/video_internal.h"

#define LOOK 0.1 /* interval in seconds at which to check whether to stop */
#define FPS 16.0 /* frame rate of a folder that plays live */

struct carry_video {
    carry_video_options options;
    carry_video_source source;
    char path[256];
    int damaged;           /* damaged frames in a row */
    carry_jpeg_bytes held; /* the frame being decoded */
    bool has_ended;        /* as seen by the reader */
    char end[320];
    /* For a live source: */
    bool has_thread;
    pthread_t thread;
    carry_ctx *ctx; /* used by the thread */
    pthread_mutex_t lock;
    pthread_cond_t changed;
    carry_jpeg_bytes *ring; /* [keep] frames, the oldest at `first` */
    int first, count;
    uint64_t dropped;
    bool is_over, is_closing;
    char why[256];
};

static void rest_until(double when) {
    const double left = when - carry_seconds();
    if (left > 0.0) {
        const struct timespec pause = {.tv_sec = (time_t)left, .tv_nsec = (long)((left - (double)(time_t)left) * 1e9)};
        (void)nanosleep(&pause, NULL);
    }
}

static void push(carry_video *v, carry_jpeg_bytes *frame) {
    (void)pthread_mutex_lock(&v->lock);
    if (v->count == v->options.keep) {
        v->first = (v->first + 1) % v->options.keep;
        v->count--;
        v->dropped++;
    }
    carry_jpeg_bytes *slot = &v->ring[(v->first + v->count) % v->options.keep];
    const carry_jpeg_bytes spare = *slot;
    *slot = *frame;
    *frame = spare;
    frame->size = 0;
    v->count++;
    (void)pthread_cond_broadcast(&v->changed);
    (void)pthread_mutex_unlock(&v->lock);
}

static bool is_closing(carry_video *v) {
    (void)pthread_mutex_lock(&v->lock);
    const bool closes = v->is_closing;
    (void)pthread_mutex_unlock(&v->lock);
    return closes;
}

/* The thread that reads a live source. It reads a file at the file's own frame rate; a camera sets its own pace. */
static void *read_live(void *argument) {
    carry_video *v = argument;
    carry_jpeg_bytes frame = {0};
    bool ended = false;
    char why[256] = "";
    const double each = v->source.is_live ? 0.0 : 1.0 / (v->source.fps > 0.0 ? v->source.fps : v->options.fps);
    for (double due = carry_seconds(); !ended && !is_closing(v); due += each) {
        while (each > 0.0 && carry_seconds() < due && !is_closing(v)) {
            rest_until(due < carry_seconds() + LOOK ? due : carry_seconds() + LOOK);
        }
        frame.size = 0;
        if (v->source.next(v->ctx, v->source.opened, &frame, &ended, why, sizeof why) != CARRY_OK) {
            ended = true;
            (void)snprintf(why, sizeof why, "%s", carry_ctx_error(v->ctx));
        }
        if (!ended && frame.size > 0) {
            push(v, &frame);
        }
    }
    free(frame.bytes);
    (void)pthread_mutex_lock(&v->lock);
    v->is_over = true;
    (void)snprintf(v->why, sizeof v->why, "%s", why);
    (void)pthread_cond_broadcast(&v->changed);
    (void)pthread_mutex_unlock(&v->lock);
    return NULL;
}

static carry_status start_thread(carry_ctx *ctx, carry_video *v) {
    pthread_condattr_t attributes;
    v->ring = calloc((size_t)v->options.keep, sizeof *v->ring);
    if (v->ring == NULL ||
        carry_ctx_new(&v->ctx, &(carry_ctx_options){CARRY_INIT(carry_ctx_options), .threads = 1}) != CARRY_OK) {
        return carry_fail(ctx, CARRY_EMEMORY, "out of memory: %d frames of a video", v->options.keep);
    }
    (void)pthread_condattr_init(&attributes);
    (void)pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    (void)pthread_cond_init(&v->changed, &attributes);
    (void)pthread_condattr_destroy(&attributes);
    (void)pthread_mutex_init(&v->lock, NULL);
    v->has_thread = pthread_create(&v->thread, NULL, read_live, v) == 0;
    return v->has_thread ? CARRY_OK : carry_fail(ctx, CARRY_EMEMORY, "no thread for a video");
}

carry_status carry_video_open(carry_ctx *ctx, carry_video **made, const char *path,
                              const carry_video_options *options) {
    struct stat about;
    *made = NULL;
    if (options->camera == NULL && stat(path, &about) != 0) {
        return carry_fail(ctx, CARRY_ENOTFOUND, "there is no video %s: a .avi file, a folder of JPEGs or a camera",
                          path);
    }
    if (options->camera == NULL && !S_ISCHR(about.st_mode) && !S_ISDIR(about.st_mode) && !S_ISREG(about.st_mode)) {
        return carry_fail(ctx, CARRY_EARGUMENT,
                          "%s is not a file, a folder of JPEGs or a camera (a pipe cannot be read from)", path);
    }
    carry_video *v = calloc(1, sizeof *v);
    if (v == NULL) {
        return carry_fail(ctx, CARRY_EMEMORY, "out of memory: a video");
    }
    v->options = *options;
    v->options.fps = options->fps > 0.0 ? options->fps : FPS;
    (void)snprintf(v->path, sizeof v->path, "%s", path);
    carry_status status;
    if (options->camera != NULL || S_ISCHR(about.st_mode)) {
        status = carry_video_open_camera(ctx, &v->source, path, options->width, options->height, options->camera);
    } else if (S_ISDIR(about.st_mode)) {
        status = carry_video_open_folder(ctx, &v->source, path);
    } else {
        status = carry_video_open_avi(ctx, &v->source, path);
    }
    if (status == CARRY_OK && (options->is_live || v->source.is_live)) {
        status = start_thread(ctx, v);
    }
    if (status != CARRY_OK) {
        carry_video_free(v);
        return status;
    }
    *made = v;
    return CARRY_OK;
}

void carry_video_free(carry_video *v) {
    if (v == NULL) {
        return;
    }
    if (v->has_thread) {
        (void)pthread_mutex_lock(&v->lock);
        v->is_closing = true;
        (void)pthread_mutex_unlock(&v->lock);
        (void)pthread_join(v->thread, NULL);
        (void)pthread_mutex_destroy(&v->lock);
        (void)pthread_cond_destroy(&v->changed);
    }
    for (int i = 0; v->ring != NULL && i < v->options.keep; i++) {
        free(v->ring[i].bytes);
    }
    free(v->ring);
    carry_ctx_free(v->ctx);
    free(v->held.bytes);
    if (v->source.close != NULL) {
        v->source.close(v->source.opened);
    }
    free(v);
}

/* Takes the oldest kept frame. Returns false if none arrived within LOOK seconds. */
static bool pop(carry_video *v, bool *ended) {
    struct timespec until;
    (void)clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_nsec += (long)(LOOK * 1e9);
    until.tv_sec += until.tv_nsec / 1000000000L;
    until.tv_nsec %= 1000000000L;
    (void)pthread_mutex_lock(&v->lock);
    int late = 0;
    while (v->count == 0 && !v->is_over && late == 0) {
        late = pthread_cond_timedwait(&v->changed, &v->lock, &until);
    }
    const bool has_one = v->count > 0;
    if (has_one) {
        const carry_jpeg_bytes spare = v->held;
        v->held = v->ring[v->first];
        v->ring[v->first] = spare;
        v->first = (v->first + 1) % v->options.keep;
        v->count--;
    }
    *ended = !has_one && v->is_over;
    if (*ended) {
        (void)snprintf(v->end, sizeof v->end, "%s", v->why);
    }
    (void)pthread_mutex_unlock(&v->lock);
    return has_one;
}

static carry_status next(carry_ctx *ctx, carry_video *v, bool *has_one) {
    bool ended = false;
    if (v->has_thread) {
        *has_one = pop(v, &ended);
    } else {
        CARRY_TRY(v->source.next(ctx, v->source.opened, &v->held, &ended, v->end, sizeof v->end));
        *has_one = !ended;
    }
    v->has_ended = v->has_ended || ended;
    return CARRY_OK;
}

static bool decode(const carry_video *v, float *pixels, char *why, size_t why_size) {
    const int width = v->options.width;
    const int height = v->options.height;
    return v->source.yuyv.width > 0 ? carry_yuyv_decode(&v->held, &v->source.yuyv, pixels, width, height, why, why_size)
                                    : carry_jpeg_decode(&v->held, pixels, width, height, why, why_size);
}

carry_status carry_video_read(carry_ctx *ctx, carry_video *v, carry_tensor frames, int64_t *got, bool (*stop)(void)) {
    const int64_t n = frames.shape[0];
    const int64_t shape[] = {n, 3, v->options.height, v->options.width};
    const int64_t each = 3 * shape[2] * shape[3];
    *got = 0;
    CARRY_TRY(carry_tensor_expect(ctx, "frames", &frames, 4, shape));
    while (*got < n && !v->has_ended && !(stop != NULL && stop())) {
        char why[256];
        bool has_one;
        CARRY_TRY(next(ctx, v, &has_one));
        if (!has_one) {
            continue;
        }
        if (decode(v, (float *)frames.data + *got * each, why, sizeof why)) {
            v->damaged = 0;
            ++*got;
            continue;
        }
        carry_log(ctx, CARRY_LOG_WARNING, "%s: a damaged frame is skipped: %s", v->path, why);
        if (++v->damaged >= CARRY_VIDEO_DAMAGED) {
            v->has_ended = true;
            (void)snprintf(v->end, sizeof v->end, "%d frames in a row are damaged", v->damaged);
        }
    }
    return CARRY_OK;
}

bool carry_video_is_ready(carry_video *v, int64_t frames) {
    if (!v->has_thread) {
        return true;
    }
    (void)pthread_mutex_lock(&v->lock);
    const bool ready = v->count >= frames || v->is_over;
    (void)pthread_mutex_unlock(&v->lock);
    return ready;
}

uint64_t carry_video_dropped(carry_video *v) {
    if (!v->has_thread) {
        return 0;
    }
    (void)pthread_mutex_lock(&v->lock);
    const uint64_t dropped = v->dropped;
    (void)pthread_mutex_unlock(&v->lock);
    return dropped;
}

const char *carry_video_end(carry_video *v) {
    return v->has_ended ? v->end : "";
}
