/* Starting other programs. The child leads a process group of its own, so that ending it ends what it started; a pipe
   that closes on exec tells why a program could not be started. */
#include "lab/process.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <poll.h>
#include <signal.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "core/clock.h"
#include "core/error.h"

#define KEPT_BYTES ((size_t)1 << 20)
#define DEFAULT_SECONDS 600.0
#define GRACE_SECONDS 2.0
#define POLL_MILLISECONDS 100

/* What is read of one of the child's outputs. */
typedef struct collected {
    int from; /* -1: closed */
    char *text;
    size_t length, limit;
} collected;

typedef struct child {
    carry_ctx *ctx;
    const carry_process *process;
    pid_t id;
    int to; /* its standard input, -1: closed */
    size_t given;
    collected out, errors;
} child;

static void close_if_open(int *file) {
    if (*file >= 0) {
        (void)close(*file);
        *file = -1;
    }
}

/* In the child: never returns. */
static void become(const carry_process *process, const int in[2], const int out[2], const int errors[2], int report) {
    (void)setpgid(0, 0);
    int nothing = open("/dev/null", O_RDWR);
    bool ready = dup2(process->input != NULL ? in[0] : nothing, STDIN_FILENO) >= 0;
    if (!process->inherit) {
        ready = ready && dup2(out[1], STDOUT_FILENO) >= 0;
        ready = ready && dup2(process->merge ? out[1] : errors[1], STDERR_FILENO) >= 0;
    }
    (void)signal(SIGPIPE, SIG_DFL);
    (void)signal(SIGINT, SIG_DFL);
    (void)signal(SIGTERM, SIG_DFL);
    if (ready && (process->folder == NULL || chdir(process->folder) == 0)) {
        (void)execvp(process->arguments[0], (char *const *)(uintptr_t)process->arguments);
    }
    int reason = errno;
    ssize_t told = write(report, &reason, sizeof reason);
    _exit(told == (ssize_t)sizeof reason ? 127 : 126);
}

static void collect(collected *c) {
    char piece[16384];
    ssize_t got = read(c->from, piece, sizeof piece);
    if (got < 0 && (errno == EINTR || errno == EAGAIN)) {
        return;
    }
    if (got <= 0) {
        close_if_open(&c->from);
        return;
    }
    size_t room = c->limit - c->length;
    size_t kept = (size_t)got < room ? (size_t)got : room;
    memcpy(c->text + c->length, piece, kept);
    c->length += kept;
}

static void give(child *c) {
    ssize_t done = write(c->to, c->process->input + c->given, c->process->input_length - c->given);
    if (done < 0 && (errno == EINTR || errno == EAGAIN)) {
        return;
    }
    c->given += done > 0 ? (size_t)done : 0;
    if (done < 0 || c->given == c->process->input_length) { /* a child that reads no further is not our failure */
        close_if_open(&c->to);
    }
}

static void exchange(child *c) {
    struct pollfd files[3] = {{.fd = c->out.from, .events = POLLIN},
                              {.fd = c->errors.from, .events = POLLIN},
                              {.fd = c->to, .events = POLLOUT}};
    bool quiet = c->out.from < 0 && c->errors.from < 0; /* it is about to end */
    if (poll(files, 3, quiet ? 2 : POLL_MILLISECONDS) <= 0) {
        return;
    }
    if (files[0].revents != 0) {
        collect(&c->out);
    }
    if (files[1].revents != 0) {
        collect(&c->errors);
    }
    if (files[2].revents != 0) {
        give(c);
    }
}

