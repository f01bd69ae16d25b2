/* Problems that several ranks solve together: functions for bench, check, plan and run.

   The ranks are the existing ones (carry --ranks N, mpirun), of which the first p work and the others wait; or, in a
   single process, p threads, each with a context. All of them make the same calls in the same order, so they first
   agree on everything that decides what comes next. */
#ifndef CARRY_LAB_COLLECTIVE_H
#define CARRY_LAB_COLLECTIVE_H

#include "carry/comm.h"
#include "bench/family/family.h"

/* How many ranks the problem is for; 0: every rank runs its own, or the problem is not valid. */
int carry_collective_ranks(carry_ctx *ctx, const char *problem);

/* Runs work on every one of `ranks` ranks. comm NULL or of one rank: on threads, which share those of ctx; ctx gets the
   error message. Else a collective over comm, whose ranks all get the same status; CARRY_EUNSUPPORTED when it has too
   few. user is passed to every rank. */
carry_status carry_collective_run(carry_ctx *ctx, carry_comm *comm, int ranks, carry_comm_function work, void *user);

/* A common status for all ranks: a failure of one rank stops all of them. comm NULL: own. */
carry_status carry_collective_agree(carry_comm *comm, carry_status own);

/* Cores of the machines that the ranks are on; ranks of this rank's machine, itself included. */
carry_status carry_collective_cores(carry_comm *comm, int *cores);
carry_status carry_collective_neighbours(carry_comm *comm, int *ranks);
/* "8 ranks on 2 cores: times include waiting for a core", or "" when there are enough. */
#define CARRY_COLLECTIVE_NOTE 96
const char *carry_collective_note(char note[CARRY_COLLECTIVE_NOTE], int ranks, int cores);

#endif
