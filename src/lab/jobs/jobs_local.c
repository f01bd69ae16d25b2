/* The local queue for submitting, querying and cancelling; jobs_worker.c runs it.

   The queue is the rows of the store. Two locks on one file beside the store show what is running: one is held by the
   worker, the other by the process that the worker forked to run the current job. The kernel releases a lock when its
   last holder ends in any way, so a job that is marked as running while its lock is free has ended, even after a reboot
   or if its process number is in use again. Process numbers are used only to end a job, together with the start time
   of the process and the boot id. */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "core/clock.h"
#include "lab/alive.h"
#include "lab/jobs/jobs_internal.h"

#define GRACE_SECONDS 5.0
#define KILL_SECONDS 10.0

carry_status carry_job_own_folder(carry_store *store) {
    char folder[CARRY_JOB_PATH];
    struct stat about;
    CARRY_TRY(carry_job_file(store, folder, 0, ""));
    folder[strlen(folder) - 1] = '\0'; /* with its trailing / a link would be followed */
    if (lstat(folder, &about) != 0) {
        return carry_fail(store->ctx, CARRY_EIO, "%s cannot be used: %s", folder, strerror(errno));
    }
    if (!S_ISDIR(about.st_mode)) {
        return carry_fail(store->ctx, CARRY_EFORMAT, "%s is not a folder, so no jobs are run from it", folder);
    }
    return about.st_uid == geteuid()
               ? CARRY_OK
               : carry_fail(store->ctx, CARRY_EUNSUPPORTED,
                            "%s belongs to user %lld, not to you (user %lld): use a store of your own for jobs", folder,
                            (long long)about.st_uid, (long long)geteuid());
}

static struct flock region(carry_job_lock lock) {
    return (struct flock){.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = (off_t)lock, .l_len = 1};
}

carry_status carry_job_lock_take(carry_store *store, carry_job_lock lock, int *file, bool *taken) {
    char path[CARRY_JOB_PATH];
    *taken = false;
    *file = -1;
    CARRY_TRY(carry_job_file(store, path, 0, "lock"));
    int opened = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0666);
    struct flock asked = region(lock);
    if (opened >= 0 && fcntl(opened, F_OFD_SETLK, &asked) == 0) {
        *file = opened;
        *taken = true;
        return CARRY_OK;
    }
    int reason = errno;
    if (opened >= 0) {
        (void)close(opened);
    }
    if (reason == EAGAIN || reason == EACCES) {
        return CARRY_OK;
    }
    return carry_fail(store->ctx, CARRY_EIO, "%s cannot be locked: %s", path, strerror(reason));
}

bool carry_job_lock_held(carry_store *store, carry_job_lock lock) {
    char path[CARRY_JOB_PATH];
    if (carry_job_file(store, path, 0, "lock") != CARRY_OK) {
        return false;
    }
    int file = open(path, O_RDWR | O_CLOEXEC | O_NOFOLLOW);
    if (file < 0) {
        return false;
    }
    struct flock asked = region(lock);
    bool held = fcntl(file, F_OFD_GETLK, &asked) == 0 && asked.l_type != F_UNLCK;
    (void)close(file);
    return held;
}

carry_status carry_job_local_waiting(carry_store *store, int64_t *id) {
    bool is_held = true;
    *id = 0;
    do { /* finds the oldest job that is not held */
        sqlite3_stmt *statement;
        carry_job job;
        CARRY_TRY(carry_store_prepare(store, &statement,
                                      "SELECT coalesce(min(id), 0) FROM jobs WHERE system = 'local' AND state = "
                                      "'queued' AND id > ?1",
                                      "i", *id));
        carry_status status =
            sqlite3_step(statement) == SQLITE_ROW ? CARRY_OK : carry_store_fail(store, "reading jobs");
        *id = status == CARRY_OK ? sqlite3_column_int64(statement, 0) : 0;
        (void)sqlite3_finalize(statement);
        CARRY_TRY(status);
        if (*id > 0) {
            CARRY_TRY(carry_job_known(store, &job, *id));
            is_held = strcmp(job.state, "queued") != 0;
        }
    } while (*id > 0 && is_held);
    return CARRY_OK;
}

