/* The run store: writing. */
#include "lab/store/store.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "lab/alive.h"
#include "lab/machine.h"
#include "lab/process.h"
#include "lab/store/store_internal.h"
#include "core/json_write.h"

#define MOST_ARTEFACT ((size_t)64 << 20)
#define GIT_SECONDS 10.0

carry_status carry_store_fail(carry_store *store, const char *doing) {
    int code = sqlite3_errcode(store->db);
    bool damaged = code == SQLITE_CORRUPT || code == SQLITE_NOTADB;
    bool disk = code == SQLITE_FULL || code == SQLITE_IOERR;
    carry_status status = code == SQLITE_BUSY    ? CARRY_ETIMEOUT
                          : code == SQLITE_NOMEM ? CARRY_EMEMORY
                          : damaged              ? CARRY_EFORMAT
                                                 : CARRY_EIO;
    const int reason =
        code == SQLITE_IOERR ? sqlite3_system_errno(store->db) : 0; /* "disk I/O error" may be a full disk */
    return carry_fail(store->ctx, status, "%s: %s: %s%s%s%s", store->path, doing, sqlite3_errmsg(store->db),
                      reason != 0 ? ": " : "", reason != 0 ? strerror(reason) : "",
                      disk ? " (what was stored before is intact)" : "");
}

carry_status carry_store_prepare(carry_store *store, sqlite3_stmt **statement, const char *sql, const char *types,
                                 ...) {
    if (sqlite3_prepare_v2(store->db, sql, -1, statement, NULL) != SQLITE_OK) {
        return carry_store_fail(store, "asking");
    }
    va_list values;
    va_start(values, types);
    for (int i = 0; types[i] != '\0'; i++) {
        if (types[i] == 'i') {
            (void)sqlite3_bind_int64(*statement, i + 1, va_arg(values, int64_t));
        } else if (types[i] == 'b') {
            (void)sqlite3_bind_int(*statement, i + 1, va_arg(values, int) != 0);
        } else if (types[i] == 'd') {
            double value = va_arg(values, double);
            (void)(isnan(value) ? sqlite3_bind_null(*statement, i + 1) : sqlite3_bind_double(*statement, i + 1, value));
        } else {
            const char *text = va_arg(values, const char *);
            (void)sqlite3_bind_text(*statement, i + 1, text != NULL ? text : "", -1, SQLITE_TRANSIENT);
        }
    }
    va_end(values);
    return CARRY_OK;
}

carry_status carry_store_exec(carry_store *store, const char *doing, sqlite3_stmt *statement) {
    int code = sqlite3_step(statement);
    carry_status status = code == SQLITE_DONE || code == SQLITE_ROW ? CARRY_OK : carry_store_fail(store, doing);
    (void)sqlite3_finalize(statement);
    return status;
}

carry_status carry_store_script(carry_store *store, const char *doing, const char *sql) {
    return sqlite3_exec(store->db, sql, NULL, NULL, NULL) == SQLITE_OK ? CARRY_OK : carry_store_fail(store, doing);
}

struct sqlite3 *carry_store_db(carry_store *store) {
    return store->db;
}

carry_status carry_store_compact(carry_store *store) {
    CARRY_TRY(
        carry_store_script(store, "compacting", "DELETE FROM machines WHERE id NOT IN (SELECT machine FROM runs)"));
    return carry_store_script(store, "compacting", "VACUUM");
}

