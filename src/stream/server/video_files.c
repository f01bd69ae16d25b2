/* Motion JPEG files and folders of JPEGs. */
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "core/error.h"
#include "core/file.h"
#include "stream/server/video_internal.h"

#define JPEG_MOST ((uint32_t)64 << 20) /* maximum bytes of a frame */

carry_status carry_video_room(carry_ctx *ctx, carry_jpeg_bytes *to, size_t size) {
    if (to->room < size) {
        unsigned char *more = realloc(to->bytes, size);
        if (more == NULL) {
            return carry_fail(ctx, CARRY_EMEMORY, "out of memory: a frame of %zu bytes", size);
        }
        to->bytes = more;
        to->room = size;
    }
    return CARRY_OK;
}

/* An AVI file is RIFF: chunks with a name, a size and data; LIST chunks contain other chunks. */
typedef struct avi {
    FILE *file;
    long size;             /* size of the file */
    long end;              /* end of the frames */
    uint32_t told, frames; /* number of frames by the header, 0: unknown; number read */
    char codec[5];         /* codec of the frames; empty: not stated */
} avi;

typedef struct chunk {
    char name[5];
    uint32_t size;
} chunk;

static uint32_t number(const unsigned char *b) {
    return (uint32_t)b[0] | (uint32_t)b[1] << 8 | (uint32_t)b[2] << 16 | (uint32_t)b[3] << 24;
}

static bool take_chunk(FILE *file, chunk *c) {
    unsigned char b[8];
    if (fread(b, 1, sizeof b, file) != sizeof b) {
        return false;
    }
    memcpy(c->name, b, 4);
    c->name[4] = '\0';
    c->size = number(b + 4);
    return true;
}

/* fseek accepts a position beyond the end of the file, so the position is compared with the size. */
static bool skip(const avi *a, uint32_t size) {
    const long to = ftell(a->file) + (long)size;
    return to <= a->size && fseek(a->file, to + (long)(size & 1), SEEK_SET) == 0;
}

static void say_end(const avi *a, char *why, size_t why_size) {
    if (a->frames < a->told) {
        (void)snprintf(why, why_size, "the video is damaged: it has ended after %u of %u frames", a->frames, a->told);
    } else {
        (void)snprintf(why, why_size, "the video has ended");
    }
}

static void close_avi(void *opened) {
    avi *a = opened;
    (void)fclose(a->file);
    free(a);
}

static carry_status next_of_avi(carry_ctx *ctx, void *opened, carry_jpeg_bytes *to, bool *ended, char *why,
                                size_t why_size) {
    avi *a = opened;
    chunk c;
    *ended = true;
    for (;;) {
        if (ftell(a->file) >= a->end || !take_chunk(a->file, &c)) {
            say_end(a, why, why_size);
            return CARRY_OK;
        }
        if (strcmp(c.name, "LIST") == 0) { /* a "rec " list contains frames */
            char kind[4];
            if (fread(kind, 1, sizeof kind, a->file) != sizeof kind) {
                (void)snprintf(why, why_size, "the video ends in the middle of a list");
                return CARRY_OK;
            }
            continue;
        }
        const bool is_frame = strcmp(c.name + 2, "dc") == 0 || strcmp(c.name + 2, "db") == 0;
        if (is_frame && c.size <= JPEG_MOST) {
            break;
        }
        if (!skip(a, c.size)) {
            (void)snprintf(why, why_size, "the video is damaged: a part of %u bytes after %u frames", c.size,
                           a->frames);
            return CARRY_OK;
        }
    }
    CARRY_TRY(carry_video_room(ctx, to, (size_t)c.size + 1));
    to->size = fread(to->bytes, 1, c.size, a->file);
    if (to->size != c.size) {
        (void)snprintf(why, why_size, "the video ends in the middle of a frame");
        return CARRY_OK;
    }
    (void)fseek(a->file, (long)(c.size & 1), SEEK_CUR);
    a->frames++;
    *ended = false;
    return CARRY_OK;
}

/* Reads the rate and the number of frames from avih, and the codec from strh. Other chunks are skipped. */
static bool take_header(avi *a, const chunk *c, double *fps) {
    unsigned char b[20] = {0};
    const bool is_main = strcmp(c->name, "avih") == 0;
    if ((!is_main && strcmp(c->name, "strh") != 0) || c->size < sizeof b) {
        return skip(a, c->size);
    }
    if (fread(b, 1, sizeof b, a->file) != sizeof b) {
        return false;
    }
    if (is_main) {
        *fps = number(b) > 0 ? 1e6 / (double)number(b) : 0.0;
        a->told = number(b + 16);
    } else if (memcmp(b, "vids", 4) == 0) {
        memcpy(a->codec, b + 4, 4);
    }
    return skip(a, c->size - (uint32_t)sizeof b);
}

