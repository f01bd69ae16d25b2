/* carry stream: output of frames to viewers and recordings, if this build has them, and to files. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "cli/cmd_stream.h"
#include "core/clock.h"
#include "core/context.h"
#ifdef CARRY_HAVE_PAGE
#include "stream/server/recording.h"
#include "stream/server/server.h"
#endif

#define DRAIN 3.0 /* maximum seconds to wait */

struct stream_page {
    carry_ctx *ctx;
    uint64_t files; /* frames written to --out */
    unsigned char *row;
    bool is_full; /* --out: the disk is full */
#ifdef CARRY_HAVE_PAGE
    carry_hub *hub;
    carry_server *server;
    carry_film *film;
#endif
};

/* Keeps the first reason, which is printed at the end. */
static void not_saved(stream_session *session, const char *why) {
    if (session->unsaved[0] == '\0') {
        (void)snprintf(session->unsaved, sizeof session->unsaved, "%s", why);
    }
}

#ifdef CARRY_HAVE_PAGE
/* A restarted stream does not overwrite its recordings: it writes name-restart-1.avi, ... */
static carry_status start_film(stream_session *session, struct stream_page *page) {
    const char *name = session->options->record;
    const size_t length = strlen(name);
    const size_t stem = length > 4 && strcmp(name + length - 4, ".avi") == 0 ? length - 4 : length;
    char path[CARRY_FILE_PATH];
    if (session->pipeline.restarts == 0) {
        return carry_film_start(page->ctx, &page->film, page->hub, name, 0);
    }
    uint64_t restart = session->pipeline.restarts;
    do {
        const int written = snprintf(path, sizeof path, "%.*s-restart-%llu%s", (int)stem, name,
                                     (unsigned long long)restart++, name + stem);
        if (written < 0 || (size_t)written >= sizeof path) {
            return carry_fail(page->ctx, CARRY_ESIZE, "the path of --record is too long");
        }
    } while (access(path, F_OK) == 0);
    return carry_film_start(page->ctx, &page->film, page->hub, path, 0);
}

static carry_status open_hub(stream_session *session, struct stream_page *page) {
    const stream_options *given = session->options;
    if (!given->serve && given->record == NULL) {
        return CARRY_OK;
    }
    CARRY_TRY(carry_hub_new(page->ctx, &page->hub, (int)session->pipeline.width, (int)session->pipeline.height,
                            (int)given->quality, session->pipeline.fps));
    if (given->record != NULL) {
        CARRY_TRY(start_film(session, page));
    }
    if (!given->serve) {
        return CARRY_OK;
    }
    const carry_server_options options = {
        .address = given->address, .port = session->port, .token = session->token, .record_to = given->record_to};
    CARRY_TRY(carry_server_start(page->ctx, &page->server, &options, page->hub, session->controls));
    session->port = carry_server_port(page->server); /* reused if the stream starts again */
    return CARRY_OK;
}

bool stream_page_address(const stream_session *session, char *line, size_t size) {
    const char *address = session->options->address != NULL ? session->options->address : "127.0.0.1";
    const bool has_colons = strchr(address, ':') != NULL; /* IPv6 */
    if (session->page == NULL || session->page->server == NULL) {
        return false;
    }
    (void)snprintf(line, size, has_colons ? "http://[%s]:%d/" : "http://%s:%d/", address,
                   carry_server_port(session->page->server));
    return true;
}

/* With a pace, frames are released some time after they were made. Waits until the last ones are recorded, too. */
static void drain_film(stream_session *session, struct stream_page *page) {
    const double start = carry_seconds();
    double released = 0.0; /* when the last frame was released */
    carry_film_state state = {0};
    while (carry_seconds() - start < DRAIN && !state.ended && state.frames + state.dropped < session->figures.frames &&
           (released == 0.0 || carry_seconds() - released < DRAIN / 10)) {
        const struct timespec pause = {.tv_nsec = 5000000};
        (void)nanosleep(&pause, NULL);
        released = released == 0.0 && carry_hub_next_release(page->hub) < 0.0 ? carry_seconds() : released;
        carry_film_look(page->film, &state);
    }
}

