/* carry --processes N: this program again, N times, as ranks that meet in a folder of their own. */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "cli/ranks.h"
#include "comm/ranks.h"

/* In the new process; does not come back. */
static void become(int rank, int size, const char *folder, char **arguments) {
    char number[16], count[16];
    (void)snprintf(number, sizeof number, "%d", rank);
    (void)snprintf(count, sizeof count, "%d", size);
    (void)prctl(PR_SET_PDEATHSIG, SIGTERM); /* they do not outlive the one that was typed */
    if (setenv("CARRY_RANK", number, 1) == 0 && setenv("CARRY_RANKS", count, 1) == 0 &&
        setenv("CARRY_MEET", folder, 1) == 0) {
        (void)execv("/proc/self/exe", arguments);
    }
    (void)fprintf(stderr, "carry: rank %d cannot be started: %s\n", rank, strerror(errno));
    _exit(CLI_IMPOSSIBLE);
}

static int code_of(int status) {
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

/* One that was ended by a signal says nothing itself. */
static int wait_for(const pid_t *started, int count) {
    int worst = CLI_DONE;
    for (int left = count; left > 0; left--) {
        int status = 0;
        pid_t which = wait(&status);
        if (which < 0 && errno == EINTR) {
            left++;
            continue;
        }
        for (int r = 0; r < count; r++) {
            if (started[r] == which && WIFSIGNALED(status)) {
                (void)fprintf(stderr, "carry: rank %d was ended by signal %d\n", r, WTERMSIG(status));
            }
        }
        worst = code_of(status) > worst ? code_of(status) : worst;
    }
    return worst;
}

int cli_processes_run(int processes, char **arguments) {
    static pid_t started[CARRY_RANKS];
    const char *parent = getenv("TMPDIR");
    char folder[80];
    (void)snprintf(folder, sizeof folder, "%.60s/carry-XXXXXX", parent != NULL && parent[0] != '\0' ? parent : "/tmp");
    if (mkdtemp(folder) == NULL) {
        return cli_refuse("no folder for processes to meet in: '%s': %s", folder, strerror(errno));
    }
    int count = 0, code = CLI_DONE;
    while (count < processes && code == CLI_DONE) {
        const pid_t id = fork();
        if (id == 0) {
            become(count, processes, folder, arguments);
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
    const int worst = wait_for(started, count);
    (void)rmdir(folder);
    return worst > code ? worst : code;
}
