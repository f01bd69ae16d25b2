/* Opens a climb, fixes its baseline, checks its log. */
#include "lab/climb/climb.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <time.h>
#include <unistd.h>

#include "core/error.h"
#include "core/file.h"
#include "lab/climb/climb_internal.h"

#define COMMAND_BYTES 4000
#define LEAST_REPEATS 3

void climb_tell(const carry_climb *climb, const char *format, ...) {
    char line[1024];
    va_list arguments;
    va_start(arguments, format);
    (void)vsnprintf(line, sizeof line, format, arguments);
    va_end(arguments);
    if (climb->options.tell != NULL) {
        climb->options.tell(climb->options.user, line);
    }
}

const char *climb_date(char date[32], const carry_climb_log *log) {
    time_t now = time(NULL);
    struct tm parts;
    (void)gmtime_r(&now, &parts);
    (void)strftime(date, 32, "%Y-%m-%dT%H:%M:%SZ", &parts);
    if (log != NULL && strcmp(date, log->entry[log->count - 1].date) < 0) {
        (void)snprintf(date, 32, "%s", log->entry[log->count - 1].date);
    }
    return date;
}

carry_status climb_check_command(carry_ctx *ctx, const char *what, const char *command) {
    for (const unsigned char *at = (const unsigned char *)command; *at != '\0'; at++) {
        if (*at < 0x20 || *at == 0x7f) {
            return carry_fail(ctx, CARRY_EARGUMENT, "the %s command must be one line: put the others in a script",
                              what);
        }
    }
    size_t length = strlen(command);
    if (length > COMMAND_BYTES || length == 0 || strspn(command, " ") == length) {
        return carry_fail(ctx, CARRY_EARGUMENT, "the %s command must have 1 to %d characters", what, COMMAND_BYTES);
    }
    return CARRY_OK;
}

carry_status climb_check_repeats(carry_ctx *ctx, int64_t repeats) {
    return repeats == 0 || (repeats >= LEAST_REPEATS && repeats <= CARRY_CLIMB_SAMPLES)
               ? CARRY_OK
               : carry_fail(ctx, CARRY_EARGUMENT, "--repeats %lld: it takes %d to %d runs to show what is noise",
                            (long long)repeats, LEAST_REPEATS, CARRY_CLIMB_SAMPLES);
}

/* Takes the climb's lock, which is held until the process ends in any way. */
static carry_status take_lock(carry_climb *climb) {
    char path[CLIMB_PATH + 32];
    char holder[32] = "";
    (void)snprintf(path, sizeof path, "%s/carry-climb.lock", climb->git);
    climb->lock = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    if (climb->lock < 0) {
        return carry_fail(climb->ctx, CARRY_EIO, "%s cannot be written: %s", path, strerror(errno));
    }
    if (flock(climb->lock, LOCK_EX | LOCK_NB) != 0) {
        ssize_t got = read(climb->lock, holder, sizeof holder - 1);
        holder[got > 0 ? got : 0] = '\0';
        return carry_fail(climb->ctx, CARRY_EIO, "another climb is under way in this repository (process %s)",
                          got > 0 ? holder : "unknown");
    }
    int length = snprintf(holder, sizeof holder, "%ld", (long)getpid());
    if (ftruncate(climb->lock, 0) != 0 || write(climb->lock, holder, (size_t)length) != length) {
        return carry_fail(climb->ctx, CARRY_EIO, "%s cannot be written: %s", path, strerror(errno));
    }
    return CARRY_OK;
}

