/* The ranks that a verb runs on: this process alone; its threads (carry --ranks N); or the processes, including this
   one, that mpirun, srun or carry --processes N started, which are detected from environment variables. */
#ifndef CARRY_CLI_RANKS_H
#define CARRY_CLI_RANKS_H

#include "cli/cli.h"

typedef enum cli_ranks_kind { CLI_RANKS_ALONE, CLI_RANKS_THREADS, CLI_RANKS_MPI } cli_ranks_kind;

/* A launcher's variables in the environment. Values that no launcher writes are ignored. */
typedef struct cli_launch {
    const char *launcher; /* "mpirun", "srun", ...; NULL: no launcher */
    int rank, size;       /* rank of this process, and number of processes; size 0: unknown, possibly more than one */
    int here;             /* processes on this machine, or 0 */
    bool meets;           /* they are of kind "processes", without MPI */
} cli_launch;

cli_launch cli_launch_find(void);

/* Call it once, before anything is printed: from then on, ranks above 0 of a launcher print nothing on standard
   output. Returns false after printing a message if the variables of carry --processes do not describe a rank. */
bool cli_ranks_start(int count, char **arguments);

cli_ranks_kind cli_ranks_kind_of(void);
int cli_ranks(void);           /* 1 for a single rank, 0 if the launcher does not state it */
int cli_ranks_asked(void);     /* value of --ranks; 0: not given */
int cli_process_rank(void);    /* -1 unless the ranks are processes */
void cli_set_ranks(int ranks); /* sets the value of --ranks */

/* Starts this program again as `processes` processes, with these arguments and a folder through which they connect,
   and waits for them. Returns the worst of their exit codes. */
int cli_processes_run(int processes, char **arguments);
/* Checks --processes in a process that is itself a rank: accepted if carry --processes started it with the same number,
   refused otherwise. */
int cli_processes_check(int processes);

/* Number of threads for a rank's context; 0: all cores. Without --threads, a rank gets its share of the machine's
   cores. With --threads N, a process gets N threads; ranks that are threads share the N. */
int cli_threads_of_rank(const cli_common *common, int rank);

/* Checks that this verb runs on these ranks in this build. Returns CLI_DONE, or CLI_IMPOSSIBLE after printing a
   message. */
int cli_ranks_check(const cli_verb *verb);
/* "WHAT does not run on ranks: bench does". */
int cli_refuse_ranks(const char *what);

/* With several ranks, refuses problems of more ranks than there are (bench/collective.h) and, unless `each` is true,
   problems of one rank. With one rank, refuses nothing: threads are started for problems that need more. Text that is
   not a problem is refused later, when it is opened. Returns CLI_DONE, or CLI_IMPOSSIBLE after printing a message. */
int cli_ranks_problems(const char *verb, int count, char *const *problems, bool each);

/* Runs `work` in every rank, with a communicator that has the rank's own context; only rank 0 prints results. Prints
   errors before it returns: if the ranks are processes, each prints one message with its rank; if they are threads,
   only the first error is printed. */
carry_status cli_on_ranks(const cli_common *common, carry_comm_function work, void *user);

/* Call it last in main. A launcher kills all processes when one has failed, so failed ranks above 0 wait 0.3 seconds in
   which rank 0 prints the reason. */
int cli_ranks_leave(int code);

#endif
