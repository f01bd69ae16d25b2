/* Samples a token from logits.

       p[i] = exp(logit[i] / temperature) / (sum over j of exp(logit[j] / temperature))
       top_k: only the top_k largest p are kept
       top_p: of the kept p only the fewest, largest first, whose sum is at least top_p times the sum of all kept p
       min_p: of these only p[i] >= min_p max p
       then a token is drawn with probabilities in proportion to the p that are left

   Temperature 0 takes the largest. Among equal logits the token with the smaller id always comes first. The token
   depends only on the logits, the options and (stream, at), so a text does not depend on other texts generated at the
   same time. The time of a call depends only on the size of the vocabulary: thresholds are found digit by digit in the
   bits of the logits, without sorting. */
#ifndef CARRY_ENGINE_SAMPLE_H
#define CARRY_ENGINE_SAMPLE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "carry/context.h"

typedef struct carry_sampling {
    double temperature; /* 0: take the largest */
    int64_t top_k;      /* 0: all */
    double top_p;       /* above 0; 1: all */
    double min_p;       /* 0: all, to 1: the largest */
    double repetition;  /* penalty for tokens that were seen (carry_sample_penalize); 0 and 1: none */
    uint64_t seed;
} carry_sampling;

/* CARRY_EARGUMENT names the option and the accepted values. */
carry_status carry_sampling_check(carry_ctx *ctx, const carry_sampling *sampling);

typedef struct carry_sampler carry_sampler; /* has workspace for one call at a time */
carry_status carry_sampler_new(carry_ctx *ctx, carry_sampler **made, int64_t vocabulary,
                               const carry_sampling *sampling);
void carry_sampler_free(carry_sampler *sampler);
void carry_sampler_set(carry_sampler *sampler, const carry_sampling *sampling); /* sets other options, which must have
                                                                                   been checked */

/* Samples token number `at` of the text `stream`. A logit of minus infinity excludes its token. NaN, plus infinity, and
   logits that exclude all tokens fail with CARRY_ERANGE. Allocates nothing. */
carry_status carry_sample(carry_ctx *ctx, carry_sampler *sampler, const float *logits, uint64_t stream, uint64_t at,
                          int64_t *token);

/* The same without an error message: returns false where carry_sample would fail. For calls on several threads, each
   with its own sampler. */
bool carry_sample_quietly(carry_sampler *sampler, const float *logits, uint64_t stream, uint64_t at, int64_t *token);

/* Finds the value of the largest logit. Returns false if one is NaN or plus infinity. */
bool carry_sample_largest(const float *logits, int64_t vocabulary, float *largest);

/* Makes seen tokens less likely, like Hugging Face's repetition_penalty: logits above 0 are divided by the penalty,
   others multiplied by it. seen: each token once. */
void carry_sample_penalize(float *logits, const uint32_t *seen, size_t count, double penalty);

/* The random number of a token, in [0, 1), of 53 bits. */
double carry_sample_unit(uint64_t seed, uint64_t stream, uint64_t at);

#endif
