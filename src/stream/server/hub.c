/* The ring of frames. One lock protects it, and frames are reference-counted. Encoding runs outside the lock.

   The numbers of the kept frames are consecutive: next - count .. next - 1, with frame n at index n %
   CARRY_HUB_FRAMES. With a pace, the newest of them have a release time in the future and are not given out before
   it. At most half of the ring waits for release, and a viewer may lag by at most the other half before it skips
   frames. */
#include <math.h>
#include <stdlib.h>
#include <time.h>

#include "core/clock.h"
#include "core/error.h"
#include "stream/server/hub_internal.h"

#define WAITING (CARRY_HUB_FRAMES / 2) /* frames that may wait for their release */
#define SPARES 40                      /* free frames kept for reuse; more are freed */
#define RATE_SECONDS 5.0
#define SLOWEST 1.0 /* maximum interval between frames in seconds; slower frames are shown as they arrive */

void carry_hub_give_up(carry_hub *hub, hub_frame *frame) {
    if (--frame->holders > 0) {
        return;
    }
    if (hub->spares < SPARES) {
        frame->spare = hub->spare;
        hub->spare = frame;
        hub->spares++;
    } else {
        free(frame->jpeg.bytes);
        free(frame);
        hub->alive--;
    }
}

static void drop_oldest(carry_hub *hub) {
    hub_frame **place = &hub->kept[(hub->next - hub->count) % CARRY_HUB_FRAMES];
    carry_hub_give_up(hub, *place);
    *place = NULL;
    hub->count--;
}

/* Frames that are removed here were not missed by a slow viewer: they are not counted as dropped. */
static void cut(carry_hub *hub, uint64_t epoch, double now) {
    hub->epoch = epoch;
    while (hub->count > 0) {
        drop_oldest(hub);
    }
    for (int i = 0; i < CARRY_HUB_VIEWERS; i++) {
        if (hub->viewer[i] != NULL) {
            hub->viewer[i]->next = hub->next;
        }
    }
    while (hub->times > 0 && hub->released[(hub->times - 1) % CARRY_HUB_TIMES] > now) {
        hub->times--;
    }
    hub->last_release = 0.0;
    hub->chunk_started = 0.0;
}

uint64_t carry_hub_released_end(const carry_hub *hub, double now) {
    uint64_t end = hub->next, first = hub->next - hub->count;
    while (end > first && carry_hub_frame_of(hub, end - 1)->release > now) {
        end--;
    }
    return end;
}

/* When the new frame is to be shown. The interval between frames follows the rate at which chunks arrive. Its goal is
   5% shorter than that rate needs, so that the queue shrinks, but at least 1 / fps and at most SLOWEST seconds (at
   most 1 / fps if that is longer). The interval gets shorter faster than it gets longer. */
static double release_time(carry_hub *hub, double now, uint64_t chunk) {
    if (hub->fps <= 0.0) {
        return now;
    }
    double shortest = 1.0 / hub->fps;
    if (hub->chunk_started == 0.0 || chunk != hub->chunk) {
        if (hub->chunk_started > 0.0 && hub->chunk_frames > 0) {
            double came = 0.95 * (now - hub->chunk_started) / (double)hub->chunk_frames;
            came = fmin(fmax(came, shortest), fmax(SLOWEST, shortest));
            hub->interval += (came < hub->interval ? 0.6 : 0.3) * (came - hub->interval);
        }
        hub->chunk = chunk;
        hub->chunk_started = now;
        hub->chunk_frames = 0;
    }
    hub->chunk_frames++;
    double turn = fmin(hub->last_release + hub->interval, now + WAITING * hub->interval);
    return fmax(now, turn);
}

static void keep(carry_hub *hub, hub_frame *frame, double now) {
    frame->frame.number = hub->next;
    frame->frame.seconds = now;
    frame->release = release_time(hub, now, frame->frame.chunk_index);
    frame->holders = 1;
    if (hub->count == CARRY_HUB_FRAMES) {
        drop_oldest(hub);
    }
    hub->kept[hub->next % CARRY_HUB_FRAMES] = frame;
    hub->next++;
    hub->count++;
    hub->last_release = frame->release;
    hub->released[hub->times++ % CARRY_HUB_TIMES] = frame->release;
    if (hub->first_one < 0.0) {
        hub->first_one = now;
    }
    for (uint64_t end = carry_hub_released_end(hub, now); hub->next - end > WAITING;
         end++) { /* frames arrive faster than the pace */
        carry_hub_frame_of(hub, end)->release = now;
        hub->released[(hub->times - (hub->next - end)) % CARRY_HUB_TIMES] = now;
    }
}

