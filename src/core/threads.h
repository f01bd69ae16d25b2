/* The context's threads: a fixed pool that splits a range of independent items.

   Why not OpenMP: a context owns its threads, so ranks that are threads of one process each have their own; the thread
   sanitizer understands the pool; and it cannot conflict with another OpenMP runtime inside a Python process. */
#ifndef CARRY_CORE_THREADS_H
#define CARRY_CORE_THREADS_H

#include <stdint.h>

#include "carry/context.h"

typedef struct carry_pool carry_pool;

/* Processes items begin..end-1. worker is 0..threads-1, to select scratch memory. */
typedef void (*carry_task)(void *argument, int64_t begin, int64_t end, int worker);

int carry_cores(void); /* cores that this process may run on; at least 1 */

carry_status carry_pool_new(carry_ctx *ctx, carry_pool **pool, int threads);
void carry_pool_free(carry_pool *pool);

/* Returns the number of this thread in the context: 1 and up in a worker of its pool, 0 in the thread that uses the
   context. */
int carry_worker(const carry_ctx *ctx);

/* Runs task over 0..count-1 in pieces of `grain` items, on all threads for which there is work, including the
   caller's, and returns when all is done. On one thread, or if count is at most grain, the whole range is one piece.
   A call from inside a task runs in place, as one piece and as worker 0: it must not use scratch memory by worker. */
void carry_parallel(carry_ctx *ctx, int64_t count, int64_t grain, carry_task task, void *argument);

#endif
