/* Ctrl-C, SIGTERM and SIGHUP. The first signal asks the work to stop, and work that checks for it ends cleanly. If the
   work does not end, for example inside one long measurement or while it reads from a pipe, a thread that waits for the
   signal ends the process. */
#include <errno.h>
#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "cli/ranks.h"
#include "core/clock.h"

#define CALM 0.01  /* seconds of processor time: below this, the process is waiting, not working */
#define ENOUGH 0.5 /* above this, it had time to check. In between, the machine may be too busy */
#define MOST 10.0  /* seconds after which the process ends in any case */

static volatile sig_atomic_t interrupted;
/* Tenths of a second after which the process ends; 0: it is not ended. */
static volatile sig_atomic_t limit_tenths = 12;
static sem_t asked;

static void on_interrupt(int signal_number) {
    const int before = errno;
    if (interrupted && signal_number != SIGHUP) { /* a terminal that closes sends SIGHUP twice */
        _exit(128 + signal_number);
    }
    interrupted = 1;
    (void)sem_post(&asked);
    errno = before;
}

static double processor_seconds(void) {
    struct timespec spent;
    (void)clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &spent);
    return (double)spent.tv_sec + 1e-9 * (double)spent.tv_nsec;
}

static bool is_late(double since, double worked) {
    const double limit = 0.1 * limit_tenths, waited = carry_seconds() - since;
    const double work = processor_seconds() - worked;
    return limit > 0.0 && waited > limit && (work < CALM || work > ENOUGH || waited > limit + MOST);
}

/* Flushes the output, unless another thread is printing. */
static void end_process(void) {
    static const char line[] = "carry: interrupted\n";
    if (ftrylockfile(stdout) == 0) {
        (void)fflush(stdout);
        funlockfile(stdout);
    }
    if (cli_process_rank() <= 0 && write(STDERR_FILENO, line, sizeof line - 1) < 0) {
        _exit(CLI_IMPOSSIBLE);
    }
    _exit(CLI_IMPOSSIBLE);
}

static void *watch(void *unused) {
    (void)unused;
    while (sem_wait(&asked) != 0) {
    }
    const double since = carry_seconds(), worked = processor_seconds();
    while (!is_late(since, worked)) {
        (void)nanosleep(&(struct timespec){.tv_nsec = 50000000}, NULL);
    }
    end_process();
    return NULL;
}

static void start_watching(void) {
    static bool is_watching;
    pthread_t thread;
    sigset_t all, before;
    if (is_watching || sem_init(&asked, 0, 0) != 0) {
        return;
    }
    is_watching = true;
    (void)sigfillset(&all);
    (void)pthread_sigmask(SIG_BLOCK, &all, &before); /* other threads handle signals */
    if (pthread_create(&thread, NULL, watch, NULL) == 0) {
        (void)pthread_detach(thread);
    }
    (void)pthread_sigmask(SIG_SETMASK, &before, NULL);
}

void cli_catch_interrupt(void) {
    start_watching();
    /* A line that is being printed is finished. */
    struct sigaction action = {.sa_handler = on_interrupt, .sa_flags = SA_RESTART};
    (void)sigemptyset(&action.sa_mask);
    (void)sigaction(SIGINT, &action, NULL);
    (void)sigaction(SIGTERM, &action, NULL);
    struct sigaction before;
    if (sigaction(SIGHUP, NULL, &before) == 0 && before.sa_handler != SIG_IGN) { /* nohup ignores SIGHUP */
        (void)sigaction(SIGHUP, &action, NULL);
    }
    /* A file at its size limit (ulimit -f) is then a failed write with an error message. */
    (void)signal(SIGXFSZ, SIG_IGN);
}

void cli_limit_interrupt(double seconds) {
    limit_tenths = (int)(10.0 * seconds + 0.5);
}

bool cli_interrupted(void) {
    return interrupted != 0;
}

bool cli_interrupted_in_training(void) {
    limit_tenths = 0;
    return interrupted != 0;
}
