/* carry stream --input: video in. */
#include <string.h>

#include "cli/cmd_stream.h"
#include "core/error.h"
#ifdef CARRY_HAVE_PAGE
#include "stream/server/video.h"
#endif

#define FRAMES 4 /* of a latent frame, at most */

int stream_video_check(const stream_desk *desk) {
    const stream_wish *w = &desk->wish;
    if (!(w->strength > 0.0 && w->strength <= 1.0)) {
        return cli_refuse("--strength %g: expected above 0 (keep the video) and at most 1 (keep nothing of it)",
                          w->strength);
    }
    if (w->input == NULL) {
        return CLI_DONE;
    }
#ifndef CARRY_HAVE_PAGE
    return cli_refuse("--input %.200s: this carry was built without libjpeg, which video input needs", w->input);
#else
    return w->batch > 0 ? cli_refuse("--input and --batch: a stream batch starts from noise") : CLI_DONE;
#endif
}

#ifdef CARRY_HAVE_PAGE

carry_status stream_video_open(stream_desk *desk, carry_ctx *ctx) {
    const carry_pipeline_options *o = &desk->options;
    if (desk->wish.input == NULL) {
        return CARRY_OK;
    }
    const carry_video_options options = {.width = (int)o->width,
                                         .height = (int)o->height,
                                         .keep = (int)(o->chunk * FRAMES),
                                         .is_live =
                                             o->fps > 0.0, /* at a pace, the video plays; else all of it is used */
                                         .fps = o->fps};
    return carry_video_open(ctx, &desk->video, desk->wish.input, &options);
}

carry_status stream_video_read(stream_desk *desk, carry_ctx *ctx, carry_tensor frames, int64_t *got) {
    return carry_video_read(ctx, desk->video, frames, got, cli_interrupted);
}

bool stream_video_is_ready(stream_desk *desk, int64_t frames) {
    return carry_video_is_ready(desk->video, frames);
}

void stream_video_close(stream_desk *desk) {
    if (desk->video == NULL) {
        return;
    }
    char line[512];
    char dropped[96] = "";
    const char *end = carry_video_end(desk->video);
    const unsigned long long count = carry_video_dropped(desk->video);
    if (count > 0) {
        (void)snprintf(dropped, sizeof dropped, "; %llu frames were dropped, since the stream was slower", count);
    }
    (void)snprintf(line, sizeof line, "%s: %s%s", desk->wish.input, end[0] != '\0' ? end : "not read to its end",
                   dropped);
    if (desk->has_started) {
        stream_show_line(desk, line);
    }
    carry_video_free(desk->video);
    desk->video = NULL;
}

#else

carry_status stream_video_open(stream_desk *desk, carry_ctx *ctx) {
    (void)desk;
    (void)ctx;
    return CARRY_OK;
}

carry_status stream_video_read(stream_desk *desk, carry_ctx *ctx, carry_tensor frames, int64_t *got) {
    (void)desk;
    (void)frames;
    *got = 0;
    return carry_fail(ctx, CARRY_EUNSUPPORTED, "this carry was built without video input");
}

bool stream_video_is_ready(stream_desk *desk, int64_t frames) {
    (void)desk;
    (void)frames;
    return true;
}

void stream_video_close(stream_desk *desk) {
    (void)desk;
}

#endif
