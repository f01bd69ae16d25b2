/* The progress bar. */
#include "core/progress.h"

#include <unistd.h>

#include "core/clock.h"

#define QUIET_SECONDS 2.0
#define REDRAW_SECONDS 0.1
#define BAR_WIDTH 28

/* Without a total, shows the number done and the rate. */
static void draw_count(carry_progress *progress, double now) {
    (void)fprintf(progress->to, "\r\033[K%s %lld done  %.1f/s", progress->what, (long long)progress->done,
                  (double)progress->done / (now - progress->started));
    (void)fflush(progress->to);
    progress->visible = true;
    progress->drawn = now;
}

static void draw(carry_progress *progress, double now) {
    if (progress->total <= 0) {
        draw_count(progress, now);
        return;
    }
    double share = progress->total > 0 ? (double)progress->done / (double)progress->total : 0.0;
    double spent = now - progress->started;
    char bar[BAR_WIDTH + 1];
    for (int i = 0; i < BAR_WIDTH; i++) {
        bar[i] = (double)i < share * BAR_WIDTH ? '#' : '.';
    }
    bar[BAR_WIDTH] = '\0';
    (void)fprintf(progress->to, "\r\033[K%s [%s] %lld/%lld  %.1f/s  %.0f s left", progress->what, bar,
                  (long long)progress->done, (long long)progress->total, (double)progress->done / spent,
                  share > 0.0 ? spent * (1.0 - share) / share : 0.0);
    (void)fflush(progress->to);
    progress->visible = true;
    progress->drawn = now;
}

void carry_progress_start(carry_progress *progress, FILE *to, const char *what, int64_t total) {
    *progress = (carry_progress){.to = to, .what = what, .total = total, .started = carry_seconds()};
    progress->on_terminal = isatty(fileno(to)) != 0;
}

void carry_progress_step(carry_progress *progress, int64_t done) {
    progress->done = done;
    double now = carry_seconds();
    if (progress->on_terminal && now - progress->started > QUIET_SECONDS && now - progress->drawn > REDRAW_SECONDS) {
        draw(progress, now);
    }
}

void carry_progress_clear(carry_progress *progress) {
    if (progress->visible) {
        (void)fputs("\r\033[K", progress->to);
        (void)fflush(progress->to);
        progress->visible = false;
    }
}
