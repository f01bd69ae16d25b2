/* carry runs list | show | compare | export | gc. */
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "cli/cli.h"
#include "core/clock.h"
#include "core/file.h"
#include "lab/compare.h"
#include "lab/export.h"
#include "lab/store/store.h"

#define NOT_QUIET 0.15 /* of drift between the ceilings of two runs, or of contention in one */

typedef struct wish {
    carry_ctx *ctx;
    carry_store *store;
    bool json, csv, samples, yes;
    const char *kind, *name, *output;
    int64_t limit, keep;
    double slack;
    int words;
    char **word;
} wish;

static const char *date_text(char text[24], double seconds) {
    time_t whole = (time_t)seconds;
    struct tm parts;
    if (localtime_r(&whole, &parts) == NULL || strftime(text, 24, "%Y-%m-%d %H:%M", &parts) == 0) {
        text[0] = '\0';
    }
    return text;
}

static void print_line(const wish *w, carry_run_line *line) {
    char date[24];
    if (!w->json) {
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
    cli_json_bool("dirty", line->dirty);
    cli_json_close();
}

static int list_runs(wish *w) {
    carry_run_line *lines;
    int count;
    if (carry_store_lines(w->store, &lines, &count, w->kind, w->name, (int)(w->limit < INT32_MAX ? w->limit : 0)) !=
        CARRY_OK) {
        return cli_failed(w->ctx);
    }
    if (!w->json && count > 0) {
        (void)printf("%5s  %-16s  %-10s  %-11s  %-10s  %7s  %s\n", "run", "started", "kind", "state", "decision",
                     "results", "name");
    }
    for (int i = 0; i < count; i++) {
        print_line(w, &lines[i]);
    }
    if (!w->json && count == 0) {
        (void)printf("no runs in %s\n", carry_store_path(w->store));
    }
    free(lines);
    return CLI_DONE;
}

/* False after a message. */
static bool load(wish *w, carry_run **run, const char *text) {
    int64_t id;
    *run = NULL;
    if (carry_store_find(w->store, &id, text) != CARRY_OK || carry_store_load(w->store, run, id) != CARRY_OK) {
        (void)cli_failed(w->ctx);
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
    (void)printf("  commit    %s%s\n", run->commit[0] != '\0' ? run->commit : "none",
                 run->dirty ? ", with changes" : "");
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

/* All texts of a run, which are its own: a store may come from anywhere. */
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

static int show_runs(wish *w) {
    if (w->words < 2) {
        return cli_refuse("runs show needs a run: a number, a name, or last");
    }
    for (int i = 1; i < w->words; i++) {
        carry_run *run;
        if (!load(w, &run, w->word[i])) {
            return CLI_IMPOSSIBLE;
        }
        carry_status status = CARRY_OK;
        if (w->json) {
            status = carry_export_json(w->ctx, stdout, run);
        } else {
            make_plain(run);
            print_run(run);
        }
        carry_run_free(run);
        if (status != CARRY_OK) {
            return cli_failed(w->ctx);
        }
    }
    return CLI_DONE;
}

static void print_pair(const wish *w, const carry_pair *p) {
    const carry_ratio *r = &p->ratio;
    const char *verdict = r->within_noise ? "within noise" : r->ratio > 1.0 ? "faster" : "slower";
    if (w->json) {
        cli_json_open();
        cli_json_text("problem", p->a->is.problem);
        cli_json_text("algorithm", p->a->is.method);
        cli_json_number("a_s", p->a->is.median);
        cli_json_number("b_s", p->b->is.median);
        cli_json_number("ratio", r->ratio);
        cli_json_number("low", r->low);
        cli_json_number("high", r->high);
        cli_json_text("verdict", verdict);
        cli_json_close();
        return;
    }
    char a[32];
    char b[32];
    (void)printf("  %-44s %-14s %9s %9s  %5.3f  %5.3f to %5.3f  %s%s%s\n", p->a->is.problem, p->a->is.method,
                 carry_time_text(a, p->a->is.median), carry_time_text(b, p->b->is.median), r->ratio, r->low, r->high,
                 r->within_noise  ? cli_dim()
                 : r->ratio > 1.0 ? cli_green()
                                  : cli_red(),
                 verdict, cli_plain());
}

static void print_comparison(const wish *w, const carry_comparison *c, const carry_run *a, const carry_run *b) {
    const char *verdict = c->within_noise  ? "within noise"
                          : c->mean_within ? "mixed"
                          : c->mean > 1.0  ? "faster"
                                           : "slower";
    if (!w->json) {
        (void)printf("  %-44s %-14s %9s %9s  %5s  %s\n", "problem", "algorithm", "A", "B", "A / B", "95 % interval");
    }
    for (int i = 0; i < c->pairs; i++) {
        print_pair(w, &c->pair[i]);
    }
    if (w->json) {
        cli_json_open();
        cli_json_integer("a", a->id);
        cli_json_integer("b", b->id);
        cli_json_integer("pairs", c->pairs);
        cli_json_number("mean", c->mean);
        cli_json_number("low", c->low);
        cli_json_number("high", c->high);
        cli_json_number("slack", c->slack);
        cli_json_number("drift", c->drift);
        cli_json_number("contention", c->contention);
        cli_json_bool("same_machine", c->same_machine);
        cli_json_text("verdict", verdict);
        cli_json_close();
        return;
    }
    (void)printf("%srun %lld against run %lld: %s%s\n", cli_bold(), (long long)b->id, (long long)a->id, verdict,
                 cli_plain());
    (void)printf("  geometric mean %.3f (%.3f to %.3f); %d within noise, %d faster, %d slower; only in A %d, only in B "
                 "%d\n",
                 c->mean, c->low, c->high, c->within, c->faster, c->slower, c->only_a, c->only_b);
    (void)printf(
        "  noise between runs is taken as %.1f %%: 5 %% unless given, the machine's ceilings moved by %.1f %%, other "
        "processes took up to %.0f %%%s\n",
        100.0 * c->slack, 100.0 * c->drift, 100.0 * c->contention,
        c->same_machine ? "" : "; the runs are from different machines, whose ratio this is");
    if (c->same_machine && fmax(c->drift, c->contention) > NOT_QUIET) {
        (void)printf("  %sthe machine was not quiet in one of the runs: run them again before believing either%s\n",
                     cli_red(), cli_plain());
    }
}

static int compare_runs(wish *w) {
    if (w->words != 3) {
        return cli_refuse("runs compare needs two runs, for example: carry runs compare 3 last");
    }
    carry_run *a = NULL;
    carry_run *b = NULL;
    carry_comparison comparison;
    int code = CLI_IMPOSSIBLE;
    if (load(w, &a, w->word[1]) && load(w, &b, w->word[2])) {
        if (carry_compare(w->ctx, &comparison, a, b, w->slack / 100.0) == CARRY_OK) {
            print_comparison(w, &comparison, a, b);
            carry_compare_free(&comparison);
            code = CLI_DONE;
        } else {
            code = cli_failed(w->ctx);
        }
    }
    carry_run_free(a);
    carry_run_free(b);
    return code;
}

static int export_to(wish *w, FILE *to) {
    if (w->csv) {
        carry_export_csv_head(to, w->samples);
    }
    for (int i = 1; i < w->words; i++) {
        carry_run *run;
        if (!load(w, &run, w->word[i])) {
            return CLI_IMPOSSIBLE;
        }
        carry_status status = CARRY_OK;
        if (w->csv) {
            carry_export_csv(to, run, w->samples);
        } else {
            status = carry_export_json(w->ctx, to, run);
        }
        carry_run_free(run);
        if (status != CARRY_OK) {
            return cli_failed(w->ctx);
        }
    }
    return CLI_DONE;
}

/* What stood there stays until the whole of the new file is there. */
static int export_runs(wish *w) {
    if (w->words < 2) {
        return cli_refuse("runs export needs a run: a number, a name, or last");
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

/* Without --keep: runs that were killed or interrupted before they had stored anything. */
static bool is_refuse(const wish *w, const carry_run_line *line, int newer) {
    if (strcmp(line->state, "running") == 0) {
        return false;
    }
    bool empty = line->results == 0 && line->others == 0 && strcmp(line->state, "done") != 0;
    return empty || (w->keep >= 0 && newer >= w->keep);
}

static int collect_garbage(wish *w) {
    carry_run_line *lines;
    int count;
    int deleted = 0;
    if (carry_store_lines(w->store, &lines, &count, w->kind, w->name, 0) != CARRY_OK) {
        return cli_failed(w->ctx);
    }
    int code = CLI_DONE;
    for (int i = 0; i < count && code == CLI_DONE; i++) {
        if (!is_refuse(w, &lines[i], i)) {
            continue;
        }
        if (!w->json) {
            (void)printf("%s run %lld: %s, %s\n", w->yes ? "deleting" : "would delete", (long long)lines[i].id,
                         cli_make_plain(lines[i].name), lines[i].state);
        }
        deleted++;
        if (w->yes && carry_store_delete(w->store, lines[i].id) != CARRY_OK) {
            code = cli_failed(w->ctx);
        }
    }
    free(lines);
    if (code == CLI_DONE && w->yes && carry_store_compact(w->store) != CARRY_OK) {
        code = cli_failed(w->ctx);
    }
    if (code == CLI_DONE && w->json) {
        cli_json_open();
        cli_json_integer("runs", count);
        cli_json_integer("deleted", w->yes ? deleted : 0);
        cli_json_integer("would_delete", deleted);
        cli_json_close();
    } else if (code == CLI_DONE) {
        (void)printf("%d of %d runs%s\n", deleted, count, w->yes ? " deleted" : "; --yes deletes them");
    }
    return code;
}

/* What would be without effect is a mistake: an option of another word, a run where none is asked for. */
static int refuse_idle(const wish *w) {
    const struct {
        bool given;
        const char *option, *words;
    } options[] = {{w->kind != NULL, "kind", "list gc"},
                   {w->name != NULL, "name", "list gc"},
                   {w->limit > 0, "limit", "list"},
                   {w->slack > 0.0, "slack", "compare"},
                   {w->csv, "csv", "export"},
                   {w->samples, "samples", "export"},
                   {w->output != NULL, "output", "export"},
                   {w->keep >= 0, "keep", "gc"},
                   {w->yes, "yes", "gc"}};
    const char *word = w->word[0];
    for (size_t i = 0; i < sizeof options / sizeof options[0]; i++) {
        if (options[i].given && strstr(options[i].words, word) == NULL) {
            return cli_refuse("runs %s has no option --%s (carry runs --help tells whose it is)", word,
                              options[i].option);
        }
    }
    if (w->samples && !w->csv) {
        return cli_refuse("--samples needs --csv: JSON has the samples anyway");
    }
    if (w->words > 1 && (strcmp(word, "list") == 0 || strcmp(word, "gc") == 0)) {
        char shown[64];
        return cli_refuse("runs %s takes no run, and '%s' is given", word, cli_shown(shown, w->word[1]));
    }
    return CLI_DONE;
}

static int act(wish *w) {
    static const struct {
        const char *name;
        int (*run)(wish *w);
    } actions[] = {{"list", list_runs},
                   {"show", show_runs},
                   {"compare", compare_runs},
                   {"export", export_runs},
                   {"gc", collect_garbage}};
    for (size_t i = 0; i < sizeof actions / sizeof actions[0]; i++) {
        if (strcmp(w->word[0], actions[i].name) == 0) {
            return refuse_idle(w) == CLI_DONE ? actions[i].run(w) : CLI_IMPOSSIBLE;
        }
    }
    char shown[64];
    return cli_refuse("runs has no '%s': list, show, compare, export and gc it has", cli_shown(shown, w->word[0]));
}

static int run(int count, char **arguments) {
    cli_common common = {0};
    wish w = {.word = arguments, .keep = -1};
    const char *store = NULL;
    const cli_option own[] = {
        {"store", 0, CLI_TEXT, &store, "FILE", "the run store ($CARRY_STORE, or .carry/store.db of the project)"},
        {"kind", 0, CLI_TEXT, &w.kind, "KIND", "list, gc: only runs of this kind (experiment, profile, ...)"},
        {"name", 0, CLI_TEXT, &w.name, "PREFIX", "list, gc: only runs whose name begins so (sweep/ for a series)"},
        {"limit", 0, CLI_NUMBER, &w.limit, "N", "list: the newest N"},
        {"slack", 0, CLI_SECONDS, &w.slack, "PERCENT", "compare: what counts as noise between runs (5)"},
        {"csv", 0, CLI_FLAG, &w.csv, NULL, "export: a table instead of JSON"},
        {"samples", 0, CLI_FLAG, &w.samples, NULL, "export --csv: a row per sample instead of per result"},
        {"output", 'o', CLI_TEXT, &w.output, "FILE", "export: to a file instead of standard output"},
        {"keep", 0, CLI_NUMBER, &w.keep, "N", "gc: delete all but the newest N"},
        {"yes", 0, CLI_FLAG, &w.yes, NULL, "gc: do it"},
        {0},
    };
    w.words = cli_parse(&cli_runs, count, arguments, own, &common);
    if (w.words < 0 || common.help) {
        return w.words < 0 ? CLI_IMPOSSIBLE : CLI_DONE;
    }
    if (w.words == 0) {
        return cli_refuse("runs needs a word: list, show, compare, export or gc");
    }
    if (cli_store_there(store) != CLI_DONE) {
        return CLI_IMPOSSIBLE;
    }
    if (w.csv && common.json) {
        return cli_refuse("give --csv or --json, not both");
    }
    common.threads = 1; /* nothing is computed here */
    w.json = common.json;
    w.ctx = cli_open(&common);
    if (w.ctx == NULL) {
        return CLI_IMPOSSIBLE;
    }
    int code = carry_store_open(w.ctx, &w.store, store) == CARRY_OK ? act(&w) : cli_failed(w.ctx);
    carry_store_close(w.store);
    carry_ctx_free(w.ctx);
    return code;
}

const cli_verb cli_runs = {
    .name = "runs",
    .arguments = "WHAT [RUN...]",
    .summary = "stored runs: list, show, compare, export, gc",
    .details = "  list              the newest first\n"
               "  show RUN...       command, commit, machine, results, criteria\n"
               "  compare A B       ratios of medians with a 95 % interval; says when a difference is within noise\n"
               "  export RUN...     everything as JSON, a run a line, or --csv\n"
               "  gc                delete runs that ended before storing anything; --keep N: all but the newest N;\n"
               "                    shows what it would do until --yes\n"
               "A RUN is its number, its name (the newest of that name), or last.",
    .example = "carry runs compare 3 last",
    .run = run,
};