static void close_hub(stream_session *session, struct stream_page *page) {
    if (page->server != NULL) {
        carry_server_stop(page->server);
    }
    if (page->film != NULL) {
        carry_film_state state;
        drain_film(session, page);
        carry_film_stop(page->film, &state);
        char line[CARRY_FILE_PATH + 640];
        if (state.ended) {
            not_saved(session, state.why);
        } else {
            char missed[96] = "";
            if (state.dropped > 0) {
                (void)snprintf(missed, sizeof missed, ", %llu missed: they came faster than they were written",
                               (unsigned long long)state.dropped);
            }
            (void)snprintf(line, sizeof line, "%llu frames in %s%s", (unsigned long long)state.frames, state.path,
                           missed);
            stream_show_line(&session->display, line);
        }
    }
    carry_hub_free(page->hub);
}

static carry_status publish(struct stream_page *page, const float *pixels, uint64_t chunk_index, uint64_t cache_epoch) {
    return page->hub != NULL ? carry_hub_publish(page->hub, pixels, chunk_index, cache_epoch) : CARRY_OK;
}

/* Checks the folder on rank 0 only: ranks on other machines may not have it. */
static int check_folder(const char *folder) {
    struct stat about;
    if (folder == NULL || cli_process_rank() > 0) {
        return CLI_DONE;
    }
    errno = stat(folder, &about) == 0 && !S_ISDIR(about.st_mode) ? ENOTDIR : 0;
    return errno == 0 && access(folder, W_OK | X_OK) == 0
               ? CLI_DONE
               : cli_refuse("--record-to %s cannot be recorded to: %s", folder, strerror(errno));
}

int stream_page_check(const stream_options *given) {
    if (given->serve && given->headless) {
        return cli_refuse("--serve and --headless exclude each other: give one of them");
    }
    if (given->port > 65535) {
        return cli_refuse("--port %lld: ports are 0 (any that is free) to 65535", (long long)given->port);
    }
    if (given->quality < 1 || given->quality > 100) {
        return cli_refuse("--quality %lld: expected 1 to 100", (long long)given->quality);
    }
    return check_folder(given->record_to);
}

void stream_page_cut(stream_session *session, uint64_t cache_epoch, bool is_asked) {
    if (session->page != NULL && session->page->hub != NULL) {
        (is_asked ? carry_hub_cut : carry_hub_follow)(session->page->hub, cache_epoch);
    }
}

void stream_page_figures(stream_session *session, const carry_stream_figures *figures) {
    if (session->page != NULL && session->page->hub != NULL) {
        carry_hub_set_figures(session->page->hub, figures);
    }
}
#else
static carry_status open_hub(stream_session *session, struct stream_page *page) {
    (void)session;
    (void)page;
    return CARRY_OK;
}

bool stream_page_address(const stream_session *session, char *line, size_t size) {
    (void)session;
    (void)line;
    (void)size;
    return false;
}

static void close_hub(stream_session *session, struct stream_page *page) {
    (void)session;
    (void)page;
}

static carry_status publish(struct stream_page *page, const float *pixels, uint64_t chunk_index, uint64_t cache_epoch) {
    (void)page;
    (void)pixels;
    (void)chunk_index;
    (void)cache_epoch;
    return CARRY_OK;
}

int stream_page_check(const stream_options *given) {
    if (given->serve || given->record != NULL) {
        return cli_refuse("this carry was built without the page of a stream, which --serve and --record need: build "
                          "it where libwebsockets and libjpeg are found, or write frames with --out FOLDER");
    }
    return CLI_DONE;
}

void stream_page_cut(stream_session *session, uint64_t cache_epoch, bool is_asked) {
    (void)session;
    (void)cache_epoch;
    (void)is_asked;
}

void stream_page_figures(stream_session *session, const carry_stream_figures *figures) {
    (void)session;
    (void)figures;
}
#endif

/* True if the frames also go to a page or a recording. */
static bool has_others(const stream_session *session) {
    return session->options->serve || session->options->record != NULL;
}

static carry_status picture_path(const stream_session *session, char path[CARRY_FILE_PATH]) {
    const struct stream_page *page = session->page;
    const int length =
        snprintf(path, CARRY_FILE_PATH, "%s/frame-%06llu.ppm", session->options->out, (unsigned long long)page->files);
    return length > 0 && length < CARRY_FILE_PATH ? CARRY_OK
                                                  : carry_fail(page->ctx, CARRY_ESIZE, "the path of --out is too long");
}

/* Refuses a folder that is not empty, since frames of another stream in it could not be distinguished, unless
   --overwrite is given. A restarted stream continues in its own folder. */