/* Runs after a fork, so it uses only system calls. Never returns. */
static void become_worker(char *const arguments[], int log) {
    sigset_t none;
    (void)sigemptyset(&none);
    (void)sigprocmask(SIG_SETMASK, &none, NULL);
    (void)setsid();
    if (fork() != 0) { /* the worker is not a child of this process, which need not wait for it */
        _exit(0);
    }
    int nothing = open("/dev/null", O_RDWR);
    bool ready = dup2(nothing, STDIN_FILENO) >= 0 && dup2(nothing, STDOUT_FILENO) >= 0;
    ready = ready && dup2(log >= 0 ? log : nothing, STDERR_FILENO) >= 0;
    (void)close_range(3, ~0u, 0);
    if (ready && chdir("/") == 0) { /* so that no folder is kept from being unmounted */
        (void)execv("/proc/self/exe", arguments);
    }
    _exit(127);
}

static carry_status start_worker(carry_store *store) {
    char log_path[CARRY_JOB_PATH];
    CARRY_TRY(carry_job_file(store, log_path, 0, "worker.log"));
    char *path = realpath(store->path, NULL);
    if (path == NULL) {
        return carry_fail(store->ctx, CARRY_EIO, "%s cannot be found: %s", store->path, strerror(errno));
    }
    carry_status status = CARRY_OK;
    char *const arguments[] = {"carry", "job", "work", "--store", path, NULL};
    int log = open(log_path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NOFOLLOW, 0666);
    pid_t child = fork();
    if (child == 0) {
        become_worker(arguments, log);
    }
    if (child < 0) {
        status = carry_fail(store->ctx, CARRY_EIO, "a worker for the queue cannot be started: %s", strerror(errno));
    } else {
        while (waitpid(child, NULL, 0) < 0 && errno == EINTR) {
        }
    }
    if (log >= 0) {
        (void)close(log);
    }
    free(path);
    return status;
}

carry_status carry_job_local_poke(carry_store *store) {
    int64_t waiting;
    CARRY_TRY(carry_job_local_waiting(store, &waiting));
    if (waiting == 0 || carry_job_lock_held(store, CARRY_JOB_LOCK_WORKER)) {
        return CARRY_OK;
    }
    return start_worker(store);
}

/* Writes a file that only its owner can read: environments contain secrets. */
static carry_status write_environment(carry_store *store, int64_t id) {
    char path[CARRY_JOB_PATH];
    CARRY_TRY(carry_job_file(store, path, id, "environment"));
    (void)unlink(path);
    int file = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    FILE *to = file >= 0 ? fdopen(file, "w") : NULL;
    bool written = to != NULL;
    for (char **at = environ; written && *at != NULL; at++) {
        size_t length = strlen(*at) + 1;
        written = fwrite(*at, 1, length, to) == length;
    }
    written = written && fflush(to) == 0 && fsync(file) == 0;
    int reason = errno;
    if (to != NULL) {
        (void)fclose(to);
    } else if (file >= 0) {
        (void)close(file);
    }
    if (!written) {
        (void)unlink(path);
        return carry_fail(store->ctx, CARRY_EIO, "%s cannot be written: %s", path, strerror(reason));
    }
    return CARRY_OK;
}

static carry_status submit(carry_store *store, const carry_job_row *row, const char *const *arguments) {
    (void)arguments; /* the worker reads them from the row */
    sqlite3_stmt *statement;
    CARRY_TRY(write_environment(store, row->is.id));
    CARRY_TRY(carry_store_prepare(
        store, &statement, "UPDATE jobs SET state = 'queued' WHERE id = ?1 AND state = 'submitting'", "i", row->is.id));
    CARRY_TRY(carry_store_exec(store, "submitting a job", statement));
    return carry_job_local_poke(store);
}

