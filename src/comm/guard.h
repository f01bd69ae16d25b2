/* Calls into MPI that should return at once, watched by a thread. After a peer has died, Open MPI 4.1 can loop inside
   MPI_Testsome for ever, where no deadline of the caller is looked at: the process is ended then, with a message. */
#ifndef CARRY_COMM_GUARD_H
#define CARRY_COMM_GUARD_H

/* Starts the thread, once in a process. Without memory for it calls are not watched. */
void carry_guard_start(void);

/* From here to carry_guard_leave this process is in MPI: it ends, with exit code 2, if it is still there about two
   seconds after `until` (carry_seconds). Of one thread at a time. operation outlives the call; peer: the rank that
   is waited for, or -1. Entering again before leaving replaces the first call. */
void carry_guard_enter(const char *operation, int peer, double until);
void carry_guard_leave(void);

#endif
