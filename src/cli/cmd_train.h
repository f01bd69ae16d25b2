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
    char download[1024];    /* of the file: where its texts come from, "": it does not say */
    const char *device;     /* as it was typed */
    char name[64];          /* of the run: the text's or the task's */
    char command[1024];
    carry_ctx *ctx; /* for the store and for files that are read before the ranks are there */
    struct carry_store *store;
    int64_t run;
    bool store_failed;
    bool marked;      /* the folder of the run notes that it is not stored */
    bool redraws;     /* lines replace each other, on a terminal */
    bool has_unended; /* such a line was printed and not ended */
    double last_loss, last_exam;
    double started; /* carry_seconds; 0: the first step was printed */
    double peak;    /* flop/s of all ranks */
} train_session;

/* Makes DIR of DIR/ and DIR/latest: a run that went on in its own checkpoint would write over it. */
void train_run_folder(char *folder);
/* Keys of a YAML file into options. */
int train_read_config(train_session *session, const char *path);
/* CLI_DONE, or after an error message CLI_IMPOSSIBLE: the file says where its texts come from, and one is missing. */
int train_check_download(const train_session *session);
/* The run store: begun before the first step. CLI_DONE, or after an error message CLI_IMPOSSIBLE. */
int train_store_begin(train_session *session);
/* Once the resources of the run are known: threads, ranks, device, and the options with the defaults filled in. */
void train_store_started(train_session *session, const carry_train_start *start);
void train_store_metric(train_session *session, int64_t step, const char *name, double value);
void train_store_end(train_session *session, carry_status status, const char *note);

/* Hooks that print, for people or as JSON. */
void train_show_hooks(train_session *session);
void train_show_end(train_session *session);

/* The folder of a new run: after an error message CLI_IMPOSSIBLE where it holds a run, or something else and is not to
   be written to all the same. verb: "carry train". */
int train_check_out(const char *out, const char *verb, bool overwrite);

/* carry train dit: a verb of its own behind the word. */
int train_dit(int count, char **arguments);

#endif
