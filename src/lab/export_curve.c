/* Exports the metrics of a run over steps: as a table, or as a history in the format of Weights & Biases. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/error.h"
#include "lab/export.h"
#include "lab/export_internal.h"

_Static_assert(CARRY_EXPORT_METRICS == 64, "as many as carry_export_steps has room for");

bool carry_export_has_curve(const carry_run *run) {
    return run->results == 0 && run->metrics > 0;
}

double carry_export_time(const carry_run *run, int64_t step) {
    int64_t last = 0;
    for (int i = 0; i < run->metrics; i++) {
        last = run->metric[i].step > last ? run->metric[i].step : last;
    }
    const double share = last > 0 ? fmin(fmax((double)step / (double)last, 0.0), 1.0) : 0.0;
    return run->ended > run->started ? run->started + share * (run->ended - run->started) : run->started;
}

bool carry_export_steps_begin(carry_export_steps *s, const carry_run *run) {
    *s = (carry_export_steps){.run = run};
    for (int i = 0; i < run->metrics; i++) {
        if (i == 0 || strcmp(run->metric[i].name, run->metric[i - 1].name) != 0) {
            if (s->names == CARRY_EXPORT_METRICS) {
                return false;
            }
            s->first[s->names] = s->at[s->names] = i;
            s->names++;
        }
        s->end[s->names - 1] = i + 1;
    }
    return true;
}

bool carry_export_steps_next(carry_export_steps *s, int64_t *step, const carry_run_metric *found[64]) {
    bool any = false;
    for (int i = 0; i < s->names; i++) {
        if (s->at[i] < s->end[i]) {
            const int64_t here = s->run->metric[s->at[i]].step;
            *step = !any || here < *step ? here : *step;
            any = true;
        }
    }
    for (int i = 0; i < s->names; i++) {
        const bool is_here = any && s->at[i] < s->end[i] && s->run->metric[s->at[i]].step == *step;
        found[i] = is_here ? &s->run->metric[s->at[i]++] : NULL;
    }
    return any;
}

/* Collects the metric names of all runs, each once, as columns. */
static carry_status list_columns(carry_ctx *ctx, const char *column[CARRY_EXPORT_METRICS], int *columns,
                                 carry_run *const *runs, int count) {
    *columns = 0;
    for (int i = 0; i < count; i++) {
        for (int j = 0; j < runs[i]->metrics; j++) {
            const char *name = runs[i]->metric[j].name;
            int at = j > 0 && strcmp(name, runs[i]->metric[j - 1].name) == 0 ? -1 : 0;
            while (at >= 0 && at < *columns && strcmp(column[at], name) != 0) {
                at++;
            }
            if (at == CARRY_EXPORT_METRICS) {
                return carry_fail(ctx, CARRY_ESIZE, "these runs have more than the %d metrics that a table takes",
                                  CARRY_EXPORT_METRICS);
            }
            if (at == *columns) {
                column[(*columns)++] = name;
            }
        }
    }
    return CARRY_OK;
}

static void write_rows(FILE *to, const carry_run *run, const char *const *column, int columns) {
    carry_export_steps steps;
    const carry_run_metric *found[CARRY_EXPORT_METRICS];
    int64_t step = 0;
    (void)carry_export_steps_begin(&steps, run);
    while (carry_export_steps_next(&steps, &step, found)) {
        (void)fprintf(to, "%lld,", (long long)run->id);
        carry_export_csv_text(to, run->name);
        (void)fprintf(to, ",%lld", (long long)step);
        for (int c = 0; c < columns; c++) {
            double value = NAN;
            for (int i = 0; i < steps.names; i++) {
                value = found[i] != NULL && strcmp(found[i]->name, column[c]) == 0 ? found[i]->value : value;
            }
            carry_export_csv_number(to, value);
        }
        (void)fputc('\n', to);
    }
}

carry_status carry_export_csv_curves(carry_ctx *ctx, FILE *to, carry_run *const *runs, int count) {
    const char *column[CARRY_EXPORT_METRICS];
    int columns;
    CARRY_TRY(list_columns(ctx, column, &columns, runs, count));
    (void)fputs("run,name,step", to);
    for (int i = 0; i < columns; i++) {
        (void)fputc(',', to);
        const bool is_plain = column[i][strspn(column[i], "abcdefghijklmnopqrstuvwxyz_0123456789")] == '\0';
        if (is_plain) {
            (void)fputs(column[i], to);
        } else {
            carry_export_csv_text(to, column[i]);
        }
    }
    (void)fputc('\n', to);
    for (int i = 0; i < count; i++) {
        write_rows(to, runs[i], column, columns);
    }
    return CARRY_OK;
}

static carry_status write_line(carry_ctx *ctx, FILE *to, const carry_run *run, int64_t step, carry_json_text *text) {
    const double time = carry_export_time(run, step);
    carry_json_add_integer(text, "_step", step);
    carry_json_add_number(text, "_timestamp", time);
    carry_json_add_number(text, "_runtime", time - run->started);
    return carry_export_line(ctx, to, run, text);
}

static carry_status write_result(carry_ctx *ctx, FILE *to, const carry_run *run, int index) {
    const carry_stored_result *is = &run->result[index].is;
    carry_json_text text = {0};
    carry_json_begin(&text, NULL, '{');
    carry_json_add_text(&text, "problem", is->problem);
    carry_json_add_text(&text, "algorithm", is->method);
    carry_json_add_text(&text, "device", is->device);
    carry_json_add_number(&text, "median_s", is->median);
    carry_json_add_number(&text, "spread", is->spread);
    carry_json_add_number(&text, "error", is->error);
    for (int j = 0; j < run->metrics; j++) {
        if (run->metric[j].step == index && strchr(run->metric[j].name, ':') == NULL) {
            carry_json_add_number(&text, run->metric[j].name, run->metric[j].value);
        }
    }
    return write_line(ctx, to, run, index, &text);
}

carry_status carry_export_history(carry_ctx *ctx, FILE *to, const carry_run *run) {
    carry_export_steps steps;
    const carry_run_metric *found[CARRY_EXPORT_METRICS];
    int64_t step = 0;
    if (run->results == 0 && !carry_export_steps_begin(&steps, run)) {
        return carry_fail(ctx, CARRY_ESIZE, "run %lld has more than %d metrics: export it as JSON", (long long)run->id,
                          CARRY_EXPORT_METRICS);
    }
    while (run->results == 0 && carry_export_steps_next(&steps, &step, found)) {
        carry_json_text text = {0};
        carry_json_begin(&text, NULL, '{');
        for (int i = 0; i < steps.names; i++) {
            if (found[i] != NULL) {
                carry_json_add_number(&text, found[i]->name, found[i]->value);
            }
        }
        CARRY_TRY(write_line(ctx, to, run, step, &text));
    }
    for (int i = 0; i < run->results; i++) {
        CARRY_TRY(write_result(ctx, to, run, i));
    }
    return CARRY_OK;
}
