/* carry stream --change-prompt S: a thread that changes the prompt repeatedly, to measure how soon a change is
   visible. */
#include <math.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "cli/cmd_stream.h"
#include "core/clock.h"

#define LOOK 0.02 /* interval in seconds at which to check whether to end */
/* Multiples of it modulo 1 are spread evenly over [0, 1): changes occur at every phase of a chunk. */
#define GOLDEN 0.6180339

struct stream_change {
    pthread_t thread;
    carry_controls *controls;
    double seconds;
    atomic_bool is_ended;
};

static void *change(void *user) {
    static const char *const prompts[] = {"{\"prompt\": \"blue square moving up\"}",
                                          "{\"prompt\": \"yellow triangle moving right\"}",
                                          "{\"prompt\": \"red circle moving left\"}"};
    struct stream_change *c = user;
    double due = carry_seconds();
    for (int i = 0; !atomic_load(&c->is_ended); i++) {
        char why[256];
        due += c->seconds * (0.5 + fmod(i * GOLDEN, 1.0));
        while (!atomic_load(&c->is_ended) && carry_seconds() < due) {
            const double left = fmin(due - carry_seconds(), LOOK);
            const struct timespec rest = {.tv_nsec = (long)(1e9 * fmax(left, 0.0))};
            (void)nanosleep(&rest, NULL);
        }
        if (!atomic_load(&c->is_ended)) {
            (void)carry_controls_apply(c->controls, prompts[i % 3], strlen(prompts[i % 3]), why, sizeof why);
        }
    }
    return NULL;
}

struct stream_change *stream_change_start(carry_controls *controls, double seconds) {
    struct stream_change *c = seconds > 0.0 && controls != NULL ? calloc(1, sizeof *c) : NULL;
    if (c == NULL) {
        return NULL;
    }
    c->controls = controls;
    c->seconds = seconds;
    atomic_init(&c->is_ended, false);
    if (pthread_create(&c->thread, NULL, change, c) != 0) {
        free(c);
        return NULL;
    }
    return c;
}

void stream_change_end(struct stream_change *c) {
    if (c != NULL) {
        atomic_store(&c->is_ended, true);
        (void)pthread_join(c->thread, NULL);
        free(c);
    }
}
