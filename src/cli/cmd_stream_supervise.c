/* carry stream --supervise: runs the same command as a child process, and restarts it when it dies. It is not restarted
   if it ended by itself before it streamed, if its output lost its reader (SIGPIPE), or after MOST_RESTARTS restarts
   within a minute.

   Rank 0 keeps the state for the next child in a small file, which it replaces when something has changed: the
   current epoch, the number of restarts, its process id, and the controls as JSON. The next child begins with the
   epoch after the stored one (a hard cut) and the same prompt. The child has its own process group, so Ctrl-C on the
   terminal reaches only the supervisor. The supervisor passes it on once: to rank 0 itself, since mpirun would kill
   its ranks, or as SIGTERM to the child if no rank streams yet. */
#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "cli/cmd_stream.h"
#include "core/clock.h"
#include "core/error.h"

#define MOST_RESTARTS 5 /* maximum within a minute */
/* JSON needs up to 6 bytes for a byte of a prompt. */
#define STATE_BYTES (6 * CARRY_PROMPTS * CARRY_PROMPT_BYTES + 4096)
#define UNSTREAMED "0 0 0 {}\n"
#define PARTING 10.0 /* seconds in which a child must end after it was asked to */

typedef struct memory {
    unsigned long long epoch, restarts;
    long process;
    bool has_streamed;
} memory;

/* CARRY_ENOTFOUND: no state has been written yet. */
static carry_status read_memory(carry_ctx *ctx, const char *path, memory *m, char **controls) {
    char *text;
    size_t length;
    *m = (memory){0};
    *controls = NULL;
    CARRY_TRY(carry_file_read(ctx, &text, &length, path, STATE_BYTES));
    if (length == 0) { /* mktemp makes empty files */
        free(text);
        return CARRY_ENOTFOUND;
    }
    int used = 0;
    if (sscanf(text, "%llu %llu %ld %n", &m->epoch, &m->restarts, &m->process, &used) != 3 || used == 0) {
        free(text);
        return carry_fail(ctx, CARRY_EFORMAT, "%s is not what a stream has kept of its state", path);
    }
    memmove(text, text + used, length + 1 - (size_t)used);
    *controls = text;
    m->has_streamed = m->process > 0;
    return CARRY_OK;
}

static bool has_streamed(carry_ctx *ctx, const char *path, memory *m) {
    char *controls;
    const bool has = read_memory(ctx, path, m, &controls) == CARRY_OK && m->has_streamed;
    free(controls);
    return has;
}

int stream_state_read(stream_session *session) {
    memory m;
    char *controls;
    char why[256];
    const char *path = session->options->state;
    if (path == NULL || cli_process_rank() > 0) {
        return CLI_DONE;
    }
    carry_status status = read_memory(session->ctx, path, &m, &controls);
    if (status == CARRY_ENOTFOUND) { /* reports now, not later, if the file cannot be written */
        status = carry_file_replace(session->ctx, path, UNSTREAMED, strlen(UNSTREAMED));
    }
    if (status != CARRY_OK) {
        return cli_refuse("--state: %s", carry_ctx_error(session->ctx));
    }
    session->pipeline.first_epoch = m.has_streamed ? m.epoch + 1 : 0;
    session->pipeline.restarts = m.has_streamed ? m.restarts + 1 : 0;
    if (m.has_streamed) {
        status = carry_controls_apply(session->controls, controls, strlen(controls), why, sizeof why);
    }
    free(controls);
    return status == CARRY_OK ? CLI_DONE : cli_refuse("%s: %s", path, why);
}

/* A write error such as a full disk does not end the stream; it is reported once. */
static void replace_state(stream_session *session, carry_ctx *ctx, const carry_json_text *text, const char *now) {
    if (carry_file_replace(ctx, session->options->state, text->bytes, text->length) == CARRY_OK) {
        (void)snprintf(session->saved_state, sizeof session->saved_state, "%s", now);
    } else if (!session->save_failed) {
        session->save_failed = true;
        (void)cli_refuse("--state: %s: a restart will not know of changes", carry_ctx_error(ctx));
    }
}

