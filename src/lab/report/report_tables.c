/* The tables of the report: criteria, results, comparison of runs. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/error.h"
#include "lab/compare.h"
#include "lab/experiment/experiment.h"
#include "lab/report/html.h"
#include "lab/quiet.h"
#include "lab/report/report_parts.h"

#define DASH "\xE2\x80\x93"

/* The CSS class of a verdict: good, bad or open; the text says it too. A criterion of failure is good when it is not
   met. */
static const char *verdict_class(const carry_stored_criterion *c) {
    bool failure = strcmp(c->side, "failure") == 0;
    if (strcmp(c->verdict, "met") == 0) {
        return failure ? "bad" : "good";
    }
    return strcmp(c->verdict, "not met") != 0 ? "open" : failure ? "good" : "bad";
}

static const char *mark_of(const char *verdict) {
    return strcmp(verdict, "good") == 0 ? "\xE2\x9C\x93" : strcmp(verdict, "bad") == 0 ? "\xE2\x9C\x95" : "?";
}

static void write_figure(FILE *to, const char *figure) {
    carry_html_around(to, "<td class=\"n\">", figure, "</td>");
}

static void write_criteria_of(carry_page *page, const carry_run *run, const char *side, const char *heading) {
    bool headed = false;
    for (int i = 0; i < run->criteria; i++) {
        const carry_stored_criterion *c = &run->criterion[i];
        if ((strcmp(c->side, "failure") == 0) != (strcmp(side, "failure") == 0)) {
            continue;
        }
        if (!headed) {
            carry_html_raw(page->to, "<tbody>\n<tr class=\"head\"><th scope=\"rowgroup\" colspan=\"5\">%s</th></tr>\n",
                           heading);
            headed = true;
        }
        char figure[CARRY_HTML_FIGURE];
        const char *verdict = verdict_class(c);
        carry_html_raw(page->to, "<tr><td class=\"%s\"><span aria-hidden=\"true\">%s</span> ", verdict,
                       mark_of(verdict));
        carry_html_text(page->to, c->verdict);
        carry_html_around(page->to, "</td><th scope=\"row\"><code>", c->text, "</code></th>");
        carry_html_around(page->to, "<td class=\"n\" data-label=\"value\">", carry_figure_plain(figure, c->value),
                          "</td>");
        carry_html_around(page->to, "<td class=\"n\" data-label=\"bound\">", carry_figure_given(figure, c->bound),
                          "</td>");
        carry_html_around(page->to, "<td class=\"words\">", c->reason, "</td></tr>\n");
    }
    if (headed) {
        carry_html_raw(page->to, "</tbody>\n");
    }
}

void carry_report_criteria(carry_page *page, const carry_run *run) {
    if (run->criteria == 0) {
        return;
    }
    carry_report_heading(page, "Criteria");
    carry_html_raw(
        page->to,
        "<div class=\"scroll\" role=\"region\" tabindex=\"0\" aria-label=\"Criteria\">\n"
        "<table class=\"criteria\">\n<thead><tr><th scope=\"col\">Verdict</th><th scope=\"col\">Criterion</th>"
        "<th scope=\"col\" class=\"n\">Value</th><th scope=\"col\" class=\"n\">Bound</th>"
        "<th scope=\"col\">Reason</th></tr></thead>\n");
    write_criteria_of(page, run, "success", "Succeeds if");
    write_criteria_of(page, run, "failure", "Fails if");
    carry_html_raw(page->to, "</table>\n</div>\n");
}

/* Figures that only some families have. Each is a column if a result of the run has it. */
#define EXTRAS 12

static const struct {
    const char *metric, *heading;
    const char *(*figure)(char text[CARRY_HTML_FIGURE], double value);
} extras[EXTRAS] = {
    {CARRY_RECEIVED, "Received", carry_figure_bytes},
    {CARRY_EXPOSED, "Exposed", carry_figure_share},
    {CARRY_PERPLEXITY, "Perplexity", carry_figure_plain},
    {CARRY_OVERLAP, "Overlap", carry_figure_plain},
    {CARRY_SLOWER_STAGE, "Slower stage", carry_figure_time},
    {CARRY_BLOCK_DENOISE, "Denoise", carry_figure_time},
    {CARRY_BLOCK_RECOMPUTE, "Recompute", carry_figure_time},
    {CARRY_BLOCK_CLEAN, "Clean pass", carry_figure_time},
    {CARRY_BLOCK_DECODE, "Decode", carry_figure_time},
    {CARRY_RANKS, "Ranks", carry_figure_plain},
    {CARRY_COST, "Cost", carry_figure_time},
    {CARRY_INVOCATION, "Invocation", carry_figure_plain},
};

