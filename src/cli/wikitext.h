/* Finds the text of experiments that ask for data=wikitext. WikiText is not part of Carry, so a clone without it
   trains on the documentation instead and prints a note. */
#ifndef CARRY_CLI_WIKITEXT_H
#define CARRY_CLI_WIKITEXT_H

#include <stdbool.h>

#include "carry/context.h"
#include "core/file.h"

#define CLI_WIKITEXT "CARRY_WIKITEXT"

/* Finds the folder or file: $CARRY_WIKITEXT, else data/wikitext-103 in the working folder, else the folder docs there
   or among the files that come with the program (*instead is then true). CARRY_ENOTFOUND if the variable names a
   missing path, CARRY_EUNSUPPORTED if no text is found. */
carry_status cli_wikitext(carry_ctx *ctx, char path[CARRY_FILE_PATH], bool *instead);

#endif
