/* Jobs on another machine by ssh (lab/remote.h). A job has a folder on that machine: tree, the copy of the project;
   run.sh, which runs the command and then writes its exit code to the file `end`; log; pid, the number of the job's
   process group. The job is started detached, so a lost connection does not end it. Each query copies the new part of
   the log. When the job has ended, the requested files are copied to ID.files beside the log, and then the remote
   folder is removed. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/clock.h"
#include "lab/jobs/jobs_internal.h"
#include "lab/quote.h"
#include "lab/remote.h"

#define LOOK_SECONDS 60.0
#define LOG_BYTES ((size_t)8 << 20) /* maximum part of a log copied at a time */
#define HEAD_BYTES 256

/* A script that grows; text is NULL when out of memory. */
typedef struct script {
    char *text;
    size_t length, room;
} script;

static void append(script *s, const char *text) {
    const size_t more = strlen(text);
    if (s->text == NULL && s->room > 0) {
        return; /* an earlier append failed */
    }
    if (s->text == NULL || s->length + more + 1 > s->room) {
        s->room = 2 * (s->length + more) + 256;
        char *larger = realloc(s->text, s->room);
        if (larger == NULL) {
            free(s->text);
        }
        s->text = larger;
        if (larger == NULL) {
            return;
        }
    }
    memcpy(s->text + s->length, text, more + 1);
    s->length += more;
}

static void append_word(script *s, const char *word) {
    char *quoted = malloc(carry_quoted_length(word));
    if (quoted == NULL) {
        free(s->text);
        *s = (script){.room = 1};
        return;
    }
    (void)carry_append_quoted(quoted, word);
    append(s, quoted);
    free(quoted);
}

/* Writes run.sh, which runs the command in the tree. `end` is written under another name and renamed, so it is
   complete or absent. */
static void write_job(script *s, const char *prefix, const char *const *arguments) {
    append(s, "started=$(date +%s)\n(cd tree/");
    append_word(s, prefix);
    append(s, " || exit 127; exec");
    for (int i = 0; arguments[i] != NULL; i++) {
        append(s, " ");
        append_word(s, arguments[i]);
    }
    append(s, ")\ncode=$?\nprintf '%s %s\\n' \"$code\" \"$started\" > end.new && mv end.new end\n");
}

/* Writes run.sh on the host and starts it in its own session. */
static void write_start(script *s, const carry_remote *remote, const char *job, const char *bring) {
    append(s, "umask 077\ncd ");
    append_word(s, remote->path);
    append(s, " || exit 1\nprintf '%s' ");
    append_word(s, bring != NULL ? bring : "");
    append(s, " > bring\nprintf '%s' ");
    append_word(s, job);
    append(s, " > run.sh || exit 1\nsetsid sh run.sh < /dev/null > log 2>&1 &\necho $! > pid\n");
}

static const char *const look_script =
    "cd \"$d\" 2> /dev/null || { echo gone; exit 0; }\n"
    "if [ -s end ]; then read code started < end; echo \"end $code $started\"\n"
    "elif kill -s 0 -- \"-$(cat pid)\" 2> /dev/null || kill -0 \"$(cat pid)\" 2> /dev/null; then echo running\n"
    "elif [ -s end ]; then read code started < end; echo \"end $code $started\"\n"
    "else echo lost; fi\n"
    "tail -c \"+$from\" log 2> /dev/null | head -c \"$most\"\n";

static carry_status remote_of(carry_store *store, const carry_job_row *row, carry_remote *remote) {
    CARRY_TRY(carry_remote_of(store->ctx, remote, row->is.on));
    if (!carry_remote_is_folder(row->is.external, row->is.id)) { /* a store may come from anywhere */
        return carry_fail(store->ctx, CARRY_EFORMAT, "job %lld names '%.60s' on %s, which is not a job's folder",
                          (long long)row->is.id, row->is.external, remote->host);
    }
    (void)snprintf(remote->path, sizeof remote->path, "%s", row->is.external);
    return CARRY_OK;
}

/* The path of a program inside the tree, or NULL if it is outside. Such a program was built on this machine, so it
   is copied even if git ignores it. */
static const char *inside_program(const char *root, const char *folder, const char *first, char path[4096]) {
    char joined[4096];
    char real_root[4096];
    struct stat about;
    if (strchr(first, '/') == NULL || realpath(root, real_root) == NULL) {
        return NULL;
    }
    (void)snprintf(joined, sizeof joined, first[0] == '/' ? "%s%s" : "%s/%s", first[0] == '/' ? "" : folder, first);
    if (realpath(joined, path) == NULL || stat(path, &about) != 0 || !S_ISREG(about.st_mode)) {
        return NULL;
    }
    const size_t length = strlen(real_root);
    return strncmp(path, real_root, length) == 0 && path[length] == '/' ? path + length + 1 : NULL;
}