/* The columns of the results table in addition to those of every run. */
typedef struct columns {
    bool devices, tokens, extra[EXTRAS];
    int count; /* total number of columns */
} columns;

static int compare_metrics(const void *a, const void *b) {
    const carry_run_metric *x = a;
    const carry_run_metric *y = b;
    const int names = strcmp(x->name, y->name);
    return names != 0 ? names : (x->step > y->step) - (x->step < y->step);
}

/* The metric of the result with this index, or NaN. Metrics are sorted by name and step. */
static double metric_of(const carry_run *run, const char *metric, int place) {
    char name[32];
    (void)snprintf(name, sizeof name, "%s", metric);
    const carry_run_metric wanted = {.step = place, .name = name};
    const carry_run_metric *found =
        run->metrics > 0 ? bsearch(&wanted, run->metric, (size_t)run->metrics, sizeof wanted, compare_metrics) : NULL;
    return found != NULL ? found->value : NAN;
}

static columns columns_of(const carry_run *run, const carry_run_result *first) {
    columns c = {.count = 11};
    for (int i = 0; i < run->results; i++) {
        const carry_run_result *r = &run->result[i];
        if (!carry_report_measured(r)) {
            continue;
        }
        c.devices = c.devices || strcmp(r->is.device, first->is.device) != 0;
        c.tokens = c.tokens || r->is.tokens > 0.0;
        for (int j = 0; j < EXTRAS; j++) {
            c.extra[j] = c.extra[j] || !isnan(metric_of(run, extras[j].metric, i));
        }
    }
    c.count += c.devices + c.tokens;
    for (int j = 0; j < EXTRAS; j++) {
        c.count += c.extra[j];
    }
    return c;
}

static double fastest_of(const carry_run *run, const char *problem) {
    double fastest = INFINITY;
    for (int i = 0; i < run->results; i++) {
        const carry_run_result *r = &run->result[i];
        if (carry_report_measured(r) && strcmp(r->is.problem, problem) == 0) {
            fastest = fmin(fastest, r->is.median);
        }
    }
    return fastest;
}

static void write_error(FILE *to, const carry_stored_result *r) {
    char error[CARRY_HTML_FIGURE];
    char bound[CARRY_HTML_FIGURE];
    (void)carry_figure_small(error, r->error);
    if (isfinite(r->bound) && !(r->error <= r->bound) && isfinite(r->error)) {
        carry_html_around(to, "<td class=\"n bad\">\xE2\x9C\x95 ", error, "");
        carry_html_around(to, " <small>beyond ", carry_figure_small(bound, r->bound), "</small></td>");
        return;
    }
    write_figure(to, error);
}

static void write_measured(FILE *to, const carry_run_result *result, double fastest) {
    char figure[CARRY_HTML_FIGURE];
    const carry_stored_result *r = &result->is;
    write_figure(to, carry_figure_time(figure, r->median));
    if (r->median == fastest) {
        carry_html_raw(to, "<td class=\"n\">fastest</td>");
    } else {
        carry_html_around(to, "<td class=\"n\">", carry_figure_plain(figure, r->median / fastest), "\xC3\x97</td>");
    }
    write_figure(to, carry_figure_share(figure, r->spread));
    write_figure(to, carry_figure_count(figure, result->samples));
    write_figure(to, r->products > 0 ? carry_figure_count(figure, r->products) : DASH);
    write_figure(to, carry_figure_plain(figure, 1e-9 * r->flops / r->median));
    write_figure(to, carry_figure_plain(figure, 1e-9 * r->bytes / r->median));
    write_figure(to, carry_figure_share(figure, r->share));
    write_error(to, r);
    write_figure(to, carry_figure_bytes(figure, r->workspace));
}

static void write_result(FILE *to, const carry_run *run, int place, double fastest, const columns *c) {
    char figure[CARRY_HTML_FIGURE];
    const carry_run_result *result = &run->result[place];
    const carry_stored_result *r = &result->is;
    bool measured = carry_report_measured(result);
    carry_html_around(
        to, measured && r->median == fastest ? "<tr class=\"best\"><th scope=\"row\">" : "<tr><th scope=\"row\">",
        r->method, "");
    carry_html_raw(to, "%s</th>", r->planned ? " <small>planned</small>" : "");
    if (c->devices) {
        carry_html_around(to, "<td>", r->device, "</td>");
    }
    if (!measured) {
        carry_html_raw(to, "<td class=\"open words\" colspan=\"%d\">not measured: ", c->count - 1 - c->devices);
        carry_html_around(to, "", r->reason[0] != '\0' ? r->reason : "no reason was stored", "</td></tr>\n");
        return;
    }
    write_measured(to, result, fastest);
    if (c->tokens) {
        write_figure(to, carry_figure_plain(figure, r->tokens / r->median));
    }
    for (int i = 0; i < EXTRAS; i++) {
        if (c->extra[i]) {
            write_figure(to, extras[i].figure(figure, metric_of(run, extras[i].metric, place)));
        }
    }
    carry_html_raw(to, "</tr>\n");
}

