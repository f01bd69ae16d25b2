/* Stage 0: reads controls, sends envelopes, receives results, and sends frames to the viewers.

   An envelope is in progress from when it is sent until its frames have been decoded or its result dropped. Up to
   `depth` envelopes are in progress: with two, chunk k+1 is sent before chunk k is decoded, and the stages work at
   the same time; with one, they take turns. A recompute rebuilds the cache from earlier frames (generator.c). With
   CARRY_RECOMPUTE_LATENT it needs the result of the previous chunk, so the next envelope is sent as soon as that result
   arrives, before it is decoded. With CARRY_RECOMPUTE_ANCHOR it also needs the first frame of the context, decoded and
   encoded again, so with a context of one chunk the mesh waits for the decoder.

   A new prompt should be visible soon, so every chunk is requested as late as possible. Up to depth 2 the next chunk
   is sent only when the previous result has arrived; with a pace, when it must be started to be in time. If prompts
   change while a chunk is denoised, the new conditioning is sent after the envelope, and the mesh uses it for the
   remaining steps, at least for the last one. So the first chunk that is finished after a change shows it.

   A hard cut (requested, or because the frame positions, CARRY_DIT_POSITIONS, are used up) begins an epoch: the decoder
   is reset, the context is empty, and results of older epochs are dropped and counted. If positions run out, no user
   asked for a cut: chunks in progress are shown first, and nothing is dropped. */
#ifndef CARRY_STREAM_STAGE_H
#define CARRY_STREAM_STAGE_H

#include "carry/device.h"
#include "model/codec/codec.h"
#include "stream/call.h"
#include "stream/conditioning.h"
#include "stream/link.h"
#include "stream/pipeline.h"

#define CARRY_STAGE_DEPTH 8
#define CARRY_STAGE_LOOK 0.1      /* interval in seconds at which an idle stage checks whether to stop */
#define CARRY_STAGE_PROMPTS 0.001 /* the same for new prompts */
#define CARRY_STAGE_LATE 3        /* maximum number of late conditionings that the mesh has not answered yet */
#define CARRY_STAGE_RATES 64      /* the frame rate is computed over at most this many chunks */
#define CARRY_STAGE_CHANGES 8
#define CARRY_STAGE_RECENT 6 /* the duration of the next chunk is estimated from this many chunks */

/* A chunk that has been sent. */
typedef struct carry_flight {
    uint64_t call_id, chunk_index, cache_epoch;
    int32_t calls, start;
    bool is_filling; /* a stream batch is filling: this call finishes no chunk */
    double build;    /* seconds */
    int depth;
} carry_flight;

/* A change of prompts that no frame shows yet. */
typedef struct carry_stage_change {
    uint64_t text;  /* number of the conditioning that includes it, counted as in carry_about */
    double when;    /* when it was requested */
    int64_t chunks; /* chunks that began to be shown since the change, without it */
} carry_stage_change;

typedef struct carry_stage {
    carry_ctx *ctx;
    const carry_pipeline_options *options;
    const carry_pipeline_hooks *hooks;
    carry_dit_config config;
    carry_link *link;
    bool is_apart; /* the mesh consists of other ranks */
    double deadline;
    int64_t height, width; /* of latents */
    int64_t frame, piece;  /* elements of a latent frame in one channel; of a chunk in all channels */
    carry_codec *codec, *anchor_codec;
    carry_codec *input_codec; /* for video input; NULL: chunks start as noise */
    int64_t lora_sent;        /* LoRA of the envelopes sent so far */
    double motion;            /* motion of the video input, 0 to 1 */
    bool has_before;          /* `before` is filled */
    bool has_ended, is_empty; /* the video input has ended; it has no frame for the current chunk */
    carry_stream *stream;     /* the codec's GPU stream, separate from the generator's; NULL: the context's */
    carry_prompts *prompts;   /* NULL: words are fixed random vectors */
    carry_conditioning *conditioning;
    carry_overlap *overlap;
    carry_control_state state;

    /* The next envelope. */
    uint64_t call_id, chunk_index, epoch, cuts_seen, prompts_sent;
    uint64_t texts, texts_known; /* number of conditionings sent; number that the mesh has used */
    double changed_seen;         /* carry_controls_prompts_changed when the prompts were last checked */
    carry_stage_change change[CARRY_STAGE_CHANGES];
    int changes;
    double recent[CARRY_STAGE_RECENT]; /* seconds from an envelope to its first frame, without waits */
    int64_t start;                     /* next frame, since the cut */
    int64_t chunk_of;                  /* number of chunks sent since the cut */
    bool is_first, is_cut;             /* nothing has been sent yet; nothing has been sent since the cut */
    int64_t step[CARRY_CONTROL_STEPS];
    bool is_told; /* the warning that a stream batch keeps its number of steps was logged */

    carry_flight flight[CARRY_STAGE_DEPTH];
    int oldest, under_way;
    int unanswered; /* envelopes in progress whose result has not arrived */
    int pulses;     /* answers to NOOPs that will arrive after the results */

    /* Chunks of this epoch with known latents, and with known anchors. The rings hold the chunks of the context. */
    int64_t known, anchors;
    int64_t context_chunks;
    uint16_t *past;    /* [context_chunks + 1, channels, chunk, height, width] bf16 */
    uint16_t *anchor;  /* [context_chunks + depth, channels, 1, height, width] bf16 */
    uint16_t *context; /* [channels, context, height, width] bf16 */
    uint16_t *noise;   /* a chunk, bf16 */
    bool has_noise;    /* made for noise_seed and chunk noise_of */
    uint64_t noise_of, noise_seed;
    float *latents; /* one latent frame, all channels, f32; pinned if the codec is on a GPU, as is the next buffer */
    float *pixels;  /* the frames decoded from one latent frame */
    float *input;   /* the frames of a chunk of video input */
    float *before;  /* the last frame of the previous chunk */
    float *encoded; /* latents of the video input */
    float *first;   /* the first frame of a chunk, to be encoded again */

    /* The figures and times of shown frames. */
    carry_stream_figures figures;
    double began, built, last_shown, last_sent;
    double due;    /* when the next frame may be shown */
    double paced;  /* seconds spent waiting for `due` since last_shown */
    bool has_last; /* last_shown is the start of a period */
    bool is_shut;
    struct {
        double seconds;
        int64_t frames;
    } shown[CARRY_STAGE_RATES];
    int64_t shown_count;
} carry_stage;

