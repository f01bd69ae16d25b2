/* Distributes frames and figures: stage 0 publishes, viewers and recorders take them as fast as they can.

   Bounded memory: the hub keeps the newest frames, each once, encoded once (JPEG); a viewer that is slower skips to the
   newest one, and its own count of dropped frames grows. Publishing never waits for a viewer. Frames of an older epoch
   are never given out once a cut has been published. Threads: any. */
#ifndef CARRY_STREAM_HUB_H
#define CARRY_STREAM_HUB_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "stream/overlap.h"

#define CARRY_HUB_FRAMES 32   /* kept */
#define CARRY_HUB_VIEWERS 256 /* at most; one more is refused */

typedef struct carry_frame {
    uint64_t number; /* from 0, of the stream */
    uint64_t chunk_index, cache_epoch;
    double seconds; /* carry_seconds when it was published */
    int width, height;
    const unsigned char *bytes; /* a JPEG */
    size_t size;
} carry_frame;

/* The figures of the page, /metrics and --json; all since the start. */
typedef struct carry_stream_figures {
    carry_overlap_summary overlap;
    carry_chunk_times last;
    double fps;                 /* frames shown a second, over the last seconds */
    double first_frame_seconds; /* from the start of the stream */
    /* From the arrival of a change of prompts to the first frame that was made with it: of the last change; 0: none */
    double prompt_seconds, prompt_chunks; /* the same in periods of a chunk, as viewers see them */
    uint64_t prompt_between;              /* chunks that began to be shown in between, without it */
    uint64_t prompt_steps_again;          /* last steps of a chunk that were done again for one that came during them */
    uint64_t prompt_changes, prompt_timed; /* that have been shown, and of these when a period was known; of all: */
    double prompt_sum, prompt_most, prompt_chunks_sum, prompt_chunks_most;
    uint64_t prompt_between_most;
    double gpu_used, gpu_total; /* bytes of its memory, of all processes; 0: no GPU */
    uint64_t chunks, frames, epoch, stale_dropped, cuts, restarts;
    int depth, under_way, decoded_waiting; /* queues: the limit, envelopes under way, results that wait */
    int mesh_ranks, viewers;
    int64_t reductions_large, reductions_small; /* all-reduces of the mesh a forward */
    uint64_t viewer_dropped;
    bool paused;
    char state[96]; /* "streaming", "paused", or what went wrong */
} carry_stream_figures;

typedef struct carry_hub carry_hub;
/* quality: of JPEG, 1 to 100. fps: the pace at which frames are released, so that a chunk of several is shown evenly;
   slower where chunks come slower; 0: as they come. The context is that of the thread that publishes. */
carry_status carry_hub_new(carry_ctx *ctx, carry_hub **made, int width, int height, int quality, double fps);
void carry_hub_free(carry_hub *hub);

/* pixels: [3, height, width] f32 in [0, 1] (NaN is black). A newer epoch is a cut; an older one is dropped in silence.
 */
carry_status carry_hub_publish(carry_hub *hub, const float *pixels, uint64_t chunk_index, uint64_t cache_epoch);
void carry_hub_cut(carry_hub *hub, uint64_t cache_epoch); /* frames of older epochs are forgotten */
/* A new epoch that is not a cut that a user asked for: frames that were published before it are still shown. */
void carry_hub_follow(carry_hub *hub, uint64_t cache_epoch);
void carry_hub_set_figures(carry_hub *hub, const carry_stream_figures *figures);
void carry_hub_figures(carry_hub *hub, carry_stream_figures *figures);

/* A viewer takes the next frame after the one it had, or the newest when it fell behind. A frame that was taken stays
   until it is given back, or the next one is taken. One that joins starts with the newest. Viewers leave before the hub
   is freed. */
typedef struct carry_viewer carry_viewer;
carry_status carry_hub_join(carry_hub *hub, carry_viewer **viewer);           /* CARRY_ERANGE: too many */
carry_status carry_hub_join_to_record(carry_hub *hub, carry_viewer **viewer); /* likewise, not counted as a viewer */
void carry_hub_leave(carry_viewer *viewer);
bool carry_viewer_take(carry_viewer *viewer, carry_frame *frame); /* false: none yet */
void carry_viewer_give_back(carry_viewer *viewer);
uint64_t carry_viewer_dropped(const carry_viewer *viewer);
bool carry_viewer_wait(carry_viewer *viewer, double seconds); /* for a frame to take: true; or that long: false */
/* Seconds until a frame is released that is not yet; below 0: no frame waits. */
double carry_hub_next_release(carry_hub *hub);
int carry_hub_alive(carry_hub *hub); /* frames in memory: kept, in viewers' hands, spare */
double carry_hub_pace(const carry_hub *hub, int *width, int *height); /* fps and size as given */
/* Called after every publish and cut, from the publishing thread: wakes the server. Once set_wake has returned, the
   function before it is not running and will not be called. */
void carry_hub_set_wake(carry_hub *hub, void (*wake)(void *user), void *user);

#endif