static hub_frame *take_spare(carry_hub *hub) {
    pthread_mutex_lock(&hub->lock);
    hub_frame *frame = hub->spare;
    if (frame != NULL) {
        hub->spare = frame->spare;
        hub->spares--;
    } else if ((frame = calloc(1, sizeof *frame)) != NULL) {
        hub->alive++;
    }
    pthread_mutex_unlock(&hub->lock);
    return frame;
}

static void wake(carry_hub *hub) {
    pthread_mutex_lock(&hub->waking);
    if (hub->wake != NULL) {
        hub->wake(hub->wake_user);
    }
    pthread_mutex_unlock(&hub->waking);
}

/* Frames released per second, over the last RATE_SECONDS. */
static double rate(const carry_hub *hub, double now) {
    if (hub->first_one < 0.0) {
        return 0.0;
    }
    uint64_t known = hub->times < CARRY_HUB_TIMES ? hub->times : CARRY_HUB_TIMES, counted = 0;
    double oldest = now;
    for (uint64_t i = 1; i <= known; i++) {
        double at = hub->released[(hub->times - i) % CARRY_HUB_TIMES];
        if (at <= now && at > now - RATE_SECONDS) {
            counted++;
            oldest = at;
        }
    }
    /* The list of times may be full, and then it covers less than RATE_SECONDS. */
    double span = counted == CARRY_HUB_TIMES ? now - oldest : fmin(RATE_SECONDS, fmax(now - hub->first_one, 0.5));
    return span > 0.0 ? (double)counted / span : 0.0;
}

static carry_status make_locks(carry_ctx *ctx, carry_hub *hub) {
    pthread_condattr_t attributes;
    if (pthread_condattr_init(&attributes) != 0) {
        return carry_fail(ctx, CARRY_EMEMORY, "out of memory: the locks of a hub");
    }
    (void)pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC); /* the same clock as carry_seconds */
    bool bad = pthread_cond_init(&hub->changed, &attributes) != 0;
    pthread_condattr_destroy(&attributes);
    if (bad) {
        return carry_fail(ctx, CARRY_EMEMORY, "out of memory: the locks of a hub");
    }
    (void)pthread_mutex_init(&hub->publishing, NULL); /* cannot fail on Linux without attributes */
    (void)pthread_mutex_init(&hub->waking, NULL);
    (void)pthread_mutex_init(&hub->lock, NULL);
    return CARRY_OK;
}

carry_status carry_hub_new(carry_ctx *ctx, carry_hub **made, int width, int height, int quality, double fps) {
    *made = NULL;
    if (!(fps >= 0.0 && fps <= 1000.0)) {
        return carry_fail(ctx, CARRY_EARGUMENT, "a pace of %g frames a second is not 0 (as they come) to 1000", fps);
    }
    carry_jpeg *jpeg;
    CARRY_TRY(carry_jpeg_new(ctx, &jpeg, width, height, quality));
    carry_hub *hub = calloc(1, sizeof *hub);
    if (hub == NULL) {
        carry_jpeg_free(jpeg);
        return carry_fail(ctx, CARRY_EMEMORY, "out of memory: a hub of frames");
    }
    *hub = (carry_hub){.ctx = ctx, .width = width, .height = height, .fps = fps, .jpeg = jpeg, .first_one = -1.0};
    hub->interval = fps > 0.0 ? 1.0 / fps : 0.0;
    hub->figures.overlap.score = NAN;
    carry_status status = make_locks(ctx, hub);
    if (status != CARRY_OK) {
        carry_jpeg_free(jpeg);
        free(hub);
        return status;
    }
    *made = hub;
    return CARRY_OK;
}

void carry_hub_free(carry_hub *hub) {
    if (hub == NULL) {
        return;
    }
    while (hub->count > 0) {
        drop_oldest(hub);
    }
    while (hub->spare != NULL) {
        hub_frame *frame = hub->spare;
        hub->spare = frame->spare;
        free(frame->jpeg.bytes);
        free(frame);
    }
    pthread_mutex_destroy(&hub->lock);
    pthread_mutex_destroy(&hub->waking);
    pthread_mutex_destroy(&hub->publishing);
    pthread_cond_destroy(&hub->changed);
    carry_jpeg_free(hub->jpeg);
    free(hub);
}

