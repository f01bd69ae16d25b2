/* Watches, in a thread, calls into MPI that should return at once. After a peer has died, Open MPI 4.1 can loop
   inside MPI_Testsome forever, where the caller cannot check its deadline. The thread then ends the process with a
   message. */
#ifndef CARRY_COMM_GUARD_H
#define CARRY_COMM_GUARD_H

/* Starts the thread, once per process. If memory runs out, calls are not watched. */
void carry_guard_start(void);

/* This process is in MPI from here to carry_guard_leave. If it is still there about two seconds after `until`
   (carry_seconds), it is ended with exit code 2. Only one thread may call this at a time. operation must outlive the
   call; peer is the rank that is waited for, or -1. Entering again before leaving replaces the first call. */
void carry_guard_enter(const char *operation, int peer, double until);
void carry_guard_leave(void);

#endif
