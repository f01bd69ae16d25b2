/* What kinds of video sources share. */
#ifndef CARRY_STREAM_VIDEO_INTERNAL_H
#define CARRY_STREAM_VIDEO_INTERNAL_H

#include "carry/context.h"
#include "stream/server/hub_jpeg.h"
#include "stream/server/video.h"

/* A source of JPEGs. next: the next one; *ended with a reason in why when there is none. It may wait, up to a tenth of
   a second: then size is 0 and nothing has ended. */
typedef struct carry_video_source {
    void *opened;
    double fps;   /* of a file; 0: unknown */
    bool is_live; /* always: a camera */
    carry_status (*next)(carry_ctx *ctx, void *opened, carry_jpeg_bytes *to, bool *ended, char *why, size_t why_size);
    void (*close)(void *opened);
} carry_video_source;

carry_status carry_video_open_avi(carry_ctx *ctx, carry_video_source *source, const char *path);
carry_status carry_video_open_folder(carry_ctx *ctx, carry_video_source *source, const char *path);
carry_status carry_video_open_camera(carry_ctx *ctx, carry_video_source *source, const char *path, int width,
                                     int height);

/* to: room for at least `size` bytes. */
carry_status carry_video_room(carry_ctx *ctx, carry_jpeg_bytes *to, size_t size);

/* A JPEG as [3, height, width] f32, scaled; false with a reason where it is damaged. */
bool carry_jpeg_decode(const carry_jpeg_bytes *jpeg, float *pixels, int width, int height, char *why, size_t why_size);

#endif
