/* Exports runs. */
#include "lab/export.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/error.h"
#include "lab/export_internal.h"

static void add_result(carry_json_text *to, const carry_run_result *r) {
    carry_json_begin(to, NULL, '{');
    carry_json_add_text(to, "problem", r->is.problem);
    carry_json_add_text(to, "algorithm", r->is.method);
    carry_json_add_text(to, "device", r->is.device);
    carry_json_add_text(to, "reason", r->is.reason);
    carry_json_add_bool(to, "planned", r->is.planned);
    carry_json_add_integer(to, "products", r->is.products);
    const struct {
        const char *name;
        double value;
    } figures[] = {{"median_s", r->is.median},
                   {"spread", r->is.spread},
                   {"flops", r->is.flops},
                   {"bytes", r->is.bytes},
                   {"workspace", r->is.workspace},
                   {"tokens", r->is.tokens},
                   {"share", r->is.share},
                   {"error", r->is.error},
                   {"error_absolute", r->is.error_absolute},
                   {"bound", r->is.bound},
                   {"gemm_gflops", r->is.gemm_gflops},
                   {"copy_gbytes_s", r->is.copy_gbytes_s}};
    for (size_t i = 0; i < sizeof figures / sizeof figures[0]; i++) {
        carry_json_add_number(to, figures[i].name, figures[i].value);
    }
    carry_json_begin(to, "samples_s", '[');
    for (int i = 0; i < r->samples; i++) {
        carry_json_add_number(to, NULL, r->sample[i]);
    }
    carry_json_end(to, ']');
    carry_json_end(to, '}');
}

static void add_criteria(carry_json_text *to, const carry_run *run) {
    carry_json_begin(to, "criteria", '[');
    for (int i = 0; i < run->criteria; i++) {
        const carry_stored_criterion *c = &run->criterion[i];
        carry_json_begin(to, NULL, '{');
        carry_json_add_text(to, "side", c->side);
        carry_json_add_text(to, "criterion", c->text);
        carry_json_add_text(to, "verdict", c->verdict);
        carry_json_add_text(to, "reason", c->reason);
        carry_json_add_number(to, "value", c->value);
        carry_json_add_number(to, "bound", c->bound);
        carry_json_end(to, '}');
    }
    carry_json_end(to, ']');
}

static void add_lists(carry_json_text *to, const carry_run *run) {
    carry_json_begin(to, "results", '[');
    for (int i = 0; i < run->results; i++) {
        add_result(to, &run->result[i]);
    }
    carry_json_end(to, ']');
    add_criteria(to, run);
    carry_json_begin(to, "metrics", '[');
    for (int i = 0; i < run->metrics; i++) {
        carry_json_begin(to, NULL, '{');
        carry_json_add_integer(to, "step", run->metric[i].step);
        carry_json_add_text(to, "name", run->metric[i].name);
        carry_json_add_number(to, "value", run->metric[i].value);
        carry_json_end(to, '}');
    }
    carry_json_end(to, ']');
    carry_json_begin(to, "artefacts", '[');
    for (int i = 0; i < run->artefacts; i++) {
        carry_json_begin(to, NULL, '{');
        carry_json_add_text(to, "name", run->artefact[i].name);
        carry_json_add_integer(to, "bytes", run->artefact[i].bytes);
        if (run->artefact[i].text != NULL) {
            carry_json_add_text(to, "content", run->artefact[i].text);
        }
        carry_json_end(to, '}');
    }
    carry_json_end(to, ']');
    carry_json_begin(to, "machine", '{');
    for (int i = 0; i < run->facts; i++) {
        carry_json_add_text(to, run->fact[i].name, run->fact[i].value);
    }
    carry_json_end(to, '}');
}

carry_status carry_export_line(carry_ctx *ctx, FILE *to, const carry_run *run, carry_json_text *text) {
    carry_json_end(text, '}');
    char *line = carry_json_text_take(text);
    if (line == NULL) {
        return carry_fail(ctx, CARRY_EMEMORY, "out of memory: export of run %lld", (long long)run->id);
    }
    (void)fprintf(to, "%s\n", line);
    free(line);
    return CARRY_OK;
}

