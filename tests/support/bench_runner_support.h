/* For programs that measure a runner: a model by name, runs, and steps whose results must not fail. */
#ifndef CARRY_TESTS_BENCH_RUNNER_SUPPORT_H
#define CARRY_TESTS_BENCH_RUNNER_SUPPORT_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "carry/carry.h"
#include "carry/device.h"
#include "core/clock.h"
#include "core/tensor.h"
#include "engine/model_random.h"
#include "engine/model_runner.h"
#include "ops/sampler.h"

#define MOST 256

static inline void check(carry_ctx *ctx, carry_status status) {
    if (status != CARRY_OK) {
        (void)fprintf(stderr, "bench: %s\n", carry_ctx_error(ctx));
        exit(1);
    }
}

/* A folder with a checkpoint, or a shape or config.json with random weights; SHAPE:FORMAT: quantised ones. */
static inline carry_lm *make(carry_ctx *ctx, int device, carry_dtype dtype, const char *folder) {
    carry_lm *lm;
    struct stat about;
    const bool is_folder = folder != NULL && stat(folder, &about) == 0 && S_ISDIR(about.st_mode);
    if (is_folder) {
        check(ctx, carry_lm_open(ctx, &lm, folder, device));
        return lm;
    }
    char shape[64];
    const char *format = folder != NULL ? strchr(folder, ':') : NULL;
    if (format != NULL) {
        (void)snprintf(shape, sizeof shape, "%.*s", (int)(format - folder), folder);
        check(ctx, carry_model_random_quantised(ctx, &lm, shape, device, dtype, format + 1, 1));
        return lm;
    }
    check(ctx, carry_model_random(ctx, &lm, folder != NULL ? folder : "qwen3.5-0.8b", device, dtype, 1));
    return lm;
}

static inline carry_run run_of(int32_t slot, const int32_t *pages, int64_t length, const int32_t *ids, int64_t count) {
    static const carry_sampling greedy = {.top_p = 1.0};
    return (carry_run){.slot = slot,
                       .pages = pages,
                       .length = length,
                       .ids = ids,
                       .count = count,
                       .wants_token = true,
                       .sampling = &greedy,
                       .logprobs = -1};
}

static inline void read_results(carry_runner *r, int64_t count) {
    static carry_run_result results[MOST];
    check(r->ctx, r->ops->results(r, results, count));
    for (int64_t i = 0; i < count; i++) {
        if (results[i].is_failed) {
            (void)fprintf(stderr, "bench: run %d failed\n", (int)i);
            exit(1);
        }
    }
}

static inline void step(carry_runner *r, const carry_run *runs, int64_t count) {
    check(r->ctx, r->ops->step(r, runs, count));
    read_results(r, count);
}

/* Seconds of `steps` steps of single tokens, each enqueued before the results of the previous one are read. */
static inline double time_steps(carry_runner *r, carry_run *runs, int64_t sequences, int64_t steps) {
    double begin = 0.0;
    for (int64_t s = 0; s < steps + 4; s++) {
        if (s == 4) {
            read_results(r, sequences);
            begin = carry_seconds();
        }
        check(r->ctx, r->ops->step(r, runs, sequences));
        if (s > 0 && s != 4) {
            read_results(r, sequences); /* of the step before */
        }
        for (int64_t i = 0; i < sequences; i++) {
            runs[i].length++;
        }
    }
    read_results(r, sequences);
    return carry_seconds() - begin;
}

#endif
