/* The monotonic clock. */
#include "core/clock.h"

#include <stdio.h>
#include <time.h>

double carry_seconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

double carry_thread_seconds(void) {
    struct timespec now = {0};
    (void)clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

const char *carry_time_text(char text[32], double seconds) {
    static const char *const units[] = {"s", "ms", "us", "ns"};
    int i = 0;
    while (i < 3 && seconds < 1.0) {
        seconds *= 1000.0;
        i++;
    }
    (void)snprintf(text, 32, seconds < 10.0 ? "%.2f %s" : seconds < 100.0 ? "%.1f %s" : "%.0f %s", seconds, units[i]);
    return text;
}
