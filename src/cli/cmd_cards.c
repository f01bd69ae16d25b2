/* carry cards. */
#include "cli/cli.h"

static int run(int count, char **arguments) {
    cli_common common = {0};
    int words = cli_parse(&cli_cards, count, arguments, NULL, &common);
    if (words < 0 || common.help) {
        return words < 0 ? CLI_IMPOSSIBLE : CLI_DONE;
    }
    return cli_refuse("cards is not built yet");
}

const cli_verb cli_cards = {
    .name = "cards",
    .arguments = "WHAT",
    .summary = "the reference library",
    .details = "",
    .example = "carry cards find look-back",
    .run = run,
};
