/* The run store: reading. */
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lab/store/store_internal.h"
#include "core/json.h"

#define MOST_ROWS 10000000
#define MOST_TEXT 65536 /* as in the statement below */

/* A column as a copied text, "" for NULL. */
static char *column_text(sqlite3_stmt *statement, int column) {
    const char *text = (const char *)sqlite3_column_text(statement, column);
    return strdup(text != NULL ? text : "");
}

static double column_number(sqlite3_stmt *statement, int column) {
    return sqlite3_column_type(statement, column) == SQLITE_NULL ? NAN : sqlite3_column_double(statement, column);
}

/* Adds a zeroed element of `size` bytes to an array that grows by doubling. */
static void *grow(void **array, int *count, size_t size) {
    if (*count >= MOST_ROWS) {
        return NULL;
    }
    if ((*count & (*count - 1)) == 0) { /* at a power of two the array is full */
        size_t wanted = *count == 0 ? 1 : 2 * (size_t)*count;
        void *larger = realloc(*array, wanted * size);
        if (larger == NULL) {
            return NULL;
        }
        *array = larger;
    }
    void *place = (char *)*array + (size_t)*count * size;
    memset(place, 0, size);
    (*count)++;
    return place;
}

static carry_status no_memory(carry_store *store) {
    return carry_fail(store->ctx, CARRY_EMEMORY, "out of memory: reading a run from %s", store->path);
}

/* Reads the facts in a machine's row; a damaged row is skipped. Returns false when out of memory. */
static bool read_facts(carry_ctx *ctx, carry_run *run, const char *text) {
    carry_json *facts = NULL;
    bool whole = true;
    if (text == NULL || carry_json_parse(ctx, &facts, text, strlen(text), "the machine's facts") != CARRY_OK) {
        return true;
    }
    for (const carry_json *at = carry_json_first(facts); at != NULL; at = at->next) {
        const char *value = carry_json_string(at);
        if (value == NULL || at->key == NULL) {
            continue;
        }
        carry_run_fact *fact = grow((void **)&run->fact, &run->facts, sizeof *fact);
        if (fact != NULL) {
            fact->name = strdup(at->key);
            fact->value = strdup(value);
        }
        whole = whole && fact != NULL && fact->name != NULL && fact->value != NULL;
    }
    carry_json_free(facts);
    return whole;
}

static carry_status load_head(carry_store *store, carry_run *run, int64_t id) {
    sqlite3_stmt *row;
    CARRY_TRY(
        carry_store_prepare(store, &row,
                            "SELECT kind, name, command, spec, folder, commit_hash, state, decision, note, dirty, "
                            "started, ended, facts FROM runs JOIN machines ON machines.id = machine WHERE "
                            "runs.id = ?1",
                            "i", id));
    int code = sqlite3_step(row);
    if (code != SQLITE_ROW) {
        carry_status status = CARRY_ENOTFOUND;
        if (code == SQLITE_DONE) {
            (void)carry_fail(store->ctx, status, "there is no run %lld in %s", (long long)id, store->path);
        } else {
            status = carry_store_fail(store, "reading a run");
        }
        (void)sqlite3_finalize(row);
        return status;
    }
    char **const texts[] = {&run->kind,   &run->name,  &run->command,  &run->spec, &run->folder,
                            &run->commit, &run->state, &run->decision, &run->note};
    bool whole = true;
    for (int i = 0; i < 9; i++) {
        *texts[i] = column_text(row, i);
        whole = whole && *texts[i] != NULL;
    }
    run->id = id;
    run->dirty = run->commit != NULL && run->commit[0] != '\0' ? sqlite3_column_int(row, 9) : CARRY_CHANGES_UNKNOWN;
    run->started = sqlite3_column_double(row, 10);
    run->ended = sqlite3_column_double(row, 11);
    whole = read_facts(store->ctx, run, (const char *)sqlite3_column_text(row, 12)) && whole;
    (void)sqlite3_finalize(row);
    return whole ? CARRY_OK : no_memory(store);
}

static carry_status load_samples(carry_store *store, carry_run_result *result, int64_t id) {
    sqlite3_stmt *row;
    CARRY_TRY(
        carry_store_prepare(store, &row, "SELECT seconds FROM samples WHERE result = ?1 ORDER BY position", "i", id));
    carry_status status = CARRY_OK;
    int code;
    while (status == CARRY_OK && (code = sqlite3_step(row)) != SQLITE_DONE) {
        double *place = code == SQLITE_ROW ? grow((void **)&result->sample, &result->samples, sizeof *place) : NULL;
        if (place != NULL) {
            *place = sqlite3_column_double(row, 0);
        } else {
            status = code == SQLITE_ROW ? no_memory(store) : carry_store_fail(store, "reading samples");
        }
    }
    (void)sqlite3_finalize(row);
    return status;
}