/* Skips to the list of frames ("movi"). */
static bool find_frames(avi *a, double *fps) {
    chunk c;
    char kind[5] = "";
    if (!take_chunk(a->file, &c) || strcmp(c.name, "RIFF") != 0 || fread(kind, 1, 4, a->file) != 4 ||
        strcmp(kind, "AVI ") != 0) {
        return false;
    }
    while (take_chunk(a->file, &c)) {
        if (strcmp(c.name, "LIST") != 0) {
            if (!take_header(a, &c, fps)) {
                return false;
            }
            continue;
        }
        const long start = ftell(a->file);
        if (fread(kind, 1, 4, a->file) != 4) {
            return false;
        }
        if (strcmp(kind, "movi") == 0) { /* a size of 0 is left by a writer that did not close the file */
            a->end = c.size > 4 && c.size < 0x7FFFFFFFu ? start + (long)c.size : 0x7FFFFFFFL;
            return true;
        }
        const bool is_header = strcmp(kind, "hdrl") == 0 || strcmp(kind, "strl") == 0; /* its chunks are read next */
        if (!is_header && (fseek(a->file, start, SEEK_SET) != 0 || !skip(a, c.size))) {
            return false;
        }
    }
    return false;
}

static bool is_motion_jpeg(const char *codec) {
    return codec[0] == '\0' || strcasecmp(codec, "MJPG") == 0 || strcasecmp(codec, "JPEG") == 0 ||
           strcasecmp(codec, "AVRN") == 0 || strcasecmp(codec, "dmb1") == 0;
}

static bool find_size(avi *a) {
    return fseek(a->file, 0, SEEK_END) == 0 && (a->size = ftell(a->file)) >= 0 && fseek(a->file, 0, SEEK_SET) == 0;
}

carry_status carry_video_open_avi(carry_ctx *ctx, carry_video_source *source, const char *path) {
    avi *a = calloc(1, sizeof *a);
    if (a == NULL) {
        return carry_fail(ctx, CARRY_EMEMORY, "out of memory: a video");
    }
    a->file = fopen(path, "rb");
    if (a->file == NULL) {
        free(a);
        return carry_fail(ctx, CARRY_ENOTFOUND, "the video %s cannot be opened", path);
    }
    *source = (carry_video_source){.opened = a, .next = next_of_avi, .close = close_avi};
    if (!find_size(a) || !find_frames(a, &source->fps)) {
        close_avi(a);
        *source = (carry_video_source){0};
        return carry_fail(ctx, CARRY_EFORMAT,
                          "%s is not an AVI file of Motion JPEG, or its header is damaged: ffmpeg -i %s -c:v mjpeg -an "
                          "out.avi makes one",
                          path, path);
    }
    if (!is_motion_jpeg(a->codec)) {
        char codec[5];
        for (int i = 0; i < 5; i++) {
            codec[i] = (char)(a->codec[i] == '\0' || (a->codec[i] >= ' ' && a->codec[i] <= '~') ? a->codec[i] : '?');
        }
        close_avi(a);
        *source = (carry_video_source){0};
        return carry_fail(
            ctx, CARRY_EFORMAT,
            "the frames of %s are %s, and Motion JPEG is read: ffmpeg -i %s -c:v mjpeg -an out.avi makes it", path,
            codec, path);
    }
    return CARRY_OK;
}

typedef struct folder {
    char path[CARRY_FILE_PATH];
    struct dirent **entry;
    int count, next;
} folder;

static int is_jpeg(const struct dirent *entry) {
    const char *end = strrchr(entry->d_name, '.');
    return end != NULL && (strcasecmp(end, ".jpg") == 0 || strcasecmp(end, ".jpeg") == 0);
}

static void close_folder(void *opened) {
    folder *f = opened;
    for (int i = 0; i < f->count; i++) {
        free(f->entry[i]);
    }
    free(f->entry);
    free(f);
}

static carry_status next_of_folder(carry_ctx *ctx, void *opened, carry_jpeg_bytes *to, bool *ended, char *why,
                                   size_t why_size) {
    folder *f = opened;
    char path[CARRY_FILE_PATH];
    *ended = f->next >= f->count;
    if (*ended) {
        (void)snprintf(why, why_size, "the folder's %d pictures have been shown", f->count);
        return CARRY_OK;
    }
    CARRY_TRY(carry_file_in(ctx, path, f->path, f->entry[f->next++]->d_name));
    FILE *file = fopen(path, "rb");
    to->size = 0; /* a file that cannot be read counts as a damaged frame */
    if (file == NULL) {
        return CARRY_OK;
    }
    carry_status status = fseek(file, 0, SEEK_END) == 0 ? CARRY_OK : CARRY_EIO;
    const long size = status == CARRY_OK ? ftell(file) : 0;
    if (size > 0 && size <= (long)JPEG_MOST && fseek(file, 0, SEEK_SET) == 0) {
        status = carry_video_room(ctx, to, (size_t)size);
        to->size = status == CARRY_OK ? fread(to->bytes, 1, (size_t)size, file) : 0;
    }
    (void)fclose(file);
    return status == CARRY_EMEMORY ? status : CARRY_OK;
}

carry_status carry_video_open_folder(carry_ctx *ctx, carry_video_source *source, const char *path) {
    folder *f = calloc(1, sizeof *f);
    if (f == NULL) {
        return carry_fail(ctx, CARRY_EMEMORY, "out of memory: a folder of pictures");
    }
    (void)snprintf(f->path, sizeof f->path, "%s", path);
    const int found = scandir(path, &f->entry, is_jpeg, alphasort);
    f->count = found > 0 ? found : 0;
    *source = (carry_video_source){.opened = f, .next = next_of_folder, .close = close_folder};
    if (f->count == 0) {
        close_folder(f);
        *source = (carry_video_source){0};
        return carry_fail(ctx, CARRY_ENOTFOUND, "%s has no pictures: files that end in .jpg or .jpeg", path);
    }
    return CARRY_OK;
}
