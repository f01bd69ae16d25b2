/* Checks whether a recorded process is still the same one. A process number alone is not enough, since numbers are
   reused. */
#ifndef CARRY_LAB_ALIVE_H
#define CARRY_LAB_ALIVE_H

#include <stdbool.h>
#include <stdint.h>

/* When the process started, in clock ticks since boot; -1 if it does not exist or has ended (a zombie). */
int64_t carry_alive_start(int64_t pid);
/* An id of the current boot, and the machine's name. Both are valid until the process ends. */
const char *carry_alive_boot(void);
const char *carry_alive_host(void);
/* True if the process that was recorded on this machine with this pid, start and boot still runs. */
bool carry_alive(int64_t pid, int64_t start, const char *boot);

#endif
