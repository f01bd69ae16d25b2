/* Uses another machine by ssh. */
#include "lab/remote.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/error.h"
#include "lab/quote.h"

#define CONNECT_SECONDS 60.0
#define SYNC_SECONDS 3600.0
#define ANSWER_BYTES ((size_t)64 << 10)
#define SSH_FAILED 255 /* exit code of ssh itself; those of scripts are smaller */
#define MOST_SSH 16

static bool is_of(const char *text, const char *more) {
    static const char plain[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789";
    for (; *text != '\0'; text++) {
        if (strchr(plain, *text) == NULL && strchr(more, *text) == NULL) {
            return false;
        }
    }
    return true;
}

carry_status carry_remote_of(carry_ctx *ctx, carry_remote *remote, const char *text) {
    *remote = (carry_remote){.ctx = ctx};
    const char *host = strncmp(text, "ssh:", 4) == 0 ? text + 4 : "";
    const char *at = strrchr(host, '@');
    if (*host == '\0' || strlen(host) >= sizeof remote->host || *host == '-' || (at != NULL && at[1] == '-') ||
        !is_of(host, "._-@:%[]")) {
        return carry_fail(
            ctx, CARRY_EARGUMENT,
            "'%.60s' names no host: expected ssh:HOST or ssh:USER@HOST, with letters, digits and ._-@:%%[] "
            "and no - at its start (ports and keys belong into ~/.ssh/config)",
            text);
    }
    (void)snprintf(remote->host, sizeof remote->host, "%s", host);
    return CARRY_OK;
}

/* Lists ssh and its options, without the host. */
static int ssh_words(const char *word[MOST_SSH]) {
    const char *config = getenv("CARRY_SSH_CONFIG");
    int count = 0;
    word[count++] = "ssh";
    if (config != NULL && *config != '\0') {
        word[count++] = "-F";
        word[count++] = config;
    }
    static const char *const options[] = {"-T", "-oBatchMode=yes", "-oConnectTimeout=10", "-oServerAliveInterval=5",
                                          "-oServerAliveCountMax=3"};
    for (size_t i = 0; i < sizeof options / sizeof options[0]; i++) {
        word[count++] = options[i];
    }
    word[count++] = "--";
    return count;
}

/* The last line of ssh's output, for an error message: the lines before it are banners. */
static const char *last_line(char line[200], const char *text) {
    size_t end = strlen(text);
    while (end > 0 && (text[end - 1] == '\n' || text[end - 1] == '\r')) {
        end--;
    }
    size_t begin = end;
    while (begin > 0 && text[begin - 1] != '\n') {
        begin--;
    }
    (void)snprintf(line, 200, "%.*s", (int)(end - begin < 199 ? end - begin : 199), text + begin);
    for (char *at = line; *at != '\0'; at++) {
        *at = (char)((unsigned char)*at < 0x20 ? '?' : *at);
    }
    return line[0] != '\0' ? line : "it says nothing";
}

/* The status of a program that used ssh. A timeout is left to the caller. */
static carry_status judge(carry_remote *remote, const carry_process_result *result) {
    char line[200];
    if (result->stopped) {
        return carry_fail(remote->ctx, CARRY_EINTERRUPTED, "interrupted");
    }
    if (!result->timed_out && result->code == SSH_FAILED) {
        return carry_fail(remote->ctx, CARRY_EIO, "%s cannot be reached by ssh, or the connection was lost: %s",
                          remote->host, last_line(line, result->errors));
    }
    return CARRY_OK;
}

static carry_status late(carry_remote *remote, const char *doing, double seconds) {
    return carry_fail(remote->ctx, CARRY_ETIMEOUT, "%s: %s did not end in %.0f s", remote->host, doing, seconds);
}

static carry_status feed(carry_remote *remote, carry_process_result *result, const char *script,
                         const carry_process *how) {
    const char *word[MOST_SSH];
    int count = ssh_words(word);
    word[count++] = remote->host;
    word[count++] = "exec sh";
    word[count] = NULL;
    const carry_status status = carry_process_run(remote->ctx, result,
                                                  &(carry_process){.arguments = word,
                                                                   .input = script,
                                                                   .input_length = strlen(script),
                                                                   .limit = how->limit,
                                                                   .seconds = how->seconds,
                                                                   .stop = how->stop});
    if (status == CARRY_ENOTFOUND) {
        return carry_fail(remote->ctx, CARRY_ENOTFOUND, "ssh was not found: jobs on %s need it", remote->host);
    }
    CARRY_TRY(status);
    const carry_status verdict = judge(remote, result);
    if (verdict != CARRY_OK) {
        carry_process_free(result);
    }
    return verdict;
}

carry_status carry_remote_run(carry_remote *remote, carry_process_result *result, const char *script, size_t limit,
                              double seconds, bool (*stop)(void)) {
    CARRY_TRY(feed(remote, result, script, &(carry_process){.limit = limit, .seconds = seconds, .stop = stop}));
    if (result->timed_out) {
        carry_process_free(result);
        return late(remote, "ssh", seconds);
    }
    return CARRY_OK;
}

carry_status carry_remote_end(carry_remote *remote) {
    char text[512];
    carry_process_result result;
    (void)snprintf(text, sizeof text,
                   "cd '%s' || exit 0\ng=$(cat pid)\n[ \"$g\" -gt 1 ] || exit 1\nkill -s TERM -- \"-$g\" 2> /dev/null\n"
                   "i=0\nwhile [ $i -lt 50 ] && kill -s 0 -- \"-$g\" 2> /dev/null; do sleep 0.1; i=$((i + 1)); done\n"
                   "kill -s KILL -- \"-$g\" 2> /dev/null\nexit 0\n",
                   remote->path);
    CARRY_TRY(carry_remote_run(remote, &result, text, ANSWER_BYTES, CONNECT_SECONDS, NULL));
    carry_process_free(&result);
    return CARRY_OK;
}

/* The shell leads the session made by sshd, so its process number is that of its process group. A command that exits
   with 255 is reported as 254, since 255 is what ssh returns when ssh itself fails. */
carry_status carry_remote_shell(carry_remote *remote, carry_process_result *result, const char *name,
                                const char *command, const char *const *settings, const carry_process *how) {
    static const char head[] = " || exit 1\necho $$ > ../pid\nenv";
    static const char tail[] = " < /dev/null\ncode=$?\n[ $code != 255 ] || code=254\nexit $code\n";
    size_t size = sizeof remote->path + strlen(name) + carry_quoted_length(command) + 128;
    for (int i = 0; settings != NULL && settings[i] != NULL; i++) {
        size += carry_quoted_length(settings[i]) + 1;
    }
    char *script = malloc(size);
    if (script == NULL) {
        return carry_fail(remote->ctx, CARRY_EMEMORY, "out of memory: command on %s", remote->host);
    }
    char *at = script + snprintf(script, size, "cd '%s/%s'%s", remote->path, name, head);
    for (int i = 0; settings != NULL && settings[i] != NULL; i++) {
        *at++ = ' ';
        at = carry_append_quoted(at, settings[i]);
    }
    at += snprintf(at, 16, " sh -c ");
    at = carry_append_quoted(at, command);
    memcpy(at, tail, sizeof tail);
    const carry_status status = feed(remote, result, script, how);
    free(script);
    if (status == CARRY_EINTERRUPTED || (status == CARRY_OK && result->timed_out)) {
        char message[400];
        (void)snprintf(message, sizeof message, "%s", carry_ctx_error(remote->ctx));
        (void)carry_remote_end(remote);
        return status == CARRY_OK ? CARRY_OK : carry_fail(remote->ctx, status, "%s", message);
    }
    return status;
}

/* Runs a script that must exit with 0. Its output is cut at the first newline. */
static carry_status ask(carry_remote *remote, char *answer, size_t size, const char *script, const char *doing) {
    carry_process_result result;
    char line[200];
    CARRY_TRY(carry_remote_run(remote, &result, script, ANSWER_BYTES, CONNECT_SECONDS, NULL));
    carry_status status = CARRY_OK;
    if (result.code != 0) {
        status = carry_fail(remote->ctx, CARRY_EIO, "%s: %s failed with exit %d: %s", remote->host, doing, result.code,
                            last_line(line, result.errors));
    }
    (void)snprintf(answer, size, "%.*s", (int)strcspn(result.output, "\n"), result.output);
    carry_process_free(&result);
    return status;
}

bool carry_remote_is_folder(const char *path, int64_t number) {
    char begin[40];
    const int length = snprintf(begin, sizeof begin, ".carry/jobs/%lld-", (long long)number);
    return strncmp(path, begin, (size_t)length) == 0 && strlen(path + length) == 6 && is_of(path + length, "");
}

carry_status carry_remote_allocate(carry_remote *remote, int64_t number) {
    char script[512];
    char answer[128];
    (void)snprintf(
        script, sizeof script,
        "umask 077\nfor p in tar gzip setsid; do command -v $p > /dev/null || { echo \"there is no $p\" >&2; "
        "exit 1; }; done\nmkdir -p .carry/jobs && d=$(mktemp -d .carry/jobs/%lld-XXXXXX) && echo \"$d "
        "$(uname -m)\"\n",
        (long long)number);
    CARRY_TRY(ask(remote, answer, sizeof answer, script, "making a folder"));
    char *blank = answer + strcspn(answer, " ");
    const bool has_machine = *blank != '\0';
    *blank = '\0';
    if (!has_machine || !carry_remote_is_folder(answer, number) || !is_of(blank + 1, "_-.")) {
        return carry_fail(remote->ctx, CARRY_EFORMAT, "%s answered '%.60s' where a new folder was expected",
                          remote->host, answer);
    }
    (void)snprintf(remote->path, sizeof remote->path, "%.63s", answer);
    (void)snprintf(remote->machine, sizeof remote->machine, "%.31s", blank + 1);
    return CARRY_OK;
}

/* Runs a local sh for the pipes. Its script is fixed and only its parameters vary. "$@" is ssh with its host. */
static carry_status run_pipe(carry_remote *remote, carry_process_result *result, const char *pipe,
                             const char *const *parameters, const char *remote_command) {
    const char *word[MOST_SSH + 12];
    const char *ssh[MOST_SSH];
    int count = 0;
    word[count++] = "sh";
    word[count++] = "-c";
    word[count++] = pipe;
    word[count++] = "sh";
    for (int i = 0; parameters[i] != NULL; i++) {
        word[count++] = parameters[i];
    }
    const int options = ssh_words(ssh);
    for (int i = 0; i < options; i++) {
        word[count++] = ssh[i];
    }
    word[count++] = remote->host;
    word[count++] = remote_command;
    word[count] = NULL;
    return carry_process_run(remote->ctx, result,
                             &(carry_process){.arguments = word, .limit = ANSWER_BYTES, .seconds = SYNC_SECONDS});
}

static carry_status find_prefix(carry_remote *remote, const char *folder, char prefix[1024], bool *in_git) {
    carry_process_result result;
    const char *const arguments[] = {"git", "rev-parse", "--show-prefix", NULL};
    prefix[0] = '\0';
    *in_git = false;
    const carry_status status = carry_process_run(
        remote->ctx, &result, &(carry_process){.arguments = arguments, .folder = folder, .seconds = CONNECT_SECONDS});
    if (status == CARRY_ENOTFOUND) {
        return CARRY_OK;
    }
    CARRY_TRY(status);
    *in_git = result.code == 0;
    if (*in_git) {
        (void)snprintf(prefix, 1024, "%.*s", (int)strcspn(result.output, "\n"), result.output);
    }
    const bool fits = !*in_git || strlen(prefix) < 1023;
    carry_process_free(&result);
    return fits ? CARRY_OK : carry_fail(remote->ctx, CARRY_ESIZE, "the path of %.60s... is too long", folder);
}

carry_status carry_remote_sync(carry_remote *remote, const char *folder, const char *name, const char *program,
                               char prefix[1024]) {
    /* Skips files that git lists but that were deleted. The exit code is that of ssh. */
    static const char of_git[] =
        "cd \"$1\" && cd \"$(git rev-parse --show-toplevel)\" || exit 1\nprogram=$2\nshift 2\n"
        "{ git ls-files -z -co --exclude-standard; [ -z \"$program\" ] || printf '%s\\0' \"$program\"; } | "
        "tar --ignore-failed-read --warning=no-failed-read --no-recursion --null -T - -czf - | \"$@\"";
    static const char of_folder[] = "cd \"$1\" || exit 1\nshift 2\ntar -czf - . | \"$@\"";
    char command[2 * CARRY_REMOTE_PATH + 128];
    char line[200];
    bool in_git;
    CARRY_TRY(find_prefix(remote, folder, prefix, &in_git));
    const char *const parameters[] = {folder, program != NULL ? program : "", NULL};
    /* These words have no character that is special to a shell, so they need no quotes. */
    (void)snprintf(command, sizeof command, "rm -rf %s/%s && mkdir %s/%s && exec tar -xzf - -C %s/%s", remote->path,
                   name, remote->path, name, remote->path, name);
    carry_process_result result;
    CARRY_TRY(run_pipe(remote, &result, in_git ? of_git : of_folder, parameters, command));
    carry_status status = result.timed_out ? late(remote, "copying the tree", SYNC_SECONDS) : judge(remote, &result);
    if (status == CARRY_OK && result.code != 0) {
        status = carry_fail(remote->ctx, CARRY_EIO, "%s: copying %s failed with exit %d: %s", remote->host, folder,
                            result.code, last_line(line, result.errors));
    }
    carry_process_free(&result);
    return status;
}

carry_status carry_remote_fetch(carry_remote *remote, const char *script, const char *folder) {
    static const char pipe[] = "folder=$1\nscript=$2\nshift 2\nmkdir -p \"$folder\" || exit 1\n"
                               "printf '%s' \"$script\" | \"$@\" | tar -xzf - --no-same-owner -C \"$folder\"";
    const char *const parameters[] = {folder, script, NULL};
    char line[200];
    carry_process_result result;
    CARRY_TRY(run_pipe(remote, &result, pipe, parameters, "exec sh"));
    carry_status status = CARRY_OK;
    if (result.timed_out || result.code != 0) {
        status = carry_fail(remote->ctx, CARRY_EIO, "the files of %s could not be brought to %s: %s", remote->host,
                            folder, last_line(line, result.errors));
    }
    carry_process_free(&result);
    return status;
}

carry_status carry_remote_free(carry_remote *remote) {
    char script[CARRY_REMOTE_PATH + 32];
    char answer[32];
    if (strncmp(remote->path, ".carry/jobs/", 12) != 0) {
        return CARRY_OK;
    }
    (void)snprintf(script, sizeof script, "rm -rf '%s'\n", remote->path);
    return ask(remote, answer, sizeof answer, script, "removing the job's folder");
}

/* Processor names: the code in ELF files, and the output of uname -m. */
static const struct {
    int code;
    const char *name;
} machines[] = {{0x3e, "x86_64"}, {0xb7, "aarch64"}, {0xf3, "riscv64"}, {0x15, "ppc64le"}, {0x16, "s390x"}};

carry_status carry_remote_check_program(const carry_remote *remote, const char *program) {
    unsigned char head[20] = {0};
    const int file = open(program, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    const ssize_t got = file >= 0 ? read(file, head, sizeof head) : -1;
    if (file >= 0) {
        (void)close(file);
    }
    if (got != (ssize_t)sizeof head || memcmp(head, "\177ELF", 4) != 0) {
        return CARRY_OK; /* a script, or a program that is not on this machine */
    }
    const int code = head[5] == 2 ? head[18] << 8 | head[19] : head[19] << 8 | head[18];
    for (size_t i = 0; i < sizeof machines / sizeof machines[0]; i++) {
        if (machines[i].code == code && strcmp(machines[i].name, remote->machine) != 0) {
            return carry_fail(remote->ctx, CARRY_EUNSUPPORTED,
                              "%s is built for %s and %s is %s: build it there (submit a command that builds and runs, "
                              "such as sh -c 'make && ...')",
                              program, machines[i].name, remote->host, remote->machine);
        }
    }
    return CARRY_OK;
}
