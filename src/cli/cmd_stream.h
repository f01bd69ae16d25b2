/* The parts of carry stream: options (the parsed command line), a session (a stream made from them) and a display
   (its printed output). */
#ifndef CARRY_CLI_CMD_STREAM_H
#define CARRY_CLI_CMD_STREAM_H

#include <stdatomic.h>

#include "cli/ranks.h"
#include "cli/stream_model.h"

#define CLI_STREAM_PATIENCE 10.0 /* seconds after Ctrl-C in which running calls are finished */

/* Set by the parser, constant afterwards. */
typedef struct stream_options {
    cli_common common;
    cli_texts prompts, loras;
    const char *model, *config, *codec, *text_encoder, *input, *size, *levels, *recompute, *topology, *device;
    const char *address, *token, *token_file, *record, *record_to, *out, *state;
    bool demo, serve, headless, gate, supervise, no_clean, no_graphs, fp8, overwrite;
    int64_t fail_memory, chunks, depth, chunk, window, sink, context, batch, steps, transition, port, processes,
        quality;
    double kv_bias, noise, shift, fps, strength, motion, slow_stage0, slow_stage1, change;
} stream_options;

/* Prints text lines on standard output, or JSON. */
typedef struct stream_display {
    bool json;
    bool redraws;      /* on a terminal: each line replaces the previous one */
    bool line_is_open; /* such a line was printed and has no newline yet */
    bool has_started;  /* the first lines were printed */
} stream_display;

struct stream_page;

/* A stream on rank 0. */
typedef struct stream_session {
    const stream_options *options;
    stream_display display;
    carry_ctx *ctx; /* for checks before the ranks start */
    stream_model model;
    carry_pipeline_options pipeline;
    carry_control_state start;
    char lora[CARRY_LORAS][1024]; /* paths of --lora */
    carry_controls *controls;
    const char *token;         /* of the page; NULL: none */
    char token_text[512];      /* read from a file */
    int port;                  /* of the page; kept after a restart */
    struct carry_video *video; /* input; NULL: none */
    struct stream_page *page;  /* output, opened by rank 0 */
    carry_stream_figures figures;
    char saved_state[256]; /* the last state written to --state */
    bool save_failed;      /* writing the state failed, which was reported */
    char unsaved[640];     /* why --record or --out is incomplete; "": both are complete */
    bool has_ended;
    atomic_bool out_of_memory; /* on any rank */
} stream_session;

/* cmd_stream_options.c: sets up a session from its options. Returns CLI_DONE, or CLI_IMPOSSIBLE after printing a
   message. */
int stream_prepare(stream_session *session);

/* cmd_stream_page.c: hub, server, recording and files of frames, if this build has them. */
int stream_page_check(const stream_options *given);
carry_status stream_page_open(stream_session *session, carry_ctx *ctx);
bool stream_page_address(const stream_session *session, char *line, size_t size); /* false: nothing is served */
carry_status stream_page_frames(stream_session *session, carry_tensor frames, uint64_t chunk_index,
                                uint64_t cache_epoch);
void stream_page_cut(stream_session *session, uint64_t cache_epoch, bool is_asked);
void stream_page_figures(stream_session *session, const carry_stream_figures *figures);
void stream_page_close(stream_session *session);

/* cmd_stream_video.c: video input, if this build has it. */
int stream_video_check(const stream_options *given);
carry_status stream_video_open(stream_session *session, carry_ctx *ctx);
carry_status stream_video_read(stream_session *session, carry_ctx *ctx, carry_tensor frames, int64_t *got);
bool stream_video_is_ready(stream_session *session, int64_t frames);
void stream_video_close(stream_session *session); /* prints why the video ended and how many frames were dropped */

/* cmd_stream_show.c */
void stream_show_start(stream_display *display, const stream_session *session);
void stream_show_clear(stream_display *display);                  /* ends an open line */
void stream_show_line(stream_display *display, const char *line); /* prints a complete line */
void stream_show_chunk(stream_display *display, const carry_stream_figures *figures, const carry_chunk_times *times);
void stream_show_end(stream_display *display, const stream_session *session);

/* cmd_stream_change.c: changes the prompt about every `seconds` until the end. Returns NULL if `seconds` is 0 or on
   failure. */
struct stream_change *stream_change_start(carry_controls *controls, double seconds);
void stream_change_end(struct stream_change *change);

/* cmd_stream_supervise.c: runs the stream in a child process and restarts it. */
int stream_supervise(carry_ctx *ctx, const stream_options *given, int count, char **arguments);
/* The file of --state keeps epoch, restarts and controls for the next start. It is written when they change. A file
   with other contents is refused, not replaced. */
int stream_state_read(stream_session *session);
void stream_state_write(stream_session *session, carry_ctx *ctx);

#endif
