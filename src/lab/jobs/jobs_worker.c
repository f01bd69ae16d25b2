/* The worker of the local queue. For each job it forks a keeper, which leads the job's process group, holds the lock
   of the running job, starts the command, writes its exit code beside the store and then kills the rest of the
   group. A worker may therefore be killed at any moment: the job continues, its exit code is recorded, and the next
   worker waits for it before it starts another job. If a keeper is killed, its command is killed with it.

   The row is marked as running, with the keeper's process number, before the keeper may start the command. A worker
   killed in between leaves either a queued job, or a job that never started and is seen as lost. */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "core/file.h"
#include "lab/alive.h"
#include "lab/jobs/jobs_internal.h"
#include "core/json.h"

#define MOST_ENVIRONMENT ((size_t)8 << 20)
#define LONGEST_INTERVAL 0.2
#define NOT_STARTED 127

/* Data of a keeper, prepared before the fork: afterwards only system calls are safe. */
typedef struct launch {
    carry_job_row row;
    carry_json *words;
    char **arguments;   /* point into words */
    char *variables;    /* the environment's text */
    char **environment; /* point into variables */
    char end[CARRY_JOB_PATH], unfinished[CARRY_JOB_PATH + 4];
    int log, lock, go;
} launch;

static void launch_free(launch *l) {
    free(l->row.arguments);
    carry_json_free(l->words);
    free((void *)l->arguments);
    free(l->variables);
    free((void *)l->environment);
    if (l->log >= 0) {
        (void)close(l->log);
    }
}

static void complain(const char *what) {
    const char *parts[] = {"carry: ", what, ": ", strerror(errno), "\n"};
    for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++) {
        if (write(STDERR_FILENO, parts[i], strlen(parts[i])) < 0) {
            return;
        }
    }
}

/* Runs the command itself. */
static void become_command(const launch *l, pid_t keeper) {
    static const int restored[] = {SIGTERM, SIGINT, SIGHUP, SIGQUIT, SIGPIPE, SIGXFSZ};
    for (size_t i = 0; i < sizeof restored / sizeof restored[0]; i++) {
        (void)signal(restored[i], SIG_DFL);
    }
    (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != keeper) {
        _exit(NOT_STARTED);
    }
    if (chdir(l->row.is.folder) != 0) {
        complain(l->row.is.folder);
        _exit(NOT_STARTED);
    }
    environ = l->environment; /* execvp searches the PATH of the job */
    (void)execvp(l->arguments[0], l->arguments);
    complain(l->arguments[0]);
    _exit(NOT_STARTED);
}

static void write_verdict(const launch *l, int code) {
    char text[8];
    int at = 0;
    for (int unit = 100; unit > 0; unit /= 10) {
        if (code >= unit || unit == 1) {
            text[at++] = (char)('0' + code / unit % 10);
        }
    }
    text[at++] = '\n';
    int file = open(l->unfinished, O_WRONLY | O_NOFOLLOW | O_CLOEXEC);
    bool written = file >= 0 && write(file, text, (size_t)at) == at && ftruncate(file, at) == 0 && fsync(file) == 0;
    if (file >= 0) {
        (void)close(file);
    }
    if (written) {
        (void)rename(l->unfinished, l->end);
    }
}

/* Keeps only standard input, output and error, and the lock and the pipe as 3 and 4. */
static bool settle_files(const launch *l) {
    int lock = fcntl(l->lock, F_DUPFD, 10);
    int go = fcntl(l->go, F_DUPFD, 10);
    int log = fcntl(l->log, F_DUPFD, 10);
    int nothing = open("/dev/null", O_RDONLY);
    bool ready = nothing >= 0 && dup2(nothing, STDIN_FILENO) >= 0 && log >= 0 && dup2(log, STDOUT_FILENO) >= 0 &&
                 dup2(log, STDERR_FILENO) >= 0 && lock >= 0 && dup3(lock, 3, O_CLOEXEC) >= 0 && go >= 0 &&
                 dup3(go, 4, O_CLOEXEC) >= 0;
    (void)close_range(5, ~0u, 0);
    return ready;
}

