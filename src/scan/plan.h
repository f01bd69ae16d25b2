/* The internals of a plan. */
#ifndef CARRY_SCAN_PLAN_H
#define CARRY_SCAN_PLAN_H

#include "scan/algorithm.h"

struct carry_scan_plan {
    carry_ctx *ctx;
    const carry_kernels *kernels;
    carry_scan_problem problem;
    const carry_gpu *gpu; /* NULL on the CPU */
    const carry_scan_algorithm *algorithm;
    int64_t chunk;
    int threads;      /* threads of the context that it uses; 0: all */
    size_t workspace; /* for run or backward, whichever was planned */
    double seconds;
    int64_t products; /* products of the last run */
    double flops;
    char about[256];
};

/* The shape of a problem's scan. A backward scan has one step less. */
carry_scan_shape carry_scan_shape_of(const carry_scan_problem *problem);

/* The same with the settings of this plan for an algorithm. */
carry_scan_shape carry_scan_plan_shape(const carry_scan_plan *plan, const carry_scan_algorithm *algorithm);

/* The number of threads that a run of this plan uses. */
int carry_scan_plan_threads(const carry_scan_plan *plan);

/* Workspace of the backward pass besides its scan: the gradients in f32, and scratch for each thread. */
bool carry_scan_backward_extra(const carry_scan_problem *problem, int threads, size_t *bytes);

/* The problem as text, which is the key of its plan in wisdom: "scan:dense:f16:b1:t4096:n64:w1:backward". */
#define CARRY_SCAN_KEY 160
const char *carry_scan_key(char key[CARRY_SCAN_KEY], const carry_scan_problem *problem);

#endif
