/* A temporary limit on threads, for a plan that was measured to be faster with fewer. */
#ifndef CARRY_CORE_LIMIT_H
#define CARRY_CORE_LIMIT_H

#include "carry/context.h"

/* From now on tasks have so many of the pool's threads, and carry_ctx_threads says so; not from inside a task. Returns
   how many it was, for giving them back. */
int carry_limit_threads(carry_ctx *ctx, int threads);

#endif
