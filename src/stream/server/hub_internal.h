/* Shared by the ring (hub.c) and the viewers (hub_viewer.c) of a hub. These functions are called with the lock held. */
#ifndef CARRY_STREAM_HUB_INTERNAL_H
#define CARRY_STREAM_HUB_INTERNAL_H

#include <pthread.h>

#include "stream/server/hub.h"
#include "stream/server/hub_jpeg.h"

#define CARRY_HUB_TIMES 512 /* number of release times kept to compute the rate */

typedef struct hub_frame {
    carry_frame frame;
    carry_jpeg_bytes jpeg;
    double release;
    int holders; /* reference count: the ring and viewers */
    struct hub_frame *spare;
} hub_frame;

struct carry_viewer {
    carry_hub *hub;
    uint64_t next; /* number of the frame it waits for */
    uint64_t dropped;
    hub_frame *held;
    int place;  /* index in hub->viewer */
    bool looks; /* true for viewers that are counted: not for recorders */
};

struct carry_hub {
    carry_ctx *ctx;
    int width, height;
    double fps;

    pthread_mutex_t publishing; /* held while one thread encodes */
    carry_jpeg *jpeg;

    pthread_mutex_t waking;
    void (*wake)(void *user);
    void *wake_user;

    pthread_mutex_t lock; /* protects everything below */
    pthread_cond_t changed;
    hub_frame *kept[CARRY_HUB_FRAMES];
    uint64_t next, count;
    hub_frame *spare;
    int spares, alive;
    uint64_t epoch;
    carry_viewer *viewer[CARRY_HUB_VIEWERS];
    int viewers; /* number that are counted */
    uint64_t dropped_by_gone;
    carry_stream_figures figures;

    double interval, last_release; /* seconds between releases; time of the last */
    uint64_t chunk, chunk_frames;
    double chunk_started;                        /* 0: none yet */
    double released[CARRY_HUB_TIMES], first_one; /* recent release times; time of the first frame, below 0: none yet */
    uint64_t times;
};

static inline hub_frame *carry_hub_frame_of(const carry_hub *hub, uint64_t number) {
    return hub->kept[number % CARRY_HUB_FRAMES];
}

/* Releases a reference. With the last one, the frame becomes a spare. */
void carry_hub_give_up(carry_hub *hub, hub_frame *frame);
/* One past the newest frame that may be given out at this time. */
uint64_t carry_hub_released_end(const carry_hub *hub, double now);

#endif
