/* Files that come with the program: experiments, cards, the demo model. */
#ifndef CARRY_CORE_SHARED_H
#define CARRY_CORE_SHARED_H

#include <stdbool.h>

#include "core/file.h"

/* The path of `name` (as "experiments/demo.yaml"): under $CARRY_DATA where that is set, else as share/carry/NAME or
   NAME in the nearest folder above the program, so in an installed tree or in the source tree around a build. False if
   not found. Callers look in the working folder first. */
bool carry_file_shared(char found[CARRY_FILE_PATH], const char *name);

#endif
