/* Opens and closes the window of a profile between steps. */
#include "cli/window.h"

#include <stddef.h>

#include "carry/device.h"
#include "core/span.h"

static cli_window *current;

void cli_set_window(cli_window *window) {
    current = window;
}

const cli_window *cli_get_window(void) {
    return current;
}

static void open_window(carry_ctx *ctx, int rank, int device) {
    (void)carry_stream_wait(ctx, device, carry_ctx_stream(ctx, device));
    (void)carry_recorder_attach(current->recorder, ctx, rank);
    if (rank == 0) {
        current->is_open = true;
        current->begin(current->user);
    }
}

static void close_window(carry_ctx *ctx, int rank, int device) {
    (void)carry_stream_wait(ctx, device, carry_ctx_stream(ctx, device));
    carry_recording_free(ctx->recording);
    ctx->recording = NULL;
    if (rank == 0) {
        current->is_open = false;
        current->end(current->user);
    }
}

void cli_window_step(carry_ctx *ctx, int rank, int device, int64_t done, bool is_end) {
    if (current == NULL) {
        return;
    }
    const bool is_inside =
        done + 1 >= current->from && (current->steps == 0 || done + 1 < current->from + current->steps);
    const bool is_open = ctx->recording != NULL;
    if (is_open && (is_end || !is_inside)) {
        close_window(ctx, rank, device);
    } else if (!is_open && is_inside && !is_end) {
        open_window(ctx, rank, device);
    }
    if (rank == 0 && current->is_open) {
        current->covered++;
    }
}
