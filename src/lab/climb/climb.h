/* The hill-climb: an idea, a change, a gate, a log.

   A climb lives in a git repository. `start` measures HEAD and fixes it as the baseline; `try` judges the changes in
   the working tree; `loop` lets a command make changes in a worktree of its own and judges those. The log (climb_log.h)
   says what was tried and what came of it, the run store has the samples, the change itself and the output of failed
   tests.

   The gate. The change is taken down as a git tree first: this is what is judged, and nothing that is edited later gets
   in. The build must succeed, the tests must pass, and the profile command must be faster than the best so far: by
   more than the threshold, with a 95 % interval (sample.h) that leaves 1 out. With a build command the best commit is
   built in a worktree and the two take turns, run by run; without one the samples in the log are compared with, and
   since a machine drifts, 3 % is then allowed for that.

   What is kept becomes two commits: the change, and the log with the entry that names it. Both are made beside the
   branch, noted as refs/climb/pending, and the branch moves to the second in one step: a climb that is killed leaves
   the branch before or after, never between, and what remains to be done after (the log's file, the index) is done by
   the next climb. The hooks of git commit are not asked: the gate is. What is refused is left as it is. */
#ifndef CARRY_LAB_CLIMB_H
#define CARRY_LAB_CLIMB_H

#include "lab/climb/climb_log.h"

typedef struct carry_climb carry_climb;

typedef struct carry_climb_options {
    const char *log;    /* NULL: climb.md at the repository's root */
    bool writes;        /* start, try, loop: one at a time, and what an interrupted one left is finished */
    double seconds;     /* for each build, test or profile run; 0: 3600 */
    bool (*stop)(void); /* NULL: never */
    void (*tell)(void *user, const char *line); /* progress messages; NULL: none */
    void *user;
} carry_climb_options;

/* CARRY_ENOTFOUND: not in a git repository. CARRY_EFORMAT: the log was edited. A log that does not exist is no failure.
 */
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

/* NULL and 0 where the log's head, or nothing, decides. */
typedef struct carry_climb_attempt {
    const char *hypothesis, *title, *next;
    const char *tests, *profile, *build;
    double threshold; /* percent */
    int64_t repeats;
    bool trust_baseline; /* do not measure the best again */
    const char *tree;    /* the tree to judge, any other is refused; NULL: the current one */
    const char *job;     /* the name of the job in the entry; NULL: none, or Slurm's from the environment */
    const char *command; /* as typed */
} carry_climb_attempt;

typedef struct carry_climb_outcome {
    int entry; /* its number */
    bool kept;
    char *output; /* the end of the output of the tests or the build if they failed; else NULL. The caller frees */
} carry_climb_outcome;

/* Judges the working tree. CARRY_OK if an entry was written, kept or refused. */
carry_status carry_climb_try(carry_climb *climb, const carry_climb_attempt *attempt, carry_climb_outcome *outcome);

/* From now on builds, tests and profiles of start and try are run on "ssh:HOST" (lab/remote.h), in copies of the trees;
   git, the log and the store stay here. What one try compares is then measured on one machine; a baseline that was
   measured here is comparable only with --build, which measures the best again. */
carry_status carry_climb_on(carry_climb *climb, const char *on);

/* `iterations` times: a worktree, `propose` run in it by sh -c with CARRY_CLIMB_ITERATION, CARRY_CLIMB_LOG and
   CARRY_CLIMB_BEST set, and the gate. A line "title: ...", "hypothesis: ..." or "next: ..." of what it prints goes into
   the entry. judged is called with every outcome. */
typedef struct carry_climb_loop_options {
    const char *propose;
    int64_t iterations;
    void (*judged)(void *user, const carry_climb_outcome *outcome);
    void *user;
} carry_climb_loop_options;

carry_status carry_climb_loop(carry_climb *climb, const carry_climb_attempt *attempt,
                              const carry_climb_loop_options *options);

/* The log, the commits it names, and that what was committed of it is still its beginning. CARRY_ERANGE with the first
   thing that is wrong. */
carry_status carry_climb_lint(carry_climb *climb);

/* An SVG by gnuplot: kept entries joined, refused ones as crosses. CARRY_ENOTFOUND without gnuplot. */
carry_status carry_climb_plot(carry_climb *climb, const char *path);

/* The same attempt as a job (jobs.h); wait: until it has ended. log is the file that has its output. */
typedef struct carry_climb_job {
    int64_t id;
    char external[64], log[1024], state[16];
    int code;
    int entry; /* that it wrote; -1: none, or not yet */
} carry_climb_job;

carry_status carry_climb_submit(carry_climb *climb, carry_climb_job *job, const carry_climb_attempt *attempt,
                                const char *on, bool wait);

#endif
