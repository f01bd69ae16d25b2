/* carry runs. */
#include "cli/cli.h"

static int run(int count, char **arguments) {
    cli_common common = {0};
    int words = cli_parse(&cli_runs, count, arguments, NULL, &common);
    if (words < 0 || common.help) {
        return words < 0 ? CLI_IMPOSSIBLE : CLI_DONE;
    }
    return cli_refuse("runs is not built yet");
}

const cli_verb cli_runs = {
    .name = "runs",
    .arguments = "WHAT",
    .summary = "list, show, compare, export stored runs",
    .details = "",
    .example = "carry runs list",
    .run = run,
};
