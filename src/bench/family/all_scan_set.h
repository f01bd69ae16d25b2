/* Sets of inputs and outputs of an All-Scan, for one rank.

   A rank maps a state S to M S + L (carry/all_scan.h). M is the transition of the delta rule over a range of tokens:
   gamma (I - W^T Y), with gamma uniform in [0.8, 1], random keys k of length 1 as the rows of W, beta uniform in
   [0, 1], and Y such that I - W^T Y is the product of I - beta k k^T over all keys, whose norm is at most 1. A dense M
   is this matrix for min(64, K) keys, multiplied out; a diagonal M has decays uniform in [0.8, 1]. L and the initial
   state are normal. */
#ifndef CARRY_LAB_ALL_SCAN_SET_H
#define CARRY_LAB_ALL_SCAN_SET_H

#include "carry/all_scan.h"

#define CARRY_ALL_SCAN_KEYS 64 /* maximum number of keys in a dense transition */

typedef struct carry_all_scan_set {
    carry_all_scan_args args; /* owned */
} carry_all_scan_set;

/* carry_all_scan_set_free frees the tensors, also after a failure here. */
carry_status carry_all_scan_set_new(carry_ctx *ctx, carry_all_scan_set *set, const carry_all_scan_problem *problem,
                                    bool initial, uint64_t seed, int rank);
void carry_all_scan_set_free(carry_all_scan_set *set);

/* Bytes of one set, for a rank in the middle of the sequence. */
double carry_all_scan_set_bytes(const carry_all_scan_problem *problem);

/* leaving = M entering + L in float64; both are [heads, key, value]. row: scratch for `value` numbers. */
void carry_all_scan_set_apply(double *leaving, const double *entering, const carry_all_scan_set *set,
                              const carry_all_scan_problem *problem, double *row);

#endif
