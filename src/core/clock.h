/* The monotonic clock. */
#ifndef CARRY_CORE_CLOCK_H
#define CARRY_CORE_CLOCK_H

double carry_seconds(void); /* since an arbitrary start; never goes back */

#endif
