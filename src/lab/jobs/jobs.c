/* The table of job systems, and their common functions: submit, refresh, wait, cancel. */
#include "lab/jobs/jobs.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/clock.h"
#include "lab/alive.h"
#include "lab/jobs/jobs_internal.h"
#include "lab/remote.h"
#include "core/json_write.h"

#define MOST_COMMAND ((size_t)128 << 10)
#define FIRST_INTERVAL 0.02
#define LONGEST_INTERVAL 1.0
#define WORKER_SECONDS 10.0 /* seconds for a new worker to start working */
#define UNANSWERED_SECONDS 30.0
#define LIST_SECONDS 120.0
#define SUBMITTING_SECONDS 600.0 /* seconds for a submission from another machine, whose process cannot be checked */

static const carry_job_system *const systems[] = {&carry_job_local, &carry_job_slurm, &carry_job_ssh};

static const carry_job_system *find_system(const char *name) {
    for (size_t i = 0; i < sizeof systems / sizeof systems[0]; i++) {
        const size_t length = strlen(systems[i]->name);
        if (systems[i]->takes_host ? strncmp(name, systems[i]->name, length) == 0 && name[length] == ':'
                                   : strcmp(systems[i]->name, name) == 0) {
            return systems[i];
        }
    }
    return NULL;
}

/* The rows of a job must survive a power failure, like the files beside the store. The store's own setting (NORMAL)
   may lose the last transactions, and then a job would be run twice. */
static carry_status open_jobs(carry_store *store) {
    return carry_job_transaction(store, "PRAGMA synchronous=FULL");
}

static carry_status check_arguments(carry_ctx *ctx, const char *const *arguments) {
    size_t total = 0;
    if (arguments == NULL || arguments[0] == NULL || arguments[0][0] == '\0') {
        return carry_fail(ctx, CARRY_EARGUMENT, "a job needs a command");
    }
    if (arguments[0][0] == '-') { /* the shell of a batch script would take it for an option */
        return carry_fail(ctx, CARRY_EARGUMENT, "a command does not begin with -, as '%.40s' does", arguments[0]);
    }
    for (int i = 0; arguments[i] != NULL; i++) {
        total += strlen(arguments[i]) + 1;
        if (total > MOST_COMMAND) {
            return carry_fail(ctx, CARRY_ESIZE, "the command is longer than the %zu bytes that a job takes",
                              MOST_COMMAND);
        }
    }
    return CARRY_OK;
}

/* Writes the arguments as a JSON array, which the caller frees. */
static carry_status write_arguments(carry_ctx *ctx, char **text, const char *const *arguments) {
    carry_json_text words = {0};
    carry_json_begin(&words, NULL, '[');
    for (int i = 0; arguments[i] != NULL; i++) {
        if (!carry_json_is_utf8(arguments[i])) {
            carry_json_text_free(&words);
            return carry_fail(ctx, CARRY_EARGUMENT, "word %d of the command is not UTF-8", i + 1);
        }
        carry_json_add_text(&words, NULL, arguments[i]);
    }
    carry_json_end(&words, ']');
    *text = carry_json_text_take(&words);
    return *text != NULL ? CARRY_OK : carry_fail(ctx, CARRY_EMEMORY, "out of memory: command");
}

static carry_status resolve_folder(carry_ctx *ctx, char *folder, size_t size, const char *asked) {
    struct stat about;
    char *real = realpath(asked != NULL ? asked : ".", NULL);
    if (real == NULL || stat(real, &about) != 0) {
        carry_status status = carry_fail(ctx, CARRY_EARGUMENT, "the folder %s cannot be used: %s",
                                         asked != NULL ? asked : "here", strerror(errno));
        free(real);
        return status;
    }
    bool fits = strlen(real) < size;
    (void)snprintf(folder, size, "%s", real);
    free(real);
    if (!S_ISDIR(about.st_mode)) {
        return carry_fail(ctx, CARRY_EARGUMENT, "%s is not a folder", folder);
    }
    return fits ? CARRY_OK : carry_fail(ctx, CARRY_ESIZE, "the folder %.60s... has too long a path for a job", folder);
}

/* Keeps letters, digits and a few other characters, so that every system accepts the name and every answer can be
   parsed. */
static void clean_name(char name[64], const carry_job_request *request) {
    const char *slash = strrchr(request->arguments[0], '/');
    const char *from = request->name != NULL               ? request->name
                       : slash != NULL && slash[1] != '\0' ? slash + 1
                                                           : request->arguments[0];
    size_t at = 0;
    for (; at < 63 && from[at] != '\0'; at++) {
        bool plain = (from[at] >= 'a' && from[at] <= 'z') || (from[at] >= 'A' && from[at] <= 'Z') ||
                     (from[at] >= '0' && from[at] <= '9') || strchr("._+-", from[at]) != NULL;
        name[at] = (char)(plain ? from[at] : '_');
    }
    name[at] = '\0';
}