static void keep(const launch *l) {
    static const int ignored[] = {SIGTERM, SIGINT, SIGHUP, SIGQUIT, SIGPIPE};
    char byte;
    if (setsid() < 0) {
        _exit(1);
    }
    (void)signal(SIGCHLD, SIG_DFL); /* if it were ignored, as the parent may do, there would be no exit code */
    for (size_t i = 0; i < sizeof ignored / sizeof ignored[0]; i++) {
        (void)signal(ignored[i], SIG_IGN); /* for the command only: this process must still write its exit code */
    }
    if (!settle_files(l) || read(4, &byte, 1) != 1) {
        _exit(1);
    }
    (void)close(4);
    pid_t keeper = getpid();
    pid_t command = fork();
    if (command == 0) {
        become_command(l, keeper);
    }
    int state = 0;
    while (command > 0 && waitpid(command, &state, 0) < 0 && errno == EINTR) {
    }
    write_verdict(l, command < 0 ? NOT_STARTED : WIFEXITED(state) ? WEXITSTATUS(state) : 128 + WTERMSIG(state));
    (void)kill(0, SIGKILL); /* kills itself and processes that the command left behind */
    _exit(0);
}

static carry_status parse_arguments(carry_ctx *ctx, launch *l) {
    CARRY_TRY(carry_json_parse(ctx, &l->words, l->row.arguments, strlen(l->row.arguments), "the job's command"));
    size_t count = l->words->kind == CARRY_JSON_ARRAY ? (size_t)carry_json_count(l->words) : 0;
    l->arguments = calloc(count + 1, sizeof *l->arguments);
    if (l->arguments == NULL) {
        return carry_fail(ctx, CARRY_EMEMORY, "out of memory: %zu words", count);
    }
    const carry_json *word = carry_json_first(l->words);
    for (size_t i = 0; i < count; i++, word = word->next) {
        l->arguments[i] = (char *)(uintptr_t)carry_json_string(word);
        if (l->arguments[i] == NULL) {
            count = 0;
        }
    }
    return count > 0 ? CARRY_OK
                     : carry_fail(ctx, CARRY_EFORMAT, "job %lld's command is damaged", (long long)l->row.is.id);
}

/* The submitter wrote the file so that no other user can read it: the owner of the file is the owner of the job. */
static carry_status check_submitter(carry_ctx *ctx, const char *path) {
    struct stat about;
    if (lstat(path, &about) != 0) {
        return carry_fail(ctx, CARRY_EIO, "%s cannot be read: %s", path, strerror(errno));
    }
    return S_ISREG(about.st_mode) && about.st_uid == geteuid() && about.st_nlink == 1
               ? CARRY_OK
               : carry_fail(ctx, CARRY_EUNSUPPORTED, "%s was not written by this user (%lld): the job is not run", path,
                            (long long)geteuid());
}

static carry_status read_environment(carry_store *store, launch *l) {
    char path[CARRY_JOB_PATH];
    size_t length = 0;
    CARRY_TRY(carry_job_file(store, path, l->row.is.id, "environment"));
    CARRY_TRY(check_submitter(store->ctx, path));
    CARRY_TRY(carry_file_read(store->ctx, &l->variables, &length, path, MOST_ENVIRONMENT));
    size_t count = 0;
    for (size_t at = 0; at < length; at += strlen(l->variables + at) + 1) {
        count++;
    }
    l->environment = calloc(count + 1, sizeof *l->environment);
    if (l->environment == NULL) {
        return carry_fail(store->ctx, CARRY_EMEMORY, "out of memory: %zu variables", count);
    }
    count = 0;
    for (size_t at = 0; at < length; at += strlen(l->variables + at) + 1) {
        l->environment[count++] = l->variables + at;
    }
    return CARRY_OK;
}

/* Creates the file of the exit code before the job starts, so that the exit code can be written even if the log fills
   the disk. */
