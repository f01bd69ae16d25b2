/* Starts other programs. The child leads its own process group, so that its descendants can be ended with it. A pipe
   that closes on exec reports why a program could not be started. */
#include "lab/process.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "core/clock.h"
#include "core/error.h"

#define KEPT_BYTES ((size_t)1 << 20)
#define DEFAULT_SECONDS 600.0
#define GRACE_SECONDS 2.0
#define DRAIN_SECONDS 0.3
#define POLL_MILLISECONDS 100

/* The text read from one of the child's outputs. */
typedef struct collected {
    int from; /* -1: closed */
    char *text;
    size_t length, limit;
} collected;

/* Sent by the child if the program could not be started. */
typedef struct obstacle {
    int reason; /* errno, 0: none */
    bool in_folder;
} obstacle;

typedef struct child {
    carry_ctx *ctx;
    const carry_process *process;
    pid_t id;
    int to; /* its standard input, -1: closed */
    size_t given;
    int patience; /* milliseconds */
    collected out, errors;
} child;

static void close_if_open(int *file) {
    if (*file >= 0) {
        (void)close(*file);
        *file = -1;
    }
}

/* Runs in the child and never returns. */
static void become(const carry_process *process, const int in[2], const int out[2], const int errors[2], int report) {
    (void)setpgid(0, 0);
    bool ready = true;
    if (process->input != NULL) {
        ready = dup2(in[0], STDIN_FILENO) >= 0;
    } else {
        int nothing = open("/dev/null", O_RDWR);
        ready = nothing >= 0 && dup2(nothing, STDIN_FILENO) >= 0;
        if (nothing > STDERR_FILENO) {
            (void)close(nothing);
        }
    }
    if (!process->inherit) {
        ready = ready && dup2(out[1], STDOUT_FILENO) >= 0;
        ready = ready && dup2(process->merge ? out[1] : errors[1], STDERR_FILENO) >= 0;
    }
    (void)signal(SIGPIPE, SIG_DFL);
    (void)signal(SIGINT, SIG_DFL);
    (void)signal(SIGTERM, SIG_DFL);
    (void)signal(SIGXFSZ, SIG_DFL);
    sigset_t none;
    (void)sigemptyset(&none);
    (void)sigprocmask(SIG_SETMASK, &none, NULL);
    obstacle found = {.in_folder = ready && process->folder != NULL && chdir(process->folder) != 0};
    if (ready && !found.in_folder) {
        (void)execvp(process->arguments[0], (char *const *)(uintptr_t)process->arguments);
    }
    found.reason = errno;
    ssize_t told = write(report, &found, sizeof found);
    _exit(told == (ssize_t)sizeof found ? 127 : 126);
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
    if (done < 0 || c->given == c->process->input_length) { /* a child that stops reading its input is not an error */
        close_if_open(&c->to);
    }
}

/* Waits for the pipes with a timeout. A child whose pipes are closed usually ends at once, so the first waits for it
   are short. */
