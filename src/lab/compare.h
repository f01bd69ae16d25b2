/* Compares two runs: ratios of medians with intervals for everything that both measured, and whether the runs
   differ. */
#ifndef CARRY_LAB_COMPARE_H
#define CARRY_LAB_COMPARE_H

#include "bench/sample.h"
#include "lab/store/store.h"

typedef struct carry_pair {
    const carry_run_result *a, *b;
    carry_ratio ratio; /* a over b: above 1, b is faster */
    double slack;      /* tolerance for noise between the runs, for this pair */
} carry_pair;

typedef struct carry_comparison {
    int pairs, only_a, only_b; /* results measured in both runs; only in a; only in b */
    carry_pair *pair;
    int within, faster, slower; /* pairs: within noise, b faster, b slower */
    double mean, low, high;     /* geometric mean of the ratios and of their interval ends */
    double drift;               /* difference of the machine's ceilings between the two runs, as a share */
    double contention;          /* largest share of a problem's processor time that other processes used */
    double slack;               /* mean tolerance for noise between runs: the given one plus drift and contention */
    bool same_machine;
    bool mean_within;  /* the mean alone is within noise */
    bool within_noise; /* the mean is within noise, and the pairs that differ can be explained by chance */
} carry_comparison;

/* slack 0: 5 %. Both runs must outlive the comparison. */
carry_status carry_compare(carry_ctx *ctx, carry_comparison *comparison, const carry_run *a, const carry_run *b,
                           double slack);
void carry_compare_free(carry_comparison *comparison);

#endif
