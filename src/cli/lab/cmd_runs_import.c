/* carry runs import FILE.json. */
#include <stdlib.h>

#include "cli/lab/cmd_runs.h"

static void print_imported(const cli_runs_options *given, carry_imported *of) {
    (void)cli_make_plain(of->name);
    if (given->json) {
        cli_json_open();
        cli_json_integer("run", of->run);
        cli_json_text("name", of->name);
        cli_json_bool("imported", of->is_new);
        cli_json_close();
    } else if (of->is_new) {
        (void)printf("run %lld: %s, %lld results\n", (long long)of->run, of->name, (long long)of->results);
    } else {
        (void)printf("run %lld: %s is already in this store\n", (long long)of->run, of->name);
    }
}

int cli_runs_import(cli_runs_options *given) {
    if (given->words < 2) {
        return cli_refuse("runs import needs a file that carry runs export wrote");
    }
    for (int i = 1; i < given->words; i++) {
        carry_imported *all;
        int count;
        if (carry_store_import(given->store, given->word[i], &all, &count) != CARRY_OK) {
            return cli_failed(given->ctx);
        }
        for (int j = 0; j < count; j++) {
            print_imported(given, &all[j]);
        }
        free(all);
    }
    return CLI_DONE;
}
