/* A progress bar with rate and time left, on a terminal only, and only for work that takes over two seconds. */
#ifndef CARRY_CORE_PROGRESS_H
#define CARRY_CORE_PROGRESS_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

typedef struct carry_progress {
    FILE *to;
    const char *what; /* "benching" */
    int64_t done, total;
    double started, drawn;
    bool on_terminal, visible;
} carry_progress;

void carry_progress_start(carry_progress *progress, FILE *to, const char *what, int64_t total);
void carry_progress_step(carry_progress *progress, int64_t done); /* done so far, of total */
/* Clears the line, so that other output starts on a clean one. The next step draws the bar again. */
void carry_progress_clear(carry_progress *progress);

#endif
