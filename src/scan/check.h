/* Argument checks. Each failure gives one error message with names and numbers. */
#ifndef CARRY_SCAN_CHECK_H
#define CARRY_SCAN_CHECK_H

#include "scan/algorithm.h"

/* Checks that sizes are at least 1, that their products fit, and that the storage type and the device are supported. */
carry_status carry_scan_check_problem(carry_ctx *ctx, const carry_scan_problem *problem);

/* Checks a tensor of steps: A if is_A, else with the shape of b. With f32_allowed, its type may also be f32. */
carry_status carry_scan_check_steps(carry_ctx *ctx, const carry_scan_problem *problem, const char *name,
                                    const carry_tensor *tensor, bool is_A, bool f32_allowed);
carry_status carry_scan_check_state(carry_ctx *ctx, const carry_scan_problem *problem, const char *name,
                                    const carry_tensor *tensor, bool f32_allowed);
carry_status carry_scan_check_inputs(carry_ctx *ctx, const carry_scan_problem *problem, const carry_tensor *A,
                                     const carry_tensor *b, const carry_tensor *h0);

/* Fails if steps or sequences of an output overlap; its first `outer` indices count them. */
carry_status carry_scan_check_output(carry_ctx *ctx, const char *name, const carry_tensor *tensor, int outer);

/* Fails if the two share memory, unless they are the same view and `same` is true. */
carry_status carry_scan_check_apart(carry_ctx *ctx, const char *name, const carry_tensor *tensor,
                                    const char *other_name, const carry_tensor *other, bool same);

carry_status carry_scan_check_workspace(carry_ctx *ctx, const void *workspace, size_t bytes, size_t needed, int device);

#endif
