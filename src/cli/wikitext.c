/* Finds the text of experiments that ask for data=wikitext. */
#include "cli/wikitext.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "core/context.h"
#include "core/shared.h"

#define FOLDER "data/wikitext-103"

carry_status cli_wikitext(carry_ctx *ctx, char path[CARRY_FILE_PATH], bool *instead) {
    const char *given = getenv(CLI_WIKITEXT);
    *instead = false;
    if (given != NULL && *given != '\0') {
        if (access(given, R_OK) != 0) {
            return carry_fail(ctx, CARRY_ENOTFOUND,
                              "WikiText: '%.400s' does not exist (named by " CLI_WIKITEXT " or --wikitext)", given);
        }
        if (snprintf(path, CARRY_FILE_PATH, "%s", given) >= CARRY_FILE_PATH) {
            return carry_fail(ctx, CARRY_ESIZE, CLI_WIKITEXT " is longer than %d bytes", CARRY_FILE_PATH - 1);
        }
        return CARRY_OK;
    }
    (void)snprintf(path, CARRY_FILE_PATH, "%s", FOLDER);
    if (access(path, R_OK) == 0) {
        return CARRY_OK;
    }
    *instead = true;
    (void)snprintf(path, CARRY_FILE_PATH, "docs");
    if (access(path, R_OK) == 0 || carry_file_shared(path, "docs")) {
        return CARRY_OK;
    }
    return carry_fail(ctx, CARRY_EUNSUPPORTED,
                      "there is no WikiText: name its folder by carry run --wikitext FOLDER or " CLI_WIKITEXT
                      ", or unpack it as " FOLDER);
}