carry_status carry_export_json(carry_ctx *ctx, FILE *to, const carry_run *run) {
    carry_json_text text = {0};
    carry_json_begin(&text, NULL, '{');
    carry_json_add_integer(&text, "format", CARRY_EXPORT_FORMAT);
    carry_json_add_integer(&text, "run", run->id);
    const struct {
        const char *name, *value;
    } texts[] = {{"kind", run->kind},     {"name", run->name},         {"command", run->command},
                 {"state", run->state},   {"decision", run->decision}, {"note", run->note},
                 {"commit", run->commit}, {"folder", run->folder},     {"spec", run->spec}};
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
        carry_json_add_text(&text, texts[i].name, texts[i].value);
    }
    if (run->dirty < 0) {
        carry_json_add_number(&text, "dirty", (double)NAN); /* NaN becomes null: unknown */
    } else {
        carry_json_add_bool(&text, "dirty", run->dirty > 0);
    }
    carry_json_add_number(&text, "started", run->started);
    carry_json_add_number(&text, "ended", run->ended > 0.0 ? run->ended : (double)NAN);
    add_lists(&text, run);
    return carry_export_line(ctx, to, run, &text);
}

/* Writes text in quotes with quotes doubled (RFC 4180). Text that begins with = + - @, a tab or a carriage return gets
   a ' in front, since spreadsheets would evaluate it as a formula. */
void carry_export_csv_text(FILE *to, const char *text) {
    (void)fputc('"', to);
    if (*text != '\0' && strchr("=+-@\t\r", *text) != NULL) {
        (void)fputc('\'', to);
    }
    for (; *text != '\0'; text++) {
        if (*text == '"') {
            (void)fputc('"', to);
        }
        (void)fputc(*text, to);
    }
    (void)fputc('"', to);
}

void carry_export_csv_number(FILE *to, double value) {
    if (isfinite(value)) {
        (void)fprintf(to, ",%.9g", value);
    } else {
        (void)fputc(',', to);
    }
}

void carry_export_csv_head(FILE *to, bool samples) {
    (void)fputs(samples ? "run,name,problem,algorithm,device,position,seconds\n"
                        : "run,name,problem,algorithm,device,reason,planned,repeats,products,median_s,spread,flops,"
                          "bytes,workspace,tokens,share,error,error_absolute,bound,gemm_gflops,copy_gbytes_s\n",
                to);
}

static void csv_names(FILE *to, const carry_run *run, const carry_stored_result *is) {
    const char *const texts[] = {run->name, is->problem, is->method, is->device};
    (void)fprintf(to, "%lld", (long long)run->id);
    for (int i = 0; i < 4; i++) {
        (void)fputc(',', to);
        carry_export_csv_text(to, texts[i]);
    }
}

void carry_export_csv(FILE *to, const carry_run *run, bool samples) {
    for (int i = 0; i < run->results; i++) {
        const carry_run_result *r = &run->result[i];
        const carry_stored_result *is = &r->is;
        for (int j = 0; samples && j < r->samples; j++) {
            csv_names(to, run, is);
            (void)fprintf(to, ",%d", j);
            carry_export_csv_number(to, r->sample[j]);
            (void)fputc('\n', to);
        }
        if (samples) {
            continue;
        }
        csv_names(to, run, is);
        (void)fputc(',', to);
        carry_export_csv_text(to, is->reason);
        (void)fprintf(to, ",%d,%d,%lld", is->planned, r->samples, (long long)is->products);
        const double figures[] = {is->median,         is->spread, is->flops,       is->bytes,
                                  is->workspace,      is->tokens, is->share,       is->error,
                                  is->error_absolute, is->bound,  is->gemm_gflops, is->copy_gbytes_s};
        for (size_t j = 0; j < sizeof figures / sizeof figures[0]; j++) {
            carry_export_csv_number(to, figures[j]);
        }
        (void)fputc('\n', to);
    }
}
