/* Rows to batches. Every rank makes all rows of a batch and keeps its share: making rows costs little compared to
   training on them, and so each rank knows the total number of counted labels. */
#include "train/data/batches.h"

#include <stdlib.h>
#include <string.h>

#include "core/error.h"
#include "core/memory.h"
#include "train/data/shuffle.h"

#define ROW_STREAM 0x726F7773u

struct carry_batches {
    carry_source source;
    carry_batches_options options;
    carry_position at;
    carry_position opened; /* the window that is open in the source; epoch -1: none */
    int64_t window_rows, windows;
    int64_t *input, *label; /* one whole row */
    carry_batch batch;
};

static carry_status check_options(carry_ctx *ctx, const carry_source *source, const carry_batches_options *o) {
    if (o->rows < 1 || o->length < 1) {
        return carry_fail(ctx, CARRY_EARGUMENT, "a batch has %lld rows of %lld tokens: both must be at least 1",
                          (long long)o->rows, (long long)o->length);
    }
    if (o->rank < 0 || o->rank >= o->ranks || o->part < 0 || o->part >= o->parts) {
        return carry_fail(
            ctx, CARRY_EARGUMENT,
            "data rank %d of %d and sequence rank %d of %d: a rank must be at least 0 and below the count", o->rank,
            o->ranks, o->part, o->parts);
    }
    if (o->rows % o->ranks != 0) {
        return carry_fail(ctx, CARRY_EARGUMENT, "a batch of %lld rows cannot be split over %d data ranks evenly",
                          (long long)o->rows, o->ranks);
    }
    if (o->length % o->parts != 0) {
        return carry_fail(ctx, CARRY_EARGUMENT,
                          "a sequence of %lld tokens cannot be split over %d sequence ranks evenly",
                          (long long)o->length, o->parts);
    }
    if (o->documents && (o->parts > 1 || source->end < 0)) {
        return carry_fail(ctx, CARRY_EUNSUPPORTED, "%s",
                          o->parts > 1 ? "documents are not cut where sequences are split over ranks"
                                       : "documents cannot be separated: the tokenizer has no end-of-text token");
    }
    if (source->cuts != NULL && (o->parts > 1 || o->documents)) {
        return carry_fail(ctx, CARRY_EUNSUPPORTED, "packed examples are not split over sequence ranks");
    }
    return CARRY_OK;
}

static carry_status make_room(carry_ctx *ctx, carry_batches *b) {
    const carry_batches_options *o = &b->options;
    b->batch.length = o->length / o->parts;
    int64_t share[] = {o->rows / o->ranks, b->batch.length};
    const int64_t cuts[] = {share[0], b->source.most_cuts};
    size_t bytes;
    size_t row_bytes;
    size_t cut_bytes;
    if (!carry_size_product(&bytes, share, 2, sizeof(int64_t)) ||
        !carry_size_product(&cut_bytes, cuts, 2, sizeof(int64_t)) ||
        !carry_size_product(&row_bytes, &o->length, 1, sizeof(int64_t))) {
        return carry_fail(ctx, CARRY_ESIZE, "a batch of %lld rows of %lld tokens is too large", (long long)o->rows,
                          (long long)o->length);
    }
    b->input = malloc(row_bytes);
    b->label = malloc(row_bytes);
    b->batch.input = malloc(bytes);
    b->batch.label = malloc(bytes);
    const bool is_cut = o->documents || b->source.cuts != NULL;
    cut_bytes = o->documents ? bytes : cut_bytes;
    b->batch.cu_seqlens = is_cut ? malloc(cut_bytes + 2 * sizeof(int64_t)) : NULL;
    if (b->input == NULL || b->label == NULL || b->batch.input == NULL || b->batch.label == NULL ||
        (is_cut && b->batch.cu_seqlens == NULL)) {
        return carry_fail(ctx, CARRY_EMEMORY, "out of memory: a batch of %lld rows of %lld tokens", (long long)o->rows,
                          (long long)o->length);
    }
    return CARRY_OK;
}

carry_status carry_batches_new(carry_ctx *ctx, carry_batches **batches, const carry_source *source,
                               const carry_batches_options *options) {
    *batches = NULL;
    carry_batches_options o = *options;
    o.ranks = o.ranks != 0 ? o.ranks : 1;
    o.parts = o.parts != 0 ? o.parts : 1;
    CARRY_TRY(check_options(ctx, source, &o));
    carry_batches *made = calloc(1, sizeof *made);
    if (made == NULL) {
        return carry_fail(ctx, CARRY_EMEMORY, "out of memory: batches");
    }
    made->source = *source;
    made->options = o;
    made->opened.epoch = -1;
    carry_status status = make_room(ctx, made);
    if (status != CARRY_OK) {
        carry_batches_free(made);
        return status;
    }
    *batches = made;
    return CARRY_OK;
}

void carry_batches_free(carry_batches *batches) {
    if (batches != NULL) {
        free(batches->input);
        free(batches->label);
        free(batches->batch.input);
        free(batches->batch.label);
        free(batches->batch.cu_seqlens);
        free(batches);
    }
}

static carry_status open_window(carry_ctx *ctx, carry_batches *b) {
    if (b->opened.epoch == b->at.epoch && b->opened.window == b->at.window) {
        return CARRY_OK;
    }
    b->opened.epoch = -1;
    CARRY_TRY(b->source.open(ctx, b->source.state, b->at.epoch, b->at.window, b->options.length, b->options.once,
                             &b->window_rows, &b->windows));
    b->opened = b->at;
    return CARRY_OK;
}

