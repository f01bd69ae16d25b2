/* The monotonic clock, and times formatted as text. */
#ifndef CARRY_CORE_CLOCK_H
#define CARRY_CORE_CLOCK_H

double carry_seconds(void); /* since an arbitrary start; never goes back */

/* Processor time of this thread; other programs do not affect it. */
double carry_thread_seconds(void);

/* A size or time of a measurement of the machine. Under gcc's address or thread sanitizer it is `sanitized`, which is
   smaller: measured rates mean nothing under a sanitizer, and a full measurement takes a second of processor time or
   more in every context and program. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define CARRY_MEASURED(usual, sanitized) (sanitized)
#else
#define CARRY_MEASURED(usual, sanitized) (usual)
#endif

/* Writes a time such as "41.2 us" to text. */
const char *carry_time_text(char text[32], double seconds);

#endif
