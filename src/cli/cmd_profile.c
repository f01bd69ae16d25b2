/* carry profile. */
#include "cli/cli.h"

static int run(int count, char **arguments) {
    cli_common common = {0};
    int words = cli_parse(&cli_profile, count, arguments, NULL, &common);
    if (words < 0 || common.help) {
        return words < 0 ? CLI_IMPOSSIBLE : CLI_DONE;
    }
    return cli_refuse("profile is not built yet");
}

const cli_verb cli_profile = {
    .name = "profile",
    .arguments = "VERB ...",
    .summary = "a profiled run: Perfetto trace and hotspots",
    .details = "",
    .example = "carry profile bench scan:dense:t1024:n32",
    .run = run,
};
