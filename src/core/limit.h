/* A temporary limit on threads, for a plan that was measured to be faster with fewer. */
#ifndef CARRY_CORE_LIMIT_H
#define CARRY_CORE_LIMIT_H

#include "carry/context.h"

/* Limits tasks to `threads` of the pool's threads; carry_ctx_threads then returns this number. Must not be called
   from inside a task. Returns the previous limit, so that the caller can restore it. */
int carry_limit_threads(carry_ctx *ctx, int threads);

#endif