void carry_store_ask_git(carry_ctx *ctx, char commit[64], int *dirty) {
    carry_process_result result;
    commit[0] = '\0';
    *dirty = CARRY_CHANGES_UNKNOWN;
    const char *const head[] = {"git", "rev-parse", "HEAD", NULL};
    if (carry_process_run(ctx, &result, &(carry_process){.arguments = head, .seconds = GIT_SECONDS}) == CARRY_OK) {
        if (result.code == 0) {
            (void)snprintf(commit, 64, "%.*s", (int)strcspn(result.output, "\n"), result.output);
        }
        carry_process_free(&result);
    }
    /* Without its optional locks: the user's own git may be running here. */
    const char *const changes[] = {"git", "--no-optional-locks", "status", "--porcelain", "--untracked-files=no", NULL};
    if (commit[0] != '\0' &&
        carry_process_run(ctx, &result, &(carry_process){.arguments = changes, .seconds = GIT_SECONDS}) == CARRY_OK) {
        *dirty = result.code != 0 ? CARRY_CHANGES_UNKNOWN : result.output_length > 0;
        carry_process_free(&result);
    }
}

char *carry_store_machine(carry_store *store, const carry_run_used *used) {
    carry_fact facts[CARRY_FACTS];
    int count = carry_machine_facts(store->ctx, facts);
    carry_json_text text = {0};
    char number[24];
    carry_json_begin(&text, NULL, '{');
    for (int i = 0; i < count; i++) {
        if (used->threads == 0 || strcmp(facts[i].name, "threads") != 0) {
            carry_json_add_text(&text, facts[i].name, facts[i].value);
        }
    }
    if (used->threads > 0) {
        (void)snprintf(number, sizeof number, "%d", used->threads);
        carry_json_add_text(&text, "threads", number);
    }
    if (used->ranks > 0) {
        (void)snprintf(number, sizeof number, "%d", used->ranks);
        carry_json_add_text(&text, "ranks", number);
    }
    if (used->device != NULL) {
        carry_json_add_text(&text, "device", used->device);
    }
    carry_json_end(&text, '}');
    return carry_json_text_take(&text);
}

carry_status carry_store_machine_row(carry_store *store, int64_t *id, const char *text) {
    sqlite3_stmt *statement = NULL;
    carry_status status =
        carry_store_prepare(store, &statement, "INSERT OR IGNORE INTO machines(facts) VALUES(?1)", "s", text);
    status = status == CARRY_OK ? carry_store_exec(store, "storing the machine", statement) : status;
    if (status == CARRY_OK) {
        status = carry_store_prepare(store, &statement, "SELECT id FROM machines WHERE facts = ?1", "s", text);
    }
    if (status == CARRY_OK) {
        if (sqlite3_step(statement) == SQLITE_ROW) {
            *id = sqlite3_column_int64(statement, 0);
        } else {
            status = carry_store_fail(store, "storing the machine");
        }
        (void)sqlite3_finalize(statement);
    }
    return status;
}

/* The row of the machine; there is one for each distinct set of facts. */
static carry_status machine_row(carry_store *store, int64_t *id, const carry_run_used *used) {
    char *text = carry_store_machine(store, used);
    if (text == NULL) {
        return carry_fail(store->ctx, CARRY_EMEMORY, "out of memory: the machine's facts");
    }
    const carry_status status = carry_store_machine_row(store, id, text);
    free(text);
    return status;
}

