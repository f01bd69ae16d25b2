/* Sampling: computes weights, finds up to two thresholds, then walks over the tokens once. */
#include "engine/sample.h"

#include <inttypes.h>
#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "core/error.h"
#include "core/memory.h"
#include "core/rng.h"

#define DIGITS 3 /* digits of a key: 11, 11 and 10 bits */
#define BUCKETS 2048

static const int digit_shift[DIGITS] = {21, 10, 0};
static const uint32_t digit_mask[DIGITS] = {2047, 2047, 1023};

struct carry_sampler {
    carry_sampling sampling;
    int64_t vocabulary;
    uint32_t *key; /* grows with the logit */
    float *weight; /* exp((logit - largest) / temperature); 0: the token is excluded */
    int64_t count[BUCKETS];
    double mass[BUCKETS];
};

/* The tokens that are kept: those with larger keys, and the first `equal` of those with this key. */
typedef struct threshold {
    uint32_t key;
    int64_t equal;
} threshold;

carry_status carry_sampling_check(carry_ctx *ctx, const carry_sampling *sampling) {
    if (!(sampling->temperature >= 0.0) || isinf(sampling->temperature)) {
        return carry_fail(ctx, CARRY_EARGUMENT, "the temperature is %g: 0 (the likeliest token) or more is needed",
                          sampling->temperature);
    }
    if (!(sampling->top_p > 0.0) || sampling->top_p > 1.0) {
        return carry_fail(ctx, CARRY_EARGUMENT, "top-p is %g: a number above 0, up to 1 (all tokens), is needed",
                          sampling->top_p);
    }
    if (!(sampling->min_p >= 0.0) || sampling->min_p > 1.0) {
        return carry_fail(ctx, CARRY_EARGUMENT, "min-p is %g: a number from 0 (all tokens) to 1 is needed",
                          sampling->min_p);
    }
    if (!(sampling->repetition >= 0.0) || isinf(sampling->repetition)) {
        return carry_fail(ctx, CARRY_EARGUMENT, "the repetition penalty is %g: a number above 0 is needed (1: none)",
                          sampling->repetition);
    }
    if (sampling->top_k < 0) {
        return carry_fail(ctx, CARRY_EARGUMENT, "top-k is %" PRId64 ": 0 (all tokens) or more is needed",
                          sampling->top_k);
    }
    return CARRY_OK;
}

carry_status carry_sampler_new(carry_ctx *ctx, carry_sampler **made, int64_t vocabulary,
                               const carry_sampling *sampling) {
    *made = NULL;
    CARRY_TRY(carry_sampling_check(ctx, sampling));
    size_t bytes;
    if (vocabulary < 1 || !carry_size_product(&bytes, &vocabulary, 1, sizeof(float))) {
        return carry_fail(ctx, CARRY_ESIZE, "a vocabulary of %" PRId64 " tokens: expected 1 or more", vocabulary);
    }
    carry_sampler *s = calloc(1, sizeof *s);
    if (s != NULL) {
        s->sampling = *sampling;
        s->vocabulary = vocabulary;
        s->key = malloc(bytes);
        s->weight = malloc(bytes);
    }
    if (s == NULL || s->key == NULL || s->weight == NULL) {
        carry_sampler_free(s);
        return carry_fail(ctx, CARRY_EMEMORY, "out of memory: taking one of %" PRId64 " tokens", vocabulary);
    }
    *made = s;
    return CARRY_OK;
}

void carry_sampler_free(carry_sampler *s) {
    if (s != NULL) {
        free(s->key);
        free(s->weight);
        free(s);
    }
}

#define LANES 16

/* Independent lanes let compilers use vectors: for a vocabulary of 248,320 this takes a tenth of the time of
   sequential comparisons. */