static carry_status find_root(carry_store *store, char root[4096], const char *folder) {
    carry_process_result result;
    const char *const arguments[] = {"git", "rev-parse", "--show-toplevel", NULL};
    (void)snprintf(root, 4096, "%s", folder);
    const carry_status status = carry_process_run(
        store->ctx, &result, &(carry_process){.arguments = arguments, .folder = folder, .seconds = LOOK_SECONDS});
    if (status == CARRY_OK) {
        if (result.code == 0) {
            (void)snprintf(root, 4096, "%.*s", (int)strcspn(result.output, "\n"), result.output);
        }
        carry_process_free(&result);
    }
    return status == CARRY_ENOTFOUND ? CARRY_OK : status;
}

static carry_status start_there(carry_store *store, carry_remote *remote, const carry_job_row *row,
                                const char *const *arguments) {
    char root[4096];
    char path[4096];
    char prefix[1024];
    carry_process_result result;
    script job = {0};
    script s = {0};
    CARRY_TRY(find_root(store, root, row->is.folder));
    const char *program = inside_program(root, row->is.folder, arguments[0], path);
    if (program != NULL) {
        CARRY_TRY(carry_remote_check_program(remote, path));
    }
    CARRY_TRY(carry_remote_sync(remote, row->is.folder, "tree", program, prefix));
    write_job(&job, prefix, arguments);
    if (job.text != NULL) {
        write_start(&s, remote, job.text, row->bring);
    }
    free(job.text);
    if (s.text == NULL) {
        return carry_fail(store->ctx, CARRY_EMEMORY, "out of memory: script of job %lld", (long long)row->is.id);
    }
    carry_status status = carry_remote_run(remote, &result, s.text, HEAD_BYTES, LOOK_SECONDS, NULL);
    free(s.text);
    CARRY_TRY(status);
    if (result.code != 0) {
        status = carry_fail(store->ctx, CARRY_EIO, "%s: the job could not be started, exit %d: %.150s", remote->host,
                            result.code, result.errors);
    }
    carry_process_free(&result);
    return status;
}

static carry_status submit(carry_store *store, const carry_job_row *row, const char *const *arguments) {
    carry_remote remote;
    CARRY_TRY(carry_remote_of(store->ctx, &remote, row->is.on));
    CARRY_TRY(carry_remote_allocate(&remote, row->is.id));
    carry_status status = start_there(store, &remote, row, arguments);
    if (status != CARRY_OK) {
        char message[400];
        (void)snprintf(message, sizeof message, "%s", carry_ctx_error(store->ctx));
        (void)carry_remote_free(&remote);
        return carry_fail(store->ctx, status, "%s", message);
    }
    sqlite3_stmt *statement;
    CARRY_TRY(carry_store_prepare(store, &statement,
                                  "UPDATE jobs SET state = 'running', started = ?3, external = ?2 WHERE id = ?1 AND "
                                  "state = 'submitting'",
                                  "isd", row->is.id, remote.path, carry_job_now()));
    return carry_store_exec(store, "submitting a job", statement);
}

/* Writes at the given offset: two processes that query at once write the same bytes there. */
static carry_status add_log(carry_store *store, const char *path, int64_t offset, const char *bytes, size_t length) {
    const int file = open(path, O_WRONLY | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0666);
    bool written = file >= 0;
    for (size_t done = 0; written && done < length;) {
        const ssize_t now = pwrite(file, bytes + done, length - done, (off_t)(offset + (int64_t)done));
        written = now > 0;
        done += now > 0 ? (size_t)now : 0;
    }
    const int reason = errno;
    if (file >= 0) {
        (void)close(file);
    }
    return written ? CARRY_OK : carry_fail(store->ctx, CARRY_EIO, "%s cannot be written: %s", path, strerror(reason));
}

static int64_t size_of(const char *path) {
    struct stat about;
    return stat(path, &about) == 0 ? (int64_t)about.st_size : 0;
}

/* Queries the job's state and the next part of the log once. *more is true if there may be more of the log. */
static carry_status look_once(carry_store *store, carry_remote *remote, const carry_job_row *row, char head[HEAD_BYTES],
                              bool *more) {
    char settings[64];
    carry_process_result result;
    script s = {0};
    const int64_t offset = size_of(row->is.log);
    (void)snprintf(settings, sizeof settings, "\nfrom=%lld\nmost=%zu\n", (long long)offset + 1, LOG_BYTES);
    append(&s, "d=");
    append_word(&s, remote->path);
    append(&s, settings);
    append(&s, look_script);
    if (s.text == NULL) {
        return carry_fail(store->ctx, CARRY_EMEMORY, "out of memory: state of job %lld", (long long)row->is.id);
    }
    carry_status status = carry_remote_run(remote, &result, s.text, LOG_BYTES + HEAD_BYTES, LOOK_SECONDS, NULL);
    free(s.text);
    CARRY_TRY(status);
    const size_t length = strcspn(result.output, "\n");
    const size_t log = result.output_length > length ? result.output_length - length - 1 : 0;
    (void)snprintf(head, HEAD_BYTES, "%.*s", (int)(length < HEAD_BYTES - 1 ? length : HEAD_BYTES - 1), result.output);
    status = log > 0 ? add_log(store, row->is.log, offset, result.output + length + 1, log) : CARRY_OK;
    *more = log == LOG_BYTES;
    carry_process_free(&result);
    return status;
}