static carry_status make_job_folder(carry_store *store) {
    char folder[CARRY_JOB_PATH];
    CARRY_TRY(carry_job_file(store, folder, 0, ""));
    if (mkdir(folder, 0777) != 0 && errno != EEXIST) {
        return carry_fail(store->ctx, CARRY_EIO, "%s cannot be made: %s", folder, strerror(errno));
    }
    return carry_job_own_folder(store);
}

static carry_status insert(carry_store *store, int64_t *id, const carry_job_request *request, const char *system,
                           const char *arguments) {
    char name[64];
    char folder[1024];
    clean_name(name, request);
    CARRY_TRY(resolve_folder(store->ctx, folder, sizeof folder, request->folder));
    CARRY_TRY(make_job_folder(store));
    sqlite3_stmt *statement;
    int64_t me = getpid();
    CARRY_TRY(carry_store_prepare(store, &statement,
                                  "INSERT INTO jobs(system, name, arguments, folder, state, submitted, pid, "
                                  "process_start, boot, host) VALUES(?1, ?2, ?3, ?4, 'submitting', ?5, ?6, ?7, ?8, ?9)",
                                  "ssssdiiss", system, name, arguments, folder, carry_job_now(), me,
                                  carry_alive_start(me), carry_alive_boot(), carry_alive_host()));
    CARRY_TRY(carry_store_exec(store, "submitting a job", statement));
    *id = sqlite3_last_insert_rowid(store->db);
    return CARRY_OK;
}

/* Removes the row of a submission that failed. The error message stays in the context. */
static void forget(carry_store *store, int64_t id) {
    sqlite3_stmt *statement;
    if (sqlite3_prepare_v2(store->db, "DELETE FROM jobs WHERE id = ?1 AND state = 'submitting'", -1, &statement,
                           NULL) == SQLITE_OK) {
        (void)sqlite3_bind_int64(statement, 1, id);
        (void)sqlite3_step(statement);
        (void)sqlite3_finalize(statement);
    }
    carry_job_unrecord(store, id);
}

static carry_status hand_over(carry_store *store, const carry_job_system *system, int64_t id,
                              const carry_job_request *request) {
    carry_job_row row;
    char log[CARRY_JOB_PATH];
    CARRY_TRY(carry_job_file(store, log, id, "log"));
    sqlite3_stmt *statement;
    CARRY_TRY(carry_store_prepare(store, &statement, "UPDATE jobs SET log = ?2 WHERE id = ?1", "is", id, log));
    CARRY_TRY(carry_store_exec(store, "submitting a job", statement));
    CARRY_TRY(carry_job_record(store, id)); /* a worker may start it at once, so the record comes first */
    CARRY_TRY(carry_job_load(store, &row, id));
    row.bring = request->bring;
    carry_status status = system->submit(store, &row, request->arguments);
    free(row.arguments);
    return status == CARRY_OK && system != &carry_job_local ? carry_job_record(store, id)
                                                            : status; /* now with its external id */
}

static carry_status refresh_submitting(carry_store *store, const carry_job_row *row) {
    bool here = strcmp(row->host, carry_alive_host()) == 0;
    bool gone = here ? !carry_alive(row->pid, row->process_start, row->boot)
                     : carry_job_now() - row->is.submitted > SUBMITTING_SECONDS;
    return gone ? carry_job_settle(store, row->is.id, -1, "lost") : CARRY_OK;
}

/* Updates the state of a job once, and loads its row. */
static carry_status look(carry_store *store, carry_job_row *row, int64_t id) {
    CARRY_TRY(carry_job_load(store, row, id));
    if (carry_job_has_ended(&row->is)) {
        return CARRY_OK;
    }
    const carry_job_system *system = find_system(row->is.on);
    /* System NULL: written by another version. */
    const bool is_left = strcmp(row->is.state, "held") == 0 || system == NULL;
    carry_status status = strcmp(row->is.state, "submitting") == 0 ? refresh_submitting(store, row)
                          : is_left                                ? CARRY_OK
                                                                   : system->refresh(store, row);
    free(row->arguments);
    row->arguments = NULL;
    return status == CARRY_OK ? carry_job_load(store, row, id) : status;
}

static carry_status look_and_copy(carry_store *store, carry_job *job, int64_t id) {
    carry_job_row row = {0};
    CARRY_TRY(look(store, &row, id));
    *job = row.is;
    free(row.arguments);
    return CARRY_OK;
}