bool carry_sample_largest(const float *logits, int64_t vocabulary, float *largest) {
    float most[LANES];
    int32_t bad[LANES] = {0};
    for (int j = 0; j < LANES; j++) {
        most[j] = -INFINITY;
    }
    int64_t i = 0;
    for (; i + LANES <= vocabulary; i += LANES) {
        for (int j = 0; j < LANES; j++) {
            const float x = logits[i + j];
            most[j] = x > most[j] ? x : most[j];
            bad[j] |= !(x < INFINITY);
        }
    }
    for (; i < vocabulary; i++) {
        most[0] = logits[i] > most[0] ? logits[i] : most[0];
        bad[0] |= !(logits[i] < INFINITY);
    }
    int32_t any = 0;
    *largest = -INFINITY;
    for (int j = 0; j < LANES; j++) {
        *largest = most[j] > *largest ? most[j] : *largest;
        any |= bad[j];
    }
    return any == 0;
}

/* Finds the largest logit; the first of equal ones. */
static carry_status find_largest(carry_ctx *ctx, const float *logits, int64_t vocabulary, int64_t *largest) {
    float most;
    int64_t at = 0;
    *largest = 0;
    if (!carry_sample_largest(logits, vocabulary, &most)) {
        while (logits[at] < INFINITY) {
            at++;
        }
        return carry_fail(ctx, CARRY_ERANGE, "the logit of token %" PRId64 " is %f: the model's values overflow", at,
                          (double)logits[at]);
    }
    while (logits[at] != most) {
        at++;
    }
    *largest = at;
    if (most == -INFINITY) {
        return carry_fail(ctx, CARRY_ERANGE, "every one of %" PRId64 " logits is minus infinity", vocabulary);
    }
    return CARRY_OK;
}

/* Converts a number to bits with the same order. */
static uint32_t key_of(float logit) {
    uint32_t bits;
    logit += 0.0f; /* -0 and 0 are equal */
    memcpy(&bits, &logit, sizeof bits);
    return bits >> 31 != 0 ? ~bits : bits | 0x80000000u;
}

static double weigh(carry_sampler *s, const float *logits, float largest) {
    double rate = fmin(1.0 / s->sampling.temperature, 1e300); /* finite, so that its product with the difference of the
                                                                 largest logit is 0 */
    double sum = 0.0;
    for (int64_t i = 0; i < s->vocabulary; i++) {
        double exponent = (double)(logits[i] - largest) * rate;
        s->key[i] = key_of(logits[i]);
        s->weight[i] = exponent > -104.0 ? expf((float)exponent) : 0.0f; /* the smallest float is e^-103.3 */
        sum += (double)s->weight[i];
    }
    return sum;
}

/* Counts the tokens whose key starts with prefix, by their next digit. Tokens with weight 0 are excluded. */
static void fill_buckets(carry_sampler *s, int digit, uint32_t prefix) {
    uint32_t above = digit == 0 ? 0 : ~((digit_mask[digit] << digit_shift[digit]) | ((1u << digit_shift[digit]) - 1));
    memset(s->count, 0, sizeof s->count);
    memset(s->mass, 0, sizeof s->mass);
    for (int64_t i = 0; i < s->vocabulary; i++) {
        if ((s->key[i] & above) == prefix && s->weight[i] > 0.0f) {
            uint32_t bucket = s->key[i] >> digit_shift[digit] & digit_mask[digit];
            s->count[bucket]++;
            s->mass[bucket] += (double)s->weight[i];
        }
    }
}

/* Takes tokens in the order of decreasing logits until there are `tokens` of them or their weights sum to `mass`;
   returns the key of the last one, and how many tokens with this key are kept. It stops at the last token in any case:
   sums in another order may be smaller than the mass by a rounding error. */
static threshold find_threshold(carry_sampler *s, int64_t tokens, double mass) {
    uint32_t prefix = 0;
    int64_t equal = 0;
    for (int digit = 0; digit < DIGITS; digit++) {
        fill_buckets(s, digit, prefix);
        int64_t last = 0; /* the last bucket that has a token */
        while (s->count[last] == 0) {
            last++;
        }
        int64_t bucket = digit_mask[digit];
        while (bucket > last && (s->count[bucket] < tokens && s->mass[bucket] < mass)) {
            tokens -= s->count[bucket];
            mass -= s->mass[bucket];
            bucket--;
        }
        prefix |= (uint32_t)bucket << digit_shift[digit];
        equal = s->count[bucket];
        if (digit == DIGITS - 1 && tokens < equal) {
            equal = tokens;
        }
        if (digit == DIGITS - 1 && mass < s->mass[bucket]) { /* equal keys have equal weights */
            double each = s->mass[bucket] / (double)s->count[bucket];
            int64_t wanted = (int64_t)ceil(mass / each);
            equal = wanted < 1 ? 1 : wanted < equal ? wanted : equal;
        }
    }
    return (threshold){.key = prefix, .equal = equal};
}