void stream_state_write(stream_session *session, carry_ctx *ctx) {
    carry_json_text text = {0};
    carry_json_text head = {0};
    if (session->options->state == NULL) {
        return;
    }
    carry_controls_write(session->controls, &text);
    carry_json_put_raw(&head, "%llu %llu %ld ", (unsigned long long)session->figures.epoch,
                       (unsigned long long)session->pipeline.restarts, (long)getpid());
    if (!text.failed && !head.failed) {
        char now[sizeof session->saved_state];
        uint64_t sum = 1469598103934665603ull; /* FNV-1a */
        for (size_t i = 0; i < text.length; i++) {
            sum = (sum ^ (unsigned char)text.bytes[i]) * 1099511628211ull;
        }
        (void)snprintf(now, sizeof now, "%s%llx", head.bytes, (unsigned long long)sum);
        carry_json_put_raw(&head, "%s\n", text.bytes);
        if (strcmp(now, session->saved_state) != 0 && !head.failed) {
            replace_state(session, ctx, &head, now);
        }
    }
    carry_json_text_free(&text);
    carry_json_text_free(&head);
}

/* The command without the supervisor's options, plus --state with the file. */
static char **make_command(const stream_options *given, int count, char **typed, char *state) {
    static char words[][24] = {"mpirun", "-n",      "--oversubscribe",    "--ranks",
                               "stream", "--state", "--allow-run-as-root"};
    static char self[CARRY_FILE_PATH];
    static char ranks[16];
    const ssize_t length = readlink("/proc/self/exe", self, sizeof self - 1);
    char **command = calloc((size_t)count + 16, sizeof *command);
    int n = 0;
    if (command == NULL || length <= 0) {
        free(command);
        return NULL;
    }
    self[length] = '\0';
    if (given->processes > 0) {
        (void)snprintf(ranks, sizeof ranks, "%d", (int)given->processes);
        command[n++] = words[0];
        command[n++] = words[2];
        if (geteuid() == 0) {
            command[n++] = words[6];
        }
        command[n++] = words[1];
        command[n++] = ranks;
        command[n++] = self;
    } else {
        (void)snprintf(ranks, sizeof ranks, "%d", cli_ranks());
        command[n++] = self;
        command[n++] = words[3];
        command[n++] = ranks;
    }
    command[n++] = words[4];
    command[n++] = words[5];
    command[n++] = state;
    for (int i = 0; i < count; i++) {
        if (strcmp(typed[i], "--processes") == 0) {
            i++;
        } else if (strcmp(typed[i], "--supervise") != 0 && strncmp(typed[i], "--processes=", 12) != 0) {
            command[n++] = typed[i];
        }
    }
    return command;
}

static pid_t start(char **command) {
    const pid_t supervisor = getpid();
    (void)fflush(stdout);
    const pid_t child = fork();
    if (child != 0) {
        return child;
    }
    (void)setpgid(0, 0);
    (void)prctl(PR_SET_PDEATHSIG, SIGTERM);
    if (getppid() == supervisor) {
        (void)execvp(command[0], command);
        (void)fprintf(stderr, "carry: %s cannot be started: %s\n", command[0], strerror(errno));
    }
    _exit(CLI_IMPOSSIBLE);
}

static void rest(double seconds) {
    const struct timespec pause = {.tv_sec = (time_t)seconds,
                                   .tv_nsec = (long)((seconds - (double)(time_t)seconds) * 1e9)};
    (void)nanosleep(&pause, NULL);
}

/* Waits until the child has ended. Passes Ctrl-C on, and kills the child if it does not end within PARTING seconds. */
static int wait_for(carry_ctx *ctx, pid_t child, const char *state) {
    int how = 0;
    double asked = 0.0;
    while (waitpid(child, &how, WNOHANG) == 0) {
        if (cli_interrupted() && asked == 0.0) {
            memory m;
            if (!has_streamed(ctx, state, &m) || kill((pid_t)m.process, SIGINT) != 0) {
                (void)kill(child, SIGTERM);
            }
            asked = carry_seconds();
        } else if (asked > 0.0 && carry_seconds() - asked > PARTING) {
            (void)kill(-child, SIGKILL);
            (void)kill(child, SIGKILL);
        }
        rest(0.02);
    }
    (void)kill(-child, SIGKILL); /* its remaining processes */
    return how;
}