static carry_status load_result(carry_store *store, carry_run *run, sqlite3_stmt *row) {
    carry_run_result *result = grow((void **)&run->result, &run->results, sizeof *result);
    if (result == NULL) {
        return no_memory(store);
    }
    carry_stored_result *is = &result->is;
    is->problem = column_text(row, 1);
    is->method = column_text(row, 2);
    is->device = column_text(row, 3);
    is->reason = column_text(row, 4);
    is->planned = sqlite3_column_int(row, 5) != 0;
    is->products = sqlite3_column_int64(row, 6);
    double *const numbers[] = {&is->median,         &is->spread, &is->flops,       &is->bytes,
                               &is->workspace,      &is->tokens, &is->share,       &is->error,
                               &is->error_absolute, &is->bound,  &is->gemm_gflops, &is->copy_gbytes_s};
    for (int i = 0; i < 12; i++) {
        *numbers[i] = column_number(row, 7 + i);
    }
    if (is->problem == NULL || is->method == NULL || is->device == NULL || is->reason == NULL) {
        return no_memory(store);
    }
    return load_samples(store, result, sqlite3_column_int64(row, 0));
}

static carry_status load_criterion(carry_store *store, carry_run *run, sqlite3_stmt *row) {
    carry_stored_criterion *c = grow((void **)&run->criterion, &run->criteria, sizeof *c);
    if (c == NULL) {
        return no_memory(store);
    }
    *c = (carry_stored_criterion){.side = column_text(row, 0),
                                  .text = column_text(row, 1),
                                  .value = column_number(row, 2),
                                  .bound = column_number(row, 3),
                                  .verdict = column_text(row, 4),
                                  .reason = column_text(row, 5)};
    bool whole = c->side != NULL && c->text != NULL && c->verdict != NULL && c->reason != NULL;
    return whole ? CARRY_OK : no_memory(store);
}

static carry_status load_artefact(carry_store *store, carry_run *run, sqlite3_stmt *row) {
    carry_run_artefact *a = grow((void **)&run->artefact, &run->artefacts, sizeof *a);
    if (a == NULL || (a->name = column_text(row, 0)) == NULL) {
        return no_memory(store);
    }
    a->bytes = sqlite3_column_int64(row, 1);
    const char *content = (const char *)sqlite3_column_text(row, 2);
    if (a->bytes <= MOST_TEXT && content != NULL && (int64_t)strlen(content) == a->bytes &&
        carry_json_is_utf8(content)) {
        a->text = strdup(content);
        return a->text != NULL ? CARRY_OK : no_memory(store);
    }
    return CARRY_OK;
}

static carry_status load_metric(carry_store *store, carry_run *run, sqlite3_stmt *row) {
    carry_run_metric *m = grow((void **)&run->metric, &run->metrics, sizeof *m);
    if (m == NULL || (m->name = column_text(row, 1)) == NULL) {
        return no_memory(store);
    }
    m->step = sqlite3_column_int64(row, 0);
    m->value = column_number(row, 2);
    return CARRY_OK;
}

static carry_status load_rows(carry_store *store, carry_run *run, const char *sql,
                              carry_status (*load)(carry_store *, carry_run *, sqlite3_stmt *)) {
    sqlite3_stmt *row;
    CARRY_TRY(carry_store_prepare(store, &row, sql, "i", run->id));
    carry_status status = CARRY_OK;
    int code;
    while (status == CARRY_OK && (code = sqlite3_step(row)) != SQLITE_DONE) {
        status = code == SQLITE_ROW ? load(store, run, row) : carry_store_fail(store, "reading a run");
    }
    (void)sqlite3_finalize(row);
    return status;
}

static carry_status load_all(carry_store *store, carry_run *run, int64_t id) {
    static const struct {
        const char *sql;
        carry_status (*load)(carry_store *, carry_run *, sqlite3_stmt *);
    } parts[] = {
        {"SELECT id, problem, method, device, reason, planned, products, median, spread, flops, bytes, workspace, "
         "tokens, share, error, error_absolute, bound, gemm_gflops, copy_gbytes_s FROM results WHERE run = ?1 ORDER BY "
         "id",
         load_result},
        {"SELECT side, text, value, bound, verdict, reason FROM criteria WHERE run = ?1 ORDER BY id", load_criterion},
        {"SELECT name, length(content), CASE WHEN length(content) <= 65536 THEN content END FROM artefacts WHERE run = "
         "?1 ORDER BY name",
         load_artefact},
        {"SELECT step, name, value FROM metrics WHERE run = ?1 ORDER BY name, step", load_metric},
    };
    CARRY_TRY(load_head(store, run, id));
    for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++) {
        CARRY_TRY(load_rows(store, run, parts[i].sql, parts[i].load));
    }
    return CARRY_OK;
}

