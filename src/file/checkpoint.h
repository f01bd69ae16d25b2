/* Finds the model that a path refers to, for every program and interface that loads one. A path is a .gguf file, the
   folder of a model (config.json and weights) or of an adapter (adapter_config.json), or the folder of a training run,
   which stands for its newest complete step-N. The files of a model are compared with the checksums that training wrote
   beside them: in train.json of a step, or in checksums.json of a finished video model. If there is neither, nothing is
   compared. */
#ifndef CARRY_FILE_CHECKPOINT_H
#define CARRY_FILE_CHECKPOINT_H

#include "core/file.h"
#include "file/checkpoint_files.h"

/* Finds the folder to load from. CARRY_ENOTFOUND: the path has no model. CARRY_EFORMAT: its files are damaged. Newer
   steps that are damaged or incomplete are logged as warnings. */
carry_status carry_checkpoint_resolve(carry_ctx *ctx, char folder[CARRY_FILE_PATH], const char *path);

/* Searches the steps of a run, newest first, for a folder that `check` accepts. If `check` fails, `skip` is called with
   its message. *count: the number of steps. If there are no steps, the search fails with CARRY_ENOTFOUND and an empty
   message; if none is accepted, with the status and message for the newest step. */
typedef struct carry_checkpoint_search {
    carry_status (*check)(void *user, carry_ctx *ctx, const char *folder);
    void (*skip)(void *user, carry_ctx *ctx, int64_t step, const char *why);
    void *user;
} carry_checkpoint_search;

carry_status carry_checkpoint_newest(carry_ctx *ctx, char folder[CARRY_FILE_PATH], const char *run, int64_t *count,
                                     const carry_checkpoint_search *search);

#endif
