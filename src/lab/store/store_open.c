/* The run store: finds and opens it. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/clock.h"
#include "lab/alive.h"
#include "lab/store/store_internal.h"
#include "lab/store/store_schema.h"

#define BUSY_MILLISECONDS 20000
#define WAL_MICROSECONDS 20000
#define KILLED_AT_ONCE 64

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

/* Finds $CARRY_STORE, else .carry/store.db in this folder or the nearest parent that has a .carry or a .git, else in
   this folder. Refuses a store of another user, unless CARRY_STORE names it. */
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
    return carry_store_check_owner(ctx, path);
}

static void make_folders(const char *path) {
    char partial[4096];
    (void)snprintf(partial, sizeof partial, "%s", path);
    for (char *slash = strchr(partial + 1, '/'); slash != NULL; slash = strchr(slash + 1, '/')) {
        *slash = '\0';
        (void)mkdir(partial, 0777); /* a failure shows when the file is opened */
        *slash = '/';
    }
}

/* Checks that the file is empty or a store that this program knows. Any other file is left unchanged. */
static carry_status look(carry_store *store, bool *is_store) {
    int64_t version;
    int64_t application;
    int64_t tables;
    int64_t programs;
    CARRY_TRY(pragma(store, &version, "PRAGMA user_version"));
    CARRY_TRY(pragma(store, &application, "PRAGMA application_id"));
    CARRY_TRY(pragma(store, &tables, "SELECT count(*) FROM sqlite_master"));
    CARRY_TRY(pragma(store, &programs, "SELECT count(*) FROM sqlite_master WHERE type IN ('trigger', 'view')"));
    bool ours = application == CARRY_STORE_APPLICATION;
    *is_store = ours && version == CARRY_STORE_VERSION;
    if (ours && version > CARRY_STORE_VERSION) {
        return carry_fail(
            store->ctx, CARRY_EUNSUPPORTED,
            "%s was written by a newer carry (store version %lld, this one knows %d): nothing was changed", store->path,
            (long long)version, CARRY_STORE_VERSION);
    }
    if (*is_store &&
        programs > 0) { /* triggers of a store from a copied folder could change the rows that are written */
        return carry_fail(store->ctx, CARRY_EFORMAT,
                          "%s holds %lld triggers or views, which no run store has: nothing was changed", store->path,
                          (long long)programs);
    }
    if (!*is_store && (tables > 0 || application != 0 || version != 0)) {
        return carry_fail(store->ctx, CARRY_EFORMAT, "%s is a database, but not a run store: nothing was changed",
                          store->path);
    }
    return CARRY_OK;
}

static carry_status make_schema(carry_store *store) {
    bool is_store;
    CARRY_TRY(look(store, &is_store)); /* again: another process may have created it meanwhile */
    if (is_store) {
        return CARRY_OK;
    }
    char sql[128];
    (void)snprintf(sql, sizeof sql, "PRAGMA application_id=%d; PRAGMA user_version=%d", CARRY_STORE_APPLICATION,
                   CARRY_STORE_VERSION);
    CARRY_TRY(carry_store_script(store, "making the store", CARRY_STORE_SCHEMA));
    return carry_store_script(store, "making the store", sql);
}

/* Switching to WAL needs exclusive access for a moment, and SQLite does not wait for that, so this retries. */
static carry_status use_wal(carry_store *store) {
    double until = carry_seconds() + 1e-3 * BUSY_MILLISECONDS;
    int code;
    while ((code = sqlite3_exec(store->db, "PRAGMA journal_mode=WAL", NULL, NULL, NULL)) == SQLITE_BUSY &&
           carry_seconds() < until) {
        (void)usleep(WAL_MICROSECONDS);
    }
    return code == SQLITE_OK ? CARRY_OK : carry_store_fail(store, "opening");
}

/* synchronous=FULL: stored results also survive a power failure, at the cost of a few milliseconds per result. */
static carry_status settle(carry_store *store) {
    bool is_store;
    (void)sqlite3_busy_timeout(store->db, BUSY_MILLISECONDS);
    (void)sqlite3_db_config(store->db, SQLITE_DBCONFIG_ENABLE_TRIGGER, 0, NULL);
    (void)sqlite3_db_config(store->db, SQLITE_DBCONFIG_ENABLE_VIEW, 0, NULL);
    /* Until the file is known to be a store. */
    (void)sqlite3_db_config(store->db, SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1, NULL);
    CARRY_TRY(carry_store_script(store, "opening",
                                 "PRAGMA trusted_schema=OFF; PRAGMA foreign_keys=ON; PRAGMA temp_store=MEMORY; "
                                 "PRAGMA synchronous=FULL"));
    /* One transaction, so that a store that another process is creating is seen complete or not at all. */
    CARRY_TRY(carry_store_script(store, "opening", "BEGIN"));
    CARRY_TRY(look(store, &is_store));
    CARRY_TRY(carry_store_script(store, "opening", "COMMIT"));
    (void)sqlite3_db_config(store->db, SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 0, NULL);
    if (is_store) {
        return CARRY_OK;
    }
    CARRY_TRY(use_wal(store));
    CARRY_TRY(carry_store_script(store, "opening", "BEGIN IMMEDIATE"));
    carry_status status = make_schema(store);
    if (status != CARRY_OK) {
        (void)sqlite3_exec(store->db, "ROLLBACK", NULL, NULL, NULL);
        return status;
    }
    return carry_store_script(store, "opening", "COMMIT");
}

