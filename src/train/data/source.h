/* A source of rows for training: a corpus, examples for fine-tuning, or a synthetic task. Rows are numbered within
   windows, and windows within epochs; a row depends only on these three numbers (and the source's seed). A source is
   used by one carry_batches. */
#ifndef CARRY_TRAIN_SOURCE_H
#define CARRY_TRAIN_SOURCE_H

#include <stdbool.h>
#include <stdint.h>

#include "carry/context.h"

#define CARRY_NO_LABEL (-100) /* a label that does not count, as in the loss and in flash-linear-attention */

typedef struct carry_source {
    int64_t vocabulary; /* inputs and labels are below it */
    int64_t end;        /* the token between documents; -1: no such token */
    bool is_endless;    /* a window never runs out of rows, and they come in order */
    int64_t most_cuts;  /* maximum number of sequences of a row, if it has cuts; else 0 */
    void *state;
    /* Opens a window. Gives the number of rows of this length that it has (which may be 0), and the number of windows
       of the epoch. */
    carry_status (*open)(carry_ctx *ctx, void *state, int64_t epoch, int64_t window, int64_t length, bool padded,
                         int64_t *rows, int64_t *windows);
    /* Gets a row of the window that was opened last: `length` inputs and `length` labels. */
    void (*row)(const void *state, int64_t row, int64_t length, int64_t *input, int64_t *label);
    /* Gets the start of each sequence of a row, ascending from 0, at most most_cuts; returns their number.
       carry_batches does not shuffle the rows of such a source. NULL: a row is one sequence. */
    int64_t (*cuts)(const void *state, int64_t row, int64_t length, int64_t *starts);
} carry_source;

#endif
