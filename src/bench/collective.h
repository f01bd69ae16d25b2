/* Problems that several ranks solve together: functions for bench, check, plan and run.

   The ranks are the existing ones (carry --ranks N, mpirun), of which the first p work and the others wait; or, in a
   single process, p threads, each with a context. All of them make the same calls in the same order, so they first
   agree on everything that decides what comes next. */
#ifndef CARRY_LAB_COLLECTIVE_H
#define CARRY_LAB_COLLECTIVE_H

#include "carry/comm.h"
#include "bench/family/family.h"

/* The number of ranks that the problem is for; 0: each rank runs its own copy, or the problem is not valid. */
int carry_collective_ranks(carry_ctx *ctx, const char *problem);

/* Runs `work` on each of `ranks` ranks. comm NULL or of one rank: on threads, which share those of ctx; ctx gets the
   error message. Otherwise this is a collective over comm, whose ranks all get the same status; CARRY_EUNSUPPORTED
   if it has too few ranks. user is passed to every rank. */
carry_status carry_collective_run(carry_ctx *ctx, carry_comm *comm, int ranks, carry_comm_function work, void *user);

/* Gives all ranks a common status: a failure of one rank stops all of them. comm NULL: returns `own`. */
carry_status carry_collective_agree(carry_comm *comm, carry_status own);

/* The number of cores of all machines of the ranks; the number of ranks on this rank's machine, including itself. */
carry_status carry_collective_cores(carry_comm *comm, int *cores);
carry_status carry_collective_neighbours(carry_comm *comm, int *ranks);
/* "8 ranks on 2 cores: times include waiting for a core", or "" if there are enough cores. */
#define CARRY_COLLECTIVE_NOTE 96
const char *carry_collective_note(char note[CARRY_COLLECTIVE_NOTE], int ranks, int cores);

#endif