static carry_status list_ids(carry_store *store, carry_job **jobs, int *count) {
    sqlite3_stmt *statement;
    int room = 0;
    CARRY_TRY(carry_store_prepare(store, &statement, "SELECT id FROM jobs ORDER BY id DESC", ""));
    carry_status status = CARRY_OK;
    int code;
    while (status == CARRY_OK && (code = sqlite3_step(statement)) != SQLITE_DONE) {
        if (code != SQLITE_ROW) {
            status = carry_store_fail(store, "reading jobs");
            break;
        }
        if (*count == room) {
            room = room > 0 ? 2 * room : 16;
            carry_job *more = realloc(*jobs, (size_t)room * sizeof **jobs);
            if (more == NULL) {
                status = carry_fail(store->ctx, CARRY_EMEMORY, "out of memory: %d jobs", room);
                break;
            }
            *jobs = more;
        }
        (*jobs)[(*count)++].id = sqlite3_column_int64(statement, 0);
    }
    (void)sqlite3_finalize(statement);
    return status;
}

/* Updates job number `index` of a list. A job that cannot be queried keeps its last known state; further jobs of the
   same host, or of Slurm, are then not queried, and none after LIST_SECONDS. */
static carry_status look_leniently(carry_store *store, carry_job *jobs, bool *silent, int index, double until) {
    carry_job *job = &jobs[index];
    CARRY_TRY(carry_job_known(store, job, job->id));
    if (carry_job_has_ended(job)) {
        return CARRY_OK;
    }
    const bool is_local = strcmp(job->on, carry_job_local.name) == 0;
    for (int i = 0; i < index && !is_local; i++) {
        silent[index] = silent[index] || (silent[i] && strcmp(jobs[i].on, job->on) == 0);
    }
    if (silent[index]) {
        return CARRY_OK;
    }
    if (!is_local && carry_seconds() > until) {
        carry_log(store->ctx, CARRY_LOG_WARNING, "jobs on %s as last known: others took %.0f s to answer", job->on,
                  LIST_SECONDS);
        silent[index] = true;
        return CARRY_OK;
    }
    if (look_and_copy(store, job, job->id) != CARRY_OK) {
        carry_log(store->ctx, CARRY_LOG_WARNING, "job %lld as last known: %s", (long long)job->id,
                  carry_ctx_error(store->ctx));
        silent[index] = true;
    }
    return CARRY_OK;
}

static bool may_pass(carry_status status) {
    return status == CARRY_EIO || status == CARRY_ETIMEOUT;
}

bool carry_job_has_ended(const carry_job *job) {
    static const char *const ended[] = {"done", "failed", "cancelled", "lost"};
    for (size_t i = 0; i < sizeof ended / sizeof ended[0]; i++) {
        if (strcmp(job->state, ended[i]) == 0) {
            return true;
        }
    }
    return false;
}

carry_status carry_job_submit(carry_store *store, int64_t *job, const carry_job_request *request) {
    const char *on = request->on != NULL ? request->on : "local";
    const carry_job_system *system = find_system(on);
    if (system == NULL) {
        return carry_fail(store->ctx, CARRY_EARGUMENT,
                          "there is no job system '%.40s': expected local, slurm or ssh:HOST", on);
    }
    if (request->bring != NULL && !system->takes_host) {
        return carry_fail(store->ctx, CARRY_EARGUMENT, "files are brought back from ssh:HOST only, not from '%s'", on);
    }
    carry_remote remote;
    CARRY_TRY(system->takes_host ? carry_remote_of(store->ctx, &remote, on) : CARRY_OK);
    CARRY_TRY(check_arguments(store->ctx, request->arguments));
    CARRY_TRY(open_jobs(store));
    char *arguments;
    CARRY_TRY(write_arguments(store->ctx, &arguments, request->arguments));
    carry_status status = insert(store, job, request, on, arguments);
    free(arguments);
    CARRY_TRY(status);
    status = hand_over(store, system, *job, request);
    if (status != CARRY_OK) {
        forget(store, *job);
    }
    return status;
}

carry_status carry_job_known(carry_store *store, carry_job *job, int64_t id) {
    carry_job_row row = {0};
    CARRY_TRY(carry_job_load(store, &row, id));
    *job = row.is;
    free(row.arguments);
    return CARRY_OK;
}

carry_status carry_job_refresh(carry_store *store, carry_job *job, int64_t id) {
    CARRY_TRY(open_jobs(store));
    return look_and_copy(store, job, id);
}

