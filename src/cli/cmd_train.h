/* Shared by the files of carry train. */
#ifndef CARRY_CLI_CMD_TRAIN_H
#define CARRY_CLI_CMD_TRAIN_H

#include "cli/ranks.h"
#include "train/loop.h"

struct carry_store;

/* One run, as rank 0 sees it. */
typedef struct train_session {
    cli_common common;
    carry_train_options options;
    carry_train_hooks hooks;
    bool resume, overwrite, unstored;
    bool has_started;      /* the options were accepted and the model made */
    int64_t resumed_after; /* step of the checkpoint; 0: a new run */
    const char *store_path, *config;
    const char *given_name; /* --name, else NULL */
    char download[1024];    /* the file's `download` text: where to get its data; "": not given */
    const char *device;     /* as it was typed */
    char name[64];          /* of the run: that of the text or task */
    char command[1024];
    carry_ctx *ctx; /* for the store, and for files that are read before the ranks start */
    struct carry_store *store;
    int64_t run;
    bool store_failed;
    bool marked;      /* the folder of the run has a note that it is not stored */
    bool redraws;     /* on a terminal: each line replaces the previous one */
    bool has_unended; /* such a line was printed and has no newline yet */
    double last_loss, last_exam;
    double started; /* start time by carry_seconds; 0: the first step was printed */
    double peak;    /* flop/s of all ranks */
} train_session;

/* Shortens DIR/ and DIR/latest to DIR: a run that continued inside its own checkpoint would overwrite it. */
void train_run_folder(char *folder);
/* Reads the keys of a YAML file into the options. */
int train_read_config(train_session *session, const char *path);
/* CLI_IMPOSSIBLE after printing a message if the configuration file says where to get its texts and one is missing;
   else CLI_DONE. */
int train_check_download(const train_session *session);
/* Starts the record in the run store, before the first step. Returns CLI_DONE, or CLI_IMPOSSIBLE after printing a
   message. */
int train_store_begin(train_session *session);
/* Stores the resources of the run once they are known: threads, ranks, device, and the options with defaults filled
   in. */
void train_store_started(train_session *session, const carry_train_start *start);
void train_store_metric(train_session *session, int64_t step, const char *name, double value);
void train_store_end(train_session *session, carry_status status, const char *note);

/* Sets hooks that print text or JSON. */
void train_show_hooks(train_session *session);
void train_show_end(train_session *session);
/* Prints where the model is, and the command for the loss curve, after a run that has succeeded. */
void train_print_end(const train_session *session);

/* Checks the folder of a new run. CLI_IMPOSSIBLE after printing a message if it holds a run, or if it holds other
   files and `overwrite` is false. verb: "carry train". */
int train_check_out(const char *out, const char *verb, bool overwrite);

/* carry train dit, which has its own options. */
int train_dit(int count, char **arguments);

#endif
