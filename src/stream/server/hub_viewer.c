/* Viewers of a hub: each has its own position in the stream and its own count of dropped frames. */
#include <math.h>
#include <stdlib.h>
#include <time.h>

#include "core/clock.h"
#include "stream/server/hub_internal.h"

#define LAG (CARRY_HUB_FRAMES / 2) /* number of released frames by which a viewer may lag */

static carry_status join(carry_hub *hub, carry_viewer **viewer, bool looks) {
    *viewer = calloc(1, sizeof **viewer);
    if (*viewer == NULL) {
        return CARRY_EMEMORY;
    }
    pthread_mutex_lock(&hub->lock);
    int place = 0;
    while (place < CARRY_HUB_VIEWERS && hub->viewer[place] != NULL) {
        place++;
    }
    if (place < CARRY_HUB_VIEWERS) {
        uint64_t end = carry_hub_released_end(hub, carry_seconds()), first = hub->next - hub->count;
        **viewer = (carry_viewer){.hub = hub, .place = place, .next = end > first ? end - 1 : end, .looks = looks};
        hub->viewer[place] = *viewer;
        hub->viewers += looks;
    }
    pthread_mutex_unlock(&hub->lock);
    if (place == CARRY_HUB_VIEWERS) {
        free(*viewer);
        *viewer = NULL;
        return CARRY_ERANGE;
    }
    return CARRY_OK;
}

carry_status carry_hub_join(carry_hub *hub, carry_viewer **viewer) {
    return join(hub, viewer, true);
}

carry_status carry_hub_join_to_record(carry_hub *hub, carry_viewer **viewer) {
    return join(hub, viewer, false);
}

void carry_hub_leave(carry_viewer *viewer) {
    if (viewer == NULL) {
        return;
    }
    carry_hub *hub = viewer->hub;
    pthread_mutex_lock(&hub->lock);
    if (viewer->held != NULL) {
        carry_hub_give_up(hub, viewer->held);
    }
    hub->viewer[viewer->place] = NULL;
    hub->viewers -= viewer->looks;
    hub->dropped_by_gone += viewer->dropped;
    pthread_mutex_unlock(&hub->lock);
    free(viewer);
}

static void let_go(carry_viewer *viewer) {
    if (viewer->held != NULL) {
        carry_hub_give_up(viewer->hub, viewer->held);
        viewer->held = NULL;
    }
}

bool carry_viewer_take(carry_viewer *viewer, carry_frame *frame) {
    carry_hub *hub = viewer->hub;
    pthread_mutex_lock(&hub->lock);
    let_go(viewer);
    uint64_t end = carry_hub_released_end(hub, carry_seconds()), first = hub->next - hub->count;
    bool any = end > first && end > viewer->next;
    if (any) {
        if (viewer->next < first || end - viewer->next > LAG) {
            viewer->dropped += end - 1 - viewer->next;
            viewer->next = end - 1;
        }
        viewer->held = carry_hub_frame_of(hub, viewer->next);
        viewer->held->holders++;
        viewer->next++;
        *frame = viewer->held->frame;
    }
    pthread_mutex_unlock(&hub->lock);
    return any;
}

void carry_viewer_give_back(carry_viewer *viewer) {
    pthread_mutex_lock(&viewer->hub->lock);
    let_go(viewer);
    pthread_mutex_unlock(&viewer->hub->lock);
}

uint64_t carry_viewer_dropped(const carry_viewer *viewer) {
    pthread_mutex_lock(&viewer->hub->lock);
    uint64_t dropped = viewer->dropped;
    pthread_mutex_unlock(&viewer->hub->lock);
    return dropped;
}

static void wait_until(carry_hub *hub, double at) {
    double whole = floor(at);
    struct timespec time = {.tv_sec = (time_t)whole, .tv_nsec = (long)((at - whole) * 1e9)};
    (void)pthread_cond_timedwait(&hub->changed, &hub->lock, &time);
}

bool carry_viewer_wait(carry_viewer *viewer, double seconds) {
    carry_hub *hub = viewer->hub;
    double deadline = carry_seconds() + seconds;
    pthread_mutex_lock(&hub->lock);
    bool ready = false;
    for (;;) {
        double now = carry_seconds();
        uint64_t end = carry_hub_released_end(hub, now);
        ready = end > hub->next - hub->count && end > viewer->next;
        if (ready || now >= deadline) {
            break;
        }
        wait_until(hub, end < hub->next ? fmin(deadline, carry_hub_frame_of(hub, end)->release) : deadline);
    }
    pthread_mutex_unlock(&hub->lock);
    return ready;
}
