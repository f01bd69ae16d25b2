/* Shared by the kinds of video sources. */
#ifndef CARRY_STREAM_VIDEO_INTERNAL_H
#define CARRY_STREAM_VIDEO_INTERNAL_H

#include "carry/context.h"
#include "stream/server/hub_jpeg.h"
#include "stream/server/video.h"

/* Uncompressed camera frames: Y0 U Y1 V, two pixels in four bytes, rows `row` bytes apart. */
typedef struct carry_yuyv {
    int width, height, row;
} carry_yuyv;

/* A source of JPEGs, or of YUYV frames if yuyv.width is not 0. `next` reads the next frame; at the end of the video
   it sets *ended and writes the reason to `why`. It waits at most a tenth of a second: a size of 0 without *ended
   means that no frame has arrived yet. */
typedef struct carry_video_source {
    void *opened;
    double fps;   /* of a file; 0: unknown */
    bool is_live; /* true for a camera */
    carry_yuyv yuyv;
    carry_status (*next)(carry_ctx *ctx, void *opened, carry_jpeg_bytes *to, bool *ended, char *why, size_t why_size);
    void (*close)(void *opened);
} carry_video_source;

carry_status carry_video_open_avi(carry_ctx *ctx, carry_video_source *source, const char *path);
carry_status carry_video_open_folder(carry_ctx *ctx, carry_video_source *source, const char *path);
/* calls: NULL for the system's calls. */
carry_status carry_video_open_camera(carry_ctx *ctx, carry_video_source *source, const char *path, int width,
                                     int height, const carry_camera_calls *calls);

/* Grows the buffer to at least `size` bytes. */
carry_status carry_video_room(carry_ctx *ctx, carry_jpeg_bytes *to, size_t size);

/* Decodes a JPEG to [3, height, width] f32, scaled. Returns false with a reason if it is damaged. */
bool carry_jpeg_decode(const carry_jpeg_bytes *jpeg, float *pixels, int width, int height, char *why, size_t why_size);
/* As carry_jpeg_decode, for an uncompressed frame (BT.601, 16 to 235). A frame with missing bytes is damaged. */
bool carry_yuyv_decode(const carry_jpeg_bytes *frame, const carry_yuyv *about, float *pixels, int width, int height,
                       char *why, size_t why_size);
/* Converts rgb [from_height, from_width, 3] to f32 [3, height, width] with bilinear scaling; pixel centres are at
   half-integer coordinates. */
void carry_video_scale(float *to, int width, int height, const unsigned char *rgb, int from_width, int from_height);

#endif