static carry_status check_empty(const stream_session *session, carry_ctx *ctx) {
    DIR *folder = opendir(session->options->out);
    if (folder == NULL) {
        return carry_fail(ctx, CARRY_EIO, "the folder %s cannot be read: %s", session->options->out, strerror(errno));
    }
    bool is_empty = true;
    for (const struct dirent *entry = readdir(folder); entry != NULL && is_empty; entry = readdir(folder)) {
        is_empty = strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0;
    }
    (void)closedir(folder);
    return is_empty || session->options->overwrite || session->pipeline.restarts > 0
               ? CARRY_OK
               : carry_fail(ctx, CARRY_EARGUMENT, "--out %s is not empty: give another folder, or --overwrite",
                            session->options->out);
}

carry_status stream_page_open(stream_session *session, carry_ctx *ctx) {
    struct stream_page *page = calloc(1, sizeof *page);
    session->page = page;
    if (page == NULL) {
        return carry_fail(ctx, CARRY_EMEMORY, "out of memory: page");
    }
    page->ctx = ctx;
    if (session->options->out != NULL) {
        if (mkdir(session->options->out, 0777) != 0 && errno != EEXIST) {
            return carry_fail(ctx, CARRY_EIO, "the folder %s cannot be made: %s", session->options->out,
                              strerror(errno));
        }
        CARRY_TRY(check_empty(session, ctx));
        page->row = malloc((size_t)(3 * session->pipeline.width * session->pipeline.height));
        if (page->row == NULL) {
            return carry_fail(ctx, CARRY_EMEMORY, "out of memory: picture");
        }
        char path[CARRY_FILE_PATH];
        CARRY_TRY(picture_path(session, path));
        while (session->pipeline.restarts > 0 &&
               access(path, F_OK) == 0) { /* a restarted stream continues after the existing files */
            page->files++;
            CARRY_TRY(picture_path(session, path));
        }
    }
    return open_hub(session, page);
}

/* Writes a portable pixmap, which common picture viewers open. */
static carry_status write_picture(stream_session *session, const float *pixels) {
    struct stream_page *page = session->page;
    const int64_t count = session->pipeline.width * session->pipeline.height;
    char path[CARRY_FILE_PATH];
    CARRY_TRY(picture_path(session, path));
    page->files++;
    for (int64_t i = 0; i < count; i++) {
        for (int64_t c = 0; c < 3; c++) {
            const float value = pixels[c * count + i];
            page->row[3 * i + c] = (unsigned char)(value > 0.0f ? 255.0f * (value < 1.0f ? value : 1.0f) + 0.5f : 0.0f);
        }
    }
    /* Does not follow a link. */
    const int opened = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC, 0666);
    FILE *file = opened >= 0 ? fdopen(opened, "wb") : NULL;
    bool is_written = file != NULL;
    if (file != NULL) {
        is_written = fprintf(file, "P6\n%lld %lld\n255\n", (long long)session->pipeline.width,
                             (long long)session->pipeline.height) > 0 &&
                     fwrite(page->row, (size_t)(3 * count), 1, file) == 1;
        is_written = fclose(file) == 0 && is_written;
    }
    if (is_written) {
        return CARRY_OK;
    }
    const carry_status status = carry_fail(page->ctx, CARRY_EIO, "%s cannot be written: %s", path, strerror(errno));
    if (file != NULL) {
        (void)unlink(path); /* removes a partial picture */
    }
    return status;
}

/* If the disk is full, the stream ends if it has no other output; otherwise only the files end. */
static carry_status keep_picture(stream_session *session, const float *pixels) {
    struct stream_page *page = session->page;
    const carry_status status = write_picture(session, pixels);
    if (status == CARRY_OK || !has_others(session)) {
        return status;
    }
    page->is_full = true;
    carry_log(page->ctx, CARRY_LOG_WARNING, "%s: no more of --out is written", carry_ctx_error(page->ctx));
    not_saved(session, carry_ctx_error(page->ctx));
    return CARRY_OK;
}

carry_status stream_page_frames(stream_session *session, carry_tensor frames, uint64_t chunk_index,
                                uint64_t cache_epoch) {
    const float *pixels = frames.data;
    for (int64_t i = 0; i < frames.shape[0]; i++) {
        const float *picture = pixels + i * frames.stride[0];
        CARRY_TRY(publish(session->page, picture, chunk_index, cache_epoch));
        if (session->options->out != NULL && !session->page->is_full) {
            CARRY_TRY(keep_picture(session, picture));
        }
    }
    return CARRY_OK;
}

void stream_page_close(stream_session *session) {
    if (session->page != NULL) {
        close_hub(session, session->page);
        free(session->page->row);
        free(session->page);
        session->page = NULL;
    }
}
