/* carry report RUN... -o report.html. */
#include <stdlib.h>
#include <string.h>

#include "cli/cli.h"
#include "core/file.h"
#include "lab/report/report.h"
#include "lab/store/store.h"

typedef struct request {
    const char *output, *store;
    carry_report_options options;
    bool json;
} request;

static int load_runs(carry_ctx *ctx, const char *path, carry_run **runs, int words, char **arguments) {
    carry_store *store;
    if (carry_store_open(ctx, &store, path) != CARRY_OK) {
        return cli_failed(ctx);
    }
    int code = CLI_DONE;
    int64_t ids[CARRY_REPORT_RUNS];
    for (int i = 0; i < words && code == CLI_DONE; i++) {
        if (carry_store_find(store, &ids[i], arguments[i]) != CARRY_OK ||
            carry_store_load(store, &runs[i], ids[i]) != CARRY_OK) {
            code = cli_failed(ctx);
        }
        for (int j = 0; j < i && code == CLI_DONE; j++) {
            if (ids[j] == ids[i]) {
                char shown[64];
                code = cli_refuse("'%s' is run %lld, which is given twice", cli_shown(shown, arguments[i]),
                                  (long long)ids[i]);
            }
        }
    }
    carry_store_close(store);
    return code;
}

static int write_report(carry_ctx *ctx, const request *r, carry_run **runs, int count) {
    carry_report report;
    if (carry_report_make(ctx, &report, runs, count, &r->options) != CARRY_OK ||
        carry_file_replace(ctx, r->output, report.html, report.length) != CARRY_OK) {
        free(report.html);
        return cli_failed(ctx);
    }
    free(report.html);
    if (report.warning[0] != '\0') {
        (void)cli_refuse("%s", report.warning);
    }
    if (r->json) {
        cli_json_open();
        cli_json_text("report", r->output);
        cli_json_integer("runs", count);
        cli_json_integer("plots", report.plots);
        cli_json_integer("bytes", (int64_t)report.length);
        cli_json_close();
    } else {
        (void)printf("%s%s%s: %d run%s, %d plot%s, %zu kB\n", cli_bold(), r->output, cli_plain(), count,
                     count > 1 ? "s" : "", report.plots, report.plots == 1 ? "" : "s", (report.length + 500) / 1000);
    }
    return CLI_DONE;
}

static int run(int count, char **arguments) {
    cli_common common = {0};
    request r = {.output = "report.html", .options.stop = cli_interrupted};
    const cli_option own[] = {
        {"output", 'o', CLI_TEXT, &r.output, "FILE", "the file to write (report.html)"},
        {"store", 0, CLI_TEXT, &r.store, "PATH", "the run store ($CARRY_STORE, or .carry/store.db of the project)"},
        {"baseline", 0, CLI_TEXT, &r.options.baseline, "METHOD",
         "method that speedups refer to (that of the criteria, else sequential)"},
        {0},
    };
    int words = cli_parse(&cli_report, count, arguments, own, &common);
    if (words < 0 || common.help) {
        return words < 0 ? CLI_IMPOSSIBLE : CLI_DONE;
    }
    if (words < 1 || words > CARRY_REPORT_RUNS) {
        return words < 1 ? cli_refuse("report needs a run: a number, a name or last (carry runs list shows them)")
                         : cli_refuse("a report has at most %d runs, not %d", CARRY_REPORT_RUNS, words);
    }
    carry_ctx *ctx = cli_store_there(r.store) == CLI_DONE ? cli_open(&common) : NULL;
    if (ctx == NULL) {
        return CLI_IMPOSSIBLE;
    }
    cli_catch_interrupt();
    r.json = common.json;
    carry_run *runs[CARRY_REPORT_RUNS] = {NULL};
    int code = load_runs(ctx, r.store, runs, words, arguments);
    code = code == CLI_DONE ? write_report(ctx, &r, runs, words) : code;
    for (int i = 0; i < words; i++) {
        carry_run_free(runs[i]);
    }
    carry_ctx_free(ctx);
    return code;
}

const cli_verb cli_report = {
    .name = "report",
    .arguments = "RUN...",
    .summary = "write one HTML file with verdicts, tables and plots of stored runs",
    .details =
        "A run is a number, a name (the newest run of that name) or last. The report is one self-contained file. The\n"
        "decision comes first, then criteria, results, plots (time and speedup against T, accuracy, roofline,\n"
        "metrics over steps; hotspots of a profile), the method and the machine. If several runs are given, each is\n"
        "compared with the first. Plots are drawn by gnuplot; if it is missing, the report has only tables, and a\n"
        "note says so.",
    .example = "carry report last -o report.html",
    .run = run,
};
