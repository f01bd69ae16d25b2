/* The run store: imports a run that another store exported (carry runs export). The file may come from anywhere, so
   every member is checked before it is stored. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/file.h"
#include "core/json_write.h"
#include "lab/store/store_internal.h"

#define MOST_NAME 230
#define SAME_SECONDS 1e-3 /* an export rounds the start of a run */

typedef struct source {
    carry_store *store;
    const char *name; /* the file and line, for messages */
} source;

static carry_status damaged(const source *s, const carry_json *at, const char *what) {
    return carry_fail(s->store->ctx, CARRY_EFORMAT, "%s, column %u: %s: nothing was imported", s->name, at->column,
                      what);
}

/* Reads a text member; "" if it is missing and not needed. */
static carry_status text_of(const source *s, const char **text, const carry_json *object, const char *key,
                            bool needed) {
    const carry_json *member = carry_json_find(object, key);
    char message[96];
    *text = carry_json_string(member);
    if (*text == NULL && (needed || (member != NULL && member->kind != CARRY_JSON_NULL))) {
        (void)snprintf(message, sizeof message, "'%s' must be a text", key);
        return damaged(s, member != NULL ? member : object, message);
    }
    *text = *text != NULL ? *text : "";
    return CARRY_OK;
}

/* Reads a number member; null stands for a missing number. */
static carry_status number_of(const source *s, double *number, const carry_json *object, const char *key) {
    const carry_json *member = carry_json_find(object, key);
    char message[96];
    *number = carry_json_number(member);
    if (member != NULL && member->kind != CARRY_JSON_NULL && !isfinite(*number)) {
        (void)snprintf(message, sizeof message, "'%s' must be a number or null", key);
        return damaged(s, member, message);
    }
    return CARRY_OK;
}

/* Reads a member that is a list of objects; NULL if it is missing. */
static carry_status list_of(const source *s, const carry_json **first, const carry_json *object, const char *key) {
    const carry_json *member = carry_json_find(object, key);
    char message[96];
    *first = NULL;
    if (member != NULL && member->kind != CARRY_JSON_ARRAY) {
        (void)snprintf(message, sizeof message, "'%s' must be a list", key);
        return damaged(s, member, message);
    }
    *first = carry_json_first(member);
    for (const carry_json *at = *first; at != NULL; at = at->next) {
        if (at->kind != CARRY_JSON_OBJECT) {
            (void)snprintf(message, sizeof message, "'%s' must be a list of objects", key);
            return damaged(s, at, message);
        }
    }
    return CARRY_OK;
}

static carry_status samples_of(const source *s, double **samples, int *count, const carry_json *result) {
    const carry_json *list = carry_json_find(result, "samples_s");
    const int64_t wanted = carry_json_count(list);
    *count = 0;
    *samples = malloc((size_t)(wanted > 0 ? wanted : 1) * sizeof **samples);
    if (*samples == NULL || wanted > INT32_MAX) {
        return carry_fail(s->store->ctx, CARRY_EMEMORY, "%s: out of memory: %lld samples", s->name, (long long)wanted);
    }
    for (const carry_json *at = carry_json_first(list); at != NULL; at = at->next) {
        const double value = carry_json_number(at);
        if (!isfinite(value)) {
            return damaged(s, at, "a sample must be a number");
        }
        (*samples)[(*count)++] = value;
    }
    return CARRY_OK;
}

static carry_status import_result(const source *s, int64_t run, const carry_json *from) {
    const carry_json *planned = carry_json_find(from, "planned"), *products = carry_json_find(from, "products");
    carry_stored_result is = {.planned = planned != NULL && planned->kind == CARRY_JSON_BOOL && planned->truth,
                              .products = products != NULL && products->whole ? products->as.number.integer : 0};
    CARRY_TRY(text_of(s, &is.problem, from, "problem", true));
    CARRY_TRY(text_of(s, &is.method, from, "algorithm", true));
    CARRY_TRY(text_of(s, &is.device, from, "device", true));
    CARRY_TRY(text_of(s, &is.reason, from, "reason", false));
    const struct {
        const char *key;
        double *to;
    } numbers[] = {{"median_s", &is.median},
                   {"spread", &is.spread},
                   {"flops", &is.flops},
                   {"bytes", &is.bytes},
                   {"workspace", &is.workspace},
                   {"tokens", &is.tokens},
                   {"share", &is.share},
                   {"error", &is.error},
                   {"error_absolute", &is.error_absolute},
                   {"bound", &is.bound},
                   {"gemm_gflops", &is.gemm_gflops},
                   {"copy_gbytes_s", &is.copy_gbytes_s}};
    for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++) {
        CARRY_TRY(number_of(s, numbers[i].to, from, numbers[i].key));
    }
    double *samples = NULL;
    int count = 0;
    carry_status status = samples_of(s, &samples, &count, from);
    status = status == CARRY_OK ? carry_store_insert_result(s->store, run, &is, samples, count) : status;
    free(samples);
    return status;
}

