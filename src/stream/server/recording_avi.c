/* Writes JPEGs to an AVI file. All numbers are little-endian; every chunk starts at an even offset. */
#include "stream/server/recording_avi.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/clock.h"
#include "core/error.h"
#include "core/file.h"

#define HEADER 224     /* bytes before the first frame */
#define MOVI 220       /* offset of "movi", from which the index counts */
#define INDEX_HEADER 8 /* size of the header of the index and of each frame */
#define INDEX_ENTRY 16
#define HAS_INDEX 0x10
#define KEY_FRAME 0x10
#define REFRESH 1.0 /* seconds between headers */
#define UNKNOWN_RATE 16.0

struct carry_avi {
    char path[CARRY_FILE_PATH];
    int file, width, height;
    /* Times in seconds: of the first and last frame, and of the last header update. */
    double fps, first, last, refreshed;
    uint64_t limit, bytes;
    uint32_t *size; /* size of every frame, from which their offsets follow */
    size_t frames, room;
    uint32_t largest;
};

typedef struct writer {
    unsigned char *at;
} writer;

static void put32(writer *w, uint64_t value) {
    for (int i = 0; i < 4; i++) {
        *w->at++ = (unsigned char)(value >> 8 * i);
    }
}

static void put16(writer *w, unsigned value) {
    *w->at++ = (unsigned char)value;
    *w->at++ = (unsigned char)(value >> 8);
}

static void put_name(writer *w, const char *name) {
    memcpy(w->at, name, 4);
    w->at += 4;
}

static void put_zeros(writer *w, int words) {
    for (int i = 0; i < words; i++) {
        put32(w, 0);
    }
}

static double rate_of(const carry_avi *avi) {
    if (avi->fps > 0.0) {
        return avi->fps;
    }
    double span = avi->last - avi->first;
    double rate = avi->frames > 1 && span > 0.0 ? (double)(avi->frames - 1) / span : UNKNOWN_RATE;
    return fmin(fmax(rate, 0.1), 1000.0);
}

static void put_main_header(writer *w, const carry_avi *avi, bool with_index, double rate) {
    put_name(w, "avih");
    put32(w, 56);
    put32(w, (uint64_t)llround(1e6 / rate));
    put32(w, (uint64_t)fmin(rate * avi->largest, 4e9));
    put32(w, 0);
    put32(w, with_index ? HAS_INDEX : 0);
    put32(w, avi->frames);
    put32(w, 0);
    put32(w, 1); /* streams */
    put32(w, avi->largest);
    put32(w, (uint64_t)avi->width);
    put32(w, (uint64_t)avi->height);
    put_zeros(w, 4);
}

static void put_stream_header(writer *w, const carry_avi *avi, double rate) {
    put_name(w, "strh");
    put32(w, 56);
    put_name(w, "vids");
    put_name(w, "MJPG");
    put_zeros(w, 3);
    put32(w, 1000); /* rate over scale: frames per second */
    put32(w, (uint64_t)llround(1000.0 * rate));
    put32(w, 0);
    put32(w, avi->frames);
    put32(w, avi->largest);
    put32(w, UINT32_MAX); /* quality: the codec's default */
    put32(w, 0);
    put16(w, 0);
    put16(w, 0);
    put16(w, (unsigned)avi->width & 0xFFFF);
    put16(w, (unsigned)avi->height & 0xFFFF);
}

static void put_format(writer *w, const carry_avi *avi) {
    put_name(w, "strf");
    put32(w, 40);
    put32(w, 40);
    put32(w, (uint64_t)avi->width);
    put32(w, (uint64_t)avi->height);
    put16(w, 1);
    put16(w, 24);
    put_name(w, "MJPG");
    put32(w, 3 * (uint64_t)avi->width * (uint64_t)avi->height);
    put_zeros(w, 4);
}

/* end: offset of the end of the frames; the size of the file while there is no index. */
static void make_header(const carry_avi *avi, unsigned char header[HEADER], uint64_t end, bool with_index) {
    writer w = {header};
    double rate = rate_of(avi);
    put_name(&w, "RIFF");
    put32(&w, avi->bytes - 8);
    put_name(&w, "AVI ");
    put_name(&w, "LIST");
    put32(&w, MOVI - 8 - 20); /* bytes up to the next LIST */
    put_name(&w, "hdrl");
    put_main_header(&w, avi, with_index, rate);
    put_name(&w, "LIST");
    put32(&w, 4 + 64 + 48);
    put_name(&w, "strl");
    put_stream_header(&w, avi, rate);
    put_format(&w, avi);
    put_name(&w, "LIST");
    put32(&w, end - MOVI);
    put_name(&w, "movi");
}

static carry_status write_at(carry_ctx *ctx, const carry_avi *avi, const void *bytes, size_t length, uint64_t at) {
    const unsigned char *from = bytes;
    while (length > 0) {
        ssize_t done = pwrite(avi->file, from, length, (off_t)at);
        if (done < 0 && errno == EINTR) {
            continue;
        }
        if (done <= 0) {
            return carry_fail(ctx, CARRY_EIO, "the recording %s ends after %zu frames: %s", avi->path, avi->frames,
                              done < 0 ? strerror(errno) : "nothing more can be written");
        }
        from += done;
        at += (uint64_t)done;
        length -= (size_t)done;
    }
    return CARRY_OK;
}

static carry_status write_header(carry_ctx *ctx, carry_avi *avi, uint64_t end, bool with_index) {
    unsigned char header[HEADER];
    make_header(avi, header, end, with_index);
    avi->refreshed = carry_seconds();
    return write_at(ctx, avi, header, HEADER, 0);
}

