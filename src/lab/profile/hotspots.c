/* Sums over tracks and categories, and differences between runs. */
#include "lab/profile/hotspots.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/context.h"

static int by_self(const void *a, const void *b) {
    double x = ((const carry_hotspot *)a)->self;
    double y = ((const carry_hotspot *)b)->self;
    return (x < y) - (x > y);
}

static int by_change(const void *a, const void *b) {
    double x = fabs(((const carry_hotspot_change *)a)->change);
    double y = fabs(((const carry_hotspot_change *)b)->change);
    return (x < y) - (x > y);
}

static bool is_site(const carry_hotspot *spot, const carry_span_site *site) {
    return spot->line == site->line && strcmp(spot->name, site->name) == 0 && strcmp(spot->file, site->file) == 0 &&
           strcmp(spot->category, site->category) == 0;
}

static carry_hotspot *find(carry_hotspots *h, const carry_span_site *site) {
    for (int i = 0; i < h->count; i++) {
        if (is_site(&h->spot[i], site)) {
            return &h->spot[i];
        }
    }
    if (h->count == CARRY_HOTSPOTS) {
        return NULL;
    }
    carry_hotspot *made = &h->spot[h->count++];
    *made = (carry_hotspot){.line = site->line};
    (void)snprintf(made->category, sizeof made->category, "%s", site->category);
    (void)snprintf(made->name, sizeof made->name, "%s", site->name);
    (void)snprintf(made->file, sizeof made->file, "%s", site->file);
    return made;
}

static void add(carry_hotspot *to, const carry_hotspot *from) {
    to->calls += from->calls;
    to->total += from->total;
    to->wall += from->wall;
    to->self += from->self;
    to->outer += from->outer;
    to->flops += from->flops;
    to->tokens += from->tokens;
}

static void add_track(carry_hotspots *h, const carry_track *track) {
    for (int i = 0; i < CARRY_SPAN_SITES; i++) {
        const carry_span_sum *sum = &track->sum[i];
        carry_hotspot *spot = sum->site != NULL ? find(h, sum->site) : NULL;
        if (spot != NULL) {
            add(spot, &(carry_hotspot){.calls = sum->calls,
                                       .total = sum->total,
                                       .wall = sum->wall,
                                       .self = sum->self,
                                       .outer = sum->category,
                                       .flops = sum->flops,
                                       .tokens = sum->tokens});
        }
    }
    h->ranks = track->rank + 1 > h->ranks ? track->rank + 1 : h->ranks;
    h->threads++;
    h->events += track->count;
    h->dropped += track->dropped;
}

static void widen(const carry_track *track, double *first, double *last) {
    for (int64_t i = 0; i < track->count; i++) {
        *first = fmin(*first, track->event[i].start);
        *last = fmax(*last, fmax(track->event[i].start, track->event[i].end));
    }
}

void carry_hotspots_finish(carry_hotspots *hotspots) {
    hotspots->self = 0.0;
    for (int i = 0; i < hotspots->count; i++) {
        carry_hotspot *spot = &hotspots->spot[i];
        spot->total = fmax(spot->total, spot->self);
        hotspots->self += spot->self;
    }
    if (hotspots->count > 0) {
        qsort(hotspots->spot, (size_t)hotspots->count, sizeof *hotspots->spot, by_self);
    }
    if (hotspots->kernels > 0) {
        qsort(hotspots->kernel, (size_t)hotspots->kernels, sizeof *hotspots->kernel, by_self);
    }
}

carry_status carry_hotspots_of(carry_ctx *ctx, carry_hotspots *hotspots, const carry_recorder *recorder) {
    double first = INFINITY;
    double last = 0.0;
    const carry_track *track;
    *hotspots = (carry_hotspots){.spot = calloc(CARRY_HOTSPOTS, sizeof *hotspots->spot)};
    if (hotspots->spot == NULL) {
        return carry_fail(ctx, CARRY_EMEMORY, "out of memory: hotspots");
    }
    for (int i = 0; (track = carry_recorder_track(recorder, i)) != NULL; i++) {
        add_track(hotspots, track);
        widen(track, &first, &last);
    }
    hotspots->wall = last > first ? last - first : 0.0;
    carry_hotspots_finish(hotspots);
    return CARRY_OK;
}

