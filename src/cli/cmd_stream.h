/* What the files of carry stream share. */
#ifndef CARRY_CLI_CMD_STREAM_H
#define CARRY_CLI_CMD_STREAM_H

#include <stdatomic.h>

#include "cli/ranks.h"
#include "cli/stream_model.h"

#define CLI_STREAM_PATIENCE 10.0 /* seconds after Ctrl-C in which calls under way are finished */

/* What was typed. */
typedef struct stream_wish {
    cli_texts prompts;
    const char *model, *config, *codec, *text_encoder, *input, *size, *levels, *recompute, *topology, *device;
    const char *address, *token, *token_file, *record, *record_to, *out, *state;
    bool demo, serve, headless, gate, supervise, no_clean, no_graphs, overwrite;
    int64_t fail_memory, chunks, depth, chunk, window, sink, context, batch, steps, transition, port, processes,
        quality;
    double kv_bias, noise, shift, fps, strength, slow_stage0, slow_stage1, change;
} stream_wish;

struct stream_page;

/* One stream, as rank 0 sees it. */
typedef struct stream_desk {
    cli_common common;
    stream_wish wish;
    carry_pipeline_options options;
    carry_control_state start;
    char secret[512]; /* the token as it was read from a file */
    carry_controls *controls;
    carry_stream_figures figures;
    carry_ctx *ctx; /* for what is checked before the ranks are there */
    stream_model model;
    struct carry_video *video; /* what comes in; NULL: nothing */
    struct stream_page *page;  /* where frames go, made by rank 0 */
    bool redraws, has_unended;
    bool has_started;     /* its first lines were shown */
    char remembered[256]; /* of the state that was written last */
    bool has_forgotten;   /* one could not be written */
    char unsaved[640];    /* what of --record and --out was not, in an error message; "": all was */
    bool has_ended;
    atomic_bool has_run_out; /* a rank had no more memory */
} stream_desk;

/* cmd_stream_options.c: from words to options. CLI_DONE, or after an error message CLI_IMPOSSIBLE. */
int stream_prepare(stream_desk *desk);

/* cmd_stream_page.c: hub, server, recording and files of frames, as far as this build has them. */
int stream_page_check(const stream_desk *desk);
carry_status stream_page_open(stream_desk *desk, carry_ctx *ctx);
bool stream_page_address(const stream_desk *desk, char *line, size_t size); /* false: nothing is served */
carry_status stream_page_frames(stream_desk *desk, carry_tensor frames, uint64_t chunk_index, uint64_t cache_epoch);
void stream_page_cut(stream_desk *desk, uint64_t cache_epoch, bool is_asked);
void stream_page_figures(stream_desk *desk, const carry_stream_figures *figures);
void stream_page_close(stream_desk *desk);

/* cmd_stream_video.c: video in, as far as this build has it. */
int stream_video_check(const stream_desk *desk);
carry_status stream_video_open(stream_desk *desk, carry_ctx *ctx);
carry_status stream_video_read(stream_desk *desk, carry_ctx *ctx, carry_tensor frames, int64_t *got);
bool stream_video_is_ready(stream_desk *desk, int64_t frames);
void stream_video_close(stream_desk *desk); /* says why it ended, and how many frames were dropped */

/* cmd_stream_show.c: lines for people, or JSON. */
void stream_show_start(stream_desk *desk);
void stream_show_clear(stream_desk *desk);                  /* what is printed next starts on a line of its own */
void stream_show_line(stream_desk *desk, const char *line); /* on a line of its own */
void stream_show_chunk(stream_desk *desk, const carry_chunk_times *times);
void stream_show_end(stream_desk *desk);

/* cmd_stream_change.c: changes the prompt about every so many seconds, until the end; NULL: it does not. */
struct stream_change *stream_change_start(carry_controls *controls, double seconds);
void stream_change_end(struct stream_change *change);

/* cmd_stream_supervise.c: a child that is started again. */
int stream_supervise(const stream_desk *desk, int count, char **arguments);
/* What a child remembers for the next one: epoch, restarts, controls. Written when they have changed. A file that is
   something else is refused, not replaced. */
int stream_state_read(stream_desk *desk);
void stream_state_write(stream_desk *desk, carry_ctx *ctx);

#endif