/* Allocates everything that a chunk needs except the text encoder. carry_stage_open_text opens the text encoder later,
   on a GPU if enough memory is left after everything else is allocated. The link is borrowed. is_apart: the mesh does
   not include this rank. */
carry_status carry_stage_open(carry_ctx *ctx, carry_stage **made, const carry_pipeline_options *options,
                              const carry_pipeline_hooks *hooks, const carry_dit_config *config, carry_link *link,
                              bool is_apart, double deadline);
carry_status carry_stage_open_text(carry_stage *stage);
void carry_stage_close(carry_stage *stage);

/* Runs until the requested chunks have been shown or `stop` returns true; then sends SHUTDOWN and closes the link. */
carry_status carry_stage_run(carry_stage *stage);
/* Sends SHUTDOWN and waits for the answer. May be called again. */
carry_status carry_stage_shutdown(carry_stage *stage);

/* stage_build.c */
bool carry_stage_is_done(const carry_stage *stage); /* all requested chunks have been sent */
bool carry_stage_may_send(const carry_stage *stage);
carry_status carry_stage_send(carry_stage *stage); /* sends the next chunk */
/* Sends NOOP or SHUTDOWN and handles the answer. */
carry_status carry_stage_signal(carry_stage *stage, carry_action action);
/* Sends a NOOP if nothing has been sent for a while. It is needed at the end of a stream, while stage 0 only shows the
   remaining results: without it, the mesh would conclude that stage 0 is gone. */
carry_status carry_stage_remind(carry_stage *stage);
carry_status carry_stage_receive(carry_stage *stage, carry_message *message); /* skips the answers to NOOPs */
/* stage_input.c: carry_stage_start makes the next chunk's latents, from video input noised to `level`, or from noise
   alone without video. carry_stage_read reads the frames before that, since their motion determines the noise
   levels. */
carry_status carry_stage_read(carry_stage *stage);
/* How much `count` frames of `each` values differ from their predecessors, 0 to 1. before: the frame before the
   first, or NULL. */
double carry_stage_motion(const float *before, const float *frames, int64_t count, int64_t each);
carry_status carry_stage_open_input(carry_stage *stage, const char *codec);
void carry_stage_close_input(carry_stage *stage);
bool carry_stage_input_is_ready(const carry_stage *stage);
int carry_stage_weaken(carry_stage *stage,
                       int steps); /* scales the levels of stage->step by the strength and returns how many remain */
carry_status carry_stage_start(carry_stage *stage, carry_tensor latents, double level); /* latents: stage->noise */
/* Makes the noise for carry_stage_start in advance, while idle. */
carry_status carry_stage_prepare(carry_stage *stage);
void carry_stage_cut(carry_stage *stage, bool is_asked); /* is_asked: by a user; else because positions run out */
void carry_stage_keep(carry_stage *stage, const carry_result *result); /* stores latents for the context */

/* stage_prompt.c */
/* With a pace: seconds until the next chunk must be started, if its first frame is due after `frames` more frames; 0
   or less: now. */
double carry_stage_spare(const carry_stage *stage, int64_t frames);
/* Sends every envelope that may be sent and cannot wait. */
carry_status carry_stage_send_due(carry_stage *stage, int64_t frames);
/* Sends prompts that changed since the newest envelope to the mesh, which is working on it. */
carry_status carry_stage_late(carry_stage *stage);
void carry_stage_note_change(carry_stage *stage); /* the newest prompts are in the last conditioning sent */
/* Call it when a chunk's first frame has been shown. Returns the seconds since the oldest change of prompts that
   this chunk is the first to show, or 0. */
double carry_stage_shows(carry_stage *stage, const carry_about *about);

/* stage_show.c */
carry_status carry_stage_show(carry_stage *stage, const carry_flight *flight, const carry_result *result,
                              const carry_about *about);
void carry_stage_tell(carry_stage *stage, const char *what); /* sends the state to the viewers */

#endif
