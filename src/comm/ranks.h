/* Ranks as threads of this process: the same function at the same time, each with its number. The threads
   communicator (threads.c) is built on it.

   A rank uses a context of its own. A rank that fails does not leave the others waiting: carry_rank_barrier returns
   CARRY_EPEER to them. */
#ifndef CARRY_COMM_RANKS_H
#define CARRY_COMM_RANKS_H

#include "carry/context.h"

#define CARRY_RANKS 1024

typedef struct carry_rank {
    int rank, size;
    struct carry_ranks *all;
} carry_rank;

typedef carry_status (*carry_rank_function)(void *user, const carry_rank *self);

/* Rank 0 is the calling thread. Returns when all have; the status of the lowest rank that failed for a reason of its
   own. The message of a rank's failure is in that rank's context; ctx is for those of starting. */
carry_status carry_ranks_run(carry_ctx *ctx, int size, carry_rank_function function, void *user);

/* The same; *failed is the rank whose status it is, or -1 when none has failed or not all could be started. */
carry_status carry_ranks_run_told(carry_ctx *ctx, int size, carry_rank_function function, void *user, int *failed);

/* An object that all ranks of a run share: created for the first that asks, notified of every rank that returns, freed
   when all have. A run has one. NULL: no memory, or the run has another. */
typedef struct carry_rank_shared {
    void *(*make)(int size);
    void (*leave)(void *shared, int rank);
    void (*free)(void *shared);
} carry_rank_shared;

void *carry_rank_share(const carry_rank *self, const carry_rank_shared *kind);

/* Until every rank is here. CARRY_EPEER: one has failed or returned, and will not come. */
carry_status carry_rank_barrier(const carry_rank *self);

#endif
