/* Is a recorded process still the same one? A process number alone is not enough, since numbers are reused. */
#ifndef CARRY_LAB_ALIVE_H
#define CARRY_LAB_ALIVE_H

#include <stdbool.h>
#include <stdint.h>

/* When it started, in clock ticks since boot; -1 if the process does not exist or has ended (a zombie). */
int64_t carry_alive_start(int64_t pid);
/* This boot of this machine, and its name; valid until the process ends. */
const char *carry_alive_boot(void);
const char *carry_alive_host(void);
/* pid, start and boot as noted on this machine. */
bool carry_alive(int64_t pid, int64_t start, const char *boot);

#endif
