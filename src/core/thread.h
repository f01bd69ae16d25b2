/* Threads that are not in a context's pool. */
#ifndef CARRY_CORE_THREAD_H
#define CARRY_CORE_THREAD_H

#include <pthread.h>

/* Starts a thread that blocks all signals except faults, so that the program's own threads handle them. A write of this
   thread that would raise SIGPIPE or SIGXFSZ only returns an error. Returns 0 or an error number, as pthread_create
   does. */
int carry_thread_start(pthread_t *thread, void *(*run)(void *argument), void *argument);

#endif
