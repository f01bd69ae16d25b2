/* carry runs list | show | compare | export | gc. */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "cli/lab/cmd_runs.h"
#include "core/clock.h"
#include "lab/export.h"

static const char *date_text(char text[24], double seconds) {
    time_t whole = (time_t)seconds;
    struct tm parts;
    if (localtime_r(&whole, &parts) == NULL || strftime(text, 24, "%Y-%m-%d %H:%M", &parts) == 0) {
        text[0] = '\0';
    }
    return text;
}

static void print_line(const cli_runs_options *given, carry_run_line *line) {
    char date[24];
    if (!given->json) {
        char *const texts[] = {line->kind, line->state, line->decision, line->name};
        for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
            (void)cli_make_plain(texts[i]);
        }
        (void)printf("%5lld  %-16s  %-10s  %-11s  %-10s  %7lld  %s\n", (long long)line->id,
                     date_text(date, line->started), line->kind, line->state, line->decision, (long long)line->results,
                     line->name);
        return;
    }
    cli_json_open();
    cli_json_integer("run", line->id);
    cli_json_text("name", line->name);
    cli_json_text("kind", line->kind);
    cli_json_text("state", line->state);
    cli_json_text("decision", line->decision);
    cli_json_number("started", floor(line->started));
    cli_json_integer("results", line->results);
    cli_json_text("commit", line->commit);
    if (line->dirty < 0) {
        cli_json_number("dirty", NAN); /* NaN becomes null: unknown */
    } else {
        cli_json_bool("dirty", line->dirty > 0);
    }
    cli_json_close();
}

static int list_runs(cli_runs_options *given) {
    carry_run_line *lines;
    int count;
    if (carry_store_lines(given->store, &lines, &count, given->kind, given->name,
                          (int)(given->limit < INT32_MAX ? given->limit : 0)) != CARRY_OK) {
        return cli_failed(given->ctx);
    }
    if (!given->json && count > 0) {
        (void)printf("%5s  %-16s  %-10s  %-11s  %-10s  %7s  %s\n", "run", "started", "kind", "state", "decision",
                     "results", "name");
    }
    for (int i = 0; i < count; i++) {
        print_line(given, &lines[i]);
    }
    if (!given->json && count == 0) {
        (void)printf("no runs in %s\n", carry_store_path(given->store));
    }
    free(lines);
    return CLI_DONE;
}

bool cli_runs_load(const cli_runs_options *given, carry_run **run, const char *text) {
    int64_t id;
    *run = NULL;
    if (carry_store_find(given->store, &id, text) != CARRY_OK || carry_store_load(given->store, run, id) != CARRY_OK) {
        (void)cli_failed(given->ctx);
        return false;
    }
    return true;
}

static void print_results(const carry_run *run) {
    const char *heading = "";
    char time[32];
    for (int i = 0; i < run->results; i++) {
        const carry_stored_result *is = &run->result[i].is;
        if (strcmp(heading, is->problem) != 0) {
            (void)printf("%s%s%s\n", cli_bold(), is->problem, cli_plain());
            heading = is->problem;
        }
        if (is->reason[0] != '\0') {
            (void)printf("  %s%-14s not measured: %s%s\n", cli_dim(), is->method, is->reason, cli_plain());
        } else {
            char use[CLI_FIGURE], error[CLI_FIGURE];
            (void)printf("  %-14s %9s  spread %3.0f %%  %5d samples  %s%s%s\n", is->method,
                         carry_time_text(time, is->median), 100.0 * is->spread, run->result[i].samples,
                         cli_use(use, is->share), cli_error(error, is->error), is->planned ? "  planned" : "");
        }
    }
}

