/* Measures whether the stages of a pipeline overlap: stage times, period, hidden time and the score, from durations
   that each stage measures itself.

       hidden = max(0, t0 + t1 - period);  score = median over chunks of hidden / min(t0, t1)

   t0 and t1 are the times of stage 0 and stage 1 for a chunk. The score leaves out the first CARRY_OVERLAP_WARMUP
   chunks and the chunks without a period, such as the first after a pause or a cut.

   A score of 1: the period equals the time of the slower stage. 0: the stages take turns. The stages count as
   overlapping if the score is at least CARRY_OVERLAP_GATE. Clocks of different machines are never compared. */
#ifndef CARRY_STREAM_OVERLAP_H
#define CARRY_STREAM_OVERLAP_H

#include <stdbool.h>
#include <stdint.h>

#include "carry/context.h"

#define CARRY_OVERLAP_WARMUP 10
#define CARRY_OVERLAP_GATE 0.30
#define CARRY_OVERLAP_KEPT 4096 /* the medians are over this many of the newest chunks */

/* Times of one chunk, in seconds. */
typedef struct carry_chunk_times {
    uint64_t chunk_index, cache_epoch;
    double stage0, stage1;            /* work of each stage */
    double decode, encode, build;     /* parts of stage0 */
    double denoise, recompute, clean; /* parts of stage1 */
    double idle;                      /* idle time of the mesh before this chunk */
    double period;                    /* since the end of the previous chunk at stage 0, without waits for the pace */
    /* Since the change of prompts that this chunk is the first to show; 0: it shows no change. */
    double prompt;
    int depth; /* envelopes in progress when this one was sent */
} carry_chunk_times;

typedef struct carry_overlap carry_overlap;
carry_status carry_overlap_new(carry_ctx *ctx, carry_overlap **made, int depth);
void carry_overlap_free(carry_overlap *overlap);
void carry_overlap_add(carry_overlap *overlap, const carry_chunk_times *times);
double carry_overlap_hidden(const carry_chunk_times *times); /* seconds; NaN without a period */
void carry_overlap_restart(carry_overlap *overlap); /* after a pause or a cut: the next period is not counted */

typedef struct carry_overlap_summary {
    int64_t chunks, counted;             /* counted: after the warm-up */
    double score;                        /* NaN before the first chunk that counts */
    bool passes;                         /* the score passes the gate */
    double stage0, stage1, period, idle; /* medians, seconds */
    double hidden;
    double decode, encode, denoise, recompute, clean;
    double predicted; /* predicted period: max(t0, t1) from depth 2 on, t0 + t1 at depth 1 */
    double use;       /* B/(B+P-1), with P = 2 stages and B = depth micro-batches in progress */
} carry_overlap_summary;
void carry_overlap_read(const carry_overlap *overlap, carry_overlap_summary *summary);

/* B/(B+P-1) and T(B) = t0 + t1 + (B-1) max(t0, t1). */
double carry_pipeline_use(int64_t batches, int64_t stages);
double carry_pipeline_time(double t0, double t1, int64_t batches);

#endif
