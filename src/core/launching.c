/* Which operator this thread is in. */
#include "core/launching.h"

#include <stddef.h>

static _Thread_local const char *current;

void carry_launching_set(const char *name) {
    current = name;
}

const char *carry_launching(void) {
    return current;
}