static carry_status bring_files(carry_store *store, carry_remote *remote, const carry_job_row *row) {
    char folder[CARRY_JOB_PATH];
    script s = {0};
    CARRY_TRY(carry_job_file(store, folder, row->is.id, "files"));
    append(&s, "cd ");
    append_word(&s, remote->path);
    append(&s, " || exit 1\n");
    /* Names are separated by commas. Missing files are left out, and an empty list gives an empty archive. */
    append(&s, "IFS=,\nset -f\nset -- $(cat bring)\ncd tree || exit 1\nn=$#\nwhile [ $n -gt 0 ]; do\n"
               "  p=$1; shift; n=$((n - 1)); [ ! -e \"./$p\" ] || set -- \"$@\" \"./$p\"\ndone\n"
               "if [ $# -gt 0 ]; then exec tar -czf - -- \"$@\"; else exec tar -czf - -T /dev/null; fi\n");
    if (s.text == NULL) {
        return carry_fail(store->ctx, CARRY_EMEMORY, "out of memory: files of job %lld", (long long)row->is.id);
    }
    const carry_status status = carry_remote_fetch(remote, s.text, folder);
    free(s.text);
    (void)rmdir(folder); /* removes it if empty */
    return status;
}

/* Copies the requested files of an ended job, records its end and removes its remote folder. A folder that cannot be
   removed is not an error. */
static carry_status conclude(carry_store *store, carry_remote *remote, const carry_job_row *row, int code,
                             const char *otherwise) {
    CARRY_TRY(bring_files(store, remote, row));
    CARRY_TRY(carry_job_settle(store, row->is.id, code, otherwise));
    if (carry_remote_free(remote) != CARRY_OK) {
        carry_log(store->ctx, CARRY_LOG_WARNING, "%s keeps %s: %s", remote->host, remote->path,
                  carry_ctx_error(store->ctx));
    }
    return CARRY_OK;
}

static carry_status refresh(carry_store *store, const carry_job_row *row) {
    carry_remote remote;
    char head[HEAD_BYTES];
    bool more = true;
    int code = -1;
    CARRY_TRY(remote_of(store, row, &remote));
    while (more) {
        CARRY_TRY(look_once(store, &remote, row, head, &more));
    }
    if (strcmp(head, "running") == 0) {
        return CARRY_OK;
    }
    if (sscanf(head, "end %d", &code) == 1 && code >= 0 && code <= 255) {
        return conclude(store, &remote, row, code, "lost");
    }
    if (strcmp(head, "lost") == 0) {
        return conclude(store, &remote, row, -1, "lost");
    }
    if (strcmp(head, "gone") == 0) { /* the folder was removed on the remote machine */
        return carry_job_settle(store, row->is.id, -1, "lost");
    }
    return carry_fail(store->ctx, CARRY_EFORMAT, "%s answered '%.60s' when asked for job %lld", remote.host, head,
                      (long long)row->is.id);
}

static carry_status mark(carry_store *store, int64_t id, const char *state) {
    sqlite3_stmt *statement;
    CARRY_TRY(carry_store_prepare(store, &statement,
                                  "UPDATE jobs SET state = ?2 WHERE id = ?1 AND state IN ('running', 'cancelling')",
                                  "is", id, state));
    return carry_store_exec(store, "cancelling a job", statement);
}

/* Sends SIGTERM to the remote process group, and SIGKILL five seconds later. */
static carry_status cancel(carry_store *store, const carry_job_row *row) {
    carry_remote remote;
    CARRY_TRY(remote_of(store, row, &remote));
    CARRY_TRY(mark(store, row->is.id, "cancelling"));
    carry_status status = carry_remote_end(&remote);
    if (status != CARRY_OK) {
        char message[400];
        (void)snprintf(message, sizeof message, "%s", carry_ctx_error(store->ctx));
        CARRY_TRY(mark(store, row->is.id, "running"));
        return carry_fail(store->ctx, status, "%s", message);
    }
    return refresh(store, row);
}

const carry_job_system carry_job_ssh = {
    .name = "ssh",
    .about = "another machine by ssh: ssh:HOST",
    .takes_host = true,
    .submit = submit,
    .refresh = refresh,
    .cancel = cancel,
};