static carry_status remember(carry_ctx *ctx, carry_avi *avi, uint32_t size) {
    if (avi->frames == avi->room) {
        size_t room = avi->room == 0 ? 1024 : 2 * avi->room;
        uint32_t *grown = realloc(avi->size, room * sizeof *grown);
        if (grown == NULL) {
            return carry_fail(ctx, CARRY_EMEMORY, "out of memory: the index of %s", avi->path);
        }
        avi->size = grown;
        avi->room = room;
    }
    avi->size[avi->frames++] = size;
    avi->largest = size > avi->largest ? size : avi->largest;
    return CARRY_OK;
}

static carry_status write_index(carry_ctx *ctx, carry_avi *avi) {
    size_t length = INDEX_HEADER + INDEX_ENTRY * avi->frames; /* bounded by the file's limit */
    unsigned char *index = malloc(length);
    if (index == NULL) {
        return carry_fail(ctx, CARRY_EMEMORY, "out of memory: the index of %s", avi->path);
    }
    writer w = {index};
    put_name(&w, "idx1");
    put32(&w, length - INDEX_HEADER);
    uint64_t place = 4;
    for (size_t i = 0; i < avi->frames; i++) {
        put_name(&w, "00dc");
        put32(&w, KEY_FRAME);
        put32(&w, place);
        put32(&w, avi->size[i]);
        place += 8 + avi->size[i] + (avi->size[i] & 1);
    }
    carry_status status = write_at(ctx, avi, index, length, avi->bytes);
    free(index);
    if (status == CARRY_OK) {
        uint64_t end = avi->bytes;
        avi->bytes += length;
        status = write_header(ctx, avi, end, true);
    }
    return status;
}

carry_status carry_avi_new(carry_ctx *ctx, carry_avi **made, const char *path, int width, int height, double fps,
                           uint64_t limit) {
    *made = NULL;
    if (strlen(path) >= CARRY_FILE_PATH) {
        return carry_fail(ctx, CARRY_EARGUMENT, "the path of the recording has %zu bytes: at most %d", strlen(path),
                          CARRY_FILE_PATH - 1);
    }
    carry_avi *avi = calloc(1, sizeof *avi);
    if (avi == NULL) {
        return carry_fail(ctx, CARRY_EMEMORY, "out of memory: the recording %s", path);
    }
    *avi = (carry_avi){.width = width, .height = height, .fps = fps, .bytes = HEADER};
    avi->limit = limit < CARRY_AVI_LIMIT ? limit : CARRY_AVI_LIMIT;
    memcpy(avi->path, path, strlen(path) + 1);
    avi->file = open(path, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0666);
    if (avi->file < 0) {
        carry_status status = carry_fail(ctx, CARRY_EIO, "the recording %s cannot be made: %s", path, strerror(errno));
        free(avi);
        return status;
    }
    carry_status status = write_header(ctx, avi, HEADER, false);
    if (status != CARRY_OK) {
        (void)close(avi->file);
        free(avi);
        return status;
    }
    *made = avi;
    return CARRY_OK;
}

bool carry_avi_fits(const carry_avi *avi, size_t size) {
    uint64_t index = INDEX_HEADER + INDEX_ENTRY * ((uint64_t)avi->frames + 1);
    return size <= avi->limit && avi->bytes + 8 + size + 1 + index <= avi->limit;
}

carry_status carry_avi_write(carry_ctx *ctx, carry_avi *avi, const void *jpeg, size_t size, double seconds) {
    if (!carry_avi_fits(avi, size)) {
        return carry_fail(ctx, CARRY_ESIZE, "the recording %s is full: %llu bytes of %llu", avi->path,
                          (unsigned long long)avi->bytes, (unsigned long long)avi->limit);
    }
    unsigned char head[8], zero = 0;
    writer w = {head};
    put_name(&w, "00dc");
    put32(&w, size);
    CARRY_TRY(write_at(ctx, avi, head, sizeof head, avi->bytes));
    CARRY_TRY(write_at(ctx, avi, jpeg, size, avi->bytes + 8));
    if (size & 1) {
        CARRY_TRY(write_at(ctx, avi, &zero, 1, avi->bytes + 8 + size));
    }
    CARRY_TRY(remember(ctx, avi, (uint32_t)size));
    avi->bytes += 8 + size + (size & 1);
    avi->first = avi->frames == 1 ? seconds : avi->first;
    avi->last = seconds;
    return carry_seconds() - avi->refreshed >= REFRESH ? write_header(ctx, avi, avi->bytes, false) : CARRY_OK;
}

uint64_t carry_avi_bytes(const carry_avi *avi) {
    return avi->bytes;
}

carry_status carry_avi_close(carry_ctx *ctx, carry_avi *avi) {
    if (avi == NULL) {
        return CARRY_OK;
    }
    uint64_t end = avi->bytes;
    carry_status status = write_index(ctx, avi);
    if (status != CARRY_OK) { /* no space for an index: the file is left without one */
        avi->bytes = end;
        unsigned char header[HEADER];
        make_header(avi, header, end, false);
        (void)!pwrite(avi->file, header, HEADER, 0);
    }
    (void)!ftruncate(avi->file, (off_t)avi->bytes); /* removes a partial frame or index left by a full disk */
    if (close(avi->file) != 0 && status == CARRY_OK) {
        status = carry_fail(ctx, CARRY_EIO, "the recording %s could not be finished: %s", avi->path, strerror(errno));
    }
    free(avi->size);
    free(avi);
    return status;
}
