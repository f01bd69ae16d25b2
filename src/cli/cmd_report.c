/* carry report. */
#include "cli/cli.h"

static int run(int count, char **arguments) {
    cli_common common = {0};
    int words = cli_parse(&cli_report, count, arguments, NULL, &common);
    if (words < 0 || common.help) {
        return words < 0 ? CLI_IMPOSSIBLE : CLI_DONE;
    }
    return cli_refuse("report is not built yet");
}

const cli_verb cli_report = {
    .name = "report",
    .arguments = "RUN...",
    .summary = "an HTML report with plots",
    .details = "",
    .example = "carry report 3 -o report.html",
    .run = run,
};