static void say_how(int how, int restarts) {
    if (WIFSIGNALED(how)) {
        (void)fprintf(stderr, "carry: the stream was ended by signal %d; restart %d at a hard cut\n", WTERMSIG(how),
                      restarts);
    } else {
        (void)fprintf(stderr, "carry: the stream ended with %d; restart %d at a hard cut\n", WEXITSTATUS(how),
                      restarts);
    }
}

static int supervise(carry_ctx *ctx, char **command, const char *state) {
    double recent[MOST_RESTARTS] = {0}; /* times of the last restarts */
    for (int restarts = 0;; restarts++) {
        const pid_t child = start(command);
        if (child < 0) {
            return cli_refuse("no process can be started: %s", strerror(errno));
        }
        const int how = wait_for(ctx, child, state);
        const bool is_clean = WIFEXITED(how) && (WEXITSTATUS(how) == CLI_DONE || WEXITSTATUS(how) == CLI_WRONG);
        if (is_clean || cli_interrupted()) {
            return is_clean ? WEXITSTATUS(how) : CLI_DONE;
        }
        if (WIFSIGNALED(how) && WTERMSIG(how) == SIGPIPE) { /* a restarted stream would have no reader either */
            return cli_refuse("the output of the stream has no reader any more: it is not restarted");
        }
        memory m;
        if (!has_streamed(ctx, state, &m) && WIFEXITED(how)) {
            return CLI_IMPOSSIBLE; /* it failed before streaming, and has printed the reason */
        }
        const double now = carry_seconds();
        double *slot = &recent[restarts % MOST_RESTARTS];
        if (restarts >= MOST_RESTARTS && now - *slot < 60.0) {
            return cli_refuse("the stream died %d times within a minute: it is not started again", MOST_RESTARTS + 1);
        }
        *slot = now;
        say_how(how, restarts + 1);
        const double before = restarts > 0 ? recent[(restarts - 1) % MOST_RESTARTS] : 0.0;
        /* Waits longer if the child died soon after its start. */
        rest(before > 0.0 && now - before < 10.0 ? 1.0 : 0.1);
    }
}

int stream_supervise(carry_ctx *ctx, const stream_options *given, int count, char **arguments) {
    char folder[CARRY_FILE_PATH], state[CARRY_FILE_PATH];
    if (cli_process_rank() >= 0) {
        return cli_refuse("--supervise starts the processes itself: carry stream --supervise --processes N");
    }
    if (cli_has_recorder()) {
        return cli_refuse("--supervise streams in another process, of which a trace has nothing: leave one out");
    }
    if (given->processes > 1024) {
        return cli_refuse("--processes %lld: up to 1024", (long long)given->processes);
    }
    if (given->state != NULL) {
        return cli_refuse("--supervise keeps the state in a file of its own: leave --state out");
    }
    if (carry_file_temporary_folder(ctx, folder, "carry-stream") != CARRY_OK) {
        return cli_refuse("%s", carry_ctx_error(ctx));
    }
    if (carry_file_in(ctx, state, folder, "state") != CARRY_OK) {
        (void)rmdir(folder);
        return cli_refuse("%s", carry_ctx_error(ctx));
    }
    char **command = make_command(given, count, arguments, state);
    int code = CLI_IMPOSSIBLE;
    if (command == NULL) {
        (void)cli_refuse("out of memory, or no /proc/self/exe");
    } else {
        cli_catch_interrupt();
        cli_limit_interrupt(CLI_STREAM_PATIENCE);
        code = supervise(ctx, command, state);
    }
    free(command);
    (void)unlink(state);
    (void)rmdir(folder);
    return code;
}
