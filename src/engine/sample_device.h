/* Sampling on a GPU: one token for each row of a matrix of logits on the device.

   The rules are those of sample.h. Probabilities are rounded down to multiples of 2^-40 of the likeliest token's and
   stored as integers, so that sums have the same bits in any order. A token whose probability is less than 2^-40 of the
   likeliest token's is never sampled. */
#ifndef CARRY_ENGINE_SAMPLE_DEVICE_H
#define CARRY_ENGINE_SAMPLE_DEVICE_H

#include "carry/device.h"
#include "carry/tensor.h"
#include "engine/runner.h"

/* One row of logits. Offsets count words of 4 bytes from the start of the call's `words`; -1: absent. */
typedef struct carry_sample_row {
    double unit; /* in [0, 1): the random number */
    double top_p, min_p, penalty;
    int64_t top_k;    /* 0: all */
    float rate;       /* 1 / temperature; 0: take the largest */
    int32_t row;      /* row in the logits */
    int32_t slot;     /* its token goes to last[slot] */
    int32_t result;   /* its result goes to results[result] */
    int32_t logprobs; /* as in carry_run */
    int32_t seen, seen_count, allowed, bias;
} carry_sample_row;

typedef struct carry_sample_call {
    const void *logits; /* [rows, stride] */
    bool is_bf16;       /* else f32 */
    bool is_greedy;     /* only the largest logit of every row is wanted, without changes or log probabilities */
    int64_t stride;
    int rows, vocabulary;
    const carry_sample_row *row; /* on the device, like the next three */
    const uint32_t *words;
    int32_t *last;             /* may be NULL */
    carry_run_result *results; /* in pinned memory of the host */
} carry_sample_call;

#ifdef __cplusplus
extern "C" {
#endif

typedef struct carry_sample_kernel {
    const char *backend;
    bool (*works)(int ordinal, int64_t vocabulary);
    /* Sets ids[i] = last[slots[i]] if ids[i] is negative. */
    carry_status (*fill_ids)(carry_ctx *ctx, int ordinal, carry_stream *stream, int64_t *ids, const int32_t *slots,
                             const int32_t *last, int64_t count);
    carry_status (*launch)(carry_ctx *ctx, int ordinal, carry_stream *stream, const carry_sample_call *call);
} carry_sample_kernel;

#ifdef __cplusplus
}
#endif

/* Samples the tokens of steps on one device. At most CARRY_SAMPLE_STEPS calls may have unread results. */
#define CARRY_SAMPLE_STEPS 4
typedef struct carry_device_sampler carry_device_sampler;

/* For steps of up to `sequences` sequences. *made is NULL if the device does not support sampling. */
carry_status carry_device_sampler_open(carry_device_sampler **made, carry_ctx *ctx, int device, int64_t sequences,
                                       int64_t vocabulary);
void carry_device_sampler_close(carry_device_sampler *sampler);
/* Row row_of[i] of logits, f32 or bf16, belongs to run i, if it wants a token. Tokens are also stored in last[slot], on
   the device. The work is enqueued in the context's stream. */
carry_status carry_device_sampler_run(carry_device_sampler *sampler, carry_tensor logits, const int64_t *row_of,
                                      const carry_run *runs, int64_t count, int32_t *last);
/* Enqueues: negative ids are replaced by the last tokens of their slots. All arrays are on the device. */
carry_status carry_device_sampler_fill_ids(carry_device_sampler *sampler, int64_t *ids, const int32_t *slots,
                                           const int32_t *last, int64_t count);
/* Gets the results of the oldest call whose results have not been read, one for each of its runs. Waits. */
carry_status carry_device_sampler_results(carry_device_sampler *sampler, carry_run_result *results, int64_t count);

#endif
