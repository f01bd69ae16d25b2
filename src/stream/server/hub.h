/* Distributes frames and figures: stage 0 publishes, viewers and recorders take them as fast as they can.

   Memory is bounded: the hub keeps the newest frames, each encoded once (JPEG). A viewer that is too slow skips to
   the newest frame, and its count of dropped frames grows. Publishing never waits for a viewer. Once a cut has been
   published, frames of an older epoch are never given out. All functions may be called from any thread. */
#ifndef CARRY_STREAM_HUB_H
#define CARRY_STREAM_HUB_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "stream/overlap.h"

#define CARRY_HUB_FRAMES 32   /* kept */
#define CARRY_HUB_VIEWERS 256 /* maximum number of viewers; further ones are refused */

typedef struct carry_frame {
    uint64_t number; /* number in the stream, from 0 */
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
    double fps;                 /* frames shown per second, over the last seconds */
    double first_frame_seconds; /* from the start of the stream */
    /* The time from the last change of prompts to the first frame made with it, in seconds and in periods of a chunk as
       viewers see them; 0: no change was shown yet. */
    double prompt_seconds, prompt_chunks;
    uint64_t prompt_between; /* chunks that began to be shown in between, still without the change */
    /* How often the last step of a chunk was repeated for a prompt that arrived during it. */
    uint64_t prompt_steps_again;
    /* Number of changes of prompts that were shown, and of those shown while the period was known (without it,
       prompt_chunks is 0); then sums and maxima of prompt_seconds, prompt_chunks and prompt_between over changes. */
    uint64_t prompt_changes, prompt_timed;
    double prompt_sum, prompt_most, prompt_chunks_sum, prompt_chunks_most;
    uint64_t prompt_between_most;
    double gpu_used, gpu_total; /* used and total GPU memory in bytes, over all processes; 0: no GPU */
    uint64_t chunks, frames, epoch, stale_dropped, cuts, restarts;
    /* Queues: the limit, envelopes in progress, results that wait to be decoded. */
    int depth, under_way, decoded_waiting;
    int mesh_ranks, viewers;
    int64_t reductions_large, reductions_small; /* all-reduces of the mesh per forward */
    uint64_t viewer_dropped;
    bool paused;
    char state[96]; /* "streaming", "paused", or an error */
} carry_stream_figures;

typedef struct carry_hub carry_hub;
/* quality: of the JPEGs, 1 to 100. fps: the pace at which frames are released, so that the frames of a chunk are
   spread evenly; slower if chunks arrive more slowly; 0: as they arrive. ctx is used by the publishing thread. */
carry_status carry_hub_new(carry_ctx *ctx, carry_hub **made, int width, int height, int quality, double fps);
void carry_hub_free(carry_hub *hub);

/* pixels: [3, height, width] f32 in [0, 1]; NaN is black. A newer epoch acts as a cut; a frame of an older epoch is
   dropped silently. */
carry_status carry_hub_publish(carry_hub *hub, const float *pixels, uint64_t chunk_index, uint64_t cache_epoch);
void carry_hub_cut(carry_hub *hub, uint64_t cache_epoch); /* frames of older epochs are removed */
/* Starts a new epoch without a cut: frames that were published before it are still shown. */
void carry_hub_follow(carry_hub *hub, uint64_t cache_epoch);
void carry_hub_set_figures(carry_hub *hub, const carry_stream_figures *figures);
void carry_hub_figures(carry_hub *hub, carry_stream_figures *figures);

/* A viewer takes the frame after its last one, or the newest if it has fallen behind. A taken frame stays valid
   until it is given back or the next one is taken. A new viewer starts with the newest frame. Viewers must leave
   before the hub is freed. */
typedef struct carry_viewer carry_viewer;
carry_status carry_hub_join(carry_hub *hub, carry_viewer **viewer); /* CARRY_ERANGE: too many */
/* As carry_hub_join, but not counted as a viewer. */
carry_status carry_hub_join_to_record(carry_hub *hub, carry_viewer **viewer);
void carry_hub_leave(carry_viewer *viewer);
bool carry_viewer_take(carry_viewer *viewer, carry_frame *frame); /* false: there is no frame yet */
void carry_viewer_give_back(carry_viewer *viewer);
uint64_t carry_viewer_dropped(const carry_viewer *viewer);
bool carry_viewer_wait(carry_viewer *viewer, double seconds); /* waits up to `seconds`; true: a frame can be taken */
/* Seconds until the next frame is released; below 0: no frame waits for its release. */
double carry_hub_next_release(carry_hub *hub);
int carry_hub_alive(carry_hub *hub); /* number of frames in memory: kept, held by viewers, and spare */
/* Returns fps; the values given to carry_hub_new. */
double carry_hub_pace(const carry_hub *hub, int *width, int *height);
/* Sets a function that the publishing thread calls after every publish and cut, to wake the server. Once set_wake
   has returned, the previous function is not running and will not be called again. */
void carry_hub_set_wake(carry_hub *hub, void (*wake)(void *user), void *user);

#endif
