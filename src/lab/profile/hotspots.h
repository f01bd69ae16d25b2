/* Hotspots: where a recorded run spent its time, by place in the source and by category; and what changed between two.

   total is from begin to end, on all threads together; self is total without the spans inside, so that it is never
   more than total, and the self times of all places add up to the time spent in spans. A span inside another of the
   same place is counted once. wall is from begin to end as the caller waits for it, without other threads.

   What GPUs did (device/activity.h) is listed beside, by kernel: one entry per name, whose category is kernel, copy or
   fill, and whose total is its time on the GPUs, wherever the caller was meanwhile. */
#ifndef CARRY_LAB_HOTSPOTS_H
#define CARRY_LAB_HOTSPOTS_H

#include "core/span.h"
#include "device/activity.h"

#define CARRY_HOTSPOTS 4096 /* places at most */

typedef struct carry_hotspot {
    char category[32], name[64], file[128];
    char operators[64]; /* that launched a kernel, the most frequent first; "": unknown */
    int line;
    int64_t calls;
    double total, wall, self; /* seconds */
    double outer; /* total of those not inside another of the same category: these add up to the category's */
    double flops, tokens;
} carry_hotspot;

typedef struct carry_hotspots {
    int count, ranks, threads;
    carry_hotspot *spot; /* by self time, the largest first */
    double wall, self;   /* seconds from the first event to the last, and of all self times */
    int64_t events, dropped;
    double gemm_gflops; /* measured on all threads, for MFU; 0: not measured */
    int gpus;           /* that did anything while they were recorded; without one the rest is 0 */
    int kernels;
    carry_hotspot *kernel; /* by time, the largest first; total and self are the same; file and line are where
                              the operator was entered that launched it most, or "gpu" */
    int64_t gpu_waits;     /* of the host for a GPU; not in a trace that was read */
    int64_t steps;         /* of training that were recorded; 0: unknown */
    double gpu_span;       /* seconds from the first thing that a GPU did to the last; 0: unknown */
    double gpu_busy;       /* seconds in which GPUs did anything, over all of them */
    int64_t gpu_events, gpu_dropped, gpu_lost; /* on the trace; counted and not on it; not even counted */
} carry_hotspots;

carry_status carry_hotspots_of(carry_ctx *ctx, carry_hotspots *hotspots, const carry_recorder *recorder);
/* Adds what GPUs did. */
carry_status carry_hotspots_add_gpu(carry_ctx *ctx, carry_hotspots *hotspots, const carry_activity_log *log);
void carry_hotspots_free(carry_hotspots *hotspots);
/* Sorts, sums up self, and raises a total that rounding left below self; for those who fill spot or kernel themselves.
 */
void carry_hotspots_finish(carry_hotspots *hotspots);

/* One entry per category, the largest self time first; name, file and line are empty. The caller frees *spots. */
carry_status carry_hotspots_categories(carry_ctx *ctx, carry_hotspot **spots, int *count,
                                       const carry_hotspots *hotspots);

/* Of all ranks together: tokens a second, and the share of the measured ceiling of products. NaN without tokens. */
double carry_hotspot_tokens_rate(const carry_hotspots *hotspots, const carry_hotspot *spot);
double carry_hotspot_mfu(const carry_hotspots *hotspots, const carry_hotspot *spot);

/* Part of the time in which GPUs were busy. What ran side by side makes the parts more than the whole. */
double carry_hotspot_gpu_share(const carry_hotspots *hotspots, const carry_hotspot *kernel);
const char *carry_activity_category(carry_activity_kind kind);

/* The same place in two runs: lines may move between them, so category, name and file decide. */
typedef struct carry_hotspot_change {
    carry_hotspot a, b; /* calls 0 where it is missing */
    double change;      /* of self, b - a */
} carry_hotspot_change;

/* By the size of the change, the largest first. The caller frees *changes. */
carry_status carry_hotspots_compare(carry_ctx *ctx, carry_hotspot_change **changes, int *count, const carry_hotspots *a,
                                    const carry_hotspots *b);
/* The same of what GPUs did. */
carry_status carry_hotspots_compare_gpu(carry_ctx *ctx, carry_hotspot_change **changes, int *count,
                                        const carry_hotspots *a, const carry_hotspots *b);

#endif
