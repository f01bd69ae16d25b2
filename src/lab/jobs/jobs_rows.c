/* Jobs as rows of the store and files beside it: finds the files, reads a row, marks a row as ended. */
#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "lab/alive.h"
#include "lab/jobs/jobs_internal.h"
#include "core/json.h"

double carry_job_now(void) {
    struct timespec t;
    (void)clock_gettime(CLOCK_REALTIME, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

void carry_job_sleep(double seconds) {
    time_t whole = (time_t)seconds;
    struct timespec t = {.tv_sec = whole, .tv_nsec = (long)(1e9 * (seconds - (double)whole))};
    (void)nanosleep(&t, NULL); /* a signal ends the wait early, as intended */
}

carry_status carry_job_file(carry_store *store, char path[CARRY_JOB_PATH], int64_t id, const char *ending) {
    char folder[sizeof store->path];
    char real[PATH_MAX];
    (void)snprintf(folder, sizeof folder, "%s", store->path);
    char *slash = strrchr(folder, '/');
    const char *name = slash != NULL ? strrchr(store->path, '/') + 1 : store->path;
    if (slash != NULL) {
        slash[slash == folder ? 1 : 0] = '\0';
    }
    if (realpath(slash != NULL ? folder : ".", real) == NULL) {
        return carry_fail(store->ctx, CARRY_EIO, "the folder of %s cannot be found: %s", store->path, strerror(errno));
    }
    bool usual = strcmp(name, "store.db") == 0; /* several stores in one folder must not share job numbers */
    char number[24] = "";
    if (id > 0) {
        (void)snprintf(number, sizeof number, "%lld.", (long long)id);
    }
    int length = snprintf(path, CARRY_JOB_PATH, "%s/%s%s/%s%s", real, usual ? "" : name, usual ? "jobs" : ".jobs",
                          number, ending);
    if (length < 0 || length >= CARRY_JOB_PATH) {
        return carry_fail(store->ctx, CARRY_ESIZE,
                          "the path of %.60s... is too long for jobs beside it (%d characters)", real, CARRY_JOB_PATH);
    }
    return CARRY_OK;
}

static bool is_word_of(const char *word, const char *const *words) {
    for (; *words != NULL; words++) {
        if (strcmp(word, *words) == 0) {
            return true;
        }
    }
    return false;
}

/* Why a job is held, or "". A copied or cloned store contains commands and names of hosts, so a row that has not
   ended is used only if this user submitted it into the store at its current path. Queued jobs of the local queue and
   jobs of ssh belong to the host where they were submitted; queued local jobs are not resumed after a reboot. stored:
   the path of the log in the row; row->is.log: its current path. */
static const char *why_held(carry_store *store, const carry_job_row *row, const char *stored) {
    static const char *const idle[] = {"submitting", "done", "failed", "cancelled", "lost", NULL};
    static const char *const active[] = {"queued", "running", "cancelling", NULL};
    const bool waits = strcmp(row->is.on, carry_job_local.name) == 0 && strcmp(row->is.state, "queued") == 0;
    const bool is_ssh = strncmp(row->is.on, "ssh:", 4) == 0;
    if (is_word_of(row->is.state, idle)) {
        return "";
    }
    if (!is_word_of(row->is.state, active)) {
        return "by an unknown version of carry";
    }
    return (waits || is_ssh) && strcmp(row->host, carry_alive_host()) != 0 ? "on another host"
           : waits && strcmp(row->boot, carry_alive_boot()) != 0           ? "before this machine was started"
           : strcmp(row->is.log, stored) != 0                              ? "in another folder"
           : !carry_job_is_recorded(store, row)                            ? "by another user or machine"
                                                                           : "";
}

static void copy_text(char *to, size_t size, sqlite3_stmt *from, int column) {
    const unsigned char *text = sqlite3_column_text(from, column);
    (void)snprintf(to, size, "%s", text != NULL ? (const char *)text : "");
}

/* Appends one word, quoted as for a shell, for display; it is cut if it does not fit. */
static size_t append_word(char *to, size_t at, size_t size, const char *word) {
    bool plain = *word != '\0';
    for (const char *c = word; *c != '\0'; c++) {
        plain = plain && (isalnum((unsigned char)*c) || strchr("_-./=:,+@%", *c) != NULL);
    }
    const char *quote = plain ? "" : "'";
    int length = snprintf(to + at, size - at, "%s%s%s%s", at > 0 ? " " : "", quote, word, quote);
    if (length >= 0 && (size_t)length < size - at) {
        return at + (size_t)length;
    }
    (void)snprintf(to + size - 4, 4, "...");
    return size - 1;
}

static void describe_command(carry_ctx *ctx, char *to, size_t size, const char *arguments) {
    carry_json *words = NULL;
    size_t at = 0;
    to[0] = '\0';
    if (carry_json_parse(ctx, &words, arguments, strlen(arguments), "a job's command") != CARRY_OK) {
        return;
    }
    for (const carry_json *word = carry_json_first(words); word != NULL && at < size - 1; word = word->next) {
        const char *text = carry_json_string(word);
        at = append_word(to, at, size, text != NULL ? text : "");
    }
    carry_json_free(words);
}

static carry_status fill_row(carry_store *store, carry_job_row *row, sqlite3_stmt *from) {
    const char *arguments = (const char *)sqlite3_column_text(from, 3);
    *row = (carry_job_row){.is = {.id = sqlite3_column_int64(from, 0)}};
    row->arguments = strdup(arguments != NULL ? arguments : "[]");
    if (row->arguments == NULL) {
        return carry_fail(store->ctx, CARRY_EMEMORY, "out of memory: job %lld", (long long)row->is.id);
    }
    copy_text(row->is.on, sizeof row->is.on, from, 1);
    copy_text(row->is.name, sizeof row->is.name, from, 2);
    describe_command(store->ctx, row->is.command, sizeof row->is.command, row->arguments);
    copy_text(row->is.folder, sizeof row->is.folder, from, 4);
    copy_text(row->is.state, sizeof row->is.state, from, 5);
    copy_text(row->is.external, sizeof row->is.external, from, 6);
    row->is.submitted = sqlite3_column_double(from, 7);
    row->is.started = sqlite3_column_double(from, 8);
    row->is.ended = sqlite3_column_double(from, 9);
    row->is.code = sqlite3_column_type(from, 10) == SQLITE_NULL ? -1 : sqlite3_column_int(from, 10);
    row->pid = sqlite3_column_int64(from, 11);
    row->process_start = sqlite3_column_int64(from, 12);
    copy_text(row->boot, sizeof row->boot, from, 13);
    copy_text(row->host, sizeof row->host, from, 14);
    char stored[CARRY_JOB_PATH]; /* the project may have moved since the submission */
    copy_text(stored, sizeof stored, from, 15);
    CARRY_TRY(carry_job_file(store, row->is.log, row->is.id, "log"));
    const char *reason = why_held(store, row, stored);
    if (*reason != '\0') {
        (void)snprintf(row->is.state, sizeof row->is.state, "held");
        (void)snprintf(row->is.held, sizeof row->is.held, "%s", reason);
    }
    return CARRY_OK;
}

static carry_status load(carry_store *store, carry_job_row *row, int64_t id) {
    sqlite3_stmt *statement;
    *row = (carry_job_row){.is = {.id = id}};
    CARRY_TRY(carry_store_prepare(store, &statement,
                                  "SELECT id, system, name, arguments, folder, state, external, submitted, started, "
                                  "ended, code, pid, process_start, boot, host, log FROM jobs WHERE id = ?1",
                                  "i", id));
    int code = sqlite3_step(statement);
    carry_status status;
    if (code == SQLITE_ROW) {
        status = fill_row(store, row, statement);
    } else if (code == SQLITE_DONE) {
        status =
            carry_fail(store->ctx, CARRY_ENOTFOUND, "there is no job %lld (carry job list shows them)", (long long)id);
    } else {
        status = carry_store_fail(store, "reading a job");
    }
    (void)sqlite3_finalize(statement);
    if (status != CARRY_OK) {
        free(row->arguments);
        row->arguments = NULL;
    }
    return status;
}

/* Loads a row, and loads it again if it seems held: a job that ends between reading its row and its record has no
   record any more, but its row, which is written first, then shows the end. */
carry_status carry_job_load(carry_store *store, carry_job_row *row, int64_t id) {
    CARRY_TRY(load(store, row, id));
    if (strcmp(row->is.state, "held") != 0) {
        return CARRY_OK;
    }
    free(row->arguments);
    return load(store, row, id);
}

carry_status carry_job_transaction(carry_store *store, const char *word) {
    return sqlite3_exec(store->db, word, NULL, NULL, NULL) == SQLITE_OK ? CARRY_OK
                                                                        : carry_store_fail(store, "noting a job");
}

/* Parses "CODE\n" or "CODE STARTED\n". */
static bool parse_verdict(const char *text, int *code, double *started) {
    char *end;
    double when = 0.0;
    if (!isdigit((unsigned char)text[0])) {
        return false;
    }
    long number = strtol(text, &end, 10);
    if (*end == ' ' && isdigit((unsigned char)end[1])) {
        when = strtod(end + 1, &end);
    }
    if (number > 255 || strcmp(end, "\n") != 0) {
        return false;
    }
    *code = (int)number;
    *started = when;
    return true;
}

bool carry_job_verdict(carry_store *store, int64_t id, int *code, double *started, double *ended) {
    char path[CARRY_JOB_PATH];
    char text[64];
    struct stat about;
    if (carry_job_file(store, path, id, "end") != CARRY_OK) {
        return false;
    }
    int file = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOFOLLOW);
    if (file < 0) {
        return false;
    }
    ssize_t got = fstat(file, &about) == 0 ? read(file, text, sizeof text - 1) : -1;
    (void)close(file);
    text[got > 0 ? got : 0] = '\0';
    if (got <= 0 || !parse_verdict(text, code, started)) {
        return false;
    }
    *ended = (double)about.st_mtim.tv_sec + 1e-9 * (double)about.st_mtim.tv_nsec;
    return true;
}

/* Removes the files of a job. The row is ended first, so a process that finds no file finds the row ended. */
static void remove_files(carry_store *store, int64_t id) {
    static const char *const endings[] = {"end", "end.new", "environment"};
    char path[CARRY_JOB_PATH];
    for (size_t i = 0; i < sizeof endings / sizeof endings[0]; i++) {
        if (carry_job_file(store, path, id, endings[i]) == CARRY_OK) {
            (void)unlink(path);
        }
    }
    carry_job_unrecord(store, id);
}

carry_status carry_job_settle(carry_store *store, int64_t id, int code, const char *otherwise) {
    double started = 0.0;
    /* File times are coarser than the clock: a job may seem to end before it started. */
    double ended = carry_job_now();
    (void)carry_job_verdict(store, id, &code, &started, &ended);
    sqlite3_stmt *statement;
    CARRY_TRY(carry_store_prepare(
        store, &statement,
        "UPDATE jobs SET state = CASE WHEN ?2 = 0 THEN 'done' WHEN state = 'cancelling' THEN 'cancelled' WHEN ?2 > 0 "
        "THEN 'failed' ELSE ?3 END, code = CASE WHEN ?2 >= 0 THEN ?2 END, started = CASE WHEN ?4 > 0 THEN "
        "coalesce(started, ?4) ELSE started END, ended = max(?5, coalesce(started, 0)) "
        "WHERE id = ?1 AND state IN ('submitting', 'queued', 'running', 'cancelling')",
        "iisdd", id, (int64_t)code, otherwise, started, ended));
    CARRY_TRY(carry_store_exec(store, "ending a job", statement));
    /* Other processes must see the row ended before the files are removed. */
    if (sqlite3_get_autocommit(store->db) == 0) {
        CARRY_TRY(carry_job_transaction(store, "COMMIT"));
    }
    remove_files(store, id);
    return CARRY_OK;
}
