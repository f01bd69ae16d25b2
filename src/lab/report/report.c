/* The whole page: the question, the decision, the sections in order, the method and the machine. */
#include "lab/report/report.h"

#include <ctype.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/error.h"
#include "lab/report/html.h"
#include "lab/report/report_parts.h"
#include "lab/yaml.h"

/* How a decision looks, and the word that states it without colour. */
typedef struct look {
    const char *class, *mark, *word;
} look;

static look look_of(const carry_run *run) {
    static const struct {
        const char *name;
        look is;
    } looks[] = {
        {"proceed", {"good", "\xE2\x9C\x93", "Proceed"}}, {"stop", {"bad", "\xE2\x9C\x95", "Stop"}},
        {"incomplete", {"open", "?", "Incomplete"}},      {"running", {"open", "\xE2\x80\xA6", "Still running"}},
        {"killed", {"bad", "\xE2\x9C\x95", "Killed"}},    {"interrupted", {"open", "!", "Interrupted"}},
        {"failed", {"bad", "\xE2\x9C\x95", "Failed"}},    {"done", {"plain", "", "Done"}},
    };
    for (int pass = 0; pass < 2; pass++) { /* the decision, else the run's state */
        for (size_t i = 0; i < sizeof looks / sizeof looks[0]; i++) {
            if (strcmp(pass == 0 ? run->decision : run->state, looks[i].name) == 0) {
                return looks[i].is;
            }
        }
    }
    return (look){"plain", "?", "Undecided"};
}

/* Returns the value of a top-level key of the experiment's YAML text, which the caller frees; NULL if it is missing or
   the text cannot be parsed. */
static char *member_of(carry_ctx *ctx, const carry_run *run, const char *key) {
    carry_yaml *root = NULL;
    char *text = NULL;
    if (run->spec[0] != '\0' &&
        carry_yaml_parse(ctx, &root, run->spec, strlen(run->spec), "the experiment") == CARRY_OK) {
        const carry_yaml *node = root->kind == CARRY_YAML_MAPPING ? carry_yaml_get(root, key) : NULL;
        text = node != NULL && node->kind == CARRY_YAML_SCALAR && node->text != NULL ? strdup(node->text) : NULL;
    }
    carry_yaml_free(root);
    return text;
}

static void write_counts(FILE *to, const carry_run *run, const char *side, const char *words) {
    static const char *const verdicts[] = {"met", "not met", "not measured"};
    int counts[3] = {0};
    int all = 0;
    for (int i = 0; i < run->criteria; i++) {
        for (int j = 0; j < 3 && strcmp(run->criterion[i].side, side) == 0; j++) {
            counts[j] += strcmp(run->criterion[i].verdict, verdicts[j]) == 0;
            all += j == 0;
        }
    }
    if (all == 0) {
        return;
    }
    carry_html_raw(to, "<p class=\"counts\">%s: ", words);
    for (int j = 0, written = 0; j < 3; j++) {
        if (counts[j] > 0) {
            carry_html_raw(to, "%s%d %s", written++ > 0 ? ", " : "", counts[j], verdicts[j]);
        }
    }
    carry_html_raw(to, "</p>\n");
}

static void write_decision(carry_page *page, const carry_run *run) {
    look is = look_of(run);
    carry_html_raw(
        page->to,
        "<div class=\"decision %s\" role=\"status\">\n<p class=\"word\"><span aria-hidden=\"true\">%s</span> %s</p>\n",
        is.class, is.mark, is.word);
    write_counts(page->to, run, "success", "Criteria of success");
    write_counts(page->to, run, "failure", "Criteria of failure");
    if (run->criteria == 0 && strcmp(run->kind, CARRY_REPORT_TRAIN) != 0) {
        carry_html_raw(page->to, "<p class=\"counts\">This run has no criteria to decide by.</p>\n");
    }
    if (run->note[0] != '\0') {
        carry_html_around(page->to, "<p>", run->note, "</p>\n");
    }
    if (strcmp(run->state, "done") != 0) {
        carry_html_around(page->to, "<p>The run is marked ", run->state,
                          ": what it had stored by then is shown.</p>\n");
    }
    carry_html_raw(page->to, "</div>\n");
}