const char *carry_activity_category(carry_activity_kind kind) {
    static const char *const names[] = {
        [CARRY_ACTIVITY_KERNEL] = "kernel", [CARRY_ACTIVITY_COPY] = "copy", [CARRY_ACTIVITY_FILL] = "fill"};
    return names[kind];
}

/* Lists the operators that launched a kernel, most launches first, and where the first one was entered. */
static void name_operators(carry_hotspot *spot, const carry_activity_sum *sum) {
    char *text = spot->operators;
    const size_t size = sizeof spot->operators;
    int64_t below = INT64_MAX;
    size_t used = 0;
    text[0] = '\0';
    for (int n = 0; n < CARRY_ACTIVITY_OPERATORS && used < size; n++) {
        int best = -1;
        for (int i = 0; i < CARRY_ACTIVITY_OPERATORS && sum->operator_name[i] != NULL; i++) {
            const int64_t rank = sum->launches[i] * CARRY_ACTIVITY_OPERATORS - i; /* makes all ranks distinct */
            const bool is_next = rank < below;
            if (is_next && (best < 0 || rank > sum->launches[best] * CARRY_ACTIVITY_OPERATORS - best)) {
                best = i;
            }
        }
        if (best < 0) {
            return;
        }
        below = sum->launches[best] * CARRY_ACTIVITY_OPERATORS - best;
        used += (size_t)snprintf(text + used, size - used, "%s%s", n > 0 ? ", " : "", sum->operator_name[best]);
        if (n == 0) {
            const char *place = sum->operator_place[best];
            const char *colon = strrchr(place, ':');
            (void)snprintf(spot->file, sizeof spot->file, "%.*s", (int)(colon - place), place);
            spot->line = (int)strtol(colon + 1, NULL, 10);
        }
    }
}

/* Kernels with equal displayed names are merged into one entry. */
static void add_kernel(carry_hotspots *h, const carry_activity_sum *sum) {
    carry_hotspot made = {.file = "gpu", .calls = sum->calls, .total = sum->seconds, .self = sum->seconds};
    made.wall = made.outer = sum->seconds;
    (void)snprintf(made.category, sizeof made.category, "%s", carry_activity_category(sum->kind));
    (void)snprintf(made.name, sizeof made.name, "%.63s", sum->name);
    name_operators(&made, sum);
    for (int i = 0; i < h->kernels; i++) {
        if (strcmp(h->kernel[i].category, made.category) == 0 && strcmp(h->kernel[i].name, made.name) == 0) {
            add(&h->kernel[i], &made);
            return;
        }
    }
    h->kernel[h->kernels++] = made;
}

carry_status carry_hotspots_add_gpu(carry_ctx *ctx, carry_hotspots *hotspots, const carry_activity_log *log) {
    hotspots->kernel = calloc(CARRY_ACTIVITY_NAMES + 1, sizeof *hotspots->kernel);
    if (hotspots->kernel == NULL) {
        return carry_fail(ctx, CARRY_EMEMORY, "out of memory: hotspots");
    }
    for (int i = 0; i <= CARRY_ACTIVITY_NAMES; i++) {
        if (log->sum[i].calls > 0) {
            add_kernel(hotspots, &log->sum[i]);
        }
    }
    hotspots->gpus = log->gpus;
    hotspots->gpu_busy = log->busy;
    hotspots->gpu_span = log->dropped == 0 ? log->last - log->first : 0.0;
    hotspots->gpu_waits = log->waits;
    hotspots->gpu_events = log->count;
    hotspots->gpu_dropped = log->dropped;
    hotspots->gpu_lost = log->lost;
    carry_hotspots_finish(hotspots);
    return CARRY_OK;
}

void carry_hotspots_free(carry_hotspots *hotspots) {
    free(hotspots->spot);
    free(hotspots->kernel);
    *hotspots = (carry_hotspots){0};
}