/* Finds at most `room` runs of this machine that are marked as running and whose process is gone. */
static carry_status find_killed(carry_store *store, int64_t *gone, int room, int *count) {
    sqlite3_stmt *statement;
    CARRY_TRY(carry_store_prepare(store, &statement,
                                  "SELECT id, pid, process_start, boot FROM runs WHERE state = 'running' AND host = ?1",
                                  "s", carry_alive_host()));
    *count = 0;
    int code = SQLITE_DONE;
    while (*count < room && (code = sqlite3_step(statement)) == SQLITE_ROW) {
        const char *boot = (const char *)sqlite3_column_text(statement, 3);
        if (!carry_alive(sqlite3_column_int64(statement, 1), sqlite3_column_int64(statement, 2), boot)) {
            gone[(*count)++] = sqlite3_column_int64(statement, 0);
        }
    }
    carry_status status = code == SQLITE_ROW || code == SQLITE_DONE ? CARRY_OK : carry_store_fail(store, "opening");
    (void)sqlite3_finalize(statement);
    return status;
}

static carry_status mark_killed(carry_store *store) {
    int64_t gone[KILLED_AT_ONCE];
    int count;
    if (sqlite3_db_readonly(store->db, "main") == 1) {
        return CARRY_OK; /* the store can still be read */
    }
    do {
        CARRY_TRY(find_killed(store, gone, KILLED_AT_ONCE, &count));
        for (int i = 0; i < count; i++) {
            sqlite3_stmt *statement;
            CARRY_TRY(carry_store_prepare(store, &statement,
                                          "UPDATE runs SET state = 'killed' WHERE id = ?1 AND state = 'running'", "i",
                                          gone[i]));
            CARRY_TRY(carry_store_exec(store, "marking a killed run", statement));
        }
    } while (count == KILLED_AT_ONCE);
    return CARRY_OK;
}

/* A store in WAL mode needs its -wal and -shm files even to be read, and a user who may not write in its folder (a
   colleague's folder, a read-only disk) cannot make them. Without a -wal file, the store's file is complete. */
static bool is_at_rest(const carry_store *store) {
    char wal[sizeof store->path + 8];
    struct stat about;
    (void)snprintf(wal, sizeof wal, "%s-wal", store->path);
    int code = sqlite3_errcode(store->db);
    return (code == SQLITE_READONLY || code == SQLITE_CANTOPEN) && access(store->path, R_OK) == 0 &&
           (stat(wal, &about) != 0 || about.st_size == 0);
}

/* Opens for reading only: SQLite treats the file as immutable and creates no files beside it. */
static carry_status open_at_rest(carry_store *store) {
    char uri[3 * sizeof store->path + 32] = "file:";
    char *whole = realpath(store->path, NULL);
    size_t length = strlen(uri);
    for (const char *at = whole; at != NULL && *at != '\0'; at++) {
        length += (size_t)snprintf(uri + length, sizeof uri - length,
                                   *at == '%' || *at == '?' || *at == '#' ? "%%%02X" : "%c", (unsigned char)*at);
    }
    (void)snprintf(uri + length, sizeof uri - length, "?immutable=1");
    free(whole);
    (void)sqlite3_close(store->db);
    store->db = NULL;
    if (sqlite3_open_v2(uri, &store->db, SQLITE_OPEN_READONLY | SQLITE_OPEN_URI, NULL) != SQLITE_OK) {
        return carry_store_fail(store, "opening");
    }
    return settle(store);
}

/* Refuses devices and pipes, which SQLite would report as a disk error. */
static carry_status open_database(carry_store *store) {
    struct stat about;
    make_folders(store->path);
    if (stat(store->path, &about) == 0 && !S_ISREG(about.st_mode)) {
        return carry_fail(store->ctx, CARRY_EIO, "the run store %s is not a regular file", store->path);
    }
    if (sqlite3_open_v2(store->path, &store->db, SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE, NULL) != SQLITE_OK) {
        return carry_fail(store->ctx, CARRY_EIO, "the run store %s cannot be opened: %s", store->path,
                          store->db != NULL ? sqlite3_errmsg(store->db) : "out of memory");
    }
    return CARRY_OK;
}

carry_status carry_store_open(carry_ctx *ctx, carry_store **store, const char *path) {
    *store = NULL;
    carry_store *made = calloc(1, sizeof *made);
    if (made == NULL) {
        return carry_fail(ctx, CARRY_EMEMORY, "out of memory: the store");
    }
    made->ctx = ctx;
    carry_status status = CARRY_OK;
    if (path == NULL) {
        status = default_path(ctx, made->path, sizeof made->path);
    } else if ((size_t)snprintf(made->path, sizeof made->path, "%s", path) >= sizeof made->path) {
        status = carry_fail(ctx, CARRY_EARGUMENT, "the store's path is longer than a path can be");
    }
    status = status == CARRY_OK ? open_database(made) : status;
    status = status == CARRY_OK ? settle(made) : status;
    status = status == CARRY_EIO && made->db != NULL && is_at_rest(made) ? open_at_rest(made) : status;
    if (status == CARRY_OK) {
        carry_status marked = mark_killed(made);
        /* A store on a full or read-only disk can still be read. */
        status = marked == CARRY_EIO || marked == CARRY_ETIMEOUT ? CARRY_OK : marked;
    }
    if (status != CARRY_OK) {
        carry_store_close(made);
        return status;
    }
    *store = made;
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
