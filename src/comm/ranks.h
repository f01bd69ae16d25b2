/* Ranks as threads of this process: all run the same function at the same time, each with its number. The threads
   communicator (threads.c) is built on it.

   Each rank uses its own context. If a rank fails, carry_rank_barrier returns CARRY_EPEER to the others, so that
   they do not wait. */
#ifndef CARRY_COMM_RANKS_H
#define CARRY_COMM_RANKS_H

#include "carry/context.h"

#define CARRY_RANKS 1024

typedef struct carry_rank {
    int rank, size;
    struct carry_ranks *all;
} carry_rank;

typedef carry_status (*carry_rank_function)(void *user, const carry_rank *self);

/* Rank 0 is the calling thread. Returns when all ranks have returned, with the status of the lowest rank that failed
   for a reason of its own. The message of a rank's failure is in that rank's context; ctx gets errors of starting
   the threads. */
carry_status carry_ranks_run(carry_ctx *ctx, int size, carry_rank_function function, void *user);

/* The same. *failed is the rank with the returned status, or -1 if no rank failed or not all could be started. */
carry_status carry_ranks_run_told(carry_ctx *ctx, int size, carry_rank_function function, void *user, int *failed);

/* An object that all ranks of a run share. The first rank that asks makes it, `leave` is called for every rank that
   returns, and the object is freed after all ranks have returned. A run can have only one: carry_rank_share returns
   NULL if the run already has an object of another kind, or if memory runs out. */
typedef struct carry_rank_shared {
    void *(*make)(int size);
    void (*leave)(void *shared, int rank);
    void (*free)(void *shared);
} carry_rank_shared;

void *carry_rank_share(const carry_rank *self, const carry_rank_shared *kind);

/* Waits until every rank has called this. CARRY_EPEER: a rank has failed or returned, and will not call it. */
carry_status carry_rank_barrier(const carry_rank *self);

#endif
