/* Batches: rows of a source as [rows, length] inputs and labels, split over ranks.

   The labels are the inputs shifted by one; CARRY_NO_LABEL where none counts. What a batch holds is a function of
   source, seed and position alone, not of the number of ranks: data rank r of R has rows r B/R .. (r+1) B/R - 1 of it,
   sequence rank p of P the columns p T/P .. (p+1) T/P - 1 of those. So the union over all ranks is the batch of one
   rank, and a run may be resumed on another number of them.

   A position is three numbers: all zero is the start. */
#ifndef CARRY_TRAIN_BATCHES_H
#define CARRY_TRAIN_BATCHES_H

#include "train/data/source.h"

typedef struct carry_position {
    int64_t epoch, window, row; /* row: in the shuffled order of the window */
} carry_position;

typedef struct carry_batches_options {
    int64_t rows, length; /* of the whole batch, over all ranks */
    int rank, ranks;      /* data: rows are split; ranks must divide rows. 0 ranks: 1 */
    int part, parts;      /* sequence: columns are split; parts must divide length. 0 parts: 1 */
    bool shuffle;         /* rows within a window; a source without end has no need of it */
    bool once;            /* stop after one epoch; the last rows are padded, so that every label counts once */
    bool documents;       /* cut at end-of-text tokens too: cu_seqlens, and no label across. Not with parts */
    uint64_t seed;
} carry_batches_options;

/* Borrowed until the next. input and label are this rank's, packed, [rows, length]. */
typedef struct carry_batch {
    int64_t rows, length; /* rows 0: the epoch is over (once) */
    int64_t *input, *label;
    int64_t labels;          /* that count, here */
    int64_t labels_whole;    /* over all ranks */
    int64_t sequences;       /* with documents or cuts: of this rank's rows one after the other */
    int64_t *cu_seqlens;     /* sequences + 1; with cuts, source.most_cuts of each row, the last ones empty */
    carry_position position; /* of its first row */
} carry_batch;

typedef struct carry_batches carry_batches;

carry_status carry_batches_new(carry_ctx *ctx, carry_batches **batches, const carry_source *source,
                               const carry_batches_options *options);
void carry_batches_free(carry_batches *batches);

/* The next batch. A last one of fewer rows (once) is filled up with rows without labels, so that all ranks have some.
 */
carry_status carry_batches_next(carry_ctx *ctx, carry_batches *batches, const carry_batch **batch);

/* Where the next batch starts; going there makes it so. A position that the source does not have shows in the next. */
carry_position carry_batches_position(const carry_batches *batches);
void carry_batches_seek(carry_batches *batches, carry_position position);

#endif
