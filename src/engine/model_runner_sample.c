/* Sampling on the host: all threads, each taking one run at a time. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/context.h"
#include "core/threads.h"
#include "engine/model_runner_inside.h"

#define PIECE 4096 /* number of logits whose exponentials are added in f32 */

typedef struct job {
    carry_model_runner *r;
    const carry_run *runs;
    carry_run_result *results;
} job;

void carry_model_runner_close_samplers(carry_model_runner *r) {
    for (int i = 0; i < r->workers; i++) {
        if (r->sampler != NULL) {
            carry_sampler_free(r->sampler[i]);
        }
        if (r->altered != NULL) {
            free(r->altered[i]);
        }
    }
    free(r->sampler);
    free(r->altered);
}

carry_status carry_model_runner_open_samplers(carry_model_runner *r) {
    const carry_sampling any = {.top_p = 1.0};
    const int64_t vocabulary = r->head.sizes.vocabulary;
    carry_status status = carry_kernels_of(r->head.ctx, &r->kernels);
    r->workers = carry_ctx_threads(r->head.ctx);
    r->sampler = calloc((size_t)r->workers, sizeof(carry_sampler *));
    r->altered = calloc((size_t)r->workers, sizeof(float *));
    for (int i = 0; status == CARRY_OK && r->sampler != NULL && r->altered != NULL && i < r->workers; i++) {
        r->altered[i] = malloc((size_t)vocabulary * sizeof **r->altered);
        status =
            r->altered[i] != NULL ? carry_sampler_new(r->head.ctx, &r->sampler[i], vocabulary, &any) : CARRY_EMEMORY;
    }
    return status == CARRY_OK && r->sampler != NULL && r->altered != NULL
               ? CARRY_OK
               : carry_fail(r->head.ctx, CARRY_EMEMORY, "out of memory: samplers of %d threads", r->workers);
}

/* log sum exp of logits without NaN or infinity. */
static double log_sum(const carry_kernels *kernels, const float *logits, int64_t count) {
    float most;
    double sum = 0.0;
    (void)carry_sample_largest(logits, count, &most);
    for (int64_t i = 0; i < count; i += PIECE) {
        sum += (double)kernels->rows->sum_exp(NULL, logits + i, most, count - i < PIECE ? count - i : PIECE);
    }
    return (double)most + (sum > 0.0 ? log(sum) : 0.0); /* the largest has 1 */
}

/* Finds the `count` likeliest tokens; among equal ones the smaller id comes first. */
static void find_top(const float *logits, int64_t vocabulary, double sum, int count, carry_run_result *result) {
    int found = 0;
    for (int64_t i = 0; i < vocabulary; i++) {
        if (found == count && !(logits[i] > logits[result->top[count - 1]])) {
            continue;
        }
        int at = found < count ? found++ : count - 1;
        for (; at > 0 && logits[i] > logits[result->top[at - 1]]; at--) {
            result->top[at] = result->top[at - 1];
        }
        result->top[at] = (int32_t)i;
    }
    for (int i = 0; i < found; i++) {
        result->top_logprob[i] = (float)((double)logits[result->top[i]] - sum);
    }
}

/* Applies the run's penalty, bias and mask to logits. */
static const float *alter(const carry_run *run, const float *logits, int64_t vocabulary, float *to) {
    const double penalty = run->sampling->repetition;
    const bool penalizes = penalty != 0.0 && penalty != 1.0 && run->seen_count > 0;
    if (!penalizes && run->bias == NULL && run->allowed == NULL) {
        return logits;
    }
    memcpy(to, logits, (size_t)vocabulary * sizeof *to);
    if (penalizes) {
        carry_sample_penalize(to, run->seen, (size_t)run->seen_count, penalty);
    }
    for (int64_t i = 0; run->bias != NULL && i < vocabulary; i++) {
        to[i] += run->bias[i];
    }
    for (int64_t i = 0; run->allowed != NULL && i < vocabulary; i++) {
        to[i] = (run->allowed[i / 32] >> (i % 32) & 1u) != 0 ? to[i] : -INFINITY;
    }
    return to;
}

static void sample_one(const job *j, int64_t index, int worker) {
    carry_model_runner *r = j->r;
    const carry_run *run = &j->runs[index];
    carry_run_result *result = &j->results[index];
    const int64_t vocabulary = r->head.sizes.vocabulary;
    const float *logits = r->host_logits + r->row_of[index] * vocabulary;
    int64_t token = -1;
    float largest;
    if (run->allowed != NULL && !carry_sample_largest(logits, vocabulary, &largest)) { /* the mask would hide a NaN */
        result->is_failed = true;
        return;
    }
    carry_sampler_set(r->sampler[worker], run->sampling);
    const float *from = alter(run, logits, vocabulary, r->altered[worker]);
    result->is_failed = !carry_sample_quietly(r->sampler[worker], from, run->stream, run->at, &token);
    if (!result->is_failed && run->logprobs >= 0) {
        const double sum = log_sum(r->kernels, logits, vocabulary);
        const int most = run->logprobs < CARRY_RUN_LOGPROBS ? run->logprobs : CARRY_RUN_LOGPROBS;
        result->logprob = (float)((double)logits[token] - sum);
        if (most > 0) {
            find_top(logits, vocabulary, sum, most, result);
        }
    }
    result->token = result->is_failed ? -1 : (int32_t)token;
}

static void sample_range(void *argument, int64_t begin, int64_t end, int worker) {
    const job *j = argument;
    for (int64_t i = begin; i < end; i++) {
        if (j->r->row_of[i] >= 0) {
            sample_one(j, i, worker);
        }
    }
}

void carry_model_runner_sample(carry_model_runner *r, const carry_run *runs, int64_t count, carry_run_result *results) {
    for (int64_t i = 0; i < count; i++) {
        results[i] = (carry_run_result){.token = -1};
        for (int j = 0; j < CARRY_RUN_LOGPROBS; j++) {
            results[i].top[j] = -1;
        }
    }
    job j = {.r = r, .runs = runs, .results = results};
    carry_parallel(r->head.ctx, count, 1, sample_range, &j);
    for (int64_t i = 0; i < count; i++) {
        if (r->row_of[i] >= 0) {
            r->last[runs[i].slot] = results[i].token;
        }
    }
}
