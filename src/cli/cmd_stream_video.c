/* carry stream --input: video input. */
#include <string.h>

#include "cli/cmd_stream.h"
#include "core/error.h"
#ifdef CARRY_HAVE_PAGE
#include "stream/server/video.h"
#endif

#define FRAMES 4 /* maximum number of frames per latent frame */

int stream_video_check(const stream_options *given) {
    if (!(given->strength > 0.0 && given->strength <= 1.0)) {
        return cli_refuse("--strength %g: expected above 0 (keep the video) and at most 1 (keep nothing of it)",
                          given->strength);
    }
    if (!(given->motion >= 0.0 && given->motion < 1.0)) {
        return cli_refuse("--motion %g: expected 0 (the same noise for every chunk) or more, and below 1",
                          given->motion);
    }
    if (given->input == NULL) {
        return given->motion > 0.0 ? cli_refuse("--motion needs --input: it is about the motion of a video") : CLI_DONE;
    }
#ifndef CARRY_HAVE_PAGE
    return cli_refuse("--input %.200s: this carry was built without libjpeg, which video input needs", given->input);
#else
    return given->batch > 0 ? cli_refuse("--input and --batch: a stream batch starts from noise") : CLI_DONE;
#endif
}

#ifdef CARRY_HAVE_PAGE

carry_status stream_video_open(stream_session *session, carry_ctx *ctx) {
    const carry_pipeline_options *o = &session->pipeline;
    if (session->options->input == NULL) {
        return CARRY_OK;
    }
    /* With a pace, the video plays in real time; otherwise every frame is used. */
    const carry_video_options options = {.width = (int)o->width,
                                         .height = (int)o->height,
                                         .keep = (int)(o->chunk * FRAMES),
                                         .is_live = o->fps > 0.0,
                                         .fps = o->fps};
    return carry_video_open(ctx, &session->video, session->options->input, &options);
}

carry_status stream_video_read(stream_session *session, carry_ctx *ctx, carry_tensor frames, int64_t *got) {
    return carry_video_read(ctx, session->video, frames, got, cli_interrupted);
}

bool stream_video_is_ready(stream_session *session, int64_t frames) {
    return carry_video_is_ready(session->video, frames);
}

void stream_video_close(stream_session *session) {
    if (session->video == NULL) {
        return;
    }
    char line[512];
    char dropped[96] = "";
    const char *end = carry_video_end(session->video);
    const unsigned long long count = carry_video_dropped(session->video);
    if (count > 0) {
        (void)snprintf(dropped, sizeof dropped, "; %llu frames were dropped, since the stream was slower", count);
    }
    (void)snprintf(line, sizeof line, "%s: %s%s", session->options->input, end[0] != '\0' ? end : "not read to its end",
                   dropped);
    if (session->display.has_started) {
        stream_show_line(&session->display, line);
    }
    carry_video_free(session->video);
    session->video = NULL;
}

#else

carry_status stream_video_open(stream_session *session, carry_ctx *ctx) {
    (void)session;
    (void)ctx;
    return CARRY_OK;
}

carry_status stream_video_read(stream_session *session, carry_ctx *ctx, carry_tensor frames, int64_t *got) {
    (void)session;
    (void)frames;
    *got = 0;
    return carry_fail(ctx, CARRY_EUNSUPPORTED, "this carry was built without video input");
}

bool stream_video_is_ready(stream_session *session, int64_t frames) {
    (void)session;
    (void)frames;
    return true;
}

void stream_video_close(stream_session *session) {
    (void)session;
}

#endif