double carry_store_now(void) {
    struct timespec t;
    (void)clock_gettime(CLOCK_REALTIME, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* A name that ends in a slash is a series whose runs are numbered: sweep/1, sweep/2. */
static carry_status name_run(carry_store *store, char name[256], const char *given) {
    const size_t length = given != NULL ? strlen(given) : 0;
    (void)snprintf(name, 256, "%s", given != NULL ? given : "");
    if (length == 0 || length > 230 || given[length - 1] != '/') {
        return CARRY_OK;
    }
    sqlite3_stmt *row;
    CARRY_TRY(carry_store_prepare(store, &row,
                                  "SELECT coalesce(max(CAST(substr(name, length(?1) + 1) AS INTEGER)), 0) + 1 FROM "
                                  "runs WHERE substr(name, 1, length(?1)) = ?1",
                                  "s", given));
    const int code = sqlite3_step(row);
    const long long number = code == SQLITE_ROW ? (long long)sqlite3_column_int64(row, 0) : 1;
    (void)sqlite3_finalize(row);
    (void)snprintf(name + length, 256 - length, "%lld", number);
    return code == SQLITE_ROW ? CARRY_OK : carry_store_fail(store, "naming a run");
}

static carry_status insert_run(carry_store *store, int64_t *run, const carry_run_start *start, const char *commit,
                               int dirty) {
    char folder[4096];
    int64_t machine = 0;
    if (getcwd(folder, sizeof folder) == NULL) {
        folder[0] = '\0';
    }
    char name[256];
    CARRY_TRY(machine_row(store, &machine, &(carry_run_used){0}));
    CARRY_TRY(name_run(store, name, start->name));
    sqlite3_stmt *statement;
    CARRY_TRY(carry_store_prepare(
        store, &statement,
        "INSERT INTO runs(kind, name, command, spec, folder, commit_hash, dirty, machine, started, state, pid, "
        "process_start, boot, host) VALUES(?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, 'running', ?10, ?11, ?12, ?13)",
        "ssssssiidiiss", start->kind, name, start->command, start->spec, folder, commit, (int64_t)dirty, machine,
        carry_store_now(), (int64_t)getpid(), carry_alive_start((int64_t)getpid()), carry_alive_boot(),
        carry_alive_host()));
    CARRY_TRY(carry_store_exec(store, "beginning a run", statement));
    *run = sqlite3_last_insert_rowid(store->db);
    return CARRY_OK;
}

carry_status carry_store_finish(carry_store *store, carry_status status, const char *doing) {
    if (status == CARRY_OK) {
        status = carry_store_script(store, doing, "COMMIT");
    }
    if (status != CARRY_OK) {
        (void)sqlite3_exec(store->db, "ROLLBACK", NULL, NULL, NULL);
    }
    return status;
}

carry_status carry_store_begin(carry_store *store, int64_t *run, const carry_run_start *start) {
    char commit[64];
    int dirty;
    carry_store_ask_git(store->ctx, commit, &dirty);
    /* One transaction, so that the machine's row is not deleted before the run refers to it. */
    CARRY_TRY(carry_store_script(store, "beginning a run", "BEGIN IMMEDIATE"));
    return carry_store_finish(store, insert_run(store, run, start, commit, dirty), "beginning a run");
}

static carry_status note_used(carry_store *store, int64_t run, const carry_run_used *used) {
    int64_t machine = 0;
    sqlite3_stmt *statement;
    CARRY_TRY(machine_row(store, &machine, used));
    CARRY_TRY(carry_store_prepare(
        store, &statement,
        "UPDATE runs SET machine = ?2, spec = CASE WHEN ?3 <> '' THEN ?3 ELSE spec END WHERE id = ?1", "iis", run,
        machine, used->spec));
    return carry_store_exec(store, "noting what a run uses", statement);
}

carry_status carry_store_used(carry_store *store, int64_t run, const carry_run_used *used) {
    CARRY_TRY(carry_store_script(store, "noting what a run uses", "BEGIN IMMEDIATE"));
    return carry_store_finish(store, note_used(store, run, used), "noting what a run uses");
}

carry_status carry_store_end(carry_store *store, int64_t run, const char *state, const char *decision,
                             const char *note) {
    sqlite3_stmt *statement;
    CARRY_TRY(carry_store_prepare(store, &statement,
                                  "UPDATE runs SET ended = ?1, state = ?2, decision = ?3, note = ?4 WHERE id = ?5",
                                  "dsssi", carry_store_now(), state, decision, note, run));
    CARRY_TRY(carry_store_exec(store, "ending a run", statement));
    return sqlite3_changes(store->db) == 1
               ? CARRY_OK
               : carry_fail(store->ctx, CARRY_ENOTFOUND, "run %lld is no longer in %s", (long long)run, store->path);
}

carry_status carry_store_samples(carry_store *store, int64_t result, const double *samples, int count) {
    sqlite3_stmt *statement;
    CARRY_TRY(carry_store_prepare(store, &statement,
                                  "INSERT INTO samples(result, position, seconds) VALUES(?1, ?2, ?3)", "i", result));
    carry_status status = CARRY_OK;
    for (int i = 0; status == CARRY_OK && i < count; i++) {
        (void)sqlite3_bind_int(statement, 2, i);
        (void)sqlite3_bind_double(statement, 3, samples[i]);
        if (sqlite3_step(statement) != SQLITE_DONE) {
            status = carry_store_fail(store, "storing samples");
        }
        (void)sqlite3_reset(statement);
    }
    (void)sqlite3_finalize(statement);
    return status;
}

carry_status carry_store_insert_result(carry_store *store, int64_t run, const carry_stored_result *r,
                                       const double *samples, int count) {
    sqlite3_stmt *statement = NULL;
    CARRY_TRY(carry_store_prepare(
        store, &statement,
        "INSERT INTO results(run, problem, method, device, reason, planned, products, median, spread, flops, bytes, "
        "workspace, tokens, share, error, error_absolute, bound, gemm_gflops, copy_gbytes_s) VALUES(?1, ?2, ?3, ?4, "
        "?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17, ?18, ?19)",
        "issssbidddddddddddd", run, r->problem, r->method, r->device, r->reason, (int)r->planned, r->products,
        r->median, r->spread, r->flops, r->bytes, r->workspace, r->tokens, r->share, r->error, r->error_absolute,
        r->bound, r->gemm_gflops, r->copy_gbytes_s));
    CARRY_TRY(carry_store_exec(store, "storing a result", statement));
    return carry_store_samples(store, sqlite3_last_insert_rowid(store->db), samples, count);
}

carry_status carry_store_result(carry_store *store, int64_t run, const carry_stored_result *r, const double *samples,
                                int count) {
    CARRY_TRY(carry_store_script(store, "storing a result", "BEGIN IMMEDIATE"));
    return carry_store_finish(store, carry_store_insert_result(store, run, r, samples, count), "storing a result");
}

carry_status carry_store_criterion(carry_store *store, int64_t run, const carry_stored_criterion *c) {
    sqlite3_stmt *statement;
    CARRY_TRY(carry_store_prepare(store, &statement,
                                  "INSERT INTO criteria(run, side, text, value, bound, verdict, reason) VALUES(?1, ?2, "
                                  "?3, ?4, ?5, ?6, ?7)",
                                  "issddss", run, c->side, c->text, c->value, c->bound, c->verdict, c->reason));
    return carry_store_exec(store, "storing a criterion", statement);
}

carry_status carry_store_artefact(carry_store *store, int64_t run, const char *name, const void *bytes, size_t length) {
    if (length > MOST_ARTEFACT) {
        return carry_fail(store->ctx, CARRY_ESIZE, "%s has %zu bytes, more than the 64 MiB that the store keeps", name,
                          length);
    }
    sqlite3_stmt *statement;
    CARRY_TRY(carry_store_prepare(
        store, &statement, "INSERT OR REPLACE INTO artefacts(run, name, content) VALUES(?1, ?2, ?3)", "is", run, name));
    (void)sqlite3_bind_blob64(statement, 3, length > 0 ? bytes : "", length, SQLITE_STATIC);
    return carry_store_exec(store, "storing an artefact", statement);
}

carry_status carry_store_metric(carry_store *store, int64_t run, int64_t step, const char *name, double value) {
    sqlite3_stmt *statement;
    CARRY_TRY(carry_store_prepare(store, &statement,
                                  "INSERT INTO metrics(run, step, name, value) VALUES(?1, ?2, ?3, ?4)", "iisd", run,
                                  step, name, value));
    return carry_store_exec(store, "storing a metric", statement);
}