static void print_run(const carry_run *run) {
    char date[24];
    (void)printf("%srun %lld: %s%s (%s)\n", cli_bold(), (long long)run->id, run->name, cli_plain(), run->kind);
    (void)printf("  state     %s%s%s\n", run->state, run->decision[0] != '\0' ? ", decision " : "", run->decision);
    (void)printf("  started   %s", date_text(date, run->started));
    if (run->ended > 0.0) {
        (void)printf(", took %.1f s\n", run->ended - run->started);
    } else {
        (void)printf(", no end was stored\n");
    }
    (void)printf("  command   %s\n", run->command);
    (void)printf("  commit    %s%s\n", run->commit[0] != '\0' ? run->commit : "not known",
                 run->dirty > 0                             ? ", with changes"
                 : run->dirty < 0 && run->commit[0] != '\0' ? ", changes not known"
                                                            : "");
    if (run->note[0] != '\0') {
        (void)printf("  note      %s\n", run->note);
    }
    for (int i = 0; i < run->facts; i++) {
        (void)printf("  %s%-12s %s%s\n", cli_dim(), run->fact[i].name, run->fact[i].value, cli_plain());
    }
    print_results(run);
    for (int i = 0; i < run->criteria; i++) {
        const carry_stored_criterion *c = &run->criterion[i];
        (void)printf("  %-7s  %-12s %s  %s\n", c->side, c->verdict, c->text, c->reason);
    }
    for (int i = 0; i < run->artefacts; i++) {
        (void)printf("  artefact  %s, %lld bytes\n", run->artefact[i].name, (long long)run->artefact[i].bytes);
    }
    if (run->metrics > 0) {
        (void)printf("  %d figures of steps and results (carry runs export --json)\n", run->metrics);
    }
}

/* Replaces control characters in all texts of a run, since a store may come from anywhere. */
static void make_plain(carry_run *run) {
    char *const texts[] = {run->kind, run->name, run->command, run->commit, run->state, run->decision, run->note};
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
        (void)cli_make_plain(texts[i]);
    }
    for (int i = 0; i < run->facts; i++) {
        (void)cli_make_plain(run->fact[i].name);
        (void)cli_make_plain(run->fact[i].value);
    }
    for (int i = 0; i < run->artefacts; i++) {
        (void)cli_make_plain(run->artefact[i].name);
    }
    for (int i = 0; i < run->results; i++) {
        const carry_stored_result *is = &run->result[i].is;
        const char *const owned[] = {is->problem, is->method, is->device, is->reason};
        for (size_t j = 0; j < sizeof owned / sizeof owned[0]; j++) {
            (void)cli_make_plain((char *)(uintptr_t)owned[j]);
        }
    }
    for (int i = 0; i < run->criteria; i++) {
        const carry_stored_criterion *c = &run->criterion[i];
        const char *const owned[] = {c->side, c->text, c->verdict, c->reason};
        for (size_t j = 0; j < sizeof owned / sizeof owned[0]; j++) {
            (void)cli_make_plain((char *)(uintptr_t)owned[j]);
        }
    }
}

static int show_runs(cli_runs_options *given) {
    if (given->words < 2) {
        return cli_refuse("runs show needs a run: a number, a name, or last");
    }
    for (int i = 1; i < given->words; i++) {
        carry_run *run;
        if (!cli_runs_load(given, &run, given->word[i])) {
            return CLI_IMPOSSIBLE;
        }
        carry_status status = CARRY_OK;
        if (given->json) {
            status = carry_export_json(given->ctx, stdout, run);
        } else {
            make_plain(run);
            print_run(run);
        }
        carry_run_free(run);
        if (status != CARRY_OK) {
            return cli_failed(given->ctx);
        }
    }
    return CLI_DONE;
}

/* True if a run is to be removed. A run that is running is kept. Any other is removed if it is not done and stored
   nothing, or, with --keep N, if at least N runs are newer. */
static bool is_refuse(const cli_runs_options *given, const carry_run_line *line, int newer) {
    if (strcmp(line->state, "running") == 0) {
        return false;
    }
    bool empty = line->results == 0 && line->others == 0 && strcmp(line->state, "done") != 0;
    return empty || (given->keep >= 0 && newer >= given->keep);
}

static int collect_garbage(cli_runs_options *given) {
    carry_run_line *lines;
    int count;
    int deleted = 0;
    if (carry_store_lines(given->store, &lines, &count, given->kind, given->name, 0) != CARRY_OK) {
        return cli_failed(given->ctx);
    }
    int code = CLI_DONE;
    for (int i = 0; i < count && code == CLI_DONE; i++) {
        if (!is_refuse(given, &lines[i], i)) {
            continue;
        }
        if (!given->json) {
            (void)printf("%s run %lld: %s, %s\n", given->yes ? "deleting" : "would delete", (long long)lines[i].id,
                         cli_make_plain(lines[i].name), lines[i].state);
        }
        deleted++;
        if (given->yes && carry_store_delete(given->store, lines[i].id) != CARRY_OK) {
            code = cli_failed(given->ctx);
        }
    }
    free(lines);
    if (code == CLI_DONE && given->yes && carry_store_compact(given->store) != CARRY_OK) {
        code = cli_failed(given->ctx);
    }
    if (code == CLI_DONE && given->json) {
        cli_json_open();
        cli_json_integer("runs", count);
        cli_json_integer("deleted", given->yes ? deleted : 0);
        cli_json_integer("would_delete", deleted);
        cli_json_close();
    } else if (code == CLI_DONE) {
        (void)printf("%d of %d runs%s\n", deleted, count, given->yes ? " deleted" : "; --yes deletes them");
    }
    return code;
}