static void exchange(child *c) {
    struct pollfd files[3] = {{.fd = c->out.from, .events = POLLIN},
                              {.fd = c->errors.from, .events = POLLIN},
                              {.fd = c->to, .events = POLLOUT}};
    bool open = c->out.from >= 0 || c->errors.from >= 0;
    c->patience = open ? 1 : 2 * c->patience < POLL_MILLISECONDS ? 2 * c->patience : POLL_MILLISECONDS;
    if (poll(files, 3, open ? POLL_MILLISECONDS : c->patience) <= 0) {
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

/* True once the child has ended. It is not reaped yet, so that its process number is not reused. */
static bool has_ended(const child *c) {
    siginfo_t about = {0};
    return waitid(P_PID, (id_t)c->id, &about, WEXITED | WNOHANG | WNOWAIT) != 0 || about.si_pid == c->id;
}

/* Drains the pipes after the child has ended, for at most DRAIN_SECONDS, since a grandchild may keep them open. */
static void drain(child *c) {
    double until = carry_seconds() + DRAIN_SECONDS;
    while ((c->out.from >= 0 || c->errors.from >= 0) && carry_seconds() < until) {
        exchange(c);
    }
}

static void follow(child *c, carry_process_result *result) {
    double started = carry_seconds();
    double limit = c->process->seconds > 0.0 ? c->process->seconds : DEFAULT_SECONDS;
    double ending = INFINITY;
    for (;;) {
        exchange(c);
        if (has_ended(c)) {
            break;
        }
        double now = carry_seconds();
        result->timed_out = result->timed_out || now - started > limit;
        result->stopped = result->stopped || (c->process->stop != NULL && c->process->stop());
        if (!result->timed_out && !result->stopped) {
            continue;
        }
        if (isinf(ending)) {
            (void)kill(-c->id, SIGTERM);
            ending = now + GRACE_SECONDS;
        } else if (now > ending) {
            (void)kill(-c->id, SIGKILL);
        }
    }
    if (result->timed_out || result->stopped) {
        (void)kill(-c->id, SIGKILL); /* its children, and processes that ignored the first signal */
    }
    result->seconds = carry_seconds() - started;
    int state = 0;
    while (waitpid(c->id, &state, 0) < 0 && errno == EINTR) {
    }
    result->code = WIFEXITED(state) ? WEXITSTATUS(state) : 128 + WTERMSIG(state);
    drain(c);
}

/* Makes a pipe with descriptors above the three standard ones, which may be closed here and are used in the child. */
static bool make_pipe(int ends[2]) {
    if (pipe2(ends, O_CLOEXEC) != 0) {
        return false;
    }
    for (int i = 0; i < 2; i++) {
        if (ends[i] <= STDERR_FILENO) {
            int higher = fcntl(ends[i], F_DUPFD_CLOEXEC, STDERR_FILENO + 1);
            (void)close(ends[i]);
            ends[i] = higher;
        }
    }
    return ends[0] >= 0 && ends[1] >= 0;
}

/* Reads why the program could not be started; the pipe is empty if it was started. */
static obstacle hear(int report) {
    obstacle found = {0};
    ssize_t got;
    do {
        got = read(report, &found, sizeof found);
    } while (got < 0 && errno == EINTR);
    return got == (ssize_t)sizeof found ? found : (obstacle){0};
}

static carry_status start(child *c) {
    int pipes[4][2] = {{-1, -1}, {-1, -1}, {-1, -1}, {-1, -1}}; /* in, out, errors, report */
    bool made = true;
    for (int i = 0; i < 4; i++) {
        made = made && make_pipe(pipes[i]);
    }
    c->id = made ? fork() : -1;
    if (c->id == 0) {
        become(c->process, pipes[0], pipes[1], pipes[2], pipes[3][1]);
    }
    obstacle found = {.reason = c->id < 0 ? errno : 0};
    close_if_open(&pipes[0][0]);
    close_if_open(&pipes[1][1]);
    close_if_open(&pipes[2][1]);
    close_if_open(&pipes[3][1]);
    if (c->id > 0) {
        (void)setpgid(c->id, c->id); /* parent and child both call it: whichever runs first sets the group */
        found = hear(pipes[3][0]);
        if (found.reason != 0) {
            (void)waitpid(c->id, NULL, 0);
        }
    }
    close_if_open(&pipes[3][0]);
    c->to = pipes[0][1];
    c->out.from = pipes[1][0];
    c->errors.from = pipes[2][0];
    if (found.reason != 0) {
        return carry_fail(c->ctx, found.reason == ENOENT ? CARRY_ENOTFOUND : CARRY_EIO, "%s cannot be started%s%s: %s",
                          c->process->arguments[0], found.in_folder ? " in " : "",
                          found.in_folder ? c->process->folder : "", strerror(found.reason));
    }
    (void)fcntl(c->to, F_SETFL, O_NONBLOCK);
    if (c->process->input == NULL || c->process->input_length == 0) {
        close_if_open(&c->to);
    }
    return CARRY_OK;
}

/* Blocks SIGPIPE, since a child that closes its input early must not end this process. Only this thread blocks it,
   because others may be starting programs too; a pending SIGPIPE is consumed before signals are unblocked. */
static void hold_pipe_signal(sigset_t *before) {
    sigset_t pipe_signal;
    (void)sigemptyset(&pipe_signal);
    (void)sigaddset(&pipe_signal, SIGPIPE);
    (void)pthread_sigmask(SIG_BLOCK, &pipe_signal, before);
}

static void release_pipe_signal(const sigset_t *before) {
    sigset_t pipe_signal;
    (void)sigemptyset(&pipe_signal);
    (void)sigaddset(&pipe_signal, SIGPIPE);
    while (sigismember(before, SIGPIPE) == 0 && sigtimedwait(&pipe_signal, NULL, &(struct timespec){0}) == SIGPIPE) {
    }
    (void)pthread_sigmask(SIG_SETMASK, before, NULL);
}

carry_status carry_process_run(carry_ctx *ctx, carry_process_result *result, const carry_process *process) {
    size_t limit = process->limit > 0 ? process->limit : KEPT_BYTES;
    child c = {
        .ctx = ctx, .process = process, .id = -1, .to = -1, .patience = 1, .out = {.from = -1}, .errors = {.from = -1}};
    *result = (carry_process_result){.code = 127};
    c.out.limit = c.errors.limit = limit;
    c.out.text = malloc(limit + 1);
    c.errors.text = malloc(limit + 1);
    carry_status status =
        c.out.text != NULL && c.errors.text != NULL
            ? CARRY_OK
            : carry_fail(ctx, CARRY_EMEMORY, "out of memory: the output of %s", process->arguments[0]);
    sigset_t before;
    hold_pipe_signal(&before);
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
    release_pipe_signal(&before);
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
