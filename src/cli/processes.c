/* carry --processes N: starts this program N times, as ranks that connect through a temporary folder. */
#include <dirent.h>
#include <errno.h>
#include <signal.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "cli/ranks.h"
#include "comm/ranks.h"
#include "core/clock.h"

#define PARTING 20.0 /* seconds */
#define NAME "carry-ranks-"
#define FOLDER 80 /* bytes of its path */
#define YOUNG 60  /* a folder without a lock is kept for this many seconds */

static pid_t started[CARRY_RANKS];
static volatile sig_atomic_t running;

/* Each rank has its own process group, so every signal reaches it exactly once, from here. A second signal ends the
   ranks at once. SIGCONT wakes ranks that are stopped, so that they receive it. */
static void pass_on(int signal_number) {
    const int before = errno;
    for (int r = 0; r < running; r++) {
        if (started[r] > 0) {
            (void)kill(started[r], signal_number);
            (void)kill(started[r], SIGCONT);
        }
    }
    errno = before;
}

static void pass_signals(void) {
    static const int passed[] = {SIGINT, SIGTERM, SIGHUP};
    struct sigaction action = {.sa_handler = pass_on, .sa_flags = SA_RESTART}, before;
    (void)sigemptyset(&action.sa_mask);
    for (size_t i = 0; i < sizeof passed / sizeof passed[0]; i++) {
        if (sigaction(passed[i], NULL, &before) == 0 && before.sa_handler != SIG_IGN) {
            (void)sigaction(passed[i], &action, NULL);
        }
    }
    (void)signal(SIGCHLD, SIG_DFL); /* if it is ignored, as some callers leave it, wait returns no exit codes */
}

/* Runs in the new process; does not return. */
static void become(int rank, int size, const char *folder, char **arguments, pid_t parent, const sigset_t *mask) {
    char number[16], count[16];
    (void)snprintf(number, sizeof number, "%d", rank);
    (void)snprintf(count, sizeof count, "%d", size);
    (void)setpgid(0, 0);
    (void)prctl(PR_SET_PDEATHSIG, SIGKILL); /* ranks do not outlive this process, even when stopped */
    (void)sigprocmask(SIG_SETMASK, mask, NULL);
    const int nothing = rank > 0 ? open("/dev/null", O_RDONLY | O_CLOEXEC) : -1;
    if (nothing >= 0) {
        (void)dup2(nothing, STDIN_FILENO);
    }
    if (getppid() == parent && setenv("CARRY_RANK", number, 1) == 0 && setenv("CARRY_RANKS", count, 1) == 0 &&
        setenv("CARRY_MEET", folder, 1) == 0) {
        (void)execv("/proc/self/exe", arguments);
    }
    (void)fprintf(stderr, "carry: rank %d cannot be started: %s\n", rank, strerror(errno));
    _exit(CLI_IMPOSSIBLE);
}