static carry_status import_criterion(const source *s, int64_t run, const carry_json *from) {
    carry_stored_criterion c = {0};
    CARRY_TRY(text_of(s, &c.side, from, "side", true));
    CARRY_TRY(text_of(s, &c.text, from, "criterion", true));
    CARRY_TRY(text_of(s, &c.verdict, from, "verdict", true));
    CARRY_TRY(text_of(s, &c.reason, from, "reason", false));
    CARRY_TRY(number_of(s, &c.value, from, "value"));
    CARRY_TRY(number_of(s, &c.bound, from, "bound"));
    return carry_store_criterion(s->store, run, &c);
}

static carry_status import_metric(const source *s, int64_t run, const carry_json *from) {
    const carry_json *step = carry_json_find(from, "step");
    const char *name;
    double value;
    CARRY_TRY(text_of(s, &name, from, "name", true));
    CARRY_TRY(number_of(s, &value, from, "value"));
    if (step == NULL || !step->whole) {
        return damaged(s, from, "'step' must be a whole number");
    }
    return carry_store_metric(s->store, run, step->as.number.integer, name, value);
}

/* Imports an artefact if its content is in the file: short texts only (carry_run_artefact). */
static carry_status import_artefact(const source *s, int64_t run, const carry_json *from) {
    const char *name, *content;
    CARRY_TRY(text_of(s, &name, from, "name", true));
    CARRY_TRY(text_of(s, &content, from, "content", false));
    return carry_json_find(from, "content") != NULL
               ? carry_store_artefact(s->store, run, name, content, strlen(content))
               : CARRY_OK;
}

static carry_status import_lists(const source *s, int64_t run, const carry_json *from) {
    static const struct {
        const char *key;
        carry_status (*import)(const source *, int64_t, const carry_json *);
    } lists[] = {{"results", import_result},
                 {"criteria", import_criterion},
                 {"metrics", import_metric},
                 {"artefacts", import_artefact}};
    for (size_t i = 0; i < sizeof lists / sizeof lists[0]; i++) {
        const carry_json *at;
        CARRY_TRY(list_of(s, &at, from, lists[i].key));
        for (; at != NULL; at = at->next) {
            CARRY_TRY(lists[i].import(s, run, at));
        }
    }
    return CARRY_OK;
}

/* Imports the facts of the run's machine, which are texts. */
static carry_status import_machine(const source *s, int64_t *machine, const carry_json *from) {
    const carry_json *facts = carry_json_find(from, "machine");
    carry_json_text text = {0};
    carry_json_begin(&text, NULL, '{');
    for (const carry_json *at = carry_json_first(facts); at != NULL; at = at->next) {
        const char *value = carry_json_string(at);
        if (value != NULL && at->key != NULL) {
            carry_json_add_text(&text, at->key, value);
        }
    }
    carry_json_end(&text, '}');
    char *json = carry_json_text_take(&text);
    carry_status status = CARRY_OK;
    if (json != NULL) {
        status = carry_store_machine_row(s->store, machine, json);
    } else {
        status = carry_fail(s->store->ctx, CARRY_EMEMORY, "out of memory: facts of a machine");
    }
    free(json);
    return status;
}

typedef struct head {
    const char *kind, *name, *command, *spec, *folder, *commit, *state, *decision, *note;
    int dirty;
    double started, ended;
} head;

static carry_status read_head(const source *s, head *h, const carry_json *from) {
    const struct {
        const char *key, **to;
        bool needed;
    } texts[] = {{"kind", &h->kind, true},      {"name", &h->name, true},  {"command", &h->command, true},
                 {"state", &h->state, true},    {"spec", &h->spec, false}, {"folder", &h->folder, false},
                 {"commit", &h->commit, false}, {"note", &h->note, false}, {"decision", &h->decision, false}};
    const carry_json *format = carry_json_find(from, "format"), *dirty = carry_json_find(from, "dirty");
    if (format != NULL && !(format->whole && format->as.number.integer == CARRY_EXPORT_FORMAT)) {
        return carry_fail(s->store->ctx, CARRY_EUNSUPPORTED,
                          "%s: a run in format %.0f, and this carry knows format %d: nothing was imported", s->name,
                          carry_json_number(format), CARRY_EXPORT_FORMAT);
    }
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
        CARRY_TRY(text_of(s, texts[i].to, from, texts[i].key, texts[i].needed));
    }
    CARRY_TRY(number_of(s, &h->started, from, "started"));
    CARRY_TRY(number_of(s, &h->ended, from, "ended"));
    if (h->kind[0] == '\0' || strlen(h->name) > MOST_NAME || isnan(h->started)) {
        return damaged(s, from, "a run has a kind, a name of at most 230 bytes and a start");
    }
    const bool known = h->commit[0] != '\0' && dirty != NULL && dirty->kind == CARRY_JSON_BOOL;
    h->dirty = !known ? CARRY_CHANGES_UNKNOWN : dirty->truth;
    h->state = strcmp(h->state, "running") == 0 ? "interrupted" : h->state; /* an imported run is not running */
    return CARRY_OK;
}

