/* Records a stream to a video file. A thread waits for frames and writes them; its state is protected by a lock. */
#include "stream/server/recording.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/context.h"
#include "core/thread.h"
#include "stream/server/recording_avi.h"

#define EXTENSION ".avi"
#define PATIENCE 0.05 /* interval in seconds at which the thread checks whether to stop */

struct carry_film {
    carry_ctx *ctx; /* used by the thread */
    carry_hub *hub;
    carry_viewer *viewer;
    carry_avi *avi;
    char path[CARRY_FILE_PATH]; /* path of the first file */
    uint64_t limit, before;     /* before: bytes of the finished files */
    pthread_t thread;
    atomic_bool stop;
    pthread_mutex_t lock;
    carry_film_state state;
};

static carry_status open_file(carry_ctx *ctx, carry_film *film, const char *path) {
    int width, height;
    double fps = carry_hub_pace(film->hub, &width, &height);
    return carry_avi_new(ctx, &film->avi, path, width, height, fps, film->limit > 0 ? film->limit : CARRY_AVI_LIMIT);
}

/* Starts the next file: name.avi, name-2.avi, name-3.avi, ... */
static carry_status next_file(carry_film *film) {
    uint64_t bytes = carry_avi_bytes(film->avi);
    carry_avi *full = film->avi;
    film->avi = NULL;
    CARRY_TRY(carry_avi_close(film->ctx, full));
    film->before += bytes;
    char path[CARRY_FILE_PATH];
    int stem = (int)(strlen(film->path) - strlen(EXTENSION));
    int files = film->state.files + 1; /* only this thread writes it */
    int length = snprintf(path, sizeof path, "%.*s-%d%s", stem, film->path, files, EXTENSION);
    if (length < 0 || (size_t)length >= sizeof path) {
        return carry_fail(film->ctx, CARRY_ESIZE, "the recording ends: the name of file %d would be too long", files);
    }
    CARRY_TRY(open_file(film->ctx, film, path));
    pthread_mutex_lock(&film->lock);
    film->state.files = files;
    memcpy(film->state.path, path, (size_t)length + 1);
    pthread_mutex_unlock(&film->lock);
    return CARRY_OK;
}

static carry_status take_frame(carry_film *film) {
    carry_frame frame;
    if (!carry_viewer_take(film->viewer, &frame)) {
        return CARRY_OK;
    }
    if (!carry_avi_fits(film->avi, frame.size)) {
        CARRY_TRY(next_file(film));
    }
    CARRY_TRY(carry_avi_write(film->ctx, film->avi, frame.bytes, frame.size, frame.seconds));
    carry_viewer_give_back(film->viewer);
    uint64_t dropped = carry_viewer_dropped(film->viewer);
    pthread_mutex_lock(&film->lock);
    film->state.frames++;
    film->state.bytes = film->before + carry_avi_bytes(film->avi);
    film->state.dropped = dropped;
    pthread_mutex_unlock(&film->lock);
    return CARRY_OK;
}

static void end(carry_film *film) {
    pthread_mutex_lock(&film->lock);
    film->state.ended = true;
    (void)snprintf(film->state.why, sizeof film->state.why, "%s", carry_ctx_error(film->ctx));
    pthread_mutex_unlock(&film->lock);
    carry_log(film->ctx, CARRY_LOG_WARNING, "%s", carry_ctx_error(film->ctx));
}

static void *record(void *argument) {
    carry_film *film = argument;
    carry_status status = CARRY_OK;
    while (status == CARRY_OK && !atomic_load(&film->stop)) {
        if (carry_viewer_wait(film->viewer, PATIENCE)) {
            status = take_frame(film);
        }
    }
    if (status != CARRY_OK) {
        end(film);
    }
    carry_viewer_give_back(film->viewer);
    if (carry_avi_close(film->ctx, film->avi) != CARRY_OK && status == CARRY_OK) {
        end(film);
    }
    film->avi = NULL;
    return NULL;
}

static void film_free(carry_film *film) {
    if (film == NULL) {
        return;
    }
    (void)carry_avi_close(film->ctx, film->avi);
    carry_hub_leave(film->viewer);
    carry_ctx_free(film->ctx);
    pthread_mutex_destroy(&film->lock);
    free(film);
}

static carry_status set_up(carry_ctx *ctx, carry_film *film, const char *path) {
    size_t length = strlen(path);
    if (length >= CARRY_FILE_PATH - 16 || length <= strlen(EXTENSION) ||
        strcmp(path + length - strlen(EXTENSION), EXTENSION) != 0) {
        return carry_fail(ctx, CARRY_EARGUMENT, "a recording's name ends in %s and has at most %d bytes", EXTENSION,
                          CARRY_FILE_PATH - 16);
    }
    memcpy(film->path, path, length + 1);
    memcpy(film->state.path, path, length + 1);
    film->state.files = 1;
    carry_ctx_options options = {CARRY_INIT(carry_ctx_options), .threads = 1, .log_level = ctx->log_level,
                                 .log = ctx->log, .log_user = ctx->log_user};
    if (carry_ctx_new(&film->ctx, &options) != CARRY_OK) {
        return carry_fail(ctx, CARRY_EMEMORY, "out of memory: the recording %s", path);
    }
    if (carry_hub_join_to_record(film->hub, &film->viewer) != CARRY_OK) {
        return carry_fail(ctx, CARRY_ERANGE, "no recording: %d viewers are looking, which is the limit",
                          CARRY_HUB_VIEWERS);
    }
    CARRY_TRY(open_file(ctx, film, path));
    if (carry_thread_start(&film->thread, record, film) != 0) {
        return carry_fail(ctx, CARRY_EMEMORY, "no thread for the recording %s", path);
    }
    return CARRY_OK;
}

carry_status carry_film_start(carry_ctx *ctx, carry_film **made, carry_hub *hub, const char *path, uint64_t limit) {
    *made = NULL;
    carry_film *film = calloc(1, sizeof *film);
    if (film == NULL) {
        return carry_fail(ctx, CARRY_EMEMORY, "out of memory: the recording %s", path);
    }
    (void)pthread_mutex_init(&film->lock, NULL);
    film->hub = hub;
    film->limit = limit;
    carry_status status = set_up(ctx, film, path);
    if (status != CARRY_OK) {
        film_free(film);
        return status;
    }
    *made = film;
    return CARRY_OK;
}

void carry_film_look(carry_film *film, carry_film_state *state) {
    pthread_mutex_lock(&film->lock);
    *state = film->state;
    pthread_mutex_unlock(&film->lock);
}

void carry_film_stop(carry_film *film, carry_film_state *state) {
    if (film == NULL) {
        return;
    }
    atomic_store(&film->stop, true);
    (void)pthread_join(film->thread, NULL);
    if (state != NULL) {
        *state = film->state;
    }
    film_free(film);
}
