/* Shared by the files of the climb. */
#ifndef CARRY_LAB_CLIMB_INTERNAL_H
#define CARRY_LAB_CLIMB_INTERNAL_H

#include "lab/climb/climb.h"
#include "lab/process.h"
#include "lab/remote.h"
#include "lab/store/store.h"

#define CLIMB_PATH 4096
#define CLIMB_HASH 72 /* size of a commit or tree hash: 40 or 64 hex digits */

struct carry_climb {
    carry_ctx *ctx;
    carry_climb_options options;
    char root[CLIMB_PATH];     /* of the working tree */
    char git[CLIMB_PATH];      /* the repository's .git folder, shared by its worktrees */
    char path[CLIMB_PATH];     /* path of the log, */
    char relative[CLIMB_PATH]; /* the same, relative to the root */
    /* Pathspec that keeps a store inside the tree out of commits; "": it is elsewhere. */
    char store_spec[CLIMB_PATH + 32];
    bool ignores_carry;          /* git ignores .carry */
    char index[CLIMB_PATH + 32]; /* a separate index, so that the user's stays unchanged */
    int lock;
    carry_climb_log *log; /* NULL if it does not exist yet */
    carry_store *store;
    char best_folder[CLIMB_PATH]; /* a built worktree of best_commit; "": not made yet */
    char best_commit[CLIMB_HASH];
    carry_remote *remote;      /* the machine that runs commands; NULL: this one */
    bool is_there, best_there; /* it has copies of the tree and of the best */
};

void climb_tell(const carry_climb *climb, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* Reads the log again after it was changed. */
carry_status climb_reload(carry_climb *climb);
/* The current time, or the last entry's date if the clock went back. */
const char *climb_date(char date[32], const carry_climb_log *log);
/* Checks that a command is one line and not too long; `what` names it in the message. */
carry_status climb_check_command(carry_ctx *ctx, const char *what, const char *command);
/* Checks the number of repeats; 0: not given. */
carry_status climb_check_repeats(carry_ctx *ctx, int64_t repeats);
/* Stores samples of throughput as a run's result, in seconds per unit. */
carry_status climb_store_samples(carry_climb *climb, int64_t run, const char *method, const char *profile,
                                 const double *samples, int count, double share);
carry_status climb_store_patch(carry_climb *climb, int64_t run, const char *base, const char *tree);
/* Copies a trace into the run, since the worktree in which it was written is removed. Changes `trace`, the path of the
   trace, to "NAME in run NUMBER". */
carry_status climb_store_trace(carry_climb *climb, int64_t run, const char *folder, char trace[512]);
/* Ends a run that failed. Returns the status and keeps the error message. */
carry_status climb_store_failed(carry_climb *climb, int64_t run, carry_status status);

/* climb_git.c. Runs git in a folder; words end with NULL. output may be NULL; otherwise the caller frees it, and its
   last newline is removed. input may be NULL. */
typedef struct climb_git_call {
    const char *folder;
    bool own_index; /* use climb->index */
    const char *input;
    size_t input_length;
    const char *words[24];
} climb_git_call;

carry_status climb_git(carry_climb *climb, char **output, const climb_git_call *call);
/* Stores git's exit code instead of failing, for queries. The output is dropped. */
carry_status climb_git_asks(carry_climb *climb, int *code, const climb_git_call *call);
/* Reads a hash that git prints. */
carry_status climb_git_hash(carry_climb *climb, char hash[CLIMB_HASH], const climb_git_call *call);
carry_status climb_find_root(carry_climb *climb);
carry_status climb_head(carry_climb *climb, char hash[CLIMB_HASH]);
/* Writes the content of the folder, without the log and the store, as a tree into the repository. */
carry_status climb_tree(carry_climb *climb, char tree[CLIMB_HASH], const char *folder, const char *base);
/* Fails if a file of the tree that the last climb_tree wrote has changed since. */
carry_status climb_tree_stands(carry_climb *climb, const char *folder);
carry_status climb_refuse_dirty(carry_climb *climb, const char *why);
/* Describes a change: "2 files, +10 -3: src/a.c, src/b.c". */
carry_status climb_describe(carry_climb *climb, char *text, size_t size, const char *base, const char *tree);
carry_status climb_identity(carry_climb *climb);

/* climb_keep.c. */
carry_status climb_keep(carry_climb *climb, const char *change, const char *base, bool elsewhere, const char *text,
                        size_t length);
carry_status climb_commit(carry_climb *climb, char commit[CLIMB_HASH], const char *tree, const char *parent,
                          const char *title, const char *message);
carry_status climb_recover(carry_climb *climb);
carry_status climb_worktree_add(carry_climb *climb, char folder[CLIMB_PATH], const char *commit);
void climb_worktree_remove(carry_climb *climb, char folder[CLIMB_PATH]);
void climb_worktrees_clean(carry_climb *climb);

/* climb_profile.c: the result of one run of a profile command. */
typedef struct climb_figure {
    double throughput, share; /* share NaN: no MFU was printed */
    char trace[512], hotspots[512];
} climb_figure;

/* Parses the command's output. CARRY_EFORMAT if it has no figure. */
carry_status climb_figure_parse(carry_ctx *ctx, climb_figure *figure, const char *output, size_t length);
/* The time limit of a command, in seconds. */
double climb_seconds(const carry_climb *climb);
/* Runs sh -c in a folder. CARRY_EINTERRUPTED if the user stopped it; result is then freed. */
carry_status climb_shell(carry_climb *climb, carry_process_result *result, const char *folder, const char *command,
                         const char *const *environment);
/* why is "" on success, else the reason why there is no figure. */
carry_status climb_measure(carry_climb *climb, climb_figure *figure, char why[256], const char *folder,
                           const char *command);

/* climb_remote.c: climb_shell on climb->remote, and closing that. */
carry_status climb_remote_shell(carry_climb *climb, carry_process_result *result, const char *folder,
                                const char *command, const char *const *environment, const carry_process *how);
void climb_remote_close(carry_climb *climb);

/* climb_job.c: the name of the job that this process is, for the entry: "slurm 17", "local 3", or the given one. */
void climb_job_name(carry_climb *climb, char text[96], const char *given);

/* climb_gate.c: one change, in the user's tree or in a worktree. */
typedef struct climb_change {
    const char *folder;
    const char *base, *tree;
    bool elsewhere;      /* in a worktree: if it is kept, the user's tree must be updated */
    const char *failure; /* why there is nothing to judge, or NULL */
} climb_change;

carry_status climb_check_hypothesis(carry_ctx *ctx, const carry_climb_attempt *attempt);
carry_status climb_judge(carry_climb *climb, const carry_climb_attempt *attempt, const climb_change *change,
                         carry_climb_outcome *outcome);
/* The last lines of an output, for printing. The caller frees it. */
char *climb_tail(const char *output);

#endif
