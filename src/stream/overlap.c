/* The overlap score: a ring of the newest chunks, and medians over it.

   Medians are found by selection, not by sorting, since they are computed after every chunk. */
#include "stream/overlap.h"

#include <math.h>
#include <stdlib.h>

#include "core/error.h"

#define STAGES 2

enum { SCORE, HIDDEN, STAGE0, STAGE1, PERIOD, IDLE, DECODE, ENCODE, DENOISE, RECOMPUTE, CLEAN, COLUMNS };

struct carry_overlap {
    int depth;
    bool has_before;         /* the next period is valid: there was a result before it, and no pause or cut since */
    int64_t chunks, counted; /* counted: chunks after the warm-up that have a score */
    int64_t added;           /* chunks added to the ring, which is emptied when the warm-up ends */
    double kept[COLUMNS][CARRY_OVERLAP_KEPT];
    double scratch[CARRY_OVERLAP_KEPT];
};

carry_status carry_overlap_new(carry_ctx *ctx, carry_overlap **made, int depth) {
    *made = NULL;
    if (depth < 1) {
        return carry_fail(ctx, CARRY_EARGUMENT, "a depth of %d: at least 1 envelope is under way", depth);
    }
    carry_overlap *overlap = calloc(1, sizeof *overlap);
    if (overlap == NULL) {
        return carry_fail(ctx, CARRY_EMEMORY, "out of memory: the times of %d chunks", CARRY_OVERLAP_KEPT);
    }
    overlap->depth = depth;
    *made = overlap;
    return CARRY_OK;
}

void carry_overlap_free(carry_overlap *overlap) {
    free(overlap);
}

void carry_overlap_restart(carry_overlap *overlap) {
    overlap->has_before = false;
}

static bool is_duration(double seconds) {
    return isfinite(seconds) && seconds >= 0;
}

double carry_overlap_hidden(const carry_chunk_times *t) {
    return is_duration(t->stage0) && is_duration(t->stage1) && is_duration(t->period) && t->period > 0
               ? fmax(0, t->stage0 + t->stage1 - t->period)
               : NAN;
}

void carry_overlap_add(carry_overlap *overlap, const carry_chunk_times *t) {
    const double period = overlap->has_before ? t->period : NAN;
    const double hidden = overlap->has_before ? carry_overlap_hidden(t) : NAN;
    const double shorter = fmin(t->stage0, t->stage1);
    const double score = shorter > 0 ? hidden / shorter : NAN; /* NaN: there was nothing to hide */
    const bool counts = overlap->chunks >= CARRY_OVERLAP_WARMUP && !isnan(score);
    overlap->has_before = true;
    overlap->chunks++;
    if (counts && overlap->counted++ == 0) {
        overlap->added = 0; /* removes the warm-up chunks */
    } else if (!counts && overlap->counted > 0) {
        return;
    }
    const double row[COLUMNS] = {
        [SCORE] = counts ? score : NAN, [HIDDEN] = hidden,    [STAGE0] = t->stage0,
        [STAGE1] = t->stage1,           [PERIOD] = period,    [IDLE] = t->idle,
        [DECODE] = t->decode,           [ENCODE] = t->encode, [DENOISE] = t->denoise,
        [RECOMPUTE] = t->recompute,     [CLEAN] = t->clean,
    };
    for (int column = 0; column < COLUMNS; column++) {
        overlap->kept[column][overlap->added % CARRY_OVERLAP_KEPT] = is_duration(row[column]) ? row[column] : NAN;
    }
    overlap->added++;
}

/* Returns the element that would be at index k after sorting. Reorders values: those before k are not larger. */
static double select_at(double *values, int64_t count, int64_t k) {
    int64_t first = 0;
    int64_t last = count - 1;
    while (first < last) {
        const double pivot = values[first + (last - first) / 2];
        int64_t i = first;
        int64_t j = last;
        while (i <= j) {
            while (values[i] < pivot) {
                i++;
            }
            while (values[j] > pivot) {
                j--;
            }
            if (i <= j) {
                const double swapped = values[i];
                values[i++] = values[j];
                values[j--] = swapped;
            }
        }
        if (k <= j) {
            last = j;
        } else if (k >= i) {
            first = i;
        } else {
            break;
        }
    }
    return values[k];
}

/* The median of the values that are not NaN, or NaN if all are. */
static double median(double *scratch, const double *values, int64_t count) {
    int64_t numbers = 0;
    for (int64_t i = 0; i < count; i++) {
        if (!isnan(values[i])) {
            scratch[numbers++] = values[i];
        }
    }
    if (numbers == 0) {
        return NAN;
    }
    const double upper = select_at(scratch, numbers, numbers / 2);
    if (numbers % 2 == 1) {
        return upper;
    }
    double lower = scratch[0];
    for (int64_t i = 1; i < numbers / 2; i++) {
        lower = fmax(lower, scratch[i]);
    }
    return (lower + upper) / 2;
}

void carry_overlap_read(const carry_overlap *overlap, carry_overlap_summary *summary) {
    const int64_t kept = overlap->added < CARRY_OVERLAP_KEPT ? overlap->added : CARRY_OVERLAP_KEPT;
    double *scratch = ((carry_overlap *)(uintptr_t)overlap)->scratch; /* scratch memory, not part of the state */
    double middle[COLUMNS];
    for (int column = 0; column < COLUMNS; column++) {
        middle[column] = median(scratch, overlap->kept[column], kept);
    }
    *summary = (carry_overlap_summary){
        .chunks = overlap->chunks,
        .counted = overlap->counted,
        .score = middle[SCORE],
        .passes = middle[SCORE] >= CARRY_OVERLAP_GATE,
        .stage0 = middle[STAGE0],
        .stage1 = middle[STAGE1],
        .period = middle[PERIOD],
        .hidden = middle[HIDDEN],
        .idle = middle[IDLE],
        .decode = middle[DECODE],
        .encode = middle[ENCODE],
        .denoise = middle[DENOISE],
        .recompute = middle[RECOMPUTE],
        .clean = middle[CLEAN],
        .predicted = overlap->depth > 1 ? fmax(middle[STAGE0], middle[STAGE1]) : middle[STAGE0] + middle[STAGE1],
        .use = carry_pipeline_use(overlap->depth, STAGES),
    };
}

double carry_pipeline_use(int64_t batches, int64_t stages) {
    return batches < 1 || stages < 1 ? 0 : (double)batches / ((double)batches + (double)stages - 1);
}

double carry_pipeline_time(double t0, double t1, int64_t batches) {
    return batches < 1 ? 0 : t0 + t1 + (double)(batches - 1) * fmax(t0, t1);
}
