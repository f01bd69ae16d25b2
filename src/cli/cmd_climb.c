/* carry climb. */
#include "cli/cli.h"

static int run(int count, char **arguments) {
    cli_common common = {0};
    int words = cli_parse(&cli_climb, count, arguments, NULL, &common);
    if (words < 0 || common.help) {
        return words < 0 ? CLI_IMPOSSIBLE : CLI_DONE;
    }
    return cli_refuse("climb is not built yet");
}

const cli_verb cli_climb = {
    .name = "climb",
    .arguments = "WHAT",
    .summary = "the hill-climb: hypothesis, gate, log",
    .details = "",
    .example = "carry climb lint",
    .run = run,
};
