/* The checks before any work. Each failure is one error message with names and numbers. */
#ifndef CARRY_SCAN_CHECK_H
#define CARRY_SCAN_CHECK_H

#include "scan/algorithm.h"

/* Sizes at least 1, products that fit, a storage type, a device that scans have kernels for. */
carry_status carry_scan_check_problem(carry_ctx *ctx, const carry_scan_problem *problem);

/* One tensor of steps: A when is_A, else like b. It may be f32 besides the problem's type when f32_allowed. */
carry_status carry_scan_check_steps(carry_ctx *ctx, const carry_scan_problem *problem, const char *name,
                                    const carry_tensor *tensor, bool is_A, bool f32_allowed);
carry_status carry_scan_check_state(carry_ctx *ctx, const carry_scan_problem *problem, const char *name,
                                    const carry_tensor *tensor, bool f32_allowed);
carry_status carry_scan_check_inputs(carry_ctx *ctx, const carry_scan_problem *problem, const carry_tensor *A,
                                     const carry_tensor *b, const carry_tensor *h0);

/* An output whose steps or sequences, which its first `outer` indices count, overlap. */
carry_status carry_scan_check_output(carry_ctx *ctx, const char *name, const carry_tensor *tensor, int outer);

/* Fails when the two share memory, unless they are the same view and `same` allows that. */
carry_status carry_scan_check_apart(carry_ctx *ctx, const char *name, const carry_tensor *tensor,
                                    const char *other_name, const carry_tensor *other, bool same);

carry_status carry_scan_check_workspace(carry_ctx *ctx, const void *workspace, size_t bytes, size_t needed, int device);

#endif
