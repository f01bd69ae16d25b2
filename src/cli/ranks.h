/* The ranks that a verb runs on, detected without an option: this process alone, its threads (carry --ranks N), or
   the processes that mpirun, srun or carry --processes N started, of which this is one. */
#ifndef CARRY_CLI_RANKS_H
#define CARRY_CLI_RANKS_H

#include "cli/cli.h"

typedef enum cli_ranks_kind { CLI_RANKS_ALONE, CLI_RANKS_THREADS, CLI_RANKS_MPI } cli_ranks_kind;

/* The variables of a launcher in the environment. Values that no launcher writes are ignored. */
typedef struct cli_launch {
    const char *launcher; /* "mpirun", "srun", ...; NULL: no launcher */
    int rank, size;       /* of this process and of all; size 0: more are possible, the launcher does not say */
    int here;             /* processes on this machine, or 0 */
    bool meets;           /* they are kind "processes": no MPI */
} cli_launch;

cli_launch cli_launch_find(void);

/* Once, before anything is printed: ranks above 0 of a launcher print nothing on standard output from now on. False
   after a message: the variables of carry --processes are set, and do not describe a rank. */
bool cli_ranks_start(int count, char **arguments);

cli_ranks_kind cli_ranks_kind_of(void);
int cli_ranks(void);           /* 1 when alone, 0 when the launcher does not say */
int cli_ranks_asked(void);     /* --ranks; 0: not typed */
int cli_process_rank(void);    /* -1 unless the ranks are processes */
void cli_set_ranks(int ranks); /* --ranks N */

/* Starts this program again as `processes` processes, with these arguments and a folder to meet in, and waits for them.
   Returns the worst of their exit codes. */
int cli_processes_run(int processes, char **arguments);
/* --processes in a process that is a rank: right where it is one of those, refused where another launcher made it. */
int cli_processes_check(int processes);

/* Threads for a rank's context: its share of the machine, or of --threads where the ranks are threads. 0: all. */
int cli_threads_of_rank(const cli_common *common, int rank);

/* CLI_DONE, or after an error message CLI_IMPOSSIBLE: this verb, on these ranks, in this build. */
int cli_ranks_check(const cli_verb *verb);
/* "WHAT does not run on ranks: bench does". */
int cli_refuse_ranks(const char *what);

/* CLI_DONE, or after an error message CLI_IMPOSSIBLE: problems of more ranks than there are (lab/collective.h), and
   unless each rank may have one for itself, problems of one on several. What is not a problem is refused where it is
   opened.
 */
int cli_ranks_problems(const char *verb, int count, char *const *problems, bool each);

/* Runs work in every rank, with a communicator whose context is the rank's; only rank 0 prints results. What goes wrong
   has been said on return: by each process one error message with its rank, of threads the first one's. */
carry_status cli_on_ranks(const cli_common *common, carry_comm_function work, void *user);

/* The last thing of main. A launcher ends all processes when one has failed: those above 0 give rank 0 the time to say
   why. */
int cli_ranks_leave(int code);

#endif
