/* Where rows of training come from: a corpus, or a synthetic task. Rows are numbered within windows, windows within
   epochs; a row is a function of the three numbers (and of the source's seed). A source is used by one carry_batches.
 */
#ifndef CARRY_TRAIN_SOURCE_H
#define CARRY_TRAIN_SOURCE_H

#include <stdbool.h>
#include <stdint.h>

#include "carry/context.h"

#define CARRY_NO_LABEL (-100) /* as the loss and flash-linear-attention have it: this place does not count */

typedef struct carry_source {
    int64_t vocabulary; /* inputs and labels are below */
    int64_t end;        /* the token between documents; -1: no such token */
    bool is_endless;    /* rows of one window never end, and come in order */
    int64_t most_cuts;  /* sequences of a row at most, where it has cuts; else 0 */
    void *state;
    /* How many rows of this length a window has (it may be 0), and how many windows the epoch has. */
    carry_status (*open)(carry_ctx *ctx, void *state, int64_t epoch, int64_t window, int64_t length, bool padded,
                         int64_t *rows, int64_t *windows);
    /* A row of the window that was opened last: input and label, length each. */
    void (*row)(const void *state, int64_t row, int64_t length, int64_t *input, int64_t *label);
    /* The first place of each sequence of a row, ascending from 0, at most most_cuts; returns their number. The order
       of rows is the source's own. NULL: a row is one sequence. */
    int64_t (*cuts)(const void *state, int64_t row, int64_t length, int64_t *starts);
} carry_source;

#endif
