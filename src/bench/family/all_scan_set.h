/* Sets of inputs and outputs of an All-Scan, for one rank.

   The transition is what a range of the delta rule does to a state: gamma (I - W^T Y), gamma uniform in [0.8, 1], the
   rows of W random keys of length 1, beta uniform in [0, 1], and Y so that I - W^T Y is the product of all I - beta k
   k^T: its norm is at most 1. Dense transitions are that, multiplied out from 64 keys; diagonal ones are decays uniform
   in [0.8, 1]. L and the initial state are normal. */
#ifndef CARRY_LAB_ALL_SCAN_SET_H
#define CARRY_LAB_ALL_SCAN_SET_H

#include "carry/all_scan.h"

#define CARRY_ALL_SCAN_KEYS 64 /* of a dense transition */

typedef struct carry_all_scan_set {
    carry_all_scan_args args; /* owned */
} carry_all_scan_set;

/* After a failure too, carry_all_scan_set_free frees the tensors made so far. */
carry_status carry_all_scan_set_new(carry_ctx *ctx, carry_all_scan_set *set, const carry_all_scan_problem *problem,
                                    bool initial, uint64_t seed, int rank);
void carry_all_scan_set_free(carry_all_scan_set *set);

/* Bytes of one set, as that of a rank in the middle. */
double carry_all_scan_set_bytes(const carry_all_scan_problem *problem);

/* leaving = M entering + L in float64; [heads, key, value] each. row: room for `value` numbers. */
void carry_all_scan_set_apply(double *leaving, const double *entering, const carry_all_scan_set *set,
                              const carry_all_scan_problem *problem, double *row);

#endif
