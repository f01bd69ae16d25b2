/* The monotonic clock, and times formatted as text. */
#ifndef CARRY_CORE_CLOCK_H
#define CARRY_CORE_CLOCK_H

double carry_seconds(void); /* since an arbitrary start; never goes back */

/* That this thread had a processor: other programs do not add to it. */
double carry_thread_seconds(void);

/* "41.2 us", into text. */
const char *carry_time_text(char text[32], double seconds);

#endif
