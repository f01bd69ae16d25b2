/* Comparing two runs: ratios of medians with intervals for everything that both measured, and whether they differ at
   all. */
#ifndef CARRY_LAB_COMPARE_H
#define CARRY_LAB_COMPARE_H

#include "bench/sample.h"
#include "lab/store/store.h"

typedef struct carry_pair {
    const carry_run_result *a, *b;
    carry_ratio ratio; /* a over b: above 1, b is faster */
    double slack;      /* what counts as noise between runs here */
} carry_pair;

typedef struct carry_comparison {
    int pairs, only_a, only_b; /* measured in both, in one */
    carry_pair *pair;
    int within, faster, slower; /* pairs: within noise, b faster, b slower */
    double mean, low, high;     /* geometric mean of the ratios, and of the ends of their intervals */
    double drift;               /* how much the machine's own ceilings differ between the two runs, a share */
    double contention;          /* the most that other processes had of what one problem wanted, a share */
    double slack;               /* what counts as noise between runs, over all: given, drift and contention on top */
    bool same_machine;
    bool mean_within;  /* the mean alone */
    bool within_noise; /* the mean, and no more pairs differ, nor by more, than chance lets differ */
} carry_comparison;

/* slack 0: 5 %. The runs must outlive the comparison. */
carry_status carry_compare(carry_ctx *ctx, carry_comparison *comparison, const carry_run *a, const carry_run *b,
                           double slack);
void carry_compare_free(carry_comparison *comparison);

#endif