/* Moves to the next existing row; *over after the last row of the only epoch (options.once). */
static carry_status find_row(carry_ctx *ctx, carry_batches *b, bool *over) {
    int64_t empty = 0; /* consecutive windows without a row */
    *over = false;
    if (b->at.epoch < 0 || b->at.window < 0 || b->at.row < 0) {
        return carry_fail(ctx, CARRY_ERANGE, "epoch %lld, window %lld, row %lld is not a position in the data",
                          (long long)b->at.epoch, (long long)b->at.window, (long long)b->at.row);
    }
    for (;;) {
        if (b->options.once && b->at.epoch > 0) {
            *over = true;
            return CARRY_OK;
        }
        CARRY_TRY(open_window(ctx, b));
        if (b->at.row < b->window_rows) {
            return CARRY_OK;
        }
        empty = b->window_rows == 0 ? empty + 1 : 0;
        if (empty > b->windows) {
            return carry_fail(ctx, CARRY_EFORMAT, "there is no row of %lld tokens in the whole corpus",
                              (long long)b->options.length);
        }
        b->at.row = 0;
        if (++b->at.window >= b->windows) {
            b->at.window = 0;
            b->at.epoch++;
        }
    }
}

static void count_labels(const int64_t *label, int64_t count, int64_t *total) {
    for (int64_t i = 0; i < count; i++) {
        *total += label[i] != CARRY_NO_LABEL;
    }
}

/* The index of the current row in its window. */
static int64_t row_at_hand(const carry_batches *b) {
    if (!b->options.shuffle || b->source.is_endless || b->source.cuts != NULL) {
        return b->at.row;
    }
    const uint64_t stream = ROW_STREAM + ((uint64_t)b->at.epoch << 32) + (uint64_t)b->at.window;
    return carry_shuffle(b->options.seed, stream, b->window_rows, b->at.row);
}

/* Writes the whole current row to input and label. */
static void make_row(carry_batches *b) {
    const int64_t row = row_at_hand(b);
    b->source.row(b->source.state, row, b->options.length, b->input, b->label);
    for (int64_t i = 0; b->options.documents && i < b->options.length; i++) {
        if (b->input[i] == b->source.end) {
            b->label[i] = CARRY_NO_LABEL; /* the next document cannot be predicted */
        }
    }
}

/* Copies this rank's share of row `index` of the batch. */
static void keep_share(carry_batches *b, int64_t index) {
    const carry_batches_options *o = &b->options;
    int64_t mine = index - o->rank * (o->rows / o->ranks);
    if (mine < 0 || mine >= o->rows / o->ranks) {
        return;
    }
    int64_t from = o->part * b->batch.length;
    size_t bytes = (size_t)b->batch.length * sizeof(int64_t);
    memcpy(b->batch.input + mine * b->batch.length, b->input + from, bytes);
    memcpy(b->batch.label + mine * b->batch.length, b->label + from, bytes);
    count_labels(b->label + from, b->batch.length, &b->batch.labels);
}

/* Adds the sequence boundaries of row `index` of the batch, if the source splits rows into sequences and the row
   belongs to this rank. is_there is false for a row that only pads the batch: it is one sequence. */
static void keep_cuts(carry_batches *b, int64_t index, bool is_there) {
    const carry_batches_options *o = &b->options;
    const int64_t most = b->source.most_cuts;
    const int64_t mine = index - o->rank * (o->rows / o->ranks);
    if (b->source.cuts == NULL || mine < 0 || mine >= o->rows / o->ranks) {
        return;
    }
    int64_t *starts = b->batch.cu_seqlens + mine * most;
    int64_t count = 1;
    starts[0] = 0;
    if (is_there) {
        count = b->source.cuts(b->source.state, row_at_hand(b), o->length, starts);
    }
    for (int64_t i = 0; i < most; i++) {
        starts[i] = mine * o->length + (i < count ? starts[i] : o->length);
    }
    b->batch.sequences = (mine + 1) * most;
    starts[most] = (mine + 1) * o->length;
}

/* A sequence starts at the beginning of each row, and after each end-of-text token. */
static void cut_documents(carry_batches *b) {
    carry_batch *batch = &b->batch;
    batch->sequences = 0;
    batch->cu_seqlens[0] = 0;
    int64_t total = batch->rows * batch->length;
    for (int64_t i = 1; i < total; i++) {
        if (i % batch->length == 0 || batch->input[i - 1] == b->source.end) {
            batch->cu_seqlens[++batch->sequences] = i;
        }
    }
    batch->cu_seqlens[++batch->sequences] = total;
}

carry_status carry_batches_next(carry_ctx *ctx, carry_batches *batches, const carry_batch **batch) {
    carry_batches *b = batches;
    *batch = &b->batch;
    b->batch.rows = b->options.rows / b->options.ranks;
    b->batch.labels = b->batch.labels_whole = 0;
    bool over = false;
    for (int64_t i = 0; i < b->options.rows; i++) {
        if (!over) {
            CARRY_TRY(find_row(ctx, b, &over));
        }
        if (i == 0) {
            b->batch.position = b->at;
            if (over) {
                b->batch.rows = 0;
                return CARRY_OK;
            }
        }
        keep_cuts(b, i, !over);
        if (!over) {
            make_row(b);
            b->at.row++;
        } else {
            for (int64_t j = 0; j < b->options.length; j++) {
                b->label[j] = CARRY_NO_LABEL; /* the inputs may be those of an earlier row */
            }
        }
        count_labels(b->label, b->options.length, &b->batch.labels_whole);
        keep_share(b, i);
    }
    if (b->options.documents) {
        cut_documents(b);
    }
    return CARRY_OK;
}

carry_position carry_batches_position(const carry_batches *batches) {
    return batches->at;
}

void carry_batches_seek(carry_batches *batches, carry_position position) {
    batches->at = position;
}
