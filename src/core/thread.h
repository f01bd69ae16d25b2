/* Threads that are not in a context's pool. */
#ifndef CARRY_CORE_THREAD_H
#define CARRY_CORE_THREAD_H

#include <pthread.h>

/* Starts a thread that blocks all signals except faults. Signals are handled by the program's own threads, and
   SIGPIPE and SIGXFSZ become errors of the call. Returns 0 or an error number, as pthread_create does. */
int carry_thread_start(pthread_t *thread, void *(*run)(void *argument), void *argument);

#endif