/* What a grandchild still holds open is not waited for once the child itself has ended and the pipes are drained. */
static void follow(child *c, carry_process_result *result) {
    double started = carry_seconds();
    double limit = c->process->seconds > 0.0 ? c->process->seconds : DEFAULT_SECONDS;
    double ending = INFINITY;
    double drained = INFINITY;
    bool ended = false;
    int state = 0;
    while (!ended || ((c->out.from >= 0 || c->errors.from >= 0) && carry_seconds() < drained)) {
        exchange(c);
        if (!ended && waitpid(c->id, &state, WNOHANG) == c->id) {
            ended = true;
            drained = carry_seconds() + 0.3;
        }
        double now = carry_seconds();
        result->timed_out = result->timed_out || (!ended && now - started > limit);
        result->stopped = result->stopped || (!ended && c->process->stop != NULL && c->process->stop());
        if (!ended && (result->timed_out || result->stopped)) {
            if (isinf(ending)) {
                (void)kill(-c->id, SIGTERM);
                ending = now + GRACE_SECONDS;
            } else if (now > ending) {
                (void)kill(-c->id, SIGKILL);
            }
        }
    }
    result->seconds = carry_seconds() - started;
    result->code = WIFEXITED(state) ? WEXITSTATUS(state) : 128 + WTERMSIG(state);
}

static carry_status start(child *c) {
    int pipes[4][2] = {{-1, -1}, {-1, -1}, {-1, -1}, {-1, -1}}; /* in, out, errors, report */
    bool made = true;
    for (int i = 0; i < 4; i++) {
        made = made && pipe2(pipes[i], O_CLOEXEC) == 0;
    }
    c->id = made ? fork() : -1;
    if (c->id == 0) {
        become(c->process, pipes[0], pipes[1], pipes[2], pipes[3][1]);
    }
    int problem = c->id < 0 ? errno : 0;
    close_if_open(&pipes[0][0]);
    close_if_open(&pipes[1][1]);
    close_if_open(&pipes[2][1]);
    close_if_open(&pipes[3][1]);
    if (problem == 0) {
        (void)setpgid(c->id, c->id); /* both sides: whoever is first */
        ssize_t got;
        do {
            got = read(pipes[3][0], &problem, sizeof problem);
        } while (got < 0 && errno == EINTR);
        if (got != (ssize_t)sizeof problem) {
            problem = 0;
        } else {
            (void)waitpid(c->id, NULL, 0);
        }
    }
    close_if_open(&pipes[3][0]);
    c->to = pipes[0][1];
    c->out.from = pipes[1][0];
    c->errors.from = pipes[2][0];
    if (problem != 0) {
        return carry_fail(c->ctx, problem == ENOENT ? CARRY_ENOTFOUND : CARRY_EIO, "%s cannot be started: %s",
                          c->process->arguments[0], strerror(problem));
    }
    (void)fcntl(c->to, F_SETFL, O_NONBLOCK);
    if (c->process->input == NULL || c->process->input_length == 0) {
        close_if_open(&c->to);
    }
    return CARRY_OK;
}

carry_status carry_process_run(carry_ctx *ctx, carry_process_result *result, const carry_process *process) {
    size_t limit = process->limit > 0 ? process->limit : KEPT_BYTES;
    child c = {.ctx = ctx, .process = process, .id = -1, .to = -1, .out = {.from = -1}, .errors = {.from = -1}};
    *result = (carry_process_result){.code = 127};
    c.out.limit = c.errors.limit = limit;
    c.out.text = malloc(limit + 1);
    c.errors.text = malloc(limit + 1);
    carry_status status = c.out.text != NULL && c.errors.text != NULL
                              ? CARRY_OK
                              : carry_fail(ctx, CARRY_EMEMORY, "no memory for the output of %s", process->arguments[0]);
    struct sigaction ignored = {.sa_handler = SIG_IGN};
    struct sigaction before;
    (void)sigaction(SIGPIPE, &ignored, &before); /* a child that closes its input early must not end us */
    status = status == CARRY_OK ? start(&c) : status;
    if (status == CARRY_OK) {
        follow(&c, result);
        c.out.text[c.out.length] = '\0';
        c.errors.text[c.errors.length] = '\0';
        result->output = c.out.text;
        result->output_length = c.out.length;
        result->errors = c.errors.text;
    } else {
        free(c.out.text);
        free(c.errors.text);
    }
    (void)sigaction(SIGPIPE, &before, NULL);
    close_if_open(&c.to);
    close_if_open(&c.out.from);
    close_if_open(&c.errors.from);
    return status;
}

void carry_process_free(carry_process_result *result) {
    free(result->output);
    free(result->errors);
    result->output = result->errors = NULL;
}
