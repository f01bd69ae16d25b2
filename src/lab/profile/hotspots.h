/* Hotspots: where a recorded run spent its time, by place in the source and by category; and what changed between
   two runs.

   total is the time from begin to end, summed over all threads. self is total without the spans inside, so it is
   never more than total, and the self times of all places add up to the time spent in spans. A span inside another
   span of the same place is counted once. wall is the time from begin to end as the caller waits for it, without
   other threads.

   GPU activity (device/activity.h) is listed separately, by kernel: one entry per name, whose category is kernel,
   copy or fill, and whose total is its time on the GPUs, regardless of what the caller did meanwhile. */
#ifndef CARRY_LAB_HOTSPOTS_H
#define CARRY_LAB_HOTSPOTS_H

#include "core/span.h"
#include "device/activity.h"

#define CARRY_HOTSPOTS 4096 /* maximum number of places */

typedef struct carry_hotspot {
    char category[32], name[64], file[128];
    char operators[64]; /* operators that launched a kernel, the most frequent first; "": unknown */
    int line;
    int64_t calls;
    double total, wall, self; /* seconds */
    /* Total of the spans not inside another of the same category; these add up to the category's total. */
    double outer;
    double flops, tokens;
} carry_hotspot;

typedef struct carry_hotspots {
    int count, ranks, threads;
    carry_hotspot *spot; /* sorted by self time, the largest first */
    double wall, self;   /* seconds from the first event to the last; sum of all self times */
    int64_t events, dropped;
    double gemm_gflops; /* measured on all threads, for MFU; 0: not measured */
    int gpus;           /* number of GPUs with recorded activity; if 0, so are the fields below */
    int kernels;
    /* GPU kernels, sorted by time, the largest first; total equals self. file and line are the place in the source of
       the operator that launched the kernel most often, or "gpu". */
    carry_hotspot *kernel;
    int64_t gpu_waits; /* waits of the host for a GPU; not known for a trace that was read */
    int64_t steps;     /* training steps that were recorded; 0: unknown */
    double gpu_span;   /* seconds from the first GPU activity to the last; 0: unknown */
    double gpu_busy;   /* seconds in which GPUs were active, summed over all of them */
    /* Events of GPUs: in the trace; in the hotspots but not in the trace; lost by the recorder, and in neither. */
    int64_t gpu_events, gpu_dropped, gpu_lost;
} carry_hotspots;

carry_status carry_hotspots_of(carry_ctx *ctx, carry_hotspots *hotspots, const carry_recorder *recorder);
/* Adds the activity of GPUs. */
carry_status carry_hotspots_add_gpu(carry_ctx *ctx, carry_hotspots *hotspots, const carry_activity_log *log);
void carry_hotspots_free(carry_hotspots *hotspots);
/* Sorts the entries, sums up self, and raises totals that rounding left below self. For callers that fill spot or
   kernel themselves. */
void carry_hotspots_finish(carry_hotspots *hotspots);

/* One entry per category, the largest self time first; name, file and line are empty. The caller frees *spots. */
carry_status carry_hotspots_categories(carry_ctx *ctx, carry_hotspot **spots, int *count,
                                       const carry_hotspots *hotspots);

/* Over all ranks: tokens per second, and the share of the measured peak of matrix products. NaN without tokens. */
double carry_hotspot_tokens_rate(const carry_hotspots *hotspots, const carry_hotspot *spot);
double carry_hotspot_mfu(const carry_hotspots *hotspots, const carry_hotspot *spot);

/* A kernel's share of the time in which GPUs were busy. Kernels that run concurrently make the sum larger than 1. */
double carry_hotspot_gpu_share(const carry_hotspots *hotspots, const carry_hotspot *kernel);
const char *carry_activity_category(carry_activity_kind kind);

/* The same place in two runs, matched by category, name and file, since lines may move between runs. */
typedef struct carry_hotspot_change {
    carry_hotspot a, b; /* calls is 0 where the place is missing */
    double change;      /* b - a, in seconds of self time */
} carry_hotspot_change;

/* Sorted by the size of the change, the largest first. The caller frees *changes. */
carry_status carry_hotspots_compare(carry_ctx *ctx, carry_hotspot_change **changes, int *count, const carry_hotspots *a,
                                    const carry_hotspots *b);
/* As carry_hotspots_compare, for GPU activity. */
carry_status carry_hotspots_compare_gpu(carry_ctx *ctx, carry_hotspot_change **changes, int *count,
                                        const carry_hotspots *a, const carry_hotspots *b);

#endif
