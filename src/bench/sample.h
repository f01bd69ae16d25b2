/* Samples of a duration: medians, and whether two sets of samples differ. */
#ifndef CARRY_LAB_SAMPLE_H
#define CARRY_LAB_SAMPLE_H

#include <stdbool.h>
#include <stdint.h>

typedef struct carry_summary {
    double median, quartile_low, quartile_high, least;
    double spread; /* interquartile range over the median */
} carry_summary;

/* Summarises count > 0 samples, which are sorted in place. */
carry_summary carry_summarise(double *samples, int count);

/* The ratio of two medians, a over b, with a 95 % bootstrap interval (1000 resamplings, seeded: the same samples
   give the same interval). Successive samples are not independent, since a machine drifts, so blocks of neighbours
   are drawn instead of single samples. Drift between two runs is not visible in their samples: `slack` widens
   the tolerance of within_noise, not the interval. */
typedef struct carry_ratio {
    double ratio, low, high;
    bool within_noise; /* 1 is in [low / (1 + slack), high * (1 + slack)] */
} carry_ratio;

carry_ratio carry_ratio_of(const double *a, int a_count, const double *b, int b_count, double slack, uint64_t seed);

#endif