/* Accepts run numbers only: last or a name might refer to another run than intended. */
static int delete_runs(cli_runs_options *given) {
    if (given->words < 2) {
        return cli_refuse("runs delete needs the number of a run (carry runs list shows them)");
    }
    for (int i = 1; i < given->words; i++) {
        carry_run *run;
        const size_t digits = strspn(given->word[i], "0123456789");
        if (digits == 0 || given->word[i][digits] != '\0') {
            char shown[64];
            return cli_refuse("runs delete takes numbers only, not '%s' (carry runs list shows them)",
                              cli_shown(shown, given->word[i]));
        }
        if (!cli_runs_load(given, &run, given->word[i])) {
            return CLI_IMPOSSIBLE;
        }
        make_plain(run);
        int code = CLI_DONE;
        if (strcmp(run->state, "running") == 0) {
            code = cli_refuse("run %lld is running and is not deleted", (long long)run->id);
        } else if (given->yes && carry_store_delete(given->store, run->id) != CARRY_OK) {
            code = cli_failed(given->ctx);
        } else if (given->json) {
            cli_json_open();
            cli_json_integer("run", run->id);
            cli_json_text("name", run->name);
            cli_json_bool("deleted", given->yes);
            cli_json_close();
        } else {
            (void)printf("run %lld (%s, %s, %d results): %s\n", (long long)run->id, run->name, run->state, run->results,
                         given->yes ? "deleted" : "would be deleted; --yes deletes it");
        }
        carry_run_free(run);
        if (code != CLI_DONE) {
            return code;
        }
    }
    return CLI_DONE;
}

/* Refuses arguments without effect: an option of another word, or a run where none is expected. */
static int refuse_idle(const cli_runs_options *given) {
    const struct {
        bool given;
        const char *option, *words;
    } options[] = {{given->kind != NULL, "kind", "list gc"},
                   {given->name != NULL, "name", "list gc"},
                   {given->limit > 0, "limit", "list"},
                   {given->slack > 0.0, "slack", "compare"},
                   {given->csv, "csv", "export"},
                   {given->samples, "samples", "export"},
                   {given->history, "history", "export"},
                   {given->tensorboard != NULL, "tensorboard", "export"},
                   {given->output != NULL, "output", "export"},
                   {given->keep >= 0, "keep", "gc"},
                   {given->yes, "yes", "gc delete"}};
    const char *word = given->word[0];
    for (size_t i = 0; i < sizeof options / sizeof options[0]; i++) {
        if (options[i].given && strstr(options[i].words, word) == NULL) {
            return cli_refuse("runs %s has no option --%s (see carry runs --help)", word, options[i].option);
        }
    }
    if (given->samples && !given->csv) {
        return cli_refuse("--samples needs --csv: JSON has the samples anyway");
    }
    if (given->words > 1 && (strcmp(word, "list") == 0 || strcmp(word, "gc") == 0)) {
        char shown[64];
        return cli_refuse("runs %s takes no run, and '%s' is given", word, cli_shown(shown, given->word[1]));
    }
    return CLI_DONE;
}

static int act(cli_runs_options *given) {
    static const struct {
        const char *name;
        int (*run)(cli_runs_options *given);
    } actions[] = {{"list", list_runs},         {"show", show_runs},     {"compare", cli_runs_compare},
                   {"export", cli_runs_export}, {"delete", delete_runs}, {"gc", collect_garbage},
                   {"import", cli_runs_import}};
    for (size_t i = 0; i < sizeof actions / sizeof actions[0]; i++) {
        if (strcmp(given->word[0], actions[i].name) == 0) {
            return refuse_idle(given) == CLI_DONE ? actions[i].run(given) : CLI_IMPOSSIBLE;
        }
    }
    char shown[64];
    return cli_refuse("runs has no '%s': expected list, show, compare, export, import, delete or gc",
                      cli_shown(shown, given->word[0]));
}

