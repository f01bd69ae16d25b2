/* Exporting runs. */
#include "lab/export.h"

#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/error.h"
#include "lab/export_internal.h"

json_t *carry_export_number(double value) {
    return isfinite(value) ? json_real(value) : json_null();
}

/* A command line may hold bytes that are not UTF-8, which JSON cannot: they become question marks. */
json_t *carry_export_text(const char *from) {
    json_t *is = json_string(from);
    if (is != NULL) {
        return is;
    }
    char *copy = strdup(from);
    for (char *at = copy; at != NULL && *at != '\0'; at++) {
        *at = (char)((unsigned char)*at < 0x80 ? *at : '?');
    }
    is = copy != NULL ? json_string(copy) : NULL;
    free(copy);
    return is;
}

static json_t *result_object(const carry_run_result *r) {
    json_t *samples = json_array();
    for (int i = 0; i < r->samples; i++) {
        (void)json_array_append_new(samples, carry_export_number(r->sample[i]));
    }
    json_t *object = json_object();
    (void)json_object_set_new(object, "problem", carry_export_text(r->is.problem));
    (void)json_object_set_new(object, "algorithm", carry_export_text(r->is.method));
    (void)json_object_set_new(object, "device", carry_export_text(r->is.device));
    (void)json_object_set_new(object, "reason", carry_export_text(r->is.reason));
    (void)json_object_set_new(object, "planned", json_boolean(r->is.planned));
    (void)json_object_set_new(object, "products", json_integer(r->is.products));
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
        (void)json_object_set_new(object, figures[i].name, carry_export_number(figures[i].value));
    }
    (void)json_object_set_new(object, "samples_s", samples);
    return object;
}

static json_t *lists_of(const carry_run *run, json_t *object) {
    json_t *results = json_array();
    for (int i = 0; i < run->results; i++) {
        (void)json_array_append_new(results, result_object(&run->result[i]));
    }
    json_t *criteria = json_array();
    for (int i = 0; i < run->criteria; i++) {
        const carry_stored_criterion *c = &run->criterion[i];
        json_t *one = json_pack("{s:o, s:o, s:o, s:o}", "side", carry_export_text(c->side), "criterion",
                                carry_export_text(c->text), "verdict", carry_export_text(c->verdict), "reason",
                                carry_export_text(c->reason));
        (void)json_object_set_new(one, "value", carry_export_number(c->value));
        (void)json_object_set_new(one, "bound", carry_export_number(c->bound));
        (void)json_array_append_new(criteria, one);
    }
    json_t *metrics = json_array();
    for (int i = 0; i < run->metrics; i++) {
        const carry_run_metric *m = &run->metric[i];
        json_t *one = json_pack("{s:I, s:o}", "step", (json_int_t)m->step, "name", carry_export_text(m->name));
        (void)json_object_set_new(one, "value", carry_export_number(m->value));
        (void)json_array_append_new(metrics, one);
    }
    json_t *machine = json_object();
    for (int i = 0; i < run->facts; i++) {
        (void)json_object_set_new(machine, run->fact[i].name, carry_export_text(run->fact[i].value));
    }
    json_t *artefacts = json_array();
    for (int i = 0; i < run->artefacts; i++) {
        (void)json_array_append_new(artefacts, json_pack("{s:o, s:I}", "name", carry_export_text(run->artefact[i].name),
                                                         "bytes", (json_int_t)run->artefact[i].bytes));
    }
    (void)json_object_set_new(object, "results", results);
    (void)json_object_set_new(object, "criteria", criteria);
    (void)json_object_set_new(object, "metrics", metrics);
    (void)json_object_set_new(object, "artefacts", artefacts);
    (void)json_object_set_new(object, "machine", machine);
    return object;
}

carry_status carry_export_json(carry_ctx *ctx, FILE *to, const carry_run *run) {
    json_t *object = json_object();
    (void)json_object_set_new(object, "run", json_integer(run->id));
    const struct {
        const char *name, *value;
    } texts[] = {{"kind", run->kind},     {"name", run->name},         {"command", run->command},
                 {"state", run->state},   {"decision", run->decision}, {"note", run->note},
                 {"commit", run->commit}, {"folder", run->folder},     {"spec", run->spec}};
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
        (void)json_object_set_new(object, texts[i].name, carry_export_text(texts[i].value));
    }
    (void)json_object_set_new(object, "dirty", json_boolean(run->dirty));
    (void)json_object_set_new(object, "started", carry_export_number(run->started));
    (void)json_object_set_new(object, "ended", run->ended > 0.0 ? carry_export_number(run->ended) : json_null());
    object = lists_of(run, object);
    char *line = json_dumps(object, JSON_COMPACT | JSON_REAL_PRECISION(15));
    json_decref(object);
    if (line == NULL) {
        return carry_fail(ctx, CARRY_EMEMORY, "no memory to export run %lld", (long long)run->id);
    }
    (void)fprintf(to, "%s\n", line);
    free(line);
    return CARRY_OK;
}

/* In quotes, quotes doubled: RFC 4180. Spreadsheets run what begins with one of these, unless a ' stands before it. */
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