static carry_status reserve_verdict(carry_store *store, launch *l) {
    static const char room[] = "unknown\n";
    CARRY_TRY(carry_job_file(store, l->end, l->row.is.id, "end"));
    (void)snprintf(l->unfinished, sizeof l->unfinished, "%s.new", l->end);
    (void)unlink(l->end);
    (void)unlink(l->unfinished);
    int file = open(l->unfinished, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    bool written = file >= 0 && write(file, room, sizeof room - 1) == (ssize_t)sizeof room - 1 && fsync(file) == 0;
    int reason = errno;
    if (file >= 0) {
        (void)close(file);
    }
    if (!written) {
        return carry_fail(store->ctx, CARRY_EIO, "%s cannot be written: %s", l->unfinished, strerror(reason));
    }
    return CARRY_OK;
}

static carry_status prepare(carry_store *store, launch *l) {
    CARRY_TRY(reserve_verdict(store, l));
    (void)unlink(l->row.is.log);
    l->log = open(l->row.is.log, O_WRONLY | O_CREAT | O_EXCL | O_APPEND | O_CLOEXEC, 0666);
    if (l->log < 0) {
        return carry_fail(store->ctx, CARRY_EIO, "%s cannot be written: %s", l->row.is.log, strerror(errno));
    }
    CARRY_TRY(parse_arguments(store->ctx, l));
    return read_environment(store, l);
}

/* Forks the keeper, which waits for a byte from the pipe *go. */
static carry_status fork_keeper(carry_store *store, launch *l, pid_t *keeper, int *go) {
    int ends[2];
    if (pipe2(ends, O_CLOEXEC) != 0) {
        return carry_fail(store->ctx, CARRY_EIO, "cannot create a pipe: %s", strerror(errno));
    }
    l->go = ends[0];
    *keeper = fork();
    if (*keeper == 0) {
        keep(l);
    }
    int reason = errno;
    (void)close(ends[0]);
    *go = ends[1];
    if (*keeper < 0) {
        (void)close(*go);
        return carry_fail(store->ctx, CARRY_EIO, "job %lld cannot be started: %s", (long long)l->row.is.id,
                          strerror(reason));
    }
    return CARRY_OK;
}

static carry_status mark_running(carry_store *store, int64_t id, pid_t keeper) {
    sqlite3_stmt *statement;
    CARRY_TRY(carry_store_prepare(store, &statement,
                                  "UPDATE jobs SET state = 'running', started = ?2, pid = ?3, process_start = ?4, boot "
                                  "= ?5, host = ?6 WHERE id = ?1",
                                  "idiiss", id, carry_job_now(), (int64_t)keeper, carry_alive_start(keeper),
                                  carry_alive_boot(), carry_alive_host()));
    CARRY_TRY(carry_store_exec(store, "starting a job", statement));
    return carry_job_transaction(store, "COMMIT");
}

/* A job that cannot be prepared must not stop the queue: it fails, with the reason in its log. */
static carry_status refuse(carry_store *store, launch *l) {
    const char *message = carry_ctx_error(store->ctx);
    if (l->log >= 0) {
        (void)dprintf(l->log, "carry: %s\n", message);
    }
    carry_log(store->ctx, CARRY_LOG_WARNING, "job %lld: %s", (long long)l->row.is.id, message);
    return carry_job_settle(store, l->row.is.id, NOT_STARTED, "failed");
}

/* Runs within a transaction, so that the job cannot be cancelled meanwhile. *keeper is 0 if it could not be started. */
static carry_status launch_job(carry_store *store, int64_t id, int lock, pid_t *keeper) {
    launch l = {.log = -1, .lock = lock, .go = -1};
    int go = -1;
    *keeper = 0;
    CARRY_TRY(carry_job_load(store, &l.row, id));
    if (prepare(store, &l) != CARRY_OK) {
        carry_status refused = refuse(store, &l);
        launch_free(&l);
        return refused; /* the row is settled, and the transaction has ended */
    }
    carry_status status = fork_keeper(store, &l, keeper, &go);
    if (status == CARRY_OK) {
        status = mark_running(store, id, *keeper);
        /* If the write fails, the keeper is gone, and the row will be seen as lost. */
        if (status == CARRY_OK && write(go, "g", 1) != 1) {
            carry_log(store->ctx, CARRY_LOG_WARNING, "job %lld: its keeper has ended", (long long)id);
        }
        (void)close(go);
        if (status != CARRY_OK) {
            (void)waitpid(*keeper, NULL, 0); /* without its byte the keeper starts nothing */
        }
    }
    launch_free(&l);
    return status;
}

static carry_status start_next(carry_store *store, int lock, bool *empty, pid_t *keeper) {
    int64_t id;
    *keeper = 0;
    CARRY_TRY(carry_job_transaction(store, "BEGIN IMMEDIATE"));
    carry_status status = carry_job_local_waiting(store, &id);
    *empty = id == 0;
    if (status == CARRY_OK && id > 0) {
        status = launch_job(store, id, lock, keeper);
    }
    if (sqlite3_get_autocommit(store->db) == 0) { /* nothing to do, or it failed */
        (void)sqlite3_exec(store->db, "ROLLBACK", NULL, NULL, NULL);
    }
    return status;
}

/* Settles jobs marked as running: only this process holds the lock, so they have ended. */
static carry_status settle_ended(carry_store *store) {
    int64_t id = 0;
    do {
        sqlite3_stmt *statement;
        CARRY_TRY(carry_store_prepare(store, &statement,
                                      "SELECT coalesce(min(id), 0) FROM jobs WHERE system = 'local' AND state IN "
                                      "('running', 'cancelling')",
                                      ""));
        id = sqlite3_step(statement) == SQLITE_ROW ? sqlite3_column_int64(statement, 0) : 0;
        (void)sqlite3_finalize(statement);
        if (id > 0) {
            CARRY_TRY(carry_job_settle(store, id, -1, "lost"));
        }
    } while (id > 0);
    return CARRY_OK;
}

static void await_keeper(pid_t keeper, bool (*stop)(void)) {
    double interval = 0.005;
    while (waitpid(keeper, NULL, WNOHANG) == 0 && !(stop != NULL && stop())) {
        carry_job_sleep(interval);
        interval = interval * 1.5 < LONGEST_INTERVAL ? interval * 1.5 : LONGEST_INTERVAL;
    }
}

/* Runs one job after the other until none is queued. */
static carry_status drain(carry_store *store, bool (*stop)(void)) {
    bool empty = false;
    while (!empty && !(stop != NULL && stop())) {
        int lock;
        bool taken;
        pid_t keeper = 0;
        CARRY_TRY(carry_job_lock_take(store, CARRY_JOB_LOCK_RUNNING, &lock, &taken));
        if (!taken) { /* a job of a killed worker is still running */
            carry_job_sleep(LONGEST_INTERVAL);
            continue;
        }
        carry_status status = settle_ended(store);
        status = status == CARRY_OK ? start_next(store, lock, &empty, &keeper) : status;
        (void)close(lock); /* the keeper holds it */
        CARRY_TRY(status);
        if (keeper > 0) {
            await_keeper(keeper, stop);
        }
    }
    return CARRY_OK;
}

/* Checks the queue again after releasing the lock: if a job was submitted just when the queue was found empty, its
   submitter saw the lock and started no worker. */
carry_status carry_job_work(carry_store *store, bool (*stop)(void)) {
    int64_t waiting;
    CARRY_TRY(carry_job_transaction(store, "PRAGMA synchronous=FULL"));
    CARRY_TRY(carry_job_local_waiting(store, &waiting));
    CARRY_TRY(waiting > 0 ? carry_job_own_folder(store) : CARRY_OK);
    while (waiting > 0 && !(stop != NULL && stop())) {
        int lock;
        bool taken;
        CARRY_TRY(carry_job_lock_take(store, CARRY_JOB_LOCK_WORKER, &lock, &taken));
        if (!taken) {
            return CARRY_OK;
        }
        carry_status status = drain(store, stop);
        (void)close(lock);
        CARRY_TRY(status);
        CARRY_TRY(carry_job_local_waiting(store, &waiting));
    }
    return CARRY_OK;
}