/* Sets the weights below the threshold to zero and returns the sum of the others. */
static double keep_above(carry_sampler *s, threshold at) {
    double sum = 0.0;
    int64_t equal = 0;
    for (int64_t i = 0; i < s->vocabulary; i++) {
        bool kept = s->key[i] > at.key || (s->key[i] == at.key && equal++ < at.equal);
        s->weight[i] = kept ? s->weight[i] : 0.0f;
        sum += (double)s->weight[i];
    }
    return sum;
}

/* Sets weights below `least` to zero; the largest weight is 1. Returns the sum of the others. */
static double keep_likely(carry_sampler *s, double least) {
    double sum = 0.0;
    for (int64_t i = 0; i < s->vocabulary; i++) {
        s->weight[i] = (double)s->weight[i] >= least ? s->weight[i] : 0.0f;
        sum += (double)s->weight[i];
    }
    return sum;
}

void carry_sample_penalize(float *logits, const uint32_t *seen, size_t count, double penalty) {
    for (size_t i = 0; i < count; i++) {
        float *logit = &logits[seen[i]];
        *logit = (float)(*logit > 0.0f ? (double)*logit / penalty : (double)*logit * penalty);
    }
}

double carry_sample_unit(uint64_t seed, uint64_t stream, uint64_t at) {
    carry_words words = carry_philox(seed, stream, at);
    uint64_t bits = (uint64_t)words.word[0] << 32 | words.word[1];
    return (double)(bits >> 11) * 0x1p-53;
}

/* Samples a token; `largest` is the one with the largest logit. */
static int64_t take(carry_sampler *s, const float *logits, int64_t largest, uint64_t stream, uint64_t at) {
    int64_t token = largest;
    if (s->sampling.temperature == 0.0 || s->sampling.top_k == 1) {
        return token;
    }
    double sum = weigh(s, logits, logits[largest]);
    if (s->sampling.top_k > 0 && s->sampling.top_k < s->vocabulary) {
        sum = keep_above(s, find_threshold(s, s->sampling.top_k, INFINITY));
    }
    if (s->sampling.top_p < 1.0) {
        sum = keep_above(s, find_threshold(s, INT64_MAX, s->sampling.top_p * sum));
    }
    if (s->sampling.min_p > 0.0) {
        sum = keep_likely(s, s->sampling.min_p);
    }
    double left = carry_sample_unit(s->sampling.seed, stream, at) * sum;
    for (int64_t i = 0; i < s->vocabulary; i++) {
        if (s->weight[i] > 0.0f) {
            token = i; /* the last one, if rounding leaves a remainder */
            left -= (double)s->weight[i];
            if (left < 0.0) {
                break;
            }
        }
    }
    return token;
}

carry_status carry_sample(carry_ctx *ctx, carry_sampler *s, const float *logits, uint64_t stream, uint64_t at,
                          int64_t *token) {
    int64_t largest;
    CARRY_TRY(find_largest(ctx, logits, s->vocabulary, &largest));
    *token = take(s, logits, largest, stream, at);
    return CARRY_OK;
}

void carry_sampler_set(carry_sampler *s, const carry_sampling *sampling) {
    s->sampling = *sampling;
}

bool carry_sample_quietly(carry_sampler *s, const float *logits, uint64_t stream, uint64_t at, int64_t *token) {
    float most;
    int64_t largest = 0;
    if (!carry_sample_largest(logits, s->vocabulary, &most) || most == -INFINITY) {
        return false;
    }
    while (logits[largest] != most) {
        largest++;
    }
    *token = take(s, logits, largest, stream, at);
    return true;
}
