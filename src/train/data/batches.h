/* Batches: rows of a source as [rows, length] inputs and labels, split over ranks.

   The labels are the inputs shifted by one; CARRY_NO_LABEL where a label does not count. The contents of a batch depend
   only on source, seed and position, not on the number of ranks. Of a batch of B rows of T tokens, data rank r of R has
   rows r B/R .. (r+1) B/R - 1, and sequence rank p of P the columns p T/P .. (p+1) T/P - 1 of these rows. So all ranks
   together have the batch that one rank alone would have, and a run may be resumed with another number of ranks.

   A position is three numbers; all zero is the start. */
#ifndef CARRY_TRAIN_BATCHES_H
#define CARRY_TRAIN_BATCHES_H

#include "train/data/source.h"

typedef struct carry_position {
    int64_t epoch, window, row; /* row: its index in the shuffled order of the window */
} carry_position;

typedef struct carry_batches_options {
    int64_t rows, length; /* size of the whole batch, over all ranks */
    int rank, ranks;      /* data ranks: rows are split; ranks must divide rows. 0 means 1 */
    int part, parts;      /* sequence ranks: columns are split; parts must divide length. 0 means 1 */
    bool shuffle;         /* shuffle rows within a window; an endless source does not need it */
    bool once;            /* stop after one epoch; the last rows are padded, so that every label counts once */
    bool documents;       /* also cut at end-of-text tokens: cu_seqlens is set, and no label crosses a cut. Not with
                             parts */
    uint64_t seed;
} carry_batches_options;

/* Valid until the next call. input and label are this rank's, packed, [rows, length]. */
typedef struct carry_batch {
    int64_t rows, length; /* rows 0: the epoch is over (once) */
    int64_t *input, *label;
    int64_t labels;          /* number of labels of this rank that count */
    int64_t labels_whole;    /* the same over all ranks */
    int64_t sequences;       /* with documents or cuts: number of sequences in this rank's rows, taken one after the
                                other */
    int64_t *cu_seqlens;     /* [sequences + 1]; with cuts, each row has source.most_cuts sequences, and the last ones
                                are empty */
    carry_position position; /* position of its first row */
} carry_batch;

typedef struct carry_batches carry_batches;

carry_status carry_batches_new(carry_ctx *ctx, carry_batches **batches, const carry_source *source,
                               const carry_batches_options *options);
void carry_batches_free(carry_batches *batches);

/* Gets the next batch. With the option `once`, the last batch may have fewer rows; it is padded with rows without
   labels, so that all ranks have the same number. */
carry_status carry_batches_next(carry_ctx *ctx, carry_batches *batches, const carry_batch **batch);

/* The position of the next batch; seek sets it. If the source does not have the position, the next call of
   carry_batches_next fails. */
carry_position carry_batches_position(const carry_batches *batches);
void carry_batches_seek(carry_batches *batches, carry_position position);

#endif