/* Fails if a waiting job will not be run. *idle: since when no worker has been seen; 0: one was seen. */
static carry_status check_queue(carry_store *store, const carry_job *job, double *idle) {
    if (strcmp(job->state, "held") == 0) {
        return carry_fail(store->ctx, CARRY_EUNSUPPORTED,
                          "job %lld was submitted %s and is not started here (carry job release %lld does)",
                          (long long)job->id, job->held, (long long)job->id);
    }
    bool waits = strcmp(job->state, "queued") == 0 && strcmp(job->on, carry_job_local.name) == 0;
    if (!waits || carry_job_lock_held(store, CARRY_JOB_LOCK_WORKER)) {
        *idle = 0.0;
        return CARRY_OK;
    }
    *idle = *idle > 0.0 ? *idle : carry_seconds();
    return carry_seconds() - *idle < WORKER_SECONDS
               ? CARRY_OK
               : carry_fail(store->ctx, CARRY_EUNSUPPORTED,
                            "job %lld is queued and no worker is at work: carry job work runs the queue",
                            (long long)job->id);
}

carry_status carry_job_wait(carry_store *store, carry_job *job, int64_t id, double seconds, bool (*stop)(void)) {
    double started = carry_seconds();
    double answered = started;
    double idle = 0.0;
    double interval = FIRST_INTERVAL;
    carry_status status = carry_job_refresh(store, job, id);
    while (true) {
        double now = carry_seconds();
        answered = status == CARRY_OK ? now : answered;
        if (status != CARRY_OK && (!may_pass(status) || now - answered > UNANSWERED_SECONDS)) {
            return status;
        }
        if (status == CARRY_OK && carry_job_has_ended(job)) {
            return CARRY_OK;
        }
        if (status == CARRY_OK) {
            CARRY_TRY(check_queue(store, job, &idle));
        }
        if (stop != NULL && stop()) {
            return carry_fail(store->ctx, CARRY_EINTERRUPTED, "interrupted; job %lld goes on", (long long)id);
        }
        if (now - started >= seconds && status != CARRY_OK) {
            return status; /* the reason is more useful than a timeout */
        }
        if (now - started >= seconds) {
            return carry_fail(store->ctx, CARRY_ETIMEOUT, "job %lld has not ended after %.3g s; it goes on",
                              (long long)id, seconds);
        }
        double left = seconds - (now - started);
        carry_job_sleep(left < interval ? left : interval);
        interval = interval * 1.5 < LONGEST_INTERVAL ? interval * 1.5 : LONGEST_INTERVAL;
        status = look_and_copy(store, job, id);
    }
}

carry_status carry_job_cancel(carry_store *store, int64_t id) {
    carry_job_row row = {0};
    CARRY_TRY(open_jobs(store));
    CARRY_TRY(look(store, &row, id));
    const carry_job_system *system = find_system(row.is.on);
    carry_status status = CARRY_OK;
    if (strcmp(row.is.state, "cancelled") == 0) {
        status = CARRY_OK;
    } else if (carry_job_has_ended(&row.is)) {
        status = carry_fail(store->ctx, CARRY_EARGUMENT, "job %lld has ended already: %s", (long long)id, row.is.state);
    } else if (strcmp(row.is.state, "held") == 0) {
        status = carry_job_cancel_held(store, &row.is);
    } else if (strcmp(row.is.state, "submitting") == 0 || system == NULL) {
        status = carry_fail(store->ctx, CARRY_EARGUMENT, "job %lld is only being submitted: try again", (long long)id);
    } else {
        status = system->cancel(store, &row);
    }
    free(row.arguments);
    return status;
}

carry_status carry_job_newest(carry_store *store, int64_t *id) {
    sqlite3_stmt *statement;
    CARRY_TRY(carry_store_prepare(store, &statement, "SELECT coalesce(max(id), 0) FROM jobs", ""));
    carry_status status = sqlite3_step(statement) == SQLITE_ROW ? CARRY_OK : carry_store_fail(store, "reading jobs");
    *id = status == CARRY_OK ? sqlite3_column_int64(statement, 0) : 0;
    (void)sqlite3_finalize(statement);
    if (status == CARRY_OK && *id == 0) {
        return carry_fail(store->ctx, CARRY_ENOTFOUND, "there are no jobs yet");
    }
    return status;
}

carry_status carry_job_list(carry_store *store, carry_job **jobs, int *count) {
    *jobs = NULL;
    *count = 0;
    CARRY_TRY(open_jobs(store));
    carry_status status = list_ids(store, jobs, count);
    const double until = carry_seconds() + LIST_SECONDS;
    bool *silent = calloc((size_t)*count + 1, sizeof *silent);
    if (status == CARRY_OK && silent == NULL) {
        status = carry_fail(store->ctx, CARRY_EMEMORY, "out of memory: %d jobs", *count);
    }
    for (int i = 0; status == CARRY_OK && i < *count; i++) {
        status = look_leniently(store, *jobs, silent, i, until);
    }
    free(silent);
    if (status != CARRY_OK) {
        free(*jobs);
        *jobs = NULL;
        *count = 0;
    }
    return status;
}
