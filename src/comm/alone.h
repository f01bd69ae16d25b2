/* Work that one rank does while the others wait for it: writing a checkpoint, evaluating a model. */
#ifndef CARRY_COMM_ALONE_H
#define CARRY_COMM_ALONE_H

#include "carry/comm.h"

#define CARRY_COMM_ALONE 3600.0 /* seconds after which the working rank sends no more heartbeats */

/* A collective. root runs work(user), in a new thread if there are other ranks, and sends heartbeats meanwhile. The
   other ranks wait as long as root works, for about CARRY_COMM_ALONE seconds at most; if root dies or is stopped, they
   fail within the communicator's deadline. The work may use root's context, but not the communicator. *outcome is the
   status that work returned, on every rank; its message is in root's context. */
carry_status carry_comm_alone(carry_comm *comm, int root, const char *operation, carry_status (*work)(void *user),
                              void *user, carry_status *outcome);

#endif