/* Finds the same run in the store; *id is 0 if the store does not have it. */
static carry_status find_same(const source *s, int64_t *id, const head *h) {
    sqlite3_stmt *row;
    CARRY_TRY(carry_store_prepare(s->store, &row,
                                  "SELECT id FROM runs WHERE kind = ?1 AND name = ?2 AND command = ?3 AND commit_hash "
                                  "= ?4 AND abs(started - ?5) < ?6",
                                  "ssssdd", h->kind, h->name, h->command, h->commit, h->started, SAME_SECONDS));
    const int code = sqlite3_step(row);
    *id = code == SQLITE_ROW ? sqlite3_column_int64(row, 0) : 0;
    (void)sqlite3_finalize(row);
    return code == SQLITE_ROW || code == SQLITE_DONE ? CARRY_OK : carry_store_fail(s->store, "looking for a run");
}

static carry_status import_run(const source *s, int64_t *id, bool *is_new, const carry_json *from) {
    head h = {0};
    int64_t machine;
    sqlite3_stmt *statement;
    if (from->kind != CARRY_JSON_OBJECT || carry_json_find(from, "results") == NULL) {
        return damaged(s, from, "not a run that carry runs export wrote");
    }
    CARRY_TRY(read_head(s, &h, from));
    CARRY_TRY(find_same(s, id, &h));
    *is_new = *id == 0;
    if (!*is_new) {
        return CARRY_OK;
    }
    CARRY_TRY(import_machine(s, &machine, from));
    CARRY_TRY(carry_store_prepare(
        s->store, &statement,
        "INSERT INTO runs(kind, name, command, spec, folder, commit_hash, dirty, machine, started, ended, state, "
        "decision, note, pid, process_start, boot, host) VALUES(?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, "
        "?13, "
        "0, 0, '', '')",
        "ssssssiiddsss", h.kind, h.name, h.command, h.spec, h.folder, h.commit, (int64_t)h.dirty, machine, h.started,
        h.ended, h.state, h.decision, h.note));
    CARRY_TRY(carry_store_exec(s->store, "importing a run", statement));
    *id = sqlite3_last_insert_rowid(s->store->db);
    return import_lists(s, *id, from);
}

/* Adds an element and returns it, or NULL. */
static carry_imported *add_imported(carry_imported **all, int *count) {
    carry_imported *larger = realloc(*all, ((size_t)*count + 1) * sizeof *larger);
    if (larger == NULL) {
        return NULL;
    }
    *all = larger;
    larger[*count] = (carry_imported){0};
    return &larger[(*count)++];
}

static carry_status import_line(const source *s, carry_imported **all, int *count, const char *line) {
    carry_json *run = NULL;
    carry_status status = carry_json_parse_line(s->store->ctx, &run, line, strlen(line), s->name);
    carry_imported *to = status == CARRY_OK ? add_imported(all, count) : NULL;
    if (status == CARRY_OK && to == NULL) {
        status = carry_fail(s->store->ctx, CARRY_EMEMORY, "out of memory: runs of %s", s->name);
    }
    if (to != NULL) {
        const char *name = carry_json_string(carry_json_find(run, "name"));
        (void)snprintf(to->name, sizeof to->name, "%s", name != NULL ? name : "");
        to->results = carry_json_count(carry_json_find(run, "results"));
        status = import_run(s, &to->run, &to->is_new, run);
    }
    carry_json_free(run);
    return status;
}

/* Imports one run per line, as export writes them. */
static carry_status import_lines(carry_store *store, carry_imported **all, int *count, const char *path, char *text) {
    int line = 0;
    for (char *at = text, *next; at != NULL; at = next) {
        char name[CARRY_FILE_PATH + 24];
        next = strchr(at, '\n');
        if (next != NULL) {
            *next++ = '\0';
        }
        (void)snprintf(name, sizeof name, "%s, line %d", path, ++line);
        if (strspn(at, " \t\r") != strlen(at)) {
            CARRY_TRY(import_line(&(source){.store = store, .name = name}, all, count, at));
        }
    }
    return *count > 0 ? CARRY_OK : carry_fail(store->ctx, CARRY_EFORMAT, "%s has no run", path);
}

carry_status carry_store_import(carry_store *store, const char *path, carry_imported **all, int *count) {
    char *text = NULL;
    size_t length = 0;
    *all = NULL;
    *count = 0;
    CARRY_TRY(carry_file_read(store->ctx, &text, &length, path, CARRY_JSON_BYTES));
    carry_status status =
        strlen(text) == length ? CARRY_OK : carry_fail(store->ctx, CARRY_EFORMAT, "%s is not a text", path);
    if (status == CARRY_OK) {
        status = carry_store_script(store, "importing runs", "BEGIN IMMEDIATE");
        if (status == CARRY_OK) {
            status = carry_store_finish(store, import_lines(store, all, count, path, text), "importing runs");
        }
    }
    free(text);
    if (status != CARRY_OK) {
        free(*all);
        *all = NULL;
        *count = 0;
    }
    return status;
}