/* Loads the run under a savepoint, so that it is consistent even while it is being written. */
carry_status carry_store_load(carry_store *store, carry_run **run, int64_t id) {
    carry_run *loaded = calloc(1, sizeof *loaded);
    *run = NULL;
    if (loaded == NULL) {
        return no_memory(store);
    }
    carry_status status = carry_store_script(store, "reading a run", "SAVEPOINT reading");
    if (status == CARRY_OK) {
        status = load_all(store, loaded, id);
        (void)sqlite3_exec(store->db, "RELEASE reading", NULL, NULL, NULL);
    }
    if (status != CARRY_OK) {
        carry_run_free(loaded);
        return status;
    }
    *run = loaded;
    return CARRY_OK;
}

/* The run owns these texts, though their type is const so that writers can pass borrowed ones. */
static void free_text(const char *text) {
    free((void *)(uintptr_t)text);
}

void carry_run_free(carry_run *run) {
    if (run == NULL) {
        return;
    }
    for (int i = 0; i < run->results; i++) {
        const carry_stored_result *is = &run->result[i].is;
        free_text(is->problem);
        free_text(is->method);
        free_text(is->device);
        free_text(is->reason);
        free(run->result[i].sample);
    }
    for (int i = 0; i < run->criteria; i++) {
        free_text(run->criterion[i].side);
        free_text(run->criterion[i].text);
        free_text(run->criterion[i].verdict);
        free_text(run->criterion[i].reason);
    }
    for (int i = 0; i < run->artefacts; i++) {
        free(run->artefact[i].name);
        free(run->artefact[i].text);
    }
    for (int i = 0; i < run->metrics; i++) {
        free(run->metric[i].name);
    }
    for (int i = 0; i < run->facts; i++) {
        free(run->fact[i].name);
        free(run->fact[i].value);
    }
    void *const all[] = {run->result, run->criterion, run->artefact, run->metric, run->fact,
                         run->kind,   run->name,      run->command,  run->spec,   run->folder,
                         run->commit, run->state,     run->decision, run->note};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
        free(all[i]);
    }
    free(run);
}

/* The first column of the first row, or CARRY_ENOTFOUND without an error message. */
static carry_status first_id(carry_store *store, int64_t *id, sqlite3_stmt *statement) {
    int code = sqlite3_step(statement);
    carry_status status = code == SQLITE_ROW    ? CARRY_OK
                          : code == SQLITE_DONE ? CARRY_ENOTFOUND
                                                : carry_store_fail(store, "looking for a run");
    if (status == CARRY_OK) {
        *id = sqlite3_column_int64(statement, 0);
    }
    (void)sqlite3_finalize(statement);
    return status;
}

carry_status carry_store_find(carry_store *store, int64_t *run, const char *text) {
    char *end;
    errno = 0;
    long long number = strtoll(text, &end, 10);
    sqlite3_stmt *statement;
    if (end != text && *end == '\0' && errno == 0) {
        CARRY_TRY(carry_store_prepare(store, &statement, "SELECT id FROM runs WHERE id = ?1", "i", (int64_t)number));
    } else if (strcmp(text, "last") == 0) {
        CARRY_TRY(carry_store_prepare(store, &statement, "SELECT max(id) FROM runs HAVING max(id) IS NOT NULL", ""));
    } else {
        CARRY_TRY(carry_store_prepare(store, &statement, "SELECT id FROM runs WHERE name = ?1 ORDER BY id DESC LIMIT 1",
                                      "s", text));
    }
    carry_status status = first_id(store, run, statement);
    return status == CARRY_ENOTFOUND
               ? carry_fail(store->ctx, status, "there is no run '%.60s' in %s (carry runs list shows them)", text,
                            store->path)
               : status;
}

carry_status carry_store_artefact_read(carry_store *store, int64_t run, const char *name, void **bytes,
                                       size_t *length) {
    sqlite3_stmt *statement;
    *bytes = NULL;
    *length = 0;
    CARRY_TRY(carry_store_prepare(store, &statement, "SELECT content FROM artefacts WHERE run = ?1 AND name = ?2", "is",
                                  run, name));
    carry_status status = CARRY_OK;
    int code = sqlite3_step(statement);
    if (code == SQLITE_ROW) {
        const void *content = sqlite3_column_blob(statement, 0);
        *length = (size_t)sqlite3_column_bytes(statement, 0);
        *bytes = malloc(*length + 1);
        if (*bytes == NULL) {
            status = no_memory(store);
        } else {
            if (*length > 0) {
                memcpy(*bytes, content, *length);
            }
            ((char *)*bytes)[*length] = '\0';
        }
    } else if (code != SQLITE_DONE) {
        status = carry_store_fail(store, "reading an artefact");
    } else {
        status = carry_fail(store->ctx, CARRY_ENOTFOUND, "run %lld has no artefact '%.60s'", (long long)run, name);
    }
    (void)sqlite3_finalize(statement);
    return status;
}

carry_status carry_store_delete(carry_store *store, int64_t run) {
    sqlite3_stmt *statement;
    CARRY_TRY(carry_store_prepare(store, &statement, "DELETE FROM runs WHERE id = ?1", "i", run));
    return carry_store_exec(store, "deleting a run", statement);
}