/* Finds the log's path, absolute and relative to the root. The log need not exist, but its folder must. */
static carry_status find_log(carry_climb *climb) {
    const char *given = climb->options.log;
    char folder[CLIMB_PATH];
    if (given == NULL) {
        (void)snprintf(climb->relative, sizeof climb->relative, "climb.md");
        int length = snprintf(climb->path, sizeof climb->path, "%s/climb.md", climb->root);
        return length < (int)sizeof climb->path ? CARRY_OK : carry_fail(climb->ctx, CARRY_ESIZE, "a path is too long");
    }
    const char *slash = strrchr(given, '/');
    const char *name = slash != NULL ? slash + 1 : given;
    (void)snprintf(folder, sizeof folder, "%.*s", slash != NULL ? (int)(slash - given) + 1 : 1,
                   slash != NULL ? given : ".");
    char *real = realpath(folder, NULL);
    if (real == NULL) {
        return carry_fail(climb->ctx, CARRY_ENOTFOUND, "the folder of the log %.200s cannot be opened: %s", given,
                          strerror(errno));
    }
    size_t root = strlen(climb->root);
    bool inside = strncmp(real, climb->root, root) == 0 && (real[root] == '/' || real[root] == '\0');
    int length = snprintf(climb->path, sizeof climb->path, "%s/%s", real, name);
    free(real);
    if (!inside || length >= (int)sizeof climb->path || *name == '\0') {
        return carry_fail(climb->ctx, CARRY_EARGUMENT, "the log %.200s does not lie in the repository %.200s", given,
                          climb->root);
    }
    (void)snprintf(climb->relative, sizeof climb->relative, "%s", climb->path + root + 1);
    return CARRY_OK;
}

/* Refuses a log that git ignores: it could not be committed with the changes that it describes. */
static carry_status refuse_ignored(carry_climb *climb) {
    int code;
    climb_git_call call = {.folder = climb->root, .words = {"check-ignore", "-q", "--", climb->relative}};
    CARRY_TRY(climb_git_asks(climb, &code, &call));
    return code != 0 ? CARRY_OK
                     : carry_fail(climb->ctx, CARRY_EARGUMENT,
                                  "git ignores %s: the log is committed with the changes, so name another with --log",
                                  climb->relative);
}

/* *ignored: git ignores the path. Excluding such a path makes `git add` fail, and it need not be excluded. */
static carry_status is_ignored(carry_climb *climb, const char *path, bool *ignored) {
    int code;
    climb_git_call call = {.folder = climb->root, .words = {"check-ignore", "-q", "--", path}};
    CARRY_TRY(climb_git_asks(climb, &code, &call));
    *ignored = code == 0;
    return CARRY_OK;
}

static carry_status note_store(carry_climb *climb) {
    size_t root = strlen(climb->root);
    bool ignored = false;
    CARRY_TRY(is_ignored(climb, ".carry", &climb->ignores_carry));
    char *real = realpath(carry_store_path(climb->store), NULL);
    const bool inside = real != NULL && strncmp(real, climb->root, root) == 0 && real[root] == '/';
    const carry_status status = inside ? is_ignored(climb, real + root + 1, &ignored) : CARRY_OK;
    if (inside && !ignored) {
        (void)snprintf(climb->store_spec, sizeof climb->store_spec, ":(exclude,glob)%s*", real + root + 1);
    }
    free(real);
    return status;
}

carry_status climb_reload(carry_climb *climb) {
    char *text;
    size_t length;
    carry_climb_log_free(climb->log);
    climb->log = NULL;
    carry_status status = carry_file_read(climb->ctx, &text, &length, climb->path, CARRY_CLIMB_LOG_BYTES);
    if (status != CARRY_OK) {
        return status == CARRY_ENOTFOUND ? CARRY_OK : status;
    }
    status = carry_climb_log_parse(climb->ctx, &climb->log, text, length, climb->relative);
    free(text);
    return status;
}

/* Readers also finish the work of a killed climb, unless another climb is running or the folder cannot be written. */
static void recover_for_reading(carry_climb *climb) {
    if (take_lock(climb) == CARRY_OK) {
        (void)climb_recover(climb);
    }
    if (climb->lock >= 0) {
        (void)close(climb->lock);
        climb->lock = -1;
    }
}

static carry_status open_parts(carry_climb *climb) {
    CARRY_TRY(climb_find_root(climb));
    CARRY_TRY(find_log(climb));
    if (!climb->options.writes) {
        recover_for_reading(climb);
    }
    if (climb->options.writes) {
        CARRY_TRY(take_lock(climb));
        CARRY_TRY(climb_recover(climb));
        climb_worktrees_clean(climb);
        CARRY_TRY(refuse_ignored(climb));
        CARRY_TRY(climb_identity(climb));
        CARRY_TRY(carry_store_open(climb->ctx, &climb->store, NULL));
        CARRY_TRY(note_store(climb));
    }
    return climb_reload(climb);
}