static void write_kicker(carry_page *page, const carry_run *run) {
    char date[CARRY_HTML_FIGURE];
    carry_html_around(page->to, "<p class=\"kicker\">", run->kind, "");
    carry_html_raw(page->to, " \xC2\xB7 run %lld \xC2\xB7 %s</p>\n", (long long)run->id,
                   carry_figure_date(date, run->started));
}

/* Writes how the times were measured: the actual number of repeats, not the requested one, and the comparison with the
   reference if there was one. */
static void write_method(carry_page *page, const carry_run *run) {
    int least = 0;
    int most = 0;
    bool checked = false;
    for (int i = 0; i < run->results; i++) {
        int samples = run->result[i].samples;
        if (carry_report_measured(&run->result[i])) {
            least = most == 0 || samples < least ? samples : least;
            most = samples > most ? samples : most;
            checked = checked || isfinite(run->result[i].is.error);
        }
    }
    if (most == 0) {
        return;
    }
    char *warm = member_of(page->ctx, run, "warm_up");
    bool benched = strcmp(run->kind, "experiment") == 0 || strcmp(run->kind, "bench") == 0;
    carry_report_heading(page, "Method");
    carry_html_raw(page->to, "<p>%s",
                   checked ? "Methods were compared with a float64 reference before they were timed. " : "");
    if (benched) {
        carry_html_around(page->to, "Warm-up runs, not counted: ", warm != NULL ? warm : "1", ". ");
        carry_html_raw(page->to,
                       "Then runs were timed one by one; the methods of a problem took turns, so that a disturbance of "
                       "the machine affects all of them. ");
    }
    carry_html_raw(page->to, "Repeats: %d", least);
    if (most > least) {
        carry_html_raw(page->to, " to %d", most);
    }
    carry_html_raw(page->to, ". ");
    carry_html_raw(
        page->to,
        "Spread is the interquartile range divided by the median. Share is relative to the limiting "
        "ceiling, arithmetic or memory; the ceilings are the fastest large product and a large copy, measured "
        "in the same run and, on the CPU, in turns with each problem. GB/s counts inputs and outputs once. Contention "
        "is the share of the machine that "
        "other processes used while a problem was measured.%s</p>\n",
        checked ? " Error is the largest difference divided by the largest magnitude of the reference." : "");
    free(warm);
}

static void write_term(FILE *to, const char *term, const char *value) {
    if (value[0] != '\0') {
        carry_html_around(to, "<dt>", term, "</dt>");
        carry_html_around(to, "<dd>", value, "</dd>\n");
    }
}

static void write_origin(carry_page *page, const carry_run *run) {
    char figure[CARRY_HTML_FIGURE];
    FILE *to = page->to;
    carry_report_heading(page, "Origin");
    carry_html_around(to, "<pre class=\"wrapped\"><code>", run->command, "</code></pre>\n<dl>\n");
    if (run->commit[0] != '\0') {
        carry_html_around(to, "<dt>commit</dt><dd><code>", run->commit, "</code>");
        carry_html_raw(to, "%s</dd>\n",
                       run->dirty > 0   ? ", <span class=\"bad\">with uncommitted changes</span>"
                       : run->dirty < 0 ? ", <span class=\"bad\">changes not known</span>"
                                        : ", nothing uncommitted");
    } else {
        carry_html_raw(to, "<dt>commit</dt><dd>not known: no git, or the folder is not a git repository</dd>\n");
    }
    write_term(to, "started", carry_figure_date(figure, run->started));
    write_term(to, "took", run->ended > run->started ? carry_figure_time(figure, run->ended - run->started) : "");
    write_term(to, "state", run->state);
    for (int i = 0; i < run->artefacts; i++) {
        carry_html_around(to, "<dt>artefact</dt><dd>", run->artefact[i].name, ", ");
        carry_html_around(to, "", carry_figure_bytes(figure, (double)run->artefact[i].bytes), "</dd>\n");
    }
    carry_html_raw(to, "</dl>\n");
    if (run->facts > 0) {
        carry_report_heading(page, "Machine");
        carry_html_raw(to, "<dl>\n");
        for (int i = 0; i < run->facts; i++) {
            write_term(to, run->fact[i].name, run->fact[i].value);
        }
        carry_html_raw(to, "</dl>\n");
    }
    if (run->spec[0] != '\0') {
        carry_report_heading(page, strcmp(run->kind, CARRY_REPORT_TRAIN) == 0
                                       ? "Configuration, as carry train --config takes it"
                                       : "The experiment as written");
        carry_html_around(to, "<pre><code>", run->spec, "</code></pre>\n");
    }
}