static bool is_stale(carry_hub *hub, uint64_t epoch) {
    pthread_mutex_lock(&hub->lock);
    bool stale = epoch < hub->epoch;
    pthread_mutex_unlock(&hub->lock);
    return stale;
}

static carry_status publish(carry_hub *hub, const float *pixels, uint64_t chunk_index, uint64_t cache_epoch) {
    hub_frame *frame = take_spare(hub);
    if (frame == NULL) {
        return carry_fail(hub->ctx, CARRY_EMEMORY, "out of memory: one more frame");
    }
    carry_status status = carry_jpeg_encode(hub->ctx, hub->jpeg, &frame->jpeg, pixels);
    frame->frame = (carry_frame){.chunk_index = chunk_index,
                                 .cache_epoch = cache_epoch,
                                 .width = hub->width,
                                 .height = hub->height,
                                 .bytes = frame->jpeg.bytes,
                                 .size = frame->jpeg.size};
    frame->holders = 1;
    pthread_mutex_lock(&hub->lock);
    double now = carry_seconds();
    if (status != CARRY_OK || cache_epoch < hub->epoch) { /* a cut may have been published during encoding */
        carry_hub_give_up(hub, frame);
    } else {
        if (cache_epoch > hub->epoch) {
            cut(hub, cache_epoch, now);
        }
        keep(hub, frame, now);
    }
    pthread_cond_broadcast(&hub->changed);
    pthread_mutex_unlock(&hub->lock);
    return status;
}

carry_status carry_hub_publish(carry_hub *hub, const float *pixels, uint64_t chunk_index, uint64_t cache_epoch) {
    if (is_stale(hub, cache_epoch)) {
        return CARRY_OK;
    }
    pthread_mutex_lock(&hub->publishing);
    carry_status status = publish(hub, pixels, chunk_index, cache_epoch);
    pthread_mutex_unlock(&hub->publishing);
    wake(hub);
    return status;
}

void carry_hub_cut(carry_hub *hub, uint64_t cache_epoch) {
    pthread_mutex_lock(&hub->lock);
    if (cache_epoch > hub->epoch) {
        cut(hub, cache_epoch, carry_seconds());
    }
    pthread_mutex_unlock(&hub->lock);
    wake(hub);
}

void carry_hub_follow(carry_hub *hub, uint64_t cache_epoch) {
    pthread_mutex_lock(&hub->lock);
    hub->epoch = cache_epoch > hub->epoch ? cache_epoch : hub->epoch;
    pthread_mutex_unlock(&hub->lock);
}

void carry_hub_set_figures(carry_hub *hub, const carry_stream_figures *figures) {
    pthread_mutex_lock(&hub->lock);
    hub->figures = *figures;
    if (figures->paused) {
        hub->chunk_started = 0.0; /* the time until the next chunk includes the pause */
    }
    pthread_mutex_unlock(&hub->lock);
}

void carry_hub_figures(carry_hub *hub, carry_stream_figures *figures) {
    pthread_mutex_lock(&hub->lock);
    *figures = hub->figures;
    figures->frames = hub->next;
    figures->fps = rate(hub, carry_seconds());
    figures->viewers = hub->viewers;
    figures->viewer_dropped = hub->dropped_by_gone;
    for (int i = 0; i < CARRY_HUB_VIEWERS; i++) {
        figures->viewer_dropped += hub->viewer[i] != NULL ? hub->viewer[i]->dropped : 0;
    }
    pthread_mutex_unlock(&hub->lock);
}

double carry_hub_next_release(carry_hub *hub) {
    pthread_mutex_lock(&hub->lock);
    double now = carry_seconds();
    uint64_t end = carry_hub_released_end(hub, now);
    double until = end < hub->next ? carry_hub_frame_of(hub, end)->release - now : -1.0;
    pthread_mutex_unlock(&hub->lock);
    return until;
}

int carry_hub_alive(carry_hub *hub) {
    pthread_mutex_lock(&hub->lock);
    int alive = hub->alive;
    pthread_mutex_unlock(&hub->lock);
    return alive;
}

double carry_hub_pace(const carry_hub *hub, int *width, int *height) {
    *width = hub->width;
    *height = hub->height;
    return hub->fps;
}

void carry_hub_set_wake(carry_hub *hub, void (*new_wake)(void *user), void *user) {
    pthread_mutex_lock(&hub->waking);
    hub->wake = new_wake;
    hub->wake_user = user;
    pthread_mutex_unlock(&hub->waking);
}
