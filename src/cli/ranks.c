/* Detects the ranks and runs work on them.

   Open MPI's mpirun, MPICH's and Intel's mpiexec (PMI), PMIx, and Slurm's srun each have their own variables for
   "rank r of n". Slurm's variables count only within a step: Slurm also sets the number of tasks in a batch script,
   outside any step. */
#include "cli/ranks.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "comm/ranks.h"
#include "core/error.h"
#include "core/threads.h"
#include "bench/collective.h"

#define PARTING 0.3 /* seconds */

static const struct {
    const char *launcher, *rank, *size, *here;
    const char *needs; /* another variable that must be set, or NULL */
} launchers[] = {
    {"carry --processes", "CARRY_RANK", "CARRY_RANKS", "CARRY_RANKS", "CARRY_MEET"},
    {"mpirun", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE", NULL},
    {"srun", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_STEP_TASKS_PER_NODE", NULL},
    {"srun", "SLURM_PROCID", "SLURM_NTASKS", "SLURM_TASKS_PER_NODE", "SLURM_STEP_ID"},
    {"mpirun", "PMI_RANK", "PMI_SIZE", "MPI_LOCALNRANKS", NULL},
    {"a PMIx launcher", "PMIX_RANK", NULL, NULL, "PMIX_NAMESPACE"},
};

/* Set by main before the verb runs, and constant afterwards. */
static cli_launch launch = {.size = 1};
static int asked; /* value of --ranks, or 0 */
static char agreement[CARRY_MAX_AGREEMENT_BYTES];

/* The number in an environment variable, or -1 if it is not set or not a number from `least` to INT_MAX. With
   may_go_on, text after the first number is allowed, as in 2(x3),1, which lists several machines. */
static int number(const char *name, int least, bool may_go_on) {
    const char *text = name != NULL ? getenv(name) : NULL;
    if (text == NULL || text[0] < '0' || text[0] > '9') {
        return -1;
    }
    char *end;
    const long value = strtol(text, &end, 10);
    return (*end == '\0' || may_go_on) && value >= least && value <= INT_MAX ? (int)value : -1;
}

cli_launch cli_launch_find(void) {
    for (size_t i = 0; i < sizeof launchers / sizeof launchers[0]; i++) {
        const int rank = number(launchers[i].rank, 0, false);
        const int size = launchers[i].size != NULL ? number(launchers[i].size, 1, false) : 0;
        const int here = number(launchers[i].here, 1, true);
        const bool has_rest = launchers[i].needs == NULL || getenv(launchers[i].needs) != NULL;
        if (has_rest && rank >= 0 && size >= 0 && (size == 0 || rank < size)) {
            return (cli_launch){
                .launcher = launchers[i].launcher, .rank = rank, .size = size, .here = here, .meets = i == 0};
        }
    }
    return (cli_launch){.size = 1};
}

/* Sets the text on which the processes of one run must agree: the start of the command, and a hash of the whole
   command (FNV-1a). */
static void set_agreement(int count, char **arguments) {
    uint32_t sum = 2166136261u;
    size_t used = 0;
    for (int i = 1; i < count; i++) {
        for (const char *at = arguments[i]; *at != '\0'; at++) {
            sum = (sum ^ (unsigned char)*at) * 16777619u;
        }
        sum *= 16777619u; /* separates the arguments */
        if (used < 64) {
            char shown[64];
            used += (size_t)snprintf(agreement + used, sizeof agreement - used, "%s ", cli_shown(shown, arguments[i]));
        }
    }
    (void)snprintf(agreement + used, sizeof agreement - used, "#%08x", sum);
}

/* True if CARRY_MEET is set but CARRY_RANK and CARRY_RANKS do not describe a rank. This is refused and not ignored:
   the other ranks would wait for this process in vain if it ran alone. Invalid variables of other launchers are
   ignored, since they may be left over from a batch script. */
static bool is_misplaced(void) {
    return getenv("CARRY_MEET") != NULL && !launch.meets;
}

bool cli_ranks_start(int count, char **arguments) {
    launch = cli_launch_find();
    if (is_misplaced()) {
        const char *rank = getenv("CARRY_RANK"), *ranks = getenv("CARRY_RANKS");
        char shown[64], shown_ranks[64];
        (void)cli_refuse("CARRY_MEET is set, CARRY_RANK is '%s' and CARRY_RANKS is '%s': expected a rank from 0 to the "
                         "number of ranks less 1, as carry --processes N sets them",
                         cli_shown(shown, rank != NULL ? rank : ""),
                         cli_shown(shown_ranks, ranks != NULL ? ranks : ""));
        return false;
    }
    set_agreement(count, arguments);
    if (cli_process_rank() > 0 && freopen("/dev/null", "w", stdout) == NULL) {
        (void)fclose(stdout);
    }
    return true;
}

cli_ranks_kind cli_ranks_kind_of(void) {
    return launch.size != 1 ? CLI_RANKS_MPI : asked > 1 ? CLI_RANKS_THREADS : CLI_RANKS_ALONE;
}

int cli_ranks(void) {
    return launch.size != 1 ? launch.size : asked > 1 ? asked : 1;
}

int cli_ranks_asked(void) {
    return asked;
}

int cli_process_rank(void) {
    return launch.size != 1 ? launch.rank : -1;
}

void cli_set_ranks(int ranks) {
    asked = ranks;
}

int cli_threads_of_rank(const cli_common *common, int rank) {
    const cli_ranks_kind kind = cli_ranks_kind_of();
    if (kind == CLI_RANKS_ALONE || (kind == CLI_RANKS_MPI && common->threads > 0)) {
        return (int)common->threads;
    }
    if (kind == CLI_RANKS_MPI) {
        /* A launcher binds a process to its cores, or leaves all cores to all processes. */
        const int here = launch.here > 0 ? launch.here : launch.size > 0 ? launch.size : 1;
        const int share = (int)sysconf(_SC_NPROCESSORS_ONLN) / here;
        return share < 1 ? 1 : share < carry_cores() ? share : carry_cores();
    }
    const int all = common->threads > 0 ? (int)common->threads : carry_cores();
    const int share = all / asked + (rank < all % asked ? 1 : 0);
    return share > 0 ? share : 1;
}

static bool has_mpi(void) {
    const char *name = NULL;
    for (int i = 0; (name = carry_comm_kind_name(i)) != NULL; i++) {
        if (strcmp(name, "mpi") == 0) {
            return true;
        }
    }
    return false;
}

int cli_refuse_ranks(const char *what) {
    char names[128] = "";
    int count = 0;
    size_t used = 0;
    for (int i = 0; cli_verbs[i] != NULL && used < sizeof names; i++) {
        if (cli_verbs[i]->on_ranks && strcmp(cli_verbs[i]->name, "profile") != 0) {
            used += (size_t)snprintf(names + used, sizeof names - used, "%s%s", count++ > 0 ? ", " : "",
                                     cli_verbs[i]->name);
        }
    }
    if (launch.size != 1) {
        return cli_refuse("%s does not run on ranks, and %s started several processes: %s %s", what, launch.launcher,
                          names, count == 1 ? "does" : "do");
    }
    return cli_refuse("%s does not run on ranks: %s %s", what, names, count == 1 ? "does" : "do");
}

int cli_processes_check(int processes) {
    if (launch.meets && launch.size == processes) {
        return CLI_DONE;
    }
    return cli_refuse("--processes %d, but %s has started this process as a rank already: leave --processes out, or "
                      "start carry without %s",
                      processes, launch.launcher, launch.launcher);
}

int cli_ranks_check(const cli_verb *verb) {
    const cli_ranks_kind kind = cli_ranks_kind_of();
    if (kind != CLI_RANKS_ALONE && !verb->on_ranks) {
        return cli_refuse_ranks(verb->name);
    }
    if (launch.launcher != NULL && launch.size > 0 && asked > 0 && asked != launch.size) {
        return cli_refuse("--ranks %d, but %s started %d: leave --ranks out, or start carry without %s", asked,
                          launch.launcher, launch.size, launch.launcher);
    }
    if (kind == CLI_RANKS_MPI && !launch.meets && !has_mpi()) {
        char of[32] = "several";
        if (launch.size > 0) {
            (void)snprintf(of, sizeof of, "%d", launch.size);
        }
        return cli_refuse("carry was started by %s as one of %s processes, but this build has no MPI: install MPI and "
                          "build again, or let carry have threads (--ranks N) or processes (--processes N) for ranks",
                          launch.launcher, of);
    }
    return CLI_DONE;
}

int cli_ranks_problems(const char *verb, int count, char *const *problems, bool each) {
    carry_ctx *ctx;
    const int there = cli_ranks();
    int code = CLI_DONE;
    if (there == 1) { /* a single process: threads are started if ranks are needed */
        return CLI_DONE;
    }
    if (carry_ctx_new(&ctx, &(carry_ctx_options){CARRY_INIT(carry_ctx_options), .threads = 1}) != CARRY_OK) {
        code = cli_refuse("%s", ctx != NULL ? carry_ctx_error(ctx) : "out of memory");
    }
    for (int i = 0; i < count && code == CLI_DONE; i++) {
        carry_problem problem;
        const carry_family *family;
        const bool is_one = carry_problem_parse(ctx, &problem, problems[i]) == CARRY_OK &&
                            carry_family_of(ctx, &family, &problem) == CARRY_OK && family->ranks == NULL;
        const int wanted = carry_collective_ranks(ctx, problems[i]);
        if (wanted > there && there > 0) {
            code = cli_refuse("'%s' is for %d ranks, and there are %d", problem.text, wanted, there);
        } else if (is_one && !each) {
            code = cli_refuse("'%s' is a problem of one rank: carry %s takes it without --ranks or mpirun",
                              problem.text, verb);
        }
    }
    carry_ctx_free(ctx);
    return code;
}

static carry_status on_threads(const cli_common *common, const carry_comm_options *options, carry_comm_function work,
                               void *user) {
    carry_ctx *ctxs[CARRY_RANKS] = {NULL};
    carry_status status = CARRY_OK;
    for (int r = 0; r < asked && status == CARRY_OK; r++) {
        ctxs[r] = cli_open_rank(common, r);
        status = ctxs[r] != NULL ? CARRY_OK : CARRY_EUNSUPPORTED;
    }
    if (status == CARRY_OK) {
        status = carry_comm_threads(ctxs, asked, options, work, user);
        if (status != CARRY_OK) {
            (void)cli_failed(ctxs[0]);
        }
    }
    for (int r = 0; r < asked; r++) {
        carry_ctx_free(ctxs[r]);
    }
    return status;
}

/* Refuses a communicator whose size differs from the launcher's: under the launcher of another MPI, every process is
   alone in its own MPI_COMM_WORLD. */
static carry_status check_size(carry_ctx *ctx, const carry_comm *comm) {
    if (cli_process_rank() < 0 || launch.size == 0 || carry_comm_size(comm) == launch.size) {
        return CARRY_OK;
    }
    return carry_fail(ctx, CARRY_EUNSUPPORTED,
                      "%s says that this is one of %d processes, and MPI that it is one of %d: they are not of the "
                      "same MPI, use the launcher of the one that carry was built with",
                      launch.launcher, launch.size, carry_comm_size(comm));
}

static carry_status on_process(const cli_common *common, const carry_comm_options *options, carry_comm_function work,
                               void *user) {
    carry_ctx *ctx = cli_open_rank(common, cli_process_rank() > 0 ? cli_process_rank() : 0);
    if (ctx == NULL) {
        return CARRY_EUNSUPPORTED;
    }
    carry_comm *comm = NULL;
    const char *kind = cli_process_rank() < 0 ? "self" : launch.meets ? "processes" : "mpi";
    carry_status status = carry_comm_open(ctx, &comm, kind, options);
    if (status == CARRY_OK) {
        status = check_size(ctx, comm);
        status = status == CARRY_OK ? work(user, comm) : status;
        if (status != CARRY_OK) {
            carry_comm_abort(comm, carry_ctx_error(ctx));
        }
    }
    if (status != CARRY_OK) {
        (void)cli_failed(ctx); /* before closing, which waits for the other ranks */
    }
    carry_comm_close(comm);
    carry_ctx_free(ctx);
    return status;
}

carry_status cli_on_ranks(const cli_common *common, carry_comm_function work, void *user) {
    const carry_comm_options options = {
        CARRY_INIT(carry_comm_options),
        .deadline = common->deadline > 0.0 ? common->deadline : CARRY_COMM_DEADLINE,
        .agreement = agreement,
    };
    return cli_ranks_kind_of() == CLI_RANKS_THREADS ? on_threads(common, &options, work, user)
                                                    : on_process(common, &options, work, user);
}

int cli_ranks_leave(int code) {
    if (code != CLI_DONE && cli_process_rank() > 0) {
        const struct timespec pause = {.tv_nsec = (long)(PARTING * 1e9)};
        (void)nanosleep(&pause, NULL);
    }
    return code;
}