static carry_status refresh(carry_store *store, const carry_job_row *row) {
    if (strcmp(row->is.state, "queued") == 0 || carry_job_lock_held(store, CARRY_JOB_LOCK_RUNNING)) {
        return CARRY_OK;
    }
    return carry_job_settle(store, row->is.id, -1, "lost");
}

/* Moves a job from one state to another. *changed is true if the row was in the state `from`. */
static carry_status move(carry_store *store, int64_t id, const char *from, const char *to, bool *changed) {
    sqlite3_stmt *statement;
    CARRY_TRY(carry_store_prepare(store, &statement,
                                  "UPDATE jobs SET state = ?3, ended = CASE WHEN ?3 = 'cancelled' THEN ?4 END "
                                  "WHERE id = ?1 AND state = ?2",
                                  "issd", id, from, to, carry_job_now()));
    CARRY_TRY(carry_store_exec(store, "cancelling a job", statement));
    *changed = sqlite3_changes(store->db) > 0;
    return CARRY_OK;
}

/* Waits until the job has ended or `seconds` have passed. */
static carry_status await_end(carry_store *store, int64_t id, double seconds, bool *ended) {
    double started = carry_seconds();
    *ended = false;
    while (!*ended && carry_seconds() - started < seconds) {
        carry_job_row row = {0};
        CARRY_TRY(carry_job_load(store, &row, id));
        carry_status status = carry_job_has_ended(&row.is) ? CARRY_OK : refresh(store, &row);
        *ended = carry_job_has_ended(&row.is);
        free(row.arguments);
        CARRY_TRY(status);
        if (!*ended) {
            carry_job_sleep(0.02);
        }
    }
    return CARRY_OK;
}

static carry_status end_group(carry_store *store, const carry_job_row *row) {
    bool ended = false;
    pid_t group = (pid_t)row->pid;
    if (!carry_alive(row->pid, row->process_start, row->boot) || group <= 1) {
        CARRY_TRY(await_end(store, row->is.id, 0.5, &ended)); /* it may just have ended */
        if (!ended) {
            bool changed;
            CARRY_TRY(move(store, row->is.id, "cancelling", "running", &changed));
            return carry_fail(store->ctx, CARRY_EUNSUPPORTED,
                              "job %lld runs on %s, out of reach from here: cancel it there", (long long)row->is.id,
                              row->host);
        }
        return CARRY_OK;
    }
    (void)kill(-group, SIGTERM);
    (void)kill(-group, SIGCONT); /* a stopped process receives the signal too */
    CARRY_TRY(await_end(store, row->is.id, GRACE_SECONDS, &ended));
    if (!ended && carry_alive(row->pid, row->process_start, row->boot)) {
        (void)kill(-group, SIGKILL);
    }
    if (!ended) {
        CARRY_TRY(await_end(store, row->is.id, KILL_SECONDS, &ended));
    }
    return ended ? CARRY_OK
                 : carry_fail(store->ctx, CARRY_ETIMEOUT, "job %lld (process %lld) does not end, not even by SIGKILL",
                              (long long)row->is.id, (long long)row->pid);
}

static carry_status cancel(carry_store *store, const carry_job_row *row) {
    bool changed;
    CARRY_TRY(move(store, row->is.id, "queued", "cancelled", &changed));
    if (changed) {
        return carry_job_settle(store, row->is.id, -1, "cancelled"); /* its files are no longer needed */
    }
    CARRY_TRY(move(store, row->is.id, "running", "cancelling", &changed));
    carry_job_row now = {0};
    CARRY_TRY(carry_job_load(store, &now, row->is.id)); /* it may have been started meanwhile */
    carry_status status = carry_job_has_ended(&now.is) ? CARRY_OK : end_group(store, &now);
    free(now.arguments);
    return status;
}

const carry_job_system carry_job_local = {
    .name = "local",
    .about = "a queue on this machine, one job at a time",
    .submit = submit,
    .refresh = refresh,
    .cancel = cancel,
};
