/* Shared by the kinds of video sources. */
#ifndef CARRY_STREAM_VIDEO_INTERNAL_H
#define CARRY_STREAM_VIDEO_INTERNAL_H

#include "carry/context.h"
#include "stream/server/hub_jpeg.h"
#include "stream/server/video.h"

/* Frames of Y0 U Y1 V, two pixels in four bytes, rows `row` bytes apart: what cameras give uncompressed. */
typedef struct carry_yuyv {
    int width, height, row;
} carry_yuyv;

/* A source of JPEGs, or of YUYV frames where yuyv.width is not 0. next gives the next frame; at the end of the video it
   sets *ended and writes the reason to why. It waits at most a tenth of a second: a size of 0 without *ended means that
   no frame has arrived yet. */
typedef struct carry_video_source {
    void *opened;
    double fps;   /* of a file; 0: unknown */
    bool is_live; /* always: a camera */
    carry_yuyv yuyv;
    carry_status (*next)(carry_ctx *ctx, void *opened, carry_jpeg_bytes *to, bool *ended, char *why, size_t why_size);
    void (*close)(void *opened);
} carry_video_source;

carry_status carry_video_open_avi(carry_ctx *ctx, carry_video_source *source, const char *path);
carry_status carry_video_open_folder(carry_ctx *ctx, carry_video_source *source, const char *path);
/* calls: NULL for those of the system. */
carry_status carry_video_open_camera(carry_ctx *ctx, carry_video_source *source, const char *path, int width,
                                     int height, const carry_camera_calls *calls);

/* to: room for at least `size` bytes. */
carry_status carry_video_room(carry_ctx *ctx, carry_jpeg_bytes *to, size_t size);

/* A JPEG as [3, height, width] f32, scaled; false with a reason where it is damaged. */
bool carry_jpeg_decode(const carry_jpeg_bytes *jpeg, float *pixels, int width, int height, char *why, size_t why_size);
/* The same of an uncompressed frame (BT.601, 16 to 235), which is damaged where bytes are missing. */
bool carry_yuyv_decode(const carry_jpeg_bytes *frame, const carry_yuyv *about, float *pixels, int width, int height,
                       char *why, size_t why_size);
/* rgb, [from_height, from_width, 3], as [3, height, width] f32: bilinear, pixel centres on each other. */
void carry_video_scale(float *to, int width, int height, const unsigned char *rgb, int from_width, int from_height);

#endif