carry_status carry_climb_open(carry_ctx *ctx, carry_climb **climb, const carry_climb_options *options) {
    carry_climb *made = calloc(1, sizeof *made);
    *climb = NULL;
    if (made == NULL) {
        return carry_fail(ctx, CARRY_EMEMORY, "out of memory: a climb");
    }
    made->ctx = ctx;
    made->options = *options;
    made->lock = -1;
    carry_status status = open_parts(made);
    if (status != CARRY_OK) {
        carry_climb_close(made);
        return status;
    }
    *climb = made;
    return CARRY_OK;
}

void carry_climb_close(carry_climb *climb) {
    if (climb == NULL) {
        return;
    }
    climb_remote_close(climb);
    climb_worktree_remove(climb, climb->best_folder);
    if (climb->options.writes && climb->index[0] != '\0') {
        (void)unlink(climb->index);
    }
    if (climb->store != NULL) {
        carry_store_close(climb->store);
    }
    carry_climb_log_free(climb->log);
    if (climb->lock >= 0) {
        (void)close(climb->lock);
    }
    free(climb);
}

carry_status carry_climb_log_of(carry_climb *climb, const carry_climb_log **log) {
    *log = climb->log;
    return climb->log != NULL
               ? CARRY_OK
               : carry_fail(climb->ctx, CARRY_ENOTFOUND, "there is no %s: carry climb start --profile CMD begins one",
                            climb->relative);
}

const char *carry_climb_path(const carry_climb *climb) {
    return climb->path;
}

/* Checks that every commit named in the log exists, with one call of git. */
static carry_status check_commits(carry_climb *climb) {
    const carry_climb_log *log = climb->log;
    char *names = malloc((size_t)log->count * 2 * CLIMB_HASH + 1);
    char *output = NULL;
    size_t used = 0;
    if (names == NULL) {
        return carry_fail(climb->ctx, CARRY_EMEMORY, "out of memory: checking the log");
    }
    for (int i = 0; i < log->count; i++) {
        const carry_climb_entry *e = &log->entry[i];
        const char *commit = strcmp(e->commit, "none") != 0 ? e->commit : e->on;
        used += (size_t)snprintf(names + used, 2 * CLIMB_HASH, "%.66s\n%.66s\n", commit, e->on);
    }
    climb_git_call call = {.folder = climb->root,
                           .input = names,
                           .input_length = used,
                           .words = {"cat-file", "--batch-check=%(objecttype)"}};
    carry_status status = climb_git(climb, &output, &call);
    const char *at = output;
    for (int i = 0; status == CARRY_OK && i < 2 * log->count; i++) {
        if (strncmp(at, "commit", 6) != 0) {
            status = carry_fail(climb->ctx, CARRY_ERANGE, "%s, entry %d: git has no commit %.12s", climb->relative,
                                i / 2, i % 2 == 0 ? log->entry[i / 2].commit : log->entry[i / 2].on);
        }
        at += strcspn(at, "\n");
        at += *at == '\n';
    }
    free(names);
    free(output);
    return status;
}

/* Checks that the committed entries are still in the log. The chain of checksums cannot detect that the last
   entries were removed. */
static carry_status check_beginning(carry_climb *climb) {
    char object[CLIMB_PATH + 8];
    char *committed;
    int code;
    (void)snprintf(object, sizeof object, "HEAD:%s", climb->relative);
    climb_git_call exists = {.folder = climb->root, .words = {"cat-file", "-e", object}};
    climb_git_call show = {.folder = climb->root, .words = {"cat-file", "blob", object}};
    CARRY_TRY(climb_git_asks(climb, &code, &exists));
    if (code != 0) {
        return CARRY_OK;
    }
    CARRY_TRY(climb_git(climb, &committed, &show));
    size_t length = strlen(committed);
    bool begins = climb->log != NULL && climb->log->length > length && memcmp(climb->log->text, committed, length) == 0;
    free(committed);
    return begins ? CARRY_OK
                  : carry_fail(climb->ctx, CARRY_ERANGE,
                               "%s is not what was committed with something added: entries are gone (git diff %s "
                               "shows which, git checkout %s brings them back)",
                               climb->relative, climb->relative, climb->relative);
}

carry_status carry_climb_lint(carry_climb *climb) {
    const carry_climb_log *log;
    CARRY_TRY(carry_climb_log_of(climb, &log));
    CARRY_TRY(carry_climb_log_check(climb->ctx, log, climb->relative));
    CARRY_TRY(check_beginning(climb));
    return check_commits(climb);
}
