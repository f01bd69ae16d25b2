/* Contention, from /proc/stat. */
#include "lab/quiet.h"

#include <math.h>
#include <stdio.h>
#include <sys/resource.h>
#include <unistd.h>

#include "core/clock.h"

#define LEAST_SECONDS 0.2
#define MOST 0.9

static double seconds_of(struct timeval time) {
    return (double)time.tv_sec + 1e-6 * (double)time.tv_usec;
}

carry_quiet carry_quiet_now(void) {
    carry_quiet q = {.wall = carry_seconds(), .busy = NAN};
    struct rusage usage;
    if (getrusage(RUSAGE_SELF, &usage) == 0) {
        q.own = seconds_of(usage.ru_utime) + seconds_of(usage.ru_stime);
    }
    FILE *file = fopen("/proc/stat", "re");
    unsigned long long user, nice, system, idle, wait, interrupt, soft, steal;
    if (file != NULL) {
        if (fscanf(file, "cpu %llu %llu %llu %llu %llu %llu %llu %llu", &user, &nice, &system, &idle, &wait, &interrupt,
                   &soft, &steal) == 8) {
            q.busy = (double)(user + nice + system + interrupt + soft + steal) / (double)sysconf(_SC_CLK_TCK);
        }
        (void)fclose(file);
    }
    return q;
}

double carry_quiet_contention(carry_quiet since, int threads) {
    carry_quiet now = carry_quiet_now();
    double wall = now.wall - since.wall;
    double others = ((now.busy - since.busy) - (now.own - since.own)) / wall; /* cores */
    double cores = (double)sysconf(_SC_NPROCESSORS_ONLN);
    if (wall < LEAST_SECONDS || isnan(others) || threads < 1) {
        return 0.0;
    }
    /* Work on otherwise idle cores does not count. */
    return fmin(MOST, fmax(0.0, (others + threads - cores) / threads));
}
