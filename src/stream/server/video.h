/* Video input: a Motion JPEG file (.avi), a folder of JPEGs in the order of their names, or a camera (/dev/videoN,
   V4L2, with Motion JPEG or YUYV).

   A live source is a camera, or a file or folder that plays at its frame rate. A thread reads it and keeps the newest
   frames; a slow reader gets those, and older frames are dropped and counted. Any other source gives every frame. A
   damaged frame is skipped with a warning, and so are bytes after the last complete frame of a file. Many damaged
   frames in a row end the video. */
#ifndef CARRY_STREAM_VIDEO_H
#define CARRY_STREAM_VIDEO_H

#include <stdbool.h>
#include <stddef.h>

#include "carry/tensor.h"

#define CARRY_VIDEO_DAMAGED 30 /* number of damaged frames in a row that end a video */

/* The system calls of a camera: open, close, ioctl and poll as in POSIX; map and unmap a buffer, where NULL means
   failure. Tests replace them with those of a simulated camera. */
typedef struct carry_camera_calls {
    int (*open)(const char *path);
    int (*close)(int file);
    int (*ioctl)(int file, unsigned long request, void *argument);
    int (*poll)(int file, int milliseconds, short *events); /* above 0: `events` has the POSIX poll events */
    void *(*map)(int file, size_t length, unsigned offset);
    void (*unmap)(void *data, size_t length);
} carry_camera_calls;

typedef struct carry_video_options {
    int width, height;                /* size to which frames are scaled */
    int keep;                         /* number of newest frames that are kept of a live source */
    bool is_live;                     /* play a file or folder at its own rate; cameras are always live */
    double fps;                       /* frame rate of a live folder; 0: 16. Files have their own. */
    const carry_camera_calls *camera; /* NULL: the system's calls. Otherwise every path is opened as a camera. */
} carry_video_options;

typedef struct carry_video carry_video;
/* CARRY_EFORMAT: not a Motion JPEG AVI. CARRY_ENOTFOUND: the path does not exist, or a folder has no JPEGs. */
carry_status carry_video_open(carry_ctx *ctx, carry_video **made, const char *path, const carry_video_options *options);
void carry_video_free(carry_video *video);

/* frames: [n, 3, height, width] f32 in [0, 1], in host memory. Waits for n frames; a live source gives its newest.
 *got is smaller than n when the video has ended or when `stop` (may be NULL) returned true. n is at most `keep`. */
carry_status carry_video_read(carry_ctx *ctx, carry_video *video, carry_tensor frames, int64_t *got,
                              bool (*stop)(void));
bool carry_video_is_ready(carry_video *video, int64_t frames); /* true if a read would not wait */
uint64_t carry_video_dropped(carry_video *video);
const char *carry_video_end(carry_video *video); /* why the video ended; "": it has not ended */

#endif
