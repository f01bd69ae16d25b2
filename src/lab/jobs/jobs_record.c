/* Records of the jobs that this user has submitted. A store may come from anywhere: a cloned repository, an archive,
   a copied folder. Its rows contain commands and hosts, so a row is used only if it matches a record that was
   written at its submission to a folder of the user outside the project: $XDG_STATE_HOME/carry/jobs, or
   ~/.local/state/carry/jobs. Other rows are held. A record is one file. Its name is a hash of the path of the job's
   log, which contains the location of the store and the job's number. It is removed when the job has ended. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/file.h"
#include "lab/alive.h"
#include "lab/jobs/jobs_internal.h"

#define MOST_RECORD ((size_t)2 << 20) /* a command of 128 KiB as JSON has at most six bytes per character */

static carry_status record_path(carry_ctx *ctx, char path[CARRY_JOB_PATH], const char *log) {
    const char *state = getenv("XDG_STATE_HOME");
    const char *home = getenv("HOME");
    const bool is_named = state != NULL && state[0] == '/';
    uint64_t number = 14695981039346656037u; /* FNV-1a */
    for (const char *at = log; *at != '\0'; at++) {
        number = (number ^ (unsigned char)*at) * 1099511628211u;
    }
    if (!is_named && (home == NULL || home[0] != '/')) {
        return carry_fail(ctx, CARRY_EARGUMENT, "jobs need a folder for their records: set HOME or XDG_STATE_HOME");
    }
    const int length = snprintf(path, CARRY_JOB_PATH, "%s%s/carry/jobs/%016llx", is_named ? state : home,
                                is_named ? "" : "/.local/state", (unsigned long long)number);
    return length > 0 && length < CARRY_JOB_PATH
               ? CARRY_OK
               : carry_fail(ctx, CARRY_ESIZE,
                            "%s is too long: the records of jobs need a path of at most %d characters",
                            is_named ? "XDG_STATE_HOME" : "HOME", CARRY_JOB_PATH - 1);
}

/* Every field that determines the command and where it runs, each followed by a 0 byte. The caller frees it. */
static char *record_text(const carry_job_row *row, size_t *length) {
    const char *const fields[] = {"carry job 1",  row->is.log, row->is.on,      row->arguments,
                                  row->is.folder, row->host,   row->is.external};
    const size_t count = sizeof fields / sizeof fields[0];
    *length = 0;
    for (size_t i = 0; i < count; i++) {
        *length += strlen(fields[i]) + 1;
    }
    char *text = malloc(*length);
    char *at = text;
    for (size_t i = 0; i < count && text != NULL; i++) {
        const size_t size = strlen(fields[i]) + 1;
        memcpy(at, fields[i], size);
        at += size;
    }
    return text;
}

carry_status carry_job_record(carry_store *store, int64_t id) {
    carry_job_row row;
    char path[CARRY_JOB_PATH];
    size_t length;
    CARRY_TRY(carry_job_load(store, &row, id));
    carry_status status = record_path(store->ctx, path, row.is.log);
    char *text = record_text(&row, &length);
    if (text == NULL) {
        status = carry_fail(store->ctx, CARRY_EMEMORY, "out of memory: the record of job %lld", (long long)id);
    }
    status = status == CARRY_OK ? carry_file_replace(store->ctx, path, text, length) : status;
    free(text);
    free(row.arguments);
    return status;
}

bool carry_job_is_recorded(carry_store *store, const carry_job_row *row) {
    char path[CARRY_JOB_PATH];
    struct stat about;
    size_t length = 0;
    size_t kept = 0;
    char *record = NULL;
    if (record_path(store->ctx, path, row->is.log) != CARRY_OK || lstat(path, &about) != 0 || !S_ISREG(about.st_mode) ||
        about.st_uid != geteuid()) {
        return false;
    }
    char *text = record_text(row, &length);
    const bool same = text != NULL && carry_file_read(store->ctx, &record, &kept, path, MOST_RECORD) == CARRY_OK &&
                      kept == length && memcmp(record, text, length) == 0;
    free(record);
    free(text);
    return same;
}

void carry_job_unrecord(carry_store *store, int64_t id) {
    char log[CARRY_JOB_PATH];
    char path[CARRY_JOB_PATH];
    if (carry_job_file(store, log, id, "log") == CARRY_OK && record_path(store->ctx, path, log) == CARRY_OK) {
        (void)unlink(path);
    }
}

carry_status carry_job_release(carry_store *store, int64_t id) {
    carry_job job;
    sqlite3_stmt *statement;
    CARRY_TRY(carry_job_refresh(store, &job, id));
    if (strcmp(job.state, "held") != 0) {
        return carry_fail(store->ctx, CARRY_EARGUMENT, "job %lld is not held, it is %s", (long long)id, job.state);
    }
    CARRY_TRY(carry_job_own_folder(store));
    CARRY_TRY(carry_store_prepare(store, &statement,
                                  "UPDATE jobs SET host = ?2, boot = ?3, log = ?4 WHERE id = ?1 AND state IN "
                                  "('queued', 'running', 'cancelling')",
                                  "isss", id, carry_alive_host(), carry_alive_boot(), job.log));
    CARRY_TRY(carry_store_exec(store, "releasing a job", statement));
    if (sqlite3_changes(store->db) == 0) {
        return carry_fail(store->ctx, CARRY_EUNSUPPORTED,
                          "job %lld has a state that this version of carry does not know: it cannot be released",
                          (long long)id);
    }
    CARRY_TRY(carry_job_record(store, id));
    return carry_job_local_poke(store);
}

carry_status carry_job_cancel_held(carry_store *store, const carry_job *job) {
    sqlite3_stmt *statement;
    CARRY_TRY(carry_store_prepare(store, &statement,
                                  "UPDATE jobs SET state = 'cancelled', ended = ?2 WHERE id = ?1 AND system = 'local' "
                                  "AND state = 'queued'",
                                  "id", job->id, carry_job_now()));
    CARRY_TRY(carry_store_exec(store, "cancelling a job", statement));
    return sqlite3_changes(store->db) > 0
               ? CARRY_OK
               : carry_fail(store->ctx, CARRY_EUNSUPPORTED, "job %lld was submitted %s: cancel it there, or release it",
                            (long long)job->id, job->held);
}
