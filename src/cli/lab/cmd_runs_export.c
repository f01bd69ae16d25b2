/* carry runs export RUN.... */
#include <errno.h>
#include <string.h>
#include <unistd.h>

#include "cli/lab/cmd_runs.h"
#include "core/file.h"
#include "lab/export.h"

#define MOST_CURVES 64 /* maximum runs in one table */

static int export_one(const cli_runs_options *given, FILE *to, const char *text) {
    carry_run *run;
    if (!cli_runs_load(given, &run, text)) {
        return CLI_IMPOSSIBLE;
    }
    carry_status status = CARRY_OK;
    if (given->csv) {
        carry_export_csv(to, run, given->samples);
    } else {
        status = given->history ? carry_export_history(given->ctx, to, run) : carry_export_json(given->ctx, to, run);
    }
    carry_run_free(run);
    return status == CARRY_OK ? CLI_DONE : cli_failed(given->ctx);
}

/* Exports curves. Their table has other columns than that of results. */
static int export_curves(const cli_runs_options *given, FILE *to) {
    const int count = given->words - 1;
    carry_run *runs[MOST_CURVES] = {NULL};
    int code = CLI_DONE;
    if (count > MOST_CURVES) {
        return cli_refuse("a table has the curves of at most %d runs, not %d", MOST_CURVES, count);
    }
    for (int i = 0; i < count && code == CLI_DONE; i++) {
        code = cli_runs_load(given, &runs[i], given->word[i + 1]) ? CLI_DONE : CLI_IMPOSSIBLE;
        if (code == CLI_DONE && !carry_export_has_curve(runs[i])) {
            code = cli_refuse("run %lld has no curve but run %lld has one: export them separately",
                              (long long)runs[i]->id, (long long)runs[0]->id);
        }
    }
    if (code == CLI_DONE && carry_export_csv_curves(given->ctx, to, runs, count) != CARRY_OK) {
        code = cli_failed(given->ctx);
    }
    for (int i = 0; i < count; i++) {
        carry_run_free(runs[i]);
    }
    return code;
}

/* *has is true if the first run has a curve. Prints a message if it cannot be read. */
static int first_has_curve(const cli_runs_options *given, bool *has) {
    carry_run *run;
    if (!cli_runs_load(given, &run, given->word[1])) {
        return CLI_IMPOSSIBLE;
    }
    *has = carry_export_has_curve(run);
    carry_run_free(run);
    return CLI_DONE;
}

static int export_to(const cli_runs_options *given, FILE *to) {
    int code = CLI_DONE;
    if (given->csv) {
        bool curves = false;
        code = first_has_curve(given, &curves);
        if (code == CLI_DONE && curves) {
            return given->samples ? cli_refuse("--samples: the run has a curve, not samples")
                                  : export_curves(given, to);
        }
        if (code == CLI_DONE) {
            carry_export_csv_head(to, given->samples);
        }
    }
    for (int i = 1; i < given->words && code == CLI_DONE; i++) {
        code = export_one(given, to, given->word[i]);
    }
    return code;
}

static int export_events(const cli_runs_options *given) {
    int code = CLI_DONE;
    for (int i = 1; i < given->words && code == CLI_DONE; i++) {
        carry_run *run;
        char path[4096];
        if (!cli_runs_load(given, &run, given->word[i])) {
            return CLI_IMPOSSIBLE;
        }
        if (carry_export_tensorboard(given->ctx, given->tensorboard, run, path) == CARRY_OK) {
            (void)printf("%s\n", path);
        } else {
            code = cli_failed(given->ctx);
        }
        carry_run_free(run);
    }
    return code;
}

/* An existing file is replaced only when the new one is complete. */
int cli_runs_export(cli_runs_options *given) {
    if (given->words < 2) {
        return cli_refuse("runs export needs a run: a number, a name, or last");
    }
    if (given->tensorboard != NULL) {
        return export_events(given);
    }
    if (given->output == NULL) {
        return export_to(given, stdout);
    }
    carry_file_writing writing;
    if (carry_file_begin(given->ctx, &writing, given->output) != CARRY_OK) {
        return cli_failed(given->ctx);
    }
    const int copy = dup(writing.file);
    FILE *file = copy >= 0 ? fdopen(copy, "w") : NULL;
    int code =
        file != NULL ? export_to(given, file) : cli_refuse("%s cannot be written: %s", given->output, strerror(errno));
    const bool whole = file != NULL && fflush(file) == 0 && ferror(file) == 0;
    if (code == CLI_DONE && !whole) {
        code = cli_refuse("%s cannot be written: %s", given->output, strerror(errno));
    }
    if (file != NULL) {
        (void)fclose(file);
    } else if (copy >= 0) {
        (void)close(copy);
    }
    if (code == CLI_DONE && carry_file_commit(given->ctx, &writing) != CARRY_OK) {
        return cli_failed(given->ctx);
    }
    carry_file_abandon(&writing);
    return code;
}
