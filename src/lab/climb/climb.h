/* The hill-climb: an idea, a change, a gate, a log.

   A climb takes place in a git repository. `start` measures HEAD and fixes it as the baseline; `try` judges the
   changes in the working tree; `loop` runs a command that makes changes in a separate worktree and judges those. The
   log (climb_log.h) lists the attempts and their results. The run store has the samples, the change itself and the
   output of failed tests.

   The gate first stores the change as a git tree and judges that tree, so later edits have no effect. The build must
   succeed, the tests must pass, and the profile command must be faster than the best so far: by more than the
   threshold, with a 95 % interval (bench/sample.h) that excludes 1. With a build command, the best commit is built in a
   worktree and the two are run in turns. Without one, or with --trust-baseline, the change is compared with the samples
   of the best in the log, and 3 % is allowed for drift of the machine.

   A change that is kept becomes two commits: the change, and the log with the entry that names it. Both are made
   without moving the branch and recorded as refs/climb/pending; then the branch moves to the second in one step. A
   killed climb therefore leaves the branch before or after both commits, never between them, and the next climb
   completes the rest (the log's file and the index). The hooks of git commit are not run, since the gate has judged
   the change. A refused change is left as it is. */
#ifndef CARRY_LAB_CLIMB_H
#define CARRY_LAB_CLIMB_H

#include "lab/climb/climb_log.h"

typedef struct carry_climb carry_climb;

typedef struct carry_climb_options {
    const char *log;    /* NULL: climb.md at the repository's root */
    bool writes;        /* start, try, loop: only one at a time; finishes the work of an interrupted one */
    double seconds;     /* for each build, test or profile run; 0: 3600 */
    bool (*stop)(void); /* NULL: never */
    void (*tell)(void *user, const char *line); /* progress messages; NULL: none */
    void *user;
} carry_climb_options;

/* CARRY_ENOTFOUND: not in a git repository. CARRY_EFORMAT: the log was edited. A log that does not exist is not an
   error. */
carry_status carry_climb_open(carry_ctx *ctx, carry_climb **climb, const carry_climb_options *options);
void carry_climb_close(carry_climb *climb);
/* CARRY_ENOTFOUND with an error message if the log does not exist yet. */
carry_status carry_climb_log_of(carry_climb *climb, const carry_climb_log **log);
const char *carry_climb_path(const carry_climb *climb); /* of the log */

typedef struct carry_climb_start_options {
    const char *profile, *tests, *build; /* tests and build may be NULL */
    int64_t repeats;                     /* 0: 5 */
    double threshold;                    /* percent; 0: 1 */
    const char *command;                 /* as typed */
} carry_climb_start_options;

carry_status carry_climb_start(carry_climb *climb, const carry_climb_start_options *options);

/* Fields that are NULL or 0 use the value in the log's head, if it has one. */
typedef struct carry_climb_attempt {
    const char *hypothesis, *title, *next;
    const char *tests, *profile, *build;
    double threshold; /* percent */
    int64_t repeats;
    bool trust_baseline; /* do not measure the best again */
    const char *tree;    /* the tree to judge: any other is refused; NULL: the current one */
    const char *job;     /* the job's name in the entry; NULL: Slurm's from the environment, if any */
    const char *command; /* as typed */
} carry_climb_attempt;

typedef struct carry_climb_outcome {
    int entry; /* number of the entry */
    bool kept;
    char *output; /* the end of the output if the tests or the build failed, else NULL; the caller frees it */
} carry_climb_outcome;

/* Judges the working tree. Returns CARRY_OK if an entry was written, whether the change was kept or refused. */
carry_status carry_climb_try(carry_climb *climb, const carry_climb_attempt *attempt, carry_climb_outcome *outcome);

/* From now on, start and try run builds, tests and profiles on "ssh:HOST" (lab/remote.h), in copies of the trees;
   git, the log and the store stay on this machine. All figures compared in one try then come from one machine. A
   baseline that was measured on this machine is comparable only with --build, which measures the best again. */
carry_status carry_climb_on(carry_climb *climb, const char *on);

/* Repeats `iterations` times: makes a worktree, runs `propose` in it by sh -c with CARRY_CLIMB_ITERATION,
   CARRY_CLIMB_LOG and CARRY_CLIMB_BEST set, and judges the change. Output lines "title: ...", "hypothesis: ..." and
   "next: ..." go into the entry. `judged` is called with every outcome. */
typedef struct carry_climb_loop_options {
    const char *propose;
    int64_t iterations;
    void (*judged)(void *user, const carry_climb_outcome *outcome);
    void *user;
} carry_climb_loop_options;

carry_status carry_climb_loop(carry_climb *climb, const carry_climb_attempt *attempt,
                              const carry_climb_loop_options *options);

/* Checks the log, that the commits named in it exist, and that it begins with the committed version of the log.
   CARRY_ERANGE with the first error. */
carry_status carry_climb_lint(carry_climb *climb);

/* Draws an SVG with gnuplot: kept entries as a line, refused ones as crosses. CARRY_ENOTFOUND without gnuplot. */
carry_status carry_climb_plot(carry_climb *climb, const char *path);

/* Submits `carry climb try` with this attempt as a job (lab/jobs/jobs.h). wait: return when it has ended. log: the file
   with its output. */
typedef struct carry_climb_job {
    int64_t id;
    char external[64], log[1024], state[16];
    int code;
    int entry; /* number of the entry that it wrote; -1: none yet */
} carry_climb_job;

carry_status carry_climb_submit(carry_climb *climb, carry_climb_job *job, const carry_climb_attempt *attempt,
                                const char *on, bool wait);

#endif
