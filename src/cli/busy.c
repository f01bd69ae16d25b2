/* Measures how busy a device is during some steps. */
#include "cli/busy.h"

#include <stddef.h>
#include <time.h>

#include "carry/device.h"
#include "core/clock.h"
#include "device/activity.h"

static cli_busy *watched;

void cli_busy_watch(cli_busy *busy) {
    watched = busy;
}

void cli_busy_unwatch(carry_ctx *ctx) {
    if (watched != NULL && watched->log != NULL) {
        (void)carry_activity_stop(ctx, watched->log);
        carry_activity_free(watched->log);
        watched->log = NULL;
    }
    watched = NULL;
}

static double processor_seconds(void) {
    struct timespec t;
    return clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t) == 0 ? (double)t.tv_sec + 1e-9 * (double)t.tv_nsec : 0.0;
}

/* If a GPU's activity cannot be recorded (no CUPTI, or a profile already records it), the share stays unknown. */
static void begin(carry_ctx *ctx, int device) {
    (void)carry_stream_wait(ctx, device, carry_ctx_stream(ctx, device));
    watched->log = NULL;
    if (device != 0) {
        (void)carry_activity_start(ctx, &watched->log, 0);
    }
    watched->is_open = true;
    watched->processor = processor_seconds();
    watched->wall = carry_seconds();
}

static void end(carry_ctx *ctx, int device) {
    (void)carry_stream_wait(ctx, device, carry_ctx_stream(ctx, device));
    const double wall = carry_seconds() - watched->wall;
    double worked = device == 0 ? (processor_seconds() - watched->processor) / carry_ctx_threads(ctx) : 0.0;
    watched->is_open = false;
    if (watched->log != NULL) {
        const bool is_whole = carry_activity_stop(ctx, watched->log) == CARRY_OK && watched->log->lost == 0;
        worked = is_whole ? watched->log->busy : 0.0;
        carry_activity_free(watched->log);
        watched->log = NULL;
    }
    const double share = wall > 0.0 ? worked / wall : 0.0;
    watched->share = share < 1.0 ? share : 1.0;
}

void cli_busy_step(carry_ctx *ctx, int rank, int device, int64_t done, bool is_end) {
    if (watched == NULL || rank != 0) {
        return;
    }
    const bool is_inside = done + 1 >= watched->from && done + 1 < watched->from + watched->steps;
    if (watched->is_open && (is_end || !is_inside)) {
        end(ctx, device);
    } else if (!watched->is_open && is_inside && !is_end) {
        begin(ctx, device);
    }
}
