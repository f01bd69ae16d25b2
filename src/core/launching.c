/* The operator that this thread is executing. */
#include "core/launching.h"

static _Thread_local carry_launcher current;

void carry_launching_at(const char *name, const char *place) {
    current = (carry_launcher){.name = name, .place = place};
}

carry_launcher carry_launching(void) {
    return current;
}