/* True if no method could be measured on this problem: such problems are listed below the table. */
static bool is_left_out(const carry_run *run, const char *problem) {
    return !isfinite(fastest_of(run, problem));
}

/* Lists the problems that could not be measured, by reason. */
static void write_left_out(carry_page *page, const carry_run *run) {
    for (int i = 0; i < run->results; i++) {
        const carry_stored_result *r = &run->result[i].is;
        bool said = !is_left_out(run, r->problem);
        for (int j = 0; j < i && !said; j++) {
            said = strcmp(run->result[j].is.reason, r->reason) == 0 && is_left_out(run, run->result[j].is.problem);
        }
        if (said) {
            continue;
        }
        carry_html_around(page->to, "<p class=\"missing\"><b>Not measured: ", r->reason, "</b> ");
        const char *last = "";
        for (int j = i; j < run->results; j++) {
            const carry_stored_result *other = &run->result[j].is;
            if (strcmp(other->problem, last) != 0 && strcmp(other->reason, r->reason) == 0 &&
                is_left_out(run, other->problem)) {
                carry_html_around(page->to, "<code>", other->problem, "</code> ");
                last = other->problem;
            }
        }
        carry_html_raw(page->to, "</p>\n");
    }
}

static void write_columns(FILE *to, const columns *c) {
    carry_html_raw(
        to,
        "<div class=\"scroll\" role=\"region\" tabindex=\"0\" aria-label=\"Results\">\n"
        "<table class=\"results\">\n<thead><tr><th scope=\"col\">Method</th>%s<th scope=\"col\" class=\"n\">Median</th>"
        "<th scope=\"col\" class=\"n\">Against best</th><th scope=\"col\" class=\"n\">Spread</th>"
        "<th scope=\"col\" class=\"n\">Repeats</th><th scope=\"col\" class=\"n\">Products</th>"
        "<th scope=\"col\" class=\"n\">GFLOP/s</th><th scope=\"col\" class=\"n\">GB/s</th>"
        "<th scope=\"col\" class=\"n\">Share</th><th scope=\"col\" class=\"n\">Error</th>"
        "<th scope=\"col\" class=\"n\">Workspace</th>%s",
        c->devices ? "<th scope=\"col\">Device</th>" : "",
        c->tokens ? "<th scope=\"col\" class=\"n\">Tokens/s</th>" : "");
    for (int i = 0; i < EXTRAS; i++) {
        if (c->extra[i]) {
            carry_html_raw(to, "<th scope=\"col\" class=\"n\">%s</th>", extras[i].heading);
        }
    }
    carry_html_raw(to, "</tr></thead>\n");
}

/* Writes the heading of a problem whose first result has this index, and how much other processes used the machine
   meanwhile. */
static void write_problem(FILE *to, const carry_run *run, int place, const columns *c) {
    char figure[CARRY_HTML_FIGURE];
    const double contention = metric_of(run, CARRY_CONTENTION, place);
    carry_html_raw(to, "<tbody>\n<tr class=\"head\"><th scope=\"rowgroup\" colspan=\"%d\"><span><code>", c->count);
    carry_html_around(to, "", run->result[place].is.problem, "</code>");
    if (!isnan(contention)) {
        carry_html_around(to, " <small>contention ", carry_figure_share(figure, contention), "</small>");
    }
    carry_html_raw(to, "</span></th></tr>\n");
}

void carry_report_results(carry_page *page, const carry_run *run) {
    int first = 0; /* measured */
    if (run->results == 0) {
        return;
    }
    while (first < run->results && !carry_report_measured(&run->result[first])) {
        first++;
    }
    carry_report_heading(page, "Results");
    if (first == run->results) {
        write_left_out(page, run);
        return;
    }
    const columns c = columns_of(run, &run->result[first]);
    write_columns(page->to, &c);
    int shown = -1; /* index of the result whose problem is in the last heading */
    for (int i = 0; i < run->results; i++) {
        const char *next = run->result[i].is.problem;
        if (is_left_out(run, next)) {
            continue;
        }
        if (shown < 0 || strcmp(run->result[shown].is.problem, next) != 0) {
            carry_html_raw(page->to, "%s", shown >= 0 ? "</tbody>\n" : "");
            write_problem(page->to, run, i, &c);
            shown = i;
        }
        write_result(page->to, run, i, fastest_of(run, next), &c);
    }
    carry_html_raw(page->to, "%s</table>\n</div>\n", shown >= 0 ? "</tbody>\n" : "");
    write_left_out(page, run);
}

