/* carry job. */
#include "cli/cli.h"

static int run(int count, char **arguments) {
    cli_common common = {0};
    int words = cli_parse(&cli_job, count, arguments, NULL, &common);
    if (words < 0 || common.help) {
        return words < 0 ? CLI_IMPOSSIBLE : CLI_DONE;
    }
    return cli_refuse("job is not built yet");
}

const cli_verb cli_job = {
    .name = "job",
    .arguments = "WHAT",
    .summary = "submit, wait, logs: local queue or Slurm",
    .details = "",
    .example = "carry job list",
    .run = run,
};
