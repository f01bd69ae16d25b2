/* Problems as text, and what would run for them: the grammar of the program's plan, check and bench.

       family[:word]...[:letters number]...[:key=value]...      scan:dense:f32:t1024:n32:w1, delta:bf16:t4096:h16:k128

   carry list problems has the families; carry bench --help the rest. */
#ifndef CARRY_PROBLEM_H
#define CARRY_PROBLEM_H

#include <stdbool.h>
#include <stddef.h>

#include "carry/context.h"

#ifdef __cplusplus
extern "C" {
#endif

/* What would run for the problem and why, on one line without its newline, cut to size bytes with the terminating NUL.
   measure: time every algorithm that applies instead of asking the cost model, where the family has several.
   CARRY_EFORMAT, CARRY_EARGUMENT, CARRY_ENOTFOUND and CARRY_ESIZE name the part of the text that is refused. */
CARRY_API carry_status carry_plan_describe(carry_ctx *ctx, char *line, size_t size, const char *problem, bool measure);

/* Families of problems and what each takes (about, takes may be NULL); NULL past the end. */
CARRY_API const char *carry_problem_family(int index, const char **about, const char **takes);

#ifdef __cplusplus
}
#endif
#endif