bool carry_report_of_result(const carry_run *run, const char *metric) {
    bool is = strcmp(metric, CARRY_CONTENTION) == 0;
    for (int i = 0; i < EXTRAS; i++) {
        is = is || strcmp(metric, extras[i].metric) == 0;
    }
    return (is && run->results > 0) || strcmp(run->kind, CARRY_REPORT_PROFILE) == 0;
}

/* Formats a ratio with two decimals, so that a column of ratios near 1 lines up. */
static const char *figure_ratio(char text[CARRY_HTML_FIGURE], double ratio) {
    if (!(ratio >= 0.005 && ratio < 100.0)) {
        return carry_figure_plain(text, ratio);
    }
    (void)snprintf(text, CARRY_HTML_FIGURE, "%.2f", ratio);
    return text;
}

static void write_pair(FILE *to, const carry_pair *pair) {
    char figure[CARRY_HTML_FIGURE];
    const carry_ratio *r = &pair->ratio;
    bool faster = r->ratio > 1.0;
    carry_html_around(to, "<tr><th scope=\"row\">", pair->a->is.method, "</th>");
    carry_html_around(to, "<td><code>", pair->a->is.problem, "</code></td>");
    write_figure(to, carry_figure_time(figure, pair->a->is.median));
    write_figure(to, carry_figure_time(figure, pair->b->is.median));
    carry_html_around(to, "<td class=\"n\">", figure_ratio(figure, r->ratio), "</td>");
    carry_html_around(to, "<td class=\"n\">", figure_ratio(figure, r->low), " to ");
    carry_html_around(to, "", figure_ratio(figure, r->high), "</td>");
    carry_html_raw(to, "<td class=\"%s\">%s</td></tr>\n",
                   r->within_noise ? "soft"
                   : faster        ? "good"
                                   : "bad",
                   r->within_noise ? "within noise"
                   : faster        ? "\xE2\x86\x91 faster"
                                   : "\xE2\x86\x93 slower");
}

static void write_comparison(FILE *to, const carry_run *first, const carry_run *run, const carry_comparison *c) {
    char figure[CARRY_HTML_FIGURE];
    carry_html_raw(to,
                   "<tbody>\n<tr class=\"head\"><th scope=\"rowgroup\" colspan=\"7\"><span><b>Run %lld against run "
                   "%lld: %s</b>. Of %d pairs %d are within noise, %d faster, %d slower. Noise here is %s%s.</span>"
                   "</th></tr>\n",
                   (long long)run->id, (long long)first->id, c->within_noise ? "within noise" : "they differ", c->pairs,
                   c->within, c->faster, c->slower, carry_figure_share(figure, c->slack),
                   c->same_machine ? "" : ", and the machines differ");
    for (int i = 0; i < c->pairs; i++) {
        write_pair(to, &c->pair[i]);
    }
    carry_html_raw(to, "</tbody>\n");
}

carry_status carry_report_compare(carry_page *page) {
    const carry_run *first = page->runs[0];
    int compared = 0;
    for (int i = 1; i < page->count; i++) {
        carry_comparison c;
        carry_status status = carry_compare(page->ctx, &c, first, page->runs[i], 0.0);
        if (status == CARRY_EARGUMENT) { /* the runs have nothing in common */
            continue;
        }
        CARRY_TRY(status);
        if (compared++ == 0) {
            carry_html_raw(
                page->to,
                "<section>\n<h2>Comparison</h2>\n<p>Times of run %lld over those of each other run, where both "
                "measured the same "
                "method on the same problem: above 1 the other is faster. The interval holds 95 of 100 resamplings. "
                "What counts as noise "
                "between runs is 5&#8239;%%, and what the machine&#8217;s own ceilings drifted.</p>\n"
                "<div class=\"scroll\" role=\"region\" tabindex=\"0\" aria-label=\"Comparison\">\n<table "
                "class=\"results pairs\">\n<thead><tr>"
                "<th scope=\"col\">Method</th><th scope=\"col\">Problem</th><th scope=\"col\" class=\"n\">Run %lld</th>"
                "<th scope=\"col\" class=\"n\">Other</th><th scope=\"col\" class=\"n\">Ratio</th>"
                "<th scope=\"col\" class=\"n\">Interval</th><th scope=\"col\">Verdict</th></tr></thead>\n",
                (long long)first->id, (long long)first->id);
        }
        write_comparison(page->to, first, page->runs[i], &c);
        carry_compare_free(&c);
    }
    carry_html_raw(page->to, "%s",
                   compared > 0
                       ? "</table>\n</div>\n</section>\n"
                       : "<p class=\"note\">No method was timed on the same problem in the first of these runs and in "
                         "another: there are no times to compare.</p>\n");
    return CARRY_OK;
}
