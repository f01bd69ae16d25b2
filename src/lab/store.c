/* The run store: opening it, and writing. */
#include "lab/store.h"

#include <errno.h>
#include <jansson.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "lab/alive.h"
#include "lab/machine.h"
#include "lab/process.h"
#include "lab/store_internal.h"
#include "lab/store_schema.h"

#define BUSY_MILLISECONDS 20000
#define MOST_ARTEFACT ((size_t)64 << 20)
#define GIT_SECONDS 10.0

carry_status carry_store_fail(carry_store *store, const char *doing) {
    int code = sqlite3_errcode(store->db);
    carry_status status = code == SQLITE_BUSY       ? CARRY_ETIMEOUT
                          : code == SQLITE_NOMEM    ? CARRY_EMEMORY
                          : code == SQLITE_CORRUPT  ? CARRY_EFORMAT
                          : code == SQLITE_NOTADB   ? CARRY_EFORMAT
                          : code == SQLITE_CANTOPEN ? CARRY_EIO
                                                    : CARRY_EIO;
    return carry_fail(store->ctx, status, "%s: %s: %s%s", store->path, doing, sqlite3_errmsg(store->db),
                      code == SQLITE_FULL ? " (what was stored before is intact)" : "");
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

static carry_status script(carry_store *store, const char *doing, const char *sql) {
    return sqlite3_exec(store->db, sql, NULL, NULL, NULL) == SQLITE_OK ? CARRY_OK : carry_store_fail(store, doing);
}

static carry_status pragma(carry_store *store, int64_t *value, const char *name) {
    sqlite3_stmt *statement;
    CARRY_TRY(carry_store_prepare(store, &statement, name, ""));
    int code = sqlite3_step(statement);
    *value = code == SQLITE_ROW ? sqlite3_column_int64(statement, 0) : 0;
    carry_status status = code == SQLITE_ROW || code == SQLITE_DONE ? CARRY_OK : carry_store_fail(store, "opening");
    (void)sqlite3_finalize(statement);
    return status;
}

static bool exists(const char *folder, const char *name) {
    char path[4200];
    struct stat about;
    (void)snprintf(path, sizeof path, "%s/%s", folder, name);
    return stat(path, &about) == 0;
}

/* .carry/store.db in the nearest folder upwards that has a .carry or a .git, else here. */
static carry_status default_path(carry_ctx *ctx, char *path, size_t size) {
    const char *given = getenv("CARRY_STORE");
    if (given != NULL && *given != '\0') {
        return (size_t)snprintf(path, size, "%s", given) < size
                   ? CARRY_OK
                   : carry_fail(ctx, CARRY_EARGUMENT, "CARRY_STORE is longer than a path can be");
    }
    char here[4000];
    char folder[4000];
    if (getcwd(here, sizeof here) == NULL) {
        return carry_fail(ctx, CARRY_EIO, "this folder has no name: %s", strerror(errno));
    }
    (void)snprintf(folder, sizeof folder, "%s", here);
    for (char *slash; !exists(folder, ".carry") && !exists(folder, ".git") && (slash = strrchr(folder, '/')) != NULL;) {
        *slash = '\0';
        if (folder[0] == '\0') {
            (void)snprintf(folder, sizeof folder, "%s", here);
            break;
        }
    }
    (void)snprintf(path, size, "%s/.carry/store.db", folder);
    return CARRY_OK;
}

static void make_folders(const char *path) {
    char partial[4096];
    (void)snprintf(partial, sizeof partial, "%s", path);
    for (char *slash = strchr(partial + 1, '/'); slash != NULL; slash = strchr(slash + 1, '/')) {
        *slash = '\0';
        (void)mkdir(partial, 0777); /* what cannot be made shows when the file is opened */
        *slash = '/';
    }
}

/* A new file becomes a store; a store of a newer version, or another program's database, is left as it is. */
static carry_status settle_schema(carry_store *store) {
    int64_t version;
    int64_t application;
    CARRY_TRY(pragma(store, &version, "PRAGMA user_version"));
    CARRY_TRY(pragma(store, &application, "PRAGMA application_id"));
    if (version > CARRY_STORE_VERSION && application == CARRY_STORE_APPLICATION) {
        return carry_fail(
            store->ctx, CARRY_EUNSUPPORTED,
            "%s was written by a newer carry (store version %lld, this one knows %d): nothing was changed", store->path,
            (long long)version, CARRY_STORE_VERSION);
    }
    if (application == CARRY_STORE_APPLICATION && version == CARRY_STORE_VERSION) {
        return CARRY_OK;
    }
    int64_t tables;
    CARRY_TRY(pragma(store, &tables, "SELECT count(*) FROM sqlite_master"));
    if (tables > 0) {
        return carry_fail(store->ctx, CARRY_EFORMAT, "%s is a database, but not a run store: nothing was changed",
                          store->path);
    }
    char sql[128];
    (void)snprintf(sql, sizeof sql, "PRAGMA application_id=%d; PRAGMA user_version=%d", CARRY_STORE_APPLICATION,
                   CARRY_STORE_VERSION);
    CARRY_TRY(script(store, "making the store", CARRY_STORE_SCHEMA));
    return script(store, "making the store", sql);
}

static carry_status settle(carry_store *store) {
    (void)sqlite3_busy_timeout(store->db, BUSY_MILLISECONDS);
    int64_t version;
    CARRY_TRY(pragma(store, &version, "PRAGMA user_version"));
    if (version <= CARRY_STORE_VERSION) { /* a newer store is not touched at all */
        CARRY_TRY(script(store, "opening", "PRAGMA journal_mode=WAL; PRAGMA synchronous=NORMAL"));
    }
    CARRY_TRY(script(store, "opening", "PRAGMA foreign_keys=ON; PRAGMA temp_store=MEMORY"));
    CARRY_TRY(script(store, "opening", "BEGIN IMMEDIATE")); /* two processes may make it at once */
    carry_status status = settle_schema(store);
    if (status != CARRY_OK) {
        (void)sqlite3_exec(store->db, "ROLLBACK", NULL, NULL, NULL);
        return status;
    }
    return script(store, "opening", "COMMIT");
}

/* Runs of this machine that are marked as running and whose process is gone. */
static carry_status mark_killed(carry_store *store) {
    sqlite3_stmt *statement;
    CARRY_TRY(carry_store_prepare(store, &statement,
                                  "SELECT id, pid, process_start, boot FROM runs WHERE state = 'running' AND host = ?1",
                                  "s", carry_alive_host()));
    int64_t gone[64];
    int count = 0;
    while (count < 64 && sqlite3_step(statement) == SQLITE_ROW) {
        const char *boot = (const char *)sqlite3_column_text(statement, 3);
        if (!carry_alive(sqlite3_column_int64(statement, 1), sqlite3_column_int64(statement, 2), boot)) {
            gone[count++] = sqlite3_column_int64(statement, 0);
        }
    }
    (void)sqlite3_finalize(statement);
    for (int i = 0; i < count; i++) {
        CARRY_TRY(carry_store_prepare(
            store, &statement, "UPDATE runs SET state = 'killed' WHERE id = ?1 AND state = 'running'", "i", gone[i]));
        CARRY_TRY(carry_store_exec(store, "marking a killed run", statement));
    }
    return CARRY_OK;
}

carry_status carry_store_open(carry_ctx *ctx, carry_store **opened, const char *path) {
    *opened = NULL;
    carry_store *store = calloc(1, sizeof *store);
    if (store == NULL) {
        return carry_fail(ctx, CARRY_EMEMORY, "no memory for the store");
    }
    store->ctx = ctx;
    carry_status status = CARRY_OK;
    if (path == NULL) {
        status = default_path(ctx, store->path, sizeof store->path);
    } else if ((size_t)snprintf(store->path, sizeof store->path, "%s", path) >= sizeof store->path) {
        status = carry_fail(ctx, CARRY_EARGUMENT, "the store's path is longer than a path can be");
    }
    if (status == CARRY_OK) {
        make_folders(store->path);
        if (sqlite3_open_v2(store->path, &store->db, SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE, NULL) != SQLITE_OK) {
            status = carry_fail(ctx, CARRY_EIO, "the run store %s cannot be opened: %s", store->path,
                                store->db != NULL ? sqlite3_errmsg(store->db) : "no memory");
        }
    }
    status = status == CARRY_OK ? settle(store) : status;
    status = status == CARRY_OK ? mark_killed(store) : status;
    if (status != CARRY_OK) {
        carry_store_close(store);
        return status;
    }
    *opened = store;
    return CARRY_OK;
}

void carry_store_close(carry_store *store) {
    if (store != NULL) {
        (void)sqlite3_close(store->db);
        free(store);
    }
}

const char *carry_store_path(const carry_store *store) {
    return store->path;
}

struct sqlite3 *carry_store_db(carry_store *store) {
    return store->db;
}

carry_status carry_store_compact(carry_store *store) {
    CARRY_TRY(script(store, "compacting", "DELETE FROM machines WHERE id NOT IN (SELECT machine FROM runs)"));
    return script(store, "compacting", "VACUUM");
}

/* The commit of this folder and whether anything differs from it; "" where there is no repository or no git. */
static void ask_git(carry_ctx *ctx, char commit[64], bool *dirty) {
    carry_process_result result;
    commit[0] = '\0';
    *dirty = false;
    const char *const head[] = {"git", "rev-parse", "HEAD", NULL};
    if (carry_process_run(ctx, &result, &(carry_process){.arguments = head, .seconds = GIT_SECONDS}) == CARRY_OK) {
        if (result.code == 0) {
            (void)snprintf(commit, 64, "%.*s", (int)strcspn(result.output, "\n"), result.output);
        }
        carry_process_free(&result);
    }
    const char *const changes[] = {"git", "status", "--porcelain", "--untracked-files=no", NULL};
    if (commit[0] != '\0' &&
        carry_process_run(ctx, &result, &(carry_process){.arguments = changes, .seconds = GIT_SECONDS}) == CARRY_OK) {
        *dirty = result.code == 0 && result.output_length > 0;
        carry_process_free(&result);
    }
}

/* The machine's row; one per set of facts. */
static carry_status machine_row(carry_store *store, int64_t *id) {
    carry_fact facts[CARRY_FACTS];
    int count = carry_machine_facts(store->ctx, facts);
    json_t *object = json_object();
    for (int i = 0; i < count; i++) {
        (void)json_object_set_new(object, facts[i].name, json_string(facts[i].value));
    }
    char *text = json_dumps(object, JSON_COMPACT);
    json_decref(object);
    if (text == NULL) {
        return carry_fail(store->ctx, CARRY_EMEMORY, "no memory for the machine's facts");
    }
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
    free(text);
    return status;
}

static double now(void) {
    struct timespec t;
    (void)clock_gettime(CLOCK_REALTIME, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

carry_status carry_store_begin(carry_store *store, int64_t *run, const carry_run_start *start) {
    char commit[64];
    char folder[4096];
    bool dirty;
    int64_t machine = 0;
    ask_git(store->ctx, commit, &dirty);
    if (getcwd(folder, sizeof folder) == NULL) {
        folder[0] = '\0';
    }
    CARRY_TRY(machine_row(store, &machine));
    sqlite3_stmt *statement;
    CARRY_TRY(carry_store_prepare(
        store, &statement,
        "INSERT INTO runs(kind, name, command, spec, folder, commit_hash, dirty, machine, started, state, pid, "
        "process_start, boot, host) VALUES(?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, 'running', ?10, ?11, ?12, ?13)",
        "ssssssbidiiss", start->kind, start->name, start->command, start->spec, folder, commit, (int)dirty, machine,
        now(), (int64_t)getpid(), carry_alive_start((int64_t)getpid()), carry_alive_boot(), carry_alive_host()));
    CARRY_TRY(carry_store_exec(store, "beginning a run", statement));
    *run = sqlite3_last_insert_rowid(store->db);
    return CARRY_OK;
}

carry_status carry_store_end(carry_store *store, int64_t run, const char *state, const char *decision,
                             const char *note) {
    sqlite3_stmt *statement;
    CARRY_TRY(carry_store_prepare(store, &statement,
                                  "UPDATE runs SET ended = ?1, state = ?2, decision = ?3, note = ?4 WHERE id = ?5",
                                  "dsssi", now(), state, decision, note, run));
    return carry_store_exec(store, "ending a run", statement);
}

static carry_status store_samples(carry_store *store, int64_t result, const double *samples, int count) {
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

carry_status carry_store_result(carry_store *store, int64_t run, const carry_stored_result *r, const double *samples,
                                int count) {
    CARRY_TRY(script(store, "storing a result", "BEGIN IMMEDIATE"));
    sqlite3_stmt *statement = NULL;
    carry_status status = carry_store_prepare(
        store, &statement,
        "INSERT INTO results(run, problem, method, device, reason, planned, products, median, spread, flops, bytes, "
        "workspace, tokens, share, error, error_absolute, bound, gemm_gflops, copy_gbytes_s) VALUES(?1, ?2, ?3, ?4, "
        "?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17, ?18, ?19)",
        "issssbidddddddddddd", run, r->problem, r->method, r->device, r->reason, (int)r->planned, r->products,
        r->median, r->spread, r->flops, r->bytes, r->workspace, r->tokens, r->share, r->error, r->error_absolute,
        r->bound, r->gemm_gflops, r->copy_gbytes_s);
    status = status == CARRY_OK ? carry_store_exec(store, "storing a result", statement) : status;
    if (status == CARRY_OK) {
        status = store_samples(store, sqlite3_last_insert_rowid(store->db), samples, count);
    }
    if (status == CARRY_OK) {
        status = script(store, "storing a result", "COMMIT");
    }
    if (status != CARRY_OK) {
        (void)sqlite3_exec(store->db, "ROLLBACK", NULL, NULL, NULL);
    }
    return status;
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