carry_status carry_hotspots_categories(carry_ctx *ctx, carry_hotspot **spots, int *count,
                                       const carry_hotspots *hotspots) {
    *count = 0;
    *spots = calloc((size_t)hotspots->count + 1, sizeof **spots);
    if (*spots == NULL) {
        return carry_fail(ctx, CARRY_EMEMORY, "out of memory: hotspots");
    }
    for (int i = 0; i < hotspots->count; i++) {
        const carry_hotspot *from = &hotspots->spot[i];
        int at = 0;
        while (at < *count && strcmp((*spots)[at].category, from->category) != 0) {
            at++;
        }
        carry_hotspot *to = &(*spots)[at];
        if (at == *count) {
            (void)snprintf(to->category, sizeof to->category, "%s", from->category);
            (*count)++;
        }
        add(to, from);
        to->total = fmax(to->outer, to->self);
    }
    qsort(*spots, (size_t)*count, sizeof **spots, by_self);
    return CARRY_OK;
}

double carry_hotspot_tokens_rate(const carry_hotspots *hotspots, const carry_hotspot *spot) {
    bool has = spot->tokens > 0.0 && spot->wall > 0.0;
    return has ? spot->tokens * (double)hotspots->ranks / spot->wall : NAN;
}

double carry_hotspot_mfu(const carry_hotspots *hotspots, const carry_hotspot *spot) {
    bool has = spot->tokens > 0.0 && spot->wall > 0.0 && hotspots->gemm_gflops > 0.0;
    return has ? 1e-9 * spot->flops * (double)hotspots->ranks / spot->wall / hotspots->gemm_gflops : NAN;
}

double carry_hotspot_gpu_share(const carry_hotspots *hotspots, const carry_hotspot *kernel) {
    return hotspots->gpu_busy > 0.0 ? kernel->total / hotspots->gpu_busy : 0.0;
}

static carry_hotspot_change *find_change(carry_hotspot_change *changes, int *count, const carry_hotspot *spot) {
    for (int i = 0; i < *count; i++) {
        const carry_hotspot *known = changes[i].a.file[0] != '\0' ? &changes[i].a : &changes[i].b;
        if (strcmp(known->category, spot->category) == 0 && strcmp(known->name, spot->name) == 0 &&
            strcmp(known->file, spot->file) == 0) {
            return &changes[i];
        }
    }
    return &changes[(*count)++];
}

static void put(carry_hotspot *side, const carry_hotspot *spot) {
    if (side->file[0] == '\0') {
        *side = *spot;
    } else { /* two places with the same name in one file are added up */
        add(side, spot);
    }
}

carry_status carry_hotspots_compare(carry_ctx *ctx, carry_hotspot_change **changes, int *count, const carry_hotspots *a,
                                    const carry_hotspots *b) {
    *count = 0;
    *changes = calloc((size_t)a->count + (size_t)b->count + 1, sizeof **changes);
    if (*changes == NULL) {
        return carry_fail(ctx, CARRY_EMEMORY, "out of memory: hotspots");
    }
    for (int i = 0; i < a->count; i++) {
        put(&find_change(*changes, count, &a->spot[i])->a, &a->spot[i]);
    }
    for (int i = 0; i < b->count; i++) {
        put(&find_change(*changes, count, &b->spot[i])->b, &b->spot[i]);
    }
    for (int i = 0; i < *count; i++) {
        (*changes)[i].change = (*changes)[i].b.self - (*changes)[i].a.self;
    }
    qsort(*changes, (size_t)*count, sizeof **changes, by_change);
    return CARRY_OK;
}

carry_status carry_hotspots_compare_gpu(carry_ctx *ctx, carry_hotspot_change **changes, int *count,
                                        const carry_hotspots *a, const carry_hotspots *b) {
    return carry_hotspots_compare(ctx, changes, count, &(carry_hotspots){.count = a->kernels, .spot = a->kernel},
                                  &(carry_hotspots){.count = b->kernels, .spot = b->kernel});
}