static int code_of(int status) {
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

/* Seconds that ranks have after one has failed: their own deadline, after which they end themselves, plus PARTING. */
static double patience_of(char **arguments) {
    double deadline = CARRY_COMM_DEADLINE;
    for (int i = 1; arguments[i] != NULL; i++) {
        const bool apart = strcmp(arguments[i], "--deadline") == 0 && arguments[i + 1] != NULL;
        if (apart || strncmp(arguments[i], "--deadline=", 11) == 0) {
            deadline = strtod(apart ? arguments[i + 1] : arguments[i] + 11, NULL);
        }
    }
    return (deadline > 0.0 ? deadline : 0.0) + PARTING;
}

/* True if every remaining rank is stopped: none of them will end by itself. */
static bool all_stopped(int count) {
    for (int r = 0; r < count; r++) {
        siginfo_t about = {0};
        if (started[r] > 0 &&
            (waitid(P_PID, (id_t)started[r], &about, WSTOPPED | WNOHANG | WNOWAIT) != 0 || about.si_pid == 0)) {
            return false;
        }
    }
    return true;
}

/* As wait. With until > 0, returns 0 when the time is up or when only stopped ranks remain. */
static pid_t wait_until(int *status, int count, double until) {
    pid_t which;
    while ((which = waitpid(-1, status, until > 0.0 ? WNOHANG : 0)) == 0 && carry_seconds() < until &&
           !all_stopped(count)) {
        (void)nanosleep(&(struct timespec){.tv_nsec = 10000000}, NULL);
    }
    return which;
}

static void kill_rest(int count) {
    for (int r = 0; r < count; r++) {
        if (started[r] > 0) {
            (void)fprintf(stderr, "carry: rank %d does not end after another has failed (is it stopped?): killed\n", r);
            (void)kill(started[r], SIGKILL);
        }
    }
}

/* Waits for all ranks and returns the worst exit code. Ranks that do not end within `patience` seconds after the first
   failure are killed. Reports ranks ended by a signal, since those print no message themselves. */
static int wait_for(int count, double patience) {
    int worst = CLI_DONE;
    double until = 0.0;
    for (int left = count; left > 0; left--) {
        int status = 0;
        pid_t which = wait_until(&status, count, until);
        if (which == 0 || (which < 0 && errno == EINTR)) {
            if (which == 0) {
                kill_rest(count);
                until = 0.0;
            }
            left++;
            continue;
        }
        if (which < 0) {
            return CLI_IMPOSSIBLE;
        }
        if (worst == CLI_DONE && code_of(status) != CLI_DONE) {
            until = carry_seconds() + patience;
        }
        for (int r = 0; r < count; r++) {
            if (started[r] == which && WIFSIGNALED(status)) {
                (void)fprintf(stderr, "carry: rank %d was ended by signal %d\n", r, WTERMSIG(status));
            }
            started[r] = started[r] == which ? 0 : started[r]; /* its process id may be reused soon */
        }
        worst = code_of(status) > worst ? code_of(status) : worst;
    }
    return worst;
}

/* Removes the folder with the sockets of ranks that were killed, and no other files. */
static void remove_folder(const char *folder) {
    DIR *open = opendir(folder);
    struct stat about;
    for (const struct dirent *entry; open != NULL && (entry = readdir(open)) != NULL;) {
        if (fstatat(dirfd(open), entry->d_name, &about, AT_SYMLINK_NOFOLLOW) == 0 && S_ISSOCK(about.st_mode)) {
            (void)unlinkat(dirfd(open), entry->d_name, 0);
        }
    }
    if (open != NULL) {
        (void)closedir(open);
    }
    (void)rmdir(folder);
}

/* Removes folders of runs that were killed with SIGKILL. A run holds a lock on its folder until it ends in any way.
   A new folder is not locked yet, so folders younger than YOUNG are kept. */
static void remove_stale(const char *parent) {
    DIR *open = opendir(parent);
    for (const struct dirent *entry; open != NULL && (entry = readdir(open)) != NULL;) {
        char folder[FOLDER];
        struct stat about;
        if (strncmp(entry->d_name, NAME, strlen(NAME)) != 0 ||
            (size_t)snprintf(folder, sizeof folder, "%s/%s", parent, entry->d_name) >= sizeof folder) {
            continue;
        }
        const int file = openat(dirfd(open), entry->d_name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
        if (file >= 0 && fstat(file, &about) == 0 && about.st_uid == geteuid() && time(NULL) - about.st_mtime > YOUNG &&
            flock(file, LOCK_EX | LOCK_NB) == 0) {
            remove_folder(folder);
        }
        if (file >= 0) {
            (void)close(file);
        }
    }
    if (open != NULL) {
        (void)closedir(open);
    }
}

/* Makes the folder through which the ranks connect, locked by this process. Returns its descriptor, or -1. */
static int make_folder(char folder[FOLDER], const char *parent) {
    remove_stale(parent);
    if ((size_t)snprintf(folder, FOLDER, "%s/" NAME "XXXXXX", parent) >= FOLDER || mkdtemp(folder) == NULL) {
        return -1;
    }
    const int file = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (file >= 0) {
        (void)flock(file, LOCK_EX | LOCK_NB);
    }
    return file;
}

int cli_processes_run(int processes, char **arguments) {
    const pid_t self = getpid();
    sigset_t all, mask;
    const char *parent = getenv("TMPDIR");
    char folder[FOLDER];
    parent = parent != NULL && parent[0] != '\0' ? parent : "/tmp";
    if (strlen(parent) + sizeof "/" NAME "XXXXXX" > FOLDER) {
        return cli_refuse("TMPDIR has %zu characters: at most %zu fit into the name of a socket", strlen(parent),
                          FOLDER - sizeof "/" NAME "XXXXXX");
    }
    pass_signals();
    const int lock = make_folder(folder, parent);
    if (lock < 0) {
        return cli_refuse("no folder for processes to meet in: '%s': %s", folder, strerror(errno));
    }
    int count = 0, code = CLI_DONE;
    (void)sigfillset(&all);
    (void)sigprocmask(SIG_BLOCK, &all, &mask);
    while (count < processes && code == CLI_DONE) {
        const pid_t id = fork();
        if (id == 0) {
            become(count, processes, folder, arguments, self, &mask);
        }
        if (id < 0) {
            code = cli_refuse("rank %d of %d cannot be started: %s", count, processes, strerror(errno));
        } else {
            started[count++] = id;
        }
    }
    for (int r = 0; r < count && code != CLI_DONE; r++) {
        (void)kill(started[r], SIGTERM);
    }
    running = count;
    (void)sigprocmask(SIG_SETMASK, &mask, NULL);
    const int worst = wait_for(count, patience_of(arguments));
    remove_folder(folder);
    (void)close(lock);
    return worst > code ? worst : code;
}
