/* The hotspots of a profile as cmd_profile.c stores them: metrics named "CATEGORY/NAME WHAT", or
   "gpu/NAME WHAT" for kernels. The step of a metric is the row of its place or kernel in the table sorted by time. */
#include <math.h>
#include <string.h>

#include "lab/report/html.h"
#include "lab/report/report_parts.h"

#define ANY (-1)
#define ROWS 200 /* as many rows as are stored */

typedef struct column {
    const char *what, *heading;
    const char *(*figure)(char text[CARRY_HTML_FIGURE], double value);
} column;

static const char *figure_calls(char text[CARRY_HTML_FIGURE], double value) {
    return fabs(value) < 1e15 ? carry_figure_count(text, (int64_t)value) : carry_figure_plain(text, value);
}

static const column of_places[] = {
    {"self_s", "Self", carry_figure_time}, {"total_s", "Total", carry_figure_time},
    {"calls", "Calls", figure_calls},      {"tokens_per_s", "Tokens/s", carry_figure_plain},
    {"mfu", "MFU", carry_figure_share},    {0}};
static const column of_kernels[] = {{"total_s", "Total", carry_figure_time},
                                    {"share", "Share", carry_figure_share},
                                    {"calls", "Calls", figure_calls},
                                    {"mean_s", "Mean", carry_figure_time},
                                    {0}};

/* The metric of one row (ANY: the first row that has it) and column, or NULL. */
static const carry_run_metric *find(const carry_run *run, bool kernels, int row, const char *what) {
    for (int i = 0; i < run->metrics; i++) {
        const carry_run_metric *m = &run->metric[i];
        const char *space = strrchr(m->name, ' ');
        if ((m->step == row || row == ANY) && space != NULL && strcmp(space + 1, what) == 0 &&
            (strncmp(m->name, "gpu/", 4) == 0) == kernels) {
            return m;
        }
    }
    return NULL;
}

static void write_row(FILE *to, const carry_run *run, bool kernels, int row, const column *columns) {
    const char *name = find(run, kernels, row, columns[0].what)->name + (kernels ? 4 : 0);
    char place[160];
    char figure[CARRY_HTML_FIGURE];
    (void)snprintf(place, sizeof place, "%.*s", (int)(strrchr(name, ' ') - name), name);
    carry_html_around(to, "<tr><th scope=\"row\">", place, "</th>");
    for (const column *c = columns; c->what != NULL; c++) {
        const carry_run_metric *m = find(run, kernels, row, c->what);
        if (m != NULL || find(run, kernels, ANY, c->what) != NULL) {
            carry_html_around(to, "<td class=\"n\">", c->figure(figure, m != NULL ? m->value : NAN), "</td>");
        }
    }
    carry_html_raw(to, "</tr>\n");
}

static void write_table(carry_page *page, const carry_run *run, bool kernels, const char *words,
                        const column *columns) {
    if (find(run, kernels, 0, columns[0].what) == NULL) {
        return;
    }
    carry_report_heading(page, words);
    carry_html_raw(
        page->to,
        "<div class=\"scroll\" role=\"region\" tabindex=\"0\" aria-label=\"%s\">\n<table class=\"results\">\n"
        "<thead><tr><th scope=\"col\">%s</th>",
        words, kernels ? "Kernel" : "Place");
    for (const column *c = columns; c->what != NULL; c++) {
        if (find(run, kernels, ANY, c->what) != NULL) {
            carry_html_raw(page->to, "<th scope=\"col\" class=\"n\">%s</th>", c->heading);
        }
    }
    carry_html_raw(page->to, "</tr></thead>\n<tbody>\n");
    for (int row = 0; row < ROWS && find(run, kernels, row, columns[0].what) != NULL; row++) {
        write_row(page->to, run, kernels, row, columns);
    }
    carry_html_raw(page->to, "</tbody>\n</table>\n</div>\n");
}

void carry_report_hotspots(carry_page *page, const carry_run *run) {
    if (strcmp(run->kind, CARRY_REPORT_PROFILE) == 0) {
        write_table(page, run, false, "Hotspots", of_places);
        write_table(page, run, true, "Kernels", of_kernels);
    }
}