static void write_opening(carry_page *page, const carry_run *run) {
    char *hypothesis = member_of(page->ctx, run, "hypothesis");
    bool alone = page->count == 1;
    carry_html_raw(page->to, alone ? "<header>\n" : "<section id=\"run-%lld\">\n", (long long)run->id);
    if (!alone) {
        carry_html_around(page->to, "<h2>", run->name, "</h2>\n");
        write_kicker(page, run);
    } else {
        write_kicker(page, run);
        carry_html_around(page->to, "<h1>", run->name, "</h1>\n");
    }
    if (hypothesis != NULL) {
        carry_html_around(page->to, "<p class=\"hypothesis\">", hypothesis, "</p>\n");
    }
    carry_html_raw(page->to, alone ? "</header>\n<section>\n" : "");
    free(hypothesis);
}

static bool has_curves(const carry_run *run) {
    for (int i = 0; i < run->metrics; i++) {
        if (!carry_report_of_result(run, run->metric[i].name)) {
            return true;
        }
    }
    return false;
}

/* Writes the table of contents of a long page of one run. */
static void write_contents(carry_page *page, const carry_run *run) {
    const struct {
        const char *id, *words;
        bool here;
    } parts[] = {
        {"criteria", "Criteria", run->criteria > 0},
        {"results", "Results", run->results > 0},
        {"hotspots", "Hotspots", strcmp(run->kind, CARRY_REPORT_PROFILE) == 0},
        {"hyperparameters", "Hyperparameters", strcmp(run->kind, CARRY_REPORT_TRAIN) == 0 && run->spec[0] != '\0'},
        {"plots", "Plots", run->results > 0},
        {"over", "Over steps", has_curves(run)},
        {"where", "Origin", true},
        {"machine", "Machine", run->facts > 0}};
    carry_html_raw(page->to, "<nav aria-label=\"Contents\">");
    for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++) {
        if (parts[i].here) {
            carry_html_raw(page->to, "<a href=\"#%s\">%s</a> ", parts[i].id, parts[i].words);
        }
    }
    carry_html_raw(page->to, "</nav>\n");
}

static carry_status write_run(carry_page *page, const carry_run *run) {
    write_opening(page, run);
    write_decision(page, run);
    if (page->count == 1) {
        write_contents(page, run);
    }
    carry_report_criteria(page, run);
    carry_report_results(page, run);
    carry_report_hotspots(page, run);
    carry_report_hyperparameters(page, run);
    if (run->results > 0) {
        CARRY_TRY(carry_report_plots(page, run));
    }
    if (page->count == 1) {
        CARRY_TRY(carry_report_curves(page));
    }
    write_method(page, run);
    write_origin(page, run);
    carry_html_raw(page->to, "</section>\n");
    return CARRY_OK;
}

static void write_overview(carry_page *page) {
    carry_html_raw(page->to,
                   "<header>\n<p class=\"kicker\">carry report</p>\n<h1>%d runs</h1>\n</header>\n"
                   "<div class=\"scroll\" role=\"region\" tabindex=\"0\" aria-label=\"Runs\">\n<table>\n<thead><tr>"
                   "<th scope=\"col\">Decision</th><th scope=\"col\">Run</th><th scope=\"col\">Kind</th>"
                   "<th scope=\"col\">Started</th><th scope=\"col\">Commit</th></tr></thead>\n<tbody>\n",
                   page->count);
    for (int i = 0; i < page->count; i++) {
        const carry_run *run = page->runs[i];
        char date[CARRY_HTML_FIGURE];
        look is = look_of(run);
        carry_html_raw(page->to,
                       "<tr><td class=\"%s\"><span aria-hidden=\"true\">%s</span> %s</td><th scope=\"row\">"
                       "<a href=\"#run-%lld\">%lld, ",
                       is.class, is.mark, is.word, (long long)run->id, (long long)run->id);
        carry_html_around(page->to, "", run->name, "</a></th>");
        carry_html_around(page->to, "<td>", run->kind, "</td>");
        carry_html_raw(page->to, "<td>%s</td>", carry_figure_date(date, run->started));
        carry_html_raw(page->to, "<td><code>");
        char commit[13];
        (void)snprintf(commit, sizeof commit, "%s", run->commit);
        carry_html_around(page->to, "", commit[0] != '\0' ? commit : "not known",
                          run->dirty > 0 ? "</code> and changes</td></tr>\n" : "</code></td></tr>\n");
    }
    carry_html_raw(page->to, "</tbody>\n</table>\n</div>\n");
}

