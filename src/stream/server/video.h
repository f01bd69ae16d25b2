/* Video in: a Motion JPEG file (.avi), a folder of JPEGs in the order of their names, or a camera (/dev/videoN, V4L2,
   which gives Motion JPEG or YUYV).

   A source that is live, a camera or a file that plays at its own rate, is read by a thread that keeps the newest
   frames: who is slower than the source gets those, and older ones are dropped and counted. Any other source gives
   every frame. A frame that is damaged is skipped with a warning, and so is what follows the last whole frame of a
   file; many damaged ones in a row end the video. */
#ifndef CARRY_STREAM_VIDEO_H
#define CARRY_STREAM_VIDEO_H

#include <stdbool.h>
#include <stddef.h>

#include "carry/tensor.h"

#define CARRY_VIDEO_DAMAGED 30 /* frames in a row that end a video */

/* The system calls of a camera: open, close, ioctl and poll as in POSIX; map and unmap a buffer of it, NULL: refused.
   Tests replace them with those of a simulated camera. */
typedef struct carry_camera_calls {
    int (*open)(const char *path);
    int (*close)(int file);
    int (*ioctl)(int file, unsigned long request, void *argument);
    int (*poll)(int file, int milliseconds, short *events); /* above 0: something happened, events says what */
    void *(*map)(int file, size_t length, unsigned offset);
    void (*unmap)(void *data, size_t length);
} carry_camera_calls;

typedef struct carry_video_options {
    int width, height;                /* that frames are scaled to */
    int keep;                         /* of a live source: the newest frames that are kept */
    bool is_live;                     /* of a file or folder; cameras always are */
    double fps;                       /* of a live folder; 0: 16. Files have their own. */
    const carry_camera_calls *camera; /* NULL: the system's. Otherwise every path is taken as a camera. */
} carry_video_options;

typedef struct carry_video carry_video;
/* CARRY_EFORMAT: not a Motion JPEG AVI; CARRY_ENOTFOUND: nothing there, or a folder without JPEGs. */
carry_status carry_video_open(carry_ctx *ctx, carry_video **made, const char *path, const carry_video_options *options);
void carry_video_free(carry_video *video);

/* frames: [n, 3, height, width] f32 in [0, 1], in host memory. Waits for n frames, the newest of a live source; *got is
   less when the video has ended, or when stop, unless NULL, returned true meanwhile. n is at most `keep`. */
carry_status carry_video_read(carry_ctx *ctx, carry_video *video, carry_tensor frames, int64_t *got,
                              bool (*stop)(void));
bool carry_video_is_ready(carry_video *video, int64_t frames); /* would a read not wait? */
uint64_t carry_video_dropped(carry_video *video);
const char *carry_video_end(carry_video *video); /* why it ended; "": it has not */

#endif
