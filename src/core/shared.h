/* Files that come with the program: experiments, cards, the demo model. */
#ifndef CARRY_CORE_SHARED_H
#define CARRY_CORE_SHARED_H

#include <stdbool.h>

#include "core/file.h"

/* Finds `name` (such as "experiments/demo.yaml"): under $CARRY_DATA if that is set, else as share/carry/NAME or NAME
   in the nearest folder above the program, so in an installed tree or in the source tree around a build. Returns
   false if it is not found. Callers look in the working folder first. */
bool carry_file_shared(char found[CARRY_FILE_PATH], const char *name);

#endif
