/* carry run. */
#include "cli/cli.h"

static int run(int count, char **arguments) {
    cli_common common = {0};
    int words = cli_parse(&cli_run, count, arguments, NULL, &common);
    if (words < 0 || common.help) {
        return words < 0 ? CLI_IMPOSSIBLE : CLI_DONE;
    }
    return cli_refuse("run is not built yet");
}

const cli_verb cli_run = {
    .name = "run",
    .arguments = "FILE.yaml",
    .summary = "run an experiment: grid, methods, criteria, verdicts",
    .details = "",
    .example = "carry run experiments/044-matmulscan.yaml",
    .run = run,
};
