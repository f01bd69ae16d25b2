/* A token from logits.

       p[i] = exp(logit[i] / temperature) / sum;  then only the top_k largest;  of those only the fewest, largest first,
       that together have at least top_p of what is left;  of those only p[i] >= min_p max p;  one of these at random

   Temperature 0 takes the largest. Of equal logits the one with the smaller number comes first, everywhere. Which is
   taken is a function of the logits, the options and (stream, at) alone, so a text does not depend on what else is
   generated beside it. A call takes time that grows with the vocabulary and nothing else: thresholds are found digit by
   digit in the bits of the logits, never by sorting. */
#ifndef CARRY_ENGINE_SAMPLE_H
#define CARRY_ENGINE_SAMPLE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "carry/context.h"

typedef struct carry_sampling {
    double temperature; /* 0: the largest */
    int64_t top_k;      /* 0: all */
    double top_p;       /* above 0, to 1: all */
    double min_p;       /* 0: all, to 1: the largest */
    double repetition;  /* penalty of tokens that were seen, as carry_sample_penalize has it; 0 and 1: none */
    uint64_t seed;
} carry_sampling;

/* CARRY_EARGUMENT names the option and what it may be. */
carry_status carry_sampling_check(carry_ctx *ctx, const carry_sampling *sampling);

typedef struct carry_sampler carry_sampler; /* its workspace is for one call at a time */
carry_status carry_sampler_new(carry_ctx *ctx, carry_sampler **made, int64_t vocabulary,
                               const carry_sampling *sampling);
void carry_sampler_free(carry_sampler *sampler);
void carry_sampler_set(carry_sampler *sampler, const carry_sampling *sampling); /* other options, checked before */

/* Token number `at` of the text `stream`. Minus infinity is a token that cannot be; NaN, plus infinity and logits that
   leave no token are refused with CARRY_ERANGE. Allocates nothing. */
carry_status carry_sample(carry_ctx *ctx, carry_sampler *sampler, const float *logits, uint64_t stream, uint64_t at,
                          int64_t *token);

/* The same without a message: false where it would fail. For calls on several threads, each with its sampler. */
bool carry_sample_quietly(carry_sampler *sampler, const float *logits, uint64_t stream, uint64_t at, int64_t *token);

/* Makes tokens that were seen less likely, as Hugging Face's repetition_penalty: logits above 0 are divided by the
   penalty, others multiplied by it. seen: each token once. */
void carry_sample_penalize(float *logits, const uint32_t *seen, size_t count, double penalty);

/* The random number of a token, in [0, 1), of 53 bits. */
double carry_sample_unit(uint64_t seed, uint64_t stream, uint64_t at);

#endif