static int run(int count, char **arguments) {
    cli_common common = {0};
    cli_runs_options given = {.word = arguments, .keep = -1};
    const char *store = NULL;
    const cli_option own[] = {
        {"store", 0, CLI_TEXT, &store, "FILE", "the run store ($CARRY_STORE, or .carry/store.db of the project)"},
        {"kind", 0, CLI_TEXT, &given.kind, "KIND", "list, gc: only runs of this kind (experiment, profile, ...)"},
        {"name", 0, CLI_TEXT, &given.name, "PREFIX",
         "list, gc: only runs whose name starts with this (sweep/ for a series)"},
        {"limit", 0, CLI_NUMBER, &given.limit, "N", "list: the newest N"},
        {"slack", 0, CLI_SECONDS, &given.slack, "PERCENT", "compare: difference that counts as noise between runs (5)"},
        {"csv", 0, CLI_FLAG, &given.csv, NULL, "export: a table instead of JSON"},
        {"samples", 0, CLI_FLAG, &given.samples, NULL, "export --csv: a row per sample instead of per result"},
        {"history", 0, CLI_FLAG, &given.history, NULL,
         "export: a line of JSON per step, like the history of Weights & Biases"},
        {"tensorboard", 0, CLI_TEXT, &given.tensorboard, "DIR",
         "export: an event file per run, in a new folder in DIR"},
        {"output", 'o', CLI_TEXT, &given.output, "FILE", "export: write to a file instead of standard output"},
        {"keep", 0, CLI_NUMBER, &given.keep, "N", "gc: delete all but the newest N"},
        {"yes", 0, CLI_FLAG, &given.yes, NULL, "gc, delete: delete the runs listed"},
        {0},
    };
    given.words = cli_parse(&cli_runs, count, arguments, own, &common);
    if (given.words < 0 || common.help) {
        return given.words < 0 ? CLI_IMPOSSIBLE : CLI_DONE;
    }
    if (given.words == 0) {
        return cli_refuse("runs needs a word: list, show, compare, export, import, delete or gc");
    }
    if (strcmp(arguments[0], "import") != 0 && cli_store_there(store) != CLI_DONE) {
        return CLI_IMPOSSIBLE;
    }
    if (given.csv + given.history + (given.tensorboard != NULL) + common.json > 1) {
        return cli_refuse("--csv, --history, --tensorboard and --json: give only one of them");
    }
    if (given.tensorboard != NULL && given.output != NULL) {
        return cli_refuse("--tensorboard names the folder: omit --output");
    }
    common.threads = 1; /* nothing is computed here */
    given.json = common.json;
    given.ctx = cli_open(&common);
    if (given.ctx == NULL) {
        return CLI_IMPOSSIBLE;
    }
    int code = carry_store_open(given.ctx, &given.store, store) == CARRY_OK ? act(&given) : cli_failed(given.ctx);
    carry_store_close(given.store);
    carry_ctx_free(given.ctx);
    return code;
}

const cli_verb cli_runs = {
    .name = "runs",
    .arguments = "WHAT [RUN...]",
    .summary = "list, show, compare, export, import and delete stored runs",
    .details =
        "  list              list runs, newest first\n"
        "  show RUN...       print command, commit, machine, results and criteria\n"
        "  compare A B       print ratios of medians with 95 % intervals, and whether a difference is within noise;\n"
        "                    for trainings, tokens/s, loss at equal steps and memory\n"
        "  export RUN...     write all data as JSON, one line per run; or with --csv (for trainings, a row per\n"
        "                    logged step), --history or --tensorboard DIR\n"
        "  import FILE...    store the runs of files that export wrote as JSON; a run that is already there is kept\n"
        "  delete N...       print the runs of these numbers; --yes deletes them\n"
        "  gc                list the runs that ended before storing anything, or with --keep N all but the newest N;\n"
        "                    --yes deletes them\n"
        "A RUN is a number, a name (the newest run of that name), or last.",
    .example = "carry runs compare 3 last",
    .run = run,
};
