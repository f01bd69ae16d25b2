/* Stores the text that an experiment trained on with its run. */
#include <stdio.h>
#include <string.h>

#include "cli/cli.h"
#include "cli/lab/cmd_run.h"
#include "cli/wikitext.h"
#include "core/error.h"

static bool asks_for_wikitext(const carry_experiment *e) {
    for (int i = 0; i < e->points; i++) {
        if (strstr(e->point[i].problem, ":data=wikitext") != NULL && e->point[i].missing[0] == '\0') {
            return true;
        }
    }
    return false;
}

carry_status cli_run_text(carry_ctx *ctx, const carry_experiment *e, const carry_experiment_options *options,
                          bool prints) {
    char path[CARRY_FILE_PATH], text[CARRY_FILE_PATH + 160];
    bool instead;
    if (!asks_for_wikitext(e)) {
        return CARRY_OK;
    }
    CARRY_TRY(cli_wikitext(ctx, path, &instead));
    (void)snprintf(text, sizeof text, "text: %s%s", path,
                   instead ? " (instead of WikiText: name its folder by --wikitext or " CLI_WIKITEXT ")" : "");
    if (prints) {
        (void)printf("%s\n", text);
    }
    return options->store != NULL ? carry_store_artefact(options->store, options->run, "text", text, strlen(text))
                                  : CARRY_OK;
}
