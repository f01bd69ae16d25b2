/* Problems as text, and what would run for them, as in carry plan, check and bench.

       family[:word]...[:letters number]...[:key=value]...      scan:dense:f32:t1024:n32:w1, delta:bf16:t4096:h16:k128

   carry list problems prints the families, carry bench --help the rest of the grammar. */
#ifndef CARRY_PROBLEM_H
#define CARRY_PROBLEM_H

#include <stdbool.h>
#include <stddef.h>

#include "carry/context.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Writes one line that says what would run for the problem and why, without a newline, truncated to size bytes
   including the terminating NUL. measure: if the family has several algorithms, time all that apply instead of using
   the cost model. CARRY_EFORMAT, CARRY_EARGUMENT, CARRY_ENOTFOUND and CARRY_ESIZE name the part of the text that is not
   accepted. */
CARRY_API carry_status carry_problem_plan_about(carry_ctx *ctx, char *line, size_t size, const char *problem,
                                                bool measure);

/* Problem families, and the parameters that each accepts; NULL past the end. */
CARRY_API const char *carry_problem_family_name(int index);
CARRY_API const char *carry_problem_family_about(int index);
CARRY_API const char *carry_problem_family_takes(int index);

#ifdef __cplusplus
}
#endif
#endif
