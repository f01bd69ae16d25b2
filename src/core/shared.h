/* Files that come with the program: experiments, cards, the demo model. */
#ifndef CARRY_CORE_SHARED_H
#define CARRY_CORE_SHARED_H

#include <stdbool.h>

#include "core/file.h"

/* Finds `name` (such as "experiments/demo.yaml"): in $CARRY_DATA if that is set, else as share/carry/NAME or NAME in
   the nearest folder above the program that has it. This works for an installed program, and for a build folder inside
   the source tree. Returns false if it is not found. Callers look in the working folder first. */
bool carry_file_shared(char found[CARRY_FILE_PATH], const char *name);

#endif