static void write_head(carry_page *page) {
    carry_html_raw(
        page->to,
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
        "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n"
        "<meta name=\"color-scheme\" content=\"light dark\">\n"
        /* This page fetches nothing and runs nothing, regardless of the content of the store. */
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'; "
        "img-src data:\">\n<link rel=\"icon\" href=\"data:,\">\n<title>");
    if (page->count == 1) {
        carry_html_around(page->to, "", page->runs[0]->name, ": ");
        carry_html_raw(page->to, "%s", look_of(page->runs[0]).word);
    } else {
        carry_html_raw(page->to, "%d runs compared", page->count);
    }
    carry_html_raw(page->to, "</title>\n<style>\n");
    for (int i = 0; carry_report_style[i] != NULL; i++) {
        (void)fputs(carry_report_style[i], page->to);
    }
    carry_html_raw(page->to, "</style>\n</head>\n<body>\n<main>\n");
}

static carry_status write_page(carry_page *page) {
    write_head(page);
    if (page->count > 1) {
        write_overview(page);
        CARRY_TRY(carry_report_compare(page));
        CARRY_TRY(carry_report_curves(page));
    }
    for (int i = 0; i < page->count; i++) {
        CARRY_TRY(write_run(page, page->runs[i]));
    }
    carry_html_raw(page->to, "<footer>Written by carry %s from its run store.</footer>\n</main>\n</body>\n</html>\n",
                   carry_version());
    return CARRY_OK;
}

static void list_methods(carry_page *page) {
    for (int i = 0; i < page->count; i++) {
        for (int j = 0; j < page->runs[i]->results; j++) {
            const char *name = page->runs[i]->result[j].is.method;
            if (carry_report_method(page, name) < 0 && page->methods < CARRY_REPORT_METHODS) {
                page->method[page->methods++] = name;
            }
        }
    }
}

bool carry_report_measured(const carry_run_result *result) {
    return result->is.reason[0] == '\0' && isfinite(result->is.median) && result->is.median > 0.0;
}

int carry_report_method(const carry_page *page, const char *name) {
    for (int i = 0; i < page->methods; i++) {
        if (strcmp(page->method[i], name) == 0) {
            return i;
        }
    }
    return -1;
}

void carry_report_heading(carry_page *page, const char *words) {
    if (page->count > 1) {
        carry_html_raw(page->to, "<h3>%s</h3>\n", words);
        return;
    }
    char id[24];
    size_t length = strcspn(words, " ");
    (void)snprintf(id, sizeof id, "%.*s", length < sizeof id ? (int)length : (int)sizeof id - 1, words);
    id[0] = (char)tolower((unsigned char)id[0]);
    carry_html_raw(page->to, "<h2 id=\"%s\">%s</h2>\n", id, words);
}

carry_status carry_report_make(carry_ctx *ctx, carry_report *report, carry_run *const *runs, int count,
                               const carry_report_options *options) {
    *report = (carry_report){0};
    if (count < 1 || count > CARRY_REPORT_RUNS) {
        return carry_fail(ctx, CARRY_EARGUMENT, "a report has 1 to %d runs, not %d", CARRY_REPORT_RUNS, count);
    }
    carry_page page = {.ctx = ctx, .report = report, .options = options, .runs = runs, .count = count, .drawing = true};
    list_methods(&page);
    if (options->baseline != NULL && carry_report_method(&page, options->baseline) < 0) {
        return carry_fail(ctx, CARRY_ENOTFOUND, "no run of this report has a method '%.40s' to compare with",
                          options->baseline);
    }
    page.to = open_memstream(&report->html, &report->length);
    if (page.to == NULL) {
        return carry_fail(ctx, CARRY_EMEMORY, "out of memory: the report");
    }
    carry_status status = write_page(&page);
    bool lost = ferror(page.to) != 0;
    if ((fclose(page.to) != 0 || lost) && status == CARRY_OK) {
        status = carry_fail(ctx, CARRY_EMEMORY, "out of memory: the report");
    }
    if (status != CARRY_OK) {
        free(report->html);
        report->html = NULL;
    }
    return status;
}
