/* carry runs export RUN.... */
#include <errno.h>
#include <string.h>
#include <unistd.h>

#include "cli/lab/cmd_runs.h"
#include "core/file.h"
#include "lab/export.h"

#define MOST_CURVES 64 /* runs in one table */

static int export_one(const cli_runs_wish *w, FILE *to, const char *text) {
    carry_run *run;
    if (!cli_runs_load(w, &run, text)) {
        return CLI_IMPOSSIBLE;
    }
    carry_status status = CARRY_OK;
    if (w->csv) {
        carry_export_csv(to, run, w->samples);
    } else {
        status = w->history ? carry_export_history(w->ctx, to, run) : carry_export_json(w->ctx, to, run);
    }
    carry_run_free(run);
    return status == CARRY_OK ? CLI_DONE : cli_failed(w->ctx);
}

/* Runs with curves have a table of other columns than runs with results. */
static int export_curves(const cli_runs_wish *w, FILE *to) {
    const int count = w->words - 1;
    carry_run *runs[MOST_CURVES] = {NULL};
    int code = CLI_DONE;
    if (count > MOST_CURVES) {
        return cli_refuse("a table has the curves of at most %d runs, not %d", MOST_CURVES, count);
    }
    for (int i = 0; i < count && code == CLI_DONE; i++) {
        code = cli_runs_load(w, &runs[i], w->word[i + 1]) ? CLI_DONE : CLI_IMPOSSIBLE;
        if (code == CLI_DONE && !carry_export_has_curve(runs[i])) {
            code = cli_refuse("run %lld has no curve but run %lld has one: export them separately",
                              (long long)runs[i]->id, (long long)runs[0]->id);
        }
    }
    if (code == CLI_DONE && carry_export_csv_curves(w->ctx, to, runs, count) != CARRY_OK) {
        code = cli_failed(w->ctx);
    }
    for (int i = 0; i < count; i++) {
        carry_run_free(runs[i]);
    }
    return code;
}

/* Does the first run have a curve? A message where it cannot be read. */
static int first_has_curve(const cli_runs_wish *w, bool *has) {
    carry_run *run;
    if (!cli_runs_load(w, &run, w->word[1])) {
        return CLI_IMPOSSIBLE;
    }
    *has = carry_export_has_curve(run);
    carry_run_free(run);
    return CLI_DONE;
}

static int export_to(const cli_runs_wish *w, FILE *to) {
    int code = CLI_DONE;
    if (w->csv) {
        bool curves = false;
        code = first_has_curve(w, &curves);
        if (code == CLI_DONE && curves) {
            return w->samples ? cli_refuse("--samples: the run has a curve, not samples") : export_curves(w, to);
        }
        if (code == CLI_DONE) {
            carry_export_csv_head(to, w->samples);
        }
    }
    for (int i = 1; i < w->words && code == CLI_DONE; i++) {
        code = export_one(w, to, w->word[i]);
    }
    return code;
}

static int export_events(const cli_runs_wish *w) {
    int code = CLI_DONE;
    for (int i = 1; i < w->words && code == CLI_DONE; i++) {
        carry_run *run;
        char path[4096];
        if (!cli_runs_load(w, &run, w->word[i])) {
            return CLI_IMPOSSIBLE;
        }
        if (carry_export_tensorboard(w->ctx, w->tensorboard, run, path) == CARRY_OK) {
            (void)printf("%s\n", path);
        } else {
            code = cli_failed(w->ctx);
        }
        carry_run_free(run);
    }
    return code;
}

/* What stood there stays until the whole of the new file is there. */
int cli_runs_export(cli_runs_wish *w) {
    if (w->words < 2) {
        return cli_refuse("runs export needs a run: a number, a name, or last");
    }
    if (w->tensorboard != NULL) {
        return export_events(w);
    }
    if (w->output == NULL) {
        return export_to(w, stdout);
    }
    carry_file_writing writing;
    if (carry_file_begin(w->ctx, &writing, w->output) != CARRY_OK) {
        return cli_failed(w->ctx);
    }
    const int copy = dup(writing.file);
    FILE *file = copy >= 0 ? fdopen(copy, "w") : NULL;
    int code = file != NULL ? export_to(w, file) : cli_refuse("%s cannot be written: %s", w->output, strerror(errno));
    const bool whole = file != NULL && fflush(file) == 0 && ferror(file) == 0;
    if (code == CLI_DONE && !whole) {
        code = cli_refuse("%s cannot be written: %s", w->output, strerror(errno));
    }
    if (file != NULL) {
        (void)fclose(file);
    } else if (copy >= 0) {
        (void)close(copy);
    }
    if (code == CLI_DONE && carry_file_commit(w->ctx, &writing) != CARRY_OK) {
        return cli_failed(w->ctx);
    }
    carry_file_abandon(&writing);
    return code;
}
